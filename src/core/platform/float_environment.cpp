#include "platform/float_environment.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace twinrun {

#if defined(__x86_64__)
namespace {
constexpr unsigned kMaskExceptions = 0x1F80;  // MXCSR bits 7 to 12
constexpr unsigned kRoundDown = 0x2000;       // MXCSR bits 13, 14; flush bits 6 and 15 stay clear
}  // namespace
FloatEnvironment::FloatEnvironment(Rounding rounding) : saved_(_mm_getcsr()) {
    _mm_setcsr(kMaskExceptions | (rounding == Rounding::downward ? kRoundDown : 0U));
}
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FloatEnvironment::FloatEnvironment(Rounding rounding) {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    // FPCR.RMode; FZ, FZ16 off
    const unsigned long long control = rounding == Rounding::downward ? 2ULL << 22 : 0;
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
}
FloatEnvironment::~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FloatEnvironment::FloatEnvironment(Rounding rounding)
    : saved_(static_cast<unsigned long long>(std::fegetround())) {
    std::fesetround(rounding == Rounding::downward ? FE_DOWNWARD : FE_TONEAREST);
}
FloatEnvironment::~FloatEnvironment() { std::fesetround(static_cast<int>(saved_)); }
#endif

}  // namespace twinrun
