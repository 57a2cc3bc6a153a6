// What it means that a step of a history could not be read.
#pragma once

#include <string>

#include "history/history.hpp"

namespace twinrun {

// `failure`; or, where the history at `path` no longer has the step as `step` says, that the step left
// while it was `meanwhile`.
Error unread_step_error(const std::string& path, const HistoryStep& step, Error failure,
                        const char* meanwhile);

}  // namespace twinrun
