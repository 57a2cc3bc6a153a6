#include "capture/agreement.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <utility>

#include "history/names.hpp"

namespace twinrun {

namespace {

// Most steps whose states one collective call exchanges.
constexpr std::size_t kWindow = 64;

}  // namespace

Error other_rank() {
    return Error{ErrorCode::other_rank, "another rank of this run failed: its own message says why"};
}

Agreement::Agreement(Comm& comm, bool track, std::function<void(std::int64_t)> everywhere)
    : comm_(comm), track_(track && comm.size() > 1), everywhere_(std::move(everywhere)) {}

Result<> Agreement::agree(Result<> own) {
    if (!several()) return own;
    std::array<std::int64_t, 1> ok{own ? 1 : 0};
    auto asked = comm_.minimum(ok);
    if (!own) return own;
    TWR_CHECK(std::move(asked));
    if (ok[0] == 0) return other_rank();
    return success();
}

Result<> Agreement::on_settings(const SessionSettings& settings, bool staged, bool& ends_local,
                                const std::string& path) {
    if (!several()) return success();
    const bool shares = settings.shared_files != SharedFiles::off;
    const std::int64_t own = (settings.keep.any() ? 1 : 0) | (settings.stop_on_divergence ? 2 : 0) |
                             (settings.reference.empty() ? 0 : 4) |
                             static_cast<std::int64_t>(settings.shared_files) << 3 |
                             (shares && staged ? 1 << 5 : 0);
    std::array<std::int64_t, 3> all{own, ~own, ends_local ? 0 : 1};
    TWR_CHECK(comm_.minimum(all));
    ends_local = all[2] == 0;
    if (all[0] == own && all[1] == ~own) return success();
    return Error{
        ErrorCode::mismatch,
        path +
            ": keep_steps, keep_data_steps, reference and stop_on_divergence must be set "
            "on all ranks, or on none; shared_files must be the same on all, and with it background"};
}

Result<> Agreement::on_step(Result<> own, std::int64_t step, std::uint32_t& attempt) {
    // Before the ranks agree: a rank that had no memory for the step would exchange a different
    // list of states.
    if (own && track_) {
        try {
            const std::lock_guard guard(mutex_);
            unresolved_.reserve(unresolved_.size() + 1);
        } catch (const std::bad_alloc&) {
            own = Error{ErrorCode::out_of_memory, "not enough memory to capture a step"};
        }
    }
    if (!several()) return own;
    std::vector<std::int64_t> values{own ? 1 : 0, step, ~step, -static_cast<std::int64_t>(attempt)};
    auto asked = minimum(values);
    if (!own) return own;
    TWR_CHECK(std::move(asked));
    if (values[0] == 0) return other_rank();
    if (values[1] != step || values[2] != ~step) {
        // The smallest step of all, or the largest where this rank has the smallest itself.
        const std::int64_t elsewhere = values[1] != step ? values[1] : ~values[2];
        return Error{ErrorCode::mismatch, "ranks capture different steps: here " + std::to_string(step) +
                                              ", elsewhere " + std::to_string(elsewhere)};
    }
    attempt = static_cast<std::uint32_t>(-values[3]);
    return success();
}

Result<> Agreement::exchange() {
    std::vector<std::int64_t> nothing{0};
    return minimum(nothing);
}

// [collective] Each of `values` becomes its minimum over all ranks. If tracking, the same message
// carries the states of the oldest unresolved steps, and steps that all ranks have settled are
// resolved.
Result<> Agreement::minimum(std::vector<std::int64_t>& values) {
    const std::size_t own = values.size();
    std::size_t window = 0;
    if (track_) {
        const std::lock_guard guard(mutex_);
        window = std::min(unresolved_.size(), kWindow);
        for (std::size_t i = 0; i < window; ++i)
            values.push_back(unresolved_[i].state);
    }
    TWR_CHECK(comm_.minimum(values));
    std::vector<std::int64_t> everywhere;
    {
        const std::lock_guard guard(mutex_);
        std::size_t known = 0;
        for (; known < window && values[own + known] != 0; ++known) {
            const std::int64_t step = unresolved_[known].step;
            // If the step was captured again since, only the newer attempt counts.
            const auto later = unresolved_.begin() + static_cast<std::ptrdiff_t>(known) + 1;
            const bool newer =
                std::any_of(later, unresolved_.end(), [&](const Ordinal& o) { return o.step == step; });
            if (values[own + known] == 1 && !newer) everywhere.push_back(step);
        }
        unresolved_.erase(unresolved_.begin(), unresolved_.begin() + static_cast<std::ptrdiff_t>(known));
    }
    for (const std::int64_t step : everywhere)
        everywhere_(step);
    values.resize(own);
    return success();
}

Result<std::vector<CommonStep>> Agreement::common_steps(bool ends_local, bool keeps_data,
                                                        const std::function<RankSteps()>& own_steps,
                                                        const std::function<Result<History>()>& open) {
    std::vector<CommonStep> common;
    const auto counts = [&](bool has_data) { return has_data || !keeps_data; };
    if (!several()) {
        for (const auto& [step, entry] : own_steps())
            common.push_back({step, counts(!entry.files.data.empty())});
        return common;
    }
    // First message: {error, count of values}. Second message: {step, attempt, has data} of each
    // step.
    std::array<std::int64_t, 2> head{0, 0};
    std::vector<std::int64_t> steps;
    Result<> own = success();
    if (comm_.rank() == 0 && ends_local) {
        for (const auto& [step, entry] : own_steps())
            steps.insert(steps.end(), {step, attempt_of(entry.folder), entry.files.data.empty() ? 0 : 1});
    } else if (comm_.rank() == 0) {
        auto history = open();
        if (history) {
            for (const HistoryStep& step : history->steps) {
                // Retention may have removed the data of a step and kept its metadata.
                const bool has_data = std::none_of(step.ranks.begin(), step.ranks.end(),
                                                   [](const RankFiles& r) { return r.data.empty(); });
                steps.insert(steps.end(), {step.step, attempt_of(step.folder), has_data ? 1 : 0});
            }
        } else {
            own = std::move(history).error();
            head[0] = 1;
        }
    }
    head[1] = static_cast<std::int64_t>(steps.size());
    TWR_CHECK(comm_.broadcast(std::as_writable_bytes(std::span(head))));
    if (!own) return std::move(own).error();
    if (head[0] != 0) return other_rank();
    steps.resize(static_cast<std::size_t>(head[1]));
    if (!steps.empty()) TWR_CHECK(comm_.broadcast(std::as_writable_bytes(std::span(steps))));
    // Rank 0 does not see steps on other nodes: each rank says what it has of rank 0's steps.
    std::vector<std::int64_t> states;  // 0: nothing, 1: metadata, 2: metadata and data
    const auto here = ends_local ? own_steps() : RankSteps();
    for (std::size_t i = 0; i < steps.size(); i += 3) {
        const auto entry = here.find(steps[i]);
        const bool has =
            !ends_local || (entry != here.end() && attempt_of(entry->second.folder) == steps[i + 1]);
        const bool has_data =
            steps[i + 2] != 0 && (!ends_local || (has && !entry->second.files.data.empty()));
        states.push_back(!has ? 0 : has_data ? 2 : 1);
    }
    if (ends_local && !states.empty()) TWR_CHECK(comm_.minimum(states));
    for (std::size_t i = 0; i < states.size(); ++i) {
        if (states[i] != 0) common.push_back({steps[3 * i], counts(states[i] == 2)});
    }
    return common;
}

void Agreement::add(std::int64_t step) {
    if (!track_) return;
    const std::lock_guard guard(mutex_);
    unresolved_.push_back({step, 0});
}

void Agreement::settled(std::int64_t step, bool lost) {
    const std::lock_guard guard(mutex_);
    for (Ordinal& ordinal : unresolved_) {
        if (ordinal.step == step && ordinal.state == 0) {
            ordinal.state = lost ? -1 : 1;
            return;
        }
    }
}

std::size_t Agreement::unresolved() const {
    const std::lock_guard guard(mutex_);
    return unresolved_.size();
}

}  // namespace twinrun
