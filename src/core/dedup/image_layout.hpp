// How the segments of an image lie in its row of chunks: each begins with a chunk of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "dedup/deduplicator.hpp"

namespace twinrun {

class ImageLayout {
   public:
    ImageLayout() = default;  // of an image without segments
    // Error: invalid_argument: more chunks than a payload can have.
    static Result<ImageLayout> make(std::span<const ImageSegment> segments, std::uint64_t chunk_bytes);
    // Error: invalid_argument: two segments of one name.
    [[nodiscard]] Result<> check_names() const;

    [[nodiscard]] std::size_t segments() const { return segments_.size(); }
    [[nodiscard]] std::uint64_t chunks() const { return firsts_.back(); }
    // The number of the first chunk of each segment, and behind the last.
    [[nodiscard]] const std::vector<std::uint64_t>& firsts() const { return firsts_; }
    [[nodiscard]] std::uint64_t first(std::size_t segment) const { return firsts_[segment]; }
    [[nodiscard]] std::uint64_t chunks_of(std::size_t segment) const {
        return firsts_[segment + 1] - firsts_[segment];
    }
    // How many chunks each segment has.
    [[nodiscard]] std::vector<std::uint64_t> chunk_counts() const;
    // The segment of this chunk, which must be there.
    [[nodiscard]] std::size_t segment_of(std::uint64_t chunk) const {
        return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), chunk) -
                                        firsts_.begin()) -
               1;
    }
    // Bytes of chunks [begin, end) of a segment: its last chunk may be short.
    [[nodiscard]] std::uint64_t bytes_between(std::size_t segment, std::uint64_t begin,
                                              std::uint64_t end) const {
        const std::uint64_t from = (begin - firsts_[segment]) * chunk_bytes_;
        return std::min((end - firsts_[segment]) * chunk_bytes_, segments_[segment].bytes) - from;
    }
    // Calls use(segment, begin, end) for the part of chunks [begin, end) in each segment.
    template <class Use>
    void each_segment(std::uint64_t begin, std::uint64_t end, Use use) const {
        if (begin >= end) return;
        for (std::size_t s = segment_of(begin); begin < end; ++s) {
            const std::uint64_t stop = std::min(end, firsts_[s + 1]);
            if (begin < stop) use(s, begin, stop);
            begin = std::max(begin, stop);
        }
    }

    // Chunks [from, from + count) of one layout are [to, to + count) of another, in this segment of
    // the other.
    struct Move {
        std::uint64_t from = 0;
        std::uint64_t to = 0;
        std::uint64_t count = 0;
        std::size_t segment = 0;
    };
    // Where chunks of `old` are in this layout: the first ones of each segment whose name both
    // have. known: how many chunks of each old segment there are to move. Ascending by `to`; none
    // is empty.
    [[nodiscard]] std::vector<Move> moves_from(const ImageLayout& old,
                                               std::span<const std::uint64_t> known) const;

    // Whether both have the same segments: names and sizes, in order.
    [[nodiscard]] bool same_segments(const ImageLayout& other) const { return segments_ == other.segments_; }

   private:
    struct Named {
        std::string name;
        std::uint64_t bytes;
        bool operator==(const Named&) const = default;
    };
    std::uint64_t chunk_bytes_ = 1;
    std::vector<Named> segments_;
    std::vector<std::uint64_t> firsts_ = {0};
};

}  // namespace twinrun
