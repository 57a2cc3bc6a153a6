// A whole metadata file against its checksums.
#pragma once

#include "metadata/metadata.hpp"

namespace twinrun {

// Every section of every field against its checksums, and padding, which must be zero. Reads the
// whole file, a MiB at a time. Error (damaged): the first page that is wrong, or padding that is
// not zero.
Result<> verify(MetadataFile& file);

}  // namespace twinrun
