#include "comparison/words.hpp"

#include <algorithm>

#include "base/utf8.hpp"

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
