#include "history/unnamed.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <tuple>

#include "history/history.hpp"
#include "history/journal.hpp"
#include "history/journal_line.hpp"
#include "metadata/metadata.hpp"
#include "platform/file_io.hpp"
#include "record/delta_format.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

auto key(const UnnamedStep& step) {
    return std::tie(step.step, step.rank, step.folder, step.journal, step.lost);
}

// Whether the rank's metadata is in the folder, and the data that it describes. Files that a run
// was still writing are not whole.
bool is_whole(const fs::path& folder, std::uint32_t rank) {
    const auto metadata = MetadataFile::open((folder / (rank_name(rank) + kMetadataSuffix)).string());
    if (!metadata) return false;
    if (is_difference_file((folder / (rank_name(rank) + ".twr")).string())) return true;
    const auto& files = (*metadata)->directory().data_files;
    return std::all_of(files.begin(), files.end(), [&](const DataFile& file) {
        std::error_code failure;
        return fs::file_size(folder / file.path, failure) == file.stamp.size && !failure;
    });
}

// Whether a run is writing this journal, as far as its lock shows. On storage without locks: false.
bool is_written_now(const std::string& journal) {
    const int opened = ::open(journal.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (opened < 0) return false;
    const bool busy = ::flock(opened, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    ::close(opened);
    return busy;
}

struct RankJournal {
    Journal journal;
    std::string file;
    bool lost = false;
};

Result<RankJournal> journal_of(const History& history, std::uint32_t rank) {
    RankJournal own;
    own.file = journal_path(history.path, rank, history.ranks);
    if (history.ranks > 1) {
        const auto head = journal_head(own.file);
        own.lost = !head || head->id != (history.has_id ? history.id : "");
    }
    TWR_TRY(own.journal, read_rank_journal(history.path, rank, history.ranks));
    return own;
}

bool names(const Journal& journal, const std::string& folder) {
    return journal.steps.names_folder(folder) ||
           std::any_of(journal.differences.begin(), journal.differences.end(), [&](const auto& difference) {
               return difference.second.file.starts_with(folder + "/");
           });
}

Result<std::vector<UnnamedStep>> look(const std::string& path) {
    std::vector<UnnamedStep> found;
    History history;
    Journal ignored;
    TWR_CHECK(read_manifest(path, history, ignored));
    if (!history.has_id) return found;  // no folder can be proven to be its own
    std::map<std::uint32_t, RankJournal> journals;
    for (const auto& [folder, is_file, is_folder] : entries_of(path)) {
        const auto step = step_of(folder);
        if (!is_folder || !step || !is_marked(path, folder, history.id)) continue;
        const fs::path place = fs::path(path) / folder;
        for (const auto& [name, file_there, folder_there] : entries_of(place.string())) {
            std::uint32_t rank = 0;
            if (!file_there || std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank) != 1 ||
                rank >= history.ranks || name != rank_name(rank) + kMetadataSuffix) {
                continue;
            }
            auto own = journals.find(rank);
            if (own == journals.end()) {
                TWR_TRY(RankJournal read, journal_of(history, rank));
                own = journals.emplace(rank, std::move(read)).first;
            }
            // A step in a folder that is marked as begun was not committed.
            if (!own->second.lost && is_begun_by(place.string(), rank)) continue;
            if (names(own->second.journal, folder) || !is_whole(place, rank)) continue;
            found.push_back({*step, folder, rank, own->second.file, own->second.lost});
        }
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return key(a) < key(b); });
    return found;
}

}  // namespace

Result<std::vector<UnnamedStep>> unnamed_steps(const std::string& path) try {
    TWR_TRY(std::vector<UnnamedStep> found, look(path));
    std::erase_if(found, [](const UnnamedStep& step) { return is_written_now(step.journal); });
    if (found.empty()) return found;
    // A run that has ended meanwhile may have committed them: look again.
    TWR_TRY(const std::vector<UnnamedStep> now, look(path));
    std::erase_if(found, [&](const UnnamedStep& step) {
        return std::none_of(now.begin(), now.end(),
                            [&](const UnnamedStep& other) { return key(other) == key(step); });
    });
    return found;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

Result<> check_named(const std::string& path, bool empty) {
    TWR_TRY(const auto unnamed, unnamed_steps(path));
    for (const UnnamedStep& step : unnamed) {
        if (!step.lost && !empty) continue;
        return Error{ErrorCode::damaged, step.journal + ": does not name step " + std::to_string(step.step) +
                                             ", which is there: the journal was cut or replaced: "
                                             "restore it from a copy"};
    }
    return success();
}

}  // namespace twinrun
