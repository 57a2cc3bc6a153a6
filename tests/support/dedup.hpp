// What tests of deduplicators share.
#pragma once

#include <cstdint>

#include "dedup/deduplicator.hpp"

namespace twinrun::testing {

inline DedupOptions options_for(RecordMethod method, std::uint32_t chunk_bytes = 64) {
    DedupOptions options;
    options.method = method;
    options.chunk_bytes = chunk_bytes;
    return options;
}

}  // namespace twinrun::testing
