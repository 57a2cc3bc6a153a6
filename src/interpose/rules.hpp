// Rules for injected delays and skipped calls: TWINRUN_INTERPOSE_INJECT.
//
//   RULES  = RULE { ";" RULE }
//   RULE   = CALLS ":" ACTION { "," OPTION }
//   CALLS  = a call (write, MPI_Allreduce) or a group (stdio, mpi_collective)
//   ACTION = "delay=" SPAN     before the call, as part of it
//          | "replace=" SPAN   instead of the call, which reports that it did all
//          | "skip"            as replace=0s
//   OPTION = "probability=" P | "path=" GLOB | "rank=" N | "most=" N
//   SPAN   = TIME | TIME ".." TIME, in ns, us, ms or s: drawn evenly
//
// A file's path is its name at the first use of its descriptor, or after a later rename.
//
// Draws depend on the seed, the rank, the rule and the number of the call among those that the rule
// fits: the same seed gives the same delays, in any order of threads.
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
    std::uint64_t threshold = ~std::uint64_t{0};  // the rule applies if a draw is below it
    bool always = true;
    char glob[256] = {};
    long rank = -1;
    std::uint64_t most = ~std::uint64_t{0};
    bool calls[kCalls] = {};
    char text[384] = {};
    // What the rule did so far.
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

// Parses rules. If they are invalid: returns false with the reason in rules.error, and keeps none.
bool parse_rules(const char* text, Rules& rules);
// Makes the rules work in this process.
void use_rules();
// Resets the counters in a forked child.
void reset_rules();

// Forgets what is known of a descriptor that was closed or reused, and of a file that was renamed.
void forget_path(int descriptor);
void forget_paths();

// Whether a path matches a pattern of * and ?. A pattern without / is matched against the last part
// of the path.
bool fits(const char* glob, const char* path);

}  // namespace twinrun::interpose
