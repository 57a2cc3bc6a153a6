#include "history/part.hpp"

namespace twinrun {

Result<HistoryPart> open_history_or_part(const std::string& path) {
    auto local = LocalHistory::read(path);
    if (!local) {
        TWR_TRY(History whole, History::open(path));
        return HistoryPart{std::move(whole), std::nullopt};
    }
    HistoryPart part;
    part.local = std::move(local).value();
    History& history = part.history;
    history.path = path;
    history.settings = part.local->settings;
    history.ranks = part.local->ranks;
    history.torn = part.local->journal.torn;
    for (const auto& [step, files] : part.local->journal.steps)
        history.steps.push_back({step, files.folder, {files.files}});
    for (const Provenance& facts : part.local->journal.provenance)
        history.provenance.push_back({part.local->rank, facts});
    return part;
}

}  // namespace twinrun
