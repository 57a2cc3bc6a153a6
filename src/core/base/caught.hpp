// Exceptions as errors, where none may pass: at the boundary to C, and between two steps that all
// ranks take.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.hpp"

namespace twinrun {

// In a handler of exceptions.
inline Error caught_error() noexcept {
    // A message that fits a std::string without allocation: memory may be what is missing.
    static_assert(sizeof "out of memory" <= 15);
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "out of memory"};
    } catch (const std::length_error&) {
        return Error{ErrorCode::out_of_memory, "out of memory"};
    } catch (const std::exception& e) {
        try {
            return Error{ErrorCode::internal, std::string("an exception, a defect in twinrun: ") + e.what()};
        } catch (...) {
            return Error{ErrorCode::out_of_memory, "out of memory"};
        }
    } catch (...) {
        return Error{ErrorCode::internal, "an exception"};
    }
}

// Returns the Result of body(), or an error in place of an exception.
template <class Body>
std::invoke_result_t<Body> caught(Body&& body) noexcept {
    try {
        return std::forward<Body>(body)();
    } catch (...) {
        return caught_error();
    }
}

}  // namespace twinrun
