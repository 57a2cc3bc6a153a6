// What one rank knows of a collective call before the ranks agree.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "aggregate/mpiio/file.hpp"

namespace twinrun::mpiio {

// The bytes of a call, in the file and in memory.
struct File::Layout {
    std::vector<ArrayPart> parts;
    std::uint64_t bytes = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    Stream file;
    Stream memory;
};

// What this rank alone knows of a call.
struct File::OwnPart {
    Layout layout;
    std::uint64_t bytes = 0;  // that the call asks for
    MPI_Offset offset = 0;    // of the first one in the view, in etypes
    Reason reason = kNone;    // why the call cannot be aggregated
    Result<> checked = success();
};

inline Answer plain() { return {}; }
inline Answer failed(Error error) { return {Fate::failed, 0, std::move(error)}; }

}  // namespace twinrun::mpiio
