// The image of a step in host memory, and what is kept of the base that its chunks are compared
// with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "dedup/chunk_hash.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/image_layout.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Not thread-safe, except where it says so. Chunks are numbered through all segments. Throws
// std::bad_alloc.
class HostImage {
   public:
    // Both outlive this.
    HostImage(const DedupOptions& options, Team& team);

    // Begins a step: what is known of segments that the base has too moves to where they lie now.
    // The segments stay until the step ends. Errors: invalid_argument: names that repeat; too many
    // chunks.
    Result<> begin(std::span<const ImageSegment> segments);
    // Finds the chunks of [first, last) that are not the base's, ascending. Their hashes take the
    // place of the base's. Returns how many chunks only have the base's hash (verify).
    std::uint64_t find_changed(std::uint64_t first, std::uint64_t last, std::vector<std::uint64_t>& changed);
    // The bytes of these chunks, and with give_base their Locations, take the place of the base's
    // (keep_base).
    void keep(std::span<const std::uint64_t> changed, std::span<const Location> sources);
    // Ends a step: its image is the base from now on.
    void become_base();
    // The same for an image that no step is made of. where: as Deduplicator::rebase.
    Result<> replace_base(std::span<const ImageSegment> segments, std::span<const Location> where);
    // Drops the base.
    void forget();

    [[nodiscard]] std::uint64_t chunks() const { return layout_.chunks(); }
    // Of the step's chunk. Thread-safe.
    [[nodiscard]] const ChunkHash& hash(std::uint64_t chunk) const { return hashes_[chunk]; }
    // The hash with only the bits that DedupOptions::hash_bits keeps. Thread-safe.
    [[nodiscard]] ChunkHash masked(const ChunkHash& hash) const {
        return {hash.low & mask_.low, hash.high & mask_.high};
    }
    // Copies the step's chunk, filled up with zeros. Thread-safe.
    void copy_chunk(std::uint64_t chunk, std::byte* to) const;
    // Copies the base's chunk and returns its Location (give_base); zeros and kNoLocation if the
    // base has none there. Thread-safe.
    Location copy_base_chunk(std::uint64_t chunk, std::byte* to) const;
    // The checksum of each segment's content.
    [[nodiscard]] const std::vector<std::uint64_t>& content() const { return content_; }
    [[nodiscard]] std::uint64_t memory_bytes() const;

   private:
    Result<> lay_out(std::span<const ImageSegment> segments);
    std::uint64_t find_changed_in(std::size_t segment, std::uint64_t begin, std::uint64_t end,
                                  std::vector<std::uint64_t>& found);
    void take_over(std::size_t segment, std::uint64_t begin, std::uint64_t end);
    [[nodiscard]] const std::byte* data_of(std::size_t segment, std::uint64_t chunk) const {
        return segments_[segment].data + (chunk - layout_.first(segment)) * chunk_;
    }
    [[nodiscard]] std::uint64_t term(std::size_t segment, std::uint64_t chunk, const ChunkHash& hash) const {
        return content_term(hash, chunk - layout_.first(segment));
    }
    [[nodiscard]] bool same(const ChunkHash& a, const ChunkHash& b) const { return masked(a) == masked(b); }
    [[nodiscard]] bool equals_base(std::size_t segment, std::uint64_t chunk) const;
    [[nodiscard]] bool base_ends(std::uint64_t chunk, std::uint64_t bytes) const;
    [[nodiscard]] bool within_bound(std::size_t segment, std::uint64_t chunk) const;

    const DedupOptions& options_;
    const std::uint64_t chunk_;  // bytes
    const ChunkHash mask_;
    Team& team_;
    std::span<const ImageSegment> segments_;  // of the step under way
    ImageLayout layout_;
    // The base, at the places that the layout gives its chunks. A step replaces it slice by slice.
    std::vector<ChunkHash> hashes_;
    std::vector<std::uint64_t> content_;
    std::vector<std::uint64_t> base_chunks_;  // of each segment, those that the base has too
    std::vector<std::byte> base_image_;
    std::vector<Location> where_;
};

}  // namespace twinrun
