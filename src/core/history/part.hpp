// A folder of steps, of all ranks or of one, for readers.
#pragma once

#include <optional>
#include <string>

#include "history/history.hpp"

namespace twinrun {

// A history. If `local` has a value, it is one rank's part of a history on a node-local tier, as a history: its steps have the
// files of this rank alone, and its provenance is this rank's.
struct HistoryPart {
    History history;
    std::optional<LocalHistory> local;
};
// Errors: those of History::open, whatever is wrong with what might have been a part.
Result<HistoryPart> open_history_or_part(const std::string& path);

}  // namespace twinrun
