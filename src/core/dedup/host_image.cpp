#include "dedup/host_image.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "dedup/base_deduplicator.hpp"
#include "dedup/shares.hpp"

namespace twinrun {

namespace {

// Copies the first `count` items from place `from` of one list to place `to` of another.
template <class T>
void move_items(const std::vector<T>& old, std::uint64_t from, std::uint64_t count, std::vector<T>& now,
                std::uint64_t to) {
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(from), count,
                now.begin() + static_cast<std::ptrdiff_t>(to));
}

void add_atomically(std::uint64_t& sum, std::uint64_t more) {
    std::atomic_ref(sum).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace

HostImage::HostImage(const DedupOptions& options, Team& team)
    : options_(options), chunk_(options.chunk_bytes), mask_(hash_mask(options.hash_bits)), team_(team) {}

// ---- segments and the base ----

Result<> HostImage::begin(std::span<const ImageSegment> segments) {
    TWR_CHECK(lay_out(segments));
    segments_ = segments;
    return success();
}

// State for these segments: what is known of those that the base had goes with them.
Result<> HostImage::lay_out(std::span<const ImageSegment> segments) {
    TWR_TRY(ImageLayout layout, ImageLayout::make(segments, chunk_));
    if (layout.same_segments(layout_)) return success();
    TWR_CHECK(layout.check_names());
    const std::uint64_t chunks = layout.chunks();
    std::vector<ChunkHash> hashes(chunks);
    std::vector<std::uint64_t> content(layout.segments());
    std::vector<std::uint64_t> base_chunks(layout.segments());
    std::vector<std::byte> image(options_.keep_base ? chunks * chunk_ : 0);
    std::vector<Location> where(options_.give_base ? chunks : 0, kNoLocation);
    for (const ImageLayout::Move& move : layout.moves_from(layout_, base_chunks_)) {
        base_chunks[move.segment] = move.count;
        move_items(hashes_, move.from, move.count, hashes, move.to);
        for (std::uint64_t i = 0; i < move.count; ++i)
            content[move.segment] += content_term(hashes[move.to + i], i);
        if (options_.keep_base)
            move_items(base_image_, move.from * chunk_, move.count * chunk_, image, move.to * chunk_);
        if (options_.give_base) move_items(where_, move.from, move.count, where, move.to);
    }
    layout_ = std::move(layout);
    hashes_ = std::move(hashes);
    content_ = std::move(content);
    base_chunks_ = std::move(base_chunks);
    base_image_ = std::move(image);
    where_ = std::move(where);
    return success();
}

void HostImage::become_base() {
    base_chunks_ = layout_.chunk_counts();
    segments_ = {};
}

Result<> HostImage::replace_base(std::span<const ImageSegment> segments, std::span<const Location> where) {
    TWR_CHECK(begin(segments));
    if (options_.give_base && where.size() != chunks())
        return Error{ErrorCode::internal, "a base without the Locations of its chunks"};
    std::fill(content_.begin(), content_.end(), 0);
    each_share(team_, chunks(), [&](const ShareRange& range, int) {
        layout_.each_segment(
            range.begin, range.end,
            [&](std::size_t s, std::uint64_t begin, std::uint64_t end) { take_over(s, begin, end); });
    });
    if (options_.give_base) std::copy(where.begin(), where.end(), where_.begin());
    become_base();
    return success();
}

// Chunks [begin, end) of the segment become the base's. Adds them to content_.
void HostImage::take_over(std::size_t segment, std::uint64_t begin, std::uint64_t end) {
    const std::byte* from = data_of(segment, begin);
    const std::uint64_t bytes = layout_.bytes_between(segment, begin, end);
    chunk_hashes({from, bytes}, chunk_, hashes_.data() + begin);
    if (options_.keep_base) {
        std::byte* to = base_image_.data() + begin * chunk_;
        std::memcpy(to, from, bytes);
        std::memset(to + bytes, 0, (end - begin) * chunk_ - bytes);
    }
    std::uint64_t sum = 0;
    for (std::uint64_t g = begin; g < end; ++g)
        sum += term(segment, g, hashes_[g]);
    add_atomically(content_[segment], sum);
}

void HostImage::keep(std::span<const std::uint64_t> changed, std::span<const Location> sources) {
    each_item(team_, changed.size(), [&](std::uint64_t j) {
        copy_chunk(changed[j], base_image_.data() + changed[j] * chunk_);
        if (options_.give_base) where_[changed[j]] = sources[j];
    });
}

void HostImage::forget() {
    segments_ = {};
    layout_ = {};
    hashes_.clear();
    content_.clear();
    base_chunks_.clear();
    base_image_ = {};
    where_.clear();
}

std::uint64_t HostImage::memory_bytes() const {
    return hashes_.capacity() * sizeof(ChunkHash) + where_.capacity() * sizeof(Location) +
           base_image_.capacity();
}

// ---- chunks ----

void HostImage::copy_chunk(std::uint64_t chunk, std::byte* to) const {
    const std::size_t s = layout_.segment_of(chunk);
    const std::uint64_t bytes = layout_.bytes_between(s, chunk, chunk + 1);
    std::memcpy(to, data_of(s, chunk), bytes);
    std::memset(to + bytes, 0, chunk_ - bytes);
}

Location HostImage::copy_base_chunk(std::uint64_t chunk, std::byte* to) const {
    const std::size_t s = layout_.segment_of(chunk);
    if (chunk >= layout_.first(s) + base_chunks_[s]) {
        std::memset(to, 0, chunk_);
        return kNoLocation;
    }
    std::memcpy(to, base_image_.data() + chunk * chunk_, chunk_);
    return where_[chunk];
}

std::uint64_t HostImage::find_changed(std::uint64_t first, std::uint64_t last,
                                      std::vector<std::uint64_t>& changed) {
    std::vector<std::vector<std::uint64_t>> found(static_cast<std::size_t>(team_.size()));
    std::atomic<std::uint64_t> collisions{0};
    std::atomic<bool> failed{false};
    each_share(team_, last - first, [&](const ShareRange& range, int worker) {
        try {
            auto& mine = found[static_cast<std::size_t>(worker)];
            layout_.each_segment(first + range.begin, first + range.end,
                                 [&](std::size_t s, std::uint64_t begin, std::uint64_t end) {
                                     collisions += find_changed_in(s, begin, end, mine);
                                 });
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    });
    if (failed) throw std::bad_alloc();
    changed.clear();
    for (const auto& part : found)
        changed.insert(changed.end(), part.begin(), part.end());
    return collisions;
}

std::uint64_t HostImage::find_changed_in(std::size_t segment, std::uint64_t begin, std::uint64_t end,
                                         std::vector<std::uint64_t>& found) {
    constexpr std::uint64_t kBatch = 64;
    ChunkHash hashes[kBatch];
    std::uint64_t sum = 0;
    std::uint64_t collisions = 0;
    const bool bounded = segments_[segment].bound.has_value();
    const std::uint64_t with_base = layout_.first(segment) + base_chunks_[segment];
    for (std::uint64_t batch = begin; batch < end; batch += kBatch) {
        const std::uint64_t stop = std::min(end, batch + kBatch);
        chunk_hashes({data_of(segment, batch), layout_.bytes_between(segment, batch, stop)}, chunk_, hashes);
        for (std::uint64_t g = batch; g < stop; ++g) {
            const ChunkHash& hash = hashes[g - batch];
            if (g < with_base) {
                if (same(hash, hashes_[g])) {
                    if (!options_.verify || equals_base(segment, g)) continue;
                    ++collisions;
                } else if (bounded && within_bound(segment, g)) {
                    continue;
                }
                sum -= term(segment, g, hashes_[g]);
            }
            sum += term(segment, g, hash);
            hashes_[g] = hash;
            found.push_back(g);
        }
    }
    add_atomically(content_[segment], sum);
    return collisions;
}

bool HostImage::equals_base(std::size_t segment, std::uint64_t chunk) const {
    const std::uint64_t bytes = layout_.bytes_between(segment, chunk, chunk + 1);
    return std::memcmp(data_of(segment, chunk), base_image_.data() + chunk * chunk_, bytes) == 0 &&
           base_ends(chunk, bytes);
}

// Behind so many bytes the base's chunk is zeros, as all chunks are behind the end of their
// segment. It is not where the base's segment was longer.
bool HostImage::base_ends(std::uint64_t chunk, std::uint64_t bytes) const {
    const std::byte* base = base_image_.data() + chunk * chunk_;
    return std::all_of(base + bytes, base + chunk_, [](std::byte byte) { return byte == std::byte{0}; });
}

// Against what restore would give, so that the bound holds at every step, however many there are.
bool HostImage::within_bound(std::size_t segment, std::uint64_t chunk) const {
    const ImageSegment& of = segments_[segment];
    const std::size_t item = item_bytes(of.dtype);
    const std::uint64_t bytes = layout_.bytes_between(segment, chunk, chunk + 1);
    if (bytes % item != 0 || !base_ends(chunk, bytes)) return false;
    const ElementView reference = dense_view(of.dtype, base_image_.data() + chunk * chunk_);
    const std::byte* data = data_of(segment, chunk);
    // Kernels take whole items only where these are aligned.
    alignas(16) std::byte aligned[kLargestRecordChunk];
    if (reinterpret_cast<std::uintptr_t>(data) % item != 0) {
        std::memcpy(aligned, data, bytes);
        data = aligned;
    }
    const ElementView now = dense_view(of.dtype, data);
    DifferenceStats stats;
    // The bound is on what is given back for what was there: the value that was there is the
    // reference.
    compare_elements(difference_kernels(), now, reference, 0, bytes / item * scalars_per_item(of.dtype), 0,
                     *of.bound, &stats);
    return stats.different == 0;
}

}  // namespace twinrun
