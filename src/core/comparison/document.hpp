// A comparison as JSON: the document of `twinrun compare --json`, without `provenance`.
#pragma once

#include <string>

#include "comparison/result.hpp"

namespace twinrun {

// version: of twinrun. Infinite numbers and NaNs are the strings "inf", "-inf" and "nan".
std::string document(const RunsResult& result, const std::string& version);

}  // namespace twinrun
