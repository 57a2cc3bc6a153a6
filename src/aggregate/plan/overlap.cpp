#include "aggregate/plan/overlap.hpp"

#include <utility>
#include <vector>

#include "aggregate/plan/partition.hpp"

namespace twinrun {

std::optional<std::uint64_t> first_overlap(std::span<const SetNumbers> sets) {
    // Each set is another rank's: those of one rank may not overlap either.
    std::vector<OwnedSet> owned;
    for (const auto& [offset, width, count, stride] : sets)
        owned.push_back({{offset, width, count, stride}, static_cast<std::uint32_t>(owned.size())});
    const FileTable table(std::move(owned));
    const auto overlap = find_overlap(table, table.span());
    return overlap ? std::optional(overlap->offset) : std::nullopt;
}

}  // namespace twinrun
