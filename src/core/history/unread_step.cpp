#include "history/unread_step.hpp"

namespace twinrun {

Error unread_step_error(const std::string& path, const HistoryStep& step, Error failure,
                        const char* meanwhile) {
    if (failure.code != ErrorCode::not_found && failure.code != ErrorCode::damaged) return failure;
    const auto now = History::open(path);
    if (!now) return failure;
    for (const HistoryStep& current : now->steps) {
        if (current.step == step.step && current.folder == step.folder && current.ranks == step.ranks)
            return failure;
    }
    return {ErrorCode::not_found,
            path + ": step " + std::to_string(step.step) + " was removed while it was " + meanwhile};
}

}  // namespace twinrun
