// Metadata from data: digests, residues and checksums of one field, in one pass over its elements.
#pragma once

#include "compare/source.hpp"
#include "compare/stream.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

// The metadata of a field before its data is seen: settings and layout. Errors: a bad tolerance, chunk size or shape.
struct FieldPlan {
    std::string name;
    DType dtype = DType::f32;
    ByteOrder byte_order = ByteOrder::little;
    ArrayOrder order = ArrayOrder::row_major;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> global_shape;
    std::vector<std::uint64_t> global_offset;
    Tolerance tolerance;
    unsigned residue_bits = 4;
    std::uint32_t chunk_bytes = kSmallestChunk;
    DigestKind kind = DigestKind::linear;
    std::vector<Extent> extents;
    std::string format;
};
Result<FieldMetadata> plan_field(FieldPlan plan);

// Digests all of `source` and writes the sections of field `field`; updates its counts in the writer's directory. The
// result does not depend on threads, memory or backend. A source on a device is digested there, and its data sums are left
// out: its bytes do not come to the host.
Result<StreamStats> build_field(MetadataWriter& writer, std::size_t field, ElementSource& source,
                                const StreamOptions& options);

// The same for fields whose elements are on devices: fields numbers[i] from arrays[i], all in one go. data_sums: empty, to
// leave them out, or those of each field, as sum_data() makes them.
Result<> build_device_fields(MetadataWriter& writer, std::span<const std::size_t> numbers,
                             std::span<const DeviceArray* const> arrays,
                             std::span<std::vector<std::uint64_t>> data_sums = {});

// XXH3-64 of every 1 MiB of the field's element bytes, as Section::data_sums holds them.
Result<std::vector<std::uint64_t>> sum_data(const FieldMetadata& field, ElementSource& source,
                                            const StreamOptions& options);

// Digests and residues of a source in memory, for tests, benchmarks and small arrays. `into` keeps its memory from call to
// call.
struct BuiltField {
    std::vector<std::uint64_t> tree;
    std::vector<std::uint64_t> fine;
    std::vector<std::byte> residues;
    ElementCounts counts;
    double largest = 0;  // FieldMetadata::largest_sampled
};
Result<StreamStats> build_in_memory(const FieldMetadata& field, ElementSource& source,
                                    const StreamOptions& options, BuiltField& into);

}  // namespace twinrun
