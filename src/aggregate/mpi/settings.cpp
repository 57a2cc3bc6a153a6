#include "aggregate/mpi/settings.hpp"

#include <twinrun/aggregate.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>

#include "base/checksum.hpp"
#include "base/sized.hpp"
#include "base/text_settings.hpp"
#include "platform/file_io.hpp"

namespace twinrun::aggregation {

namespace {

using S = Settings;
using V = std::string_view;
using text::assign;

bool count(int& to, V value, int least, int most) {
    const auto n = text::number<int>(value);
    if (!n || *n < least || *n > most) return false;
    to = *n;
    return true;
}

bool size(std::uint64_t& to, V value) {
    const auto n = text::bytes(value);
    return n && *n <= std::uint64_t{1} << 48 && assign(to, n);
}

template <class T>
bool named(T& to, const Result<T>& known) {
    if (known) to = known.value();
    return known.ok();
}

constexpr std::array kSettings{
    text::Setting<S>{"files", "one, node or rank",
                     [](S& s, V v) {
                         return assign(
                             s.files,
                             text::one_of<Files, 3>(
                                 v, {{{"one", Files::one}, {"node", Files::node}, {"rank", Files::rank}}}));
                     }},
    text::Setting<S>{"nodes_per_file", "a number; 0: 1",
                     [](S& s, V v) {
                         const bool known = count(s.nodes_per_file, v, 0, INT_MAX);
                         s.nodes_per_file = std::max(s.nodes_per_file, 1);
                         return known;
                     }},
    text::Setting<S>{"aggregators", "a number; 0: chosen",
                     [](S& s, V v) { return count(s.aggregators, v, 0, INT_MAX); }},
    text::Setting<S>{"placement", "cost, rank, bridge, random or worst",
                     [](S& s, V v) { return named(s.placement, placement_of(std::string(v))); }},
    text::Setting<S>{"topology", "a description, as in docs/reference/aggregate.md",
                     [](S& s, V v) {
                         s.topology = v;
                         return !v.empty();
                     }},
    text::Setting<S>{"backend", "posix, uring or mpiio",
                     [](S& s, V v) { return named(s.backend, backend_of(std::string(v))); }},
    text::Setting<S>{"buffers", "2 to 256: one fills while another is written; 0: 2",
                     [](S& s, V v) {
                         if (v == "0") v = "2";
                         return count(s.buffers, v, 2, kMostBuffers);
                     }},
    text::Setting<S>{"buffer_bytes", "a size of at most 2^48; 0: chosen",
                     [](S& s, V v) { return size(s.buffer_bytes, v); }},
    text::Setting<S>{"block_bytes", "a size of at most 2^48; 0: what the file system says",
                     [](S& s, V v) { return size(s.block_bytes, v); }},
    text::Setting<S>{"sync", "true or false", [](S& s, V v) { return assign(s.sync, text::truth(v)); }},
    text::Setting<S>{"update", "true or false", [](S& s, V v) { return assign(s.update, text::truth(v)); }},
    text::Setting<S>{"time_limit", "seconds; negative: no limit; 0: what the environment says",
                     [](S& s, V v) {
                         const auto seconds = text::number<double>(v);
                         return seconds && std::isfinite(*seconds) && assign(s.time_limit, seconds);
                     }},
    text::Setting<S>{"seed", "a number",
                     [](S& s, V v) { return assign(s.seed, text::number<std::uint64_t>(v)); }},
    text::Setting<S>{"no_index", "true or false",
                     [](S& s, V v) {
                         const auto none = text::truth(v);
                         s.index = !none.value_or(false);
                         return none.has_value();
                     }},
    text::Setting<S>{"overlap", "true or false", [](S& s, V v) { return assign(s.overlap, text::truth(v)); }},
    text::Setting<S>{"plan", "a file; empty: none",
                     [](S& s, V v) {
                         s.plan = v;
                         return true;
                     }},
    text::Setting<S>{
        "offsets", "file or whole",
        [](S& s, V v) {
            return assign(s.whole, text::one_of<bool, 2>(v, {{{"file", false}, {"whole", true}}}));
        }},
    text::Setting<S>{"striping_factor", "a number of at most 65535; -1: all targets; 0: the folder's",
                     [](S& s, V v) { return count(s.striping.factor, v, -1, kMostStripes); }},
    text::Setting<S>{"striping_unit", "a multiple of 64 KiB below 4 GiB; 0: the folder's",
                     [](S& s, V v) {
                         std::uint64_t unit = 0;
                         if (!size(unit, v) || unit % kStripeUnit != 0 || unit >= kLargestStripe)
                             return false;
                         s.striping.unit = unit;
                         return true;
                     }},
};
constexpr std::span<const text::Setting<S>> kKnown(kSettings);

Error bad_setting(const std::string& what) { return Error{ErrorCode::invalid_argument, what}; }

// The time limit from the environment: users, not only programs, decide how long a job may hang.
Result<double> default_time_limit() {
    const char* const given = std::getenv("TWINRUN_AGGREGATE_TIME_LIMIT");
    if (given == nullptr || *given == '\0') return kTimeLimit;
    char* end = nullptr;
    const double value = std::strtod(given, &end);
    if (*end == '\0' && std::isfinite(value) && value != 0) return value;
    return bad_setting("TWINRUN_AGGREGATE_TIME_LIMIT is '" + std::string(given) +
                       "', and must be seconds (negative: no limit)");
}

}  // namespace

Result<> Settings::set(std::string_view name, std::string_view value) {
    return text::set(*this, kKnown, name, value);
}

Result<> Settings::load(const std::string& path) {
    TWR_TRY(const auto all, read_whole_file(path, text::kLargestFile));
    return text::set_lines(*this, kKnown, {reinterpret_cast<const char*>(all.data()), all.size()}, path);
}

Result<Settings> settings_of(const twr_aggregate_options* options) {
    Settings settings;
    if (options == nullptr) return settings;
    constexpr twr_aggregate_options defaults = TWR_AGGREGATE_OPTIONS_INIT;
    TWR_TRY(
        const twr_aggregate_options known,
        known_part(options, defaults, offsetof(twr_aggregate_options, no_index), "twr_aggregate_options"));
    const std::array<std::pair<const char*, const char*>, 6> words{{{"files", known.files},
                                                                    {"plan", known.plan},
                                                                    {"offsets", known.offsets},
                                                                    {"placement", known.placement},
                                                                    {"topology", known.topology},
                                                                    {"backend", known.backend}}};
    for (const auto& [name, word] : words) {
        if (word != nullptr) TWR_CHECK(settings.set(name, word));
    }
    const std::array<std::pair<const char*, std::string>, 8> numbers{
        {{"nodes_per_file", std::to_string(known.nodes_per_file)},
         {"aggregators", std::to_string(known.aggregators)},
         {"buffers", std::to_string(known.buffers)},
         {"buffer_bytes", std::to_string(known.buffer_bytes)},
         {"block_bytes", std::to_string(known.block_bytes)},
         {"seed", std::to_string(known.seed)},
         {"striping_factor", std::to_string(known.striping_factor)},
         {"striping_unit", std::to_string(known.striping_unit)}}};
    for (const auto& [name, number] : numbers)
        TWR_CHECK(settings.set(name, number));
    settings.sync = known.sync != 0;
    settings.update = known.update != 0;
    if (std::isnan(known.time_limit)) return bad_setting("setting time_limit: is not a number");
    settings.time_limit = known.time_limit;
    settings.index = known.no_index == 0;
    settings.overlap = known.overlap != 0;
    return settings;
}

Result<Settings> complete(Settings settings) {
    // Checked even if it is not needed, so that the first run reports a typing error.
    TWR_TRY(const double limit, default_time_limit());
    if (settings.time_limit == 0) settings.time_limit = limit;
    TWR_CHECK(backend_usable(settings.backend));
    if (settings.overlap && settings.update) {
        return bad_setting(
            "settings contradict each other: bytes that several ranks declare (overlap) are only read, and "
            "update is set: leave one of them out");
    }
    if (settings.whole && !settings.index) {
        return bad_setting(
            "settings contradict each other: offsets = whole needs the index, and no_index is set: leave "
            "one of them out");
    }
    if (settings.whole && settings.update && settings.files != Files::one) {
        return bad_setting(
            "settings contradict each other: files that hold parts of a whole one (offsets = whole) are "
            "written anew, and update is set: leave one of them out");
    }
    return settings;
}

std::uint64_t hash_of(const Settings& s) {
    std::string all = s.topology;
    all.append(1, '\0').append(s.plan).append(1, '\0');
    char limit[32];
    std::snprintf(limit, sizeof limit, " %a", s.time_limit);
    all += limit;
    for (const std::uint64_t number :
         {static_cast<std::uint64_t>(s.files), static_cast<std::uint64_t>(s.nodes_per_file),
          static_cast<std::uint64_t>(s.aggregators), static_cast<std::uint64_t>(s.placement),
          static_cast<std::uint64_t>(s.backend), static_cast<std::uint64_t>(s.buffers), s.buffer_bytes,
          s.block_bytes, std::uint64_t{s.sync}, std::uint64_t{s.update}, s.seed, std::uint64_t{s.index},
          std::uint64_t{s.whole}, std::uint64_t{s.overlap}, static_cast<std::uint64_t>(s.striping.factor),
          s.striping.unit})
        all.append(1, ' ').append(std::to_string(number));
    return xxh3(std::string_view(all));
}

}  // namespace twinrun::aggregation
