// Settings by name, as text: what C, Fortran, configuration files and environment variables give.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"

namespace twinrun::text {

inline std::string_view trim(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    const std::size_t first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// ---- values ----

// A larger number of bytes is a mistake.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

template <class T>
std::optional<T> number(std::string_view text) {
    T value{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// "1048576", "64 MiB", "1.5GiB".
inline std::optional<std::uint64_t> bytes(std::string_view text) {
    const std::size_t end = text.find_first_not_of("0123456789.");
    const auto value = number<double>(trim(text.substr(0, end)));
    const std::string_view unit = end == std::string_view::npos ? "" : trim(text.substr(end));
    double factor = 0;
    constexpr std::array<std::pair<std::string_view, double>, 9> units{{{"", 1},
                                                                        {"B", 1},
                                                                        {"KiB", 0x1p10},
                                                                        {"MiB", 0x1p20},
                                                                        {"GiB", 0x1p30},
                                                                        {"TiB", 0x1p40},
                                                                        {"KB", 1e3},
                                                                        {"MB", 1e6},
                                                                        {"GB", 1e9}}};
    for (const auto& [name, of] : units) {
        if (unit == name) factor = of;
    }
    if (!value || factor == 0 || !(*value >= 0) || *value * factor > static_cast<double>(kMostBytes))
        return std::nullopt;
    return static_cast<std::uint64_t>(*value * factor);
}

inline std::optional<bool> truth(std::string_view text) {
    for (const std::string_view yes : {"true", "yes", "on", "1"}) {
        if (text == yes) return true;
    }
    for (const std::string_view no : {"false", "no", "off", "0"}) {
        if (text == no) return false;
    }
    return std::nullopt;
}

template <class T, std::size_t kCount>
std::optional<T> one_of(std::string_view text,
                        const std::array<std::pair<std::string_view, T>, kCount>& names) {
    for (const auto& [name, value] : names) {
        if (text == name) return value;
    }
    return std::nullopt;
}

template <class T>
bool assign(T& to, const std::optional<T>& from) {
    if (from) to = *from;
    return from.has_value();
}

// The same, where the number fits into the type.
template <class T>
bool assign_narrow(T& to, const std::optional<std::uint64_t>& from) {
    if (!from || !std::in_range<T>(*from)) return false;
    to = static_cast<T>(*from);
    return true;
}

// ---- settings ----

template <class Values>
struct Setting {
    std::string_view name;
    std::string_view form;  // what a value must be
    bool (*set)(Values&, std::string_view value);
    // Whether its value in there is within the limits; nullptr: the type has no other values.
    bool (*fits)(const Values&) = nullptr;

    [[nodiscard]] bool holds(const Values& values) const { return fits == nullptr || fits(values); }
    [[nodiscard]] Error wrong(std::string_view value) const {
        return {ErrorCode::invalid_argument, "setting " + std::string(name) + " = '" + std::string(value) +
                                                 "': give " + std::string(form)};
    }
};

// Error: an unknown name, a bad value; both are named, and nothing is set.
template <class Values>
Result<> set(Values& values, std::span<const Setting<Values>> known, std::string_view name,
             std::string_view value) {
    name = trim(name);
    value = trim(value);
    for (const Setting<Values>& setting : known) {
        if (name != setting.name) continue;
        Values changed = values;
        if (!setting.set(changed, value) || !setting.holds(changed)) return setting.wrong(value);
        values = std::move(changed);
        return success();
    }
    std::string names;
    for (const Setting<Values>& setting : known)
        names += (names.empty() ? "" : ", ") + std::string(setting.name);
    return Error{ErrorCode::invalid_argument,
                 "no setting of the name '" + std::string(name) + "'; there are " + names};
}

// A larger file is none of settings.
inline constexpr std::uint64_t kLargestFile = 1 << 20;

// The lines "name = value" of a file; # begins a comment. All of them, or none. The error names
// file and line.
template <class Values>
Result<> set_lines(Values& values, std::span<const Setting<Values>> known, std::string_view text,
                   const std::string& path) {
    Values changed = values;
    for (int line = 1; !text.empty(); ++line) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view one = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        one = trim(one.substr(0, one.find('#')));
        if (one.empty()) continue;
        const std::size_t equals = one.find('=');
        auto done = equals == std::string_view::npos
                        ? Result<>(Error{ErrorCode::invalid_argument, "not of the form name = value"})
                        : set(changed, known, one.substr(0, equals), one.substr(equals + 1));
        if (!done) return std::move(done).error().at(path + ":" + std::to_string(line));
    }
    values = std::move(changed);
    return success();
}

}  // namespace twinrun::text
