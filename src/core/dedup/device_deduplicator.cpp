// Chunks in device memory.
//
// Three streams: one hashes slices, a second brings what changed in one of them from hashes to a consolidated difference, a third
// copies that to the host. While the host waits for one slice's counts, the next one is being hashed, and while a
// difference travels, later slices are worked on. Differences travel in pieces of limited size, so that what is held besides the
// hashes and the table does not grow with what changed.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "base/checked.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/hash_table.hpp"
#include "device/event.hpp"
#include "record/device_packer.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{512}
                                      << 20;  // hashed in about 0.15 ms, many times what a launch costs
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
constexpr std::size_t kSmallestPiece = std::size_t{256} << 10;
constexpr std::size_t kPieces = 3;
constexpr std::size_t kSpinBytes = std::size_t{4} << 20;  // 0.1 ms on their way
// Pieces of all that there is are copied from where they lie if they lie in so few places.
constexpr std::size_t kMostCopies = 16;

// What kernels count in one go, as they lie in device memory, and copied to the host.
struct Counts {
    unsigned long long made = 0;  // entries of the table
    unsigned long long fresh = 0;
    unsigned long long entries = 0;  // runs
    unsigned long long continues = 0;
};
constexpr std::size_t kStateAt = 256;  // DeviceJoinState, behind Counts
constexpr std::size_t kUsesAt = 512;   // 256 counts by use
constexpr std::size_t kControlBytes = kUsesAt + 256 * sizeof(unsigned long long);

class DeviceDeduplicator final : public Deduplicator {
   public:
    DeviceDeduplicator(int device, const DedupOptions& options, const DeviceDedupKernels& kernels,
                       DeviceStream hashing, DeviceStream working, DeviceStream copying)
        : device_(device),
          options_(options),
          chunk_(options.chunk_bytes),
          runtime_(*device_runtime()),
          kernels_(kernels),
          most_slots_(options.table_bytes == 0
                          ? std::uint64_t{1} << 62
                          : std::max(HashTable::kSmallest,
                                     std::bit_floor(options.table_bytes /
                                                    (HashTable::kSlotBytes + HashTable::kSlotBytes / 2)))),
          hashing_(std::move(hashing)),
          working_(std::move(working)),
          copying_(std::move(copying)) {
        slice_chunks_ = options.slice_chunks != 0 ? options.slice_chunks : kSliceBytes / chunk_;
        mask_.low = options.hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << options.hash_bits) - 1;
        mask_.high = options.hash_bits >= 128  ? ~std::uint64_t{0}
                     : options.hash_bits <= 64 ? 0
                                               : (std::uint64_t{1} << (options.hash_bits - 64)) - 1;
    }
    ~DeviceDeduplicator() override { settle(); }

    Result<> prepare() {
        for (DeviceEvent* event : {&hashed_[0], &hashed_[1], &listed_[0], &listed_[1]})
            TWR_CHECK(event->make(device_));
        for (Piece& piece : pieces_)
            TWR_CHECK(piece.done.make(device_));
        TWR_CHECK(control_.reserve(device_, kControlBytes));
        if (options_.pack_block_bytes != 0) {
            TWR_TRY(packer_, DevicePacker::create(device_, options_.pack_block_bytes));
        }
        return control_host_.reserve(kHostMemory, kControlBytes);
    }

    Result<StepOutcome> step(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                             PayloadSink& sink) override try {
        auto taken = take(ordinal, segments, sink);
        if (!taken) give_up();
        return taken;
    } catch (const std::bad_alloc&) {
        give_up();
        return Error{ErrorCode::out_of_memory, "not enough memory to find what the step adds to the record"};
    }

    Result<> rebase(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                    std::span<const Location> where) override try {
        auto done = take_base(ordinal, segments, where);
        if (!done) give_up();
        return done;
    } catch (const std::bad_alloc&) {
        give_up();
        return Error{ErrorCode::out_of_memory, "not enough memory for the base of a record"};
    }

    Result<> learn(Location first, std::span<const std::byte> chunks) override try {
        if (!looks_up()) return success();
        auto done = enter(first, chunks);
        if (!done) give_up();
        return done;
    } catch (const std::bad_alloc&) {
        give_up();
        return Error{ErrorCode::out_of_memory, "not enough memory for the table of a record's hashes"};
    }

    void forget() override {
        settle();
        slots_ = 0;
        entries_ = 0;
        table_.clear();
        segments_.clear();
        firsts_ = {0};
        hashes_.clear();
        content_.clear();
        base_chunks_.clear();
        base_image_.clear();
        where_.clear();
        base_ = kNoBase;
        to_skip_ = 0;
        skipped_ = 0;
    }

    [[nodiscard]] DedupFacts facts() const override {
        DedupFacts facts;
        facts.entries = entries_;
        facts.table_bytes = slots_ * sizeof(DeviceDedupSlot);
        facts.evicted = evicted_;
        for (const DeviceMemory* memory :
             {&table_, &hashes_, &content_, &base_image_, &where_, &control_, &control_host_, &parts_,
              &parts_host_, &work_, &tree_, &marks_[0], &marks_[1]}) {
            facts.memory_bytes += memory->bytes();
        }
        for (const Piece& piece : pieces_)
            facts.memory_bytes += piece.staged.bytes() + piece.host.bytes();
        if (packer_ != nullptr) facts.memory_bytes += packer_->memory_bytes();
        return facts;
    }

   private:
    struct Named {
        std::string name;
        std::uint64_t bytes;
        bool operator==(const Named&) const = default;
    };
    // What of the parts is one slice's.
    struct Slice {
        std::uint64_t first;
        std::uint32_t chunks;
        std::uint32_t groups;
        std::size_t part;
        std::size_t part_count;
    };
    // Of a consolidated difference, on its way.
    struct Piece {
        DeviceMemory staged;
        DeviceMemory host;
        DeviceEvent done;
        std::uint64_t first = 0;  // chunk of the image that its entries count from
        std::uint64_t entries = 0;
        bool continues = false;
        std::uint64_t chunks = 0;
        bool base = false;
        std::size_t chunks_at = 0;
        std::size_t base_at = 0;
        std::size_t where_at = 0;
        std::vector<std::pair<std::size_t, std::size_t>> gaps;  // bytes to fill with zeros: begin, end
    };

    [[nodiscard]] bool looks_up() const {
        return options_.method != RecordMethod::full && options_.method != RecordMethod::basic;
    }
    [[nodiscard]] bool keeps_image() const { return options_.give_base; }
    [[nodiscard]] std::uint64_t most_at_once() const { return most_slots_ / 2; }
    [[nodiscard]] DeviceDedupTable table() const {
        return {table_.as<DeviceDedupSlot>(), slots_, counts_on_device()};
    }
    [[nodiscard]] unsigned long long* counts_on_device() const { return &control_.as<Counts>()->made; }
    [[nodiscard]] const Counts& counts() const { return *control_host_.as<Counts>(); }
    [[nodiscard]] DeviceJoinState* state() const { return control_.as<DeviceJoinState>(kStateAt); }

    // Nothing of ours reads the image, or writes, any more.
    void settle() {
        for (DeviceStream* stream : {&hashing_, &working_, &copying_})
            static_cast<void>(runtime_.wait_stream(device_, stream->get()));
        under_way_.clear();
        if (packer_ != nullptr) packer_->clear();
    }
    void give_up() {
        forget();
        if (packer_ != nullptr) packer_->release();
        for (DeviceMemory* memory : {&parts_, &parts_host_, &work_, &tree_, &marks_[0], &marks_[1]})
            memory->clear();
        for (Piece& piece : pieces_) {
            piece.staged.clear();
            piece.host.clear();
        }
    }

    Result<> wait(DeviceStream& stream) { return to_result(runtime_.wait_stream(device_, stream.get())); }
    Result<> copy(void* to, const void* from, std::size_t bytes, DeviceStream& stream) {
        return to_result(runtime_.copy(device_, to, from, bytes, stream.get()));
    }
    Result<> fill(void* to, int byte, std::size_t bytes, DeviceStream& stream) {
        return to_result(runtime_.fill(device_, to, byte, bytes, stream.get()));
    }
    Result<> clear_counts() { return fill(control_.data(), 0, sizeof(Counts), working_); }
    // What kernels counted since. Blocks.
    Result<> fetch_counts() {
        TWR_CHECK(copy(control_host_.data(), control_.data(), sizeof(Counts), working_));
        return wait(working_);
    }

    // ---- segments ----

    Result<std::vector<Named>> names_of(std::span<const ImageSegment> segments,
                                        std::vector<std::uint64_t>& firsts) const {
        std::vector<Named> named;
        std::uint64_t chunks = 0;
        for (const ImageSegment& segment : segments) {
            if (segment.bound) {
                return Error{
                    ErrorCode::unsupported,
                    "segment '" + segment.name + "': bounds are not had on devices: copy it to the host"};
            }
            named.push_back({segment.name, segment.bytes});
            firsts.push_back(chunks);
            const std::uint64_t own = divide_up(segment.bytes, chunk_);
            if (own > kMostPayloadChunks || chunks + own > kMostPayloadChunks)
                return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
            chunks += own;
        }
        firsts.push_back(chunks);
        return named;
    }

    // State for these segments: what is known of those that the base had goes with them.
    Result<> lay_out(std::span<const ImageSegment> segments) {
        std::vector<std::uint64_t> firsts;
        TWR_TRY(std::vector<Named> named, names_of(segments, firsts));
        if (named == segments_) return success();
        std::unordered_map<std::string_view, std::size_t> old;
        for (std::size_t s = 0; s < segments_.size(); ++s)
            old.emplace(segments_[s].name, s);
        std::unordered_map<std::string_view, std::size_t> seen;
        std::vector<DeviceBaseMove> moves;
        std::vector<std::uint64_t> base_chunks(named.size());
        std::uint64_t moved = 0;
        for (std::size_t s = 0; s < named.size(); ++s) {
            if (!seen.emplace(named[s].name, s).second)
                return Error{ErrorCode::invalid_argument, "two segments of the name '" + named[s].name + "'"};
            const auto had = old.find(named[s].name);
            if (had == old.end()) continue;
            const std::uint64_t both = std::min(base_chunks_[had->second], firsts[s + 1] - firsts[s]);
            base_chunks[s] = both;
            if (both == 0) continue;
            moves.push_back({firsts_[had->second], firsts[s], both, moved, s});
            moved += both;
        }
        const std::uint64_t chunks = firsts.back();
        DeviceMemory hashes;
        DeviceMemory content;
        DeviceMemory image;
        DeviceMemory where;
        TWR_CHECK(hashes.reserve(device_, chunks * sizeof(ChunkHash)));
        TWR_CHECK(content.reserve(device_, named.size() * sizeof(std::uint64_t)));
        if (keeps_image()) {
            TWR_CHECK(image.reserve(device_, chunks * chunk_));
            TWR_CHECK(where.reserve(device_, chunks * sizeof(Location)));
        }
        TWR_CHECK(fill(content.data(), 0, named.size() * sizeof(std::uint64_t), hashing_));
        if (!moves.empty()) {
            const std::size_t bytes = moves.size() * sizeof(DeviceBaseMove);
            TWR_CHECK(parts_.reserve(device_, bytes));
            TWR_CHECK(copy(parts_.data(), moves.data(), bytes, hashing_));
            TWR_CHECK(to_result(kernels_.move_base(
                device_, options_.chunk_bytes, parts_.as<DeviceBaseMove>(), moves.size(), moved,
                base_memory(), {hashes.as<ChunkHash>(), image.data(), where.as<Location>()},
                content.as<std::uint64_t>(), hashing_.get())));
        }
        TWR_CHECK(wait(hashing_));
        segments_ = std::move(named);
        firsts_ = std::move(firsts);
        base_chunks_ = std::move(base_chunks);
        hashes_ = std::move(hashes);
        content_ = std::move(content);
        base_image_ = std::move(image);
        where_ = std::move(where);
        return success();
    }
    [[nodiscard]] DeviceBase base_memory(std::uint64_t first = 0) const {
        DeviceBase base;
        base.hashes = hashes_.as<ChunkHash>() + first;
        if (keeps_image()) {
            base.image = base_image_.data() + first * chunk_;
            base.where = where_.as<Location>() + first;
        }
        return base;
    }

    // slices_ and parts_: the image cut up, and that on the device if asked for.
    Result<> cut(std::span<const ImageSegment> segments, std::span<const std::uint64_t> firsts, bool upload) {
        slices_.clear();
        cut_.clear();
        const std::uint32_t per_group = dedup_group_chunks(options_.chunk_bytes);
        std::size_t s = 0;
        for (std::uint64_t first = 0; first < firsts.back(); first += slice_chunks_) {
            const std::uint64_t last = std::min(firsts.back(), first + slice_chunks_);
            Slice slice{first, static_cast<std::uint32_t>(last - first), 0, cut_.size(), 0};
            for (std::uint64_t begin = first; begin < last;) {
                while (firsts[s + 1] <= begin)
                    ++s;
                const std::uint64_t end = std::min(last, firsts[s + 1]);
                DeviceDedupPart part;
                part.number = begin - firsts[s];
                part.data = segments[s].data + part.number * chunk_;
                part.bytes = std::min((end - firsts[s]) * chunk_, segments[s].bytes) - part.number * chunk_;
                part.segment = static_cast<std::uint32_t>(s);
                part.first = static_cast<std::uint32_t>(begin - first);
                part.chunks = static_cast<std::uint32_t>(end - begin);
                if (s < base_chunks_.size()) {
                    part.with_base = static_cast<std::uint32_t>(
                        std::clamp<std::uint64_t>(base_chunks_[s], part.number, part.number + part.chunks) -
                        part.number);
                }
                part.group = slice.groups;
                slice.groups += static_cast<std::uint32_t>(divide_up(part.chunks, per_group));
                cut_.push_back(part);
                begin = end;
            }
            slice.part_count = cut_.size() - slice.part;
            slices_.push_back(slice);
        }
        if (!upload || cut_.empty()) return success();
        const std::size_t bytes = cut_.size() * sizeof(DeviceDedupPart);
        TWR_CHECK(parts_.reserve(device_, bytes));
        TWR_CHECK(parts_host_.reserve(kHostMemory, bytes));
        std::memcpy(parts_host_.data(), cut_.data(), bytes);
        TWR_CHECK(copy(parts_.data(), parts_host_.data(), bytes, hashing_));
        return working_.follow(hashing_.get());
    }

    // ---- a step ----

    // The step under way.
    struct Under {
        std::uint32_t ordinal = 0;
        PayloadSink* sink = nullptr;
        StepOutcome outcome;
    };

    Result<StepOutcome> take(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                             PayloadSink& sink) {
        if (options_.method == RecordMethod::full || to_skip_ != 0) {
            TWR_TRY(StepOutcome whole, take_whole(ordinal, segments, sink));
            if (to_skip_ != 0) --to_skip_;
            return whole;
        }
        TWR_CHECK(lay_out(segments));
        TWR_CHECK(cut(segments, firsts_, true));
        TWR_CHECK(fill(control_.data(), 0, kControlBytes, working_));
        Under step{ordinal, &sink, {}};
        step.outcome.runs = spare_runs();
        step.outcome.method = options_.method;
        step.outcome.base = base_;
        step.outcome.chunks = firsts_.back();
        TWR_CHECK(reserve_marks());
        for (std::size_t i = 0; i < std::min<std::size_t>(2, slices_.size()); ++i)
            TWR_CHECK(hash_slice(i));
        for (std::size_t i = 0; i < slices_.size(); ++i)
            TWR_CHECK(take_slice(step, i));
        std::vector<std::uint64_t> content(segments_.size());
        TWR_CHECK(copy(content.data(), content_.data(), content.size() * sizeof(std::uint64_t), hashing_));
        TWR_CHECK(finish_payload(step));
        TWR_CHECK(wait(hashing_));
        TWR_CHECK(wait(working_));
        for (std::size_t s = 0; s < segments_.size(); ++s)
            base_chunks_[s] = firsts_[s + 1] - firsts_[s];
        step.outcome.content = std::move(content);
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
        std::vector<std::uint64_t> firsts;
        TWR_TRY(const std::vector<Named> named, names_of(segments, firsts));
        TWR_CHECK(cut(segments, firsts, true));
        Under step{ordinal, &sink, {}};
        step.outcome.method = RecordMethod::full;
        step.outcome.chunks = step.outcome.changed = step.outcome.payload = firsts.back();
        step.outcome.content.resize(segments.size());
        if (firsts.back() != 0) step.outcome.runs.push_back({0, firsts.back(), location(ordinal, 0), false});
        for (const Slice& slice : slices_)
            TWR_CHECK(send(step, slice, nullptr, 0, false, nullptr, slice.chunks));
        TWR_CHECK(finish_payload(step));
        TWR_CHECK(wait(working_));
        return std::move(step.outcome);
    }

    Result<> reserve_marks() {
        std::uint64_t words = 0;
        for (const Slice& slice : slices_)
            words = std::max<std::uint64_t>(
                words, std::uint64_t{slice.groups} * (dedup_group_chunks(options_.chunk_bytes) / 32));
        scan_scratch_ = device_aligned(scan_bytes(words + 1));
        const std::size_t bytes = 2 * device_aligned((words + 1) * sizeof(std::uint32_t)) + scan_scratch_;
        for (std::size_t b = 0; b < std::min<std::size_t>(2, slices_.size()); ++b)
            TWR_CHECK(marks_[b].reserve(device_, bytes));
        most_words_ = words;
        return success();
    }
    [[nodiscard]] DeviceDedupSlice slice_of(std::size_t i) const {
        const Slice& of = slices_[i];
        const std::size_t words_bytes = device_aligned((most_words_ + 1) * sizeof(std::uint32_t));
        const DeviceMemory& marks = marks_[i % 2];
        DeviceDedupSlice slice;
        slice.chunk_bytes = options_.chunk_bytes;
        slice.chunks = of.chunks;
        slice.parts = parts_.as<DeviceDedupPart>() + of.part;
        slice.part_count = static_cast<std::uint32_t>(of.part_count);
        slice.groups = of.groups;
        slice.hashes = hashes_.as<ChunkHash>() + of.first;
        slice.content = content_.as<std::uint64_t>();
        slice.mask = mask_;
        slice.words = marks.as<std::uint32_t>();
        slice.before = marks.as<std::uint32_t>(words_bytes);
        slice.scratch = marks.data() + 2 * words_bytes;
        slice.scratch_bytes = scan_scratch_;
        return slice;
    }
    [[nodiscard]] std::uint32_t* changed_on_host(std::size_t i) const {
        return control_host_.as<std::uint32_t>(kStateAt) + i % 2;
    }

    Result<> hash_slice(std::size_t i) {
        const DeviceDedupSlice slice = slice_of(i);
        TWR_CHECK(to_result(kernels_.find_changed(device_, slice, hashing_.get())));
        TWR_CHECK(copy(changed_on_host(i), slice.before + slice.words_of(), sizeof(std::uint32_t), hashing_));
        return hashed_[i % 2].record(hashing_.get());
    }

    Result<> take_slice(Under& step, std::size_t i) {
        const Slice& of = slices_[i];
        // Where nothing else follows in the stream: a wait that sleeps takes longer to wake up than a slice to hash.
        if (i + 1 == slices_.size()) {
            TWR_CHECK(wait(hashing_));
        } else {
            TWR_CHECK(hashed_[i % 2].wait());
        }
        const std::uint32_t count = *changed_on_host(i);
        if (count == 0) {
            if (i + 2 < slices_.size()) TWR_CHECK(hash_slice(i + 2));
            return success();
        }
        step.outcome.changed += count;
        TWR_CHECK(reserve_work(count));
        const DeviceDedupSlice slice = slice_of(i);
        TWR_CHECK(to_result(kernels_.list_changed(device_, slice, changed_, working_.get())));
        TWR_CHECK(listed_[i % 2].record(working_.get()));

        const bool as_tree =
            options_.method == RecordMethod::tree && most_at_once() >= 2 * std::uint64_t{count};
        std::uint64_t fresh = 0;
        if (!looks_up()) {
            TWR_CHECK(clear_counts());
            TWR_CHECK(to_result(kernels_.place_all(device_, step.ordinal, step.outcome.payload, count,
                                                   sources_, working_.get())));
            fresh = count;
        } else {
            const std::uint64_t most = as_tree ? count : std::max<std::uint64_t>(1, most_at_once() / 2);
            for (std::uint64_t done = 0; done < count; done += most) {
                if (done != 0) {  // what the batch before found is needed to go on
                    TWR_CHECK(fetch_counts());
                    entries_ += counts().made;
                    fresh += counts().fresh;
                }
                const std::uint64_t end = std::min<std::uint64_t>(count, done + most);
                TWR_CHECK(reserve(as_tree ? 2 * std::uint64_t{count} : end - done));
                TWR_CHECK(clear_counts());
                DeviceLookUp what;
                what.table = table();
                what.hashes = slice.hashes;
                what.changed = changed_;
                what.begin = static_cast<std::uint32_t>(done);
                what.end = static_cast<std::uint32_t>(end);
                what.mask = mask_;
                what.ordinal = step.ordinal;
                what.placed = step.outcome.payload + fresh;
                what.placed_in_slice = fresh;
                what.slots = slots_of_;
                what.sources = sources_;
                what.places = places_;
                what.fresh = fresh_;
                what.fresh_count = &control_.as<Counts>()->fresh;
                what.scratch = scratch_;
                what.scratch_bytes = scratch_bytes_;
                TWR_CHECK(to_result(kernels_.look_up(device_, what, working_.get())));
            }
        }
        TWR_CHECK(as_tree ? join_tree(step, slice, count) : join(of, count));
        // The slice after the next one: its marks take the place of this one's, which have been read.
        if (i + 2 < slices_.size()) {
            TWR_CHECK(listed_[i % 2].hold_up(device_, hashing_.get()));
            TWR_CHECK(hash_slice(i + 2));
        }
        TWR_CHECK(fetch_counts());
        entries_ += counts().made;
        if (looks_up()) fresh += counts().fresh;
        TWR_CHECK(send(step, of, entries_of_, counts().entries, counts().continues != 0,
                       looks_up() ? fresh_ : changed_, fresh));
        step.outcome.payload += fresh;
        if (!keeps_image()) return success();
        return to_result(kernels_.keep_base(device_, options_.chunk_bytes, slice.parts, slice.part_count,
                                            changed_, sources_, count, base_memory(of.first),
                                            working_.get()));
    }

    // ---- memory for what changed in a slice ----

    // Scratch memory of scans over so many items, at the least. To ask the library takes longer than a small kernel does.
    std::size_t scan_bytes(std::uint64_t items) {
        if (items > scan_items_) {
            scan_items_ = std::bit_ceil(items);
            scan_scratch_bytes_ = kernels_.scan_scratch(device_, scan_items_);
        }
        return scan_scratch_bytes_;
    }

    // Where it lies. memory: null only to learn how much it is.
    std::size_t place_work(std::uint64_t count, std::byte* memory) {
        std::size_t end = 0;
        const auto place = [&](auto*& pointer, std::uint64_t n) {
            using T = std::remove_reference_t<decltype(*pointer)>;
            if (memory != nullptr) pointer = reinterpret_cast<T*>(memory + end);
            end += device_aligned(n * sizeof(T));
        };
        place(changed_, count);
        place(sources_, count);
        place(entries_of_, count);
        place(heads_, count);
        place(slots_of_, looks_up() ? count : 0);
        place(places_, looks_up() ? count : 0);
        place(fresh_, looks_up() ? count : 0);
        place(levels_, options_.method == RecordMethod::tree ? count : 0);
        scratch_bytes_ = scan_bytes(count);
        place(scratch_, scratch_bytes_);
        return end;
    }
    Result<> reserve_work(std::uint64_t count) {
        if (place_work(count, nullptr) > work_.bytes()) {
            // More than is needed, so that counts that vary do not make it grow again and again.
            const std::uint64_t room = std::bit_ceil(std::max<std::uint64_t>(count, 4096));
            if (!work_.reserve(device_, place_work(room, nullptr)))
                TWR_CHECK(work_.reserve(device_, place_work(count, nullptr)));
        }
        place_work(count, work_.data());
        return success();
    }

    // ---- the table ----

    // Room for so many more entries: as HashTable::reserve.
    Result<> reserve(std::uint64_t more) {
        if (more > most_at_once())
            return Error{ErrorCode::internal, "a table of hashes that is too small for a batch"};
        if (entries_ + more <= slots_ / 2) return success();
        const std::uint64_t wanted = std::max(HashTable::kSmallest, std::bit_ceil(2 * (entries_ + more)));
        if (wanted <= most_slots_) return rebuild(wanted, 0, entries_);
        // Those used last stay, as many whole steps of them as leave room, and half of the rest free for what comes next.
        const std::uint64_t room = (most_slots_ / 2 - more) / 2;
        std::uint64_t kept = 0;
        std::uint32_t since = 0;
        for (unsigned shift = 24; shift != 0;) {  // ordinals have 24 bits: found 8 at a time
            shift -= 8;
            auto* const uses = control_.as<unsigned long long>(kUsesAt);
            constexpr std::size_t kBytes = 256 * sizeof(unsigned long long);
            TWR_CHECK(fill(uses, 0, kBytes, working_));
            TWR_CHECK(to_result(kernels_.count_by_use(device_, table(), shift, since, uses, working_.get())));
            const auto* const found = control_host_.as<unsigned long long>(kUsesAt);
            TWR_CHECK(copy(control_host_.data() + kUsesAt, uses, kBytes, working_));
            TWR_CHECK(wait(working_));
            std::uint32_t digit = 256;
            while (digit != 0 && kept + found[digit - 1] <= room)
                kept += found[--digit];
            // Entries with the digit below are too many as a whole.
            since = since << 8 | (digit == 0 ? 0 : digit - 1);
            if (shift == 0 && digit != 0) ++since;
        }
        return rebuild(most_slots_, since, kept);
    }

    // A table of so many slots with the entries that were used since. They are taken out first and the old slots are given back,
    // so that both tables are never there at once.
    Result<> rebuild(std::uint64_t slots, std::uint32_t used_since, std::uint64_t kept) {
        if (slots > kMostDeviceSlots ||
            slots > std::numeric_limits<std::size_t>::max() / sizeof(DeviceDedupSlot))
            return Error{ErrorCode::out_of_memory,
                         "more than 2^32 slots for a table of hashes on a device: set a limit"};
        DeviceMemory taken;
        if (kept != 0) {
            TWR_CHECK(taken.reserve(device_, kept * sizeof(DeviceDedupSlot)));
            TWR_CHECK(clear_counts());
            TWR_CHECK(to_result(kernels_.take_out(device_, table(), used_since, taken.as<DeviceDedupSlot>(),
                                                  counts_on_device(), working_.get())));
            TWR_CHECK(fetch_counts());
            if (counts().made != kept)
                return Error{ErrorCode::internal, "a table of hashes with another number of entries"};
        }
        const std::size_t bytes = slots * sizeof(DeviceDedupSlot);
        TWR_CHECK(table_.reserve(device_, bytes));
        TWR_CHECK(fill(table_.data(), 0, bytes, working_));
        slots_ = slots;
        evicted_ += entries_ - kept;
        entries_ = kept;
        if (kept == 0) return success();
        TWR_CHECK(
            to_result(kernels_.put_in(device_, table(), taken.as<DeviceDedupSlot>(), kept, working_.get())));
        return wait(working_);
    }

    Result<> enter(Location first, std::span<const std::byte> chunks) {
        const std::uint64_t count = chunks.size() / chunk_;
        const std::uint64_t most = std::max<std::uint64_t>(1, most_at_once() / 2);
        Piece& piece = pieces_[0];
        const std::uint64_t at_once = std::min<std::uint64_t>(
            std::max<std::uint64_t>(1, kPieceBytes / (chunk_ + sizeof(ChunkHash))), count);
        TWR_CHECK(piece.staged.reserve(device_, at_once * (chunk_ + sizeof(ChunkHash))));
        for (std::uint64_t done = 0; done < count;) {
            const std::uint64_t part = std::min(most, count - done);
            TWR_CHECK(reserve(part));
            TWR_CHECK(clear_counts());
            for (std::uint64_t from = done; from < done + part; from += at_once) {
                const std::uint64_t n = std::min(at_once, done + part - from);
                auto* const hashes = piece.staged.as<ChunkHash>(at_once * chunk_);
                TWR_CHECK(copy(piece.staged.data(), chunks.data() + from * chunk_, n * chunk_, working_));
                TWR_CHECK(to_result(kernels_.hash_chunks(device_, piece.staged.data(), n,
                                                         options_.chunk_bytes, hashes, working_.get())));
                TWR_CHECK(to_result(kernels_.insert(device_, table(), hashes, n, mask_, first + from,
                                                    ordinal_of(first), working_.get())));
            }
            TWR_CHECK(fetch_counts());
            entries_ += counts().made;
            done += part;
        }
        return success();
    }

    Result<> take_base(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                       std::span<const Location> where) {
        TWR_CHECK(lay_out(segments));
        if (options_.give_base && where.size() != firsts_.back())
            return Error{ErrorCode::internal, "a base without the Locations of its chunks"};
        std::fill(base_chunks_.begin(), base_chunks_.end(), 0);
        TWR_CHECK(fill(content_.data(), 0, segments_.size() * sizeof(std::uint64_t), hashing_));
        TWR_CHECK(cut(segments, firsts_, true));
        TWR_CHECK(reserve_marks());
        for (std::size_t i = 0; i < slices_.size(); ++i) {
            const DeviceDedupSlice slice = slice_of(i);
            TWR_CHECK(to_result(kernels_.find_changed(device_, slice, hashing_.get())));
            if (!keeps_image()) continue;
            DeviceConsolidate what;
            what.chunk_bytes = options_.chunk_bytes;
            what.parts = slice.parts;
            what.part_count = slice.part_count;
            what.chunk_count = slice.chunks;
            what.to = base_memory(slices_[i].first).image;
            TWR_CHECK(to_result(kernels_.consolidate(device_, what, hashing_.get())));
        }
        if (keeps_image()) TWR_CHECK(copy(where_.data(), where.data(), where.size_bytes(), hashing_));
        TWR_CHECK(wait(hashing_));
        for (std::size_t s = 0; s < segments_.size(); ++s)
            base_chunks_[s] = firsts_[s + 1] - firsts_[s];
        base_ = ordinal;
        return success();
    }

    // ---- entries ----

    Result<> join(const Slice& of, std::uint32_t count) {
        DeviceJoin what;
        what.changed = changed_;
        what.sources = sources_;
        what.count = count;
        what.first = of.first;
        what.copies = options_.method == RecordMethod::runs;
        what.alone = options_.method == RecordMethod::tree;  // the table is too small for nodes
        what.state = state();
        what.heads = heads_;
        what.entries = entries_of_;
        what.entry_count = &control_.as<Counts>()->entries;
        what.continues = &control_.as<Counts>()->continues;
        what.scratch = scratch_;
        what.scratch_bytes = scratch_bytes_;
        return to_result(kernels_.join(device_, what, working_.get()));
    }

    Result<> join_tree(const Under& step, const DeviceDedupSlice& slice, std::uint32_t count) {
        DeviceTreeJoin what;
        what.width = std::bit_ceil(std::uint64_t{slice.chunks});
        const std::size_t at_at = device_aligned(2 * what.width);
        const std::size_t hashes_at = at_at + device_aligned(2 * what.width * sizeof(Location));
        TWR_CHECK(tree_.reserve(device_, hashes_at + what.width * sizeof(ChunkHash)));
        what.table = table();
        what.mask = mask_;
        what.ordinal = step.ordinal;
        what.leaf_hashes = slice.hashes;
        what.leaves = slice.chunks;
        what.changed = changed_;
        what.sources = sources_;
        what.count = count;
        what.labels = tree_.as<std::uint8_t>();
        what.at = tree_.as<Location>(at_at);
        what.hashes = tree_.as<ChunkHash>(hashes_at);
        what.levels = levels_;
        what.places = places_;
        what.state = state();
        what.entries = entries_of_;
        what.entry_count = &control_.as<Counts>()->entries;
        what.continues = &control_.as<Counts>()->continues;
        what.scratch = scratch_;
        what.scratch_bytes = scratch_bytes_;
        return to_result(kernels_.join_tree(device_, what, working_.get()));
    }

    // ---- what leaves ----

    // Entries and new chunks of a slice on their way to the host. fresh: null: all of its chunks.
    Result<> send(Under& step, const Slice& of, const DeviceRunEntry* entries, std::uint64_t entry_count,
                  bool continues, const std::uint32_t* fresh, std::uint64_t chunks) {
        if (packer_ != nullptr) {
            TWR_CHECK(pack(step, of, fresh, chunks));
            chunks = 0;
        }
        const bool base = keeps_image() && entries != nullptr;
        const std::size_t each = base ? 2 * chunk_ + sizeof(Location) : chunk_;
        // All chunks of a few segments are copied from where they lie.
        const bool in_place = chunks == of.chunks && !base && of.part_count <= kMostCopies;
        for (std::uint64_t e = 0, p = 0; e < entry_count || p < chunks;) {
            const std::uint64_t left =
                (entry_count - e) * sizeof(DeviceRunEntry) + (chunks - p) * each + 4 * kDeviceAlignment;
            const std::size_t wanted = std::min<std::uint64_t>(
                kPieceBytes, std::max<std::uint64_t>(kSmallestPiece, std::bit_ceil(left)));
            if (under_way_.size() == kPieces) TWR_CHECK(hand_out(step));
            Piece& piece = pieces_[next_piece_];
            TWR_CHECK(piece.host.reserve(kHostMemory, wanted));
            const std::size_t room = std::min(piece.host.bytes(), kPieceBytes);
            piece.first = of.first;
            piece.entries = std::min<std::uint64_t>(entry_count - e, room / sizeof(DeviceRunEntry));
            piece.continues = continues && e == 0;
            piece.base = base;
            piece.chunks_at = device_aligned(piece.entries * sizeof(DeviceRunEntry));
            piece.chunks = 0;
            if (e + piece.entries == entry_count && piece.chunks_at + 2 * kDeviceAlignment < room)
                piece.chunks = std::min<std::uint64_t>(
                    chunks - p, (room - piece.chunks_at - 2 * kDeviceAlignment) / each);
            piece.base_at = device_aligned(piece.chunks_at + piece.chunks * chunk_);
            piece.where_at = base ? device_aligned(piece.base_at + piece.chunks * chunk_) : piece.base_at;
            piece.gaps.clear();
            const std::size_t bytes = piece.where_at + (base ? piece.chunks * sizeof(Location) : 0);

            DeviceConsolidate what;
            what.chunk_bytes = options_.chunk_bytes;
            what.parts = parts_.as<DeviceDedupPart>() + of.part;
            what.part_count = static_cast<std::uint32_t>(of.part_count);
            what.entries = entries + e;
            what.entry_count = piece.entries;
            what.chunk_count = in_place ? 0 : piece.chunks;
            if (what.entry_count != 0 || what.chunk_count != 0) {
                TWR_CHECK(piece.staged.reserve(device_, piece.host.bytes()));
                what.to_entries = piece.staged.as<DeviceRunEntry>();
                what.to = piece.staged.data() + piece.chunks_at;
                if (fresh != nullptr) {
                    what.chunks = fresh + p;
                } else {
                    what.first_chunk = static_cast<std::uint32_t>(p);
                }
                if (base) {
                    const DeviceBase from = base_memory(of.first);
                    what.base = from.image;
                    what.base_at = from.where;
                    what.to_base = piece.staged.data() + piece.base_at;
                    what.to_base_at = piece.staged.as<Location>(piece.where_at);
                }
                TWR_CHECK(to_result(kernels_.consolidate(device_, what, working_.get())));
                TWR_CHECK(copying_.follow(working_.get()));
                TWR_CHECK(copy(piece.host.data(), piece.staged.data(),
                               in_place ? piece.entries * sizeof(DeviceRunEntry) : bytes, copying_));
            }
            if (in_place) TWR_CHECK(copy_in_place(of, p, piece));
            TWR_CHECK(piece.done.record(copying_.get()));
            under_way_.push_back(next_piece_);
            next_piece_ = (next_piece_ + 1) % kPieces;
            e += piece.entries;
            p += piece.chunks;
        }
        return success();
    }

    // New chunks of a slice to where payload is packed.
    Result<> pack(Under& step, const Slice& of, const std::uint32_t* fresh, std::uint64_t chunks) {
        for (std::uint64_t p = 0; p < chunks;) {
            TWR_TRY(std::byte* const to, packer_->reserve((chunks - p) * chunk_));
            DeviceConsolidate what;
            what.chunk_bytes = options_.chunk_bytes;
            what.parts = parts_.as<DeviceDedupPart>() + of.part;
            what.part_count = static_cast<std::uint32_t>(of.part_count);
            what.chunk_count = std::min(chunks - p, packer_->room() / chunk_);
            what.to = to;
            if (fresh != nullptr) {
                what.chunks = fresh + p;
            } else {
                what.first_chunk = static_cast<std::uint32_t>(p);
            }
            TWR_CHECK(to_result(kernels_.consolidate(device_, what, working_.get())));
            packer_->added(what.chunk_count * chunk_);
            p += what.chunk_count;
            if (packer_->room() < chunk_) TWR_CHECK(hand_out_packed(step, false));
        }
        return success();
    }
    Result<> hand_out_packed(Under& step, bool all) {
        return packer_->pack(all, options_.chunk_bytes, working_, [&](std::span<const PackedBlock> blocks) {
            return step.sink->take_packed(blocks);
        });
    }
    // All that is still on its way.
    Result<> finish_payload(Under& step) {
        while (!under_way_.empty())
            TWR_CHECK(hand_out(step));
        return packer_ != nullptr ? hand_out_packed(step, true) : success();
    }

    // Chunks [p, p + piece.chunks) of a slice.
    Result<> copy_in_place(const Slice& of, std::uint64_t p, Piece& piece) {
        for (std::size_t k = of.part; k < of.part + of.part_count; ++k) {
            const DeviceDedupPart& part = cut_[k];
            const std::uint64_t begin = std::max<std::uint64_t>(p, part.first);
            const std::uint64_t end =
                std::min<std::uint64_t>(p + piece.chunks, std::uint64_t{part.first} + part.chunks);
            if (begin >= end) continue;
            const std::uint64_t from = (begin - part.first) * chunk_;
            const std::uint64_t bytes = std::min(part.bytes, (end - part.first) * chunk_) - from;
            const std::size_t to = piece.chunks_at + (begin - p) * chunk_;
            TWR_CHECK(copy(piece.host.data() + to, part.data + from, bytes, copying_));
            if (bytes != (end - begin) * chunk_)
                piece.gaps.emplace_back(to + bytes, to + (end - begin) * chunk_);
        }
        return success();
    }

    // The oldest piece, once it is here.
    Result<> hand_out(Under& step) {
        Piece& piece = pieces_[under_way_.front()];
        // As in take_slice: to wake up takes longer than a small piece does.
        if (under_way_.size() == 1 && piece.base_at <= kSpinBytes) {
            TWR_CHECK(wait(copying_));
        } else {
            TWR_CHECK(piece.done.wait());
        }
        under_way_.pop_front();
        std::vector<Run>& runs = step.outcome.runs;
        const auto* const entries = piece.host.as<DeviceRunEntry>();
        for (std::uint64_t e = 0; e < piece.entries; ++e) {
            const DeviceRunEntry& entry = entries[e];
            const bool repeat = (entry.source & kDeviceFresh) != 0;
            const std::uint64_t count = std::uint64_t{entry.last} - entry.begin + 1;
            if (e == 0 && piece.continues) {
                if (runs.empty()) return Error{ErrorCode::internal, "a run that goes on before it began"};
                runs.back().count += count;
                runs.back().repeat = repeat;
                continue;
            }
            runs.push_back({piece.first + entry.begin, count, entry.source & ~kDeviceFresh, repeat});
        }
        for (const auto& [begin, end] : piece.gaps)
            std::memset(piece.host.data() + begin, 0, end - begin);
        if (piece.chunks == 0) return success();
        PayloadSink::Chunks chunks;
        chunks.bytes = {piece.host.data() + piece.chunks_at, piece.chunks * chunk_};
        if (piece.base) {
            chunks.base = {piece.host.data() + piece.base_at, piece.chunks * chunk_};
            chunks.base_at = {piece.host.as<Location>(piece.where_at), piece.chunks};
        }
        return step.sink->take(chunks);
    }

    int device_;
    DedupOptions options_;
    std::uint64_t chunk_;
    const DeviceRuntime& runtime_;
    const DeviceDedupKernels& kernels_;
    std::uint64_t slice_chunks_ = 0;
    ChunkHash mask_;

    // The table.
    std::uint64_t most_slots_;
    std::uint64_t slots_ = 0;
    std::uint64_t entries_ = 0;
    std::uint64_t evicted_ = 0;
    DeviceMemory table_;

    // The base.
    std::uint32_t base_ = kNoBase;
    std::vector<Named> segments_;
    std::vector<std::uint64_t> firsts_ = {0};
    std::vector<std::uint64_t> base_chunks_;  // of each segment, those that the base has too
    DeviceMemory hashes_;
    DeviceMemory content_;
    DeviceMemory base_image_;
    DeviceMemory where_;

    // Kept for their memory.
    DeviceMemory control_;       // Counts, DeviceJoinState, counts by use
    DeviceMemory control_host_;  // the same; changed chunks of two slices in the middle
    DeviceMemory parts_;
    DeviceMemory parts_host_;
    std::vector<DeviceDedupPart> cut_;
    std::vector<Slice> slices_;
    std::array<DeviceMemory, 2> marks_;
    std::uint64_t most_words_ = 0;
    std::uint64_t scan_items_ = 0;
    std::size_t scan_scratch_bytes_ = 0;
    std::size_t scan_scratch_ = 0;
    DeviceMemory work_;
    std::uint32_t* changed_ = nullptr;
    Location* sources_ = nullptr;
    DeviceRunEntry* entries_of_ = nullptr;
    std::uint64_t* heads_ = nullptr;
    std::uint32_t* slots_of_ = nullptr;
    std::uint32_t* places_ = nullptr;
    std::uint32_t* fresh_ = nullptr;
    std::uint8_t* levels_ = nullptr;
    std::byte* scratch_ = nullptr;
    std::size_t scratch_bytes_ = 0;
    DeviceMemory tree_;
    std::unique_ptr<DevicePacker> packer_;
    std::array<Piece, kPieces> pieces_;
    std::size_t next_piece_ = 0;
    std::deque<std::size_t> under_way_;  // pieces, oldest first

    std::array<DeviceEvent, 2> hashed_;
    std::array<DeviceEvent, 2> listed_;
    // Last, so that they end first: memory is given back when nothing uses it.
    DeviceStream hashing_;
    DeviceStream working_;
    DeviceStream copying_;

    unsigned to_skip_ = 0;
    unsigned skipped_ = 0;
};

}  // namespace

Result<std::unique_ptr<Deduplicator>> make_device_deduplicator(int device, const DedupOptions& options) {
    const auto wrong = [](std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; };
    const auto not_here = [](std::string what) { return Error{ErrorCode::unsupported, std::move(what)}; };
    if (!record_chunk_ok(options.chunk_bytes)) {
        return wrong("chunks of " + std::to_string(options.chunk_bytes) +
                     " bytes: a power of two from 32 to 65536 is wanted");
    }
    if (options.slice_chunks != 0 && !std::has_single_bit(options.slice_chunks))
        return wrong("a slice is a power of two of chunks");
    if (options.slice_chunks > kMostSliceChunks) return wrong("a slice on a device has at most 2^30 chunks");
    if (options.give_base && !options.keep_base) return wrong("give_base needs keep_base");
    if (options.skip_when_all_new && options.keep_base)
        return wrong("no step can be skipped where a base is kept");
    if (options.pack_block_bytes != 0 && options.give_base)
        return wrong("payload that may be XORed is not packed on a device");
    if (options.pack_block_bytes != 0 &&
        (!std::has_single_bit(options.pack_block_bytes) || options.pack_block_bytes < options.chunk_bytes)) {
        return wrong("a block of payload is a power of two, and a chunk at least");
    }
    if (options.verify || options.read)
        return not_here(
            "chunks on devices are not compared byte by byte: without `verify`, or from host memory");
    const DeviceDedupKernels* kernels = device_dedup_kernels();
    if (kernels == nullptr) {
        const std::string& reason = probe_devices().reason;
        return not_here(reason.empty() ? "the library for devices has no de-duplication" : reason);
    }
    const std::vector<int> usable = probe_devices().usable();
    if (std::find(usable.begin(), usable.end(), device) == usable.end()) {
        const std::string& reason = probe_devices().reason;
        return not_here("device " + std::to_string(device) + " cannot be used" +
                        (reason.empty() ? "" : ": " + reason));
    }
    try {
        TWR_TRY(DeviceStream hashing, DeviceStream::create(device));
        TWR_TRY(DeviceStream working, DeviceStream::create(device));
        TWR_TRY(DeviceStream copying, DeviceStream::create(device));
        auto made = std::make_unique<DeviceDeduplicator>(device, options, *kernels, std::move(hashing),
                                                         std::move(working), std::move(copying));
        TWR_CHECK(made->prepare());
        return std::unique_ptr<Deduplicator>(std::move(made));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "not enough memory for a record"};
    }
}

}  // namespace twinrun
