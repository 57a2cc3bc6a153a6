// Removal of a file that may be exchanged at any moment.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace twinrun::aggregation {

// Removes a file if `is_it` says yes of `name`, and once more of `aside`, which must be a name in
// the same folder that nobody else uses. The file gets that name in between, so what comes to
// `name` after the first look is not removed: it gets its name back. If another file has the name
// by then, it stays under `aside`. Returns whether the file was removed.
template <class IsIt>
bool remove_if(const std::string& name, const std::string& aside, const IsIt& is_it) {
    if (!is_it(name)) return false;
    const auto rename = [](const std::string& from, const std::string& to) {
        return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
    };
    // EINVAL: a file system without RENAME_NOREPLACE. Nobody else uses `aside`.
    if (!rename(name, aside) && (errno != EINVAL || ::rename(name.c_str(), aside.c_str()) != 0)) return false;
    if (is_it(aside)) return ::unlink(aside.c_str()) == 0;
    // A link replaces nothing either.
    if (!rename(aside, name) && ::link(aside.c_str(), name.c_str()) == 0) ::unlink(aside.c_str());
    return false;
}

}  // namespace twinrun::aggregation
