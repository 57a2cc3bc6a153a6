#include "sketch/sketch_stream.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

Result<> SketchStream::add(FieldMetadata field, DeviceArray array) {
    if (auto checked = check_array(array); !checked)
        return std::move(checked).error().at("field '" + field.name + "'");
    Group& group = array.dense() ? dense_ : strided_;
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
    std::vector<const FieldMetadata*> fields;
    fields.reserve(own.fields.size());
    for (const FieldMetadata& field : own.fields)
        fields.push_back(&field);
    TWR_TRY(own.started, StartedSketches::start(std::move(fields), std::move(own.arrays), options_));
    under_way_.push_back(std::move(own));
    return success();
}

Result<> SketchStream::take_first() {
    Group group = std::move(under_way_.front());
    under_way_.pop_front();
    TWR_TRY(auto sketches, group.started->sketches());
    if (made_.size() < count_) made_.resize(count_);
    for (std::size_t i = 0; i < sketches.size(); ++i)
        made_[group.numbers[i]] = std::move(sketches[i]);
    return success();
}

Result<std::vector<DeviceSketch>> SketchStream::finish() {
    TWR_CHECK(start());
    made_.resize(count_);
    while (!under_way_.empty())
        TWR_CHECK(take_first());
    return std::move(made_);
}

}  // namespace twinrun
