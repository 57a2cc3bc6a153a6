// Text that is to be UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace twinrun {

// Length of the UTF-8 character that text, which is not empty, begins with; 0: it is none.
inline std::size_t character_bytes(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                               : first >= 0xE0 && first < 0xF0 ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    if (length == 0 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    // Too long a form, a surrogate, or beyond the last character.
    if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
        (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
        return 0;
    }
    return length;
}

inline bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

// For messages: bytes that are no character as "\xff".
inline std::string readable(std::string_view text) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        if (length == 0) {
            const auto byte = static_cast<unsigned char>(text[0]);
            out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
        } else {
            out += text.substr(0, length);
        }
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return out;
}

}  // namespace twinrun
