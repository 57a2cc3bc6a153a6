// Manifests and journals as files of lines: functions that read them. Only files of this room
// include this.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "history/history.hpp"

namespace twinrun {

inline constexpr std::uint64_t kLargestManifest = 1ULL << 32;
inline constexpr std::uint32_t kMostRanks = 1U << 24;

// Reads the manifest in the folder `path`: settings into `history`, and, for a run of one rank, its
// steps into `journal`. local: not null: the manifest is of a node-local part; its members that
// name the history and the rank are set. is_part: not null: the manifest may be that of a whole
// history too, and this says which; `local` is left as it is then.
Result<> read_manifest(const std::string& path, History& history, Journal& journal,
                       LocalHistory* local = nullptr, bool* is_part = nullptr);
// What to say of a manifest that cannot be read: that it is not there, or no file. what: for the
// message, "a history". Success: it is a file.
Result<> check_manifest(const std::string& path, const char* what);

// Adds to a history whose manifest was read what its journals say.
Result<> take_journals(History& history, Journal manifest);
// The same for a node-local part, whose manifest gave `history`.
Result<> take_journal(LocalHistory& local, const History& history, Journal manifest);

// Reads only the settings. What follows them is not checked.
Result<> read_manifest_head(const std::string& path, History& history);

// Content of the first line of a rank's journal.
struct JournalHead {
    std::string id;  // of its history; empty: it was begun before there were IDs
    std::uint32_t rank = 0;
};
// nullopt: the file is not a journal. Throws std::bad_alloc.
std::optional<JournalHead> journal_head(const std::string& file);

// Whether a file under a temporary name is an unfinished manifest or journal, as far as its first
// line shows: the file is empty, or the line is complete, or it is cut and begins like one. ids:
// the histories that a journal may belong to, "" for one begun before there were IDs. No ids: the
// file must be a manifest. Throws std::bad_alloc.
bool is_begun_lines(const std::string& file, const std::vector<HistoryId>& ids);

// Reads the journal of one rank of several. Leaves `journal` empty if the rank has none yet, or
// only one of an earlier history in this folder.
Result<> read_journal(const History& history, std::uint32_t rank, std::uint32_t ranks, Journal& journal);
// All journals among the entries of a folder, of any history: each file "rank-R.jsonl" whose first
// line is that of a journal of rank R, and the ID in that line ("": begun before there were IDs).
std::map<std::string, HistoryId> find_journals(const std::string& path, std::span<const FolderEntry> entries);
// The ranks below `ranks` that have a journal. Lists the folder, because a manifest may name any
// number of ranks.
std::set<std::uint32_t> ranks_with_journals(const std::string& path, std::uint32_t ranks);
// Error if a journal's name belongs to a link, a pipe or a folder: it would look like a rank that
// has committed nothing.
Result<> check_journals(const std::string& path, std::uint32_t ranks);
// Folders of the steps and differences that a history's journals name. They belong to the history,
// even without a marker.
Result<std::vector<std::string>> folders_named_by(const History& history);

}  // namespace twinrun
