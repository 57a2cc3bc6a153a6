// Metadata from data: digests, residues and checksums of one field, in one pass over its elements.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/unset_bytes.hpp"
#include "digest/sums.hpp"
#include "metadata/metadata.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"

namespace twinrun {

// The metadata of a field before its data is seen: settings and layout. Errors: a bad tolerance,
// chunk size or shape.
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
    std::string key;  // FieldMetadata::key
    // Exact digests of tokens, as earlier versions of the file had them: to be held against such.
    bool tokens = false;
};
Result<FieldMetadata> plan_field(FieldPlan plan);

// Digests all of `source` and writes the sections of field `field`; updates its counts in the
// writer's directory. The result does not depend on threads, memory or backend. A source on a
// device is digested there, and its data sums are left out: its bytes do not come to the host.
// ids: of the field's rows, for sums by ID; null: none.
Result<StreamStats> build_field(MetadataWriter& writer, std::size_t field, ElementSource& source,
                                const StreamOptions& options,
                                std::shared_ptr<const std::vector<std::uint64_t>> ids = nullptr);

// The same for all fields of the writer, from sources in their order; small ones that lie in memory
// or in files are divided over threads. The file is that of one build_field() after another. ids:
// of each field, or null. Returns the bytes read.
Result<std::uint64_t> build_fields(MetadataWriter& writer, std::span<ElementSource* const> sources,
                                   const StreamOptions& options,
                                   std::span<const std::shared_ptr<const std::vector<std::uint64_t>>> ids);

// A field to write metadata of. ids: of its rows, for sums by ID; null: none.
struct FieldToWrite {
    FieldPlan plan;
    ElementSource* source = nullptr;
    std::shared_ptr<const std::vector<std::uint64_t>> ids;
};

// Writes a metadata file for these fields, whose data lie elsewhere, in the place of one that is
// there; returns the bytes that were read. It is there whole or, with an error, as it was. facts:
// the directory without its fields. durable: false: the file need not survive a crash.
Result<std::uint64_t> write_metadata(FileSystem& system, const std::string& path, Directory facts,
                                     std::vector<FieldToWrite> fields, const StreamOptions& options,
                                     bool durable = true);

// The same as build_field for fields whose elements are on devices: fields numbers[i] from
// arrays[i], all in one go. data_sums: empty, to leave them out, or those of each field, as
// sum_data() makes them.
Result<> build_device_fields(MetadataWriter& writer, std::span<const std::size_t> numbers,
                             std::span<const DeviceArray* const> arrays,
                             std::span<std::vector<std::uint64_t>> data_sums = {});

// XXH3-64 of every 1 MiB of the field's element bytes, as Section::data_sums holds them.
Result<std::vector<std::uint64_t>> sum_data(const FieldMetadata& field, ElementSource& source,
                                            const StreamOptions& options);

// The first chunk of the global array that the field holds, if all its chunks are chunks of that
// array: then its digests are its sums by place.
std::optional<std::uint64_t> own_chunks(const FieldMetadata& field);

// What a part of a global array adds to the digests of the whole, where its own digests do not say.
struct BuiltSums {
    unsigned height = 0;
    std::vector<PartialSum> sums;
};

// Digests and residues of a field in memory.
struct BuiltField {
    std::vector<std::uint64_t> tree;
    std::vector<std::uint64_t> fine;
    UnsetBytes residues;
    ElementCounts counts;
    double largest = 0;  // FieldMetadata::largest_sampled
    std::optional<BuiltSums> sums;
};

// A field's slices: kSliceBytes of items each.
class FieldSlices {
   public:
    explicit FieldSlices(const FieldMetadata& field);  // which outlives this
    [[nodiscard]] const FieldMetadata& field() const { return *field_; }
    [[nodiscard]] std::uint64_t slices() const { return slices_; }
    [[nodiscard]] std::uint64_t first_item(std::uint64_t slice) const { return slice * items_per_slice_; }
    [[nodiscard]] std::uint64_t items(std::uint64_t slice) const;  // the last may have fewer
    // Where the slice's residues begin in their section, and how many they are; 0 where the
    // settings have none.
    [[nodiscard]] std::uint64_t residue_offset(std::uint64_t slice) const { return slice * residue_bytes_; }
    [[nodiscard]] std::size_t residue_bytes(std::uint64_t slice) const;

   private:
    const FieldMetadata* field_;
    std::uint64_t items_per_slice_;
    std::uint64_t slices_;
    std::size_t residue_bytes_;  // of a whole slice
};

// Digests of one field that are made slice by slice, in any order and from several threads: what
// build_field does at once.
class FieldDigests : public FieldSlices {
   public:
    // with_sums: data sums too. elsewhere: digests come by set(). ids: of the field's rows, for
    // sums by ID; null: none.
    explicit FieldDigests(const FieldMetadata& field, bool with_sums = true, bool elsewhere = false,
                          std::shared_ptr<const std::vector<std::uint64_t>> ids = nullptr);
    FieldDigests(FieldDigests&& other) noexcept;

    // The slice's items by `view`. residues: residue_bytes(slice) of them come here. Thread-safe
    // for different slices.
    void make(std::uint64_t slice, const ElementView& view, std::byte* residues);
    // The slice's data sum alone, for fields whose digests were made elsewhere.
    void sum(std::uint64_t slice, const ElementView& view);
    // Digests that were made elsewhere (on a device).
    void set(BuiltField built);
    // Those of the slice's chunks, once made.
    [[nodiscard]] std::span<const ChunkDigest> chunks(std::uint64_t slice) const;
    [[nodiscard]] std::uint64_t bytes() const;  // of memory

    // All slices were made: into, but for its residues.
    void read(BuiltField& into) const;
    // All slices were made: the sections but the residues, counts and largest_sampled go to the
    // writer's field.
    Result<> write(MetadataWriter& writer, std::size_t field);

   private:
    std::vector<ChunkDigest> digests_;
    std::vector<std::uint64_t> sums_;
    bool with_sums_;
    SumsFacts part_facts_;
    // Of a part of something larger, unless they follow from digests.
    std::optional<PartialSums> part_sums_;
    BuiltField built_;  // if it was made elsewhere
    bool elsewhere_ = false;
    std::mutex mutex_;  // of what follows
    ElementCounts counts_;
    double largest_ = 0;
};

// Digests and residues of a source in memory, for tests, benchmarks and small arrays. `into` keeps
// its memory from call to call.
Result<StreamStats> build_in_memory(const FieldMetadata& field, ElementSource& source,
                                    const StreamOptions& options, BuiltField& into);

}  // namespace twinrun
