// Files open for reading that many sources share: fields of one file, and parts of fields, open it
// once.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "platform/file_io.hpp"

namespace twinrun {

// The files that were used last. Thread-safe. A file that is used stays open however many others
// come.
class OpenFiles {
   public:
    explicit OpenFiles(std::size_t most = most_open_files()) : most_(most) {}
    // The file, as it is open already, or opened now.
    Result<std::shared_ptr<InputFile>> open(const std::string& path);
    // A file in memory, which takes no descriptor: open() gives it from now on.
    void keep(std::shared_ptr<InputFile> file);

   private:
    using Files = std::list<std::shared_ptr<InputFile>>;
    // The file of this path, which then counts as used last; null: none is open. With the lock.
    std::shared_ptr<InputFile> known(const std::string& path);

    std::size_t most_;
    std::mutex mutex_;
    Files files_;  // used last: first
    std::unordered_map<std::string_view, Files::iterator> by_path_;
    std::unordered_map<std::string_view, std::shared_ptr<InputFile>> kept_;
};

}  // namespace twinrun
