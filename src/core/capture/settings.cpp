// Settings by name, as text: what C, Fortran, configuration files and environment variables give.

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "capture/session.hpp"
#include "record/compression.hpp"

namespace twinrun {

namespace {

std::string_view trim(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    const std::size_t first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

template <class T>
std::optional<T> number(std::string_view text) {
    T value{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// "1048576", "64 MiB", "1.5GiB".
std::optional<std::uint64_t> bytes(std::string_view text) {
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
    if (!value || factor == 0 || !(*value >= 0) || *value * factor > 0x1p62) return std::nullopt;
    return static_cast<std::uint64_t>(*value * factor);
}

std::optional<bool> truth(std::string_view text) {
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

struct Setting {
    std::string_view name;
    std::string_view wanted;  // what a value must be
    bool (*set)(SessionSettings&, std::string_view value);
};

using S = SessionSettings;
using V = std::string_view;

bool tolerance(double& to, V value) {
    const auto x = number<double>(value);
    if (!x || !std::isfinite(*x) || *x < 0) return false;
    to = *x;
    return true;
}

constexpr std::array kSettings{
    Setting{"atol", "a number, not negative",
            [](S& s, V v) { return tolerance(s.history.tolerance.atol, v); }},
    Setting{"rtol", "a number, not negative",
            [](S& s, V v) { return tolerance(s.history.tolerance.rtol, v); }},
    Setting{"residue_bits", "0, 2 or 4",
            [](S& s, V v) {
                return (v == "0" || v == "2" || v == "4") &&
                       assign(s.history.residue_bits, number<unsigned>(v));
            }},
    Setting{"chunk_bytes", "a power of two from 4096 to 1048576",
            [](S& s, V v) {
                const auto n = bytes(v);
                if (!n || *n < kSmallestChunk || *n > kLargestChunk || (*n & (*n - 1)) != 0) return false;
                s.history.chunk_bytes = static_cast<std::uint32_t>(*n);
                return true;
            }},
    Setting{"digest", "linear or published",
            [](S& s, V v) {
                return assign(s.history.kind,
                              one_of<DigestKind, 2>(v, {{{"linear", DigestKind::linear},
                                                         {"published", DigestKind::published}}}));
            }},
    Setting{
        "mode", "full or digests",
        [](S& s, V v) {
            return assign(s.history.keep_data, one_of<bool, 2>(v, {{{"full", true}, {"digests", false}}}));
        }},
    Setting{"record", "runs, tree, list, basic, full or off",
            [](S& s, V v) {
                s.record = method_of(v);
                return s.record.has_value() || v == "off";
            }},
    Setting{"record_chunk", "a power of two from 32 to 65536",
            [](S& s, V v) {
                const auto n = bytes(v);
                if (!n || !record_chunk_ok(*n)) return false;
                s.record_settings.chunk_bytes = static_cast<std::uint32_t>(*n);
                return true;
            }},
    Setting{"record_compress", "zstd or none",
            [](S& s, V v) {
                const bool known =
                    assign(s.record_settings.codec,
                           one_of<PayloadCodec, 2>(
                               v, {{{"zstd", PayloadCodec::zstd}, {"none", PayloadCodec::stored}}}));
                if (s.record_settings.codec == PayloadCodec::stored) s.record_settings.xored = false;
                return known;
            }},
    Setting{"record_level", "-7 to 19",
            [](S& s, V v) {
                return assign(s.record_settings.level, number<int>(v)) && s.record_settings.level >= -7 &&
                       s.record_settings.level <= 19;
            }},
    Setting{"record_xor", "true or false",
            [](S& s, V v) { return assign(s.record_settings.xored, truth(v)); }},
    Setting{"record_against", "a record's folder",
            [](S& s, V v) {
                s.record_settings.against = v;
                return true;
            }},
    Setting{"record_table", "a size; 0: no limit",
            [](S& s, V v) { return assign(s.record_table_bytes, bytes(v)); }},
    Setting{"existing", "refuse, append or replace",
            [](S& s, V v) {
                return assign(s.existing, one_of<Existing, 3>(v, {{{"refuse", Existing::refuse},
                                                                   {"append", Existing::append},
                                                                   {"replace", Existing::replace}}}));
            }},
    Setting{"local", "a folder",
            [](S& s, V v) {
                s.local = v;
                return true;
            }},
    Setting{"local_limit", "a size, as 10 GiB; 0: none",
            [](S& s, V v) { return assign(s.local_bytes, bytes(v)); }},
    Setting{"flusher", "thread, process or none",
            [](S& s, V v) {
                return assign(s.flusher, one_of<Flusher, 3>(v, {{{"thread", Flusher::thread},
                                                                 {"process", Flusher::process},
                                                                 {"none", Flusher::none}}}));
            }},
    Setting{"flush_program", "a path",
            [](S& s, V v) {
                s.flush_program = v;
                return true;
            }},
    Setting{"memory", "a size of at least 16 MiB, or 0",
            [](S& s, V v) { return assign(s.memory_bytes, bytes(v)); }},
    Setting{"device_memory", "a size", [](S& s, V v) { return assign(s.device_bytes, bytes(v)); }},
    Setting{"shared_files", "off, one, node or rank",
            [](S& s, V v) {
                return assign(s.shared_files, one_of<SharedFiles, 4>(v, {{{"off", SharedFiles::off},
                                                                          {"rank", SharedFiles::off},
                                                                          {"one", SharedFiles::one},
                                                                          {"node", SharedFiles::node}}}));
            }},
    Setting{"keep_steps", "a number; 0: all",
            [](S& s, V v) { return assign(s.keep.steps, number<std::uint64_t>(v)); }},
    Setting{"keep_data_steps", "a number; 0: all",
            [](S& s, V v) { return assign(s.keep.data_steps, number<std::uint64_t>(v)); }},
    Setting{"replace_steps", "true or false", [](S& s, V v) { return assign(s.replace_steps, truth(v)); }},
    Setting{"background", "true or false", [](S& s, V v) { return assign(s.background, truth(v)); }},
    Setting{
        "threads", "a number; 0: all cores",
        [](S& s, V v) { return assign(s.threads, number<int>(v)) && s.threads >= 0 && s.threads <= 4096; }},
    Setting{"flush_threads", "1 to 64",
            [](S& s, V v) {
                return assign(s.flush_threads, number<int>(v)) && s.flush_threads >= 1 &&
                       s.flush_threads <= 64;
            }},
    Setting{"reference", "a history's folder",
            [](S& s, V v) {
                s.reference = v;
                return true;
            }},
    Setting{"stop_on_divergence", "true or false",
            [](S& s, V v) { return assign(s.stop_on_divergence, truth(v)); }},
    Setting{"log_divergence", "true or false", [](S& s, V v) { return assign(s.log_divergence, truth(v)); }},
};

}  // namespace

RecordSettings default_record() {
    RecordSettings settings;
    if (codec_available(PayloadCodec::zstd)) {
        settings.codec = PayloadCodec::zstd;
        settings.xored = true;
    }
    return settings;
}

Result<> SessionSettings::set(std::string_view name, std::string_view value) {
    name = trim(name);
    value = trim(value);
    for (const Setting& setting : kSettings) {
        if (name != setting.name) continue;
        SessionSettings changed = *this;
        if (setting.set(changed, value)) {
            *this = std::move(changed);
            return success();
        }
        return Error{ErrorCode::invalid_argument, "setting " + std::string(name) + " = '" +
                                                      std::string(value) + "': give " +
                                                      std::string(setting.wanted)};
    }
    std::string names;
    for (const Setting& setting : kSettings)
        names += (names.empty() ? "" : ", ") + std::string(setting.name);
    return Error{ErrorCode::invalid_argument,
                 "no setting of the name '" + std::string(name) + "'; there are " + names};
}

Result<> SessionSettings::load(const std::string& path) {
    constexpr std::uint64_t kLargest = 1 << 20;
    TWR_TRY(const auto all, read_whole_file(path, kLargest));
    std::string_view text(reinterpret_cast<const char*>(all.data()), all.size());
    SessionSettings changed = *this;  // all of the file's settings, or none
    for (int line = 1; !text.empty(); ++line) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view one = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        one = trim(one.substr(0, one.find('#')));
        if (one.empty()) continue;
        const std::size_t equals = one.find('=');
        auto done = equals == std::string_view::npos
                        ? Result<>(Error{ErrorCode::invalid_argument, "not of the form name = value"})
                        : changed.set(one.substr(0, equals), one.substr(equals + 1));
        if (!done) return std::move(done).error().at(path + ":" + std::to_string(line));
    }
    *this = std::move(changed);
    return success();
}

}  // namespace twinrun
