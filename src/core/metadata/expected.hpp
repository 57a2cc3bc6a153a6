// Metadata files by the hundred, which must be those that a journal names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "metadata/metadata.hpp"

namespace twinrun {

struct ExpectedMetadata {
    std::string path;
    std::uint64_t bytes = 0;
    std::uint64_t header_checksum = 0;
    bool has_data = true;  // then no data file may have changed since
};

// Each file, opened; null where it is another one, cannot be read, or does not fit its data: who
// opens it alone learns why. folder: all of them are in it or below.
std::vector<std::shared_ptr<MetadataFile>> open_expected(const std::string& folder,
                                                         std::span<const ExpectedMetadata> files,
                                                         int threads);

}  // namespace twinrun
