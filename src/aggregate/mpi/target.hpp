// The file itself, as the rank that answers for it sees it: made under another name, put in its place, looked at.
#pragma once

#include <cstdint>
#include <string>

#include "aggregate/mpi/plan.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// What a file is called until it is complete; what an earlier job left under this name is replaced.
[[nodiscard]] std::string partial_name(const std::string& path);

// A new, empty file under partial_name(path). Errors also where `path` is there and is no regular file: it would be replaced.
Result<> create_partial(const std::string& path);
// Puts it in its place; sync: so that it is there after a power cut.
Result<> commit_partial(const std::string& path, bool sync);
void remove_partial(const std::string& path);

// For writing into: made if it is not there.
Result<> touch_file(const std::string& path);
Result<> sync_file(const std::string& path);
Result<std::uint64_t> file_size(const std::string& path);

// How to write to the file system that the file is on. block: 0: what it says.
Result<StorageTraits> storage_traits(const std::string& path, std::uint64_t block);

}  // namespace twinrun::aggregation
