#include "history/part.hpp"

#include <utility>

#include "history/journal.hpp"

namespace twinrun {

namespace {

// The part that a manifest is of. history: what the manifest says.
Result<HistoryPart> part_of(LocalHistory local, History history, Journal manifest) {
    TWR_CHECK(take_journal(local, history, std::move(manifest)));
    history.torn = local.journal.torn;
    for (const auto& [step, files] : local.journal.steps)
        history.steps.push_back({step, files.folder, {files.files}});
    for (const Provenance& facts : local.journal.provenance)
        history.provenance.push_back({local.rank, facts});
    return HistoryPart{std::move(history), std::move(local)};
}

}  // namespace

Result<HistoryPart> open_history_or_part(const std::string& path) {
    History history;
    Journal manifest;
    LocalHistory local;
    bool is_part = false;
    if (read_manifest(path, history, manifest, &local, &is_part)) {
        if (!is_part) {
            TWR_CHECK(take_journals(history, std::move(manifest)));
            return HistoryPart{std::move(history), std::nullopt};
        }
        if (auto part = part_of(std::move(local), std::move(history), std::move(manifest))) return part;
    }
    TWR_TRY(History whole, History::open(path));
    return HistoryPart{std::move(whole), std::nullopt};
}

}  // namespace twinrun
