// The calls that are counted, as numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun::interpose {

enum class Group : std::uint8_t {
    posix_read,
    posix_write,
    posix_meta,
    posix_stream,
    stdio,
    mpi_point_to_point,
    mpi_collective,
    mpi_wait,
    mpi_file,
    mpi_one_sided,
    mpi_other,
    count_,
};

enum class Call : std::uint16_t {
#define TWR_CALL(name, group, pretend) name,
#include "interpose/calls.inc"
#undef TWR_CALL
#define TWR_MPI(name, lower, group, arguments, kind, count, type, a, b) MPI_##name,
#include "interpose/mpi_calls.inc"
#undef TWR_MPI
    MPI_Init,
    MPI_Init_thread,
    MPI_Finalize,
    MPI_Abort,
    count_,
};

inline constexpr std::size_t kGroups = static_cast<std::size_t>(Group::count_);
inline constexpr std::size_t kCalls = static_cast<std::size_t>(Call::count_);

// may_be_pretended: the call can be left out, and report that it did all.
struct CallInfo {
    const char* name;
    Group group;
    bool may_be_pretended;
};

// Declarations: they are initialized where they are defined.
// NOLINTBEGIN(bugprone-dynamic-static-initializers)
extern const CallInfo kCallInfos[kCalls];
extern const char* const kGroupNames[kGroups];
// NOLINTEND(bugprone-dynamic-static-initializers)

inline const CallInfo& info(Call call) { return kCallInfos[static_cast<std::size_t>(call)]; }

}  // namespace twinrun::interpose
