// A reason of the caller's why its next collective call fails: a binding to another language finds
// errors that C cannot see, and all ranks shall read them.
#pragma once

#include <string>

#include "base/result.hpp"

namespace twinrun::aggregation {

// For this thread's next collective call.
void refuse_next(std::string why);
// The error of this thread's reason, if there is one.
Result<> not_refused();
void forget_refusal() noexcept;

}  // namespace twinrun::aggregation
