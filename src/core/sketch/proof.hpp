// What the digests and residues of two runs prove: that all elements of a chunk agree within a
// tolerance, and how far apart they can be at most. Everything that compares metadata decides here:
// comparisons of files, sketches in memory, online references, sums of digests. Only the kernel for
// devices has a copy of what residues prove, and tests hold it to this one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "difference/difference.hpp"
#include "digest/digest_device.hpp"
#include "metadata/metadata.hpp"
#include "tree/walk.hpp"

namespace twinrun {

enum class Method : std::uint8_t {
    automatic,  // staged where both sides have metadata that can prove agreement, else direct
    staged,
    direct,     // every element
    published,  // the tree of published digests, then elements
};

// Why the metadata of two fields cannot be compared by this method under this tolerance; empty:
// they can.
std::string why_not_staged(const FieldMetadata& a, const FieldMetadata& b, Method method,
                           const DifferenceRule& rule);

// Whether digests of this field that differ prove that values differ: exact ones do, for equal
// values have equal ones. Those of the published kind do not: they see the sign of a zero.
// field: of either run; why_not_staged has nothing against the two.
[[nodiscard]] bool digests_decide(const FieldMetadata& field, const DifferenceRule& rule);

// What is known of scalars that were proven equal without being read.
struct ProvenDrift {
    std::uint64_t by_tree = 0;  // scalars in chunks with equal coarse digests
    // Scalars proven by residues, by |c|: |a - b| lies within (|c| +- 1) cell.
    std::array<std::uint64_t, 8> by_cells{};
    // Width of the fine cell; 0: it is none in x; -1: equal values were proven.
    double cell = 0;
    double coarse_cell = 0;  // width of the coarse cell, of an absolute rule; else 0

    void add(std::span<const std::uint64_t, 8> counts);
    [[nodiscard]] std::uint64_t scalars() const;
};

// An upper bound of |a - b| over the proven scalars; NaN: none is known. required: the tolerance
// that they were proven under.
[[nodiscard]] double largest_unread(const ProvenDrift& proven, const Tolerance& required);
// A lower bound of the largest |a - b| over the proven scalars.
[[nodiscard]] double least_unread(const ProvenDrift& proven);
// The sum of the squares of |a - b|: of what was read, with what those of the proven scalars do not
// exceed; NaN: no bound is known.
[[nodiscard]] double sum_squares_of_all(double read, const ProvenDrift& proven, const Tolerance& required);

// The largest |a - b| of all scalars: itself where it was read, else what none exceeds (NaN: no
// bound is known).
struct LargestOfAll {
    double value = 0;
    bool is_bound = false;
};
// Of the largest that was read and largest_unread() of the rest.
[[nodiscard]] LargestOfAll largest_of_all(double read, double unread);

// How the digests and residues of a field of two runs prove its chunks.
//
//   by_tree()      equal digests prove a chunk, and equal nodes of the tree all chunks below them
//   by_residues()  residues that explain by how much fine digests differ prove a chunk that the
//                  tree leaves open
//
// A chunk that neither proves is open: its elements decide.
class ChunkProof {
   public:
    // field: of either run; why_not_staged has nothing against the two. Of metadata that cannot
    // prove this, nothing is proven.
    ChunkProof(const FieldMetadata& field, const Tolerance& required);
    // The same, of two fields that may not go together. Errors: mismatch, with the reason.
    static Result<ChunkProof> between(const FieldMetadata& a, const FieldMetadata& b,
                                      const DifferenceRule& rule);

    [[nodiscard]] bool by_tree() const { return by_tree_; }
    [[nodiscard]] bool by_residues() const { return by_residues_; }
    [[nodiscard]] std::int32_t widest() const { return widest_; }  // |c| that proves; -1: none does
    [[nodiscard]] const ChunkShape& shape() const { return shape_; }

    // Scalars of chunks of the field: the last one may be short.
    [[nodiscard]] std::uint64_t scalars(std::uint64_t chunk) const {
        return scalars(Range{chunk, chunk + 1});
    }
    [[nodiscard]] std::uint64_t scalars(const Range& chunks) const;
    [[nodiscard]] std::uint64_t scalars(std::span<const Range> chunks) const;

    // Whether the digests alone prove a chunk. Walking the trees of both runs leaves open what this
    // does, but for hashing.
    [[nodiscard]] bool digests_prove(const ChunkDigest& a, const ChunkDigest& b) const;
    // What fine digests and residues say of a chunk. residues: its own, of each run.
    [[nodiscard]] SketchVerdict residues_say(std::uint64_t chunk, std::uint64_t fine_a, std::uint64_t fine_b,
                                             const std::byte* residues_a, const std::byte* residues_b) const;
    // The same of a bucket of sums, whose residues were brought into one order.
    [[nodiscard]] SketchVerdict residues_say(const BucketResidues& residues, std::uint64_t fine_a,
                                             std::uint64_t fine_b) const;
    // The kernel's item for residues_say of these consecutive chunks; where they lie is the
    // caller's to add.
    [[nodiscard]] DeviceSketchItem device_item(const Range& chunks) const;

    // Nothing proven so far: the widths of cells.
    [[nodiscard]] ProvenDrift drift() const;

   private:
    bool published_;
    bool by_tree_ = false;
    bool by_residues_ = false;
    std::int32_t widest_ = -1;
    CellRule rule_;
    DType scalar_;
    std::uint32_t chunk_bytes_;
    ChunkShape shape_;
    std::uint64_t scalars_;
    const DigestKernels* kernels_;
};

// The digest of a chunk, from the leaves of a field's tree and its fine digests, which may be
// empty.
[[nodiscard]] ChunkDigest chunk_digest(DigestKind kind, std::span<const std::uint64_t> leaves,
                                       std::span<const std::uint64_t> fine, std::uint64_t chunk);

}  // namespace twinrun
