// Many pieces of work for the threads of a team.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/result.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Calls work(worker, i) once for each i below `count`, on all threads of the team, until a call
// fails. Returns the first error. no_memory: the text of the error where a call throws
// std::bad_alloc.
template <class Work>
Result<> for_each_item(Team& team, std::size_t count, const char* no_memory, Work work) {
    std::atomic<std::size_t> next{0};
    std::mutex failing;
    std::optional<Error> failure;
    const auto help = [&](int worker) {
        Result<> done = success();
        try {
            for (std::size_t i = next++; done && i < count; i = next++)
                done = work(worker, i);
        } catch (const std::bad_alloc&) {
            done = Error{ErrorCode::out_of_memory, no_memory};
        }
        if (done) return;
        next = count;
        const std::lock_guard guard(failing);
        if (!failure) failure = std::move(done).error();
    };
    if (count > 1) {
        team.run(help);
    } else {
        help(0);  // to wake the others would take longer
    }
    if (failure) return std::move(*failure);
    return success();
}

}  // namespace twinrun
