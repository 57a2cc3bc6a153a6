// Chunks in device memory.
//
// Four streams: one hashes slices, some ahead; a second tells the host how much changed in them; a
// third brings that from hashes to a consolidated difference; a fourth copies that to the host.
// While the host waits for one slice, the next ones are being hashed, and while a difference
// travels, later slices are worked on.
#include <algorithm>
#include <bit>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "dedup/base_deduplicator.hpp"
#include "dedup/dedup_context.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/device_hash_table.hpp"
#include "dedup/device_image.hpp"
#include "dedup/device_payload.hpp"

namespace twinrun {

namespace {

class DeviceDeduplicator final : public BaseDeduplicator {
   public:
    explicit DeviceDeduplicator(std::unique_ptr<DedupContext> context)
        : BaseDeduplicator(context->options),
          table_(*context),
          image_(*context),
          payload_(*context, image_),
          context_(std::move(context)) {}
    ~DeviceDeduplicator() override { settle(); }

    Result<> prepare() {
        TWR_CHECK(context_->prepare());
        return payload_.prepare();
    }

    [[nodiscard]] DedupFacts facts() const override {
        DedupFacts facts;
        facts.entries = table_.entries();
        facts.table_bytes = table_.table_bytes();
        facts.evicted = table_.evicted();
        facts.memory_bytes = table_.memory_bytes() + image_.memory_bytes() + payload_.memory_bytes() +
                             context_->memory_bytes() + work_.bytes() + tree_.bytes();
        return facts;
    }

   private:
    // Waits until no work of ours reads the image or writes.
    void settle() {
        context_->settle();
        payload_.drop();
    }
    void drop() override {
        settle();
        table_.clear();
        image_.forget();
    }
    void release() override {
        image_.release();
        payload_.release();
        work_.clear();
        tree_.clear();
    }

    Result<> replace_base(std::span<const ImageSegment> segments, std::span<const Location> where) override {
        return image_.replace_base(segments, where);
    }
    Result<> enter(Location first, std::span<const std::byte> chunks) override {
        return table_.learn(first, chunks, payload_.idle_memory());
    }

    // ---- a step ----

    Result<> take(std::uint32_t ordinal, std::span<const ImageSegment> segments, PayloadSink& sink,
                  StepOutcome& outcome) override {
        DedupContext& c = *context_;
        TWR_CHECK(image_.begin(segments));
        TWR_CHECK(c.fill(c.control.data(), 0, DedupContext::kControlBytes, c.working));
        DeviceStep step{ordinal, &sink, outcome, taken_fully(outcome, table_.entries())};
        outcome.chunks = image_.chunks();
        for (std::size_t i = 0; i < image_.slices().size();) {
            TWR_CHECK(image_.hash_ahead(i));
            TWR_CHECK(hand_out_until(step, [&] { return image_.is_hashed(i); }));
            // Several slices are taken at once only where that changes no result: no entry leaves
            // the table on account of them. The table may grow somewhat earlier.
            TWR_TRY(const HashedSlices hashed,
                    image_.take_hashed(i, c.looks_up() ? table_.room() : ~std::uint64_t{0}));
            if (hashed.changed != 0) TWR_CHECK(take_slice(step, hashed));
            i = hashed.next;
        }
        outcome.content.resize(image_.segments());
        TWR_CHECK(image_.fetch_content(outcome.content));
        TWR_CHECK(payload_.finish(step));
        outcome.runs.resize(step.runs_put);
        TWR_CHECK(c.wait(c.hashing));
        TWR_CHECK(c.wait(c.working));
        image_.become_base();
        return success();
    }

    Result<std::uint64_t> send_all(std::span<const ImageSegment> segments, PayloadSink& sink) override {
        TWR_TRY(const std::uint64_t chunks, image_.begin_whole(segments));
        StepOutcome nothing;  // chunks that are sent without runs add nothing to an outcome
        DeviceStep step{0, &sink, nothing};
        for (const ImageSlice& slice : image_.slices()) {
            SlicePayload all;
            all.chunks = slice.chunks;
            TWR_CHECK(payload_.send(step, slice, all));
        }
        TWR_CHECK(payload_.finish(step));
        TWR_CHECK(context_->wait(context_->working));
        return chunks;
    }

    // Hands out what is on the host while the device is not done.
    template <class Done>
    Result<> hand_out_until(DeviceStep& step, Done done) {
        for (bool more = true; more;) {
            TWR_TRY(const bool is_done, done());
            if (is_done) break;
            TWR_TRY(more, payload_.hand_out_arrived(step));
        }
        return success();
    }

    Result<> take_slice(DeviceStep& step, const HashedSlices& hashed) {
        DedupContext& c = *context_;
        const ImageSlice& of = hashed.slice;
        const std::uint32_t count = hashed.changed;
        step.outcome.changed += count;
        TWR_CHECK(reserve_work(count));
        const DeviceDedupSlice slice = image_.for_kernels(of);
        TWR_CHECK(image_.list_changed(of, changed_));

        const bool as_tree =
            options().method == RecordMethod::tree && table_.most_at_once() >= 2 * std::uint64_t{count};
        const bool all_new = step.fully || !c.looks_up();
        std::uint64_t fresh = count;
        if (all_new) {
            TWR_CHECK(step.fully ? enter_all(step, slice, as_tree) : c.clear_counts());
            TWR_CHECK(to_result(c.kernels.place_all(c.device, step.ordinal, step.outcome.payload, count,
                                                    sources_, c.working.get())));
        } else {
            TWR_TRY(fresh, look_up(step, slice, count, as_tree));
        }
        TWR_CHECK(as_tree ? join_tree(step, slice, count) : join(of, count));
        TWR_CHECK(c.ask_for_counts());
        TWR_CHECK(hand_out_until(step, [&] { return c.counted.done(); }));
        TWR_CHECK(c.counted.wait_soon());
        table_.added(c.counts().made);
        if (!all_new) fresh += c.counts().fresh;
        TWR_CHECK(payload_.send(
            step, of,
            {entries_, c.counts().entries, c.counts().continues != 0, all_new ? changed_ : fresh_, fresh}));
        step.outcome.payload += fresh;
        if (!c.keeps_image()) return success();
        return to_result(c.kernels.keep_base(c.device, options().chunk_bytes, slice.parts, slice.part_count,
                                             changed_, sources_, count, image_.base(of.origin),
                                             c.working.get()));
    }

    // Enters all chunks of a slice, which are all new, in batches that the table has room for. The
    // counts of the last batch are still on the device.
    Result<> enter_all(const DeviceStep& step, const DeviceDedupSlice& slice, bool as_tree) {
        DedupContext& c = *context_;
        const std::uint64_t count = slice.chunks;
        const std::uint64_t most = as_tree ? count : std::max<std::uint64_t>(1, table_.most_at_once() / 2);
        for (std::uint64_t done = 0; done < count; done += most) {
            if (done != 0) {
                TWR_CHECK(c.fetch_counts());
                table_.added(c.counts().made);
            }
            const std::uint64_t part = std::min(count - done, most);
            TWR_CHECK(table_.reserve(as_tree ? 2 * count : part));
            TWR_CHECK(c.clear_counts());
            TWR_CHECK(to_result(c.kernels.insert(
                c.device, table_.view(), slice.hashes + slice.first + done, part, c.mask,
                location(step.ordinal, step.outcome.payload + done), step.ordinal, c.working.get())));
        }
        return success();
    }

    // Looks the changed chunks up in the table and enters those that are new, in batches that the
    // table has room for. Returns how many were new, but for those of the last batch, whose counts
    // are still on the device.
    Result<std::uint64_t> look_up(const DeviceStep& step, const DeviceDedupSlice& slice, std::uint32_t count,
                                  bool as_tree) {
        DedupContext& c = *context_;
        std::uint64_t fresh = 0;
        const std::uint64_t most = as_tree ? count : std::max<std::uint64_t>(1, table_.most_at_once() / 2);
        for (std::uint64_t done = 0; done < count; done += most) {
            if (done != 0) {
                TWR_CHECK(c.fetch_counts());
                table_.added(c.counts().made);
                fresh += c.counts().fresh;
            }
            const std::uint64_t end = std::min<std::uint64_t>(count, done + most);
            TWR_CHECK(table_.reserve(as_tree ? 2 * std::uint64_t{count} : end - done));
            TWR_CHECK(c.clear_counts());
            DeviceLookUp what;
            what.table = table_.view();
            what.hashes = slice.hashes;
            what.changed = changed_;
            what.begin = static_cast<std::uint32_t>(done);
            what.end = static_cast<std::uint32_t>(end);
            what.mask = c.mask;
            what.ordinal = step.ordinal;
            what.placed = step.outcome.payload + fresh;
            what.placed_in_slice = fresh;
            what.slots = slots_;
            what.sources = sources_;
            what.places = places_;
            what.fresh = fresh_;
            what.fresh_count = &c.device_counts()->fresh;
            what.scratch = scratch_;
            TWR_CHECK(to_result(c.kernels.look_up(c.device, what, c.working.get())));
        }
        return fresh;
    }

    // ---- memory for what changed in a slice ----

    // Sets the pointers below to their places in `memory`, and returns its size. memory: null to
    // learn only the size.
    std::size_t place_work(std::uint64_t count, std::byte* memory) {
        std::size_t end = 0;
        const auto place = [&](auto*& pointer, std::uint64_t n) {
            using T = std::remove_reference_t<decltype(*pointer)>;
            if (memory != nullptr) pointer = reinterpret_cast<T*>(memory + end);
            end += device_aligned(n * sizeof(T));
        };
        const bool looks_up = context_->looks_up();
        place(changed_, count);
        place(sources_, count);
        place(entries_, count);
        place(slots_, looks_up ? count : 0);
        place(places_, looks_up ? count : 0);
        place(fresh_, looks_up ? count : 0);
        place(levels_, options().method == RecordMethod::tree ? count : 0);
        place(scratch_, context_->kernels.scan_scratch(count));
        return end;
    }
    Result<> reserve_work(std::uint64_t count) {
        const int device = context_->device;
        if (place_work(count, nullptr) > work_.bytes()) {
            // More than is needed, so that counts that vary do not make it grow again and again.
            const std::uint64_t room = std::bit_ceil(std::max<std::uint64_t>(count, 4096));
            if (!work_.reserve(device, place_work(room, nullptr)))
                TWR_CHECK(work_.reserve(device, place_work(count, nullptr)));
        }
        place_work(count, work_.data());
        return success();
    }

    // ---- runs ----

    Result<> join(const ImageSlice& of, std::uint32_t count) {
        DedupContext& c = *context_;
        DeviceJoin what;
        what.changed = changed_;
        what.sources = sources_;
        what.count = count;
        what.first = of.origin;
        what.copies = options().method == RecordMethod::runs;
        what.alone = options().method == RecordMethod::tree;  // the table is too small for nodes
        what.state = c.join_state();
        what.next = c.next_join_state();
        what.entries = entries_;
        what.entry_count = &c.device_counts()->entries;
        what.continues = &c.device_counts()->continues;
        what.scratch = scratch_;
        return to_result(c.kernels.join(c.device, what, c.working.get()));
    }

    Result<> join_tree(const DeviceStep& step, const DeviceDedupSlice& slice, std::uint32_t count) {
        DedupContext& c = *context_;
        DeviceTreeJoin what;
        what.width = std::bit_ceil(std::uint64_t{slice.chunks});
        const std::size_t locations_at = device_aligned(2 * what.width);
        const std::size_t hashes_at = locations_at + device_aligned(2 * what.width * sizeof(Location));
        TWR_CHECK(tree_.reserve(c.device, hashes_at + what.width * sizeof(ChunkHash)));
        what.table = table_.view();
        what.mask = c.mask;
        what.ordinal = step.ordinal;
        what.leaf_hashes = slice.hashes;
        what.leaves = slice.chunks;
        what.changed = changed_;
        what.sources = sources_;
        what.count = count;
        what.labels = tree_.as<std::uint8_t>();
        what.at = tree_.as<Location>(locations_at);
        what.hashes = tree_.as<ChunkHash>(hashes_at);
        what.levels = levels_;
        what.next = c.next_join_state();
        what.entries = entries_;
        what.entry_count = &c.device_counts()->entries;
        what.continues = &c.device_counts()->continues;
        what.scratch = scratch_;
        return to_result(c.kernels.join_tree(c.device, what, c.working.get()));
    }

    DeviceHashTable table_;
    DeviceImage image_;
    DevicePayload payload_;

    // What place_work() places.
    DeviceMemory work_;
    std::uint32_t* changed_ = nullptr;
    Location* sources_ = nullptr;
    DeviceRunEntry* entries_ = nullptr;
    std::uint32_t* slots_ = nullptr;
    std::uint32_t* places_ = nullptr;
    std::uint32_t* fresh_ = nullptr;
    std::uint8_t* levels_ = nullptr;
    std::byte* scratch_ = nullptr;
    DeviceMemory tree_;

    // Last, so that its streams end before the memory above is given back.
    std::unique_ptr<DedupContext> context_;
};

}  // namespace

Result<std::unique_ptr<Deduplicator>> make_device_deduplicator(int device, const DedupOptions& options) {
    const auto wrong = [](std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; };
    const auto not_here = [](std::string what) { return Error{ErrorCode::unsupported, std::move(what)}; };
    TWR_CHECK(check_dedup_options(options));
    if (options.slice_chunks > kMostSliceChunks) return wrong("a slice on a device has at most 2^30 chunks");
    if (options.give_base && !options.keep_base) return wrong("give_base needs keep_base");
    if (options.pack_block_bytes != 0 && options.give_base)
        return wrong("payload that may be XORed cannot be packed on a device");
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
        TWR_TRY(DeviceStream counting, DeviceStream::create(device));
        TWR_TRY(DeviceStream working, DeviceStream::create(device));
        TWR_TRY(DeviceStream copying, DeviceStream::create(device));
        auto made = std::make_unique<DeviceDeduplicator>(
            std::make_unique<DedupContext>(device, options, *kernels, std::move(hashing), std::move(counting),
                                           std::move(working), std::move(copying)));
        TWR_CHECK(made->prepare());
        return std::unique_ptr<Deduplicator>(std::move(made));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "not enough memory for a record"};
    }
}

}  // namespace twinrun
