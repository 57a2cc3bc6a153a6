// The last collective transfer of a file. Its plan serves the next one too, if that one is the same
// or lies some bytes farther on.
//
// Example: a program writes a step of 1 MB behind the other. Only the first step needs an election.
//
// Ranks find out by one reduction: each puts its figures, and all get the largest of each. Nothing
// here knows of MPI. An object is for one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

class LastTransfer {
   public:
    // Figures are doubles: larger places could not be distinguished.
    static constexpr std::uint64_t kFarthest = std::uint64_t{1} << 50;
    enum Figure : std::size_t { kBelow, kAhead, kBack, kChanged, kFigures };

    // This rank's figures of a transfer. parts: in ascending order, none ends behind kFarthest;
    // empty: this rank has no data. figures: kFigures zeros, which say nothing and never win.
    void put(std::span<const ArrayPart> parts, std::span<double> figures) const;
    // Whether the data lies otherwise than that of the last transfer: of the rank or ranks whose
    // figures these are.
    [[nodiscard]] static bool changed(std::span<const double> figures) { return figures[kChanged] != 0; }

    // What follows takes the largest figures of all ranks, and is the same on all of them.

    [[nodiscard]] static bool has_data(std::span<const double> agreed) { return agreed[kBelow] != 0; }
    // The last whole block before the first byte of all ranks: a plan's zero.
    [[nodiscard]] static std::uint64_t zero(std::span<const double> agreed, std::uint64_t block);
    // Where the last plan's zero is for this transfer; nullopt: the plan does not serve. reads:
    // ranks may have bytes in common, which a plan of reads alone allows. multiple: of which bytes
    // it may move; 1: any.
    [[nodiscard]] std::optional<std::uint64_t> base_after(std::span<const double> agreed, bool reads,
                                                          std::uint64_t multiple) const;
    // Whether the last plan serves; it is then moved to this transfer.
    bool follow(std::span<const double> agreed, bool reads, std::uint64_t multiple);

    // If it does not serve: the sets of this rank for a new plan, whose places count from `zero`
    // on. [Errors: as rank_sets; memory lacks by exception.]
    Result<std::vector<RankSet>> renew(std::span<const ArrayPart> parts, std::uint64_t zero);
    // All ranks have declared them.
    void declared(bool reads);
    // The plan serves no more.
    void forget() { declared_ = false; }

    [[nodiscard]] bool has_plan() const { return declared_; }
    // Where the plan's zero is in the file.
    [[nodiscard]] std::uint64_t base() const { return base_; }

   private:
    std::vector<ArrayPart> parts_;  // of this rank
    std::uint64_t base_ = 0;
    bool reads_ = false;
    bool declared_ = false;  // on all ranks
};

}  // namespace aggregate_plan
}  // namespace twinrun
