// What became of each step of a session: under way, committed or lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "capture/session.hpp"
#include "capture/step_set.hpp"

namespace twinrun {

// A session's member. Thread-safe.
class StepLedger {
   public:
    // Adds a step that an earlier run committed.
    void add_earlier(std::int64_t step);
    // From now on only these steps count as committed or under way.
    void keep_only(std::span<const std::int64_t> steps);
    // Whether the step is committed or under way.
    [[nodiscard]] bool has(std::int64_t step) const;

    // The step is under way. After success, settle() of it needs no memory. Throws std::bad_alloc;
    // then the step is not under way.
    void begin(std::int64_t step);
    // A step that is under way is committed, or lost because of this error. reported: a call
    // returns the error; otherwise take_lost() does.
    void settle(std::int64_t step, const Error* lost, bool reported);
    // The lost steps that no call has reported. They count as reported from now on. Throws
    // std::bad_alloc; then nothing changed.
    std::vector<LostStep> take_lost();
    // Takes lost steps back: the call that took them could not report them. Throws std::bad_alloc.
    void put_back(const std::vector<LostStep>& lost);

    struct Counts {
        std::uint64_t committed = 0;  // steps
        std::uint64_t lost = 0;       // steps
    };
    [[nodiscard]] Counts counts() const;

   private:
    mutable std::mutex mutex_;  // protects all that follows
    StepSet taken_;             // steps that are committed or under way
    // Lost steps that no call has reported. Has room for all steps under way: a step lost to
    // out-of-memory is still reported.
    std::vector<LostStep> unreported_;
    std::size_t under_way_ = 0;  // steps
    Counts counts_;
};

}  // namespace twinrun
