// What is injected: rules of TWINRUN_INTERPOSE_INJECT.
//
//   RULES  = RULE { ";" RULE }
//   RULE   = CALLS ":" ACTION { "," OPTION }
//   CALLS  = a call (write, MPI_Allreduce) or a group (stdio, mpi_collective)
//   ACTION = "delay=" SPAN     before the call, as part of it
//          | "replace=" SPAN   instead of the call, which then seems to have done all it was asked
//          | "skip"            as replace=0s
//   OPTION = "probability=" P | "path=" GLOB | "rank=" N | "most=" N
//   SPAN   = TIME | TIME ".." TIME, in ns, us, ms or s: drawn evenly
//
// A file's path is the name that it had when its descriptor was first used, or was renamed to.
//
// Draws depend on the seed, the rank, the rule and the number of the call among those that the rule fits: the same seed gives the same
// delays, in whatever order threads come.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/state.hpp"

namespace twinrun::interpose {

inline constexpr std::size_t kMostRules = 16;

struct Rule {
    enum class Action : std::uint8_t { delay, replace };
    Action action = Action::delay;
    std::uint64_t low_ns = 0, high_ns = 0;
    std::uint64_t threshold = ~std::uint64_t{0};  // a draw below it: the rule holds
    bool always = true;
    char glob[256] = {};
    long rank = -1;
    std::uint64_t most = ~std::uint64_t{0};
    bool calls[kCalls] = {};
    char text[384] = {};
    // What was done.
    Number seen{0}, done{0}, asked_ns{0}, spent_ns{0};
};

struct Rules {
    std::size_t count = 0;
    Rule rules[kMostRules];
    char error[512] = {};
    bool paths = false;
    std::uint64_t seed = 0;
};
// A declaration: it is initialized where it is defined.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers)
extern Rules g_rules;

// Reads rules; false, and why in rules.error, where they are not understood: then there are none.
bool parse_rules(const char* text, Rules& rules);
// Makes the rules work in this process.
void use_rules();
// A child has injected nothing yet.
void reset_rules();

// A descriptor is closed, or another file's; a file has another name.
void forget_path(int descriptor);
void forget_paths();

// Whether a path fits a pattern of * and ?; a pattern without / is one of the last part of the path.
bool fits(const char* glob, const char* path);

}  // namespace twinrun::interpose
