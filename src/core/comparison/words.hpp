// The words of a comparison's problems and notes, which Python's comparison uses too.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

// One line of UTF-8: control characters, and bytes that are no UTF-8, as escapes. A long text loses
// its middle.
std::string one_line(std::string_view text);
// A name of a field in quotes.
std::string in_quotes(std::string_view name);
// The first few words, and how many more there are.
std::string listed(std::span<const std::string> words);
// "step 500, rank 0", or "rank 0" without a step.
std::string place_text(std::optional<std::int64_t> step, std::uint32_t rank);
// "[3, 4]"
std::string shape_text(std::span<const std::uint64_t> shape);
// "where: what; fix", in one line. where, fix: may be empty.
Error error_at(ErrorCode code, std::string_view where, std::string_view what, std::string_view fix = {});

}  // namespace twinrun
