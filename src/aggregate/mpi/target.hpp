// The file itself, as the rank that answers for it sees it: made under another name, put in its place, looked at.
#pragma once

#include <cstdint>
#include <string>

#include "aggregate/mpi/plan.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// What a file is called until it is complete: no other file has the number, which is drawn at random.
[[nodiscard]] std::string partial_name(const std::string& path, std::uint64_t number);
// 64 bits that nobody can guess.
[[nodiscard]] std::uint64_t random_number();

// A file under such a name, of the rank that made it. What is removed or renamed is this file: it is open as long as this lives, so
// that nothing else can be taken for it.
class PartialFile {
   public:
    PartialFile() = default;
    ~PartialFile();  // removes it, unless it is in its place
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    // A new, empty file at `name`. Errors also where something has that name, and where `path` is there and is no regular file: it
    // would be replaced. A symbolic link at `path` to a regular file, or to nothing, is replaced itself: what it names stays as it is.
    Result<> create(const std::string& path, const std::string& name);
    // Puts it in its place; sync: so that it is there after a power cut.
    Result<> commit(bool sync);

   private:
    [[nodiscard]] bool there() const;  // under its name, and still this file
    std::string path_;
    std::string name_;
    int file_ = -1;
};

// For writing into: made if it is not there. A symbolic link is followed to the file that it names, and never to a new one.
Result<> touch_file(const std::string& path);
// follow: a symbolic link as well.
Result<> sync_file(const std::string& path, bool follow);
Result<std::uint64_t> file_size(const std::string& path);

// How to write to the file system that the file is on. block: 0: what it says.
Result<StorageTraits> storage_traits(const std::string& path, std::uint64_t block);

}  // namespace twinrun::aggregation
