// SPDX-License-Identifier: Apache-2.0
// Repetitions of all methods: written, read, verified, timed.
#pragma once

#include <mpi.h>

#include "haccio/options.hpp"

namespace haccio {

// [collective] The exit status: 0, or 1 where a value is wrong. Throws AgreedFailure.
int run_job(const Options& options, MPI_Comm world);

}  // namespace haccio
