// Where the bytes of a step's changed chunks are: earlier in the record, earlier in the step, or
// new in its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/hash_table.hpp"
#include "dedup/host_image.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Not thread-safe. Throws std::bad_alloc.
class HostSources {
   public:
    // All outlive this.
    HostSources(const DedupOptions& options, Team& team, HashTable& table, const HostImage& image)
        : options_(options), team_(team), table_(table), image_(image) {}

    // Begins a step.
    void begin(std::uint32_t ordinal);
    // Finds the sources of a slice's changed chunks, and enters new ones in the table. at_once: the
    // table then has room for as many further entries; without it, chunks are looked up in batches
    // that the table has room for. Errors: those of DedupOptions::read.
    Result<> find(std::span<const std::uint64_t> changed, bool at_once);
    // Of the last find(), one for each changed chunk. The smallest Location of equal chunks is the
    // source, so that threads make no difference.
    [[nodiscard]] const std::vector<Location>& sources() const { return sources_; }
    // In place of find(): all chunks of the slice are new, those that repeat too. They are entered
    // in the table.
    void take_all(std::span<const std::uint64_t> changed, bool at_once);
    // New chunks of the step so far: the payload.
    [[nodiscard]] std::uint64_t placed() const { return placed_; }
    // Chunks of the step that only have the hash of what they would be copies of (verify).
    [[nodiscard]] std::uint64_t collisions() const { return collisions_; }
    [[nodiscard]] std::uint64_t memory_bytes() const {
        return (sources_.capacity() + slots_.capacity()) * sizeof(std::uint64_t);
    }

   private:
    Result<> look_up(std::uint64_t begin, std::uint64_t end, std::uint64_t room);
    void enter(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] std::vector<std::uint64_t> count_new(std::uint64_t begin, std::uint64_t end);
    Result<> check_copies(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& counts);
    Result<bool> is_copy(std::uint64_t j, std::span<std::byte> own, std::span<std::byte> source) const;
    void place_new(std::uint64_t begin, std::uint64_t end, const std::vector<std::uint64_t>& before);
    void follow_placed(std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] Location unplaced(std::uint64_t j) const;

    const DedupOptions& options_;
    Team& team_;
    HashTable& table_;
    const HostImage& image_;
    std::uint32_t ordinal_ = 0;
    std::uint64_t placed_ = 0;
    std::uint64_t collisions_ = 0;
    // Chunk of the image of each chunk of the payload (verify).
    std::vector<std::uint64_t> payload_at_;
    // Of a slice; kept to reuse the memory.
    std::span<const std::uint64_t> changed_;
    std::vector<Location> sources_;
    std::vector<std::uint64_t> slots_;
};

}  // namespace twinrun
