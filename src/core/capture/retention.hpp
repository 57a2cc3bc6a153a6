// Which committed steps stay on a run's last tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace twinrun {

// Which committed steps stay on the last tier. Only steps that every rank has committed are
// counted, and only these are removed.
struct Retention {
    std::uint64_t steps = 0;  // how many of the newest steps stay; 0: all
    // How many of the newest steps keep their data; the others keep only metadata. 0: all.
    std::uint64_t data_steps = 0;
    [[nodiscard]] bool any() const { return steps != 0 || data_steps != 0; }
};

// The steps that count for retention, in the order of capture. Not thread-safe. Throws
// std::bad_alloc.
class RetainedSteps {
   public:
    // The step counts, as the newest one.
    void add(std::int64_t step);
    // The same for a step that was captured earlier, maybe by another run, and is committed only
    // now: it takes its place before the first step with a higher number.
    void insert(std::int64_t step);
    // The step does not count any more: it was removed, or is captured again.
    void forget(std::int64_t step);

    // For steps that may be committed in another order than they were captured: a step counts once
    // all steps that were captured before it are settled. begin() is called in the order of
    // capture; an earlier attempt at the step then counts no more.
    void begin(std::int64_t step, const std::string& folder);
    // folder: of the attempt; empty: the oldest attempt that is not settled. present: it is
    // committed.
    void settle(std::int64_t step, const std::string& folder, bool present);

    struct Leaving {
        std::vector<std::int64_t> steps;  // with all their files
        std::vector<std::int64_t> data;   // only their data
    };
    // The steps that these settings do not keep, and that have not left before.
    Leaving take_leaving(const Retention& keep);

   private:
    // An attempt between begin() and settle(), or behind one that is.
    struct Unsettled {
        std::int64_t step = 0;
        std::string folder;
        bool settled = false;
        bool present = false;  // settled as committed
    };
    std::deque<Unsettled> unsettled_;
    std::vector<std::int64_t> steps_;
    std::size_t data_dropped_ = 0;  // how many of steps_, from the first on, have lost their data
};

}  // namespace twinrun
