// The comparison of many fields at once: pairs of arrays on a device go there together, small fields in memory are divided over a
// team of threads meanwhile, and others follow one by one. A field's result is that of compare_field; of arrays on a device the
// sums of squares may differ in their last bits.
#pragma once

#include <cstdint>
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

// Results in the order of pairs: what is wrong with one field is that field's error. `options` gives the rest; it has no rule,
// ranges or columns. options.stream.poll is called by the calling thread; where it stops the work, the fields that are left
// are errors of the code `interrupted`. The sides of a small pair are used by one thread, those of different pairs by
// several: no two pairs may share a source or metadata.
std::vector<Result<FieldResult>> compare_fields(std::span<const FieldPair> pairs,
                                                const CompareOptions& options);

}  // namespace twinrun
