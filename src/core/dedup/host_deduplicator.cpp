// Chunks in host memory.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <unordered_map>
#include <unordered_set>

#include "base/aligned.hpp"
#include "base/checked.hpp"
#include "dedup/chunk_hash.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/hash_table.hpp"
#include "dedup/join.hpp"
#include "platform/team.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kHostSliceBytes = std::uint64_t{64} << 20;
constexpr std::size_t kGatherBytes = std::size_t{4} << 20;
// Chunks of the step under way that are in the table before their place in the payload is known:
// behind all that are.
constexpr std::uint64_t kUnplaced = kMostPayloadChunks;

struct Range {
    std::uint64_t begin;
    std::uint64_t end;
};
Range share(std::uint64_t n, int worker, int workers) {
    const auto part = [&](int w) {
        return static_cast<std::uint64_t>(static_cast<unsigned __int128>(n) * static_cast<unsigned>(w) /
                                          static_cast<unsigned>(workers));
    };
    return {part(worker), part(worker + 1)};
}

class HostDeduplicator final : public Deduplicator {
   public:
    explicit HostDeduplicator(const DedupOptions& options)
        : options_(options),
          chunk_(options.chunk_bytes),
          team_(std::max(1, options.threads)),
          table_(options.table_bytes) {
        slice_chunks_ = options.slice_chunks != 0 ? options.slice_chunks : kHostSliceBytes / chunk_;
        mask_.low = options.hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << options.hash_bits) - 1;
        mask_.high = options.hash_bits >= 128  ? ~std::uint64_t{0}
                     : options.hash_bits <= 64 ? 0
                                               : (std::uint64_t{1} << (options.hash_bits - 64)) - 1;
    }

    Result<StepOutcome> step(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                             PayloadSink& sink) override try {
        auto taken = take(ordinal, segments, sink);
        if (!taken) forget();
        return taken;
    } catch (const std::bad_alloc&) {
        forget();
        return Error{ErrorCode::out_of_memory, "not enough memory to find what the step adds to the record"};
    }

    Result<> rebase(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                    std::span<const Location> where) override try {
        TWR_CHECK(lay_out(segments));
        const std::uint64_t chunks = firsts_.back();
        std::fill(content_.begin(), content_.end(), 0);
        if (options_.give_base && where.size() != chunks)
            return Error{ErrorCode::internal, "a base without the Locations of its chunks"};
        std::fill(content_.begin(), content_.end(), 0);  // of a base before
        team_.run([&](int worker) {
            const Range range = share(chunks, worker, team_.size());
            each_segment(range.begin, range.end, [&](std::size_t s, std::uint64_t begin, std::uint64_t end) {
                const std::byte* from = segments[s].data + (begin - firsts_[s]) * chunk_;
                const std::uint64_t bytes = bytes_between(s, begin, end);
                chunk_hashes({from, bytes}, chunk_, hashes_.data() + begin);
                if (options_.keep_base) put_base(begin, from, bytes, end);
                std::uint64_t sum = 0;
                for (std::uint64_t g = begin; g < end; ++g)
                    sum += content_term(hashes_[g], g - firsts_[s]);
                std::atomic_ref(content_[s]).fetch_add(sum, std::memory_order_relaxed);
            });
        });
        for (std::size_t s = 0; s < segments_.size(); ++s)
            base_chunks_[s] = firsts_[s + 1] - firsts_[s];
        if (options_.give_base) std::copy(where.begin(), where.end(), where_.begin());
        base_ = ordinal;
        return success();
    } catch (const std::bad_alloc&) {
        forget();
        return Error{ErrorCode::out_of_memory, "not enough memory for the base of a record"};
    }

    Result<> learn(Location first, std::span<const std::byte> chunks) override try {
        if (!looks_up()) return success();
        const std::uint64_t count = chunks.size() / chunk_;
        const std::uint64_t most = std::max<std::uint64_t>(1, table_.most_at_once() / 2);
        for (std::uint64_t done = 0; done < count;) {
            const std::uint64_t part = std::min(most, count - done);
            if (!table_.reserve(part, team_)) return success();
            team_.run([&](int worker) {
                const Range range = share(part, worker, team_.size());
                for (std::uint64_t i = range.begin; i < range.end; ++i) {
                    const ChunkHash hash = masked(chunk_hash(chunks.data() + (done + i) * chunk_, chunk_));
                    table_.use(table_.insert(hash, first + done + i), ordinal_of(first));
                }
            });
            done += part;
        }
        return success();
    } catch (const std::bad_alloc&) {
        forget();
        return Error{ErrorCode::out_of_memory, "not enough memory for the table of a record's hashes"};
    }

    void forget() override {
        table_.clear();
        segments_.clear();
        firsts_ = {0};
        hashes_.clear();
        content_.clear();
        base_chunks_.clear();
        base_image_ = {};
        where_.clear();
        base_ = kNoBase;
        to_skip_ = 0;
        skipped_ = 0;
    }

    [[nodiscard]] DedupFacts facts() const override {
        DedupFacts facts;
        facts.entries = table_.entries();
        facts.table_bytes = table_.bytes();
        facts.evicted = table_.evicted();
        facts.memory_bytes = table_.bytes() + hashes_.capacity() * sizeof(ChunkHash) +
                             where_.capacity() * sizeof(Location) + base_image_.capacity() +
                             (changed_.capacity() + sources_.capacity() + slots_.capacity()) * 8;
        return facts;
    }

   private:
    struct Named {
        std::string name;
        std::uint64_t bytes;
        bool operator==(const Named&) const = default;
    };

    [[nodiscard]] bool looks_up() const {
        return options_.method != RecordMethod::full && options_.method != RecordMethod::basic;
    }
    [[nodiscard]] ChunkHash masked(const ChunkHash& hash) const {
        return {hash.low & mask_.low, hash.high & mask_.high};
    }
    [[nodiscard]] bool same(const ChunkHash& a, const ChunkHash& b) const {
        return ((a.low ^ b.low) & mask_.low) == 0 && ((a.high ^ b.high) & mask_.high) == 0;
    }
    // Bytes of chunks [begin, end) of segment s that are there.
    [[nodiscard]] std::uint64_t bytes_between(std::size_t s, std::uint64_t begin, std::uint64_t end) const {
        const std::uint64_t from = (begin - firsts_[s]) * chunk_;
        return std::min((end - firsts_[s]) * chunk_, segments_[s].bytes) - from;
    }
    [[nodiscard]] std::size_t segment_of(std::uint64_t chunk) const {
        return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), chunk) -
                                        firsts_.begin()) -
               1;
    }
    template <class Use>
    void each_segment(std::uint64_t begin, std::uint64_t end, Use use) const {
        if (begin >= end) return;
        for (std::size_t s = segment_of(begin); begin < end; ++s) {
            const std::uint64_t stop = std::min(end, firsts_[s + 1]);
            if (begin < stop) use(s, begin, stop);
            begin = std::max(begin, stop);
        }
    }
    void put_base(std::uint64_t first, const std::byte* from, std::uint64_t bytes, std::uint64_t end) {
        std::byte* to = base_image_.data() + first * chunk_;
        std::memcpy(to, from, bytes);
        std::memset(to + bytes, 0, (end - first) * chunk_ - bytes);
    }

    // State for these segments: what is known of those that the base had goes with them.
    Result<> lay_out(std::span<const ImageSegment> segments) {
        std::vector<Named> named;
        std::vector<std::uint64_t> firsts;
        std::uint64_t chunks = 0;
        for (const ImageSegment& segment : segments) {
            named.push_back({segment.name, segment.bytes});
            firsts.push_back(chunks);
            const std::uint64_t own = divide_up(segment.bytes, chunk_);
            if (own > kMostPayloadChunks || chunks + own > kMostPayloadChunks) {
                return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
            }
            chunks += own;
        }
        firsts.push_back(chunks);
        if (named == segments_) return success();

        std::unordered_map<std::string_view, std::size_t> old;
        for (std::size_t s = 0; s < segments_.size(); ++s)
            old.emplace(segments_[s].name, s);
        std::vector<ChunkHash> hashes(chunks);
        std::vector<std::uint64_t> content(named.size());
        std::vector<std::uint64_t> base_chunks(named.size());
        std::vector<std::byte> image(options_.keep_base ? chunks * chunk_ : 0);
        std::vector<Location> where(options_.give_base ? chunks : 0, kNoLocation);
        std::unordered_map<std::string_view, std::size_t> seen;
        for (std::size_t s = 0; s < named.size(); ++s) {
            if (!seen.emplace(named[s].name, s).second)
                return Error{ErrorCode::invalid_argument, "two segments of the name '" + named[s].name + "'"};
            const auto had = old.find(named[s].name);
            if (had == old.end()) continue;
            const std::uint64_t from = firsts_[had->second];
            const std::uint64_t both = std::min(base_chunks_[had->second], firsts[s + 1] - firsts[s]);
            base_chunks[s] = both;
            std::copy_n(hashes_.begin() + static_cast<std::ptrdiff_t>(from), both,
                        hashes.begin() + static_cast<std::ptrdiff_t>(firsts[s]));
            for (std::uint64_t i = 0; i < both; ++i)
                content[s] += content_term(hashes[firsts[s] + i], i);
            if (options_.keep_base && both != 0)
                std::memcpy(image.data() + firsts[s] * chunk_, base_image_.data() + from * chunk_,
                            both * chunk_);
            if (options_.give_base) {
                std::copy_n(where_.begin() + static_cast<std::ptrdiff_t>(from), both,
                            where.begin() + static_cast<std::ptrdiff_t>(firsts[s]));
            }
        }
        segments_ = std::move(named);
        firsts_ = std::move(firsts);
        hashes_ = std::move(hashes);
        content_ = std::move(content);
        base_chunks_ = std::move(base_chunks);
        base_image_ = std::move(image);
        where_ = std::move(where);
        return success();
    }

    // The step under way.
    struct Under {
        std::uint32_t ordinal;
        std::span<const ImageSegment> segments;
        PayloadSink* sink;
        StepOutcome outcome;
        RunJoiner joiner;
        // Chunk of the image of each chunk of the payload (verify).
        std::vector<std::uint64_t> payload_at;
        std::vector<std::byte> gathered;
        std::vector<std::byte> gathered_base;
        std::vector<Location> gathered_at;
        std::optional<Error> failure;
        Under(RecordMethod method, std::uint32_t number, std::span<const ImageSegment> image, PayloadSink& to)
            : ordinal(number), segments(image), sink(&to), joiner(method, number, outcome.runs) {}
    };

    Result<StepOutcome> take(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                             PayloadSink& sink) {
        if (options_.method == RecordMethod::full || to_skip_ != 0) {
            TWR_TRY(StepOutcome whole, take_whole(ordinal, segments, sink));
            if (to_skip_ != 0) --to_skip_;
            return whole;
        }
        TWR_CHECK(lay_out(segments));
        Under step(options_.method, ordinal, segments, sink);
        handed_ = 0;
        step.outcome.runs = spare_runs();
        step.outcome.method = options_.method;
        step.outcome.base = base_;
        step.outcome.chunks = firsts_.back();
        for (std::uint64_t first = 0; first < firsts_.back(); first += slice_chunks_) {
            TWR_CHECK(take_slice(step, first, std::min(firsts_.back(), first + slice_chunks_)));
        }
        for (std::size_t s = 0; s < segments_.size(); ++s)
            base_chunks_[s] = firsts_[s + 1] - firsts_[s];
        step.outcome.content = content_;
        base_ = ordinal;
        if (options_.skip_when_all_new) {
            const bool all_new = step.outcome.payload > step.outcome.chunks - step.outcome.chunks / 20 &&
                                 step.outcome.base != kNoBase;
            skipped_ = all_new ? std::min(16U, std::max(1U, skipped_ * 2)) : 0;
            to_skip_ = skipped_;
        }
        return std::move(step.outcome);
    }

    // Every chunk is payload, and nothing is learned.
    Result<StepOutcome> take_whole(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                   PayloadSink& sink) {
        StepOutcome outcome;
        outcome.method = RecordMethod::full;
        std::unordered_set<std::string_view> seen;
        for (const ImageSegment& segment : segments) {
            if (!seen.insert(segment.name).second)
                return Error{ErrorCode::invalid_argument, "two segments of the name '" + segment.name + "'"};
        }
        std::vector<std::byte> gathered;
        for (const ImageSegment& segment : segments) {
            const std::uint64_t whole = segment.bytes / chunk_ * chunk_;
            for (std::uint64_t at = 0; at < whole;) {
                const std::uint64_t part =
                    std::min<std::uint64_t>(whole - at, kGatherBytes / chunk_ * chunk_);
                TWR_CHECK(sink.take({{segment.data + at, part}, {}, {}}));
                at += part;
            }
            if (whole != segment.bytes) {
                gathered.assign(chunk_, std::byte{0});
                std::memcpy(gathered.data(), segment.data + whole, segment.bytes - whole);
                TWR_CHECK(sink.take({gathered, {}, {}}));
            }
            outcome.chunks += divide_up(segment.bytes, chunk_);
            outcome.content.push_back(0);
        }
        if (outcome.chunks > kMostPayloadChunks)
            return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
        outcome.changed = outcome.payload = outcome.chunks;
        if (outcome.chunks != 0) outcome.runs.push_back({0, outcome.chunks, location(ordinal, 0), false});
        return outcome;
    }

    Result<> take_slice(Under& step, std::uint64_t first, std::uint64_t last) {
        find_changed(step, first, last);
        step.outcome.changed += changed_.size();
        if (changed_.empty()) return success();
        sources_.resize(changed_.size());
        const bool regions =
            options_.method == RecordMethod::tree && table_.most_at_once() >= 2 * changed_.size();
        const std::uint64_t placed = step.outcome.payload;
        if (!looks_up()) {
            place_all(step);
        } else if (regions) {
            TWR_CHECK(look_up(step, 0, changed_.size(), 2 * changed_.size()));
        } else {
            const std::uint64_t most = std::max<std::uint64_t>(1, table_.most_at_once() / 2);
            for (std::uint64_t done = 0; done < changed_.size(); done += most) {
                const std::uint64_t end = std::min<std::uint64_t>(changed_.size(), done + most);
                TWR_CHECK(look_up(step, done, end, end - done));
            }
        }
        if (regions) {
            join_tree(step, first, last);
        } else if (options_.method == RecordMethod::tree) {
            // The table is too small for nodes: leaves alone.
            Location next = location(step.ordinal, placed);
            for (std::size_t j = 0; j < changed_.size(); ++j) {
                const bool payload = sources_[j] == next;
                next += payload ? 1 : 0;
                step.joiner.add_region(changed_[j], 1, sources_[j], payload);
            }
        } else {
            for (std::size_t j = 0; j < changed_.size(); ++j)
                step.joiner.add(changed_[j], sources_[j]);
        }
        return hand_out(step);
    }

    // changed_: the chunks of [first, last) that are not the base's; their hashes are put in the
    // base's place.
    void find_changed(Under& step, std::uint64_t first, std::uint64_t last) {
        std::vector<std::vector<std::uint64_t>> found(static_cast<std::size_t>(team_.size()));
        std::atomic<std::uint64_t> collisions{0};
        std::atomic<bool> failed{false};
        team_.run([&](int worker) {
            const Range range = share(last - first, worker, team_.size());
            try {
                auto& mine = found[static_cast<std::size_t>(worker)];
                each_segment(first + range.begin, first + range.end,
                             [&](std::size_t s, std::uint64_t begin, std::uint64_t end) {
                                 collisions += find_changed_in(step.segments[s], s, begin, end, mine);
                             });
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        });
        if (failed) throw std::bad_alloc();
        step.outcome.collisions += collisions;
        changed_.clear();
        for (const auto& part : found)
            changed_.insert(changed_.end(), part.begin(), part.end());
    }

    std::uint64_t find_changed_in(const ImageSegment& segment, std::size_t s, std::uint64_t begin,
                                  std::uint64_t end, std::vector<std::uint64_t>& found) {
        constexpr std::uint64_t kBatch = 64;
        ChunkHash hashes[kBatch];
        std::uint64_t sum = 0;
        std::uint64_t collisions = 0;
        const std::uint64_t with_base = firsts_[s] + base_chunks_[s];
        for (std::uint64_t batch = begin; batch < end; batch += kBatch) {
            const std::uint64_t stop = std::min(end, batch + kBatch);
            const std::byte* data = segment.data + (batch - firsts_[s]) * chunk_;
            chunk_hashes({data, bytes_between(s, batch, stop)}, chunk_, hashes);
            for (std::uint64_t g = batch; g < stop; ++g) {
                const ChunkHash& hash = hashes[g - batch];
                if (g < with_base) {
                    if (same(hash, hashes_[g])) {
                        if (!options_.verify || equals_base(segment, s, g)) continue;
                        ++collisions;
                    } else if (segment.bound && within_bound(segment, s, g)) {
                        continue;
                    }
                    sum -= content_term(hashes_[g], g - firsts_[s]);
                }
                sum += content_term(hash, g - firsts_[s]);
                hashes_[g] = hash;
                found.push_back(g);
            }
        }
        std::atomic_ref(content_[s]).fetch_add(sum, std::memory_order_relaxed);
        return collisions;
    }

    [[nodiscard]] bool equals_base(const ImageSegment& segment, std::size_t s, std::uint64_t g) const {
        const std::uint64_t bytes = bytes_between(s, g, g + 1);
        return std::memcmp(segment.data + (g - firsts_[s]) * chunk_, base_image_.data() + g * chunk_,
                           bytes) == 0 &&
               base_ends(g, bytes);
    }
    // Behind so many bytes the base's chunk is zeros, as all chunks are behind the end of their
    // segment. It is not where the base's segment was longer.
    [[nodiscard]] bool base_ends(std::uint64_t g, std::uint64_t bytes) const {
        const std::byte* chunk = base_image_.data() + g * chunk_;
        return std::all_of(chunk + bytes, chunk + chunk_,
                           [](std::byte byte) { return byte == std::byte{0}; });
    }
    // Against what restore would give, so that the bound holds at every step, however many there
    // are.
    [[nodiscard]] bool within_bound(const ImageSegment& segment, std::size_t s, std::uint64_t g) const {
        const std::size_t item = item_bytes(segment.dtype);
        const std::uint64_t bytes = bytes_between(s, g, g + 1);
        if (bytes % item != 0 || !base_ends(g, bytes)) return false;
        const ElementView reference = dense_view(segment.dtype, base_image_.data() + g * chunk_);
        const std::byte* data = segment.data + (g - firsts_[s]) * chunk_;
        // Kernels take whole items only where these are aligned.
        alignas(16) std::byte aligned[kLargestRecordChunk];
        if (reinterpret_cast<std::uintptr_t>(data) % item != 0) {
            std::memcpy(aligned, data, bytes);
            data = aligned;
        }
        const ElementView now = dense_view(segment.dtype, data);
        DifferenceStats stats;
        // The bound is on what is given back for what was there: the value that was there is the
        // reference.
        compare_elements(difference_kernels(), now, reference, 0,
                         bytes / item * scalars_per_item(segment.dtype), 0, *segment.bound, &stats);
        return stats.different == 0;
    }

    void place_all(Under& step) {
        for (std::size_t j = 0; j < changed_.size(); ++j)
            sources_[j] = location(step.ordinal, step.outcome.payload++);
    }

    // sources_ of changed chunks [begin, end): a copy's, or the next place of the payload. The
    // smallest Location of equal chunks is the source, so that threads make no difference.
    Result<> look_up(Under& step, std::uint64_t begin, std::uint64_t end, std::uint64_t room) {
        if (!table_.reserve(room, team_)) throw std::bad_alloc();
        const std::uint64_t count = end - begin;
        slots_.resize(changed_.size());
        const auto unplaced = [&](std::uint64_t j) { return location(step.ordinal, kUnplaced + j); };
        team_.run([&](int worker) {
            const Range range = share(count, worker, team_.size());
            for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j)
                slots_[j] = table_.insert(masked(hashes_[changed_[j]]), unplaced(j));
        });
        // Chunks that are the smallest themselves are new; they are counted to find their places.
        std::vector<std::uint64_t> counts(static_cast<std::size_t>(team_.size()) + 1);
        team_.run([&](int worker) {
            const Range range = share(count, worker, team_.size());
            std::uint64_t own = 0;
            for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
                sources_[j] = table_.at(slots_[j]);
                own += sources_[j] == unplaced(j) ? 1 : 0;
            }
            counts[static_cast<std::size_t>(worker) + 1] = own;
        });
        if (options_.verify) TWR_CHECK(check_copies(step, begin, end, counts));
        for (std::size_t w = 1; w < counts.size(); ++w)
            counts[w] += counts[w - 1];
        team_.run([&](int worker) {
            const Range range = share(count, worker, team_.size());
            std::uint64_t place = step.outcome.payload + counts[static_cast<std::size_t>(worker)];
            for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
                if (sources_[j] != unplaced(j)) continue;
                const Location at = location(step.ordinal, place++);
                // A chunk that verify took out of its slot does not own it.
                if (table_.at(slots_[j]) == unplaced(j)) table_.set(slots_[j], at);
                sources_[j] = at;
            }
        });
        team_.run([&](int worker) {
            const Range range = share(count, worker, team_.size());
            for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
                // A new one: it has its place.
                if (ordinal_of(sources_[j]) == step.ordinal && chunk_of(sources_[j]) >= kUnplaced)
                    sources_[j] = sources_[chunk_of(sources_[j]) - kUnplaced];
                table_.use(slots_[j], step.ordinal);
            }
        });
        step.outcome.payload += counts.back();
        return success();
    }
    // Copies whose bytes are others than their source's become new chunks.
    Result<> check_copies(Under& step, std::uint64_t begin, std::uint64_t end,
                          std::vector<std::uint64_t>& counts) {
        std::vector<std::byte> source(chunk_);
        std::vector<std::byte> own(chunk_);
        std::uint64_t place = step.outcome.payload;
        for (int worker = 0; worker < team_.size(); ++worker) {
            const Range range = share(end - begin, worker, team_.size());
            for (std::uint64_t j = begin + range.begin; j < begin + range.end; ++j) {
                const Location unplaced = location(step.ordinal, kUnplaced + j);
                if (sources_[j] != unplaced) {
                    copy_chunk(step, changed_[j], own.data());
                    const std::uint64_t chunk = chunk_of(sources_[j]);
                    if (ordinal_of(sources_[j]) != step.ordinal) {
                        TWR_CHECK(options_.read(sources_[j], source));
                    } else {
                        copy_chunk(step,
                                   chunk >= kUnplaced ? changed_[chunk - kUnplaced] : step.payload_at[chunk],
                                   source.data());
                    }
                    if (std::memcmp(own.data(), source.data(), chunk_) == 0) continue;
                    ++step.outcome.collisions;
                    sources_[j] = unplaced;
                    ++counts[static_cast<std::size_t>(worker) + 1];
                }
                step.payload_at.resize(place + 1);
                step.payload_at[place++] = changed_[j];
            }
        }
        return success();
    }

    void copy_chunk(const Under& step, std::uint64_t g, std::byte* to) const {
        const std::size_t s = segment_of(g);
        const std::uint64_t bytes = bytes_between(s, g, g + 1);
        std::memcpy(to, step.segments[s].data + (g - firsts_[s]) * chunk_, bytes);
        std::memset(to + bytes, 0, chunk_ - bytes);
    }

    // ---- the published compaction ----

    enum class Label : std::uint8_t { none, unchanged, first, copy };

    // Algorithm 1 on the slice's chunks as leaves. Chunks that a collision kept out of the table
    // are new as any other.
    void join_tree(Under& step, std::uint64_t first, std::uint64_t last) {
        const std::uint64_t leaves = last - first;
        const std::uint64_t width = std::bit_ceil(leaves);
        // Level by level from the leaves on: node i of a level of n nodes is at n + i.
        std::vector<Label> labels(2 * width, Label::none);
        std::vector<ChunkHash> hashes(2 * width);
        std::vector<Location> at(2 * width, kNoLocation);
        std::fill_n(labels.begin() + static_cast<std::ptrdiff_t>(width), leaves, Label::unchanged);
        // From the front: seen from the back, a copy of the last new chunk would be taken for it.
        std::uint64_t next = handed_;
        for (std::size_t j = 0; j < changed_.size(); ++j) {
            const std::uint64_t leaf = width + (changed_[j] - first);
            const bool is_first = sources_[j] == location(step.ordinal, next);
            labels[leaf] = is_first ? Label::first : Label::copy;
            if (is_first) ++next;
            hashes[leaf] = hashes_[changed_[j]];
            at[leaf] = sources_[j];
        }
        const auto each_node = [&](auto&& use) {
            for (std::uint64_t n = width / 2; n != 0; n /= 2) {
                team_.run([&](int worker) {
                    const Range range = share(n, worker, team_.size());
                    for (std::uint64_t i = n + range.begin; i < n + range.end; ++i)
                        use(i, 2 * i, 2 * i + 1, static_cast<unsigned>(std::countr_zero(width / n)));
                });
            }
        };
        each_node([&](std::uint64_t node, std::uint64_t left, std::uint64_t right, unsigned level) {
            if (labels[left] != Label::first || labels[right] != Label::first) return;
            labels[node] = Label::first;
            hashes[node] = node_hash(hashes[left], hashes[right], level);
            at[node] = at[left];
            table_.use(table_.insert(masked(hashes[node]), at[node]), step.ordinal);
        });
        each_node([&](std::uint64_t node, std::uint64_t left, std::uint64_t right, unsigned level) {
            if (labels[left] != labels[right]) return;
            if (labels[left] == Label::unchanged) labels[node] = Label::unchanged;
            if (labels[left] != Label::copy) return;
            hashes[node] = node_hash(hashes[left], hashes[right], level);
            const std::uint64_t slot = table_.find(masked(hashes[node]));
            // With `verify`, only what the leaves' sources confirm.
            if (slot == HashTable::kFull) return;
            const Location region = table_.at(slot);
            const std::uint64_t half = std::uint64_t{1} << (level - 1);
            if (options_.verify && (at[left] != region || at[right] != region + half)) return;
            labels[node] = Label::copy;
            at[node] = region;
            table_.use(slot, step.ordinal);
        });
        // The topmost node of each region, from left to right.
        for (std::uint64_t leaf = 0; leaf < leaves;) {
            std::uint64_t node = width + leaf;
            std::uint64_t count = 1;
            while (node > 1 && node % 2 == 0 && labels[node / 2] == labels[node]) {
                node /= 2;
                count *= 2;
            }
            if (labels[node] != Label::unchanged)
                step.joiner.add_region(first + leaf, count, at[node], labels[node] == Label::first);
            leaf += count;
        }
    }
    static ChunkHash node_hash(const ChunkHash& left, const ChunkHash& right, std::uint64_t level) {
        const std::uint64_t words[5] = {left.low, left.high, right.low, right.high, level};
        return chunk_hash(reinterpret_cast<const std::byte*>(words), sizeof words);
    }

    // ---- what leaves ----

    // The new chunks of the slice to the sink; then the base is what it was found to be.
    Result<> hand_out(Under& step) {
        const std::uint64_t most = std::max<std::uint64_t>(1, kGatherBytes / chunk_);
        std::vector<std::uint64_t> fresh;  // chunks of the image
        fresh.reserve(std::min<std::uint64_t>(most, changed_.size()));
        const auto flush = [&]() -> Result<> {
            if (fresh.empty()) return success();
            step.gathered.resize(fresh.size() * chunk_);
            if (options_.give_base) {
                step.gathered_base.resize(fresh.size() * chunk_);
                step.gathered_at.resize(fresh.size());
            }
            team_.run([&](int worker) {
                const Range range = share(fresh.size(), worker, team_.size());
                for (std::uint64_t i = range.begin; i < range.end; ++i) {
                    copy_chunk(step, fresh[i], step.gathered.data() + i * chunk_);
                    if (!options_.give_base) continue;
                    const std::size_t s = segment_of(fresh[i]);
                    const bool had = fresh[i] < firsts_[s] + base_chunks_[s];
                    std::byte* base = step.gathered_base.data() + i * chunk_;
                    if (had) {
                        std::memcpy(base, base_image_.data() + fresh[i] * chunk_, chunk_);
                    } else {
                        std::memset(base, 0, chunk_);
                    }
                    step.gathered_at[i] = had ? where_[fresh[i]] : kNoLocation;
                }
            });
            PayloadSink::Chunks chunks{step.gathered, {}, {}};
            if (options_.give_base) {
                chunks.base = step.gathered_base;
                chunks.base_at = step.gathered_at;
            }
            TWR_CHECK(step.sink->take(chunks));
            fresh.clear();
            return success();
        };
        for (std::size_t j = 0; j < changed_.size(); ++j) {
            if (sources_[j] != location(step.ordinal, handed_)) continue;
            ++handed_;
            fresh.push_back(changed_[j]);
            if (fresh.size() == most) TWR_CHECK(flush());
        }
        TWR_CHECK(flush());
        if (options_.keep_base) {
            team_.run([&](int worker) {
                const Range range = share(changed_.size(), worker, team_.size());
                for (std::uint64_t j = range.begin; j < range.end; ++j) {
                    copy_chunk(step, changed_[j], base_image_.data() + changed_[j] * chunk_);
                    if (options_.give_base) where_[changed_[j]] = sources_[j];
                }
            });
        }
        return success();
    }

    DedupOptions options_;
    std::uint64_t chunk_;
    std::uint64_t slice_chunks_ = 0;
    ChunkHash mask_;
    Team team_;
    HashTable table_;

    // The base.
    std::uint32_t base_ = kNoBase;
    std::vector<Named> segments_;
    std::vector<std::uint64_t> firsts_ = {0};
    std::vector<ChunkHash> hashes_;
    std::vector<std::uint64_t> content_;
    std::vector<std::uint64_t> base_chunks_;  // of each segment, those that the base has too
    std::vector<std::byte> base_image_;
    std::vector<Location> where_;

    // State of a slice; kept to reuse the memory.
    std::vector<std::uint64_t> changed_;
    std::vector<Location> sources_;
    std::vector<std::uint64_t> slots_;
    std::uint64_t handed_ = 0;  // payload chunks of the step that the sink has

    unsigned to_skip_ = 0;
    unsigned skipped_ = 0;
};

}  // namespace

Result<std::unique_ptr<Deduplicator>> make_host_deduplicator(const DedupOptions& options) {
    const auto wrong = [](std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; };
    if (!record_chunk_ok(options.chunk_bytes)) {
        return wrong("chunks of " + std::to_string(options.chunk_bytes) +
                     " bytes: it must be a power of two from 32 to 65536");
    }
    if (options.slice_chunks != 0 && !std::has_single_bit(options.slice_chunks))
        return wrong("a slice is a power of two of chunks");
    if ((options.verify || options.give_base) && !options.keep_base)
        return wrong("verify and give_base need keep_base");
    if (options.verify && !options.read) return wrong("verify needs to read earlier payload");
    if (options.pack_block_bytes != 0) return wrong("payload in host memory is packed by who takes it");
    if (options.skip_when_all_new && options.keep_base)
        return wrong("no step can be skipped where a base is kept");
    try {
        return std::unique_ptr<Deduplicator>(std::make_unique<HostDeduplicator>(options));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "not enough memory for a record"};
    }
}

}  // namespace twinrun
