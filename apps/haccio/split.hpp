// SPDX-License-Identifier: Apache-2.0
// How long it takes to make a communicator for each partition of a file.
#pragma once

#include <mpi.h>

#include "haccio/options.hpp"

namespace haccio {

// [collective] The exit status: 0, or 1 where a communicator has the wrong ranks. Throws
// AgreedFailure.
int run_split(const SplitOptions& options, MPI_Comm world);

}  // namespace haccio
