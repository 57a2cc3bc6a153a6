// The index of sub-files, PATH.twr-index: how many files belong together, and how to recognise each
// of them.
//
// It is written last, when all sub-files have their names, and removed before the first of them is
// replaced. Without an index the files may be of two writes. A later write with fewer files removes
// the files that the index names, and never any other.
#pragma once

#include <sys/stat.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// Identifies a file. Equal: it was neither changed nor replaced since.
struct SubFile {
    std::uint64_t bytes = 0;
    std::uint64_t inode = 0;
    std::int64_t modified = 0;  // nanoseconds since 1970
    // NOLINTNEXTLINE(modernize-use-nullptr): there is no pointer
    auto operator<=>(const SubFile&) const = default;
};

// Version 3 is written. It ends with a checksum of all before it, and has places if each file has
// parts of a whole file. Of the versions without a checksum, 1 has no places and 2 has them.
struct Index {
    std::vector<SubFile> files;
    // Of each file, the sets of the whole file that it has, one behind the other, without holes.
    // Empty: no sub-file has a place in a whole.
    std::vector<std::vector<StridedSet>> places;
    std::uint64_t whole_bytes = 0;  // of the whole file, with its holes
    SubFile own;                    // the file of the index, as it was when it was read

    [[nodiscard]] std::size_t size() const { return files.size(); }
    [[nodiscard]] bool whole() const { return !places.empty(); }
};

[[nodiscard]] std::string index_name(const std::string& path);
[[nodiscard]] std::string sub_file_name(const std::string& path, std::size_t number);

// nullopt: no index. An error if a file with the index' name is not an index, or an altered one.
Result<std::optional<Index>> read_index(const std::string& path);
// The index of existing sub-files.
Result<Index> look_at_sub_files(const std::string& path, std::size_t count);
// Writes the index atomically, under a temporary name first. replace: an existing index is
// replaced; otherwise it is an error.
// sync: the index survives a power cut.
Result<> write_index(const std::string& path, const Index& index, bool replace, bool sync);
[[nodiscard]] SubFile known_by(const struct stat& about);
// Whether a name is still that of this file: a regular one without a second name.
[[nodiscard]] bool is_known(const std::string& name, const SubFile& file);
// Removes the file of an index that was read. Mismatch: another file has its name since, and stays.
Result<> remove_index(const std::string& path, const SubFile& own, bool sync);
// Damaged: two of the index' places have a byte in common, or its whole file is longer than they
// reach. The index is read already; this takes as long as the check of a declaration.
Result<> check_places(const std::string& path, const Index& index);
// Damaged: a sub-file is the file of another entry, as where two were exchanged by mv. A copy is
// not: its inode may be any, and its time is its own or that of its original. Files that are not
// there are left to whoever opens them.
Result<> check_exchanged(const std::string& path, const Index& index);
// The same, and damaged where a sub-file is not as long as its entry says. All must be there.
Result<> check_sub_files(const std::string& path, const Index& index);
// Removes the sub-files of an index from number `first` on that are still the files it identifies,
// and have no second name.
void remove_sub_files(const std::string& path, const Index& index, std::size_t first);

}  // namespace twinrun::aggregation
