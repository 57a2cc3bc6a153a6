// Opens a folder of steps for readers, whether it is a history or one rank's part of one.
#pragma once

#include <optional>
#include <string>

#include "history/history.hpp"

namespace twinrun {

// history: the content. local: empty: the folder is a history. Otherwise it is a rank's part on a
// node-local tier; then the steps in `history` have only this rank's files, and its provenance is
// only this rank's.
struct HistoryPart {
    History history;
    std::optional<LocalHistory> local;
};
// Errors: those of History::open(), for a damaged part too.
Result<HistoryPart> open_history_or_part(const std::string& path);

}  // namespace twinrun
