// The data of all ranks in one file: which rank has which bytes, how they are cut into partitions
// and windows, and which bytes two ranks claim. Every rank computes the same result from the same
// table. No MPI, no I/O.
//
// A partition is a range of the file that one aggregator writes or reads. It is cut into windows,
// consecutive ranges of the size of a buffer; windows without data are left out. Dense stretches
// that are large enough are direct: their rank writes them itself, and they belong to no window.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "aggregate/plan/placement.hpp"

namespace twinrun {
inline namespace aggregate_plan {

struct OwnedSet {
    StridedSet set;
    std::uint32_t rank = 0;
};

// The declarations of all ranks.
class FileTable {
   public:
    FileTable() = default;
    // shared: several ranks may claim a byte; their sum then says nothing of gaps.
    explicit FileTable(std::vector<OwnedSet> sets, bool shared = false);

    // Ascending by offset.
    [[nodiscard]] const std::vector<OwnedSet>& sets() const { return sets_; }
    // From the first declared byte to the end of the last; 0, 0 if none is declared.
    [[nodiscard]] Range span() const { return span_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] bool gapless() const { return !shared_ && bytes_ == span_.bytes(); }
    [[nodiscard]] std::uint64_t bytes_within(Range range) const;

   private:
    std::vector<OwnedSet> sets_;
    Range span_;
    std::uint64_t bytes_ = 0;
    bool shared_ = false;
};

// Cuts the file into consecutive ranges with about the same number of declared bytes. They begin
// and end at multiples of the block, except the first begin and the last end. Fewer than `parts`
// if the file has fewer blocks; none without data.
[[nodiscard]] std::vector<Range> make_partitions(const FileTable& table, std::uint64_t parts,
                                                 std::uint64_t block);

// The default number of aggregators of a file: enough for the volume, and at most a few on each
// node.
[[nodiscard]] std::uint64_t default_aggregators(std::uint64_t bytes, std::uint64_t nodes,
                                                std::uint64_t ranks);

// The bytes of each rank in a partition, ascending by rank; ranks without bytes are left out.
// node_of: the node of each rank.
[[nodiscard]] std::vector<Contribution> contributions_to(const FileTable& table, Range partition,
                                                         std::span<const std::uint32_t> node_of);

struct Overlap {
    std::uint32_t ranks[2] = {
        0, 0};  // the lower first; two different ranks, since rank_sets refuses overlaps within one
    std::uint64_t offset = 0;
};
// A byte of the range that two ranks claim, if there is one: of the first two sets that overlap.
[[nodiscard]] std::optional<Overlap> find_overlap(const FileTable& table, Range range);

// Which stretches are direct.
struct DirectRule {
    std::uint64_t least_bytes = UINT64_MAX;  // of a stretch; UINT64_MAX: none
    std::uint64_t alignment = 1;             // of its begin and its end
    // The same as least_bytes, where no rank has more than one stretch: a rank then makes one call
    // of the system, and waits for no other one.
    std::uint64_t least_alone = UINT64_MAX;
    bool operator==(const DirectRule&) const = default;
};
// The rule for the sets of all ranks: with least_alone as least_bytes, where it counts.
[[nodiscard]] DirectRule rule_for(const FileTable& table, DirectRule rule);
[[nodiscard]] std::optional<Range> direct_part(const StridedSet& set, const DirectRule& rule);

struct Window {
    Range range;
    Range data;               // from the first gathered byte to the end of the last
    std::uint64_t bytes = 0;  // gathered
};

// The windows of a partition, for its aggregator and the ranks with data in it.
class PartitionPlan {
   public:
    PartitionPlan() = default;
    PartitionPlan(const FileTable& table, Range partition, const DirectRule& rule, std::uint64_t buffer_bytes,
                  std::uint64_t block);

    [[nodiscard]] const std::vector<Window>& windows() const { return windows_; }
    // Ranks with data in a window, ascending.
    [[nodiscard]] std::vector<std::uint32_t> ranks_of(const Window& window) const;
    // The ranges to write from a window's buffer, ascending. exact: only gathered bytes. Otherwise
    // they may include small holes that no rank declared, but never direct stretches. If the
    // lengths sum up to window.bytes, there are no holes.
    [[nodiscard]] std::vector<Range> runs_of(const Window& window, bool exact, std::uint64_t block) const;
    // The ranges to read into a window's buffer, ascending: all gathered bytes, and holes of at
    // most `hole` bytes, which cost less to read than a call.
    [[nodiscard]] std::vector<Range> sieve_of(const Window& window, std::uint64_t hole) const;

   private:
    std::vector<OwnedSet> gathered_;  // ascending by offset
    std::vector<Range> direct_;       // ascending
    std::vector<Window> windows_;
};

}  // namespace aggregate_plan
}  // namespace twinrun
