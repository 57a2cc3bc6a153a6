// SPDX-License-Identifier: Apache-2.0
// Ranks that go on together, or fail together.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace haccio {

// Thrown on all ranks alike: "rank 3: ...".
struct AgreedFailure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// [collective] Throws AgreedFailure if one rank has a failure to report.
void agree(MPI_Comm world, const std::optional<std::string>& failure);
// [collective] Runs `work`; a Failure in it becomes everybody's.
void together(MPI_Comm world, const std::function<void()>& work);

// [collective] The texts of all ranks; empty but on the first rank.
std::vector<std::string> gather_texts(MPI_Comm world, const std::string& text);
// [collective]
double largest(MPI_Comm world, double value);

// Time from the first rank's start to the last rank's end. Where ranks share cores, those that
// start late would otherwise hide that others had to wait for them. Clocks of different nodes are
// not compared: it is that of the node where it takes longest.
class Clock {
   public:
    using Time = std::chrono::steady_clock::time_point;
    explicit Clock(MPI_Comm world);  // [collective]
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    ~Clock();
    static Time now() { return std::chrono::steady_clock::now(); }
    // [collective] Seconds.
    [[nodiscard]] double span(Time start, Time end) const;

   private:
    MPI_Comm world_, node_ = MPI_COMM_NULL;
};

// "MPICH 5.0.2": the first line of what the library says of itself, the commit and the like left
// out.
std::string mpi_library();

}  // namespace haccio
