// A set of steps, of which a run may have millions: 8 bytes each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace twinrun {

// Not thread-safe.
class StepSet {
   public:
    // Throws std::bad_alloc; then nothing changed.
    void insert(std::int64_t step) {
        auto at = std::lower_bound(steps_.begin(), steps_.end(), step);
        if (at != steps_.end() && *at == step) return;
        if (steps_.size() == steps_.capacity()) {
            // By a quarter and not to twice the size, as a vector does.
            const auto before = at - steps_.begin();
            steps_.reserve(steps_.size() + steps_.size() / 4 + 8);
            at = steps_.begin() + before;
        }
        steps_.insert(at, step);
    }
    void erase(std::int64_t step) {
        const auto at = std::lower_bound(steps_.begin(), steps_.end(), step);
        if (at != steps_.end() && *at == step) steps_.erase(at);
    }
    // Takes these steps, in any order, in place of those that it has. Throws std::bad_alloc.
    void assign(std::span<const std::int64_t> steps) {
        steps_.assign(steps.begin(), steps.end());
        std::sort(steps_.begin(), steps_.end());
        steps_.erase(std::unique(steps_.begin(), steps_.end()), steps_.end());
    }
    [[nodiscard]] bool contains(std::int64_t step) const {
        return std::binary_search(steps_.begin(), steps_.end(), step);
    }

   private:
    std::vector<std::int64_t> steps_;  // ascending
};

}  // namespace twinrun
