// Names of files and folders in a history's folder, and proofs that a run made them:
// spec/history.md, "What is whose". All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace twinrun {

// Has differences whose steps do not exist.
inline constexpr const char* kLeftoversFolder = "step-leftovers";

// 128 random bits, as 32 hexadecimal digits. For a history that was begun before there were IDs: a
// hash of its first line.
using HistoryId = std::string;

std::string absolute_path(const std::string& path);  // normalized, without a slash at the end
// Folder of a rank on the node-local tier: "LOCAL/rank-00003".
std::string local_path(const std::string& local, std::uint32_t rank);

// Files in the history's folder `path`. With one rank, the manifest is the journal too.
std::string manifest_path(const std::string& path);
std::string journal_path(const std::string& path, std::uint32_t rank, std::uint32_t ranks);
// "step-0000000010"; for the third capture of the step, attempt 2, "step-0000000010.2".
std::string step_folder(std::int64_t step, std::uint32_t attempt);
// The attempt in a folder's name; 0 if it has none.
std::uint32_t attempt_of(const std::string& folder);
// The step in a folder's name; nullopt if it is not a name that step_folder() gives.
std::optional<std::int64_t> step_of(const std::string& folder);
// Whether a run may have given this name to a folder in a history's folder.
bool is_step_folder(const std::string& name);
// Whether a run may have given this name, final or temporary, to a rank's file in a step's folder.
// rank: of this rank; nullopt: of any. Files that ranks share have other names.
bool is_step_file(const std::string& name, std::optional<std::uint32_t> rank);
// Whether a run wrote this file, as far as its content and the files beside it prove:
// spec/history.md, "What is whose". folder: path of a step's folder; name: one that a run may give.
bool is_proven(const std::string& folder, const std::string& name);
// Whether a name is temporary, that is ends with ".", 16 random hexadecimal digits and ".tmp".
bool is_temporary(const std::string& name);
// The final name of such a file.
std::string name_of_temporary(const std::string& name);
// "rank-00003.begun", an empty file in a step's folder: the rank may have files there that its
// journal does not name.
std::string begun_name(std::uint32_t rank);
bool is_begun_by(const std::string& folder, std::uint32_t rank);  // folder: a path
bool is_begun_name(const std::string& name);                      // of any rank
// The rank in a file's name that begins with "rank-R"; 0 if it has none.
std::uint32_t rank_of(const std::string& name);
// ".twinrun-ID", an empty file in each folder that a run of the history with this ID made.
std::string marker_name(const HistoryId& id);
// ".twinrun-ID.left", an empty file in a step's folder: this history is being replaced; once
// another one has its place, the folder's files may be removed.
std::string left_name(const HistoryId& id);
// Whether a folder (a path) has an empty file of this name, which is not a link.
bool has_mark(const std::string& folder, const std::string& name);
// Whether a name is ".twinrun-" and 16 random digits: the name of a folder until it gets its final
// one.
bool is_unnamed_folder(const std::string& name);
// Whether the history at `path` has this folder, no link, with the marker of `id`.
bool is_marked(const std::string& path, const std::string& folder, const HistoryId& id);
// With the marker of any history.
bool is_marked_by_any(const std::string& path, const std::string& folder);
// Whether a folder (a path) has files with names that runs give, of one rank or of several.
bool has_step_files(const std::string& folder);
// A name for a difference that is free in the folder (a path): "rank-00003.twr", or
// "rank-00003.1.twr", and so on.
std::string new_difference_name(const std::string& folder, std::uint32_t rank);
std::string rank_name(std::uint32_t rank);  // "rank-00003"

}  // namespace twinrun
