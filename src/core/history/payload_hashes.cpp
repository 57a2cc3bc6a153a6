#include "history/payload_hashes.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/checked.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{2} << 20;  // that a thread reads and hashes at once

struct Stretch {
    Location first;
    std::uint64_t count;
};

std::vector<Stretch> stretches_of(const DifferenceFile& file) {
    const Difference& difference = file.difference();
    if (!difference.partial()) return {{location(difference.ordinal, 0), file.stored_chunks()}};
    std::vector<Stretch> all;
    for (const Difference::Kept& kept : difference.kept)
        all.push_back({location(kept.ordinal, kept.first), kept.count});
    return all;
}

}  // namespace

bool PayloadHashes::has_room(const DifferenceFile& file) const {
    return file.stored_chunks() <= left_ / sizeof(ChunkHash);
}

Result<> PayloadHashes::add(RecordChain& chain, const DifferenceFile& file) {
    const Difference& difference = file.difference();
    const std::uint32_t chunk = difference.chunk_bytes;
    // Whole blocks, so that none is read twice.
    const std::uint64_t most =
        std::max<std::uint64_t>(1, kBatchBytes / chunk / difference.block_chunks) * difference.block_chunks;
    struct Batch {
        Stretch chunks;
        ChunkHash* to;
    };
    std::vector<std::vector<ChunkHash>> hashes;
    std::vector<Batch> batches;
    const std::vector<Stretch> stretches = stretches_of(file);
    for (const Stretch& stretch : stretches) {
        hashes.emplace_back(stretch.count);
        for (std::uint64_t at = 0; at < stretch.count; at += most)
            batches.push_back(
                {{stretch.first + at, std::min(most, stretch.count - at)}, hashes.back().data() + at});
    }
    const auto hash = [&](std::size_t i, ReadScratch& scratch) -> Result<> {
        const Stretch& chunks = batches[i].chunks;
        const std::span bytes(scratch.part.reserve(most * chunk), chunks.count * chunk);
        TWR_CHECK(chain.read_payload(chunks.first, chunks.count, chunk, bytes, scratch));
        chunk_hashes(bytes, chunk, batches[i].to);
        return success();
    };
    TWR_CHECK(chain.for_each(batches.size(), hash));
    left_ -= std::min(left_, file.stored_chunks() * sizeof(ChunkHash));
    for (std::size_t s = 0; s < stretches.size(); ++s)
        stretches_[stretches[s].first] = std::move(hashes[s]);
    return success();
}

std::optional<std::uint64_t> PayloadHashes::content(const StepMap& map, std::size_t segment) const {
    const std::uint64_t first = map.firsts[segment];
    const std::uint64_t end = map.firsts[segment + 1];
    std::uint64_t sum = 0;
    std::uint64_t next = first;  // chunk of the image
    auto run = std::lower_bound(map.runs.begin(), map.runs.end(), first,
                                [](const Run& r, std::uint64_t at) { return r.begin + r.count <= at; });
    for (; run != map.runs.end() && run->begin < end; ++run) {
        const std::uint64_t begin = std::max(first, run->begin);
        const std::uint64_t stop = std::min(end, run->begin + run->count);
        if (begin != next) return std::nullopt;
        const Location source = run->repeat ? run->source : run->source + (begin - run->begin);
        const std::uint64_t sources = run->repeat ? 1 : stop - begin;
        const auto after = stretches_.upper_bound(source);
        if (after == stretches_.begin()) return std::nullopt;
        const auto& [from, hashes] = *std::prev(after);
        if (source - from >= hashes.size() || sources > hashes.size() - (source - from)) return std::nullopt;
        const ChunkHash* hash = hashes.data() + (source - from);
        for (std::uint64_t at = begin; at < stop; ++at) {
            sum += content_term(*hash, at - first);
            if (!run->repeat) ++hash;
        }
        next = stop;
    }
    if (next != end) return std::nullopt;
    return sum;
}

}  // namespace twinrun
