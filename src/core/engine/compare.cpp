#include "engine/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "base/checked.hpp"
#include "base/stopwatch.hpp"
#include "difference/column_order.hpp"
#include "engine/gathered.hpp"
#include "engine/sketch_job.hpp"
#include "source/device_array.hpp"
#include "source/plan.hpp"
#include "source/tuning.hpp"
#include "tree/walk.hpp"

namespace twinrun {

namespace {

// Whether these items have the same bytes in both. false also where their byte order is another
// one.
bool same_bytes(const ElementView& a, const ElementView& b, std::uint64_t first, std::uint64_t items) {
    if (a.swap != b.swap || a.scalar != b.scalar || a.pair != b.pair) return false;
    const std::size_t item = item_bytes(a.scalar) * a.pair;
    if (a.dense() && b.dense())
        return std::memcmp(a.base + first * item, b.base + first * item, items * item) == 0;
    for (std::uint64_t i = first; i < first + items; ++i) {
        if (std::memcmp(a.base + i * a.stride, b.base + i * b.stride, item) != 0) return false;
    }
    return true;
}

// What is known of the digests of chunks whose elements are compared.
enum class Digests : std::uint8_t {
    unknown,
    differ,         // of each chunk; equal bytes in both runs contradict this
    differ_values,  // so do equal values: -0 and 0 have one digest
};

// Elements of the chunks that are left: both runs' data, compared exactly.
class ElementJob final : public SliceJob {
   public:
    ElementJob(ElementSource& a, ElementSource& b, std::size_t chunk_items, std::span<const Range> chunks,
               Digests digests, const DifferenceRule& rule, const ColumnOrder& order, int workers)
        : a_(a),
          b_(b),
          chunk_items_(chunk_items),
          chunk_bytes_(chunk_items * item_bytes(a.dtype())),
          storage_(a.on_storage() || b.on_storage()),
          plan_(plan_reads(chunks, chunk_bytes_, storage_ ? kSliceBytes : kSliceBytesInCache,
                           storage_ ? kGapOnStorage : kGapInCache, kMostWindows)),
          digests_differ_(digests != Digests::unknown),
          rule_(rule),
          order_(order),
          gathered_(workers, plan_.slices.size()),
          different_chunks_(static_cast<std::size_t>(workers)) {
        // The room that the windows of the hungriest slice take, each widened by its source.
        for (const Range& slice : plan_.slices) {
            std::size_t of_a = 0;
            std::size_t of_b = 0;
            for (std::uint64_t w = slice.begin; w < slice.end; ++w) {
                const std::uint64_t count = items_of(plan_.windows[w]).second;
                of_a += round_up(a_.buffer_bytes(count), kDirectAlignment);
                of_b += round_up(b_.buffer_bytes(count), kDirectAlignment);
            }
            room_a_ = std::max(room_a_, of_a);
            room_b_ = std::max(room_b_, of_b);
        }
    }
    [[nodiscard]] std::uint64_t slices() const override { return plan_.slices.size(); }
    [[nodiscard]] std::size_t buffer_bytes() const override { return room_a_ + room_b_; }
    [[nodiscard]] std::uint64_t total_bytes() const override { return plan_.chunks_read * chunk_bytes_ * 2; }
    [[nodiscard]] bool on_storage() const override { return storage_; }

    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        std::byte* to_a = buffer;
        std::byte* to_b = buffer + room_a_;
        for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
            const auto [first, count] = items_of(plan_.windows[w]);
            TWR_CHECK(a_.plan(first, count, to_a, requests));
            TWR_CHECK(b_.plan(first, count, to_b, requests));
            to_a += round_up(a_.buffer_bytes(count), kDirectAlignment);
            to_b += round_up(b_.buffer_bytes(count), kDirectAlignment);
        }
        return success();
    }

    Result<> process(std::uint64_t slice, std::byte* buffer, int worker) override {
        std::byte* at_a = buffer;
        std::byte* at_b = buffer + room_a_;
        DifferenceStats& stats = gathered_.of(worker);
        const DifferenceKernels& kernels = difference_kernels();
        const std::uint64_t pair = scalars_per_item(a_.dtype());
        for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
            const Window& window = plan_.windows[w];
            const auto [first, count] = items_of(window);
            const ElementView view_a = a_.view(first, count, at_a);
            const ElementView view_b = b_.view(first, count, at_b);
            for (std::size_t p = window.first_part; p < window.last_part; ++p) {
                for (std::uint64_t c = plan_.parts[p].begin; c < plan_.parts[p].end; ++c) {
                    const std::uint64_t item = c * chunk_items_;
                    const std::uint64_t items = std::min<std::uint64_t>(chunk_items_, a_.items() - item);
                    const std::uint64_t before = stats.different;
                    if (order_.matters()) {
                        compare_in_columns(order_, kernels, view_a, view_b, (item - first) * pair,
                                           items * pair, item * pair, rule_, &stats);
                    } else {
                        compare_elements(kernels, view_a, view_b, (item - first) * pair, items * pair,
                                         item * pair, rule_, &stats);
                    }
                    Counter& own = different_chunks_[static_cast<std::size_t>(worker)];
                    own.count += stats.different != before;
                    // What was compared just now is in the processor's cache, and few bytes of it
                    // are looked at where any differs.
                    if (digests_differ_ && stats.different == before && item < own.contradiction &&
                        same_bytes(view_a, view_b, item - first, items))
                        own.contradiction = item;
                }
            }
            at_a += round_up(a_.buffer_bytes(count), kDirectAlignment);
            at_b += round_up(b_.buffer_bytes(count), kDirectAlignment);
        }
        gathered_.close(worker, slice);
        return success();
    }
    [[nodiscard]] DifferenceStats total() const { return gathered_.total(order_); }
    [[nodiscard]] std::uint64_t different_chunks() const {
        std::uint64_t all = 0;
        for (const Counter& c : different_chunks_)
            all += c.count;
        return all;
    }

    // The first item of the first chunk whose bytes are equal although its digests differ;
    // kNowhere: none.
    [[nodiscard]] std::uint64_t contradiction() const {
        std::uint64_t first = kNowhere;
        for (const Counter& c : different_chunks_)
            first = std::min(first, c.contradiction);
        return first;
    }

   private:
    static constexpr std::uint64_t kMostWindows = 32;
    struct alignas(64) Counter {
        std::uint64_t count = 0;
        std::uint64_t contradiction = kNowhere;
    };
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> items_of(const Window& window) const {
        const std::uint64_t first = window.begin * chunk_items_;
        return {first, std::min(window.end * chunk_items_, a_.items()) - first};
    }
    ElementSource& a_;
    ElementSource& b_;
    std::size_t chunk_items_;
    std::uint64_t chunk_bytes_;
    bool storage_;
    ReadPlan plan_;
    bool digests_differ_;
    const DifferenceRule& rule_;
    const ColumnOrder& order_;
    Gathered gathered_;
    std::vector<Counter> different_chunks_;
    std::size_t room_a_ = 0;
    std::size_t room_b_ = 0;
};

std::uint64_t count_chunks(std::span<const Range> ranges) {
    std::uint64_t n = 0;
    for (const Range& r : ranges)
        n += r.size();
    return n;
}

const FieldMetadata* metadata_of(const FieldSide& side) {
    return side.metadata == nullptr ? nullptr : &side.metadata->directory().fields[side.field];
}

// Bytes of the field's metadata that were read so far: other threads may read other fields of the
// same file.
std::uint64_t read_of(const FieldSide& side) { return side.metadata->bytes_read(side.field); }

// Largest |a - b| over everything: exact where it was read, else what the proofs allow.
void bound_maximum(FieldResult& result, const DifferenceRule& rule) {
    result.max_abs_unread = result.unread_different == 0 ? largest_unread(result.proven, rule.tolerance)
                                                         : std::numeric_limits<double>::quiet_NaN();
    const LargestOfAll largest = largest_of_all(result.read.max_abs, result.max_abs_unread);
    result.max_abs = largest.value;
    result.max_abs_is_bound = largest.is_bound && result.unread_different == 0;
}

// The chunks that hold the scalars asked for, all of them without ranges.
Result<std::vector<Range>> chunks_asked_for(const CompareOptions& options, std::uint64_t scalars,
                                            std::uint64_t chunk_scalars) {
    if (!options.ranges) {
        return scalars == 0 ? std::vector<Range>{}
                            : std::vector<Range>{{0, divide_up(scalars, chunk_scalars)}};
    }
    std::vector<Range> chunks;
    std::uint64_t end = 0;
    for (const Range& r : *options.ranges) {
        const bool whole = r.begin % chunk_scalars == 0 && (r.end % chunk_scalars == 0 || r.end == scalars);
        if (!whole || r.begin < end || r.begin >= r.end || r.end > scalars) {
            return Error{ErrorCode::invalid_argument,
                         "the range of scalars [" + std::to_string(r.begin) + ", " + std::to_string(r.end) +
                             ") of " + std::to_string(scalars) +
                             ": ranges must ascend, lie in the field, and begin and end at multiples of " +
                             std::to_string(chunk_scalars) + " or at its end"};
        }
        end = r.end;
        const Range next{r.begin / chunk_scalars, divide_up(r.end, chunk_scalars)};
        if (!chunks.empty() && chunks.back().end == next.begin) {
            chunks.back().end = next.end;
        } else {
            chunks.push_back(next);
        }
    }
    return chunks;
}

// Where a stage's work is done, with that in the result. Error: a device was asked for and is not
// available.
Result<DevicePlace> place_of_stage(const CompareOptions& options, DeviceWork work, FieldResult& result) {
    work.threads = worker_count(options.stream);
    TWR_TRY(DevicePlace place, choose_place(options.device, work));
    result.device_reason = place.reason;
    if (!place.devices.empty()) result.device = device_names(place.devices);
    return place;
}

// After a stage on devices: true if the CPU is to do it again, as devices could not and nobody
// insists on them.
bool falls_back(const Error& error, const CompareOptions& options, const std::string& device_before,
                FieldResult& result) {
    if (options.device.use != DeviceUse::automatic) return false;
    if (error.code != ErrorCode::out_of_memory && error.code != ErrorCode::unsupported) return false;
    result.device_reason = result.device + " could not: " + error.message;
    result.device = device_before;
    return true;
}

void note_devices(const DeviceOutcome& outcome, FieldResult& result) {
    result.device_seconds += outcome.device_seconds;
    if (!outcome.note.empty()) result.device_reason += "; " + outcome.note;
}

// Workers of devices are others than those that compare on the CPU.
StreamOptions on_its_own(StreamOptions options) {
    options.team = nullptr;
    return options;
}

// What a stage on elements finds, wherever it ran.
struct ElementsFound {
    StreamStats stream;
    DifferenceStats stats;
    std::uint64_t different_chunks = 0;
    std::uint64_t contradiction = kNowhere;  // ElementJob::contradiction()
};

Result<ElementsFound> elements_anywhere(ElementSource& a, ElementSource& b, std::size_t chunk_items,
                                        std::span<const Range> chunks, Digests digests,
                                        const CompareOptions& options, FieldResult& result) {
    if (a.dtype() != b.dtype()) {
        if (options.device.use == DeviceUse::gpu) {
            return Error{ErrorCode::unsupported, std::string(dtype_name(a.dtype())) + " and " +
                                                     std::string(dtype_name(b.dtype())) +
                                                     " are compared on the CPU only: leave out the device"};
        }
        result.device_reason = "numbers of two types are compared on the CPU";
        const ColumnOrder order(options.columns, scalars_per_item(a.dtype()));
        ElementJob job(a, b, chunk_items, chunks, Digests::unknown, options.rule, order,
                       worker_count(options.stream));
        TWR_TRY(const StreamStats stats, run_slices(job, options.stream));
        return ElementsFound{stats, job.total(), job.different_chunks()};
    }
    DeviceWork work;
    work.bytes = count_chunks(chunks) * chunk_items * item_bytes(a.dtype()) * 2;
    if (const DeviceArray* array = a.device_array(); array != nullptr) work.array_a = array->device;
    if (const DeviceArray* array = b.device_array(); array != nullptr) work.array_b = array->device;
    const std::string device_before = result.device;
    work.measured = is_floating(scalar_type(a.dtype())) && !options.rule.measure.plain();
    const ColumnOrder order(options.columns, scalars_per_item(a.dtype()));
    TWR_TRY(const DevicePlace place, place_of_stage(options, work, result));
    if (!place.devices.empty()) {
        auto found = compare_elements_on(place.devices, a, b, chunk_items, chunks, options.rule,
                                         on_its_own(options.stream), options.device.direct_storage);
        if (found) {
            note_devices(found->outcome, result);
            DifferenceStats stats = found->stats;
            // Devices report the first places in the order of memory: the host looks for those that
            // are first row by row.
            if (order.matters() && stats.max_rel_at != kNowhere) {
                ElementJob again(a, b, chunk_items, chunks, Digests::unknown, options.rule, order,
                                 worker_count(options.stream));
                TWR_CHECK(run_slices(again, options.stream));
                order.take_places(again.total(), stats);
            }
            // Devices say nothing of single chunks.
            const bool equal =
                digests == Digests::differ_values && stats.different == 0 && stats.max_abs == 0;
            return ElementsFound{found->outcome.stream, stats, found->different_chunks,
                                 equal ? chunks.front().begin * chunk_items : kNowhere};
        }
        if (!falls_back(found.error(), options, device_before, result)) return std::move(found).error();
    }
    ElementJob job(a, b, chunk_items, chunks, digests, options.rule, order, worker_count(options.stream));
    TWR_TRY(const StreamStats stats, run_slices(job, options.stream));
    return ElementsFound{stats, job.total(), job.different_chunks(), job.contradiction()};
}

Result<> run_elements(const FieldSide& a, const FieldSide& b, std::size_t chunk_items,
                      std::span<const Range> chunks, Digests digests, const CompareOptions& options,
                      FieldResult& result) {
    const Stopwatch watch;
    TWR_CHECK(a.elements->prepare());
    TWR_CHECK(b.elements->prepare());
    TWR_TRY(const ElementsFound found,
            elements_anywhere(*a.elements, *b.elements, chunk_items, chunks, digests, options, result));
    if (found.contradiction != kNowhere) {
        return Error{ErrorCode::damaged,
                     "from element " + std::to_string(found.contradiction) +
                         " on the digests of both runs differ, and the data is equal: the data of one "
                         "of them is not what was digested; twinrun verify finds which"};
    }
    result.read = found.stats;
    result.io = found.stream.io;
    result.elements.ran = true;
    result.elements.chunks_in = count_chunks(chunks);
    result.elements.chunks_out = found.different_chunks;
    result.elements.bytes_read += found.stream.bytes_read;
    if (result.read.first != kNowhere) {
        TWR_TRY(result.first_bits_a, read_scalar(*a.elements, result.read.first));
        TWR_TRY(result.first_bits_b, read_scalar(*b.elements, result.read.first));
    }
    if (result.read.max_abs_at != kNowhere) {
        TWR_TRY(result.max_bits_a, read_scalar(*a.elements, result.read.max_abs_at));
        TWR_TRY(result.max_bits_b, read_scalar(*b.elements, result.read.max_abs_at));
    }
    result.elements.seconds = watch.seconds();
    return success();
}

// The chunks that sketches do not prove, in place of those that the tree left open.
Result<> run_sketches(const FieldSide& a, const FieldSide& b, const ChunkProof& proof,
                      std::vector<Range>& open, const CompareOptions& options, FieldResult& result) {
    const Stopwatch watch;
    const std::uint64_t before = read_of(a) + read_of(b);
    const bool elements_at_hand = a.elements != nullptr && b.elements != nullptr;
    const auto note = [&](std::vector<Range> left, std::uint64_t chunks_read, const StreamStats& stats) {
        result.io = stats.io;
        result.sketch.ran = chunks_read != 0;
        open = std::move(left);
        result.sketch.chunks_in = chunks_read;
        result.sketch.chunks_out = count_chunks(open) - (result.tree.chunks_out - chunks_read);
        result.sketch.bytes_read = stats.bytes_read + read_of(a) + read_of(b) - before;
        result.sketch.seconds = watch.seconds();
    };
    DeviceWork work;
    work.bytes = count_chunks(open) * (proof.shape().residue_bytes_per_chunk + 8) * 2;
    const std::string device_before = result.device;
    TWR_TRY(const DevicePlace place, place_of_stage(options, work, result));
    if (!place.devices.empty()) {
        auto found = check_sketches_on(place.devices, *a.metadata, a.field, *b.metadata, b.field, open, proof,
                                       elements_at_hand, options.cache, on_its_own(options.stream));
        if (found) {
            note_devices(found->outcome, result);
            note(std::move(found->open), found->chunks_read, found->outcome.stream);
            result.proven.add(found->counts);
            return success();
        }
        if (!falls_back(found.error(), options, device_before, result)) return std::move(found).error();
    }
    SketchJob job(*a.metadata, a.field, *b.metadata, b.field, open, proof, elements_at_hand, options.cache,
                  worker_count(options.stream));
    TWR_TRY(const StreamStats stats, run_slices(job, options.stream));
    note(job.open(), job.chunks_read(), stats);
    result.proven.add(job.counts());
    return success();
}

// What digests left open, where no elements are at hand. Error: they do not decide it.
Result<> without_elements(const FieldSide& a, std::span<const Range> open, const ChunkProof& proof,
                          const CompareOptions& options, FieldResult& result) {
    const FieldMetadata& field = *metadata_of(a);  // whose settings are those of b
    const std::uint64_t chunk = proof.shape().chunk_scalars;
    const std::uint64_t begin = open.front().begin * chunk;
    const std::uint64_t end = std::min(field.scalars(), begin + chunk);
    if (!digests_decide(field, options.rule)) {
        return Error{ErrorCode::not_found,
                     "the metadata cannot decide from element " +
                         std::to_string(begin / scalars_per_item(field.dtype)) +
                         " on, and the data is not at hand: keep the data files, or capture with residues "
                         "and a matching tolerance"};
    }
    result.unread_different = count_chunks(open);
    result.unread_begin = begin;
    result.unread_end = end;
    return success();
}

Result<> run_staged(const FieldSide& a, const FieldSide& b, const CompareOptions& options,
                    FieldResult& result) {
    const FieldMetadata& field = *metadata_of(a);
    const ChunkProof proof(field, options.rule.tolerance);
    TWR_TRY(const std::vector<Range> asked,
            chunks_asked_for(options, field.scalars(), proof.shape().chunk_scalars));
    result.chunks = count_chunks(asked);
    if (options.ranges && asked.empty()) return success();

    const Stopwatch tree_watch;
    std::uint64_t before = read_of(a) + read_of(b);
    std::vector<Range> open;
    if (proof.by_tree()) {
        MetadataNodes nodes_a(*a.metadata, a.field);
        MetadataNodes nodes_b(*b.metadata, b.field);
        TWR_TRY(WalkResult walked, walk_trees(field.tree(), node_words(field.settings.kind), nodes_a, nodes_b,
                                              options.ranges ? asked : std::span<const Range>{}));
        open = std::move(walked.chunks);
        result.tree.ran = true;
    } else {
        open = asked;
    }
    result.tree.chunks_in = result.chunks;
    result.tree.chunks_out = count_chunks(open);
    result.tree.bytes_read = read_of(a) + read_of(b) - before;
    result.tree.seconds = tree_watch.seconds();
    result.proven = proof.drift();
    result.proven.by_tree = proof.scalars(asked) - proof.scalars(open);

    const bool by_residues = proof.by_residues() && a.metadata->has_residues() && b.metadata->has_residues();
    if (!open.empty() && by_residues) TWR_CHECK(run_sketches(a, b, proof, open, options, result));
    if (!open.empty()) {
        if (a.elements == nullptr || b.elements == nullptr)
            return without_elements(a, open, proof, options, result);
        const std::size_t chunk_items = field.settings.chunk_bytes / item_bytes(field.dtype);
        const bool linear = field.settings.kind == DigestKind::linear;
        const Digests digests = !proof.by_tree() ? Digests::unknown
                                : linear         ? Digests::differ_values
                                                 : Digests::differ;
        TWR_CHECK(run_elements(a, b, chunk_items, open, digests, options, result));
    }
    return success();
}

void take_elements(const ComparedElements& compared, FieldResult& result) {
    const DevicePairResult& found = compared.found;
    result.device_seconds = compared.seconds;
    result.read = found.found.stats;
    result.elements.ran = true;
    result.elements.chunks_in = result.chunks;
    result.elements.chunks_out = found.found.different_chunks;
    result.elements.seconds = compared.seconds;
    result.first_bits_a = found.first_bits[0];
    result.first_bits_b = found.first_bits[1];
    result.max_bits_a = found.largest_bits[0];
    result.max_bits_b = found.largest_bits[1];
}

// What follows from what was read. largest: sampled magnitude of the metadata, 0 without.
void conclude(DType dtype, const DifferenceRule& rule, double largest, FieldResult& result) {
    bound_maximum(result, rule);
    largest = std::max(result.read.largest, largest);
    result.warnings.clear();
    if (std::string warning = resolution_warning(dtype, rule.tolerance, largest); !warning.empty())
        result.warnings.push_back(std::move(warning));
}

Result<> run_direct(const FieldSide& a, const FieldSide& b, const CompareOptions& options,
                    const ComparedElements* compared, FieldResult& result) {
    if (a.elements == nullptr || b.elements == nullptr) {
        std::string why = "a direct comparison needs the data of both runs";
        if (!result.reason.empty()) why += "; digests do not help: " + result.reason;
        return Error{ErrorCode::not_found, std::move(why)};
    }
    const DType dtype = a.elements->dtype();
    TWR_TRY(
        const std::vector<Range> asked,
        chunks_asked_for(options, a.elements->items() * scalars_per_item(dtype), range_unit(dtype, nullptr)));
    result.chunks = count_chunks(asked);
    if (asked.empty()) return success();
    if (compared != nullptr) {
        result.device = *compared->device;
        result.device_reason = *compared->device_reason;
        result.io = "none";
        take_elements(*compared, result);
        return success();
    }
    return run_elements(a, b, kSmallestChunk / item_bytes(dtype), asked, Digests::unknown, options, result);
}

Result<> check_measure(const Measure& measure) {
    bool good = measure.components >= 1 && measure.components <= Measure::kMostComponents &&
                measure.component_stride >= 1;
    for (const double length : measure.period)
        good = good && std::isfinite(length) && length >= 0;
    if (good) return success();
    return Error{ErrorCode::invalid_argument,
                 "a period must be finite and not negative, of 1 to 4 components"};
}

// Whether digests could decide if NaNs were taken for equal. Digests do not tell where NaNs are.
bool only_nans_forbid(const FieldMetadata& a, const FieldMetadata& b, const CompareOptions& options) {
    DifferenceRule equal = options.rule;
    equal.nan_equal = true;
    return !options.rule.nan_equal && why_not_staged(a, b, options.method, equal).empty();
}

// By which method two fields are compared, and why not by digests.
Result<> choose_method(const FieldSide& a, const FieldSide& b, const CompareOptions& options,
                       FieldResult& result) {
    result.method = options.method;
    if (options.method == Method::direct) return success();
    const FieldMetadata* meta_a = metadata_of(a);
    const FieldMetadata* meta_b = metadata_of(b);
    const bool both = meta_a != nullptr && meta_b != nullptr;
    std::string why =
        both ? why_not_staged(*meta_a, *meta_b, options.method, options.rule) : "no metadata at hand";
    if (why.empty()) {
        const bool published = meta_a->settings.kind == DigestKind::published;
        result.method = published ? Method::published : Method::staged;
        return success();
    }
    // All methods find the same differences: a NaN among them is no reason to find none.
    const bool elements = a.elements != nullptr && b.elements != nullptr;
    const bool forgiven = both && elements && only_nans_forbid(*meta_a, *meta_b, options);
    if (options.method != Method::automatic && !forgiven)
        return Error{ErrorCode::invalid_argument, std::move(why)};
    result.method = Method::direct;
    result.reason = std::move(why);
    return success();
}

}  // namespace

std::uint64_t range_unit(DType dtype, const FieldMetadata* metadata) {
    if (metadata != nullptr) return metadata->chunking().chunk_scalars;
    return kSmallestChunk / item_bytes(dtype) * scalars_per_item(dtype);
}

void take_compared(DType dtype, std::uint64_t items, const DifferenceRule& rule,
                   const ComparedElements& compared, FieldResult& result) {
    result.scalars = items * scalars_per_item(dtype);
    result.chunks = divide_up(result.scalars, range_unit(dtype, nullptr));
    take_elements(compared, result);
    conclude(dtype, rule, 0, result);
}

Result<FieldResult> compare_field(const FieldSide& a, const FieldSide& b, const CompareOptions& options,
                                  const ComparedElements* compared) try {
    FieldResult result;
    TWR_CHECK(cell_rule(options.rule.tolerance, 0));
    TWR_CHECK(check_measure(options.rule.measure));
    const FieldMetadata* meta_a = metadata_of(a);
    const FieldMetadata* meta_b = metadata_of(b);
    const auto facts = [](const FieldSide& side,
                          const FieldMetadata* meta) -> std::pair<DType, std::uint64_t> {
        if (meta != nullptr) return {meta->dtype, meta->items()};
        if (side.elements != nullptr) return {side.elements->dtype(), side.elements->items()};
        return {DType::f32, 0};
    };
    const auto known = facts(a, meta_a);
    const DType dtype = known.first;  // no structured binding: Clang before 16 captures none in a lambda
    const std::uint64_t items = known.second;
    // Digests know nothing of other types.
    const bool mixed = meta_a == nullptr && meta_b == nullptr && a.elements != nullptr &&
                       b.elements != nullptr && a.elements->dtype() != b.elements->dtype();
    if (mixed && !options.rule.measure.plain()) {
        return Error{ErrorCode::invalid_argument,
                     "representable values and periods are for numbers of one type: " +
                         std::string(dtype_name(dtype)) + " against " +
                         std::string(dtype_name(b.elements->dtype())) + " takes atol and rtol"};
    }
    for (const FieldSide* side : {&a, &b}) {
        const bool same_meta = metadata_of(*side) == nullptr ||
                               (metadata_of(*side)->dtype == dtype && metadata_of(*side)->items() == items);
        const auto same_type = [&](DType other) {
            return other == dtype || (mixed && comparable(dtype, other));
        };
        const bool same_data = side->elements == nullptr ||
                               (same_type(side->elements->dtype()) && side->elements->items() == items);
        if (!same_meta || !same_data)
            return Error{ErrorCode::mismatch, "the fields have different types or sizes"};
        if (metadata_of(*side) == nullptr && side->elements == nullptr) {
            return Error{ErrorCode::invalid_argument, "a side with neither data nor metadata"};
        }
    }
    if (!options.columns.empty() && checked_product(options.columns).value_or(items + 1) != items)
        return Error{ErrorCode::invalid_argument, "a shape of columns that is not the field's"};
    result.scalars = items * scalars_per_item(dtype);
    if (options.ranges) {
        result.scalars = 0;
        // Of ranges that are none: an error below.
        for (const Range& r : *options.ranges)
            result.scalars += r.end - r.begin;
    }
    if (options.device.use == DeviceUse::gpu) {
        // Also where no stage comes to need it: what was asked for must be there.
        TWR_CHECK(choose_place(options.device, {}));
        result.device_reason = "nothing was left for a device to do";
    } else {
        result.device_reason = "nothing was left to choose a device for";
    }

    TWR_CHECK(choose_method(a, b, options, result));
    TWR_CHECK(result.method == Method::direct ? run_direct(a, b, options, compared, result)
                                              : run_staged(a, b, options, result));
    conclude(dtype, options.rule,
             std::max(meta_a != nullptr ? meta_a->largest_sampled : 0,
                      meta_b != nullptr ? meta_b->largest_sampled : 0),
             result);
    return result;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "not enough memory for the comparison: set a smaller limit of memory"};
}

}  // namespace twinrun
