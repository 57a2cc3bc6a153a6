// From errors to codes and messages: the one place that does it.
#pragma once

#include <string>
#include <utility>

#include "base/caught.hpp"
#include "base/result.hpp"
#include "twinrun/twinrun.h"

namespace twinrun::capi {

// Sets the text that twr_error_message() returns in this thread.
void set_message(const std::string& text) noexcept;

// The code of an error, which becomes the thread's message behind the function's name.
int failed(const char* function, const Error& error) noexcept;

// The status that an entry point returns. body() gives TWR_OK, a success with a condition to report
// (after set_message), or an error.
template <class Body>
int answer(const char* function, Body&& body) noexcept {
    const Result<twr_status> result = caught(std::forward<Body>(body));
    return result.ok() ? result.value() : failed(function, result.error());
}

// An error if the argument is NULL.
Result<> given(const void* argument, const char* name);

}  // namespace twinrun::capi
