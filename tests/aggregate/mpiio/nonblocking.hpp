// Scenarios of nonblocking collective calls. The program has MPI_THREAD_MULTIPLE in all but the last.
#pragma once

#include <cstdint>

namespace program {

// Rounds of one seed: random views, and several calls of each under way at a time.
void nonblocking_views(std::uint64_t seed, int rounds);
// What MPI promises of such calls besides.
void nonblocking_semantics();
// MPI-IO's calls, where the program has no MPI_THREAD_MULTIPLE.
void nonblocking_without_threads();

}  // namespace program
