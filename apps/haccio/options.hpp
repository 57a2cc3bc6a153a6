// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "haccio/layout.hpp"

namespace haccio {

struct BadArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Sync : std::uint8_t {
    none,
    after,   // a rank a node syncs the file when it is written; timed apart
    method,  // as the method does it itself, within its time
};

// "aggregate placement=rank": a way to write and read, and its settings.
struct MethodChoice {
    std::string name;
    std::vector<std::pair<std::string, std::string>> settings;
    std::string label;  // as results name it: unlike all others'

    [[nodiscard]] std::optional<std::string> setting(const std::string& name) const;
};

inline constexpr const char* kMethodNames[] = {
    "aggregate",
    "posix",
    "posix-packed",
    "mpiio",
    "mpiio-packed",
    "mpiio-collective",
    "mpiio-collective-packed",
    "mpiio-two-phase",
    "mpiio-two-phase-packed",
    "ceiling-copy",
    "ceiling-write",
};

struct Options {
    std::string path;
    std::vector<std::uint64_t> particles = {25'000};
    double skew = 0;
    Layout layout = Layout::records;
    std::vector<MethodChoice> methods;
    bool write = true, read = false;
    std::uint64_t repeat = 1, warmup = 0;
    std::string until;
    double seconds = 0;  // 0: no limit
    std::uint64_t seed = 1;
    bool verify = false, cold = false, keep = false, quiet = false;
    bool declare_each = false;
    Sync sync = Sync::none;
    std::string json, csv;
};

struct SplitOptions {
    std::uint64_t communicators = 8;
    std::uint64_t size = 0;  // ranks of each; 0: a number at which neighbours share one
    std::vector<std::string> ways;
    std::uint64_t repeat = 1, warmup = 0, seed = 1;
    std::string json;
    bool quiet = false;
};
inline constexpr const char* kSplitWays[] = {"split", "group", "coloured", "disjoint"};

extern const char* const kUsage;
extern const char* const kSplitUsage;

// arguments: without the program's name (and without "split"). Throw BadArgument.
Options parse_options(const std::vector<std::string>& arguments);
SplitOptions parse_split_options(const std::vector<std::string>& arguments);

}  // namespace haccio
