// Finds files of another history in a history's folder: somebody exchanged its manifest, or mixed
// two histories.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "history/history.hpp"

namespace twinrun {

// Names of journals, and of folders with files of steps, that belong to another history: their ID
// is neither the manifest's nor in its `replaced`. Ascending. known: folders that journals of the
// history name; of these only the first is checked, to save time.
Result<std::vector<std::string>> entries_of_others(const std::string& path,
                                                   const std::set<std::string>& known = {});
// The same where the history was opened just now. Its manifest is read again only where something
// is of another: a run may have replaced the history meanwhile.
Result<std::vector<std::string>> entries_of_others(const History& opened, const std::set<std::string>& known);

}  // namespace twinrun
