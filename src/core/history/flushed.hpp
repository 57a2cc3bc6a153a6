// Whether a rank's part on a node-local tier holds steps that its history does not have.
#pragma once

#include <cstdint>
#include <string>

#include "history/history.hpp"

namespace twinrun {

// Whether the history has all steps of its part on a node-local tier, or newer attempts at them,
// and their files are complete and undamaged: then the part may be removed without a loss. Reads
// these files once, and checks their checksums.
bool is_flushed(const LocalHistory& local);

// Error unless the part at `path` belongs to this rank and history, or its own history has all its
// steps.
// history_id: of this history; "": not known.
Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history,
                    const HistoryId& history_id);

}  // namespace twinrun
