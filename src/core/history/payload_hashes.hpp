// The hashes of a record's payload, and what steps have by them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "dedup/chunk_hash.hpp"
#include "restore/chain.hpp"

namespace twinrun {

// Every chunk of payload is read and hashed once. The checksum of a segment's content follows from
// these hashes, however many steps have the same chunks.
class PayloadHashes {
   public:
    // memory: limit in bytes for all hashes.
    explicit PayloadHashes(std::uint64_t memory) : left_(memory) {}

    // Whether the hashes of a file's chunks fit into what is left of the memory.
    [[nodiscard]] bool has_room(const DifferenceFile& file) const;
    // Reads all chunks of a file, with all threads. After an error, or where there is no room, none
    // of them is known. Errors: those of RecordChain::read_payload().
    Result<> add(RecordChain& chain, const DifferenceFile& file);
    // The checksum of a segment's content; nothing if one of its chunks is not known.
    [[nodiscard]] std::optional<std::uint64_t> content(const StepMap& map, std::size_t segment) const;

   private:
    std::uint64_t left_;
    std::map<Location, std::vector<ChunkHash>> stretches_;  // by the first chunk's Location
};

}  // namespace twinrun
