// Online comparison: a step that is being captured, against the same step of a reference history. Only the reference's
// metadata is read: digests of chunks, and residues where those differ.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"
#include "sketch/proof.hpp"

namespace twinrun {

// Where a step is not proven equal to the reference.
struct Divergence {
    std::int64_t step = 0;
    int rank = 0;
    std::string field;             // the first, in the order of capture
    std::uint64_t first_item = 0;  // of the flattened field: the first such chunk begins here
    std::uint64_t chunks = 0;      // of this field that are not proven equal
    std::uint64_t chunks_in_all = 0;
    std::uint64_t fields = 0;  // of the step that are not proven equal
    std::string
        reason;  // if it could not be compared: another shape, a field or rank that one of the runs lacks
};

// "x from item 4096 on: 3 of 12 chunks are not proven equal (2 fields)".
std::string describe(const Divergence& divergence);

// The comparison of one step. Thread-safe.
class StepCheck {
   public:
    // metadata: the reference's; null: why_not says why there is none. fields outlive this.
    StepCheck(std::shared_ptr<MetadataFile> metadata, std::string why_not, std::int64_t step, int rank,
              const std::vector<FieldMetadata>& fields);
    // A slice of a field as FieldDigests made it, and its residues. What the reference's storage refuses is not proven equal.
    Result<> slice(std::size_t field, const FieldSlices& slices, std::uint64_t slice,
                   std::span<const ChunkDigest> digests, const std::byte* residues);
    // A whole field that was digested elsewhere.
    Result<> whole(std::size_t field, const BuiltField& built);
    // All fields were given.
    [[nodiscard]] std::optional<Divergence> result() const;

   private:
    struct Field {
        std::optional<std::size_t> number;  // in the reference
        std::string why_not;
        std::optional<ChunkProof> proof;  // where there is no such reason
        std::once_flag loaded;
        std::optional<Error> failure;       // of loading
        std::string unread;                 // why a part of the reference could not be read
        std::vector<std::uint64_t> leaves;  // nodes of chunks
        std::vector<std::uint64_t> fine;
        std::uint64_t open = 0;  // chunks not proven equal
        std::uint64_t first = UINT64_MAX;
    };
    void load(Field& field);
    void unread(Field& field, const Error& error);
    std::shared_ptr<MetadataFile> metadata_;
    std::string why_not_;
    std::int64_t step_;
    int rank_;
    const std::vector<FieldMetadata>& fields_;
    std::vector<std::unique_ptr<Field>> checks_;
    std::vector<const FieldMetadata*> missing_;  // of the reference, which this run did not capture
    mutable std::mutex mutex_;
};

// A history that another run left, or is still writing. Thread-safe after open.
class Reference {
   public:
    // Errors: not a history; captured by another number of ranks.
    static Result<std::unique_ptr<Reference>> open(const std::string& path, std::uint32_t rank,
                                                   std::uint32_t ranks);
    // Null: the reference has no such step, and there is nothing to compare with. Where the reference cannot be read, nothing is
    // proven equal. Throws std::bad_alloc.
    std::unique_ptr<StepCheck> check(std::int64_t step, const std::vector<FieldMetadata>& fields) const;

   private:
    History history_;
    std::uint32_t rank_ = 0;
};

}  // namespace twinrun
