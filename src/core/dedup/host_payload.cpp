#include "dedup/host_payload.hpp"

#include <algorithm>
#include <cstring>

#include "dedup/shares.hpp"

namespace twinrun {

namespace {

// The most bytes that the sink is given at once.
constexpr std::size_t kGatherBytes = std::size_t{4} << 20;

}  // namespace

Result<> HostPayload::send(std::span<const std::uint64_t> changed, std::span<const Location> sources) {
    const std::uint64_t most = std::max<std::uint64_t>(1, kGatherBytes / options_.chunk_bytes);
    fresh_.reserve(std::min<std::uint64_t>(most, changed.size()));
    for (std::size_t j = 0; j < changed.size(); ++j) {
        if (!is_new_(sources[j])) continue;
        fresh_.push_back(changed[j]);
        if (fresh_.size() == most) TWR_CHECK(flush());
    }
    return flush();
}

Result<> HostPayload::flush() {
    if (fresh_.empty()) return success();
    const std::size_t chunk = options_.chunk_bytes;
    gathered_.resize(fresh_.size() * chunk);
    if (options_.give_base) {
        gathered_base_.resize(fresh_.size() * chunk);
        gathered_at_.resize(fresh_.size());
    }
    each_item(team_, fresh_.size(), [&](std::uint64_t i) {
        image_.copy_chunk(fresh_[i], gathered_.data() + i * chunk);
        if (options_.give_base)
            gathered_at_[i] = image_.copy_base_chunk(fresh_[i], gathered_base_.data() + i * chunk);
    });
    PayloadSink::Chunks chunks{gathered_, {}, {}};
    if (options_.give_base) {
        chunks.base = gathered_base_;
        chunks.base_at = gathered_at_;
    }
    TWR_CHECK(sink_.take(chunks));
    fresh_.clear();
    return success();
}

Result<> send_whole(std::span<const ImageSegment> segments, std::uint64_t chunk_bytes, PayloadSink& sink) {
    std::vector<std::byte> last(chunk_bytes);
    for (const ImageSegment& segment : segments) {
        const std::uint64_t whole = segment.bytes / chunk_bytes * chunk_bytes;
        for (std::uint64_t at = 0; at < whole;) {
            const std::uint64_t part =
                std::min<std::uint64_t>(whole - at, kGatherBytes / chunk_bytes * chunk_bytes);
            TWR_CHECK(sink.take({{segment.data + at, part}, {}, {}}));
            at += part;
        }
        if (whole == segment.bytes) continue;
        std::fill(last.begin(), last.end(), std::byte{0});
        std::memcpy(last.data(), segment.data + whole, segment.bytes - whole);
        TWR_CHECK(sink.take({last, {}, {}}));
    }
    return success();
}

}  // namespace twinrun
