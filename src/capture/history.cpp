#include "capture/history.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "capture/flush.hpp"
#include "platform/comm.hpp"

namespace twinrun {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kLargestManifest = 1ULL << 32;
constexpr std::uint32_t kMostRanks = 1U << 24;
constexpr const char* kSumKey = ",\"xxh3\":\"";  // always the last key of a line

std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

// Names of fields are any bytes; JSON is UTF-8.
std::string to_text(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

int version_of(const HistorySettings& s) { return s.shared ? kHistoryVersion : s.record ? 2 : 1; }

Json settings_to_json(const HistorySettings& s, std::uint32_t ranks) {
    Json j{
        {"twinrun_history", version_of(s)}, {"atol", s.tolerance.atol},
        {"rtol", s.tolerance.rtol},         {"residue_bits", s.residue_bits},
        {"chunk_bytes", s.chunk_bytes},     {"digest", s.kind == DigestKind::linear ? "linear" : "published"},
        {"keep_data", s.keep_data},         {"ranks", ranks}};
    if (s.shared) j["shared_files"] = true;
    if (s.record) {
        j["record"] = Json{{"method", method_name(s.record->method)},
                           {"chunk_bytes", s.record->chunk_bytes},
                           {"codec", s.record->codec == PayloadCodec::zstd ? "zstd" : "none"},
                           {"level", s.record->level},
                           {"xor", s.record->xored},
                           {"bounded", s.record->bounded}};
        if (!s.record->against.empty()) {
            j["record"]["against"] = s.record->against;
            j["record"]["first_difference"] = s.record->first_difference;
        }
    }
    return j;
}

Json::other_error bad(const std::string& what) { return Json::other_error::create(501, what, nullptr); }
template <class T>
T number_of(const Json& value, const char* what) {
    const bool fits = value.is_number_unsigned()
                          ? std::in_range<T>(value.get<std::uint64_t>())
                          : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
    if (!fits) throw bad(std::string(what) + " is not a number of its range");
    return value.get<T>();
}
template <class T>
T whole_number(const Json& j, const char* key) {
    return number_of<T>(j.at(key), key);
}

HistorySettings settings_from_json(const Json& j) {
    HistorySettings s;
    s.tolerance.atol = j.at("atol").get<double>();
    s.tolerance.rtol = j.at("rtol").get<double>();
    s.residue_bits = whole_number<unsigned>(j, "residue_bits");
    s.chunk_bytes = whole_number<std::uint32_t>(j, "chunk_bytes");
    s.kind = j.at("digest").get<std::string>() == "published" ? DigestKind::published : DigestKind::linear;
    s.keep_data = j.at("keep_data").get<bool>();
    s.shared = j.value("shared_files", false);
    if (j.contains("record")) {
        const Json& r = j.at("record");
        RecordSettings record;
        const auto method = method_of(r.at("method").get<std::string>());
        const auto codec = r.at("codec").get<std::string>();
        if (!method || (codec != "none" && codec != "zstd")) throw bad("a record of an unknown kind");
        record.method = *method;
        record.chunk_bytes = whole_number<std::uint32_t>(r, "chunk_bytes");
        record.codec = codec == "zstd" ? PayloadCodec::zstd : PayloadCodec::stored;
        record.level = whole_number<int>(r, "level");
        record.xored = r.at("xor").get<bool>();
        record.bounded = r.at("bounded").get<bool>();
        record.against = r.value("against", std::string());
        if (!record.against.empty()) {
            record.first_difference = whole_number<std::uint32_t>(r, "first_difference");
            if (record.first_difference > kMostOrdinals) throw bad("more differences than a record can have");
        }
        if (auto good = record.check(); !good) throw bad(good.error().message);
        s.record = std::move(record);
    }
    return s;
}

// A name from a manifest becomes part of a path: it must not lead out of the history.
bool is_plain(const std::string& name) {
    return name != "." && name != ".." && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos;
}
std::string plain_name(const Json& j, const char* key) {
    auto name = j.at(key).get<std::string>();
    if (!is_plain(name)) throw bad("a name that leads out of the history");
    return name;
}
// Of a file in a folder of the history: "step-0000000010/rank-00003.twr".
std::string difference_file(const Json& j) {
    auto file = j.at("file").get<std::string>();
    const std::size_t cut = file.find('/');
    if (cut == std::string::npos || cut == 0 || cut + 1 == file.size() || !is_plain(file.substr(0, cut)) ||
        !is_plain(file.substr(cut + 1))) {
        throw bad("a difference that is not in the history");
    }
    return file;
}
// An empty one would be the folder that it lies in.
std::string some_name(const Json& j, const char* key) {
    auto name = plain_name(j, key);
    if (name.empty()) throw bad("a name that is empty");
    return name;
}

// By hand: nested values of the JSON library end the program where memory is short while they go away.
std::string step_line(const HistoryWriter::Commit& commit, bool replaces) {
    const RankFiles& r = commit.files.files;
    std::string line = "{\"folder\":" + to_text(commit.files.folder) +
                       ",\"ranks\":[{\"blocked_seconds\":" + to_text(r.blocked_seconds) +
                       ",\"data\":" + to_text(r.data) + ",\"data_bytes\":" + std::to_string(r.data_bytes);
    if (r.shared) {
        line += ",\"file_bytes\":" + std::to_string(r.file_bytes) + ",\"offset\":" + std::to_string(r.offset);
    }
    if (!r.divergence.empty()) line += ",\"divergence\":" + to_text(r.divergence);
    if (r.difference != kNoBase) {
        line += ",\"difference\":" + std::to_string(r.difference) +
                ",\"full_bytes\":" + std::to_string(r.full_bytes);
    }
    line += ",\"header_xxh3\":\"" + hex(r.header_checksum) + "\",\"metadata\":" + to_text(r.metadata) +
            ",\"metadata_bytes\":" + std::to_string(r.metadata_bytes) +
            ",\"rank\":" + std::to_string(r.rank) + "}]";
    if (replaces) line += ",\"replaces\":true";
    return line + ",\"step\":" + std::to_string(commit.step) + "}";
}

std::uint64_t from_hex(const std::string& text) {
    std::uint64_t value = 0;
    if (text.size() != 16) throw bad("a checksum that is not one");
    for (const char c : text) {
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) throw bad("a checksum that is not one");
        value = value << 4 | static_cast<std::uint64_t>(digit);
    }
    return value;
}

RankStep step_from_json(const Json& j, std::uint32_t rank) {
    RankStep step;
    step.folder = some_name(j, "folder");
    const Json& ranks = j.at("ranks");
    if (!ranks.is_array() || ranks.size() != 1) throw bad("not one rank's files");
    const Json& r = ranks[0];
    RankFiles& files = step.files;
    files.rank = whole_number<std::uint32_t>(r, "rank");
    if (files.rank != rank) throw bad("files of another rank");
    files.data = plain_name(r, "data");
    files.data_bytes = whole_number<std::uint64_t>(r, "data_bytes");
    if (r.contains("difference")) {
        files.difference = whole_number<std::uint32_t>(r, "difference");
        files.full_bytes = whole_number<std::uint64_t>(r, "full_bytes");
        if (files.difference > kMostOrdinals || files.data.empty()) throw bad("a difference that cannot be");
    }
    if (r.contains("offset")) {
        files.shared = true;
        files.offset = whole_number<std::uint64_t>(r, "offset");
        files.file_bytes = whole_number<std::uint64_t>(r, "file_bytes");
        if (files.difference != kNoBase || files.data.empty() || files.offset > files.file_bytes ||
            files.data_bytes > files.file_bytes - files.offset) {
            throw bad("a part of a file that cannot be");
        }
    }
    files.metadata = files.difference != kNoBase ? plain_name(r, "metadata") : some_name(r, "metadata");
    files.metadata_bytes = whole_number<std::uint64_t>(r, "metadata_bytes");
    files.header_checksum = from_hex(r.at("header_xxh3").get<std::string>());
    files.blocked_seconds = r.value("blocked_seconds", 0.0);
    files.divergence = r.value("divergence", std::string());
    return step;
}

void forget_data(RankFiles& files) {
    files.data.clear();
    files.data_bytes = 0;
    files.difference = kNoBase;
    files.full_bytes = 0;
    files.shared = false;
    files.offset = 0;
    files.file_bytes = 0;
}

// An ordinal is that of one attempt at one step, for good: others may name it.
bool may_have(const Journal& journal, std::int64_t number, const RankStep& step) {
    const std::uint32_t ordinal = step.files.difference;
    if (ordinal == kNoBase || !journal.taken.contains(ordinal)) return true;
    const auto had = journal.steps.find(number);
    return had != journal.steps.end() && had->second.files.difference == ordinal &&
           had->second.folder == step.folder;
}

void put_step(Journal& journal, std::int64_t number, const RankStep& step) {
    if (const std::uint32_t ordinal = step.files.difference; ordinal != kNoBase) {
        journal.differences[ordinal] = step.folder + "/" + step.files.data;
        journal.next_difference = std::max(journal.next_difference, ordinal + 1);
        journal.taken.insert(ordinal);
    }
    journal.steps[number] = step;
}

void put_difference(Journal& journal, std::uint32_t ordinal, const std::string& file) {
    journal.differences[ordinal] = file;
    journal.next_difference = std::max(journal.next_difference, ordinal + 1);
}

// One line of a journal after its first.
void take_line(const Json& j, std::uint32_t rank, Journal& journal) {
    if (j.contains("step")) {
        const auto number = whole_number<std::int64_t>(j, "step");
        RankStep step = step_from_json(j, rank);
        if (journal.steps.contains(number) && !j.value("replaces", false))
            throw bad("a step that is listed twice");
        if (!may_have(journal, number, step)) throw bad("a difference that another step has, or had");
        put_step(journal, number, step);
    } else if (j.contains("drop")) {
        if (journal.steps.erase(whole_number<std::int64_t>(j, "drop")) == 0)
            throw bad("drops a step that is not there");
    } else if (j.contains("drop_data")) {
        const auto step = journal.steps.find(whole_number<std::int64_t>(j, "drop_data"));
        if (step == journal.steps.end()) throw bad("drops the data of a step that is not there");
        forget_data(step->second.files);
    } else if (j.contains("child")) {
        journal.children.push_back(j.at("child").get<std::string>());
    } else if (j.contains("moved")) {
        const auto known = [&](const Json& number) {
            const auto ordinal = number_of<std::uint32_t>(number, "a difference");
            if (!journal.differences.contains(ordinal)) throw bad("moves a difference that is not there");
            return ordinal;
        };
        for (const Json& part : j.at("moved")) {
            const std::string file = difference_file(part);
            for (const Json& number : part.at("differences"))
                journal.differences[known(number)] = file;
        }
        for (const Json& number : j.at("gone"))
            journal.differences.erase(known(number));
    } else if (j.contains("difference")) {
        const auto ordinal = whole_number<std::uint32_t>(j, "difference");
        if (ordinal > kMostOrdinals || journal.differences.contains(ordinal) ||
            journal.taken.contains(ordinal))
            throw bad("a difference that cannot be");
        put_difference(journal, ordinal, difference_file(j));
    } else if (j.contains("reserved")) {
        const auto end = whole_number<std::uint32_t>(j, "reserved");
        if (end > kMostOrdinals) throw bad("more differences than a record can have");
        journal.next_difference = std::max(journal.next_difference, end);
    } else if (j.contains("provenance")) {
        auto facts = provenance_from_json(j.at("provenance").dump());
        if (!facts) throw bad(facts.error().message);
        journal.provenance.push_back(std::move(facts).value());
    } else {
        throw bad("a line of an unknown kind: it was written by a newer twinrun");
    }
}

// Lines of a file, in order: visit(number, object) may throw. Errors name file and line.
template <class Visit>
Result<> for_each_line(const std::string& file, Journal& journal, Visit visit) {
    TWR_TRY(const auto bytes, read_whole_file(file, kLargestManifest));
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        const std::string line = text.substr(begin, end == std::string::npos ? end : end - begin);
        ++number;
        const auto damaged = [&](const std::string& why) {
            return Error{ErrorCode::damaged, file + ": damaged: line " + std::to_string(number) + ": " + why};
        };
        if (end == std::string::npos) {
            // A crash leaves a part of a line; a whole one with something else in place of its end is damage.
            if (open_line(line.substr(0, line.size() - 1))) return damaged("its end is missing");
            journal.torn = true;
            break;
        }
        begin = end + 1;
        auto object = open_line(line);
        if (!object) return damaged(object.error().message);
        try {
            if (auto taken = visit(number, Json::parse(*object)); !taken) return taken;
        } catch (const std::exception& e) {
            return damaged(e.what());
        }
        journal.whole_bytes = begin;
    }
    return success();
}

// The manifest: settings, and the journal of a run of one rank.
Result<> read_manifest(const std::string& path, History& history, Journal& journal,
                       LocalHistory* local = nullptr) {
    const std::string file = manifest_path(path);
    TWR_CHECK(for_each_line(file, journal, [&](std::size_t number, const Json& j) -> Result<> {
        if (number > 1) {
            if (history.ranks != 1) throw bad("more than the settings in the manifest of several ranks");
            take_line(j, 0, journal);
            return success();
        }
        const int version = whole_number<int>(j, "twinrun_history");
        if (version > kHistoryVersion) {
            return Error{ErrorCode::unsupported, path + ": a history of version " + std::to_string(version) +
                                                     ", this twinrun reads up to " +
                                                     std::to_string(kHistoryVersion) + ": upgrade twinrun"};
        }
        history.settings = settings_from_json(j);
        if (j.contains("ranks")) history.ranks = whole_number<std::uint32_t>(j, "ranks");
        if (history.ranks == 0 || history.ranks > kMostRanks) throw bad("an impossible number of ranks");
        if (local != nullptr) {
            local->rank = whole_number<std::uint32_t>(j, "rank");
            local->history = j.at("history").get<std::string>();
            if (local->rank >= history.ranks) throw bad("a rank beyond their number");
        }
        return success();
    }));
    if (journal.whole_bytes == 0) {
        return Error{ErrorCode::damaged, file + ": empty: the run ended before its manifest was written"};
    }
    return success();
}

// The journal of one rank of several; none: the rank has committed nothing yet.
Result<> read_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks, Journal& journal) {
    const std::string file = journal_path(path, rank, ranks);
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return success();
    return for_each_line(file, journal, [&](std::size_t number, const Json& j) -> Result<> {
        if (number > 1) {
            take_line(j, rank, journal);
        } else if (whole_number<int>(j, "twinrun_journal") > kHistoryVersion) {
            return Error{ErrorCode::unsupported, file + ": written by a newer twinrun: upgrade"};
        } else if (whole_number<std::uint32_t>(j, "rank") != rank ||
                   whole_number<std::uint32_t>(j, "ranks") != ranks) {
            throw bad("the journal of another rank or run");
        }
        return success();
    });
}

// A manifest without a whole line is what a run left that ended while it began.
Result<bool> manifest_is_torn(const std::string& path) {
    if (!History::exists(path)) return false;
    TWR_TRY(const auto bytes, read_whole_file(manifest_path(path), kLargestManifest));
    return std::find(bytes.begin(), bytes.end(), std::byte{'\n'}) == bytes.end();
}
Result<> remove_torn_manifest(FileSystem& system, const std::string& path) {
    TWR_TRY(const bool torn, manifest_is_torn(path));
    return torn ? system.remove(manifest_path(path)) : success();
}

// Those that are there: a manifest may name any number of ranks.
std::set<std::uint32_t> ranks_with_journals(const std::string& path, std::uint32_t ranks) {
    if (ranks == 1) return {0};
    std::set<std::uint32_t> found;
    std::error_code failure;
    for (fs::directory_iterator at(path, failure), end; !failure && at != end; at.increment(failure)) {
        const std::string name = at->path().filename().string();
        std::uint32_t rank = 0;
        if (std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank) == 1 && rank < ranks &&
            name == rank_name(rank) + ".jsonl") {
            found.insert(rank);
        }
    }
    return found;
}

std::vector<std::string> folders_of_steps(const std::string& path) {
    std::vector<std::string> names;
    std::error_code failure;
    for (fs::directory_iterator at(path, failure), end; !failure && at != end; at.increment(failure)) {
        std::string name = at->path().filename().string();
        if (name.starts_with("step-") || name.starts_with(".step-")) names.push_back(std::move(name));
    }
    return names;
}

}  // namespace

std::vector<std::uint64_t> stored_shape(std::vector<std::uint64_t> shape, ArrayOrder order) {
    if (order == ArrayOrder::column_major) std::reverse(shape.begin(), shape.end());
    return shape;
}

Result<FieldMetadata> plan_captured(const CapturedField& field, const HistorySettings& settings) {
    FieldPlan plan;
    plan.name = field.name;
    plan.dtype = field.dtype;
    plan.byte_order = std::endian::native == std::endian::little ? ByteOrder::little : ByteOrder::big;
    plan.order = field.order;
    plan.shape = stored_shape(field.shape, field.order);
    plan.global_shape = stored_shape(field.global_shape, field.order);
    plan.global_offset = stored_shape(field.global_offset, field.order);
    plan.tolerance = field.own_tolerance ? field.tolerance : settings.tolerance;
    // Integers and booleans compare exactly unless they are given a tolerance of their own.
    if (!field.own_tolerance && !is_floating(field.dtype)) plan.tolerance = {};
    plan.residue_bits = settings.residue_bits;
    plan.chunk_bytes = settings.chunk_bytes;
    plan.kind = settings.kind;
    return plan_field(std::move(plan));
}

std::string seal_line(std::string json_object) {
    json_object.pop_back();  // the closing brace
    const std::uint64_t sum = xxh3(json_object);
    return json_object + kSumKey + hex(sum) + "\"}";
}

Result<std::string> open_line(const std::string& line) {
    const std::size_t at = line.rfind(kSumKey);
    if (at == std::string::npos ||
        line != line.substr(0, at) + kSumKey + hex(xxh3(line.substr(0, at))) + "\"}") {
        return Error{ErrorCode::damaged, "its checksum is wrong"};
    }
    return line.substr(0, at) + "}";
}

std::string manifest_path(const std::string& path) { return (fs::path(path) / "manifest.jsonl").string(); }

std::string rank_name(std::uint32_t rank) {
    char name[32];
    std::snprintf(name, sizeof name, "rank-%05" PRIu32, rank);
    return name;
}

std::string journal_path(const std::string& path, std::uint32_t rank, std::uint32_t ranks) {
    return ranks == 1 ? manifest_path(path) : (fs::path(path) / (rank_name(rank) + ".jsonl")).string();
}

std::string step_folder(std::int64_t step, std::uint32_t attempt) {
    char name[64];
    std::snprintf(name, sizeof name, "step-%010" PRId64, step);
    return attempt == 0 ? name : std::string(name) + "." + std::to_string(attempt);
}

std::uint32_t attempt_of(const std::string& folder) {
    const std::size_t dot = folder.rfind('.');
    std::uint32_t attempt = 0;
    if (dot == std::string::npos) return 0;
    for (std::size_t i = dot + 1; i < folder.size(); ++i) {
        if (folder[i] < '0' || folder[i] > '9' || attempt > 100'000'000) return 0;
        attempt = attempt * 10 + static_cast<std::uint32_t>(folder[i] - '0');
    }
    return attempt;
}

std::optional<std::int64_t> step_of(const std::string& folder) {
    std::int64_t step = 0;
    if (std::sscanf(folder.c_str(), "step-%20" SCNd64, &step) != 1 ||
        folder != step_folder(step, attempt_of(folder))) {
        return std::nullopt;
    }
    return step;
}

std::string new_difference_name(const std::string& folder, std::uint32_t rank) {
    std::error_code ignored;
    std::string name = rank_name(rank) + ".twr";
    for (std::uint64_t n = 1; fs::exists(fs::path(folder) / name, ignored); ++n)
        name = rank_name(rank) + "." + std::to_string(n) + ".twr";
    return name;
}

bool History::exists(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(manifest_path(path), ignored);
}

Result<History> History::open(const std::string& path) {
    if (!exists(path)) {
        return Error{ErrorCode::not_found, path + ": not a history: there is no manifest.jsonl in it"};
    }
    History history;
    history.path = path;
    struct Parts {
        std::vector<RankStep> ranks;
    };
    std::map<std::int64_t, Parts> steps;
    Journal manifest;
    TWR_CHECK(read_manifest(path, history, manifest));
    history.torn = manifest.torn;
    for (const std::uint32_t rank : ranks_with_journals(path, history.ranks)) {
        Journal own;
        if (history.ranks > 1) {
            TWR_CHECK(read_journal(path, rank, history.ranks, own));
            history.torn = history.torn || own.torn;
        }
        Journal& journal = history.ranks == 1 ? manifest : own;
        for (auto& [step, files] : journal.steps)
            steps[step].ranks.push_back(std::move(files));
        for (auto& facts : journal.provenance)
            history.provenance.push_back({rank, std::move(facts)});
    }
    for (auto& [number, parts] : steps) {
        // A step that some ranks captured once more, and others did not yet, is of no single run.
        const bool whole = parts.ranks.size() == history.ranks &&
                           std::all_of(parts.ranks.begin(), parts.ranks.end(), [&](const RankStep& r) {
                               return r.folder == parts.ranks.front().folder;
                           });
        if (!whole) {
            history.incomplete.push_back(number);
            continue;
        }
        HistoryStep step{number, parts.ranks.front().folder, {}};
        for (RankStep& r : parts.ranks)
            step.ranks.push_back(std::move(r.files));
        history.steps.push_back(std::move(step));
    }
    return history;
}

Result<> HistoryWriter::append(const std::string& lines) {
    if (journal_.torn) {
        TWR_CHECK(system_.truncate(file_, journal_.whole_bytes));
        journal_.torn = false;
    }
    std::uint64_t size = 0;
    TWR_TRY(auto file, system_.open_append(file_, size));
    if (size != journal_.whole_bytes && file_ == journal_path(path_, rank_, ranks_)) {
        return Error{ErrorCode::damaged, file_ + ": changed by another hand while the run went on: it had " +
                                             std::to_string(journal_.whole_bytes) + " bytes, now " +
                                             std::to_string(size)};
    }
    TWR_CHECK(file->write_at(size, std::as_bytes(std::span(lines))));
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    journal_.whole_bytes = size + lines.size();
    return success();
}

// Appends lines and makes journal() what the file says then.
Result<> HistoryWriter::add(const std::vector<std::string>& objects) {
    std::string lines;
    for (const std::string& object : objects)
        lines += seal_line(object) + "\n";
    sure_ = false;  // until the caller has put them into journal_ too
    if (auto done = append(lines); !done) {
        // Storage may keep a part of the lines, or all of them: go by what is there now. The next call drops a torn one first.
        static_cast<void>(read_back());
        return done;
    }
    return success();
}

Result<> HistoryWriter::read_back() {
    TWR_TRY(Journal now, read_rank_journal(path_, rank_, ranks_));
    // Without its first line it is not the journal that was opened: lines behind nothing could not be read.
    if (now.whole_bytes == 0)
        return Error{ErrorCode::damaged, file_ + ": is gone or empty, though a run writes it"};
    journal_ = std::move(now);
    sure_ = true;
    return success();
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open(FileSystem& system, const std::string& path,
                                                           const HistorySettings& settings,
                                                           std::uint32_t rank, std::uint32_t ranks,
                                                           Existing existing) try {
    // The rule that every field will use: a bad tolerance is refused before a folder is made.
    if (auto rule = cell_rule(settings.tolerance, settings.residue_bits); !rule)
        return std::move(rule).error().at(path);
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system));
    writer->path_ = path;
    writer->rank_ = rank;
    writer->ranks_ = ranks;
    writer->file_ = journal_path(path, rank, ranks);
    writer->record_ = settings.record;
    // Before anything is read: another process may still be committing steps, which would be taken for leftovers.
    Lock opening;
    TWR_CHECK(writer->lock(opening, rank == 0 && existing == Existing::refuse));
    if (rank == 0) TWR_CHECK(remove_torn_manifest(system, path));
    const bool there = History::exists(path);
    if (there && rank == 0 && existing == Existing::replace) {
        TWR_TRY(const History had, History::open(path));
        TWR_TRY(const Journal first, read_rank_journal(path, 0, had.ranks));
        TWR_CHECK(check_children(path, first));
        TWR_CHECK(writer->check_nobody_writes());
        TWR_CHECK(writer->remove_history());
    } else if (there) {
        History history;
        TWR_CHECK(read_manifest(path, history, writer->journal_));
        HistorySettings wanted = settings;
        // Where files may be shared, steps may have files of their own.
        wanted.shared = wanted.shared || history.settings.shared;
        if (wanted.shared && !history.settings.shared) {
            wanted.shared = false;
            if (history.settings == wanted) {
                return Error{ErrorCode::mismatch,
                             path +
                                 ": was begun without shared_files: append without them, or "
                                 "name another folder"};
            }
        }
        if (history.settings != wanted) {
            return Error{ErrorCode::mismatch,
                         path + ": was captured with other settings: append with the same"};
        }
        if (history.ranks != ranks) {
            return Error{ErrorCode::mismatch, path + ": was captured by " + std::to_string(history.ranks) +
                                                  " ranks, now there are " + std::to_string(ranks) +
                                                  ": name another folder"};
        }
        if (ranks > 1) {
            writer->journal_ = {};
            TWR_CHECK(read_journal(path, rank, ranks, writer->journal_));
        }
        if (writer->journal_.whole_bytes != 0) {
            TWR_CHECK(writer->remove_leftovers());
            return writer;
        }
    }
    if (rank == 0 && !History::exists(path)) {
        TWR_CHECK(writer->check_nobody_writes());
        // Of a history that was being replaced, or begun, when its run ended: nobody may take them for this one's.
        for (const std::uint32_t r : ranks_with_journals(path, kMostRanks))
            TWR_CHECK(system.remove(journal_path(path, r, kMostRanks)));
    }
    TWR_CHECK(writer->begin(settings, nullptr));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open_local(FileSystem& system, const std::string& path,
                                                                 const HistorySettings& settings,
                                                                 std::uint32_t rank, std::uint32_t ranks,
                                                                 const std::string& history,
                                                                 bool replace) try {
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system));
    writer->path_ = path;
    writer->rank_ = rank;
    writer->ranks_ = ranks;
    writer->file_ = journal_path(path, rank, ranks);
    writer->record_ = settings.record;
    writer->local_ = true;
    Lock opening;
    TWR_CHECK(writer->lock(opening, false));  // another run of this node may be using the folder
    TWR_CHECK(remove_torn_manifest(system, path));
    auto had = LocalHistory::read(path);
    const bool same = had && had->settings == settings && had->rank == rank && had->ranks == ranks &&
                      had->history == history;
    if (had && !replace) TWR_CHECK(check_part(path, *had, settings, rank, ranks, history));
    if (same && !replace && !had->journal.steps.empty()) {
        writer->journal_ = std::move(had->journal);
        TWR_CHECK(writer->remove_leftovers());
        return writer;
    }
    if (!had && !replace && had.error().code == ErrorCode::damaged) return std::move(had).error();
    // The folder itself stays: it is locked.
    TWR_CHECK(writer->remove_history());
    TWR_CHECK(system.remove(writer->file_));
    TWR_CHECK(writer->begin(settings, &history));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

// First lines of manifest and journal, for a history that has none of this rank.
Result<> HistoryWriter::begin(const HistorySettings& settings, const std::string* history) {
    TWR_CHECK(system_.make_folders(path_));
    if (rank_ == 0 || history != nullptr) {
        const std::string file = file_;
        file_ = manifest_path(path_);
        if (!History::exists(path_)) {
            Json first = settings_to_json(settings, ranks_);
            if (history != nullptr) {
                first["rank"] = rank_;
                first["history"] = *history;
            }
            TWR_CHECK(append(seal_line(first.dump()) + "\n"));
        }
        file_ = file;
    }
    if (ranks_ > 1) {
        if (journal_.torn) TWR_CHECK(system_.truncate(file_, 0));
        journal_ = {};
        const Json first{{"twinrun_journal", version_of(settings)}, {"rank", rank_}, {"ranks", ranks_}};
        TWR_CHECK(append(seal_line(first.dump()) + "\n"));
    }
    made_ = true;
    TWR_TRY(const bool locked, lock_journal());
    if (!locked) return busy();
    TWR_CHECK(system_.sync_folder(path_));
    return remove_leftovers();
}

HistoryWriter::Lock::Lock(Lock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), owner_(other.owner_) {}

HistoryWriter::Lock& HistoryWriter::Lock::operator=(Lock&& other) noexcept {
    release();
    descriptor_ = std::exchange(other.descriptor_, -1);
    owner_ = other.owner_;
    return *this;
}

bool HistoryWriter::Lock::take(const std::string& path, bool shared) {
    // Whether a descriptor is of what has this name now.
    const auto is_there = [&](int descriptor) {
        struct stat ours, there;
        return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
               ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
    };
    if (descriptor_ >= 0 && is_there(descriptor_)) return true;
    release();  // of what was replaced
    for (;;) {
        const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (opened < 0) return true;
        const int result = ::flock(opened, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB);
        const int why = errno;
        // Locked, or this storage has no locks.
        if ((result == 0 || (why != EINTR && why != EWOULDBLOCK)) && is_there(opened)) {
            descriptor_ = opened;
            owner_ = ::getpid();
            return true;
        }
        ::close(opened);
        if (result != 0 && why == EWOULDBLOCK) return false;
    }
}

void HistoryWriter::Lock::release() {
    if (descriptor_ < 0) return;
    // A process that was forked meanwhile has this descriptor too, and would keep the lock; it must not open it either.
    if (owner_ == ::getpid()) ::flock(descriptor_, LOCK_UN);
    ::close(descriptor_);
    descriptor_ = -1;
}

Error HistoryWriter::busy() const {
    return Error{ErrorCode::io,
                 path_ + ": another process is writing this history: wait for it, or name another folder"};
}

// Two processes that write one journal would tear each other's lines, and of two that begin a history one would remove what the
// other has. A process that dies gives its locks back; one that still brings steps to storage after its run was killed needs a
// moment.
Result<> HistoryWriter::lock(Lock& opening, bool refuse) {
    constexpr int kTries = 200;
    constexpr auto kPause = std::chrono::milliseconds(50);
    for (int i = 0; i <= kTries; ++i) {
        if (i != 0) std::this_thread::sleep_for(kPause);
        if (refuse) TWR_CHECK(check_refused());
        TWR_CHECK(system_.make_folders(path_));
        // The ranks of a run open it at once, after rank 0. A part on a node-local tier is one rank's.
        if (!opening.take(path_, rank_ != 0 && !local_)) continue;
        if (refuse) TWR_CHECK(check_refused());  // it may have been made just now
        TWR_TRY(const bool locked, lock_journal());
        if (locked) return success();
        opening.release();
    }
    return busy();
}

Result<bool> HistoryWriter::lock_journal() {
    if (rank_ != 0 && !local_) {
        // A second process of this rank may be at it too: there is a file that only one can lock.
        std::uint64_t size = 0;
        TWR_TRY(auto file, system_.open_append(file_, size));
        TWR_CHECK(file->close());
    }
    if (journal_lock_.take(file_) &&
        (rank_ != 0 || local_ || ranks_ == 1 || manifest_lock_.take(manifest_path(path_)))) {
        return true;
    }
    journal_lock_.release();
    return false;
}

Result<> HistoryWriter::check_refused() const {
    if (!History::exists(path_)) return success();
    TWR_TRY(const bool torn, manifest_is_torn(path_));
    if (torn) return success();
    return Error{ErrorCode::invalid_argument,
                 path_ + ": holds a history already: choose another folder, or append to it, or replace it"};
}

// The history of this folder ends: from the first call on its steps do not exist.
Result<> HistoryWriter::remove_history() {
    TWR_CHECK(system_.remove(manifest_path(path_)));
    for (const auto& name : folders_of_steps(path_))
        TWR_CHECK(system_.remove_folder((fs::path(path_) / name).string()));
    return success();
}

// Of ranks that may go on where rank 0 has ended.
Result<> HistoryWriter::check_nobody_writes() const {
    for (const std::uint32_t rank : ranks_with_journals(path_, kMostRanks)) {
        Lock other;
        if (ranks_ > 1 && rank == rank_) continue;  // ours
        if (!other.take(journal_path(path_, rank, kMostRanks))) return busy();
    }
    return success();
}

HistoryWriter::~HistoryWriter() = default;

std::string local_path(const std::string& local, std::uint32_t rank) {
    return (fs::path(local) / rank_name(rank)).string();
}

Result<Journal> read_rank_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks) {
    Journal journal;
    if (ranks == 1) {
        History history;
        TWR_CHECK(read_manifest(path, history, journal));
    } else {
        TWR_CHECK(read_journal(path, rank, ranks, journal));
    }
    return journal;
}

Result<HistorySettings> read_history_settings(const std::string& path, std::uint32_t& ranks) {
    if (!History::exists(path)) {
        return Error{ErrorCode::not_found, path + ": not a history: there is no manifest.jsonl in it"};
    }
    History history;
    Journal ignored;
    TWR_CHECK(read_manifest(path, history, ignored));
    ranks = history.ranks;
    return std::move(history.settings);
}

std::string absolute_path(const std::string& path) {
    std::error_code ignored;
    const fs::path whole = fs::absolute(path, ignored).lexically_normal();
    const std::string text = whole.string();
    return text.size() > 1 && text.back() == '/' ? text.substr(0, text.size() - 1) : text;
}

Result<> check_children(const std::string& path, const Journal& journal) {
    for (const std::string& child : journal.children) {
        std::uint32_t ranks = 0;
        const auto theirs = read_history_settings(child, ranks);
        // It may be gone meanwhile, or another one.
        if (!theirs || !theirs->record || absolute_path(theirs->record->against) != absolute_path(path))
            continue;
        return Error{ErrorCode::invalid_argument,
                     path + ": " + child +
                         " is recorded against it, and would lose what leaves: remove that record first"};
    }
    return success();
}

Result<LocalHistory> LocalHistory::read(const std::string& path) {
    if (!History::exists(path)) {
        return Error{ErrorCode::not_found,
                     path + ": not a node-local part of a history: there is no manifest.jsonl in it"};
    }
    History history;
    Journal manifest;
    LocalHistory local;
    TWR_CHECK(read_manifest(path, history, manifest, &local));
    local.settings = history.settings;
    local.ranks = history.ranks;
    if (local.ranks == 1) {
        local.journal = std::move(manifest);
    } else {
        TWR_CHECK(read_journal(path, local.rank, local.ranks, local.journal));
    }
    return local;
}

Result<> HistoryWriter::remove_leftovers() {
    std::set<std::string> known;
    for (const auto& [step, files] : journal_.steps)
        known.insert(files.folder);
    for (const auto& [ordinal, file] : journal_.differences)
        known.insert(file.substr(0, file.find('/')));
    for (const std::string& name : folders_of_steps(path_)) {
        if (!known.contains(name)) {
            TWR_CHECK(remove_files(name));
        } else if (!journal_.differences.empty()) {
            TWR_CHECK(remove_unnamed(name));
        }
    }
    return success();
}

Result<> HistoryWriter::remove_files(const std::string& folder) {
    const fs::path place = fs::path(path_) / folder;
    if (ranks_ == 1) return system_.remove_folder(place.string());
    const std::string own = rank_name(rank_) + ".";
    std::vector<std::string> names;
    std::vector<std::string> shared;
    bool others = false;
    const auto list = [&] {
        names.clear();
        shared.clear();
        others = false;
        std::error_code failure;
        for (fs::directory_iterator at(place, failure), end; !failure && at != end; at.increment(failure)) {
            const std::string name = at->path().filename().string();
            const bool is_shared = name.starts_with(kSharedPrefix);
            if (name.starts_with(own)) {
                names.push_back((place / name).string());
            } else if (is_shared) {
                shared.push_back((place / name).string());
            } else {
                others = true;
            }
        }
    };
    list();
    for (const std::string& name : names)
        TWR_CHECK(system_.remove(name));
    // The last rank to leave takes what is of all: each looks once its own files are gone, so that two that leave at once do not both
    // leave it to the other.
    if (!shared.empty() && !names.empty()) list();
    if (others) return success();
    for (const std::string& name : shared)
        TWR_CHECK(system_.remove(name));
    // Only an empty folder goes, whatever another rank does meanwhile.
    static_cast<void>(system_.remove_empty_folder(place.string()));
    return success();
}

Result<> HistoryWriter::add_provenance(const Provenance& facts) {
    TWR_CHECK(be_sure());
    TWR_CHECK(add({to_text(Json{{"provenance", Json::parse(provenance_to_json(facts))}})}));
    journal_.provenance.push_back(facts);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::add_child(const std::string& path) {
    TWR_CHECK(be_sure());
    if (std::find(journal_.children.begin(), journal_.children.end(), path) != journal_.children.end())
        return success();
    TWR_CHECK(add({"{\"child\":" + to_text(path) + "}"}));
    journal_.children.push_back(path);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::commit(std::span<const Commit> steps) {
    std::vector<std::string> lines;
    std::vector<std::string> replaced;
    TWR_CHECK(be_sure());
    std::map<std::int64_t, std::string> there;  // a step may be among them more than once
    for (const Commit& commit : steps) {
        const auto had = journal_.steps.find(commit.step);
        std::string& folder = there[commit.step];
        if (folder.empty() && had != journal_.steps.end()) {
            folder = had->second.folder;
            if (had->second.files.data != commit.files.files.data && folder == commit.files.folder)
                replaced.push_back(folder);
        }
        if (!may_have(journal_, commit.step, commit.files)) {
            return Error{ErrorCode::mismatch, path_ + ": step " + std::to_string(commit.step) +
                                                  ": difference " +
                                                  std::to_string(commit.files.files.difference) +
                                                  " is there already, of another step"};
        }
        const bool replaces = !folder.empty();
        if (replaces && folder != commit.files.folder) replaced.push_back(folder);
        folder = commit.files.folder;
        lines.push_back(step_line(commit, replaces));
    }
    TWR_CHECK(add(lines));
    for (const Commit& commit : steps)
        put_step(journal_, commit.step, commit.files);
    sure_ = true;
    for (const std::string& folder : replaced)
        static_cast<void>(remove_unnamed(folder));
    return success();
}

// Files of this rank that neither a step nor a difference has.
Result<> HistoryWriter::remove_unnamed(const std::string& folder) {
    std::set<std::string> named;
    for (const auto& [ordinal, file] : journal_.differences) {
        if (file.starts_with(folder + "/")) named.insert(file.substr(folder.size() + 1));
    }
    for (const auto& [step, files] : journal_.steps) {
        if (files.folder != folder) continue;
        named.insert(files.files.metadata);
        named.insert(files.files.data);
    }
    if (named.empty()) return remove_files(folder);
    const fs::path place = fs::path(path_) / folder;
    const std::string own = rank_name(rank_) + ".";
    std::vector<std::string> names;
    std::error_code failure;
    for (fs::directory_iterator at(place, failure), end; !failure && at != end; at.increment(failure)) {
        const std::string name = at->path().filename().string();
        if (name.starts_with(own) && !named.contains(name)) names.push_back((place / name).string());
    }
    for (const std::string& name : names)
        TWR_CHECK(system_.remove(name));
    return success();
}

Result<> HistoryWriter::move_differences(std::span<const Moved> moved, std::span<const std::uint32_t> gone) {
    TWR_CHECK(be_sure());
    std::string line = "{\"gone\":[";
    std::set<std::string> folders;
    const auto leaves = [&](std::uint32_t ordinal) {
        if (const auto had = journal_.differences.find(ordinal); had != journal_.differences.end())
            folders.insert(had->second.substr(0, had->second.find('/')));
    };
    for (std::size_t i = 0; i < gone.size(); ++i) {
        line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        leaves(gone[i]);
    }
    line += "],\"moved\":[";
    for (std::size_t m = 0; m < moved.size(); ++m) {
        line += std::string(m == 0 ? "" : ",") + "{\"differences\":[";
        for (std::size_t i = 0; i < moved[m].ordinals.size(); ++i) {
            line += (i == 0 ? "" : ",") + std::to_string(moved[m].ordinals[i]);
            leaves(moved[m].ordinals[i]);
        }
        line += "],\"file\":" + to_text(moved[m].file) + "}";
    }
    TWR_CHECK(add({line + "]}"}));
    for (const Moved& part : moved) {
        for (const std::uint32_t ordinal : part.ordinals)
            journal_.differences[ordinal] = part.file;
    }
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    sure_ = true;
    for (const std::string& folder : folders)
        static_cast<void>(remove_unnamed(folder));
    return success();
}

Result<> HistoryWriter::add_difference(std::uint32_t ordinal, const std::string& file) {
    TWR_CHECK(be_sure());
    if (journal_.differences.contains(ordinal)) return success();
    TWR_CHECK(add({"{\"difference\":" + std::to_string(ordinal) + ",\"file\":" + to_text(file) + "}"}));
    put_difference(journal_, ordinal, file);
    sure_ = true;
    return success();
}

Result<> HistoryWriter::reserve_differences(std::uint32_t end) {
    TWR_CHECK(be_sure());
    if (end <= journal_.next_difference) return success();
    TWR_CHECK(add({"{\"reserved\":" + std::to_string(end) + "}"}));
    journal_.next_difference = end;
    sure_ = true;
    return success();
}

Result<> HistoryWriter::drop(std::span<const std::int64_t> steps, Differences differences) {
    std::vector<std::string> lines;
    std::vector<std::string> folders;
    std::vector<std::uint32_t> gone;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        lines.push_back("{\"drop\":" + std::to_string(step) + "}");
        folders.push_back(had->second.folder);
        if (differences == Differences::leave && had->second.files.difference != kNoBase)
            gone.push_back(had->second.files.difference);
    }
    if (lines.empty()) return success();
    if (!gone.empty()) {
        std::string line = "{\"gone\":[";
        for (std::size_t i = 0; i < gone.size(); ++i)
            line += (i == 0 ? "" : ",") + std::to_string(gone[i]);
        lines.push_back(line + "],\"moved\":[]}");
    }
    TWR_CHECK(add(lines));
    for (const std::int64_t step : steps)
        journal_.steps.erase(step);
    for (const std::uint32_t ordinal : gone)
        journal_.differences.erase(ordinal);
    sure_ = true;
    for (const std::string& folder : folders)
        static_cast<void>(remove_unnamed(folder));
    return success();
}

Result<> HistoryWriter::drop_data(std::span<const std::int64_t> steps) {
    std::vector<std::string> lines;
    std::vector<std::string> files;
    TWR_CHECK(be_sure());
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end() || had->second.files.data.empty()) continue;
        lines.push_back("{\"drop_data\":" + std::to_string(step) + "}");
        if (had->second.files.difference == kNoBase && !had->second.files.shared)
            files.push_back((fs::path(path_) / had->second.folder / had->second.files.data).string());
    }
    if (lines.empty()) return success();
    TWR_CHECK(add(lines));
    for (const std::int64_t step : steps) {
        const auto had = journal_.steps.find(step);
        if (had == journal_.steps.end()) continue;
        forget_data(had->second.files);
    }
    sure_ = true;
    for (const std::string& file : files)
        static_cast<void>(system_.remove(file));
    return success();
}

}  // namespace twinrun
