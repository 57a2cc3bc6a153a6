// Names in a history's folder, and what proves that a run made what bears one: spec/history.md, "What is whose".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace twinrun {

inline constexpr const char* kLeftoversFolder = "step-leftovers";  // differences of steps that are not there

// 128 random bits, as 32 hexadecimal digits. Of a history that was begun before there were IDs: the hash of its first line.
using HistoryId = std::string;

std::string absolute_path(const std::string& path);
std::string local_path(const std::string& local, std::uint32_t rank);  // LOCAL/rank-00003

std::string manifest_path(const std::string& path);
std::string journal_path(const std::string& path, std::uint32_t rank, std::uint32_t ranks);
// "step-0000000010", and "step-0000000010.2" where the step is captured for the third time.
std::string step_folder(std::int64_t step, std::uint32_t attempt);
std::uint32_t attempt_of(const std::string& folder);
std::optional<std::int64_t> step_of(const std::string& folder);
// Names that captures give to entries of a history's folder.
bool is_step_folder(const std::string& name);
// Names that captures give to files in such a folder, also while they are being written; rank: of this one only. Without those
// of files that ranks share.
bool is_step_file(const std::string& name, std::optional<std::uint32_t> rank);
// Whether a file in such a folder, that has a capture's name, was written by one, by what can be seen of it: spec/history.md,
// "What is whose".
bool is_proven(const std::string& folder, const std::string& name);
// Whether a name ends with random digits, as those of files do that are being written; and what such a file is to be called.
bool is_temporary(const std::string& name);
std::string name_of_temporary(const std::string& name);
// "rank-00003.begun", an empty file in a step's folder: the rank may have files there that its journal does not name.
std::string begun_name(std::uint32_t rank);
bool is_begun_by(const std::string& folder, std::uint32_t rank);  // folder: a path
bool is_begun_name(const std::string& name);                      // of any rank
std::uint32_t rank_of(const std::string& name);                   // of a file whose name begins with a rank's
std::string marker_name(const HistoryId& id);                     // ".twinrun-ID"
// ".twinrun-ID.left", an empty file in a step's folder: if another history has replaced this one,
// the folder's files may go.
std::string left_name(const HistoryId& id);
// Whether a folder (a path) has this empty file. No link.
bool has_mark(const std::string& folder, const std::string& name);
// ".twinrun-" and 16 random digits: of a folder that does not have its name yet.
bool is_unnamed_folder(const std::string& name);
// A folder of the history at `path` that a run of it made: no link, with the marker.
bool is_marked(const std::string& path, const std::string& folder, const HistoryId& id);
bool is_marked_by_any(const std::string& path, const std::string& folder);  // of whichever history
// Whether a folder (a path) holds files of captures, of one rank or of several, by their names.
bool has_step_files(const std::string& folder);
// Of a difference, that the folder (a path) does not have yet: "rank-00003.twr", else "rank-00003.1.twr", …
std::string new_difference_name(const std::string& folder, std::uint32_t rank);
std::string rank_name(std::uint32_t rank);  // "rank-00003"

}  // namespace twinrun
