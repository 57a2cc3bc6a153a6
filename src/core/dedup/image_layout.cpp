#include "dedup/image_layout.hpp"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/checked.hpp"

namespace twinrun {

Result<ImageLayout> ImageLayout::make(std::span<const ImageSegment> segments, std::uint64_t chunk_bytes) {
    ImageLayout layout;
    layout.chunk_bytes_ = chunk_bytes;
    std::uint64_t chunks = 0;
    for (const ImageSegment& segment : segments) {
        layout.segments_.push_back({segment.name, segment.bytes});
        const std::uint64_t own = divide_up(segment.bytes, chunk_bytes);
        if (own > kMostPayloadChunks || chunks + own > kMostPayloadChunks)
            return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
        chunks += own;
        layout.firsts_.push_back(chunks);
    }
    return layout;
}

Result<> ImageLayout::check_names() const {
    std::unordered_set<std::string_view> seen;
    for (const Named& segment : segments_) {
        if (!seen.insert(segment.name).second)
            return Error{ErrorCode::invalid_argument, "two segments of the name '" + segment.name + "'"};
    }
    return success();
}

std::vector<std::uint64_t> ImageLayout::chunk_counts() const {
    std::vector<std::uint64_t> counts(segments());
    for (std::size_t s = 0; s < counts.size(); ++s)
        counts[s] = chunks_of(s);
    return counts;
}

std::vector<ImageLayout::Move> ImageLayout::moves_from(const ImageLayout& old,
                                                       std::span<const std::uint64_t> known) const {
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (std::size_t s = 0; s < old.segments_.size(); ++s)
        numbers.emplace(old.segments_[s].name, s);
    std::vector<Move> moves;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
        const auto before = numbers.find(segments_[s].name);
        if (before == numbers.end()) continue;
        const std::uint64_t both = std::min(known[before->second], chunks_of(s));
        if (both != 0) moves.push_back({old.first(before->second), first(s), both, s});
    }
    return moves;
}

}  // namespace twinrun
