#include "source/open_files.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {

std::shared_ptr<InputFile> OpenFiles::known(const std::string& path) {
    if (const auto kept = kept_.find(path); kept != kept_.end()) return kept->second;
    const auto found = by_path_.find(path);
    if (found == by_path_.end()) return nullptr;
    files_.splice(files_.begin(), files_, found->second);
    return *found->second;
}

void OpenFiles::keep(std::shared_ptr<InputFile> file) {
    const std::lock_guard lock(mutex_);
    const std::string_view path = file->path();
    kept_.emplace(path, std::move(file));
}

Result<std::shared_ptr<InputFile>> OpenFiles::open(const std::string& path) {
    {
        const std::lock_guard lock(mutex_);
        if (auto file = known(path)) return file;
    }
    // Storage may take its time: other threads open other files meanwhile.
    TWR_TRY(std::shared_ptr<InputFile> file, InputFile::open(path));
    std::shared_ptr<InputFile> dropped;  // is closed without the lock
    const std::lock_guard lock(mutex_);
    if (auto first = known(path)) return first;
    if (files_.size() >= most_) {
        dropped = std::move(files_.back());
        by_path_.erase(dropped->path());
        files_.pop_back();
    }
    files_.push_front(file);
    by_path_.emplace(files_.front()->path(), files_.begin());
    return file;
}

}  // namespace twinrun
