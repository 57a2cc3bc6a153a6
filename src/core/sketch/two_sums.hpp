// Sums of digests of one field of two runs, over all parts of both: which buckets of the whole
// array they prove, however the runs cut the array or order its rows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "digest/sums.hpp"
#include "metadata/metadata.hpp"
#include "sketch/proof.hpp"
#include "tree/walk.hpp"

namespace twinrun {

// What a part adds to the digests of the whole array, by ascending bucket of 2^height chunks.
struct BucketSums {
    std::vector<PartialSum> sums;
    unsigned height = 0;
};

// A field's own sums, or, if `whole`, those of a field that is a whole array: the digests of its
// chunks. Errors: damaged, unsupported (published digests do not add up).
Result<BucketSums> read_sums(MetadataFile& file, std::size_t field, bool whole);

// Equal coarse sums prove a bucket, and so do residues that explain by how much the fine sums
// differ. What neither proves is open: its elements decide.
class TwoSums {
   public:
    // field: of either run; why_not_staged has nothing against any two of the parts. of_a, of_b: of
    // all parts of each run.
    TwoSums(const FieldMetadata& field, const Tolerance& wanted, std::span<const SumsOfPart> of_a,
            std::span<const SumsOfPart> of_b);

    [[nodiscard]] unsigned height() const { return height_; }
    [[nodiscard]] std::uint64_t bucket_scalars() const { return shape_.chunk_scalars << height_; }
    [[nodiscard]] const Tolerance& wanted() const { return wanted_; }

    // Buckets of which a run has sums, ascending; and of each whether it is open.
    [[nodiscard]] std::span<const std::uint64_t> buckets() const { return buckets_; }
    [[nodiscard]] std::span<const std::uint8_t> open() const { return open_; }
    [[nodiscard]] std::uint64_t count_open() const;
    // Scalars of open buckets: maximal ranges, of an array of so many scalars.
    [[nodiscard]] std::vector<Range> open_scalars(std::uint64_t scalars) const;
    // Buckets that are compared: all, or those that were kept.
    [[nodiscard]] std::uint64_t count() const { return count_; }
    // Compares only the buckets that hold these scalars.
    void keep(std::span<const Range> scalars);

    // Positions in buckets(). Nothing where a run has no sums of one of them: the metadata does not
    // fit its data.
    [[nodiscard]] std::optional<std::vector<std::uint64_t>> at(std::span<const std::uint64_t> wanted) const;

    // Whether residues can prove open buckets.
    [[nodiscard]] bool residues_help() const { return bits_ != 0 && proof_.widest() >= 1; }
    // Takes the residues of all rows of some buckets, as compare_residues does, and closes the
    // buckets that they prove. False where a run has no sums of such a bucket; nothing is closed
    // then.
    [[nodiscard]] bool settle(std::span<const std::uint64_t> starts, std::uint64_t row_scalars,
                              std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);
    // Of the fine sums and residues of one bucket.
    [[nodiscard]] SketchVerdict says(const BucketResidues& residues, std::size_t at) const {
        return proof_.residues_say(residues, fine_[0][at], fine_[1][at]);
    }

    // Both runs have sums of every bucket.
    [[nodiscard]] bool held_by_both() const;
    // Both runs have the same sums of every bucket.
    [[nodiscard]] bool identical() const;
    // These parts add up to the fine sums of the first run.
    [[nodiscard]] bool is_sum_of(std::span<const SumsOfPart> parts) const;

    // What was proven. by_tree: scalars in buckets with equal coarse sums, which the caller counts.
    [[nodiscard]] ProvenDrift proven(std::uint64_t by_tree) const;

   private:
    Tolerance wanted_;
    ChunkProof proof_;
    ChunkShape shape_;
    unsigned bits_;
    unsigned height_ = 0;
    std::vector<std::uint64_t> buckets_;
    // Of each bucket, 0 where a run has none.
    std::array<std::vector<std::uint64_t>, 2> coarse_, fine_;
    std::array<std::vector<std::uint8_t>, 2> held_;
    std::vector<std::uint8_t> open_;
    std::uint64_t count_ = 0;
    std::array<std::uint64_t, 8> by_cells_{};
};

}  // namespace twinrun
