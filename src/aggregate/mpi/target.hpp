// The file under its two names: made under a temporary name, renamed into place, and inspected. For
// the one rank that does this.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "aggregate/mpi/plan.hpp"
#include "aggregate/plan/striping.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// The name of a file until it is complete. number: random, so that no other file has the name.
[[nodiscard]] std::string partial_name(const std::string& path, std::uint64_t number);
// 64 random bits from the system.
[[nodiscard]] std::uint64_t random_number();

// A file under a partial name, for the rank that made it. The file stays open as long as this
// object lives: so only this very file is ever removed or renamed.
class PartialFile {
   public:
    PartialFile() = default;
    ~PartialFile();  // removes the file, unless commit() renamed it
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    // Makes a new, empty file at `name`. Errors: also if `name` exists, or if `path` exists and is
    // no regular file, because commit() would replace it. A symbolic link at `path` to a regular
    // file or to nothing is replaced; its target stays unchanged.
    // striping: where it lies on Lustre and can be set.
    Result<> create(const std::string& path, const std::string& name, const Striping& striping);
    // Renames it to `path`. sync: the file survives a power cut.
    Result<> commit(bool sync);

   private:
    [[nodiscard]] bool there() const;  // whether the name still belongs to this file
    std::string path_;
    std::string name_;
    int file_ = -1;
};

// Makes sure that there is a file to update: makes it if `path` does not exist. Follows a symbolic
// link to an existing file; a link to nothing is an error. striping: of a file that it makes.
Result<> touch_file(const std::string& path, const Striping& striping);
// follow: follows a symbolic link; otherwise it is an error.
Result<> sync_file(const std::string& path, bool follow);
// Of a regular file. Follows a symbolic link.
Result<struct stat> facts_of_file(const std::string& path);
Result<std::uint64_t> file_size(const std::string& path);

[[nodiscard]] std::string folder_of(const std::string& path);
// The traits of the file's file system. block: the block size; 0: the file system's. unit: bytes of
// a stripe of the file on Lustre, for the folder of a file that will be made; 0: as it is.
Result<StorageTraits> storage_traits(const std::string& path, std::uint64_t block, std::uint64_t unit = 0);

}  // namespace twinrun::aggregation
