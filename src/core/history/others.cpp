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

// Whose files are a history's own: its ID, and those of the histories that it replaced.
struct Owner {
    HistoryId id;
    bool has_id = false;
    std::vector<HistoryId> replaced;

    explicit Owner(const History& history)
        : id(history.id), has_id(history.has_id), replaced(history.replaced) {}
    bool operator==(const Owner& other) const { return id == other.id && replaced == other.replaced; }
    [[nodiscard]] bool has(const HistoryId& other) const {
        return other == id || std::find(replaced.begin(), replaced.end(), other) != replaced.end();
    }
    [[nodiscard]] bool has_marked(const std::string& path, const std::string& folder) const {
        return is_marked(path, folder, id) ||
               std::any_of(replaced.begin(), replaced.end(),
                           [&](const HistoryId& other) { return is_marked(path, folder, other); });
    }
};

bool is_of_another(const std::string& path, const std::string& folder, const Owner& owner) {
    return !owner.has_marked(path, folder) && is_marked_by_any(path, folder) &&
           has_step_files((fs::path(path) / folder).string());
}

std::vector<std::string> look(const std::string& path, const Owner& owner,
                              const std::set<std::string>& known) {
    std::vector<std::string> found;
    const std::vector<FolderEntry> entries = entries_of(path);
    for (const auto& [name, id] : find_journals(path, entries)) {
        // A journal without an ID is from before there were IDs: of this history if it has none
        // either, or of one that it replaced.
        const bool ours = id.empty() ? !owner.has_id || !owner.replaced.empty() : owner.has(id);
        if (!ours) found.push_back(name);
    }
    for (const auto& [name, is_file, is_folder] : entries) {
        if (!is_folder || (known.contains(name) && name != *known.begin()) || !is_step_folder(name)) continue;
        if (is_of_another(path, name, owner)) found.push_back(name);
    }
    std::sort(found.begin(), found.end());
    return found;
}

}  // namespace

Result<std::vector<std::string>> entries_of_others(const History& opened,
                                                   const std::set<std::string>& known) try {
    for (Owner owner(opened);;) {
        std::vector<std::string> found = look(opened.path, owner, known);
        if (found.empty()) return found;
        TWR_TRY(const History now, read_first_line(opened.path));
        if (Owner(now) == owner) return found;
        owner = Owner(now);
    }
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 opened.path + ": not enough memory for the history's list of steps"};
}

Result<std::vector<std::string>> entries_of_others(const std::string& path,
                                                   const std::set<std::string>& known) try {
    TWR_TRY(const History history, read_first_line(path));
    return entries_of_others(history, known);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

}  // namespace twinrun
