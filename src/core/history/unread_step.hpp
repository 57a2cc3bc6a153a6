// The error for a step that could not be read: a run may have removed it meanwhile.
#pragma once

#include <string>

#include "history/history.hpp"

namespace twinrun {

// `failure`; but if the history at `path` no longer has the step as `step` describes it, an error
// that says that the step was removed while it was `meanwhile`.
Error unread_step_error(const std::string& path, const HistoryStep& step, Error failure,
                        const char* meanwhile);

}  // namespace twinrun
