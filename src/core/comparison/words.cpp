#include "comparison/words.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

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

std::string tolerance_text(const Tolerance& tolerance, std::optional<std::uint64_t> ulps) {
    std::string text;
    if (tolerance.atol != 0) text = rounded(tolerance.atol, 6);
    if (tolerance.rtol != 0) text += (text.empty() ? "" : " + ") + rounded(tolerance.rtol, 6) + " |a|";
    if (ulps && *ulps != 0) return std::to_string(*ulps) + " ulp" + (text.empty() ? "" : " or " + text);
    return text.empty() ? "0" : text;
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
    constexpr int kMost = 17;  // no two doubles are alike in so many
    std::string shown;
    for (int digits = kFewest; digits <= kMost; ++digits) {
        shown = rounded(difference, digits);
        if (shown != allowed) break;
    }
    return shown;
}

std::string ulps_text(DType scalar, double a, double b) {
    return " (" + std::to_string(ulps_apart(scalar, a, b)) + " ulp)";
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

bool never_tolerated(std::string_view name) {
    return std::ranges::any_of(kExactLabels, [&](std::string_view label) { return name.ends_with(label); });
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
