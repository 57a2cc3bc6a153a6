// The comparison of many fields at once: pairs of arrays on a device go there together, fields in
// memory or in files, with metadata or without, are divided over a team of threads meanwhile, and
// those that are large among them follow one by one, each on all threads. A field's result is that
// of compare_field; of arrays on
// a device the sums of squares may differ in their last bits. Files are closed when their field is
// done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/compare.hpp"

namespace twinrun {

// A field of both runs, and what is its own in the comparison's options.
struct FieldPair {
    FieldSide a, b;
    DifferenceRule rule;
    std::vector<std::uint64_t> columns;  // as CompareOptions names them
};

// Results in the order of pairs: what is wrong with one field is that field's error. `options`
// gives the rest; it has no rule, ranges or columns. options.stream.poll is called by the calling
// thread; where it stops the work, the fields that are left are errors of the code `interrupted`.
// The sides of a pair may be used by one thread and those of another pair by another: no two pairs
// may share a source, or a field of metadata.
std::vector<Result<FieldResult>> compare_fields(std::span<const FieldPair> pairs,
                                                const CompareOptions& options);

// Takes the result of a pair by its number, each once. Calls come from several threads in any
// order, one at a time.
using TakeResult = std::function<void(std::size_t at, Result<FieldResult> result)>;
// The same, with no more results in memory than are made at a time.
void compare_fields(std::span<const FieldPair> pairs, const CompareOptions& options, const TakeResult& take);

}  // namespace twinrun
