#include "veloc/config.hpp"

#include <twinrun/twinrun.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

namespace twinrun::veloc {

namespace {

constexpr std::size_t kLargestFile = 1 << 20;
constexpr std::string_view kOwn = "twinrun_";

struct Value {
    std::string text;
    std::string where;
};
using Values = std::map<std::string, Value>;

// Keys of VELOC without effect here; docs/reference/veloc.md gives the reasons.
const std::set<std::string, std::less<>> kIgnored = {
    "persistent_interval",
    "ec_interval",
    "watchdog_interval",
    "scratch_versions",
    "failure_domain",
    "axl_type",
    "chksum",
    "meta",
    "aggregated",
    "threaded",
    "max_parallelism",
    "log_prefix",
    "daos_pool",
    "daos_cont",
};

// Settings of twinrun that VELOC's keys set already. A second way to set them could contradict the
// first silently.
const std::map<std::string, const char*, std::less<>> kTaken = {
    {"existing", "checkpoints always continue the history that is there"},
    {"replace_steps", "a version that is taken again always replaces the one before"},
    {"local", "set scratch"},
    {"background", "set mode"},
    {"keep_steps", "set max_versions"},
};

constexpr std::array<std::pair<const char*, std::pair<int, std::size_t>>, 15> kTypes = {{
    {"f16", {TWR_F16, 2}},
    {"bf16", {TWR_BF16, 2}},
    {"f32", {TWR_F32, 4}},
    {"f64", {TWR_F64, 8}},
    {"i8", {TWR_I8, 1}},
    {"i16", {TWR_I16, 2}},
    {"i32", {TWR_I32, 4}},
    {"i64", {TWR_I64, 8}},
    {"u8", {TWR_U8, 1}},
    {"u16", {TWR_U16, 2}},
    {"u32", {TWR_U32, 4}},
    {"u64", {TWR_U64, 8}},
    {"bool", {TWR_BOOL, 1}},
    {"c64", {TWR_C64, 8}},
    {"c128", {TWR_C128, 16}},
}};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

std::string_view stripped(std::string_view text) {
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    return text;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(), lower);
    return result;
}

// Removes a comment that begins after a space. VELOC's parser knows "; ..." there; it drops "# ..."
// because it reads one word.
std::string_view without_comment(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
        const bool begins = text[at] == ';' || text[at] == '#';
        if (begins && (at == 0 || is_space(text[at - 1]))) return stripped(text.substr(0, at));
    }
    return text;
}

// Text for messages: without control characters, and truncated.
std::string in_quotes(std::string_view text) {
    std::string result = "'";
    for (const char c : text.substr(0, 80))
        result += c >= ' ' && c != 0x7f ? c : '?';
    return result + (text.size() > 80 ? "...'" : "'");
}

// Names of groups keep their case in keys: twinrun_type_<name>.<id>. Everything else becomes lower
// case.
std::string folded_key(std::string_view key) {
    std::string folded = lowered(key);
    for (const std::string_view kind : {"twinrun_type_", "twinrun_atol_", "twinrun_rtol_", "twinrun_name_"}) {
        if (folded.starts_with(kind)) return std::string(kind).append(key.substr(kind.size()));
    }
    return folded;
}

std::optional<std::string> read_lines(std::string_view text, const std::string& file, Values& values) {
    if (text.size() > kLargestFile) return file + ": larger than 1 MiB: this is not a configuration file";
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    bool in_section = false;
    bool after_key = false;
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::string where = file + ":" + std::to_string(number) + ": ";
        if (line.find('\0') != std::string_view::npos) return where + "a zero byte: this is not a text file";
        const std::string_view content = stripped(line);
        if (content.empty() || content[0] == ';' || content[0] == '#') continue;
        if (content[0] == '[') {
            if (content.find(']') == std::string_view::npos) return where + "a section without its ]";
            in_section = true;
            after_key = false;
            continue;
        }
        if (after_key && is_space(line[0])) {
            if (in_section) continue;
            return where +
                   "begins with a space, so that VELOC would take it as more of the line above: remove the "
                   "space";
        }
        const std::size_t sign = content.find_first_of("=:");
        const std::string_view name =
            sign == std::string_view::npos ? content : stripped(content.substr(0, sign));
        if (sign == std::string_view::npos || name.empty() ||
            without_comment(content.substr(0, sign)).size() < name.size()) {
            return where + in_quotes(content) + " is not of the form: key = value";
        }
        const std::string key = folded_key(name);
        after_key = true;
        if (in_section) {  // VELOC reads only keys before the first section
            if (key.starts_with("twinrun"))
                return where + in_quotes(name) + ": put it before the first [section]";
            continue;
        }
        const std::string value(without_comment(stripped(content.substr(sign + 1))));
        if (value.empty()) continue;  // the same as a missing key
        const auto [place, added] = values.try_emplace(key, Value{value, where});
        if (!added && place->second.text != value)
            return where + in_quotes(name) + " was set to something else above";
    }
    return std::nullopt;
}

// VELOC_<KEY>, for keys of VELOC's in capitals; VELOC_TWINRUN_<SETTING> for ours.
void read_variables(const Variables& environment, Values& values) {
    constexpr std::string_view prefix = "VELOC_";
    for (const auto& [name, value] : environment) {
        if (!name.starts_with(prefix) || value.empty()) continue;
        const std::string key = folded_key(std::string_view(name).substr(prefix.size()));
        const bool known = key == "scratch" || key == "persistent" || key == "mode" ||
                           key == "max_versions" || key.starts_with(kOwn) || kIgnored.contains(key);
        if (known) values.insert_or_assign(key, Value{value, name + ": "});
    }
}

bool read_int(const std::string& text, int& number) {
    const char* end = text.data() + text.size();
    const auto [at, failure] = std::from_chars(text.data(), end, number);
    return failure == std::errc{} && at == end;
}

bool read_tolerance(const std::string& text, double& number) {
    const char* end = text.data() + text.size();
    const auto [at, failure] = std::from_chars(text.data(), end, number);
    return failure == std::errc{} && at == end && std::isfinite(number) && number >= 0;
}

bool read_bool(const std::string& text, bool& value) {
    const std::string word = lowered(text);
    value = word == "true";
    return value || word == "false";
}

// "3", "-3", "name.3"
bool is_region(const std::string& text) {
    const std::size_t dot = text.rfind('.');
    const std::string id = dot == std::string::npos ? text : text.substr(dot + 1);
    int number = 0;
    if (!read_int(id, number) || id != std::to_string(number)) return false;
    return dot == std::string::npos || valid_name(std::string_view(text).substr(0, dot));
}

std::optional<std::string> take_rule(const std::string& kind, const std::string& region, const Value& value,
                                     Config& config) {
    if (!is_region(region)) {
        return value.where + in_quotes("twinrun_" + kind + "_" + region) + ": after twinrun_" + kind +
               "_ comes the id of a region, or name.id";
    }
    RegionRule& rule = config.rules[region];
    if (kind == "type") {
        const std::string type_name = lowered(value.text);
        const auto* type =
            std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.first == type_name; });
        if (type == kTypes.end()) {
            std::string all;
            for (const auto& t : kTypes)
                all.append(all.empty() ? "" : ", ").append(t.first);
            return value.where + in_quotes(value.text) + " is not a type: " + all;
        }
        rule.dtype = type->second.first;
        rule.item_bytes = type->second.second;
    } else if (kind == "name") {
        const bool plain = value.text.size() <= 200 && std::none_of(value.text.begin(), value.text.end(),
                                                                    [](unsigned char c) { return c < ' '; });
        if (!plain)
            return value.where + "not a name for a field: at most 200 bytes, none of them for control";
        rule.field = value.text;
    } else if (!read_tolerance(value.text, kind == "atol" ? rule.atol : rule.rtol)) {
        return value.where + in_quotes(value.text) + " is not a tolerance: a number that is not negative";
    }
    return std::nullopt;
}

std::optional<std::string> take_own(const std::string& name, const Value& value, Config& config) {
    for (const char* kind : {"type", "atol", "rtol", "name"}) {
        const std::string begin = std::string(kind) + "_";
        if (name.starts_with(begin)) return take_rule(kind, name.substr(begin.size()), value, config);
    }
    if (const auto taken = kTaken.find(name); taken != kTaken.end())
        return value.where + "twinrun_" + name + " is not for this file: " + taken->second;
    if (name == "log") return std::nullopt;  // handled first
    if (name == "reference") {
        config.reference = value.text;
    } else if (name == "copy_regions") {
        if (!read_bool(value.text, config.copy_regions))
            return value.where + in_quotes(value.text) + " is neither true nor false";
    } else {
        if (name == "mode") config.digests_only = value.text == "digests";
        if (name == "flusher") config.keeps_local = value.text == "none";
        if (name == "atol" && !read_tolerance(value.text, config.atol))
            return value.where + in_quotes(value.text) + " is not a tolerance: a number that is not negative";
        if (name == "rtol" && !read_tolerance(value.text, config.rtol))
            return value.where + in_quotes(value.text) + " is not a tolerance: a number that is not negative";
        // Names and values are checked now, not at the first checkpoint hours later.
        twr_settings* settings = nullptr;
        if (twr_settings_create(&settings) != TWR_OK) return value.where + twr_error_message();
        const int status = twr_settings_set(settings, name.c_str(), value.text.c_str());
        const std::string message = status == TWR_OK ? "" : twr_error_message();
        twr_settings_destroy(settings);
        if (status != TWR_OK) return value.where + message;
        config.settings.emplace_back(name, value.text);
    }
    return std::nullopt;
}

}  // namespace

RegionRule Config::rule(const std::string& group, int id) const {
    const std::string number = std::to_string(id);
    auto found = rules.find(group + "." + number);
    if (found == rules.end()) found = rules.find(number);
    RegionRule rule = found == rules.end() ? RegionRule{} : found->second;
    if (rule.dtype == 0) {
        rule.dtype = TWR_U8;
        rule.atol = rule.rtol = 0;
    } else if (rule.atol >= 0 || rule.rtol >= 0) {
        if (rule.atol < 0) rule.atol = atol;
        if (rule.rtol < 0) rule.rtol = rtol;
    }
    if (rule.field.empty()) rule.field = "region-" + number;
    return rule;
}

std::optional<std::string> parse_config(std::string_view text, const std::string& where,
                                        const Variables& environment, Config& config) {
    Values values;
    const auto problem_of_lines = read_lines(text, where, values);
    read_variables(environment, values);
    // First, so that other errors can be logged there.
    if (const auto log = values.find("twinrun_log"); log != values.end()) config.log = log->second.text;
    if (problem_of_lines) return problem_of_lines;
    const auto take = [&](const char* key) {
        const auto at = values.find(key);
        return at == values.end() ? nullptr : &at->second;
    };
    for (const char* needed : {"scratch", "mode"}) {
        if (take(needed) == nullptr) return where + ": the key " + needed + " is missing";
    }
    config.scratch = take("scratch")->text;
    const Value& mode = *take("mode");
    if (mode.text != "sync" && mode.text != "async")
        return mode.where + "mode is " + in_quotes(mode.text) + ": it must be sync or async";
    config.sync = mode.text == "sync";
    if (take("daos_pool") != nullptr && take("daos_cont") != nullptr)
        return take("daos_pool")->where +
               "DAOS is not supported: set persistent to a folder, and remove daos_pool";
    if (const Value* persistent = take("persistent")) config.persistent = persistent->text;
    if (const Value* versions = take("max_versions");
        versions && !read_int(versions->text, config.max_versions))
        return versions->where + "max_versions is " + in_quotes(versions->text) +
               ": it must be a whole number";
    config.max_versions = std::max(config.max_versions, 0);
    if (const Value* interval = take("persistent_interval")) {
        int seconds = 0;
        if (!read_int(interval->text, seconds)) {
            return interval->where + "persistent_interval is " + in_quotes(interval->text) +
                   ": it must be a whole number";
        }
        if (seconds < 0) config.persistent.clear();
    }
    for (const auto& [key, value] : values) {
        if (key.starts_with(kOwn)) {
            if (auto problem = take_own(key.substr(kOwn.size()), value, config)) return problem;
        } else if (key.starts_with("twinrun")) {
            return value.where + in_quotes(key) + ": keys of twinrun begin with twinrun_";
        } else if (key != "scratch" && key != "mode" && key != "persistent" && key != "max_versions" &&
                   !kIgnored.contains(key)) {
            config.unknown.push_back(key);
        }
    }
    std::map<std::string, std::string> fields;
    for (const auto& [region, rule] : config.rules) {
        if (rule.dtype == 0 && (rule.atol >= 0 || rule.rtol >= 0)) {
            return where + ": region " + region + " has a tolerance and no type: set twinrun_type_" + region +
                   " (f64, f32, ...)";
        }
        // Names of regions must differ within a checkpoint; regions of different checkpoint names
        // may share one.
        if (rule.field.empty()) continue;
        const std::size_t dot = region.rfind('.');
        const std::string group = dot == std::string::npos ? "" : region.substr(0, dot);
        if (!fields.emplace(group + "\n" + rule.field, region).second)
            return where + ": two regions are named " + in_quotes(rule.field);
        if (rule.field.starts_with("region-") || rule.field == "file")
            return where + ": " + in_quotes(rule.field) + " is a name that twinrun gives: choose another";
    }
    return std::nullopt;
}

std::optional<std::string> read_config(const std::string& path, const Variables& environment,
                                       Config& config) {
    std::string text;
    if (!path.empty()) {
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                                   &std::fclose);
        if (!file) return path + ": cannot be opened: " + std::strerror(errno);
        std::array<char, 65536> piece;
        while (text.size() <= kLargestFile) {
            const std::size_t count = std::fread(piece.data(), 1, piece.size(), file.get());
            text.append(piece.data(), count);
            if (count < piece.size()) break;
        }
        if (std::ferror(file.get()) != 0) return path + ": cannot be read: " + std::strerror(errno);
    }
    return parse_config(text, path.empty() ? "VELOC_* of the environment" : path, environment, config);
}

bool valid_name(std::string_view name) {
    if (name.empty() || name.size() > 127 || name == "." || name == "..") return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '.';
    });
}

}  // namespace twinrun::veloc
