// The history of a run: a folder of committed steps (run, step, rank, field).
//
//   manifest.jsonl                     first line the run's settings; with one rank, its journal follows
//   rank-00003.jsonl                   with more: the journal of each rank
//   step-0000000010/rank-00003.data    the fields' bytes, each from a multiple of 4096 on
//   step-0000000010/rank-00003.twm     their metadata
//   step-0000000010/group.data         in place of the data files: of several ranks, one behind the other
//
// What of it is twinrun's own can be proven: a history has an ID, and every folder that a run makes in it holds an empty file
// with that ID in its name, from the first moment on. Nothing else is removed, written over, or written into.
//
// A journal is append-only: a line a committed step, and lines that say where the run came from and what was dropped. A
// rank's files are written under temporary names, synced, renamed, their folders synced, and only then is the line added to
// the rank's journal and synced. A step exists if the journals of all ranks have it: no rank needs to hear of another, and
// whatever dies, what all have committed is there. Every line ends with its own checksum; an incomplete last line is what a
// crash leaves and is ignored, a damaged line elsewhere is an error.
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
#include "platform/file_io.hpp"

namespace twinrun {

inline constexpr int kHistoryVersion = 3;  // 2 where no files are shared; 1 where there is no record either

struct RankFiles {
    std::uint32_t rank = 0;
    std::string data;  // name in the step's folder; empty: metadata only
    std::uint64_t data_bytes = 0;
    std::string metadata;  // empty: of files that were packed as they were
    std::uint64_t metadata_bytes = 0;
    std::uint64_t header_checksum = 0;  // XXH3-64 of the metadata file's header, which seals the rest of it
    double blocked_seconds = 0;         // that capture held up the application
    // Of a record: `data` is the difference of this ordinal, and data_bytes its size. kNoBase: data is the fields' bytes.
    std::uint32_t difference = kNoBase;
    std::uint64_t full_bytes = 0;  // of what it gives back
    // `data` is of several ranks; this one's part of it are data_bytes from `offset` on.
    bool shared = false;
    std::uint64_t offset = 0;
    std::uint64_t file_bytes = 0;  // of all
    std::string divergence;        // where it is not proven equal to the reference of its run; empty: nowhere
    bool operator==(const RankFiles&) const = default;
};

struct HistoryStep {
    std::int64_t step = 0;
    std::string folder;
    std::vector<RankFiles> ranks;
};

// What a journal says of one rank's part of a step.
struct RankStep {
    std::string folder;
    RankFiles files;
    bool operator==(const RankStep&) const = default;
};

// What one file of lines says.
struct Journal {
    std::map<std::int64_t, RankStep> steps;  // that are there
    // Of steps that a line dropped: the last attempt that left. A node-local tier may still have it: it must not come back.
    std::map<std::int64_t, std::uint32_t> left;
    std::vector<Provenance> provenance;  // of each process that wrote it, in order
    // Of a record: where each difference is, or what is left of it, as a path in the history; also of steps that are not there
    // any more, as long as others may need them.
    std::map<std::uint32_t, std::string> differences;
    std::uint32_t next_difference = 0;  // larger than any that there was, or that is reserved
    std::set<std::uint32_t> taken;      // that a step has, or had: never another one's
    std::vector<std::string> children;  // paths of records that are against this one
    bool torn = false;                  // the last line was incomplete: a crash while it was written
    std::uint64_t whole_bytes = 0;      // up to the end of its last whole line
};

// Whether this attempt at a step, or a later one, was dropped.
bool has_left(const Journal& journal, std::int64_t number, const RankStep& step);
// Whether the journal has a newer attempt, or this one was dropped: it must not come there (again).
bool is_superseded(const Journal& journal, std::int64_t number, const RankStep& step);

struct RankProvenance {
    std::uint32_t rank = 0;
    Provenance facts;
};

// What a manifest and its journals say. Reading them opens no other file.
struct History {
    std::string path;
    HistoryId id;
    bool has_id = false;              // in its manifest, and so in its journals
    std::vector<HistoryId> replaced;  // histories that were here before, and may have left files
    HistorySettings settings;
    std::uint32_t ranks = 1;
    std::vector<HistoryStep> steps;        // that every rank committed, ascending
    std::vector<std::int64_t> incomplete;  // that only some did
    std::vector<RankProvenance> provenance;
    bool torn = false;  // any of the files

    static bool exists(const std::string& path);  // a folder with a manifest
    static Result<History> open(const std::string& path);
};

// What a manifest says: settings, and the number of ranks.
Result<HistorySettings> read_history_settings(const std::string& path, std::uint32_t& ranks);
// Its `id`, or what stands for it.
Result<HistoryId> read_history_id(const std::string& path);
// One rank's journal; of a rank that has none yet, or only one of a history that was here before: an empty one.
Result<Journal> read_rank_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks);

// Error if a record that rank 0's journal names is against the one at `path`, and would lose what leaves that; or if that cannot
// be told: it is not there (but for forget_missing), or cannot be read.
Result<> check_children(const std::string& path, const Journal& journal, bool forget_missing = false);

// A rank's part of a history on a node-local tier: a history's folder of its own, whose manifest says whose part it is.
struct LocalHistory {
    HistoryId id;
    bool has_id = false;
    std::vector<HistoryId> replaced;
    HistorySettings settings;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::string history;  // where it goes, as an absolute path
    HistoryId of;         // the history that was there when the part was begun; empty: not known
    Journal journal;
    // Whether it is this rank's part of this history; `of`, where both are known, included.
    [[nodiscard]] bool is_of(const HistorySettings& other, std::uint32_t other_rank,
                             std::uint32_t other_ranks, const std::string& other_history,
                             const HistoryId& other_id) const;
    // Opens manifest and journal only.
    static Result<LocalHistory> read(const std::string& path);
};
}  // namespace twinrun
