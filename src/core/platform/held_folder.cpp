#include "platform/held_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace twinrun {

HeldFolder::HeldFolder(const std::string& path) : path_(path, 0, path.find_last_not_of('/') + 1) {
    if (path_.empty()) return;  // no path, or the root: there is nothing to save
    do {
        descriptor_ = ::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
}

HeldFolder::~HeldFolder() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

HeldFolder::Place HeldFolder::place_of(const HeldFolder* folder, const std::string& path) {
    const Place whole{AT_FDCWD, path.c_str()};
    if (folder == nullptr || folder->descriptor_ < 0 || !path.starts_with(folder->path_)) return whole;
    std::size_t at = folder->path_.size();
    if (at >= path.size() || path[at] != '/') return whole;
    at = path.find_first_not_of('/', at);  // a name that begins with one would be looked up from the root
    return at == std::string::npos ? whole : Place{folder->descriptor_, path.c_str() + at};
}

}  // namespace twinrun
