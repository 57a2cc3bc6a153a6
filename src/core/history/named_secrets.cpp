#include "history/named_secrets.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "history/variables.hpp"

// A namespace of its own: other files of the room, which are compiled together, have functions of
// these names.
namespace twinrun::named {

namespace {

constexpr std::string_view kHidden = "...";
constexpr std::size_t kNowhere = std::string_view::npos;
// Names of secrets beside those of variables.
constexpr std::array<std::string_view, 5> kKeysOf{"access", "account", "api", "private", "secret"};
constexpr std::array<std::string_view, 13> kMoreWords{
    "pwd", "bearer", "sig",       "signature",  "cookie", "cookies",  "pswd",
    "psk", "otp",    "sessionid", "jsessionid", "sessid", "phpsessid"};
// Names of secrets end so, as "DBPASS" and "mypwd" do.
struct Ending {
    std::string_view end;
    std::span<const std::string_view> behind;  // only behind one of these; none: behind all letters
};
// Many ordinary words end in "key": "hotkey", "turkey".
constexpr std::array<std::string_view, 17> kBeforeKey{
    "auth", "license", "master", "consumer", "shared",  "ssh",     "app",       "client",    "server",
    "rsa",  "dsa",     "crypt",  "pass",     "session", "signing", "signature", "encryption"};
constexpr std::array<std::string_view, 9> kBeforePw{"bind", "root", "db",   "user", "admin",
                                                    "my",   "ldap", "sudo", "bot"};
constexpr std::array<Ending, 4> kEnds{{{"pass", {}}, {"pwd", {}}, {"key", kBeforeKey}, {"pw", kBeforePw}}};
// These words are ordinary.
constexpr std::array<std::string_view, 15> kOrdinary{
    "allpass",  "bandpass", "bypass",     "compass",    "encompass", "highpass", "lowpass", "multipass",
    "overpass", "prepass",  "renderpass", "singlepass", "subpass",   "surpass",  "trespass"};
constexpr std::size_t kLongestOrdinary = 10;
constexpr std::size_t kLongestPath = 1024;
constexpr std::size_t kLongestOption = 25;
constexpr std::size_t kLongestNumber = 9;
constexpr std::size_t kLongestKeyOfData = 12;
constexpr int kTextsWithinTexts = 3;

bool is_small(char c) { return c >= 'a' && c <= 'z'; }
bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_small(c) || is_capital(c); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_quote(char c) { return c == '\'' || c == '"'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f'); }
// Bytes of other alphabets are letters of words.
bool of_word(char c) {
    return is_letter(c) || is_digit(c) || c == '_' || static_cast<unsigned char>(c) > 127;
}
bool of_name(char c) { return is_letter(c) || c == '_' || c == '.' || c == '-'; }
char small(char c) { return is_capital(c) ? static_cast<char>(c - 'A' + 'a') : c; }

std::string in_small(std::string_view word) {
    std::string out(word);
    std::transform(out.begin(), out.end(), out.begin(), small);
    return out;
}

bool has_at(std::string_view text, std::size_t at, std::string_view word) {
    return text.substr(std::min(at, text.size()), word.size()) == word;
}

// In any case. word: in small letters.
bool has_any_case_at(std::string_view text, std::size_t at, std::string_view word) {
    if (at > text.size() || text.size() - at < word.size()) return false;
    return std::equal(word.begin(), word.end(), text.begin() + static_cast<std::ptrdiff_t>(at),
                      [](char w, char c) { return w == small(c); });
}

char sign_at(std::string_view text, std::size_t at) { return at < text.size() ? text[at] : '\0'; }
char sign_before(std::string_view text, std::size_t at) { return at > 0 ? text[at - 1] : '\0'; }

template <typename Is>
std::size_t skipped(std::string_view text, std::size_t at, Is is, std::size_t most = std::string_view::npos) {
    const std::size_t begin = at;
    while (at < text.size() && at - begin < most && is(text[at]))
        ++at;
    return at;
}

// ---- names ----

// Words that are names of secrets wherever they stand, and those that must be words of their own;
// in small letters, the longest of the latter first.
struct Words {
    std::vector<std::string> within, own;

    Words() {
        for (const char* word : variable_rules().secret_words)
            within.push_back(in_small(word));
        for (const char* word : variable_rules().secret_variable_words)
            own.push_back(in_small(word));
        own.insert(own.end(), kMoreWords.begin(), kMoreWords.end());
        std::stable_sort(own.begin(), own.end(),
                         [](const auto& a, const auto& b) { return a.size() > b.size(); });
    }
};

const Words& words() {
    static const Words all;
    return all;
}

// Whether a longer word that is no secret begins with the one that ends here: "tokenizer",
// "secretary".
bool goes_on(std::string_view text, std::size_t begin, std::size_t end) {
    const std::string_view word = text.substr(begin, end - begin);
    const auto ends_with = [&](std::string_view with) {
        return word.size() >= with.size() && has_any_case_at(word, word.size() - with.size(), with);
    };
    return (ends_with("token") && (has_any_case_at(text, end, "is") || has_any_case_at(text, end, "iz"))) ||
           (ends_with("secret") && has_any_case_at(text, end, "ar"));
}

// Where a name ends that begins at `at` and may be a part of a longer word.
std::size_t end_within(std::string_view text, std::size_t at) {
    const auto checked = [&](std::size_t end) { return goes_on(text, at, end) ? kNowhere : end; };
    for (const std::string& word : words().within) {
        if (!has_any_case_at(text, at, word)) continue;
        if (const std::size_t end = checked(at + word.size()); end != kNowhere) return end;
    }
    for (const std::string_view of : kKeysOf) {
        if (!has_any_case_at(text, at, of)) continue;
        std::size_t key = at + of.size();
        const char sign = sign_at(text, key);
        if (sign == '-' || sign == '_' || sign == ' ') ++key;
        if (has_any_case_at(text, key, "key")) return key + 3;
    }
    if (has_any_case_at(text, at, "secret")) {
        const char sign = sign_at(text, at + 6);
        const std::size_t id = at + (sign == '-' || sign == '_' ? 7 : 6);
        if (has_any_case_at(text, id, "id")) return id + 2;
    }
    return has_any_case_at(text, at, "passcode") ? at + 8 : kNowhere;
}

// Where a name ends that begins at `at` and is a word of its own, also by the case of its letters.
std::size_t end_of_own(std::string_view text, std::size_t at) {
    const char before = sign_before(text, at);
    const bool begins = !is_letter(before);
    const bool is_defined = at >= 2 && has_at(text, at - 2, "-D");
    for (const std::string& word : words().own) {
        if (!has_any_case_at(text, at, word)) continue;
        const std::size_t end = at + word.size();
        const char after = sign_at(text, end);
        if ((begins || is_defined) && !is_letter(after)) return end;
        // "AccountKey"
        if (is_letter(before) && is_capital(text[at]) && !is_small(after) &&
            std::all_of(word.begin() + 1, word.end(), [&](const char& c) {
                return c == text[at + static_cast<std::size_t>(&c - word.data())];
            })) {
            return end;
        }
        // "passWord"
        if (begins && is_capital(after) && has_at(text, at, word)) return end;
    }
    // "GH_PAT", a personal access token: in small letters it may be a pattern or a patch.
    const bool is_pat = before == '_' && has_at(text, at, "PAT") && !is_letter(sign_at(text, at + 3));
    return is_pat ? at + 3 : kNowhere;
}

// Where a name ends that begins at `at` and is the end of a word: "DBPASS", "authkey". Ordinary
// words are no names, also where they begin by the case of their letters: "useBypass".
std::size_t end_as_ending(std::string_view text, std::size_t at) {
    if (!is_letter(sign_before(text, at))) return kNowhere;
    for (const auto& [ending, behind] : kEnds) {
        const std::size_t end = at + ending.size();
        if (!has_any_case_at(text, at, ending) || is_letter(sign_at(text, end))) continue;
        if (!behind.empty()) {
            const auto stands_before = [&](std::string_view word) {
                return at >= word.size() && has_any_case_at(text, at - word.size(), word);
            };
            if (std::any_of(behind.begin(), behind.end(), stands_before)) return end;
            continue;
        }
        std::size_t begin = at;
        while (begin > 0 && end - begin <= kLongestOrdinary && is_letter(text[begin - 1]) &&
               !(is_small(text[begin - 1]) && is_capital(text[begin]))) {
            --begin;
        }
        const std::string_view word = text.substr(begin, end - begin);
        const bool is_one_word = std::all_of(word.begin() + 1, word.end(), is_small) ||
                                 std::all_of(word.begin(), word.end(), is_capital);
        if (!is_one_word || std::find(kOrdinary.begin(), kOrdinary.end(), in_small(word)) == kOrdinary.end())
            return end;
    }
    return kNowhere;
}

struct Found {
    std::size_t begin, end;
};

std::optional<Found> next_name(std::string_view text, std::size_t from) {
    for (std::size_t at = from; at < text.size(); ++at) {
        if (!is_letter(text[at])) continue;
        std::size_t end = end_within(text, at);
        if (end == kNowhere) end = end_of_own(text, at);
        if (end == kNowhere) end = end_as_ending(text, at);
        if (end != kNowhere) return Found{at, end};
    }
    return std::nullopt;
}

std::size_t count_names(std::string_view text) {
    std::size_t count = 0;
    for (auto found = next_name(text, 0); found; found = next_name(text, found->end))
        ++count;
    return count;
}

// The rest of a longer name: "_id2" of "secret_id2".
std::size_t end_of_name(std::string_view text, std::size_t at) {
    for (int part = 0; part < 4; ++part) {
        const std::size_t letters = skipped(text, at, is_digit, 2);
        const std::size_t end = skipped(text, letters, of_name, 24);
        if (end == letters) break;
        at = end;
    }
    return skipped(text, at, is_digit, 2);
}

// Whether a name is a part of a path that begins at the root or here; not of a URL's.
bool is_folder(std::string_view text, std::size_t begin, std::size_t end) {
    std::size_t from = begin;
    while (from > 0 && begin - from < kLongestPath && !is_blank(text[from - 1]) &&
           !is_quote(text[from - 1]) && text[from - 1] != '=' && text[from - 1] != ',' &&
           text[from - 1] != ':') {
        --from;
    }
    const std::string_view before = text.substr(from, begin - from);
    std::size_t slash = 0;
    if (has_at(before, 0, "~")) {
        slash = 1;
    } else if (has_at(before, 0, "{folder}")) {
        slash = 8;
    } else {
        slash = skipped(
            before, 0, [](char c) { return c == '.'; }, 2);
    }
    if (sign_at(before, slash) != '/' || sign_at(before, slash + 1) == '/') return false;
    // "/token:/x" may be an option and its value.
    const bool is_deep = std::count(before.begin(), before.end(), '/') > 1;
    const std::size_t after =
        skipped(text, end, [](char c) { return of_word(c) || c == '.' || c == '+' || c == '-'; });
    if (after == text.size() || text[after] == '/') return true;
    return is_deep && text[after] == ':' && (after + 1 == text.size() || text[after + 1] == '/');
}

// ---- values ----

std::size_t past_quote(std::string_view text, std::size_t at) {
    at = skipped(text, at, [](char c) { return c == '\\'; });
    return is_quote(sign_at(text, at)) ? at + 1 : at;
}

// Whether nothing stands behind a name, or another option.
bool has_no_value(std::string_view text, std::size_t name_end) {
    constexpr std::string_view kClosing = "\"'`)]}>.,;:=";
    const std::size_t at = past_quote(text, name_end);
    const auto closes = [&](char c) { return is_blank(c) || kClosing.find(c) != kNowhere; };
    // "..." is a value that was hidden before.
    if (skipped(text, at, closes) == text.size()) return text.find(kHidden, at) == kNowhere;
    const std::size_t option = skipped(text, at, is_blank);
    if (option == at || text[option] != '-') return false;
    std::size_t end = kNowhere;
    if (sign_at(text, option + 1) == '-') {
        if (is_letter(sign_at(text, option + 2))) end = skipped(text, option + 3, of_name, 24);
    } else if (is_letter(sign_at(text, option + 1))) {
        end = option + 2;
    }
    return end != kNowhere && (end == text.size() || is_blank(text[end]) || text[end] == '=');
}

// Where the value of a name begins, behind "=", ":" or blanks; kNowhere: behind none of them.
std::size_t value_begin(std::string_view text, std::size_t name_end) {
    const std::size_t at = past_quote(text, name_end);
    std::size_t begin = skipped(text, at, is_blank);
    if (const char sign = sign_at(text, begin); sign == '=' || sign == ':') {
        begin = skipped(text, begin + 1, is_blank);
    } else if (begin == at) {
        return kNowhere;
    }
    for (const std::string_view kind : {"bearer", "basic"}) {  // "Authorization: Bearer x"
        const std::size_t end = begin + kind.size();
        if (has_any_case_at(text, begin, kind) && is_blank(sign_at(text, end)))
            return skipped(text, end, is_blank);
    }
    return begin;
}

// Where a word of a shell ends, with the quotes in it; `at` where there is none.
std::size_t word_end(std::string_view text, std::size_t at) {
    while (at < text.size() && !is_blank(text[at])) {
        std::size_t end = at + 1;
        if (text[at] == '"') {
            while (end < text.size() && text[end] != '"')
                end += text[end] == '\\' ? 2 : 1;
        } else if (text[at] == '\'') {
            end = std::min(text.find('\'', end), text.size());
        }
        const bool needs_another = is_quote(text[at]) || text[at] == '\\';
        if (needs_another && end >= text.size()) return at;
        at = needs_another ? end + 1 : end;
    }
    return at;
}

// Whether a name is that of a number of things: "tokens", "key-size".
bool counts_things(std::string_view name) {
    const std::string word = in_small(name);
    if (word == "tokens" || word == "key" || word == "keys") return true;
    for (const std::string_view thing : {"token", "key", "sig", "pass"}) {
        if (!word.starts_with(thing)) continue;
        std::string_view rest = std::string_view(word).substr(thing.size());
        if (rest.starts_with('s')) rest.remove_prefix(1);
        if (rest.starts_with('-') || rest.starts_with('_')) rest.remove_prefix(1);
        for (const std::string_view of : {"count", "fig", "figs", "dim", "size", "len", "length", "limit"}) {
            if (rest == of) return true;
        }
        if (rest.size() > 4 && (rest.starts_with("per-") || rest.starts_with("per_")) &&
            std::all_of(rest.begin() + 4, rest.end(), [](char c) { return is_small(c) || c == '_'; })) {
            return true;
        }
    }
    return false;
}

bool is_number(std::string_view text, std::size_t at) {
    const std::size_t end = skipped(text, at, is_digit, kLongestNumber);
    const char after = sign_at(text, end);
    return end > at && !of_word(after) && after != '.';
}

// Whether "key" and the word behind it choose data: "--sort-key id".
bool is_key_of_data(std::string_view text, const Found& name, std::size_t name_end) {
    const std::string word = in_small(text.substr(name.begin, name.end - name.begin));
    if (word != "key" && word != "keys") return false;
    const std::size_t value = skipped(text, name_end, is_blank);
    const std::size_t end = skipped(
        text, value, [](char c) { return is_small(c) || c == '_'; }, kLongestKeyOfData);
    if (value == name_end || end == value || (end < text.size() && !is_blank(text[end]))) return false;
    const auto begins_option = [&](std::size_t at) {
        for (int hyphens = 0;; ++hyphens) {
            if (at == 0 || is_blank(text[at - 1]) || is_quote(text[at - 1])) return true;
            if (hyphens == 2 || text[at - 1] != '-') return false;
            --at;
        }
    };
    if (begins_option(name.begin)) return true;
    const char sign = sign_before(text, name.begin);
    if (sign != '-' && sign != '_') return false;
    for (const std::string_view kind : {"sort", "primary", "partition", "group"}) {
        if (name.begin <= kind.size()) continue;
        const std::size_t at = name.begin - 1 - kind.size();
        if (has_any_case_at(text, at, kind) && begins_option(at)) return true;
    }
    return false;
}

// Whether a text has only options, with or without numbers.
bool has_options_only(std::string_view text) {
    std::size_t at = is_quote(sign_at(text, 0)) ? 1 : 0;
    while (true) {
        const std::size_t option = skipped(text, at, is_blank);
        if (option == text.size()) return true;
        if (option == at || text[option] != '-') return false;
        const std::size_t name = option + (sign_at(text, option + 1) == '-' ? 2 : 1);
        if (!is_letter(sign_at(text, name))) return false;
        at = skipped(text, name, of_name, kLongestOption);
        const bool has_equals = sign_at(text, at) == '=';
        const std::size_t number = has_equals ? at + 1 : skipped(text, at, is_blank);
        const std::size_t end = skipped(text, number, is_digit, kLongestNumber);
        const bool is_whole = end > number && (end == text.size() || is_blank(text[end]));
        if (is_whole && number > at) {
            at = end;
        } else if (has_equals) {
            return false;
        }
    }
}

// ---- signs for others ----

int digit_of(char c) {
    if (is_digit(c)) return c - '0';
    const char letter = small(c);
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// "%3D" and "\u003d" as "=", once.
std::string with_numbered_signs(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t digits = text[at] == '%'                      ? at + 1
                                   : has_any_case_at(text, at, "\\u00") ? at + 4
                                                                        : text.size();
        const int high = digit_of(sign_at(text, digits));
        const int low = digit_of(sign_at(text, digits + 1));
        if (high >= 0 && low >= 0) {
            out += static_cast<char>(16 * high + low);
            at = digits + 2;
        } else {
            out += text[at++];
        }
    }
    return out;
}

// As a shell reads it: "tok""en" is one word.
std::string joined_as_by_shell(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char after = sign_at(text, at + 1);
        if (is_quote(text[at]) || (text[at] == '\\' && is_letter(after))) continue;
        if (text[at] == '\\' && after == '\n') {
            ++at;
            continue;
        }
        out += text[at];
    }
    return out;
}

std::size_t count_urls(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find("://", at)) != kNowhere; at += 3)
        ++count;
    return count;
}

std::string plain(std::string_view given) {
    std::string text(given);
    const auto finds_more = [&](std::string_view other) {
        return count_urls(other) > count_urls(text) || count_names(other) > count_names(text);
    };
    std::string decoded = text;
    for (int depth = 0; depth < kTextsWithinTexts; ++depth) {
        std::string next = with_numbered_signs(decoded);
        if (next == decoded) break;
        decoded = std::move(next);
        if (finds_more(decoded)) text = decoded;
    }
    std::string joined = joined_as_by_shell(text);
    return finds_more(joined) ? joined : text;
}

std::string shown(std::string_view text) {
    std::string before;  // what is shown, of the text before `at`
    std::size_t at = 0;
    for (auto found = next_name(text, 0); found; found = next_name(text, found->end)) {
        if (found->begin < at || is_folder(text, found->begin, found->end) ||
            is_folder_of_shell(text, found->end)) {
            continue;
        }
        const std::size_t end = end_of_name(text, found->end);
        if (has_no_value(text, end)) continue;
        const std::size_t value = value_begin(text, end);
        if (value != kNowhere &&
            ((counts_things(text.substr(found->begin, end - found->begin)) && is_number(text, value)) ||
             is_key_of_data(text, *found, end))) {
            continue;
        }
        if (!before.empty() && !has_options_only(text.substr(at, end - at))) return before;
        const std::size_t last = value == kNowhere ? kNowhere : word_end(text, value);
        if (value == kNowhere || last == value) {
            const std::size_t kept = value == kNowhere ? found->end : value;
            return before + std::string(text.substr(at, kept - at)) + std::string(kHidden);
        }
        before += text.substr(at, value - at);
        before += kHidden;
        at = last;
    }
    if (before.empty()) return std::string(text);
    return has_options_only(text.substr(at)) ? before + std::string(text.substr(at)) : before;
}

}  // namespace

}  // namespace twinrun::named

namespace twinrun {

std::string plain_signs(std::string_view text) { return named::plain(text); }

std::string without_named_secrets(std::string_view text) { return named::shown(text); }

bool is_folder_of_shell(std::string_view text, std::size_t name_end) {
    std::size_t begin = name_end;
    if (!text.substr(0, begin).ends_with("PWD")) return false;
    begin -= 3;
    if (text.substr(0, begin).ends_with("OLD")) begin -= 3;
    if (begin > 0 && !named::is_blank(text[begin - 1]) && !named::is_quote(text[begin - 1])) return false;
    if (named::sign_at(text, name_end) != '=') return false;
    const std::size_t value = name_end + (named::is_quote(named::sign_at(text, name_end + 1)) ? 2 : 1);
    return named::sign_at(text, value) == '/';
}

}  // namespace twinrun
