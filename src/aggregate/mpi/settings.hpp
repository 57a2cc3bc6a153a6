// The settings of an aggregate, from names and texts or from the C structure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aggregate/mpi/storage.hpp"
#include "aggregate/plan/placement.hpp"
#include "aggregate/plan/striping.hpp"
#include "base/result.hpp"

struct twr_aggregate_options;

namespace twinrun::aggregation {

enum class Files : std::uint8_t { one, node, rank };

struct Settings {
    Files files = Files::one;
    int nodes_per_file = 1;
    int aggregators = 0;  // 0: chosen
    Placement placement = Placement::cost;
    std::string topology = "auto";
    Backend backend = Backend::posix;
    int buffers = 2;
    std::uint64_t buffer_bytes = 0;  // 0: chosen
    std::uint64_t block_bytes = 0;   // 0: the file system's
    bool sync = false;
    bool update = false;
    double time_limit = 0;  // seconds; 0: the environment's, which complete() fills in
    std::uint64_t seed = 0;
    bool index = true;  // of several files
    // Offsets count in the whole file, of which each of several files has a part.
    bool whole = false;
    // Several ranks may declare a byte, for reads alone.
    bool overlap = false;
    std::string plan;   // file of saved elections; empty: none
    Striping striping;  // of new files on Lustre

    // By the names in docs/reference/aggregate.md. Error: an unknown name, a bad value; then
    // nothing is set.
    Result<> set(std::string_view name, std::string_view value);
    // Lines "name = value"; # begins a comment.
    Result<> load(const std::string& path);
};

inline constexpr int kMostBuffers = 256;
inline constexpr double kTimeLimit = 600;  // seconds; the default

// From the structure of this version, an older one or a newer one. null: the defaults.
Result<Settings> settings_of(const twr_aggregate_options* options);

// Fills in what the environment sets. Errors: a bad value there, or a back end that this machine
// lacks.
Result<Settings> complete(Settings settings);

// Equal settings have equal hashes.
std::uint64_t hash_of(const Settings& settings);

}  // namespace twinrun::aggregation
