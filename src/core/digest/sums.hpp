// Sums of digests: what a part of an array adds to the digests of the whole, whoever holds the
// other parts.
//
// Digests are linear, so the digest of a chunk is the sum of what its scalars contribute, in any
// order and from any number of ranks. A part's scalars have indices in the whole array: by the
// part's place in the global array, or, for particles, by ID (the row with ID i begins at scalar i
// * stride; stride is the row's scalars rounded up to a power of two, so that no row lies across
// chunks). Buckets are aligned stretches of 2^height chunks of the whole array. Added up over all
// parts, a bucket's sums are the node of the whole array's tree at that height, of fine and of
// coarse digests, as if the array went on with scalars that contribute nothing (spec/digest.md,
// section 11).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "digest/digest.hpp"

namespace twinrun {

// The share of one part in the digests of a bucket of the whole array.
struct PartialSum {
    std::uint64_t bucket = 0;  // index: its first scalar is bucket * 2^height * scalars of a chunk
    std::uint64_t coarse = 0;
    std::uint64_t fine = 0;
    bool operator==(const PartialSum&) const = default;
};
inline constexpr std::size_t kPartialSumBytes = 24;
// Sums are not kept where they take more of the data's bytes than this share; a field smaller than
// a block counts as one.
inline constexpr std::uint64_t kLargestSumsShare = 8;
[[nodiscard]] constexpr std::uint64_t largest_sums_bytes(std::uint64_t data_bytes) {
    return (data_bytes < kBlockBytes ? kBlockBytes : data_bytes) / kLargestSumsShare;
}
// Weights of a bucket are in memory if there are at most this many.
inline constexpr std::size_t kLargestSumsTable = 1 << 13;
inline constexpr std::uint64_t kIndexLimit = 1ULL << 62;  // of scalars in the whole array

// Where a part's scalars lie in the whole array: rows of as many consecutive scalars each.
// Immutable.
class RowPlacement {
   public:
    // A box. Shapes in items, slowest dimension first, of one length; the box lies inside. Empty:
    // too large.
    static std::optional<RowPlacement> of_box(std::span<const std::uint64_t> shape,
                                              std::span<const std::uint64_t> global_shape,
                                              std::span<const std::uint64_t> global_offset,
                                              std::uint64_t scalars_per_item);
    // Rows by ID. Empty: an ID, or what it leads to, is too large.
    static std::optional<RowPlacement> of_ids(std::vector<std::uint64_t> ids, std::uint64_t row_scalars);
    static std::optional<RowPlacement> of_ids(std::shared_ptr<const std::vector<std::uint64_t>> ids,
                                              std::uint64_t row_scalars);

    [[nodiscard]] std::uint64_t rows() const { return rows_; }
    [[nodiscard]] std::uint64_t row_scalars() const { return row_scalars_; }
    [[nodiscard]] std::uint64_t scalars() const { return rows_ * row_scalars_; }
    // Index of a row's first scalar in the whole array.
    [[nodiscard]] std::uint64_t start(std::uint64_t row) const;
    [[nodiscard]] bool by_id() const { return by_id_; }
    // The axes of a box that number rows, fastest first: extent, and scalars of the whole array
    // from one to the next.
    struct Axis {
        std::uint64_t extent;
        std::uint64_t stride;
    };
    [[nodiscard]] std::span<const Axis> axes() const { return axes_; }
    [[nodiscard]] std::uint64_t base() const { return base_; }  // index of the box's first scalar

    // Rows one after another, at the cost of an addition each.
    class Walk {
       public:
        Walk(const RowPlacement& rows, std::uint64_t row);
        [[nodiscard]] std::uint64_t start() const { return start_; }
        void next();

       private:
        const RowPlacement& rows_;
        std::uint64_t row_;
        std::uint64_t start_ = 0;
        std::vector<std::uint64_t> index_;  // of a box, fastest axis first
    };

   private:
    RowPlacement() = default;
    std::uint64_t rows_ = 0;
    std::uint64_t row_scalars_ = 0;
    bool by_id_ = false;
    std::shared_ptr<const std::vector<std::uint64_t>> ids_;  // of several fields, most often
    std::uint64_t id_stride_ = 0;
    std::vector<Axis> axes_;
    std::uint64_t base_ = 0;
};

// Scalars from one ID's row to the next.
[[nodiscard]] std::uint64_t id_stride(std::uint64_t row_scalars);

// Adds up a part. add() may be called from several threads, for disjoint stretches of the part.
class PartialSums {
   public:
    // Nothing: the digests are published ones, or so few scalars lie in each bucket that sums would
    // cost more than an eighth of the data. The height is the smallest whose sums take a 64th of
    // the data, or the largest there is. adds: false: all is added up elsewhere.
    static std::optional<PartialSums> plan(const DigestSettings& settings, DType scalar,
                                           std::shared_ptr<const RowPlacement> placement, bool adds = true);
    PartialSums(PartialSums&&) noexcept = default;
    PartialSums& operator=(PartialSums&&) noexcept = default;

    [[nodiscard]] unsigned height() const { return height_; }
    [[nodiscard]] std::size_t count() const { return buckets_.size(); }
    [[nodiscard]] std::uint64_t bytes() const;  // of memory
    [[nodiscard]] const RowPlacement& placement() const { return *placement_; }
    [[nodiscard]] std::uint64_t bucket_scalars() const { return std::uint64_t{1} << bucket_bits_; }
    [[nodiscard]] std::span<const std::uint64_t> buckets() const { return buckets_; }

    // Scalars [first, first + count) of the part, which are scalars [0, count) of the view.
    void add(const ElementView& view, std::uint64_t first, std::uint64_t count);
    // All was added: the sums by ascending bucket.
    [[nodiscard]] std::vector<PartialSum> finish() const;
    // The sums that were added up elsewhere (on a device), as halves_ holds them: four words a
    // bucket.
    [[nodiscard]] std::vector<PartialSum> finish(std::span<const std::uint64_t> halves) const;

   private:
    PartialSums(const DigestSettings& settings, DType scalar, std::shared_ptr<const RowPlacement> placement);
    struct Accumulator;
    void add_some(const std::int64_t* fine, const std::int64_t* coarse, std::uint64_t index, std::size_t n,
                  Accumulator& to) const;
    [[nodiscard]] std::size_t slot_of(std::uint64_t bucket) const;
    void flush(Accumulator& from);

    DigestSettings settings_;
    DType scalar_;
    ChunkShape shape_;
    std::shared_ptr<const RowPlacement> placement_;
    unsigned height_ = 0;
    unsigned block_bits_ = 0;  // scalars of a block, and of a bucket, are powers of two
    unsigned bucket_bits_ = 0;
    std::vector<std::uint64_t> factors_;  // RHO^k, k blocks behind
    std::vector<std::uint64_t> weights_;  // of a bucket's scalars; empty: too many for a table
    std::vector<std::uint64_t> buckets_;  // touched, ascending
    // Where those are close together: of each from the first on.
    std::vector<std::uint32_t> slots_;
    // Low and high halves of the sums, which 2^32 additions cannot overflow: {coarse low, high,
    // fine low, high} a bucket.
    std::unique_ptr<std::atomic<std::uint64_t>[]> halves_;
};

// Sums of parts at several heights, added up to one list at `height`, none of them higher.
// blocks_per_chunk: of the digests.
struct SumsOfPart {
    std::span<const PartialSum> sums;
    unsigned height = 0;
};
[[nodiscard]] std::vector<PartialSum> add_sums(std::span<const SumsOfPart> parts, unsigned height,
                                               std::size_t blocks_per_chunk);
// The digests of all chunks of an array that one rank holds, as sums of height 0. fine: empty where
// coarse digests are the fine ones. scalars: of the array.
[[nodiscard]] std::vector<PartialSum> sums_of_whole(std::span<const std::uint64_t> coarse,
                                                    std::span<const std::uint64_t> fine,
                                                    std::uint64_t scalars, const ChunkShape& shape);

// The verdict of the residues of two runs about a bucket.
struct BucketResidues {
    std::uint64_t bucket = 0;
    std::uint64_t correction = 0;  // what the fine sums must differ by
    std::uint64_t beyond = 0;      // scalars without an estimate
    std::array<std::uint64_t, 8> counts{};
};
// Rows of scalars with a residue each, one a byte, of both runs. starts: index of each row's first
// scalar in the whole array; no row lies across buckets. Rows of one bucket may come anywhere;
// buckets are returned in ascending order.
[[nodiscard]] std::vector<BucketResidues> compare_residues(std::span<const std::uint64_t> starts,
                                                           std::uint64_t row_scalars,
                                                           std::span<const std::uint8_t> a,
                                                           std::span<const std::uint8_t> b, unsigned bits,
                                                           const ChunkShape& shape, unsigned height);

// Copies rows of the same size to where they begin in an array. starts: in items.
void scatter_rows(std::span<const std::byte> rows, std::span<const std::uint64_t> starts,
                  std::size_t row_bytes, std::size_t item_bytes, std::byte* to);

// Residues of scalars [first, first + count) of an array, one a byte, from those of whole blocks:
// `lines` begins with the block that holds `first`.
void unpack_residues(std::span<const std::byte> lines, std::uint64_t first, std::uint64_t count,
                     unsigned bits, const ChunkShape& shape, std::uint8_t* to);

}  // namespace twinrun
