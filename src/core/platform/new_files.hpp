// Files, folders and links that are put into a folder beside what is there: nothing that is there
// is replaced, removed, or written through a link, whoever puts it there and when.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// A file that has no name of its own until publish(). Abandoned before that, it is removed.
class NewFile {
   public:
    virtual ~NewFile() = default;
    virtual Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
    // Gives it a time of change, after the last write; where that cannot be, it keeps its own.
    virtual void set_time(std::int64_t mtime_ns) = 0;
    // Brings it to the disk, and gives it its name if nothing has that name. Its folder is not
    // synced. Last call.
    virtual Result<> publish() = 0;
};

// Names are paths relative to the folder, of parts that are neither empty, "." nor ".."; they are
// bytes. A folder on their way is made where it is not there; a link, even to a folder, is never
// followed, and is an error. Errors: invalid_argument: something has this name already; those of
// storage. Not thread-safe.
class NewFiles {
   public:
    virtual ~NewFiles() = default;
    // Error: something has this name already, or a parent of it is not a folder. as_folder: a
    // folder of this name is not an error.
    virtual Result<> check_free(const std::string& name, bool as_folder = false) = 0;
    // bytes: its size; what is not written is zero, and takes no room where storage knows holes.
    virtual Result<std::unique_ptr<NewFile>> create(const std::string& name, std::uint64_t bytes) = 0;
    virtual Result<> make_folder(const std::string& name) = 0;  // there already: success
    virtual Result<> make_link(const std::string& name, const std::string& to) = 0;
    // All names so far survive a power cut from the return on.
    virtual Result<> sync() = 0;
};

// Of a folder that is there.
Result<std::unique_ptr<NewFiles>> open_new_files(const std::string& folder);

}  // namespace twinrun
