// Folders of steps, as a writer finds them.
#pragma once

#include <string>
#include <vector>

namespace twinrun {

// The names of folders in the history at `path` that a run may have made for steps.
std::vector<std::string> folders_of_steps(const std::string& path);

}  // namespace twinrun
