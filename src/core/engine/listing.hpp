// Every scalar that differs, a window of a field at a time: what a comparison counts, by name.
#pragma once

#include <cstdint>
#include <vector>

#include "difference/difference.hpp"
#include "source/source.hpp"

namespace twinrun {

// Indices in the field, ascending, of the scalars of items [first, first + count) that differ: as
// many as compare_field counts there. Errors: fields of other types or sizes, a window behind their
// end, and those of reading.
Result<std::vector<std::uint64_t>> differing_scalars(ElementSource& a, ElementSource& b, std::uint64_t first,
                                                     std::uint64_t count, const DifferenceRule& rule);

}  // namespace twinrun
