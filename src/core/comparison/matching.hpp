// Which steps, ranks and fields of two runs belong together. What has no partner is a problem, and
// never counts as compared.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comparison/run.hpp"

namespace twinrun {

// What to do with runs that the core alone does not compare.
inline constexpr const char* kElsewhere = "compare them with 'twinrun compare'";

// A step of both runs, with its ranks.
struct StepMatch {
    Step step;
    std::vector<std::uint32_t> ranks_a, ranks_b;

    [[nodiscard]] bool same_ranks() const { return ranks_a == ranks_b; }
};

struct StepMatches {
    std::vector<StepMatch> matches;
    std::vector<Problem> problems;
};

// Whether ranks are worth a word: rank 0 alone is what runs without ranks have.
bool has_ranks(const ComparedRun& run);

// "step 500, rank 0: ", as the begin of a problem. ranked: whether a run has_ranks(); without, rank
// 0 is left out.
std::string at_place(Step step, std::uint32_t rank, bool ranked);

// Error: mismatch: no run has a step.
Result<StepMatches> match_steps(const ComparedRun& a, const ComparedRun& b);

struct FieldMatches {
    std::vector<std::pair<RunField, RunField>> pairs;
    std::vector<Problem> problems;
};

// The fields of one place, by name. ranked: as at_place takes it.
FieldMatches match_fields(const ComparedRun& a, const ComparedRun& b, const OpenPlace& in_a,
                          const OpenPlace& in_b, Step step, std::uint32_t rank, bool ranked);

// Both fields as they are compared. Errors: mismatch: their types, shapes or places differ; why
// else they cannot be compared here. what: names the field.
Result<std::pair<RunField, RunField>> pair_of(const ComparedRun& a, const ComparedRun& b, const RunField& x,
                                              const RunField& y, const std::string& what);

// Whether both arrays are to be read row by row, which at least one of them does not store.
bool compared_by_row(const RunField& x, const RunField& y);

// "step 4, rank 2 of runs/a: not there", of ranks that only one run has. Empty: there are none.
std::vector<std::string> missing_ranks(const ComparedRun& a, const ComparedRun& b, const StepMatch& match);

}  // namespace twinrun
