// A folder that stays open while many of its files are looked up.
#pragma once

#include <string>

namespace twinrun {

// The path of a file's folder has several names, and the kernel looks up each of them whenever a
// file is opened by its path. From an open folder it looks up what is below it alone. A folder that
// cannot be opened is held by nobody: its files are then looked up by their whole paths.
class HeldFolder {
   public:
    explicit HeldFolder(const std::string& path);
    ~HeldFolder();
    HeldFolder(const HeldFolder&) = delete;
    HeldFolder& operator=(const HeldFolder&) = delete;

    // Where the kernel looks up a path, for openat() and its like. `name` is a part of `path`.
    struct Place {
        int folder;  // AT_FDCWD: of all paths
        const char* name;
    };
    // folder: may be null: none is held.
    static Place place_of(const HeldFolder* folder, const std::string& path);

   private:
    std::string path_;  // without slashes at its end
    int descriptor_ = -1;
};

}  // namespace twinrun
