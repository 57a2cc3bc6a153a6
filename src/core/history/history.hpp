// The history of a run: a folder of committed steps (run, step, rank, field).
//
//   manifest.jsonl                     first line the run's settings; with one rank, its journal
//                                      follows
//   rank-00003.jsonl                   with more: the journal of each rank
//   step-0000000010/rank-00003.data    the fields' bytes, each from a multiple of 4096 on
//   step-0000000010/rank-00003.twm     their metadata
//   step-0000000010/group.data         instead of data files: the data of several ranks, one after
//                                      another
//
// twinrun can prove which files are its own: a history has an ID, and every folder that a run makes
// in it holds an empty file with that ID in its name from the beginning. Nothing else is removed,
// overwritten, or written into.
//
// A journal is append-only: one line for each committed step, and lines for provenance, dropped
// steps, and moved differences. A rank's files are written under temporary names, synced and
// renamed, and their folder is synced; only then is the line added to the rank's journal and
// synced. A step exists if the journals of all ranks name it: ranks need not communicate, and a
// step that all have committed survives any crash. Every line ends with its own checksum. A crash
// may leave an incomplete last line, which is ignored; a damaged line elsewhere is an error.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "history/field.hpp"
#include "history/names.hpp"
#include "history/provenance.hpp"
#include "history/rank_steps.hpp"
#include "platform/file_io.hpp"
#include "record/difference_place.hpp"

namespace twinrun {

// The newest version of the format. Written only if files are shared; otherwise 2 with a record,
// and 1 without one.
inline constexpr int kHistoryVersion = 3;

// A step that all ranks have committed.
struct HistoryStep {
    std::int64_t step = 0;
    std::string folder;  // name in the history's folder
    std::vector<RankFiles> ranks;
};

// Content of one rank's journal.
struct Journal {
    RankSteps steps;  // committed and not dropped
    // For each dropped step its newest dropped attempt. A node-local tier may still have that
    // attempt, which must not be flushed again.
    std::map<std::int64_t, std::uint32_t> dropped;
    std::vector<Provenance> provenance;  // of each process that wrote the journal, in order
    // In a record: the file of each difference by ordinal, as a path in the history. Differences of
    // dropped steps are listed as long as other steps may need them.
    std::map<std::uint32_t, DifferencePlace> differences;
    std::uint32_t next_difference = 0;  // larger than all ordinals that were ever used or reserved
    // Ordinals that a step has or had; no other step may get them.
    std::set<std::uint32_t> taken;
    std::vector<std::string> children;  // paths of records that are against this one
    bool torn = false;                  // the last line is incomplete: a crash while it was written
    std::uint64_t whole_bytes = 0;      // size of the file up to the end of its last complete line
};

// Whether this attempt at a step, or a later one, was dropped.
bool was_dropped(const Journal& journal, std::int64_t number, const RankStep& step);
// Whether the journal has a newer attempt at the step, or this attempt was dropped: it must not be
// flushed there.
bool is_superseded(const Journal& journal, std::int64_t number, const RankStep& step);

struct RankProvenance {
    std::uint32_t rank = 0;
    Provenance facts;
};

// Content of a manifest and its journals. A value; open() reads these files and no others.
struct History {
    std::string path;
    HistoryId id;
    // The manifest and the journals contain the ID; false: it is a hash.
    bool has_id = false;
    std::vector<HistoryId> replaced;  // earlier histories in this folder that may have left files
    HistorySettings settings;
    std::uint32_t ranks = 1;
    std::vector<HistoryStep> steps;  // committed by every rank, ascending
    // steps that only some ranks have committed, or ranks in different attempts
    std::vector<std::int64_t> incomplete;
    std::vector<RankProvenance> provenance;
    bool torn = false;  // any of the files is torn (Journal::torn)

    static bool exists(const std::string& path);  // whether the folder has a manifest
    // Errors: not_found; damaged, naming file and line; unsupported: a newer version.
    static Result<History> open(const std::string& path);
};

// The settings in a manifest; `ranks` becomes the number of ranks.
Result<HistorySettings> read_history_settings(const std::string& path, std::uint32_t& ranks);
// The ID in a manifest, or the hash that replaces it.
Result<HistoryId> read_history_id(const std::string& path);
// One rank's journal. Empty if the rank has none yet, or only one of an earlier history in this
// folder.
Result<Journal> read_rank_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks);

// Error if a child (a record that rank 0's journal names) is against the record at `path` and needs
// its differences, so that none may be removed. Error too if this is not known: the child cannot be
// read, or is missing (with forget_missing, a missing one is ignored).
Result<> check_children(const std::string& path, const Journal& journal, bool forget_missing = false);

// One rank's part of a history on a node-local tier: a folder like a history's, whose manifest
// names the history and the rank.
struct LocalHistory {
    HistoryId id;  // of the part itself
    bool has_id = false;
    std::vector<HistoryId> replaced;
    HistorySettings settings;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::string history;  // absolute path of the history that the part is flushed to
    // ID of the history that was there when the part was begun; empty: not known
    HistoryId history_id;
    Journal journal;
    // Whether it is this rank's part of this history. IDs are compared if both are known.
    [[nodiscard]] bool belongs_to(const HistorySettings& other, std::uint32_t other_rank,
                                  std::uint32_t other_ranks, const std::string& other_history,
                                  const HistoryId& other_id) const;
    // Reads manifest and journal and opens no other file.
    static Result<LocalHistory> read(const std::string& path);
};
}  // namespace twinrun
