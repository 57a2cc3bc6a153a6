// Structures of the C interfaces that begin with their size: callers may have been compiled with an
// older or a newer version of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// An error if no version of the structure has this size. `known` is that of this version, `least`
// that of the oldest.
inline Result<> check_size(std::size_t size, std::size_t known, std::size_t least, const char* type) {
    // No version will be larger: a larger size shows memory that was not initialized.
    constexpr std::size_t kLargest = 1024;
    if (size >= least && size <= kLargest && size % alignof(std::uint64_t) == 0) return success();
    return Error{ErrorCode::invalid_argument, std::string(type) + ".size is " + std::to_string(size) +
                                                  ": set it to sizeof(" + type + "), " +
                                                  std::to_string(known)};
}

// A structure as this version knows it. What an older caller does not have is as in `known`; what
// only a newer one has must be 0, the value that changes nothing.
template <class T>
Result<T> known_part(const T* given, T known, std::size_t least, const char* type) {
    const std::size_t size = given->size;
    TWR_CHECK(check_size(size, sizeof(T), least, type));
    std::memcpy(&known, given, std::min(size, sizeof known));
    if (size > sizeof known) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(given);
        if (std::any_of(bytes + sizeof known, bytes + size, [](unsigned char b) { return b != 0; })) {
            return Error{ErrorCode::unsupported,
                         std::string(type) + " uses members that this library, version " TWINRUN_VERSION
                                             ", does not know: install the one that the application was "
                                             "built for"};
        }
    }
    return known;
}

}  // namespace twinrun
