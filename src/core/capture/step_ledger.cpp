#include "capture/step_ledger.hpp"

#include <exception>
#include <utility>

#include "capture/failure.hpp"

namespace twinrun {

void StepLedger::add_earlier(std::int64_t step) {
    const std::lock_guard guard(mutex_);
    taken_.insert(step);
}

void StepLedger::keep_only(std::span<const std::int64_t> steps) {
    const std::lock_guard guard(mutex_);
    taken_.assign(steps);
}

bool StepLedger::has(std::int64_t step) const {
    const std::lock_guard guard(mutex_);
    return taken_.contains(step);
}

void StepLedger::begin(std::int64_t step) {
    const std::lock_guard guard(mutex_);
    unreported_.reserve(unreported_.size() + under_way_ + 1);
    taken_.insert(step);
    ++under_way_;
}

void StepLedger::settle(std::int64_t step, const Error* lost, bool reported) {
    const std::lock_guard guard(mutex_);
    if (under_way_ != 0) --under_way_;
    if (lost == nullptr) {
        ++counts_.committed;
        return;
    }
    if (!reported) {
        // Needs no memory: begin() reserved it.
        unreported_.push_back({step, out_of_memory()});
        try {
            unreported_.back().error = *lost;
        } catch (const std::exception&) {  // the error stays out_of_memory()
        }
    }
    ++counts_.lost;
    taken_.erase(step);
}

std::vector<LostStep> StepLedger::take_lost() {
    const std::lock_guard guard(mutex_);
    std::vector<LostStep> next;
    next.reserve(under_way_);
    return std::exchange(unreported_, std::move(next));
}

void StepLedger::put_back(const std::vector<LostStep>& lost) {
    const std::lock_guard guard(mutex_);
    unreported_.reserve(unreported_.size() + lost.size() + under_way_);
    unreported_.insert(unreported_.begin(), lost.begin(), lost.end());
}

StepLedger::Counts StepLedger::counts() const {
    const std::lock_guard guard(mutex_);
    return counts_;
}

}  // namespace twinrun
