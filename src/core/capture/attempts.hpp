// The attempts at each step. A step that is captured again is a new attempt, with a folder of its
// own.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "base/result.hpp"
#include "capture/step_set.hpp"
#include "history/history.hpp"

namespace twinrun {

// A session's member, used by one thread at a time.
class Attempts {
   public:
    // Adds the attempts that this journal names: committed steps, dropped steps, and differences.
    void add(const Journal& journal);
    void add(std::int64_t step, std::uint32_t attempt);
    // The attempt after the newest one at this step; 0: there is none yet.
    [[nodiscard]] std::uint32_t after_newest(std::int64_t step) const;

   private:
    StepSet steps_;                                 // that have an attempt
    std::map<std::int64_t, std::uint32_t> newest_;  // of those that have more than the first, 0
};

// The first attempt, from `attempt` on, whose folder has a name that no file or folder in `parents`
// has: files of others stay as they are. An empty parent has none. Error: out_of_memory.
Result<std::uint32_t> first_unused(std::int64_t step, std::uint32_t attempt,
                                   std::span<const std::string_view> parents);

}  // namespace twinrun
