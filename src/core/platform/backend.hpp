// Which instruction set the kernels use. This is the one place that decides; kernels register
// themselves per room (digest_dispatch.cpp, difference_dispatch.cpp) in the order of this
// enumeration.
#pragma once

#include <string_view>

namespace twinrun {

enum class Backend { portable = 0, avx2 = 1, avx512 = 2 };
inline constexpr int kBackends = 3;

[[nodiscard]] std::string_view backend_name(Backend backend);

// True if this build holds the backend's kernels and this CPU and operating system can run them.
[[nodiscard]] bool backend_available(Backend backend);

// The backend in use: the widest that is available, or the one that
// TWINRUN_BACKEND=portable|avx2|avx512 names if that one is available (an unknown or unavailable
// name is ignored; backend_override_ignored() then returns it). Read once.
[[nodiscard]] Backend active_backend();
// The name that was asked for and is not available, or "".
[[nodiscard]] std::string_view backend_override_ignored();

}  // namespace twinrun
