#include "history/step_folders.hpp"

#include "history/names.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

std::vector<std::string> folders_of_steps(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        if (is_folder && (is_step_folder(name) || name.starts_with(kHiddenPrefix))) names.push_back(name);
    }
    return names;
}

}  // namespace twinrun
