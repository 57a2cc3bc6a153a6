#include "sketch/sketch_stream.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

Result<> SketchStream::add(FieldMetadata field, DeviceArray array) {
    if (auto checked = check_array(array); !checked)
        return std::move(checked).error().at("field '" + field.name + "'");
    Group& group = array.dense() ? dense_ : strided_;
    if (group.numbers.empty()) {
        group.numbers.reserve(next_);
        group.fields.reserve(next_);
        group.arrays.reserve(next_);
    }
    group.numbers.push_back(count_++);
    group.bytes += field.data_bytes();
    group.fields.push_back(std::move(field));
    group.arrays.push_back(std::move(array));
    if (&group == &strided_ || (group.numbers.size() < next_ && group.bytes < kEnoughBytes)) return success();
    TWR_CHECK(start(group));
    next_ = std::min(2 * next_, kMost);
    return success();
}

Result<> SketchStream::start() {
    TWR_CHECK(start(dense_));
    return start(strided_);
}

Result<> SketchStream::start(Group& group) {
    if (group.numbers.empty()) return success();
    while (is_full())
        TWR_CHECK(take_first());
    Group own = std::exchange(group, {});
    TWR_TRY(own.started, StartedSketches::start(std::move(own.fields), std::move(own.arrays), options_));
    under_way_.push_back(std::move(own));
    return success();
}

Result<> SketchStream::take_first() {
    Group group = std::move(under_way_.front());
    under_way_.pop_front();
    TWR_TRY(auto sketches, group.started->sketches());
    for (std::size_t i = 0; i < sketches.size(); ++i)
        take_(group.numbers[i], std::move(sketches[i]));
    return success();
}

Result<> SketchStream::finish() {
    TWR_CHECK(start());
    while (!under_way_.empty())
        TWR_CHECK(take_first());
    return success();
}

}  // namespace twinrun
