#include "aggregate/mpiio/pool.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace twinrun::mpiio {

namespace {

struct Pool {
    std::mutex mutex;
    std::vector<std::shared_ptr<Member>> members;
    std::int64_t last = 0;
    bool watches = false;  // for the end of MPI
};
// Never destroyed: MPI may end when the program exits.
Pool& pool() {
    static Pool* const all = new Pool;
    return *all;
}

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first, when all of MPI can still be called.
// Members are released in the order of their numbers, which is the same on all ranks, whatever
// communicators a rank is in.
int release_all(MPI_Comm, int, void*, void*) {
    std::vector<std::shared_ptr<Member>> members;
    {
        const std::lock_guard lock(pool().mutex);
        members = std::move(pool().members);
        pool().members.clear();
    }
    std::sort(members.begin(), members.end(),
              [](const auto& a, const auto& b) { return a->number < b->number; });
    for (const auto& member : members) {
        twr_aggregate* const made = std::exchange(member->aggregate, nullptr);
        const bool broken = made != nullptr && (made->team->broken() || made->team->abandoned());
        // Ranks may come late, and a time limit watches what follows. A file that is still open
        // keeps what it has.
        if (member->used || broken) continue;
        if (made != nullptr) PMPI_Barrier(member->comm);
        aggregation::release(made);
        PMPI_Comm_free(&member->comm);
    }
    return MPI_SUCCESS;
}

}  // namespace

std::shared_ptr<Member> take(MPI_Comm comm, std::uint64_t settings) {
    const std::lock_guard lock(pool().mutex);
    for (const auto& member : pool().members) {
        int same = MPI_UNEQUAL;
        if (member->used || member->settings != settings ||
            PMPI_Comm_compare(comm, member->comm, &same) != MPI_SUCCESS || same != MPI_CONGRUENT)
            continue;
        member->used = true;
        return member;
    }
    return nullptr;
}

std::int64_t last_number() {
    const std::lock_guard lock(pool().mutex);
    return pool().last;
}

void add(std::shared_ptr<Member> member) {
    const std::lock_guard lock(pool().mutex);
    if (!pool().watches) {
        int key = MPI_KEYVAL_INVALID;
        if (PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, release_all, &key, nullptr) == MPI_SUCCESS)
            pool().watches = PMPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr) == MPI_SUCCESS;
    }
    pool().last = std::max(pool().last, member->number);
    member->used = true;
    pool().members.push_back(std::move(member));
}

void give_back(const std::shared_ptr<Member>& member) {
    const std::lock_guard lock(pool().mutex);
    const bool broken = member->aggregate != nullptr &&
                        (member->aggregate->team->broken() || member->aggregate->team->abandoned());
    if (!broken) member->used = false;
}

}  // namespace twinrun::mpiio
