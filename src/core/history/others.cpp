#include "history/others.hpp"

#include <algorithm>
#include <filesystem>
#include <new>

#include "history/history.hpp"
#include "history/journal.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

Result<History> read_first_line(const std::string& path) {
    History history;
    TWR_CHECK(read_manifest_head(path, history));
    return history;
}

bool is_of_another(const std::string& path, const std::string& folder, const std::vector<HistoryId>& ids) {
    return std::none_of(ids.begin(), ids.end(),
                        [&](const HistoryId& id) { return is_marked(path, folder, id); }) &&
           is_marked_by_any(path, folder) && has_step_files((fs::path(path) / folder).string());
}

}  // namespace

Result<std::vector<std::string>> entries_of_others(const std::string& path,
                                                   const std::set<std::string>& known) try {
    TWR_TRY(History history, read_first_line(path));
    for (;;) {
        std::vector<HistoryId> ids = history.replaced;
        ids.push_back(history.id);
        std::vector<std::string> found;
        for (const auto& [name, id] : find_journals(path)) {
            // A journal without an ID is from before there were IDs: of this history if it has none
            // either, or of one that it replaced.
            const bool ours = id.empty() ? !history.has_id || !history.replaced.empty()
                                         : std::find(ids.begin(), ids.end(), id) != ids.end();
            if (!ours) found.push_back(name);
        }
        for (const auto& [name, is_file, is_folder] : entries_of(path)) {
            if (!is_folder || !is_step_folder(name)) continue;
            if (known.contains(name) && name != *known.begin()) continue;
            if (is_of_another(path, name, ids)) found.push_back(name);
        }
        if (found.empty()) return found;
        // A run may have replaced the history meanwhile.
        TWR_TRY(History now, read_first_line(path));
        if (now.id == history.id && now.replaced == history.replaced) {
            std::sort(found.begin(), found.end());
            return found;
        }
        history = std::move(now);
    }
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

}  // namespace twinrun
