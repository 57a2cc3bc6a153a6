#include "sketch/sketch_stream.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

Result<> SketchStream::add(std::size_t number, FieldMetadata field, DeviceArray array) {
    if (auto checked = check_array(array); !checked)
        return std::move(checked).error().at("field '" + field.name + "'");
    Group& group = array.dense() ? dense_ : strided_;
    if (group.numbers.empty()) {
        group.numbers.reserve(next_);
        group.fields.reserve(next_);
        group.arrays.reserve(next_);
    }
    group.numbers.push_back(number);
    group.bytes += field.data_bytes();
    group.fields.push_back(std::move(field));
    group.arrays.push_back(std::move(array));
    if (&group == &strided_ || (group.numbers.size() < next_ && group.bytes < kEnoughBytes)) return success();
    return start(group);
}

Result<> SketchStream::start() {
    TWR_CHECK(start(dense_));
    TWR_CHECK(start(strided_));
    // Only now: a group that is begun waits for what is in the arrays' streams.
    for (; led_ < under_way_.size(); ++led_)
        TWR_CHECK(under_way_[led_].started->lead());
    return success();
}

Result<> SketchStream::start(Group& group) {
    if (group.numbers.empty()) return success();
    Group own = std::exchange(group, {});
    TWR_TRY(auto plan, StartedSketches::plan(std::move(own.fields), std::move(own.arrays)));
    return repeat({std::move(own.numbers), std::move(plan)});
}

Result<> SketchStream::repeat(Planned planned) {
    while (is_full())
        TWR_CHECK(take_first());
    TWR_TRY(auto started, StartedSketches::begin(planned.plan, options_));
    under_way_.push_back({planned_.size(), std::move(started)});
    planned_.push_back(std::move(planned));
    next_ = std::min(2 * next_, kMost);
    return success();
}

Result<> SketchStream::take_first() {
    const UnderWay first = std::move(under_way_.front());
    under_way_.pop_front();
    if (led_ != 0) --led_;
    TWR_TRY(SketchGroup sketches, first.started->sketches());
    take_(planned_[first.planned].numbers, std::move(sketches));
    return success();
}

Result<> SketchStream::finish() {
    TWR_CHECK(start());
    while (!under_way_.empty())
        TWR_CHECK(take_first());
    return success();
}

}  // namespace twinrun
