// Aggregates that wait for the next file. Making one takes several collective calls, and programs
// open one file after the other.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/plan/last_transfer.hpp"

namespace twinrun::mpiio {

// For the ranks of one communicator, with these settings. One open file uses it at a time.
struct Member {
    MPI_Comm comm = MPI_COMM_NULL;  // a duplicate
    std::uint64_t settings = 0;     // their hash
    std::int64_t number = 0;        // the same on all ranks of comm
    bool used = false;
    twr_aggregate* aggregate = nullptr;  // null: not made yet
    LastTransfer last;                   // its plan serves the next file too
};

// A member that no file uses, of the same ranks in the same order; null: there is none. Marks it as
// used.
[[nodiscard]] std::shared_ptr<Member> take(MPI_Comm comm, std::uint64_t settings);
// A new member's number must exceed this.
[[nodiscard]] std::int64_t last_number();
// Adds a member, used. Its aggregate and communicator are released when MPI ends. Throws
// std::bad_alloc.
void add(std::shared_ptr<Member> member);
// Gives it back for the next file. One whose team is broken is never used again.
void give_back(const std::shared_ptr<Member>& member);

}  // namespace twinrun::mpiio
