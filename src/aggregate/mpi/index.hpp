// The index of sub-files, PATH.twr-index: how many files belong together, and what proves that a file is one of them.
//
// It is written last, when all sub-files are in their places, and taken away before the first of them is replaced: where there is
// none, they may be of two writes. What it names may be removed where another write has fewer; nothing else ever is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun::aggregation {

// What a file is known by: nobody has written to it since, nor put another one in its place.
struct SubFile {
    std::uint64_t bytes = 0;
    std::uint64_t inode = 0;
    std::int64_t modified = 0;  // nanoseconds since 1970
    bool operator==(const SubFile&) const = default;
};

using Index = std::vector<SubFile>;

[[nodiscard]] std::string index_name(const std::string& path);
[[nodiscard]] std::string sub_file_name(const std::string& path, std::size_t number);

// nullopt: there is none. An error where a file of that name is no index.
Result<std::optional<Index>> read_index(const std::string& path);
// Of sub-files that are there.
Result<Index> look_at_sub_files(const std::string& path, std::size_t count);
// At once, under a name of its own until then. replace: an index that is there; else that is an error. sync: it outlives a power cut.
Result<> write_index(const std::string& path, const Index& index, bool replace, bool sync);
Result<> remove_index(const std::string& path, bool sync);
// The sub-files of an index from number `first` on, those that are still what it says.
void remove_sub_files(const std::string& path, const Index& index, std::size_t first);

}  // namespace twinrun::aggregation
