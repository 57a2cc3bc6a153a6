// Whether the folders of a history and of a node-local tier are apart.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// Error where the history at `path` is the folder of the node-local tier `local`, or lies in the
// folder of a rank there: each would find the other's files in its own. Links, and folders that are
// mounted twice, are followed.
Result<> check_apart(const std::string& path, const std::string& local);

// For a path below a folder, the name that follows the folder's; for the folder itself ""; nothing:
// the path lies elsewhere.
std::optional<std::string> first_below(const std::string& path, const std::string& folder);

}  // namespace twinrun
