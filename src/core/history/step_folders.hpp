// Lists the folders of steps in a history.
#pragma once

#include <string>
#include <vector>

namespace twinrun {

// Names of folders in the history at `path` that a run may have made for steps; also those that do
// not have their final names yet.
std::vector<std::string> folders_of_steps(const std::string& path);

}  // namespace twinrun
