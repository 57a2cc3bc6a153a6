// The floating-point environment that kernels rely on, whatever the host application set (codes
// built with -ffast-math switch denormals off for the whole process, and a digest must not change
// with that).
#pragma once

namespace twinrun {

enum class Rounding { to_nearest, downward };

// Sets rounding, switches flush-to-zero and denormals-are-zero off, masks exceptions; the
// destructor restores what was. Per thread. Code that relies on it must not be inlined beside the
// constructor: kernels are called through pointers.
class FloatEnvironment {
   public:
    explicit FloatEnvironment(Rounding rounding);
    ~FloatEnvironment();
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

   private:
    unsigned long long saved_;
};

}  // namespace twinrun
