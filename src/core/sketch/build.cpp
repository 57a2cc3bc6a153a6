#include "sketch/build.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "sketch/device_build.hpp"
#include "source/tuning.hpp"
#include "tree/build.hpp"

namespace twinrun {

static_assert(kSliceBytes == kDataSumBytes && kSliceBytes % kLargestChunk == 0);

namespace {

// One in this many scalars is looked at for the largest magnitude, which only serves a warning.
constexpr std::uint64_t kSampleStride = 1021;

// XXH3 of the items' bytes as they are stored, without the gaps of a stride.
std::uint64_t data_sum(const ElementView& view, std::uint64_t items) {
    const std::size_t item = item_bytes(view.scalar) * view.pair;
    if (view.dense()) return xxh3({view.base, items * item});
    StreamingChecksum sum;
    std::array<std::byte, 4096> gathered;
    std::size_t used = 0;
    for (std::uint64_t i = 0; i < items; ++i) {
        std::memcpy(gathered.data() + used, view.base + i * view.stride, item);
        used += item;
        if (used + item > gathered.size() || i + 1 == items) {
            sum.update({gathered.data(), used});
            used = 0;
        }
    }
    return sum.value();
}

double sample_largest(const ElementView& view, std::uint64_t scalars) {
    double largest = 0;
    alignas(8) std::array<std::byte, 8> one;
    for (std::uint64_t i = 0; i < scalars; i += kSampleStride) {
        const void* at = load(view, i, 1, one.data());
        double x = 0;
        if (compute_type(view.scalar) == ComputeType::f32) {
            float f = 0;
            std::memcpy(&f, at, 4);
            x = static_cast<double>(f);
        } else if (compute_type(view.scalar) == ComputeType::f64) {
            std::memcpy(&x, at, 8);
        }
        x = std::fabs(x);
        if (std::isfinite(x) && x > largest) largest = x;
    }
    return largest;
}

class SumJob final : public SliceJob {
   public:
    SumJob(const FieldMetadata& field, ElementSource& source)
        : field_(field), source_(source), items_per_slice_(kSliceBytes / item_bytes(field.dtype)) {
        sums.resize(divide_up(field.items(), items_per_slice_));
    }
    [[nodiscard]] std::uint64_t slices() const override { return sums.size(); }
    [[nodiscard]] std::size_t buffer_bytes() const override {
        return source_.buffer_bytes(std::min(items_per_slice_, field_.items()));
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return field_.data_bytes(); }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        return source_.plan(slice * items_per_slice_, count(slice), buffer, requests);
    }
    Result<> process(std::uint64_t slice, std::byte* buffer, int) override {
        const std::uint64_t items = count(slice);
        sums[slice] = data_sum(source_.view(slice * items_per_slice_, items, buffer), items);
        return success();
    }

    std::vector<std::uint64_t> sums;

   private:
    [[nodiscard]] std::uint64_t count(std::uint64_t slice) const {
        return std::min(items_per_slice_, field_.items() - slice * items_per_slice_);
    }
    const FieldMetadata& field_;
    ElementSource& source_;
    std::uint64_t items_per_slice_;
};

std::vector<std::uint64_t> tree_of(const FieldMetadata& field, const std::vector<ChunkDigest>& digests) {
    std::vector<std::uint64_t> leaves;
    leaves.reserve(digests.size() * node_words(field.settings.kind));
    for (const ChunkDigest& d : digests) {
        if (field.settings.kind == DigestKind::published) leaves.push_back(d.fine);
        leaves.push_back(d.coarse);
    }
    return build_tree(field.settings.kind, field.chunking().blocks_per_chunk, leaves);
}

std::vector<std::uint64_t> fine_of(const FieldMetadata& field, const std::vector<ChunkDigest>& digests) {
    std::vector<std::uint64_t> fine;
    if (field.section_bytes(Section::fine) == 0) return fine;
    fine.reserve(digests.size());
    for (const ChunkDigest& d : digests)
        fine.push_back(d.fine);
    return fine;
}

std::span<const std::byte> little_endian_bytes(std::vector<std::uint64_t>& words) {
    if constexpr (std::endian::native == std::endian::big) {
        for (auto& w : words)
            w = __builtin_bswap64(w);
    }
    return std::as_bytes(std::span(words));
}

// The sums by place that follow from the field's digests, or that were made with them.
Result<> write_place_sums(MetadataWriter& writer, std::size_t number, const std::vector<std::uint64_t>& tree,
                          const std::vector<std::uint64_t>& fine, const std::optional<BuiltSums>& made) {
    const FieldMetadata& field = writer.directory().fields[number];
    if (const auto first = own_chunks(field)) {
        const auto leaves = std::span(tree).subspan(field.tree().first(0));
        std::vector<PartialSum> sums = sums_of_whole(leaves, fine, field.scalars(), field.chunking());
        for (PartialSum& sum : sums)
            sum.bucket += *first;
        return writer.write_sums(number, {SumsKind::place, 0, sums.size(), 0, 0}, sums);
    }
    if (!made) return success();
    const SumsFacts facts{SumsKind::place, static_cast<std::uint8_t>(made->height), made->sums.size(), 0, 0};
    return writer.write_sums(number, facts, made->sums);
}

using WriteResidues = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> bytes)>;

class BuildJob final : public SliceJob {
   public:
    // Residues go to memory at `residues`, or slice by slice to `write`.
    BuildJob(const FieldMetadata& field, ElementSource& source, int workers, bool with_sums,
             std::byte* residues, WriteResidues write,
             std::shared_ptr<const std::vector<std::uint64_t>> ids = nullptr)
        : digests(field, with_sums, false, std::move(ids)),
          source_(source),
          all_residues_(residues),
          write_(std::move(write)) {
        if (residues == nullptr && digests.slices() != 0)
            residues_.resize(static_cast<std::size_t>(workers),
                             std::vector<std::byte>(digests.residue_bytes(0)));
    }
    [[nodiscard]] std::uint64_t slices() const override { return digests.slices(); }
    [[nodiscard]] std::size_t buffer_bytes() const override {
        return slices() == 0 ? 0 : source_.buffer_bytes(digests.items(0));
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return digests.field().data_bytes(); }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        return source_.plan(digests.first_item(slice), digests.items(slice), buffer, requests);
    }
    Result<> process(std::uint64_t slice, std::byte* buffer, int worker) override {
        std::byte* residues = all_residues_ != nullptr ? all_residues_ + digests.residue_offset(slice)
                                                       : residues_[static_cast<std::size_t>(worker)].data();
        digests.make(slice, source_.view(digests.first_item(slice), digests.items(slice), buffer), residues);
        if (all_residues_ != nullptr || digests.residue_bytes(slice) == 0) return success();
        return write_(digests.residue_offset(slice), {residues, digests.residue_bytes(slice)});
    }

    FieldDigests digests;

   private:
    ElementSource& source_;
    std::byte* all_residues_;
    WriteResidues write_;
    std::vector<std::vector<std::byte>> residues_;  // of each worker
};

}  // namespace

Result<FieldMetadata> plan_field(FieldPlan plan) {
    const auto invalid = [&](const std::string& what) {
        return Error{ErrorCode::invalid_argument, "field '" + plan.name + "': " + what};
    };
    const std::uint32_t chunk = plan.chunk_bytes;
    if (chunk < kSmallestChunk || chunk > kLargestChunk || (chunk & (chunk - 1)) != 0) {
        return invalid("the chunk size must be a power of two from 4096 to 1048576 bytes");
    }
    const auto items = checked_product(plan.shape);
    if (plan.shape.size() > kMostDimensions || !items || *items > (1ULL << 58) / item_bytes(plan.dtype)) {
        return invalid("impossible shape");
    }
    // Place in the global array: of the same dimensions, and within it.
    bool placed = plan.global_shape.size() == plan.global_offset.size() &&
                  (plan.global_shape.empty() || plan.global_shape.size() == plan.shape.size());
    for (std::size_t d = 0; placed && d < plan.global_shape.size(); ++d) {
        const auto end = checked_add(plan.global_offset[d], plan.shape[d]);
        placed = end && *end <= plan.global_shape[d];
    }
    if (!placed) return invalid("it does not lie within the global shape");
    if (plan.kind == DigestKind::published && plan.tolerance.rtol != 0) {
        return invalid("published digests know no relative tolerance");
    }
    FieldMetadata field;
    auto rule = plan.tokens ? cell_rule(plan.tolerance, plan.residue_bits)
                            : cell_rule(plan.tolerance, plan.residue_bits, scalar_type(plan.dtype));
    if (!rule) return invalid(rule.error().message);
    field.settings.tolerance = plan.tolerance;
    field.settings.rule = plan.kind == DigestKind::linear ? *rule : CellRule{};
    field.settings.kind = plan.kind;
    field.settings.chunk_bytes = chunk;
    field.name = std::move(plan.name);
    field.dtype = plan.dtype;
    field.byte_order = plan.byte_order;
    field.order = plan.order;
    field.shape = std::move(plan.shape);
    field.global_shape = std::move(plan.global_shape);
    field.global_offset = std::move(plan.global_offset);
    field.extents = std::move(plan.extents);
    field.format = std::move(plan.format);
    field.key = std::move(plan.key);
    return field;
}

std::optional<std::uint64_t> own_chunks(const FieldMetadata& field) {
    if (!field.partial() || !field.key.empty() || field.settings.kind != DigestKind::linear)
        return std::nullopt;
    const auto placement = RowPlacement::of_box(field.shape, field.global_shape, field.global_offset,
                                                scalars_per_item(field.dtype));
    const std::uint64_t chunk = field.chunking().chunk_scalars;
    if (!placement || placement->rows() != 1 || placement->base() % chunk != 0) return std::nullopt;
    return placement->base() / chunk;
}

FieldSlices::FieldSlices(const FieldMetadata& field)
    : field_(&field),
      items_per_slice_(kSliceBytes / item_bytes(field.dtype)),
      slices_(divide_up(field.items(), items_per_slice_)),
      residue_bytes_(kSliceBytes / field.settings.chunk_bytes * field.chunking().residue_bytes_per_chunk) {}

FieldDigests::FieldDigests(const FieldMetadata& field, bool with_sums, bool elsewhere,
                           std::shared_ptr<const std::vector<std::uint64_t>> ids)
    : FieldSlices(field),
      digests_(elsewhere ? 0 : field.chunks()),
      sums_(with_sums ? slices() : 0),
      with_sums_(with_sums) {
    if (elsewhere || !field.partial()) return;
    std::optional<RowPlacement> placement;
    if (!field.key.empty()) {
        // Particles go by ID even where they have a place.
        if (ids == nullptr || field.shape.empty() || field.shape[0] != ids->size() || ids->empty()) return;
        const auto [smallest, largest] = std::minmax_element(ids->begin(), ids->end());
        part_facts_ = {SumsKind::ids, 0, 0, *smallest, *largest};
        placement = RowPlacement::of_ids(ids, field.scalars() / ids->size());
    } else {
        if (own_chunks(field)) return;
        part_facts_.kind = SumsKind::place;
        placement = RowPlacement::of_box(field.shape, field.global_shape, field.global_offset,
                                         scalars_per_item(field.dtype));
    }
    if (!placement) return;
    part_sums_ = PartialSums::plan(field.settings, scalar_type(field.dtype),
                                   std::make_shared<const RowPlacement>(std::move(*placement)));
}

FieldDigests::FieldDigests(FieldDigests&& other) noexcept
    : FieldSlices(other),
      digests_(std::move(other.digests_)),
      sums_(std::move(other.sums_)),
      with_sums_(other.with_sums_),
      part_facts_(other.part_facts_),
      part_sums_(std::move(other.part_sums_)),
      built_(std::move(other.built_)),
      elsewhere_(other.elsewhere_),
      counts_(other.counts_),
      largest_(other.largest_) {}

std::uint64_t FieldSlices::items(std::uint64_t slice) const {
    return std::min(items_per_slice_, field_->items() - slice * items_per_slice_);
}

std::size_t FieldSlices::residue_bytes(std::uint64_t slice) const {
    const unsigned bits = field_->settings.rule.residue_bits;
    if (bits == 0) return 0;
    const ChunkShape shape = field_->chunking();
    const std::uint64_t scalars = items(slice) * scalars_per_item(field_->dtype);
    return scalars / shape.chunk_scalars * shape.residue_bytes_per_chunk +
           chunk_residue_bytes(scalar_type(field_->dtype), scalars % shape.chunk_scalars, bits);
}

void FieldDigests::make(std::uint64_t slice, const ElementView& view, std::byte* residues) {
    const std::uint64_t scalars = items(slice) * view.pair;
    Digester digester(field().settings, scalar_type(field().dtype));
    ElementCounts counts;
    digester.chunks(view, 0, scalars, &digests_[slice * (kSliceBytes / field().settings.chunk_bytes)],
                    field().settings.rule.residue_bits != 0 ? residues : nullptr, &counts);
    const double largest = sample_largest(view, scalars);
    if (part_sums_) part_sums_->add(view, first_item(slice) * view.pair, scalars);
    if (with_sums_) sum(slice, view);
    const std::lock_guard guard(mutex_);
    counts_.add(counts);
    largest_ = std::max(largest_, largest);
}

void FieldDigests::sum(std::uint64_t slice, const ElementView& view) {
    sums_[slice] = data_sum(view, items(slice));
}

void FieldDigests::set(BuiltField built) {
    built_ = std::move(built);
    built_.residues = {};
    elsewhere_ = true;
    digests_ = {};
    counts_ = built_.counts;
    largest_ = built_.largest;
}

std::span<const ChunkDigest> FieldDigests::chunks(std::uint64_t slice) const {
    const std::uint64_t per_slice = kSliceBytes / field().settings.chunk_bytes;
    const std::uint64_t first = slice * per_slice;
    return std::span(digests_).subspan(first, std::min<std::uint64_t>(per_slice, digests_.size() - first));
}

std::uint64_t FieldDigests::bytes() const {
    return digests_.size() * sizeof(ChunkDigest) +
           (sums_.size() + built_.tree.size() + built_.fine.size()) * sizeof(std::uint64_t) +
           (built_.sums ? built_.sums->sums.size() * sizeof(PartialSum) : 0) +
           (part_sums_ ? part_sums_->bytes() : 0);
}

void FieldDigests::read(BuiltField& into) const {
    into.tree = tree_of(field(), digests_);
    into.fine = fine_of(field(), digests_);
    into.counts = counts_;
    into.largest = largest_;
    into.sums.reset();
    if (part_sums_ && part_facts_.kind == SumsKind::place)
        into.sums = {part_sums_->height(), part_sums_->finish()};
}

Result<> FieldDigests::write(MetadataWriter& writer, std::size_t number) {
    FieldMetadata& field = writer.directory().fields[number];
    field.counts = counts_;
    field.largest_sampled = largest_;
    std::vector<std::uint64_t> tree = elsewhere_ ? std::move(built_.tree) : tree_of(field, digests_);
    std::vector<std::uint64_t> fine = elsewhere_ ? std::move(built_.fine) : fine_of(field, digests_);
    TWR_CHECK(write_place_sums(writer, number, tree, fine, built_.sums));
    TWR_CHECK(writer.write(number, Section::tree, 0, little_endian_bytes(tree)));
    TWR_CHECK(writer.write(number, Section::fine, 0, little_endian_bytes(fine)));
    if (part_sums_) {
        part_facts_.height = static_cast<std::uint8_t>(part_sums_->height());
        part_facts_.buckets = part_sums_->count();
        TWR_CHECK(writer.write_sums(number, part_facts_, part_sums_->finish()));
    }
    if (with_sums_) return writer.write(number, Section::data_sums, 0, little_endian_bytes(sums_));
    field.sections[static_cast<std::size_t>(Section::data_sums)].length = 0;
    return success();
}

Result<StreamStats> build_field(MetadataWriter& writer, std::size_t number, ElementSource& source,
                                const StreamOptions& options,
                                std::shared_ptr<const std::vector<std::uint64_t>> ids) try {
    FieldMetadata& field = writer.directory().fields[number];
    TWR_CHECK(source.prepare());
    if (const DeviceArray* array = source.device_array(); array != nullptr) {
        TWR_CHECK(build_device_fields(writer, {&number, 1}, {&array, 1}));
        StreamStats stats;
        stats.io = "device";
        return stats;
    }
    BuildJob job(
        field, source, worker_count(options), true, nullptr,
        [&](std::uint64_t offset, std::span<const std::byte> bytes) {
            return writer.write(number, Section::residues, offset, bytes);
        },
        std::move(ids));
    TWR_TRY(const StreamStats stats, run_slices(job, options));
    TWR_CHECK(job.digests.write(writer, number));
    return stats;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of field '" +
                                               writer.directory().fields[number].name +
                                               "': use larger chunks"};
}

Result<std::uint64_t> build_fields(MetadataWriter& writer, std::span<ElementSource* const> sources,
                                   const StreamOptions& options,
                                   std::span<const std::shared_ptr<const std::vector<std::uint64_t>>> ids) {
    std::vector<std::uint64_t> bytes;
    std::vector<bool> in_order;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        const FieldMetadata& field = writer.directory().fields[i];
        bytes.push_back(field.data_bytes());
        // Sums of parts lie in the file in the order in which they were made.
        in_order.push_back(field.partial() || !(sources[i]->in_memory() || sources[i]->in_files()) ||
                           sources[i]->device_array() != nullptr);
    }
    std::atomic<std::uint64_t> read{0};
    TWR_CHECK(run_pieces(bytes, in_order, options, [&](std::size_t i, const StreamOptions& own) -> Result<> {
        TWR_TRY(const StreamStats stats, build_field(writer, i, *sources[i], own, ids[i]));
        read += stats.bytes_read;
        return success();
    }));
    return read.load();
}

Result<> build_device_fields(MetadataWriter& writer, std::span<const std::size_t> numbers,
                             std::span<const DeviceArray* const> arrays,
                             std::span<std::vector<std::uint64_t>> data_sums) try {
    std::vector<const FieldMetadata*> fields;
    for (const std::size_t number : numbers)
        fields.push_back(&writer.directory().fields[number]);
    std::vector<BuiltField> built;
    TWR_CHECK(build_on_device(fields, arrays, built, {},
                              [&](std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) {
                                  return writer.write(numbers[field], Section::residues, offset, bytes);
                              }));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        FieldMetadata& field = writer.directory().fields[numbers[i]];
        field.counts = built[i].counts;
        field.largest_sampled = built[i].largest;
        TWR_CHECK(write_place_sums(writer, numbers[i], built[i].tree, built[i].fine, built[i].sums));
        TWR_CHECK(writer.write(numbers[i], Section::tree, 0, little_endian_bytes(built[i].tree)));
        TWR_CHECK(writer.write(numbers[i], Section::fine, 0, little_endian_bytes(built[i].fine)));
        if (data_sums.empty()) {
            field.sections[static_cast<std::size_t>(Section::data_sums)].length = 0;
        } else {
            TWR_CHECK(writer.write(numbers[i], Section::data_sums, 0, little_endian_bytes(data_sums[i])));
        }
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of device arrays"};
}

Result<std::vector<std::uint64_t>> sum_data(const FieldMetadata& field, ElementSource& source,
                                            const StreamOptions& options) try {
    TWR_CHECK(source.prepare());
    SumJob job(field, source);
    TWR_CHECK(run_slices(job, options));
    return std::move(job.sums);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "not enough memory for the checksums of field '" + field.name + "'"};
}

Result<std::uint64_t> write_metadata(FileSystem& system, const std::string& path, Directory facts,
                                     std::vector<FieldToWrite> fields, const StreamOptions& options,
                                     bool durable) {
    for (FieldToWrite& field : fields) {
        TWR_TRY(FieldMetadata planned, plan_field(std::move(field.plan)));
        facts.fields.push_back(std::move(planned));
    }
    TWR_TRY(const auto writer, MetadataWriter::create(system, path, std::move(facts)));
    writer->may_replace();
    std::vector<ElementSource*> sources;
    std::vector<std::shared_ptr<const std::vector<std::uint64_t>>> ids;
    for (FieldToWrite& field : fields) {
        sources.push_back(field.source);
        ids.push_back(std::move(field.ids));
    }
    TWR_TRY(const std::uint64_t bytes_read, build_fields(*writer, sources, options, ids));
    // An interrupt during the last reads: whoever is told of it finds no new file.
    if (options.poll && !options.poll(bytes_read, bytes_read))
        return Error{ErrorCode::interrupted, "interrupted"};
    TWR_CHECK(durable ? writer->commit() : writer->finish_temporary());
    return bytes_read;
}

Result<StreamStats> build_in_memory(const FieldMetadata& field, ElementSource& source,
                                    const StreamOptions& options, BuiltField& into) try {
    TWR_CHECK(source.prepare());
    into.residues.resize(field.section_bytes(Section::residues));
    BuildJob job(field, source, worker_count(options), false, into.residues.data(), nullptr);
    TWR_TRY(const StreamStats stats, run_slices(job, options));
    job.digests.read(into);
    return stats;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of field '" + field.name + "'"};
}

}  // namespace twinrun
