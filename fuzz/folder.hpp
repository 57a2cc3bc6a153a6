// A folder of a target's own, in memory where there is one, which is removed at its end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace twinrun::fuzz {

class Folder {
   public:
    explicit Folder(const std::string& target) {
        namespace fs = std::filesystem;
        std::error_code failure;
        const fs::path memory = "/dev/shm";
        name_ = ((fs::is_directory(memory, failure) ? memory : fs::temp_directory_path()) /
                 ("twinrun-" + target + "-fuzz-XXXXXX"))
                    .string();
        if (::mkdtemp(name_.data()) == nullptr) std::abort();
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(name_, ignored);
    }
    [[nodiscard]] const std::string& name() const { return name_; }

   private:
    std::string name_;
};

}  // namespace twinrun::fuzz
