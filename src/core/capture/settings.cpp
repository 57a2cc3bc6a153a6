// The settings of a run by name, as text.

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>

#include "base/text_settings.hpp"
#include "capture/session.hpp"
#include "record/compression.hpp"

namespace twinrun {

namespace {

using S = SessionSettings;
using V = std::string_view;
using Setting = text::Setting<S>;
using text::assign;
using text::assign_narrow;
using text::bytes;
using text::number;
using text::one_of;
using text::truth;

bool is_tolerance(double x) { return std::isfinite(x) && x >= 0; }

template <auto kMember>
bool is_size(const S& s) {
    return s.*kMember <= text::kMostBytes;
}

constexpr std::array kSettings{
    Setting{"atol", "a number, not negative",
            [](S& s, V v) { return assign(s.history.tolerance.atol, number<double>(v)); },
            [](const S& s) { return is_tolerance(s.history.tolerance.atol); }},
    Setting{"rtol", "a number, not negative",
            [](S& s, V v) { return assign(s.history.tolerance.rtol, number<double>(v)); },
            [](const S& s) { return is_tolerance(s.history.tolerance.rtol); }},
    Setting{"residue_bits", "0, 2 or 4",
            [](S& s, V v) { return assign(s.history.residue_bits, number<unsigned>(v)); },
            [](const S& s) {
                const unsigned bits = s.history.residue_bits;
                return bits == 0 || bits == 2 || bits == 4;
            }},
    Setting{"chunk_bytes", "a power of two from 4096 to 1048576",
            [](S& s, V v) { return assign_narrow(s.history.chunk_bytes, bytes(v)); },
            [](const S& s) {
                const std::uint32_t n = s.history.chunk_bytes;
                return n >= kSmallestChunk && n <= kLargestChunk && (n & (n - 1)) == 0;
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
            [](S& s, V v) { return assign_narrow(s.record_settings.chunk_bytes, bytes(v)); },
            [](const S& s) { return record_chunk_ok(s.record_settings.chunk_bytes); }},
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
            [](S& s, V v) { return assign(s.record_settings.level, number<int>(v)); },
            [](const S& s) { return s.record_settings.level >= -7 && s.record_settings.level <= 19; }},
    Setting{"record_xor", "true or false",
            [](S& s, V v) { return assign(s.record_settings.xored, truth(v)); }},
    Setting{"record_against", "a record's folder",
            [](S& s, V v) {
                s.record_settings.against = v;
                return true;
            }},
    Setting{"record_table", "a size; 0: no limit",
            [](S& s, V v) { return assign(s.record_table_bytes, bytes(v)); },
            is_size<&S::record_table_bytes>},
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
    Setting{"local_limit", "a size, for example 10 GiB; 0: no limit",
            [](S& s, V v) { return assign(s.local_bytes, bytes(v)); }, is_size<&S::local_bytes>},
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
            [](S& s, V v) { return assign(s.memory_bytes, bytes(v)); }, is_size<&S::memory_bytes>},
    Setting{"device_memory", "a size", [](S& s, V v) { return assign(s.device_bytes, bytes(v)); },
            is_size<&S::device_bytes>},
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
    Setting{"threads", "a number; 0: all cores", [](S& s, V v) { return assign(s.threads, number<int>(v)); },
            [](const S& s) { return s.threads >= 0 && s.threads <= 4096; }},
    Setting{"flush_threads", "1 to 64", [](S& s, V v) { return assign(s.flush_threads, number<int>(v)); },
            [](const S& s) { return s.flush_threads >= 1 && s.flush_threads <= 64; }},
    Setting{"reference", "a history's folder",
            [](S& s, V v) {
                s.reference = v;
                return true;
            }},
    Setting{"stop_on_divergence", "true or false",
            [](S& s, V v) { return assign(s.stop_on_divergence, truth(v)); }},
    Setting{"log_divergence", "true or false", [](S& s, V v) { return assign(s.log_divergence, truth(v)); }},
};
constexpr std::span<const Setting> kKnown(kSettings);

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
    return text::set(*this, kKnown, name, value);
}

Result<> SessionSettings::check(std::string_view name, std::string_view value) const {
    for (const Setting& setting : kKnown) {
        if (setting.name == name && !setting.holds(*this)) return setting.wrong(value);
    }
    return success();
}

Result<> SessionSettings::load(const std::string& path) {
    TWR_TRY(const auto all, read_whole_file(path, text::kLargestFile));
    return text::set_lines(*this, kKnown, {reinterpret_cast<const char*>(all.data()), all.size()}, path);
}

}  // namespace twinrun
