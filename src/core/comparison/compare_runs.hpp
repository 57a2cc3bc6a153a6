// The comparison of two runs: histories, or arrays in memory.
//
// Verdict and facts are those of Python's `twinrun.compare(a, b, partial=True)`. What that can do
// beyond this is a problem here, so that the verdict is `incomparable`: parts of an array that the
// ranks of the runs cut differently, and arrays that only one run stores column by column.
#pragma once

#include <optional>

#include "comparison/result.hpp"
#include "comparison/run.hpp"

namespace twinrun {

struct RunsOptions {
    // nullopt for all three: the tolerance that a field was captured for.
    std::optional<double> atol, rtol;
    std::optional<std::uint64_t> ulps;
    bool equal_nan = true;
    bool tolerate_integers = false;
    // Parts that only one run has are left out and noted. A rank that only one run has is always a
    // problem.
    bool common = false;
    // automatic or direct.
    Method method = Method::automatic;
    StreamOptions stream;
    CacheUse cache = CacheUse::automatic;
    DeviceChoice device;
};

// a: the reference. Errors: invalid_argument: options that have no meaning; nothing was compared:
// the first problem, of code mismatch where runs do not fit together.
Result<RunsResult> compare_runs(ComparedRun& a, ComparedRun& b, const RunsOptions& options);

}  // namespace twinrun
