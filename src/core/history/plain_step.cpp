#include "history/plain_step.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

namespace twinrun {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes what is expected off the front of a text. `good` turns false with the first thing that is
// not there.
class Words {
   public:
    explicit Words(std::string_view text) : text_(text) {}

    Words& take(std::string_view word) {
        good_ = good_ && text_.starts_with(word);
        if (good_) text_.remove_prefix(word.size());
        return *this;
    }
    // Whether the word is there; then it is taken.
    bool take_if(std::string_view word) {
        if (!good_ || !text_.starts_with(word)) return false;
        text_.remove_prefix(word.size());
        return true;
    }
    // Without a sign and without zeros in front. Of a long number it takes the first digits, behind
    // which nothing else is found.
    template <class T>
    Words& take_number(T& number) {
        constexpr std::size_t kMostDigits = sizeof(T) < 8 ? 9 : 18;
        std::size_t digits = 0;
        T value = 0;
        for (; digits < std::min(text_.size(), kMostDigits) && is_digit(text_[digits]); ++digits)
            value = static_cast<T>(value * 10 + static_cast<T>(text_[digits] - '0'));
        good_ = good_ && digits != 0 && (digits == 1 || text_[0] != '0');
        if (!good_) return *this;
        number = value;
        text_.remove_prefix(digits);
        return *this;
    }
    // Digits, a point and an exponent where JSON allows them.
    Words& take_number(double& number) {
        const std::size_t end = end_of_number();
        const auto [stop, failure] = std::from_chars(text_.data(), text_.data() + end, number);
        good_ = good_ && end != 0 && failure == std::errc() && stop == text_.data() + end;
        if (good_) text_.remove_prefix(end);
        return *this;
    }
    Words& take_hex(std::uint64_t& number) {
        constexpr std::size_t kDigits = 16;
        const std::string_view digits = text_.substr(0, kDigits);
        good_ = good_ && digits.size() == kDigits &&
                digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
        if (!good_) return *this;
        std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
        text_.remove_prefix(kDigits);
        return *this;
    }
    // The name of a file or folder, up to the quotation mark.
    Words& take_name(std::string& name) {
        const auto is_plain = [](char c) {
            return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '/';
        };
        std::size_t length = 0;
        while (length < text_.size() && is_plain(text_[length]))
            ++length;
        const std::string_view found = text_.substr(0, length);
        good_ = good_ && found != "." && found != "..";
        if (!good_) return *this;
        name = found;
        text_.remove_prefix(length);
        return *this;
    }
    [[nodiscard]] bool are_all() const { return good_ && text_.empty(); }

   private:
    // 0: there is no number.
    [[nodiscard]] std::size_t end_of_number() const {
        std::size_t at = 0;
        const auto digits = [&] {
            const std::size_t begin = at;
            while (at < text_.size() && is_digit(text_[at]))
                ++at;
            return at - begin;
        };
        const auto is = [&](std::string_view any) {
            return at < text_.size() && any.find(text_[at]) != std::string_view::npos;
        };
        const bool from_zero = is("0");
        const std::size_t whole = digits();
        if (whole == 0 || (from_zero && whole > 1)) return 0;
        if (is(".")) {
            ++at;
            if (digits() == 0) return 0;
        }
        if (is("eE")) {
            ++at;
            if (is("+-")) ++at;
            if (digits() == 0) return 0;
        }
        return at;
    }

    std::string_view text_;
    bool good_ = true;
};

}  // namespace

std::optional<PlainStep> plain_step(std::string_view object, std::uint32_t rank) {
    PlainStep found;
    RankFiles& files = found.step.files;
    Words words(object);
    words.take("{\"folder\":\"").take_name(found.step.folder);
    words.take("\",\"ranks\":[{\"blocked_seconds\":").take_number(files.blocked_seconds);
    words.take(",\"data\":\"").take_name(files.data).take("\",\"data_bytes\":").take_number(files.data_bytes);
    const bool recorded = words.take_if(",\"difference\":");
    if (recorded) {
        words.take_number(files.difference);
        if (words.take_if(",\"difference_xxh3\":\"")) {
            words.take_hex(files.difference_checksum.emplace()).take("\"");
        }
        words.take(",\"full_bytes\":").take_number(files.full_bytes);
    }
    words.take(",\"header_xxh3\":\"").take_hex(files.header_checksum);
    words.take("\",\"metadata\":\"").take_name(files.metadata);
    words.take("\",\"metadata_bytes\":").take_number(files.metadata_bytes);
    words.take(",\"rank\":").take_number(files.rank).take("}],\"step\":").take_number(found.number).take("}");
    if (!words.are_all() || files.rank != rank || found.step.folder.empty()) return std::nullopt;
    if (recorded ? files.data.empty() || files.difference > kMostOrdinals : files.metadata.empty())
        return std::nullopt;
    return found;
}

}  // namespace twinrun
