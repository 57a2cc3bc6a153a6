#include "history/secrets.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

#include "history/named_secrets.hpp"
#include "history/variables.hpp"

namespace twinrun {

namespace {

constexpr std::string_view kHidden = "...";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::size_t kLongestName = 80;
// Also where one slash was lost, as in a path that was made of a URL.
constexpr std::array<std::string_view, 10> kStores{"http", "https", "s3",   "s3a",  "gs",
                                                   "gcs",  "az",    "abfs", "hdfs", "ftp"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_quote(char c) { return c == '\'' || c == '"'; }
bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool of_name(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.'; }

std::size_t first_of(std::string_view text, std::string_view signs, std::size_t from) {
    return std::min(text.find_first_of(signs, from), text.size());
}

// ---- URLs ----

// Where the scheme of the URL whose ":/" stands at `colon` begins; npos: it is none.
std::size_t scheme_begin(std::string_view text, std::size_t colon) {
    std::size_t begin = colon;
    while (begin > 0 && (is_letter(text[begin - 1]) || is_digit(text[begin - 1]) || text[begin - 1] == '+' ||
                         text[begin - 1] == '.' || text[begin - 1] == '-')) {
        --begin;
    }
    std::string scheme(text.substr(begin, colon - begin));
    for (char& c : scheme)
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool known = text.substr(colon, 3) == "://"
                           ? !scheme.empty() && scheme != "file"
                           : std::find(kStores.begin(), kStores.end(), scheme) != kStores.end();
    return known ? begin : std::string_view::npos;
}

// Where the host begins that stands behind a user and a password at `from`.
std::size_t host_begin(std::string_view text, std::size_t from) {
    const std::string_view place = text.substr(from, first_of(text, "/?#'\" \t\r\n", from) - from);
    const std::size_t at = place.rfind('@');
    if (at != std::string_view::npos) return from + at + 1;
    const std::size_t colon = first_of(text, "/?#[]:@ \t\r\n", from);
    if (colon == text.size() || text[colon] != ':') return from;
    std::size_t port = colon + 1;
    while (port < text.size() && is_digit(text[port]))
        ++port;
    if (first_of(text, "/?# \t\r\n", port) == port) return from;
    // A user or a password with a bare slash, question mark or quote.
    const std::size_t last = text.substr(0, first_of(text, kBlanks, from)).rfind('@');
    return last == std::string_view::npos || last < from ? from : last + 1;
}

std::string without_users_and_queries(std::string_view text) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t colon = 0; (colon = text.find(":/", colon)) != std::string_view::npos;) {
        if (colon < at || scheme_begin(text, colon) == std::string_view::npos) {
            colon += 2;
            continue;
        }
        const std::size_t slashes = colon + (text.substr(colon, 3) == "://" ? 3 : 2);
        out += text.substr(at, slashes - at);
        at = host_begin(text, slashes);
        std::size_t end = first_of(text, "?#'\" \t\r\n", at);
        // A URL may be a part of another one's path.
        std::size_t next = text.find(":/", at);
        while (next < end && scheme_begin(text, next) == std::string_view::npos)
            next = text.find(":/", next + 2);
        colon = next < end ? next : end;
        if (next < end) continue;
        out += text.substr(at, end - at);
        at = end;
        if (end < text.size() && (text[end] == '?' || text[end] == '#')) {
            at = colon = first_of(text, "'\" \t\r\n", end);
        }
    }
    return out + std::string(text.substr(at));
}

// "//me:pw@host/x" becomes "//host/x", at the beginning of a word.
std::string without_users_of_hosts(std::string_view text) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t slashes = 0; (slashes = text.find("//", slashes)) != std::string_view::npos;) {
        slashes += 2;
        const char before = slashes > 2 ? text[slashes - 3] : ' ';
        if (slashes < at || !(is_blank(before) || is_quote(before) || before == '=')) continue;
        out += text.substr(at, slashes - at);
        at = slashes = host_begin(text, slashes);
    }
    return out + std::string(text.substr(at));
}

// ---- values with a name ----

struct Name {
    std::size_t begin, end;
    char quote;  // in which it begins; 0: none
    bool quoted_alone;
};

// The name before the '=' or ':' at `sign`.
Name name_before(std::string_view text, std::size_t sign) {
    std::size_t end = sign;
    while (end > 0 && is_blank(text[end - 1]))
        --end;
    const bool closed = end > 0 && is_quote(text[end - 1]);
    if (closed) --end;
    std::size_t begin = end;
    while (begin > 0 && end - begin < kLongestName && of_name(text[begin - 1]))
        --begin;
    const bool opened = begin > 0 && is_quote(text[begin - 1]);
    return {begin, end, opened ? text[begin - 1] : '\0', closed};
}

// Where a value ends that begins with a quote, which stands before `from`.
std::size_t quote_end(std::string_view text, std::size_t from, char quote) {
    while (from < text.size() && text[from] != quote)
        from += text[from] == '\\' ? 2 : 1;
    return std::min(from, text.size());
}

// Whether the name at `begin` has a value behind the colon at `sign`, as in "token: x", and is no
// folder of a list.
bool may_have_colon(std::string_view text, std::size_t begin, std::size_t sign) {
    const char before = begin == 0 ? ' ' : text[begin - 1];
    if (is_blank(before) || is_quote(before) ||
        std::string_view("{,;&?[(").find(before) != std::string_view::npos) {
        return true;
    }
    // "--header=Authorization: x" and "/token:x".
    if (sign + 1 >= text.size() || text[sign + 1] == '/') return false;
    return before == '=' || (before == '/' && (begin == 1 || is_blank(text[begin - 2])));
}

std::string without_named_values(std::string_view text) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t sign = 0; (sign = text.find_first_of("=:", sign)) != std::string_view::npos; ++sign) {
        if (text.substr(sign, 3) == "://") continue;
        const Name name = name_before(text, sign);
        if (name.begin < at || name.begin == name.end) continue;
        // "token:" is a name where it begins a word; in a list of folders it may be a part of one.
        if (text[sign] == ':' && !may_have_colon(text, name.begin, sign)) continue;
        if (!option_names_secret(text.substr(name.begin, name.end - name.begin))) continue;
        if (is_folder_of_shell(text, name.end)) continue;
        std::size_t begin = sign + 1;
        while (begin < text.size() && is_blank(text[begin]))
            ++begin;
        std::size_t end;
        if (begin < text.size() && is_quote(text[begin])) {
            end = quote_end(text, begin + 1, text[begin]);
            ++begin;
        } else if (name.quote != '\0' && !name.quoted_alone) {
            end = quote_end(text, begin, name.quote);
        } else {
            end = first_of(text, text[sign] == '=' ? kBlanks : std::string_view("\n"), begin);
        }
        if (begin >= end) continue;
        out += text.substr(at, begin - at);
        out += kHidden;
        at = end;
        sign = end - 1;
    }
    return out + std::string(text.substr(at));
}

// ---- words ----

// Whether a word behind an option is another option, and not the option's value.
bool is_option(std::string_view word) {
    const bool is_long = word.size() > 2 && word.substr(0, 2) == "--" && is_letter(word[2]);
    return is_long || (word.size() == 2 && word[0] == '-' && is_letter(word[1]));
}

// Whether a word is NAME=VALUE, with a name that is a secret's.
bool is_secret_setting(std::string_view word, std::size_t equals) {
    if (equals == std::string_view::npos || equals > kLongestName) return false;
    const std::string_view name = word.substr(0, equals);
    return std::all_of(name.begin(), name.end(), [](char c) { return of_name(c) || c == '+'; }) &&
           option_names_secret(name) && !is_folder_of_shell(word, equals);
}

// Whether a secret stands behind this word: "--token", "--token:", "password".
bool comes_before_secret(std::string_view word) {
    if (word.ends_with(':')) word.remove_suffix(1);
    if (word.empty() || word.size() > kLongestName || !std::all_of(word.begin(), word.end(), of_name))
        return false;
    return word_names_secret(word) || (word[0] == '-' && option_names_secret(word));
}

// "Bearer pw" becomes "Bearer ...", and "--token pw" becomes "--token ...".
std::string without_values_of_words(std::string_view text) {
    constexpr std::string_view kBounds = " \t\r\n'\"=";
    std::string out;
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = first_of(text, kBounds, begin);
        const std::string_view word = text.substr(begin, end - begin);
        begin = end + 1;
        if (!comes_before_secret(word)) continue;
        std::size_t value = std::min(text.find_first_not_of(kBlanks, end), text.size());
        if (value == end || value == text.size()) continue;
        const bool quoted = is_quote(text[value]);
        const std::size_t last =
            quoted ? quote_end(text, value + 1, text[value]) : first_of(text, " \t\r\n'\"", value);
        if (quoted) ++value;
        if (value >= last || text[value] == '=' || text[value] == ':' ||
            is_option(text.substr(value, last - value))) {
            continue;
        }
        out += text.substr(at, value - at);
        out += kHidden;
        at = begin = last;
    }
    return out + std::string(text.substr(at));
}

// ---- secrets that have a known form ----

std::string in_small_letters(std::string_view word) {
    std::string small(word);
    for (char& c : small)
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return small;
}

bool of_token(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; }

bool of_letters_and_digits(char c) { return is_letter(c) || is_digit(c); }
bool of_capitals_and_digits(char c) { return (c >= 'A' && c <= 'Z') || is_digit(c); }
bool of_token_and_dots(char c) { return of_token(c) || c == '.'; }
bool of_base64(char c) { return of_letters_and_digits(c) || c == '+' || c == '/' || c == '='; }

bool is_anything(std::string_view) { return true; }
bool has_digit(std::string_view body) { return std::any_of(body.begin(), body.end(), is_digit); }

// Whether this is no ordinary word: it has a digit, a plus, or a capital behind a small letter.
bool looks_encoded(std::string_view body) {
    char before = ' ';
    return std::any_of(body.begin(), body.end(), [&](char c) {
        const char last = std::exchange(before, c);
        return is_digit(c) || c == '+' || (last >= 'a' && last <= 'z' && c >= 'A' && c <= 'Z');
    });
}

// What services give out as tokens, and how these begin.
struct Form {
    std::string_view beginning;  // in small letters: in any case
    std::size_t shortest;        // so many signs stand behind the beginning
    bool (*of)(char);
    bool (*may_be)(std::string_view) = is_anything;
    // Between parts of it, which are not empty.
    std::array<std::string_view, 2> between{};
};
constexpr std::array<Form, 26> kForms{{
    {"ghp_", 16, of_token, has_digit},
    {"gho_", 16, of_token, has_digit},
    {"ghu_", 16, of_token, has_digit},
    {"ghs_", 16, of_token, has_digit},
    {"ghr_", 16, of_token, has_digit},
    {"github_pat_", 16, of_token, has_digit},
    {"glpat-", 16, of_token, has_digit},
    {"hf_", 16, of_token, has_digit},
    {"sk-", 16, of_token, has_digit},
    {"akia", 16, of_token, has_digit},
    {"xoxb-", 16, of_token, has_digit},
    {"xoxp-", 16, of_token, has_digit},
    {"nvapi-", 16, of_token, has_digit},
    {"AKIA", 16, of_capitals_and_digits},
    {"ASIA", 16, of_capitals_and_digits},
    {"sk_live_", 16, of_letters_and_digits},
    {"sk_test_", 16, of_letters_and_digits},
    {"rk_live_", 16, of_letters_and_digits},
    {"rk_test_", 16, of_letters_and_digits},
    {"npm_", 30, of_letters_and_digits},
    {"AIza", 30, of_token},
    {"ya29.", 20, of_token},
    {"hvs.", 20, of_token},
    {"SG.", 20, of_token_and_dots, is_anything, {"."}},
    {"eyJ", 0, of_token_and_dots, is_anything, {".eyJ", "."}},  // a JWT
    {"Basic ", 8, of_base64, looks_encoded},
}};

template <typename Is>
std::size_t skipped(std::string_view text, std::size_t from, Is is) {
    const std::string_view rest = text.substr(std::min(from, text.size()));
    return text.size() - rest.size() +
           static_cast<std::size_t>(std::find_if_not(rest.begin(), rest.end(), is) - rest.begin());
}

// Where a token of this form ends that begins at `at`; npos: there is none.
std::size_t token_end(std::string_view text, std::size_t at, const Form& form) {
    const std::string_view beginning = text.substr(at, form.beginning.size());
    if (beginning != form.beginning && in_small_letters(beginning) != form.beginning)
        return std::string_view::npos;
    at += beginning.size();
    const std::size_t end = skipped(text, at, form.of);
    if (end - at < form.shortest || !form.may_be(text.substr(at, end - at))) return std::string_view::npos;
    for (const std::string_view between : form.between) {
        if (between.empty()) break;
        const std::size_t part = skipped(text, at, of_token);
        if (part == at || text.substr(part, between.size()) != between) return std::string_view::npos;
        at = part + between.size();
    }
    return skipped(text, end, of_token);
}

// "ghp_pw" becomes "ghp_...": tokens of services that say by their beginning what they are.
std::string without_known_tokens(std::string_view text) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < text.size(); ++begin) {
        std::size_t end = skipped(text, begin, of_token);
        for (const Form& form : kForms) {
            const std::size_t last = begin == end ? std::string_view::npos : token_end(text, begin, form);
            if (last == std::string_view::npos) continue;
            out += text.substr(at, begin + form.beginning.size() - at);
            out += kHidden;
            at = end = last;
            break;
        }
        begin = end;
    }
    return out + std::string(text.substr(at));
}

std::string cleaned(std::string_view text) {
    const std::string places = without_users_of_hosts(without_users_and_queries(text));
    const std::string named = without_named_secrets(without_known_tokens(places));
    return without_values_of_words(without_named_values(named));
}

// ---- texts within texts ----

// A text whose quotes all have a backslash before them, as JSON within a JSON text: without those
// backslashes. Any other stays as it is.
std::string unescaped(std::string_view text) {
    for (std::size_t quote = 0; (quote = text.find('"', quote)) != std::string_view::npos; ++quote) {
        if (quote == 0 || text[quote - 1] != '\\') return std::string(text);
    }
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char next = at + 1 < text.size() ? text[at + 1] : ' ';
        if (text[at] == '\\' && (next == '"' || next == '\\')) ++at;
        out += text[at];
    }
    return out;
}

int digit_of(char c) {
    if (is_digit(c)) return c - '0';
    const char small = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

// A text that has a URL as a part of another URL, "https%3A%2F%2Fhost": with its signs for "%3A".
// Any other stays as it is.
std::string without_percents(std::string_view text) {
    const auto is_mark = [](std::string_view three) { return three == "%2F" || three == "%2f"; };
    bool has_url = false;
    for (std::size_t at = 0; (at = text.find('%', at)) != std::string_view::npos; ++at)
        has_url |= is_mark(text.substr(at, 3)) && is_mark(text.substr(std::min(at + 3, text.size()), 3));
    if (!has_url) return std::string(text);
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const int high = text[at] == '%' && at + 2 < text.size() ? digit_of(text[at + 1]) : -1;
        const int low = high >= 0 ? digit_of(text[at + 2]) : -1;
        out += low >= 0 ? static_cast<char>(16 * high + low) : text[at];
        if (low >= 0) at += 2;
    }
    return out;
}

// Whether this word is the kind of what follows: "Authorization: Basic pw".
bool is_kind_of_credentials(std::string_view word) {
    constexpr std::array<std::string_view, 5> kKinds{"basic", "bearer", "digest", "token", "negotiate"};
    return std::find(kKinds.begin(), kKinds.end(), in_small_letters(word)) != kKinds.end();
}

// Whether a word ends with the name of a secret and a colon, as where a shell took the quotes away:
// "--header=X-Api-Key:" and "{token:".
bool ends_with_name_of_secret(std::string_view word) {
    if (!word.ends_with(':')) return false;
    const Name name = name_before(word, word.size() - 1);
    return name.begin < name.end && !word.ends_with("::") &&
           option_names_secret(word.substr(name.begin, name.end - name.begin));
}

// Whether this word names a secret that the next one is, in ways that only both together show.
bool names_next(std::string_view word, std::string_view next) {
    if (next.empty() || without_secrets(word) != word) return false;
    if (next == "=" || next == ":" || is_kind_of_credentials(next)) next = "0x0";  // any secret
    const std::string before = std::string(word) + ' ';
    return without_secrets(before + std::string(next)) != before + without_secrets(next);
}

}  // namespace

std::string without_secrets(std::string_view given) {
    const std::string text = plain_signs(given);
    const std::string plain = cleaned(text);
    for (const auto decode : {unescaped, without_percents}) {
        const std::string decoded = decode(text);
        if (decoded == text) continue;
        std::string other = cleaned(decoded);
        // What is hidden in the decoded text alone is hidden; otherwise the text stays as it was
        // given.
        if (other != decode(plain)) return other;
    }
    return plain;
}

std::vector<std::string> without_secrets(std::vector<std::string> words) {
    bool hide = false, hide_all = false;  // hide_all: also what looks like an option
    for (std::size_t at = 0; at < words.size(); ++at) {
        std::string& word = words[at];
        const std::size_t equals = word.find('=');
        if ((hide || hide_all) && (word == "=" || word == ":" || is_kind_of_credentials(word))) continue;
        const bool was_named = std::exchange(hide_all, false);
        hide_all = !was_named && at + 1 < words.size() && names_next(word, words[at + 1]);
        if (was_named || (std::exchange(hide, false) && !is_option(word))) {
            word = kHidden;
            hide = hide_all = false;
        } else if (is_secret_setting(word, equals)) {
            word = word.substr(0, equals + 1) + std::string(kHidden);
        } else if (comes_before_secret(word)) {
            hide = true;
        } else {
            hide = ends_with_name_of_secret(word);
            word = without_secrets(std::string_view(word));
        }
    }
    return words;
}

std::string quoted_line(const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) {
        if (!line.empty()) line += ' ';
        if (!word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?[]{}`#~") == std::string::npos) {
            line += word;
            continue;
        }
        line += '\'';
        for (const char c : word)
            line += c == '\'' ? "'\\''" : std::string(1, c);
        line += '\'';
    }
    return line;
}

std::vector<std::string> words_of_line(std::string_view line) {
    std::vector<std::string> words;
    bool within = false, begun = false;
    std::string word;
    for (std::size_t at = 0; at < line.size(); ++at) {
        const char c = line[at];
        if (c == '\'') {
            within = !within;
            begun = true;
        } else if (!within && c == ' ') {
            if (begun) words.push_back(std::exchange(word, {}));
            begun = false;
        } else if (!within && c == '\\' && at + 1 < line.size()) {
            word += line[++at];
            begun = true;
        } else {
            word += c;
            begun = true;
        }
    }
    if (begun) words.push_back(word);
    return words;
}

}  // namespace twinrun
