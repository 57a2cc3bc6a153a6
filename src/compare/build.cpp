#include "compare/build.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "compare/device_build.hpp"
#include "compare/tuning.hpp"
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

using WriteResidues = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> bytes)>;

class BuildJob final : public SliceJob {
   public:
    // Residues go to memory at `residues`, or slice by slice to `write`.
    BuildJob(const FieldMetadata& field, ElementSource& source, int workers, bool with_sums,
             std::byte* residues, WriteResidues write)
        : field_(field),
          source_(source),
          with_sums_(with_sums),
          all_residues_(residues),
          write_(std::move(write)) {
        const ChunkShape shape = field.chunking();
        items_per_slice_ = kSliceBytes / item_bytes(field.dtype);
        slices_ = divide_up(field.items(), items_per_slice_);
        residue_bytes_ = kSliceBytes / field.settings.chunk_bytes * shape.residue_bytes_per_chunk;
        digests.resize(field.chunks());
        if (with_sums) sums.resize(slices_);
        for (int w = 0; w < workers; ++w) {
            workers_.push_back(std::make_unique<Worker>(field));
            if (residues == nullptr) workers_.back()->residues.resize(residue_bytes_);
        }
    }
    [[nodiscard]] std::uint64_t slices() const override { return slices_; }
    [[nodiscard]] std::size_t buffer_bytes() const override {
        return source_.buffer_bytes(std::min(items_per_slice_, field_.items()));
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return field_.data_bytes(); }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        return source_.plan(slice * items_per_slice_, count(slice), buffer, requests);
    }
    Result<> process(std::uint64_t slice, std::byte* buffer, int worker) override {
        Worker& mine = *workers_[static_cast<std::size_t>(worker)];
        const std::uint64_t items = count(slice);
        const ElementView view = source_.view(slice * items_per_slice_, items, buffer);
        const std::uint64_t scalars = items * view.pair;
        const std::uint64_t first_chunk = slice * (kSliceBytes / field_.settings.chunk_bytes);
        const unsigned bits = field_.settings.rule.residue_bits;
        std::byte* residues =
            all_residues_ != nullptr ? all_residues_ + slice * residue_bytes_ : mine.residues.data();
        mine.digester.chunks(view, 0, scalars, &digests[first_chunk], bits != 0 ? residues : nullptr,
                             &mine.counts);
        if (with_sums_) sums[slice] = data_sum(view, items);
        mine.largest = std::max(mine.largest, sample_largest(view, scalars));
        if (bits == 0 || all_residues_ != nullptr) return success();
        const std::size_t whole = scalars / mine.digester.shape().chunk_scalars;
        const std::size_t rest = scalars % mine.digester.shape().chunk_scalars;
        const std::size_t bytes = whole * mine.digester.shape().residue_bytes_per_chunk +
                                  chunk_residue_bytes(scalar_type(field_.dtype), rest, bits);
        return write_(slice * residue_bytes_, {mine.residues.data(), bytes});
    }
    [[nodiscard]] ElementCounts counts() const {
        ElementCounts all;
        for (const auto& w : workers_)
            all.add(w->counts);
        return all;
    }
    [[nodiscard]] double largest() const {
        double all = 0;
        for (const auto& w : workers_)
            all = std::max(all, w->largest);
        return all;
    }

    std::vector<ChunkDigest> digests;
    std::vector<std::uint64_t> sums;

   private:
    struct Worker {
        explicit Worker(const FieldMetadata& field) : digester(field.settings, scalar_type(field.dtype)) {}
        Digester digester;
        std::vector<std::byte> residues;
        ElementCounts counts;
        double largest = 0;
    };
    [[nodiscard]] std::uint64_t count(std::uint64_t slice) const {
        return std::min(items_per_slice_, field_.items() - slice * items_per_slice_);
    }
    const FieldMetadata& field_;
    ElementSource& source_;
    std::uint64_t items_per_slice_ = 0;
    std::uint64_t slices_ = 0;
    std::size_t residue_bytes_ = 0;
    bool with_sums_;
    std::byte* all_residues_;
    WriteResidues write_;
    std::vector<std::unique_ptr<Worker>> workers_;
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
    if (plan.kind == DigestKind::published && plan.tolerance.rtol != 0) {
        return invalid("published digests know no relative tolerance");
    }
    FieldMetadata field;
    auto rule = cell_rule(plan.tolerance, plan.residue_bits);
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
    return field;
}

Result<StreamStats> build_field(MetadataWriter& writer, std::size_t number, ElementSource& source,
                                const StreamOptions& options) try {
    FieldMetadata& field = writer.directory().fields[number];
    TWR_CHECK(source.prepare());
    if (const DeviceArray* array = source.device_array(); array != nullptr) {
        TWR_CHECK(build_device_fields(writer, {&number, 1}, {&array, 1}));
        StreamStats stats;
        stats.io = "device";
        return stats;
    }
    BuildJob job(field, source, worker_count(options), true, nullptr,
                 [&](std::uint64_t offset, std::span<const std::byte> bytes) {
                     return writer.write(number, Section::residues, offset, bytes);
                 });
    TWR_TRY(const StreamStats stats, run_slices(job, options));
    field.counts = job.counts();
    field.largest_sampled = job.largest();
    std::vector<std::uint64_t> tree = tree_of(field, job.digests);
    std::vector<std::uint64_t> fine = fine_of(field, job.digests);
    TWR_CHECK(writer.write(number, Section::tree, 0, little_endian_bytes(tree)));
    TWR_CHECK(writer.write(number, Section::fine, 0, little_endian_bytes(fine)));
    TWR_CHECK(writer.write(number, Section::data_sums, 0, little_endian_bytes(job.sums)));
    return stats;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of field '" +
                                               writer.directory().fields[number].name +
                                               "': use larger chunks"};
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

Result<StreamStats> build_in_memory(const FieldMetadata& field, ElementSource& source,
                                    const StreamOptions& options, BuiltField& into) try {
    TWR_CHECK(source.prepare());
    into.residues.resize(field.section_bytes(Section::residues));
    BuildJob job(field, source, worker_count(options), false, into.residues.data(), nullptr);
    TWR_TRY(const StreamStats stats, run_slices(job, options));
    into.tree = tree_of(field, job.digests);
    into.fine = fine_of(field, job.digests);
    into.counts = job.counts();
    into.largest = job.largest();
    return stats;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of field '" + field.name + "'"};
}

}  // namespace twinrun
