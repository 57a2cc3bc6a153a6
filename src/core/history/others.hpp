// What lies in a history's folder and is another history's: its manifest was exchanged, or their files were mixed.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

// Names of journals and of folders with steps whose ID is neither the manifest's nor in its `replaced`, ascending. Folders in `known`
// are not looked into, but for the first one: those that journals of the history name.
Result<std::vector<std::string>> entries_of_others(const std::string& path,
                                                   const std::set<std::string>& known = {});

}  // namespace twinrun
