// Elections of earlier declarations, in a file that the user names (setting `plan`).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace twinrun::aggregation {

// The aggregators of the partitions of one declaration; key: a hash of all that decides them.
// nullopt: not saved. Errors: a file that is not one of plans, or that is damaged.
Result<std::optional<std::vector<std::uint32_t>>> saved_plan(const std::string& path, std::uint64_t key);
// Adds them to the file, or makes it. The last 64 elections stay.
Result<> save_plan(const std::string& path, std::uint64_t key, std::span<const std::uint32_t> aggregators);

}  // namespace twinrun::aggregation
