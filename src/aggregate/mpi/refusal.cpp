#include "aggregate/mpi/refusal.hpp"

#include <optional>
#include <utility>

namespace twinrun::aggregation {

namespace {

thread_local std::optional<std::string> reason;

}  // namespace

void refuse_next(std::string why) { reason = std::move(why); }

Result<> not_refused() {
    if (!reason) return success();
    return Error{ErrorCode::invalid_argument, *reason};
}

void forget_refusal() noexcept { reason.reset(); }

}  // namespace twinrun::aggregation
