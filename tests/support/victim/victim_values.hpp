// What the elements of capture_victim are at each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace twinrun::testing {

// Set: steps of 36 MB, whose files have their size before they are written.
constexpr const char* kVictimLarge = "TWINRUN_VICTIM_LARGE";

inline std::vector<std::vector<double>> victim_state() {
    const std::size_t largest = std::getenv(kVictimLarge) != nullptr ? 4'400'000 : 200'000;
    return {std::vector<double>(1), std::vector<double>(300), std::vector<double>(largest),
            std::vector<double>(40'000)};
}

inline double victim_value(std::int64_t step, std::size_t field, std::size_t i) {
    // Of the largest field an eighth changes with each step: so that a record has something to leave out.
    if (field == 2) step -= (step - static_cast<std::int64_t>(i / 1000)) & 7;
    return static_cast<double>(step) * 8.0 + static_cast<double>(field) +
           1e-7 * static_cast<double>(i % 1013);
}

inline void victim_become(std::vector<std::vector<double>>& state, std::int64_t step) {
    for (std::size_t f = 0; f < state.size(); ++f) {
        for (std::size_t i = 0; i < state[f].size(); ++i)
            state[f][i] = victim_value(step, f, i);
    }
}

}  // namespace twinrun::testing
