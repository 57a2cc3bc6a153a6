// Where random tests begin: at seeds of their own, or, in a hunt, at others.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace twinrun {

// `own`, the same in every run; where TWINRUN_TEST_SEED is set (`make hunt`), another number that follows from both.
inline std::uint64_t test_seed(std::uint64_t own) {
    const char* const text = std::getenv("TWINRUN_TEST_SEED");
    if (text == nullptr || *text == '\0') return own;
    std::uint64_t mixed = own + std::strtoull(text, nullptr, 10) * 0x9E3779B97F4A7C15U;  // SplitMix64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
    return mixed ^ (mixed >> 31);
}

}  // namespace twinrun
