// What files with wrappers share.
#pragma once

#include <cerrno>

#include "interpose/state.hpp"

// A function that programs call instead of the C library's or MPI's.
#define TWR_WRAP extern "C" __attribute__((visibility("default")))

namespace twinrun::interpose {

// Bytes of a call that returned `result`: a count, or -1.
template <typename Integer>
inline std::uint64_t moved(Integer result) {
    return result > 0 ? static_cast<std::uint64_t>(result) : 0;
}

// The C library lacks the function. The program cannot have been linked with it; it gets an error.
template <typename Result>
inline Result missing(Result result) {
    errno = ENOSYS;
    return result;
}

}  // namespace twinrun::interpose
