#include "comparison/words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/utf8.hpp"
#include "difference/difference.hpp"

namespace twinrun {

namespace {

// Names come from files, and a file may be hostile.
constexpr std::size_t kLongest = 2000;
constexpr std::size_t kMostListed = 5;

bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return first < 0x20 || first == 0x7F;
    // U+0080 to U+009F, and the separators of lines and paragraphs.
    return (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0) ||
           character == "\xE2\x80\xA8" || character == "\xE2\x80\xA9";
}

void add_escaped(std::string& out, std::string_view bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        switch (c) {
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            default: out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
        }
    }
}

// "M8[25s]": what it counts, whether dates, and how many of it are a step. An empty name: none.
struct TimeUnit {
    std::string_view name;
    bool dates = false;
    std::uint64_t count = 1;
};

TimeUnit time_unit(std::string_view text) {
    if (text.size() < 5 || (text[0] != 'M' && text[0] != 'm') || text[1] != '8' || text[2] != '[' ||
        text.back() != ']')
        return {};
    TimeUnit unit;
    unit.dates = text[0] == 'M';
    unit.name = text.substr(3, text.size() - 4);
    if (const auto [end, error] =
            std::from_chars(unit.name.data(), unit.name.data() + unit.name.size(), unit.count);
        error == std::errc{})
        unit.name.remove_prefix(static_cast<std::size_t>(end - unit.name.data()));
    return unit;
}

// A unit below a second, and how many digits its dates have behind the point.
struct Part {
    std::string_view unit;
    int digits;
};
constexpr std::array kFractions = {Part{"ms", 3},  Part{"us", 6},  Part{"ns", 9},
                                   Part{"ps", 12}, Part{"fs", 15}, Part{"as", 18}};

using Wide = __int128;

Wide floor_divide(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }

std::string padded(Wide value, int digits) {
    const bool negative = value < 0;
    std::string text;
    for (Wide rest = negative ? -value : value; rest != 0; rest /= 10)
        text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
    const auto width = static_cast<std::size_t>(digits - (negative ? 1 : 0));
    if (text.size() < width) text.insert(0, width - text.size(), '0');
    return negative ? "-" + text : text;
}

// The date of a day after 1970-01-01, in the calendar of today at any time. In eras of 400 years,
// each of which begins in March, so that a leap day is the last of its year.
std::string day_text(Wide days) {
    constexpr Wide kEra = 146097;
    const Wide since = days + 719468;  // after 0000-03-01
    const Wide era = floor_divide(since, kEra);
    const Wide of_era = since - era * kEra;
    const Wide year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const Wide of_year = of_era - (365 * year + year / 4 - year / 100);
    const Wide month = (5 * of_year + 2) / 153;  // from March
    const Wide day = of_year - (153 * month + 2) / 5 + 1;
    const bool after_december = month >= 10;
    return padded(era * 400 + year + (after_december ? 1 : 0), 4) + "-" +
           padded(after_december ? month - 9 : month + 3, 2) + "-" + padded(day, 2);
}

// seconds: since 1970. shown: of "hh:mm:ss", how many parts.
std::string clock_text(Wide seconds, int shown) {
    constexpr Wide kDay = 86400;
    const Wide days = floor_divide(seconds, kDay);
    const Wide rest = seconds - days * kDay;
    std::string text = day_text(days) + "T" + padded(rest / 3600, 2);
    if (shown > 1) text += ":" + padded(rest / 60 % 60, 2);
    if (shown > 2) text += ":" + padded(rest % 60, 2);
    return text;
}

std::string date_text(Wide value, std::string_view unit) {
    if (unit == "Y") return padded(1970 + value, 4);
    if (unit == "M") {
        const Wide year = floor_divide(value, 12);
        return padded(1970 + year, 4) + "-" + padded(value - 12 * year + 1, 2);
    }
    if (unit == "W") return day_text(7 * value);
    if (unit == "D") return day_text(value);
    if (unit == "h") return clock_text(3600 * value, 1);
    if (unit == "m") return clock_text(60 * value, 2);
    if (unit == "s") return clock_text(value, 3);
    for (const Part& part : kFractions) {
        if (unit != part.unit) continue;
        Wide one = 1;
        for (int i = 0; i < part.digits; ++i)
            one *= 10;
        const Wide seconds = floor_divide(value, one);
        return clock_text(seconds, 3) + "." + padded(value - seconds * one, part.digits);
    }
    return padded(value, 1);
}

// magnitude: of so many steps.
std::string steps_text(std::uint64_t magnitude, bool negative, const TimeUnit& unit) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWords = {
        {{"Y", "year"}, {"M", "month"}, {"W", "week"}, {"D", "day"}, {"h", "hour"}, {"m", "minute"}}};
    const Wide many = static_cast<Wide>(magnitude) * static_cast<Wide>(unit.count);
    const std::string said = padded(negative ? -many : many, 1);
    if (unit.name.empty()) return said;
    const auto* const word =
        std::ranges::find(kWords, unit.name, [](const auto& pair) { return pair.first; });
    if (word == kWords.end()) return said + " " + std::string(unit.name);
    return said + " " + std::string(word->second) + (many == 1 ? "" : "s");
}

}  // namespace

std::string one_line(std::string_view text) {
    std::string cut;
    if (text.size() > kLongest) {
        cut = std::string(text.substr(0, kLongest / 2)) + "…" +
              std::string(text.substr(text.size() - kLongest / 2));
        text = cut;
    }
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
        if (length == 0 || is_control(character)) {
            add_escaped(out, character);
        } else {
            out += character;
        }
        text.remove_prefix(character.size());
    }
    return out;
}

std::string in_quotes(std::string_view name) {
    const bool has_single = name.find('\'') != std::string_view::npos;
    const char quote = has_single && name.find('"') == std::string_view::npos ? '"' : '\'';
    std::string out(1, quote);
    for (const char c : name) {
        if (c == '\\' || c == quote) out += '\\';
        out += c;
    }
    out += quote;
    return out;
}

std::string listed(std::span<const std::string> words) {
    std::string out;
    for (std::size_t i = 0; i < std::min(words.size(), kMostListed); ++i)
        out += (i == 0 ? "" : ", ") + words[i];
    if (words.size() > kMostListed) out += " and " + std::to_string(words.size() - kMostListed) + " more";
    return out;
}

std::string named(std::string_view what, std::span<const std::string> words) {
    return std::string(what) + (words.size() == 1 ? " " : "s ") + listed(words);
}

std::string rounded(double value, int digits) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char text[40];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
    return {text, end.ptr};
}

namespace {

constexpr int kOfTolerances = 6;
constexpr int kMostDigits = 17;  // no two doubles are alike in so many

// The number that the whole text is.
std::optional<double> number_in(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return {};
    return value;
}

std::string tolerance_of(const Tolerance& tolerance, std::optional<std::uint64_t> ulps, int digits) {
    std::string text;
    if (tolerance.atol != 0) text = rounded(tolerance.atol, digits);
    if (tolerance.rtol != 0) text += (text.empty() ? "" : " + ") + rounded(tolerance.rtol, digits) + " |a|";
    if (ulps && *ulps != 0) return std::to_string(*ulps) + " ulp" + (text.empty() ? "" : " or " + text);
    return text.empty() ? "0" : text;
}

}  // namespace

std::string tolerance_text(const Tolerance& tolerance, std::optional<std::uint64_t> ulps) {
    return tolerance_of(tolerance, ulps, kOfTolerances);
}

std::string exceeded_text(const Tolerance& tolerance, std::optional<std::uint64_t> ulps, double difference) {
    if (tolerance.rtol == 0) {
        for (int digits = kOfTolerances; digits <= kMostDigits; ++digits) {
            if (number_in(rounded(tolerance.atol, digits)) < difference)
                return tolerance_of(tolerance, ulps, digits);
        }
    }
    return tolerance_text(tolerance, ulps);
}

std::string values_text(double a, double b, double difference) {
    int digits = 3;
    const double larger = std::max(std::abs(a), std::abs(b));
    if (difference > 0 && larger > 0 && std::isfinite(larger) && std::isfinite(difference))
        digits =
            std::clamp(static_cast<int>(std::ceil(std::log10(larger) - std::log10(difference))) + 2, 3, 17);
    return rounded(a, digits) + " against " + rounded(b, digits);
}

std::string distance_text(double difference, std::string_view allowed) {
    constexpr int kFewest = 3;
    const std::optional<double> limit = number_in(allowed);
    std::string shown;
    for (int digits = kFewest; digits <= kMostDigits; ++digits) {
        shown = rounded(difference, digits);
        const bool less = limit && number_in(shown) <= *limit;
        if (shown != allowed && !less) break;
    }
    return shown;
}

std::string ulps_text(DType scalar, double a, double b) {
    return " (" + std::to_string(ulps_apart(scalar, a, b)) + " ulp)";
}

std::string time_text(std::int64_t value, std::string_view unit) {
    if (value == std::numeric_limits<std::int64_t>::min()) return "NaT";
    const TimeUnit known = time_unit(unit);
    if (known.dates) return date_text(static_cast<Wide>(value) * static_cast<Wide>(known.count), known.name);
    const std::uint64_t magnitude =
        value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
    return steps_text(magnitude, value < 0, known);
}

std::string span_text(std::uint64_t steps, std::string_view unit) {
    return steps_text(steps, false, time_unit(unit));
}

std::string percent_text(double a, double difference) {
    constexpr double kMost = 1000;  // a share of more says nothing: b is simply larger
    const double share = 100 * difference / std::abs(a);
    return share > 0 && share < kMost ? " (" + rounded(share, share < 100 ? 2 : 3) + "%)" : "";
}

std::string proof_text(std::uint64_t read, std::uint64_t elements) {
    if (read == elements) return {};
    if (read == 0) return "; metadata proves it, no element was read";
    return "; " + rounded(100 * static_cast<double>(read) / static_cast<double>(elements), 3) +
           "% of them were read, metadata proves the rest";
}

std::string_view masked_name(std::string_view name) {
    return name.ends_with(kMaskLabel) ? name.substr(0, name.size() - kMaskLabel.size()) : std::string_view();
}

bool never_tolerated(std::string_view name) {
    const std::size_t at = name.rfind('@');
    if (at == std::string_view::npos) return false;
    using std::string_view_literals::operator""sv;
    const std::string_view last = name.substr(at);
    constexpr std::array kWhole = {kTextLabel,   kMaskLabel, kShapeLabel,
                                   "@indices"sv, "@plain"sv, "@compressed"sv};
    // Those of several parts: @index, @index.0, @coords.x.
    constexpr std::array kGroups = {"@index"sv, "@coords"sv, "@categories"sv, "@attrs"sv, "@metadata"sv};
    return std::ranges::find(kWhole, last) != kWhole.end() ||
           std::ranges::any_of(kGroups, [&](std::string_view group) {
               return last.starts_with(group) && (last.size() == group.size() || last[group.size()] == '.');
           });
}

std::string place_text(std::optional<std::int64_t> step, std::uint32_t rank) {
    return (step ? "step " + std::to_string(*step) + ", " : "") + "rank " + std::to_string(rank);
}

std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
        out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return out + "]";
}

Error error_at(ErrorCode code, std::string_view where, std::string_view what, std::string_view fix) {
    std::string text;
    if (!where.empty()) text = std::string(where) + ": ";
    text += what;
    if (!fix.empty()) text += "; " + std::string(fix);
    return {code, one_line(text)};
}

}  // namespace twinrun
