// Functions that readers of topology descriptions share.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"

namespace twinrun {

// An argument that no topology and no plan can be made of.
inline Error wrong(std::string what) { return {ErrorCode::invalid_argument, std::move(what)}; }

inline Error wrong_description(const std::string& description, const std::string& what) {
    return {ErrorCode::invalid_argument, "topology '" + description.substr(0, 200) + "': " + what};
}

// Reads a latency or a bandwidth: finite and not negative. zero: whether 0 is allowed.
inline std::optional<float> rate(std::string_view text, bool zero) {
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0 ||
        (value == 0 && !zero))
        return std::nullopt;
    return value;
}

}  // namespace twinrun
