// Data against the checksums of it that its metadata holds.
#pragma once

#include <cstdint>
#include <vector>

#include "metadata/metadata.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"

namespace twinrun {

// Reads all of `source`, the field's data, and compares it with the field's data sums: the numbers
// of the parts of kDataSumBytes that changed, ascending. Errors: stale where the metadata holds no
// data sums; invalid_argument for no such field, or a source of another size; those of reading.
Result<std::vector<std::uint64_t>> changed_parts(MetadataFile& metadata, std::size_t field,
                                                 ElementSource& source, const StreamOptions& options);

}  // namespace twinrun
