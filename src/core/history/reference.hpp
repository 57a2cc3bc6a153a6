// Online comparison: compares a step with the same step of a reference history while it is
// captured. Of the reference only metadata is read: digests of chunks, and residues of chunks whose
// digests differ.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/once.hpp"
#include "history/history.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"
#include "sketch/proof.hpp"

namespace twinrun {

// Where a step is not proven equal to the reference.
struct Divergence {
    std::int64_t step = 0;
    int rank = 0;
    // The first one that is not proven equal, in the order of capture.
    std::string field;
    std::uint64_t first_item = 0;  // where its first unproven chunk begins, in the flattened field
    std::uint64_t chunks = 0;      // unproven chunks of this field
    std::uint64_t chunks_in_all = 0;
    std::uint64_t fields = 0;  // unproven fields of the step
    // Why this field could not be compared: another shape, a field that one of the runs lacks, an
    // unreadable reference. Empty: it was compared.
    std::string reason;
};

// Text for users: "x from item 4096 on: 3 of 12 chunks are not proven equal (2 fields)".
std::string describe(const Divergence& divergence);

// The comparison of one step. Owned by the step. Thread-safe: slices may come from several threads,
// in any order.
class StepCheck {
   public:
    // metadata: of the reference; null: why_not says why there is none. fields: of this run;
    // outlive this.
    StepCheck(std::shared_ptr<MetadataFile> metadata, std::string why_not, std::int64_t step, int rank,
              const std::vector<FieldMetadata>& fields);
    // Compares a slice of a field. digests and residues: as FieldDigests made them. If the
    // reference cannot be read, the field is not proven equal; that is not an error. Error:
    // out_of_memory.
    Result<> slice(std::size_t field, const FieldSlices& slices, std::uint64_t slice,
                   std::span<const ChunkDigest> digests, const std::byte* residues);
    // Compares a whole field, which was digested on a device.
    Result<> whole(std::size_t field, const BuiltField& built);
    // The result, once all slices of all fields were compared. nullopt: the step is proven equal.
    [[nodiscard]] std::optional<Divergence> result() const;

   private:
    struct Field {
        std::optional<std::size_t> number;  // in the reference; nullopt: it has no such field
        std::string why_not;                // why the field cannot be compared; empty: it can
        std::optional<ChunkProof> proof;    // set if why_not is empty
        Once loaded;
        std::optional<Error> failure;       // of load()
        std::string unread;                 // why a part of the reference could not be read
        std::vector<std::uint64_t> leaves;  // the reference's digests of chunks
        std::vector<std::uint64_t> fine;
        std::uint64_t open = 0;            // chunks that are not proven equal
        std::uint64_t first = UINT64_MAX;  // the first one of them
    };
    void load(Field& field);
    void unread(Field& field, const Error& error);
    std::shared_ptr<MetadataFile> metadata_;
    std::string why_not_;
    std::int64_t step_;
    int rank_;
    const std::vector<FieldMetadata>& fields_;
    std::vector<std::unique_ptr<Field>> checks_;
    // Fields of the reference that this run did not capture.
    std::vector<const FieldMetadata*> missing_;
    mutable std::mutex mutex_;  // protects open, first and unread of all fields
};

// The history of another run, which may still be writing it. Owned by a session. Thread-safe after
// open().
class Reference {
   public:
    // Errors: those of History::open(); mismatch: another number of ranks.
    static Result<std::unique_ptr<Reference>> open(const std::string& path, std::uint32_t rank,
                                                   std::uint32_t ranks);
    // Which exact digests of its first steps, up to 16 that can be read, are tokens: those of this
    // run have to be, too.
    [[nodiscard]] Tokens tokens() const;
    // The comparison of a step. null: the reference had no such step when it was opened: the step
    // is not compared. If the step cannot be read, no field will be proven equal. fields outlive
    // the result. Called by one thread at a time. Throws std::bad_alloc.
    std::unique_ptr<StepCheck> check(std::int64_t step, const std::vector<FieldMetadata>& fields) const;

   private:
    Result<std::shared_ptr<MetadataFile>> open_step(const HistoryStep& step) const;

    History history_;
    std::uint32_t rank_ = 0;
    // The reference's record, once a step was found to have its residues there.
    mutable std::shared_ptr<RecordStore> record_;
};

}  // namespace twinrun
