// New chunks of an image in host memory on their way to the sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/host_image.hpp"
#include "dedup/join.hpp"
#include "platform/team.hpp"

namespace twinrun {

// Of one step. Not thread-safe. Errors: the sink's. Throws std::bad_alloc.
class HostPayload {
   public:
    // All outlive this.
    HostPayload(const DedupOptions& options, Team& team, const HostImage& image, std::uint32_t ordinal,
                PayloadSink& sink)
        : options_(options), team_(team), image_(image), sink_(sink), is_new_(location(ordinal, 0)) {}

    // Gives the sink the new ones of a slice's changed chunks, with what the base has in their
    // places (give_base).
    Result<> send(std::span<const std::uint64_t> changed, std::span<const Location> sources);

   private:
    Result<> flush();

    const DedupOptions& options_;
    Team& team_;
    const HostImage& image_;
    PayloadSink& sink_;
    NewChunks is_new_;
    std::vector<std::uint64_t> fresh_;  // chunks of the image that wait for flush()
    std::vector<std::byte> gathered_;
    std::vector<std::byte> gathered_base_;
    std::vector<Location> gathered_at_;
};

// Gives all chunks of these segments to the sink.
Result<> send_whole(std::span<const ImageSegment> segments, std::uint64_t chunk_bytes, PayloadSink& sink);

}  // namespace twinrun
