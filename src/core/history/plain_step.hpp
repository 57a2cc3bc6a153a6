// The line of a step as step_line() writes it, read without a document of JSON: a history has a
// line for each step, and every reader reads all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "history/history.hpp"

namespace twinrun {

struct PlainStep {
    std::int64_t number = 0;
    RankStep step;
};

// object: the line, without its checksum. Nothing where anything is unusual or wrong, which the
// reader of all lines knows: a step that replaces another one, one of a shared file, a name with an
// escape.
std::optional<PlainStep> plain_step(std::string_view object, std::uint32_t rank);

}  // namespace twinrun
