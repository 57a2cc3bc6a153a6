// Requests of a program or its user to this library: hints of MPI_Info, and the environment.
#pragma once

#include <mpi.h>

#include <string>

#include "aggregate/mpi/settings.hpp"
#include "base/result.hpp"

namespace twinrun::mpiio {

struct Hints {
    bool enable = true;
    bool limited = false;  // a time limit was given: it also counts for ranks that come late
    aggregation::Settings settings;
};

// The keys "twinrun_NAME" of info, which may be MPI_INFO_NULL; before them "NAME=VALUE;..." of
// TWINRUN_MPIIO_HINTS. Other keys are MPI-IO's. Errors: an unknown name or a bad value.
Result<Hints> hints_of(MPI_Info info);
// The stripes that a program asks for: MPI's own keys "striping_factor" and "striping_unit", and
// before them those of hints. A bad value of MPI's keys is none, as MPI says of hints.
[[nodiscard]] Striping striping_of(const Hints& hints, MPI_Info info);
// Equal hints have equal hashes.
[[nodiscard]] std::uint64_t hash_of(const Hints& hints);

}  // namespace twinrun::mpiio
