// A metadata file as small as the format allows.
#pragma once

#include "metadata/metadata.hpp"

namespace twinrun {

// The same fields with nothing between their sections: no data files, no checksums of data, no sums
// for parts, and no hint that depends on how the data was read. Equal data gives equal bytes,
// whatever machine made them.
Result<std::vector<std::byte>> compact_metadata(MetadataFile& file);

}  // namespace twinrun
