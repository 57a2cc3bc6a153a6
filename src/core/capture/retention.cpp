#include "capture/retention.hpp"

#include <algorithm>

namespace twinrun {

void RetainedSteps::add(std::int64_t step) {
    forget(step);
    steps_.push_back(step);
}

void RetainedSteps::insert(std::int64_t step) {
    forget(step);
    const auto next =
        std::find_if(steps_.begin(), steps_.end(), [&](std::int64_t other) { return other > step; });
    data_dropped_ = std::min(data_dropped_, static_cast<std::size_t>(next - steps_.begin()));
    steps_.insert(next, step);
}

void RetainedSteps::forget(std::int64_t step) {
    const auto found = std::find(steps_.begin(), steps_.end(), step);
    if (found == steps_.end()) return;
    if (static_cast<std::size_t>(found - steps_.begin()) < data_dropped_) --data_dropped_;
    steps_.erase(found);
}

void RetainedSteps::begin(std::int64_t step, const std::string& folder) {
    unsettled_.push_back({step, folder});
    forget(step);
}

void RetainedSteps::settle(std::int64_t step, const std::string& folder, bool present) {
    const auto own = std::find_if(unsettled_.begin(), unsettled_.end(), [&](const Unsettled& u) {
        return u.step == step && !u.settled && (folder.empty() || u.folder == folder);
    });
    if (own != unsettled_.end()) {
        own->settled = true;
        own->present = present;
    }
    while (!unsettled_.empty() && unsettled_.front().settled) {
        const Unsettled first = unsettled_.front();
        unsettled_.pop_front();
        const bool recaptured = std::any_of(unsettled_.begin(), unsettled_.end(),
                                            [&](const Unsettled& u) { return u.step == first.step; });
        if (first.present && !recaptured) add(first.step);
    }
}

RetainedSteps::Leaving RetainedSteps::take_leaving(const Retention& keep) {
    Leaving leaving;
    if (keep.steps != 0 && steps_.size() > keep.steps) {
        const std::size_t count = steps_.size() - keep.steps;
        leaving.steps.assign(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(count));
        steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(count));
        data_dropped_ -= std::min(data_dropped_, count);
    }
    if (keep.data_steps != 0 && steps_.size() > keep.data_steps) {
        const std::size_t count = steps_.size() - keep.data_steps;
        for (; data_dropped_ < count; ++data_dropped_)
            leaving.data.push_back(steps_[data_dropped_]);
    }
    return leaving;
}

}  // namespace twinrun
