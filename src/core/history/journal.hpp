// Manifests and journals as files of lines: who reads or goes on with them. For the files beside it only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "history/history.hpp"

namespace twinrun {

inline constexpr std::uint64_t kLargestManifest = 1ULL << 32;
inline constexpr std::uint32_t kMostRanks = 1U << 24;

// The manifest: settings, and the journal of a run of one rank; local: of a node-local part.
Result<> read_manifest(const std::string& path, History& history, Journal& journal,
                       LocalHistory* local = nullptr);

// The first line of a rank's journal, if it is one.
struct JournalHead {
    std::string id;  // empty: it was begun before there were IDs
    std::uint32_t rank = 0;
};
std::optional<JournalHead> journal_head(const std::string& file);

// Whether a file under a temporary name is a manifest or a journal that somebody was writing, as far as its first line shows: empty, or
// that line is whole, or was cut and begins as theirs do. ids: of which histories a journal may be, "" from before there were IDs; none: a
// manifest.
bool is_begun_lines(const std::string& file, const std::vector<HistoryId>& ids);

// The journal of one rank of several; of a rank that has none yet, or only one of a history that was here before: nothing.
Result<> read_journal(const History& history, std::uint32_t rank, std::uint32_t ranks, Journal& journal);
// Every "rank-R.jsonl" in a folder that begins as a journal of that rank: its name, and the ID in its first line ("": from before there
// were IDs), of whichever history.
std::map<std::string, HistoryId> journals_there(const std::string& path);
// Those that are there: a manifest may name any number of ranks.
std::set<std::uint32_t> ranks_with_journals(const std::string& path, std::uint32_t ranks);
// Error if a link, a pipe or a folder lies in a journal's place: it would be taken for a rank that committed nothing.
Result<> check_journals(const std::string& path, std::uint32_t ranks);
// Of steps and differences that the journals of a history name: they are its own, also where no marker says so.
Result<std::vector<std::string>> folders_named_by(const History& history);

}  // namespace twinrun
