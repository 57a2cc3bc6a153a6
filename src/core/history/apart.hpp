// Whether a history and a node-local tier have separate folders.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// Error if the history at `path` is the folder `local` of the node-local tier itself, or lies in
// the folder of a rank there: each would find the other's files in its folder. Links are resolved,
// and folders that are mounted at several places are recognized.
Result<> check_apart(const std::string& path, const std::string& local);

// If `path` lies below `folder`, the next name in it after the folder; if it is the folder itself,
// ""; otherwise nullopt.
std::optional<std::string> first_below(const std::string& path, const std::string& folder);

}  // namespace twinrun
