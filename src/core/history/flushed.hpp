// Whether a rank's part on a node-local tier has anything that its history does not have.
#pragma once

#include <cstdint>
#include <string>

#include "history/history.hpp"

namespace twinrun {

// Whether the history has all steps of its part on a node-local tier, or newer attempts at them,
// with their files, every byte that a checksum covers as it was written: then the part may go and
// nothing is lost. Reads these files once.
bool is_flushed(const LocalHistory& local);

// Error unless the part at `path` is that of this rank and history, or has nothing that is not in
// its own.
Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history, const HistoryId& of);

}  // namespace twinrun
