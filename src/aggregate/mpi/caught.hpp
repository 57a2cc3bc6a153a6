// Exceptions as errors: what runs between two steps that all ranks take must come back, so that this rank takes the next step too.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.hpp"

namespace twinrun::aggregation {

// In a handler of exceptions. Short words need no memory.
inline Error caught_error() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc&) {
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

// What body() gives, a Result, or an error in place of an exception.
template <class Body>
std::invoke_result_t<Body> caught(Body&& body) noexcept {
    try {
        return std::forward<Body>(body)();
    } catch (...) {
        return caught_error();
    }
}

}  // namespace twinrun::aggregation
