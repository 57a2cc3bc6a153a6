// The errors that exceptions of the standard library become.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/result.hpp"

namespace twinrun {

// An error that needs no heap memory itself: the text is short enough for the string's own buffer.
inline Error out_of_memory() { return {ErrorCode::out_of_memory, "out of memory"}; }

// What an exception becomes when a run is opened.
inline Error failure_of(const std::string& path, const std::exception& e) {
    if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr)
        return Error{ErrorCode::out_of_memory, path + ": not enough memory to open a run"};
    // FileSystem throws nothing, so that this error comes from starting a thread.
    const auto* const system = dynamic_cast<const std::system_error*>(&e);
    if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
        return Error{
            ErrorCode::out_of_memory,
            path +
                ": no thread could be started: raise the limit of processes and threads ('ulimit -u', "
                "or that of the job or container), leave more address space ('ulimit -v'), or set "
                "threads and flush_threads to fewer"};
    }
    return Error{ErrorCode::io, path + ": " + e.what()};
}

}  // namespace twinrun
