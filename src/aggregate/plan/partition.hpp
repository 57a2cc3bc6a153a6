// All ranks' data of one file: who has what, how it is cut into partitions and windows, and which bytes two ranks both claim.
// Every rank computes the same from the same table. No MPI, no I/O.
//
// A partition is a range of the file that one aggregator carries. Its data goes in windows, consecutive ranges as large as a
// buffer; a window without data is left out. Dense stretches that are large enough are direct: the rank that has them writes them
// itself, and no window counts them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "aggregate/plan/placement.hpp"

namespace twinrun {

struct OwnedSet {
    StridedSet set;
    std::uint32_t rank = 0;
};

// What all ranks declared.
class FileTable {
   public:
    FileTable() = default;
    explicit FileTable(std::vector<OwnedSet> sets);

    [[nodiscard]] const std::vector<OwnedSet>& sets() const { return sets_; }  // ascending by offset
    [[nodiscard]] Range span() const {
        return span_;
    }  // the first byte that is declared, the end of the last; 0, 0: none
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] bool gapless() const { return bytes_ == span_.bytes(); }
    [[nodiscard]] std::uint64_t bytes_within(Range range) const;

   private:
    std::vector<OwnedSet> sets_;
    Range span_;
    std::uint64_t bytes_ = 0;
};

// Consecutive ranges with about the same number of declared bytes, which begin and end at multiples of the block, but for the
// first begin and the last end. Fewer than asked for where there are not so many blocks; none without data.
[[nodiscard]] std::vector<Range> make_partitions(const FileTable& table, std::uint64_t wanted,
                                                 std::uint64_t block);

// How many aggregators a file gets when nobody says: enough for the volume, not more than a few a node.
[[nodiscard]] std::uint64_t default_aggregators(std::uint64_t bytes, std::uint64_t nodes,
                                                std::uint64_t ranks);

// What each rank brings to a partition; ascending, none empty. node_of: of each rank.
[[nodiscard]] std::vector<Contribution> contributions_to(const FileTable& table, Range partition,
                                                         std::span<const std::uint32_t> node_of);

struct Overlap {
    std::uint32_t ranks[2] = {
        0, 0};  // the lower one first; the same twice: not found here (rank_sets refuses it)
    std::uint64_t offset = 0;
};
// A byte of the range that two ranks claim: one of the first two sets that meet.
[[nodiscard]] std::optional<Overlap> find_overlap(const FileTable& table, Range range);

// Which stretches their ranks write themselves.
struct DirectRule {
    std::uint64_t least_bytes = UINT64_MAX;  // of a stretch; UINT64_MAX: none
    std::uint64_t alignment = 1;             // of its begin and its end
};
[[nodiscard]] std::optional<Range> direct_part(const StridedSet& set, const DirectRule& rule);

struct Window {
    Range range;
    Range data;               // from the first byte that is gathered to the end of the last one
    std::uint64_t bytes = 0;  // that are gathered
};

// A partition as its aggregator and its members go through it.
class PartitionPlan {
   public:
    PartitionPlan() = default;
    PartitionPlan(const FileTable& table, Range partition, const DirectRule& rule, std::uint64_t buffer_bytes,
                  std::uint64_t block);

    [[nodiscard]] const std::vector<Window>& windows() const { return windows_; }
    // Ranks with data in a window, ascending.
    [[nodiscard]] std::vector<std::uint32_t> ranks_of(const Window& window) const;
    // Ranges to be written from a window's buffer, ascending. exact: gathered bytes and no other. Otherwise small holes, which
    // nobody has declared, may be within; direct stretches never are. Sum of lengths == window.bytes: there are no holes.
    [[nodiscard]] std::vector<Range> runs_of(const Window& window, bool exact, std::uint64_t block) const;

   private:
    std::vector<OwnedSet> gathered_;  // ascending by offset
    std::vector<Range> direct_;       // ascending
    std::vector<Window> windows_;
};

}  // namespace twinrun
