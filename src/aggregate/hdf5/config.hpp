// What a user asks of the driver: the text of HDF5_DRIVER_CONFIG, and the program's hints.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "aggregate/mpi/settings.hpp"
#include "base/result.hpp"

namespace twinrun::hdf5 {

struct Config {
    std::size_t files = 1;             // sub-files of a new file; 1: one file
    std::uint64_t stripe = 1U << 20U;  // bytes of a stripe of sub-files
    bool world = false;    // a file whose property list names no communicator belongs to all ranks
    bool overlap = false;  // ranks may write the same bytes in one collective call
    bool limited = false;  // a time limit was given: it also counts for ranks that come late
    aggregation::Settings settings;
};

// text: "name = value; name = value". info: keys "twinrun_name", which win; MPI_INFO_NULL: none.
// Errors: an unknown name, a bad value, settings that contradict each other.
Result<Config> config_of(std::string_view text, MPI_Info info);
// Equal configurations have equal hashes.
[[nodiscard]] std::uint64_t hash_of(const Config& config);

}  // namespace twinrun::hdf5
