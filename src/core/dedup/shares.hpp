// Work on chunks that a team divides: each worker has a range of its own.
#pragma once

#include <cstdint>

#include "platform/team.hpp"

namespace twinrun {

struct ShareRange {
    std::uint64_t begin;
    std::uint64_t end;
};

// The part of this worker in `n` items: as large as the others' or one more, in order.
inline ShareRange share_of(std::uint64_t n, int worker, int workers) {
    const auto part = [&](int w) {
        return static_cast<std::uint64_t>(static_cast<unsigned __int128>(n) * static_cast<unsigned>(w) /
                                          static_cast<unsigned>(workers));
    };
    return {part(worker), part(worker + 1)};
}

// Calls work(range, worker) on every member of the team. It must not throw.
template <class Work>
void each_share(Team& team, std::uint64_t n, Work work) {
    team.run([&](int worker) { work(share_of(n, worker, team.size()), worker); });
}

// Calls work(i) for each i below n, on some member of the team. It must not throw.
template <class Work>
void each_item(Team& team, std::uint64_t n, Work work) {
    each_share(team, n, [&](const ShareRange& range, int) {
        for (std::uint64_t i = range.begin; i < range.end; ++i)
            work(i);
    });
}

}  // namespace twinrun
