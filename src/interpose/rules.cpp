#include "interpose/rules.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>

#include "interpose/raw.hpp"

namespace twinrun::interpose {

Rules g_rules;
std::uint32_t g_rules_of[kCalls] = {};

namespace {

constexpr std::uint64_t kLongest = 3600ULL * 1000000000ULL;

// A part of a text.
struct Part {
    const char* begin;
    const char* end;
    [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end - begin); }
    [[nodiscard]] bool is(const char* text) const {
        return size() == std::strlen(text) && std::memcmp(begin, text, size()) == 0;
    }
    [[nodiscard]] bool starts(const char* text) const {
        const std::size_t n = std::strlen(text);
        return size() >= n && std::memcmp(begin, text, n) == 0;
    }
    [[nodiscard]] Part after(const char* text) const { return {begin + std::strlen(text), end}; }
};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

Part trimmed(Part part) {
    while (part.begin < part.end && is_space(*part.begin))
        ++part.begin;
    while (part.begin < part.end && is_space(part.end[-1]))
        --part.end;
    return part;
}

// Returns the part before `separator`; the rest stays in `text`.
Part cut(Part& text, char separator) {
    const char* at = text.begin;
    while (at < text.end && *at != separator)
        ++at;
    const Part first{text.begin, at};
    text.begin = at < text.end ? at + 1 : at;
    return first;
}

bool fail(Rules& rules, Part where, const char* what) {
    Text text(rules.error, sizeof rules.error);
    text.put(what);
    text.put(": '");
    for (const char* c = where.begin; c < where.end && c < where.begin + 120; ++c)
        text.put(*c);
    text.put('\'');
    rules.count = 0;
    return false;
}

// A decimal number as value * 10^-digits, with at most 15 digits; false if it is not one.
bool decimal(Part& part, std::uint64_t& value, int& digits) {
    value = 0;
    digits = 0;
    int n = 0;
    bool point = false;
    for (; part.begin < part.end; ++part.begin) {
        const char c = *part.begin;
        if (c == '.' && !point && part.begin + 1 < part.end && part.begin[1] != '.') {
            point = true;
        } else if (c >= '0' && c <= '9') {
            if (++n > 15) return false;
            value = value * 10 + static_cast<std::uint64_t>(c - '0');
            if (point) ++digits;
        } else {
            break;
        }
    }
    return n > 0;
}

bool whole_number(Part part, std::uint64_t& value) {
    int digits = 0;
    return decimal(part, value, digits) && digits == 0 && part.begin == part.end;
}

bool time_of(Part part, std::uint64_t& ns) {
    std::uint64_t value = 0;
    int digits = 0;
    if (!decimal(part, value, digits)) return false;
    std::uint64_t unit = 0;
    if (part.is("ns")) unit = 1;
    if (part.is("us")) unit = 1000;
    if (part.is("ms")) unit = 1000000;
    if (part.is("s")) unit = 1000000000;
    if (unit == 0) return false;
    unsigned __int128 product = static_cast<unsigned __int128>(value) * unit;
    for (; digits > 0; --digits)
        product /= 10;
    if (product > kLongest) return false;
    ns = static_cast<std::uint64_t>(product);
    return true;
}

bool span_of(Part part, Rule& rule) {
    const char* dots = part.begin;
    while (dots + 1 < part.end && !(dots[0] == '.' && dots[1] == '.'))
        ++dots;
    if (dots + 1 >= part.end) {
        if (!time_of(part, rule.low_ns)) return false;
        rule.high_ns = rule.low_ns;
        return true;
    }
    return time_of({part.begin, dots}, rule.low_ns) && time_of({dots + 2, part.end}, rule.high_ns) &&
           rule.low_ns <= rule.high_ns;
}

bool probability_of(Part part, Rule& rule) {
    std::uint64_t value = 0;
    int digits = 0;
    if (!decimal(part, value, digits) || part.begin != part.end) return false;
    double p = static_cast<double>(value);
    for (; digits > 0; --digits)
        p /= 10;
    if (!(p > 0 && p <= 1)) return false;
    rule.always = p >= 1;
    rule.threshold = rule.always ? ~std::uint64_t{0} : static_cast<std::uint64_t>(p * 18446744073709551616.0);
    return true;
}

bool calls_of(Part part, Rule& rule) {
    bool found = false;
    for (std::size_t i = 0; i < kCalls; ++i) {
        if (part.is(kCallInfos[i].name) ||
            part.is(kGroupNames[static_cast<std::size_t>(kCallInfos[i].group)])) {
            rule.calls[i] = found = true;
        }
    }
    return found;
}

// Calls with a file; the option `path` is not possible for others.
bool has_path(Call call) {
    const Group group = info(call).group;
    return group == Group::posix_read || group == Group::posix_write || group == Group::posix_meta ||
           group == Group::posix_stream || group == Group::stdio;
}

bool parse_rule(Part part, Rules& rules) {
    Rule& rule = *new (&rules.rules[rules.count]) Rule{};
    {
        Text text(rule.text, sizeof rule.text);
        for (const char* c = part.begin; c < part.end; ++c)
            text.put(*c);
        if (!text.whole()) return fail(rules, part, "a rule is longer than 383 characters");
    }
    Part rest = part;
    const Part calls = trimmed(cut(rest, ':'));
    if (rest.begin == rest.end) {
        return fail(rules, part, "a rule is CALL:delay=TIME, CALL:replace=TIME or CALL:skip");
    }
    if (!calls_of(calls, rule)) return fail(rules, calls, "there is no such call or group of calls");
    const Part action = trimmed(cut(rest, ','));
    if (action.is("skip")) {
        rule.action = Rule::Action::replace;
    } else if (action.starts("replace=")) {
        rule.action = Rule::Action::replace;
        if (!span_of(action.after("replace="), rule))
            return fail(rules, action, "not a time as 5ms or 1ms..5ms, an hour at most");
    } else if (action.starts("delay=")) {
        if (!span_of(action.after("delay="), rule))
            return fail(rules, action, "not a time as 5ms or 1ms..5ms, an hour at most");
    } else {
        return fail(rules, action, "what is to be done is delay=TIME, replace=TIME or skip");
    }
    bool files = false;
    for (std::size_t i = 0; i < kCalls; ++i) {
        if (!rule.calls[i]) continue;
        files = files || has_path(static_cast<Call>(i));
        if (rule.action == Rule::Action::replace && !kCallInfos[i].may_be_pretended) {
            return fail(rules, calls,
                        "cannot be left out: only write, pwrite, writev, pwritev, fsync, fdatasync, fwrite "
                        "and fflush can");
        }
    }
    while (rest.begin < rest.end) {
        const Part option = trimmed(cut(rest, ','));
        std::uint64_t value = 0;
        if (option.starts("probability=")) {
            if (!probability_of(option.after("probability="), rule))
                return fail(rules, option, "not above 0 and at most 1");
        } else if (option.starts("path=")) {
            const Part glob = option.after("path=");
            if (glob.size() == 0 || glob.size() >= sizeof rule.glob)
                return fail(rules, option, "not a pattern of 1 to 255 characters");
            if (!files) return fail(rules, option, "only calls of POSIX and stdio have a path");
            std::memcpy(rule.glob, glob.begin, glob.size());
            rule.glob[glob.size()] = 0;
            rules.paths = true;
        } else if (option.starts("rank=")) {
            if (!whole_number(option.after("rank="), value) || value > 1000000000)
                return fail(rules, option, "not a rank");
            rule.rank = static_cast<long>(value);
        } else if (option.starts("most=")) {
            if (!whole_number(option.after("most="), value))
                return fail(rules, option, "not a number of calls");
            rule.most = value;
        } else {
            return fail(rules, option, "an option is probability=P, path=GLOB, rank=N or most=N");
        }
    }
    ++rules.count;
    return true;
}

std::uint64_t mixed(std::uint64_t x) {  // SplitMix64's output function (Steele, Lea, Flood 2014)
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

// Waits for `ns`. Sleeps, as a program does that waits for a slow file system, and spins for times
// below the kernel's timer slack (50 us). Uses the system call, because the C library's sleep is a
// cancellation point, and calls like mkdir are not.
std::uint64_t wait(std::uint64_t ns) {
    const std::uint64_t start = clock_ns();
    const std::uint64_t until = start + ns;
    if (ns >= 50000) {
        const timespec at = {.tv_sec = static_cast<time_t>(until / 1000000000U),
                             .tv_nsec = static_cast<long>(until % 1000000000U)};
        while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0 &&
               errno == EINTR) {
        }
    }
    std::uint64_t end = clock_ns();
    while (end < until)
        end = clock_ns();
    return end - start;
}

// For each descriptor: the bits of the rules whose path its file matches, found at its first use,
// below 16 bits of a generation. Asking the kernel for the file's name at every write would be
// slow.
static_assert(kMostRules <= 16);
constexpr int kDescriptors = 65536;
std::atomic<std::uint32_t> g_fits[kDescriptors];
std::atomic<std::uint32_t> g_renames{0};

std::uint32_t rules_of_path(const char* path) {
    std::uint32_t bits = 0;
    for (std::size_t r = 0; r < g_rules.count; ++r) {
        if (g_rules.rules[r].glob[0] != 0 && fits(g_rules.rules[r].glob, path)) bits |= std::uint32_t{1} << r;
    }
    return bits;
}

std::uint32_t rules_of_target(const Target& target) {
    if (target.path != nullptr) return rules_of_path(target.path);
    if (target.descriptor < 0) return 0;
    const std::uint32_t moment = g_renames.load(std::memory_order_relaxed) % 0xFFFF + 1;
    const bool kept = target.descriptor < kDescriptors;
    if (kept) {
        const std::uint32_t known = g_fits[target.descriptor].load(std::memory_order_relaxed);
        if (known >> 16 == moment) return known & 0xFFFF;
    }
    char link[40];
    Text text(link, sizeof link);
    text.put("/proc/self/fd/");
    text.put(static_cast<std::uint64_t>(target.descriptor));
    char path[4096];
    const long n = raw_readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    const std::uint32_t bits = rules_of_path(path);
    if (kept) g_fits[target.descriptor].store(moment << 16 | bits, std::memory_order_relaxed);
    return bits;
}

}  // namespace

bool fits(const char* glob, const char* path) {
    if (std::strchr(glob, '/') == nullptr) {
        const char* last = std::strrchr(path, '/');
        if (last != nullptr) path = last + 1;
    }
    const char* star = nullptr;
    const char* from = nullptr;
    while (*path != 0) {
        if (*glob == '*') {
            star = glob++;
            from = path;
        } else if (*glob == '?' || *glob == *path) {
            ++glob;
            ++path;
        } else if (star != nullptr) {
            glob = star + 1;
            path = ++from;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        ++glob;
    return *glob == 0;
}

void forget_path(int descriptor) {
    if (descriptor >= 0 && descriptor < kDescriptors) g_fits[descriptor].store(0, std::memory_order_relaxed);
}

void forget_paths() { g_renames.fetch_add(1, std::memory_order_relaxed); }

bool parse_rules(const char* text, Rules& rules) {
    rules.count = 0;
    rules.error[0] = 0;
    Part rest{text, text + std::strlen(text)};
    while (rest.begin < rest.end) {
        const Part rule = trimmed(cut(rest, ';'));
        if (rule.size() == 0) continue;
        if (rules.count == kMostRules) return fail(rules, rule, "there are more than 16 rules");
        if (!parse_rule(rule, rules)) return false;
    }
    return true;
}

void use_rules() {
    for (std::size_t i = 0; i < kCalls; ++i) {
        std::uint32_t bits = 0;
        for (std::size_t r = 0; r < g_rules.count; ++r) {
            if (g_rules.rules[r].calls[i]) bits |= std::uint32_t{1} << r;
        }
        g_rules_of[i] = bits;
    }
}

void reset_rules() {
    for (std::size_t r = 0; r < g_rules.count; ++r) {
        Rule& rule = g_rules.rules[r];
        rule.seen = 0;
        rule.done = 0;
        rule.asked_ns = 0;
        rule.spent_ns = 0;
    }
}

bool inject(Call call, Target target) {
    const int error = errno;
    bool pretended = false;
    bool looked = false;
    std::uint32_t fitting = 0;
    const int rank =
        g_state.rank >= 0 ? g_state.rank : (g_state.launcher_rank >= 0 ? g_state.launcher_rank : 0);
    for (std::size_t r = 0; r < g_rules.count && !pretended; ++r) {
        if ((g_rules_of[static_cast<std::size_t>(call)] >> r & 1) == 0) continue;
        Rule& rule = g_rules.rules[r];
        if (rule.rank >= 0 && rule.rank != rank) continue;
        if (rule.glob[0] != 0) {
            if (!looked) fitting = rules_of_target(target);
            looked = true;
            if ((fitting >> r & 1) == 0) continue;
        }
        const std::uint64_t number = rule.seen.fetch_add(1, std::memory_order_relaxed);
        const std::uint64_t draw =
            mixed(mixed(mixed(g_rules.seed + static_cast<std::uint64_t>(rank)) + r) + number);
        if (!rule.always && draw >= rule.threshold) continue;
        if (rule.done.fetch_add(1, std::memory_order_relaxed) >= rule.most) {
            rule.done.fetch_sub(1, std::memory_order_relaxed);
            continue;
        }
        const std::uint64_t width = rule.high_ns - rule.low_ns + 1;
        const std::uint64_t ns =
            rule.low_ns +
            static_cast<std::uint64_t>((static_cast<unsigned __int128>(mixed(draw)) * width) >> 64);
        rule.asked_ns.fetch_add(ns, std::memory_order_relaxed);
        if (ns > 0) rule.spent_ns.fetch_add(wait(ns), std::memory_order_relaxed);
        pretended = rule.action == Rule::Action::replace;
    }
    errno = error;
    return pretended;
}

}  // namespace twinrun::interpose
