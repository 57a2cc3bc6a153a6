// The one text of a thread, for all libraries of twinrun.
//
// It must be one object in a process, whatever a program is linked with: this library,
// libtwinrun_aggregate, or both. So it is here alone, and the other libraries are linked with this
// one and set it by twr_fail. A weak copy in each library would be one object only as long as the
// dynamic linker binds all of them to the same: not with RTLD_DEEPBIND, with RTLD_LOCAL of one
// after the other, or where libraries have namespaces of their own (macOS).
#include "capi/status.hpp"

#include <algorithm>
#include <cstring>

namespace twinrun::capi {

namespace {

static_assert(TWR_ERROR_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
static_assert(TWR_ERROR_NOT_FOUND == static_cast<int>(ErrorCode::not_found));
static_assert(TWR_ERROR_IO == static_cast<int>(ErrorCode::io));
static_assert(TWR_ERROR_NO_SPACE == static_cast<int>(ErrorCode::no_space));
static_assert(TWR_ERROR_DAMAGED == static_cast<int>(ErrorCode::damaged));
static_assert(TWR_ERROR_UNSUPPORTED == static_cast<int>(ErrorCode::unsupported));
static_assert(TWR_ERROR_STALE == static_cast<int>(ErrorCode::stale));
static_assert(TWR_ERROR_MISMATCH == static_cast<int>(ErrorCode::mismatch));
static_assert(TWR_ERROR_OUT_OF_MEMORY == static_cast<int>(ErrorCode::out_of_memory));
static_assert(TWR_ERROR_INTERRUPTED == static_cast<int>(ErrorCode::interrupted));
static_assert(TWR_ERROR_INTERNAL == static_cast<int>(ErrorCode::internal));
static_assert(TWR_ERROR_OTHER_RANK == static_cast<int>(ErrorCode::other_rank));

// Not a std::string: a run that a static object closes still needs it, when the thread's objects
// are gone already.
constexpr std::size_t kLongest = 4096;
thread_local char message[kLongest] = "";

// text may be a part of the message.
void append(std::size_t& at, const char* text, std::size_t length) noexcept {
    const std::size_t taken = std::min(length, kLongest - 1 - at);
    std::memmove(message + at, text, taken);
    at += taken;
    message[at] = '\0';
    if (taken < length) std::memcpy(message + kLongest - 4, "...", 4);
}

}  // namespace

void set_message(const std::string& text) noexcept {
    std::size_t at = 0;
    append(at, text.data(), text.size());
}

int failed(const char* function, const Error& error) noexcept {
    std::size_t at = 0;
    append(at, function, std::strlen(function));
    append(at, ": ", 2);
    append(at, error.message.data(), error.message.size());
    return static_cast<int>(error.code);
}

Result<> given(const void* argument, const char* name) {
    if (argument != nullptr) return success();
    return Error{ErrorCode::invalid_argument, std::string(name) + " is NULL"};
}

}  // namespace twinrun::capi

extern "C" {

const char* twr_error_message(void) { return twinrun::capi::message; }

int twr_fail(int status, const char* message) {
    std::size_t at = 0;
    const char* const text = message == nullptr ? "" : message;
    twinrun::capi::append(at, text, std::strlen(text));
    return status;
}

const char* twr_status_name(int status) {
    switch (status) {
        case TWR_OK: return "TWR_OK";
        case TWR_ERROR_INVALID_ARGUMENT: return "TWR_ERROR_INVALID_ARGUMENT";
        case TWR_ERROR_NOT_FOUND: return "TWR_ERROR_NOT_FOUND";
        case TWR_ERROR_IO: return "TWR_ERROR_IO";
        case TWR_ERROR_NO_SPACE: return "TWR_ERROR_NO_SPACE";
        case TWR_ERROR_DAMAGED: return "TWR_ERROR_DAMAGED";
        case TWR_ERROR_UNSUPPORTED: return "TWR_ERROR_UNSUPPORTED";
        case TWR_ERROR_STALE: return "TWR_ERROR_STALE";
        case TWR_ERROR_MISMATCH: return "TWR_ERROR_MISMATCH";
        case TWR_ERROR_OUT_OF_MEMORY: return "TWR_ERROR_OUT_OF_MEMORY";
        case TWR_ERROR_INTERRUPTED: return "TWR_ERROR_INTERRUPTED";
        case TWR_ERROR_INTERNAL: return "TWR_ERROR_INTERNAL";
        case TWR_ERROR_OTHER_RANK: return "TWR_ERROR_OTHER_RANK";
        case TWR_DIVERGED: return "TWR_DIVERGED";
        case TWR_STEP_LOST: return "TWR_STEP_LOST";
        case TWR_DIFFERENT: return "TWR_DIFFERENT";
        case TWR_INCOMPARABLE: return "TWR_INCOMPARABLE";
        default: return "not a twr_status";
    }
}

const char* twr_version(void) { return TWINRUN_VERSION; }

int twr_version_number(void) { return TWINRUN_VERSION_NUMBER; }

}  // extern "C"
