#include "history/history.hpp"

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
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "history/flush.hpp"
#include "metadata/metadata.hpp"
#include "platform/comm.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kLargestManifest = 1ULL << 32;
constexpr std::uint32_t kMostRanks = 1U << 24;
constexpr std::size_t kLongestHead = 4096;             // of a journal's first line
constexpr std::size_t kRandomEnd = 21;                 // of temporary_name()
constexpr const char* kPartialName = ".twr-partial.";  // of a shared file that MPI ranks are writing
constexpr const char* kSumKey = ",\"xxh3\":\"";        // always the last key of a line

// Of temporary_name(): nothing that somebody else made has it.
bool is_random_end(std::string_view text) {
    return text.size() == kRandomEnd && text.starts_with('.') && text.ends_with(".tmp") &&
           text.substr(1, 16).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string hex(std::uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return text;
}

// Names of fields are any bytes; JSON is UTF-8.
std::string to_text(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

// What is wrong with a line.
struct Bad : std::runtime_error {
    using std::runtime_error::runtime_error;
};
Bad bad(const std::string& what) { return Bad(what); }
// In words for people: the library's own are for programmers.
std::string words_of(const Json::exception& e) {
    if (dynamic_cast<const Json::parse_error*>(&e) != nullptr) return "it is not JSON";
    constexpr int kNoSuchKey = 403;  // as the library documents it
    if (e.id == kNoSuchKey) return "a key that such a line has is missing";
    if (dynamic_cast<const Json::type_error*>(&e) != nullptr)
        return "a value has another type than it should";
    return "it is not a line of a history";
}

// Paths are bytes: one that is not UTF-8 is an object with these in hexadecimal.
Json path_to_json(const std::string& path) {
    try {
        static_cast<void>(Json(path).dump());
        return path;
    } catch (const Json::type_error&) {
        constexpr const char* kDigits = "0123456789abcdef";
        std::string digits;
        for (const char c : path) {
            digits += kDigits[static_cast<unsigned char>(c) >> 4];
            digits += kDigits[static_cast<unsigned char>(c) & 15];
        }
        return Json{{"bytes", digits}};
    }
}
std::string path_from_json(const Json& j) {
    if (j.is_string()) return j.get<std::string>();
    const auto digits = j.at("bytes").get<std::string>();
    const auto value = [](char c) {
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) throw bad("a path whose bytes are not hexadecimal");
        return digit;
    };
    std::string path;
    if (digits.size() % 2 != 0) throw bad("a path whose bytes are not hexadecimal");
    for (std::size_t i = 0; i < digits.size(); i += 2)
        path += static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1]));
    return path;
}

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
            j["record"]["against"] = path_to_json(s.record->against);
            j["record"]["first_difference"] = s.record->first_difference;
        }
    }
    return j;
}

HistoryId new_id() { return random_hex(32); }
// Of a history without one.
HistoryId hash_id(const std::string& first_line) {
    return hex(xxh3(first_line)) + hex(xxh3(std::as_bytes(std::span(first_line)), 1));
}

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
        if (r.contains("against")) record.against = path_from_json(r.at("against"));
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
// It becomes part of a name.
HistoryId id_of(const Json& j) {
    auto id = j.get<std::string>();
    if (id.size() != 32 || id.find_first_not_of("0123456789abcdef") != std::string::npos)
        throw bad("an ID that is none");
    return id;
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
        journal.children.push_back(path_from_json(j.at("child")));
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
            return Error{ErrorCode::damaged, file + ": damaged: line " + std::to_string(number) + ": " + why +
                                                 "; restore the file from a copy"};
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
        } catch (const Json::exception& e) {
            return damaged(words_of(e));
        } catch (const Bad& e) {
            return damaged(e.what());
        } catch (const std::bad_alloc&) {
            return Error{ErrorCode::out_of_memory, file + ": not enough memory to read it"};
        } catch (const std::exception&) {
            return damaged("it is not a line of a history");
        }
        journal.whole_bytes = begin;
    }
    return success();
}

// The manifest: settings, and the journal of a run of one rank.
Result<> read_manifest(const std::string& path, History& history, Journal& journal,
                       LocalHistory* local = nullptr) {
    const std::string file = manifest_path(path);
    history.path = path;
    TWR_CHECK(for_each_line(file, journal, [&](std::size_t number, const Json& j) -> Result<> {
        if (number > 1) {
            if (history.ranks != 1) throw bad("more than the settings in the manifest of several ranks");
            take_line(j, 0, journal);
            return success();
        }
        history.has_id = j.contains("id");
        history.id = history.has_id ? id_of(j.at("id")) : hash_id(j.dump());
        if (j.contains("replaced")) {
            for (const Json& id : j.at("replaced"))
                history.replaced.push_back(id_of(id));
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
            if (j.contains("of")) local->of = id_of(j.at("of"));
            local->history = path_from_json(j.at("history"));
            if (local->rank >= history.ranks) throw bad("a rank beyond their number");
        }
        return success();
    }));
    if (journal.whole_bytes == 0) {
        return Error{ErrorCode::damaged, file + ": empty: the run ended before its manifest was written"};
    }
    return success();
}

// The first line of a rank's journal, if it is one.
struct JournalHead {
    std::string id;  // empty: it was begun before there were IDs
    std::uint32_t rank = 0;
};
std::optional<JournalHead> journal_head(const std::string& file) try {
    if (fs::symlink_status(file).type() != fs::file_type::regular) return std::nullopt;
    std::ifstream stream(file, std::ios::binary);
    std::string line(kLongestHead, '\0');
    stream.read(line.data(), static_cast<std::streamsize>(line.size()));
    line.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
    const std::size_t end = line.find('\n');
    if (end == std::string::npos) return std::nullopt;
    const auto object = open_line(line.substr(0, end));
    if (!object) return std::nullopt;
    const Json j = Json::parse(*object);
    if (!j.contains("twinrun_journal")) return std::nullopt;
    return JournalHead{j.contains("id") ? id_of(j.at("id")) : "", whole_number<std::uint32_t>(j, "rank")};
} catch (const std::bad_alloc&) {
    throw;
} catch (const std::exception&) {
    return std::nullopt;
}

// The journal of one rank of several; none, or that of a history that was here before: the rank has committed nothing yet.
Result<> read_journal(const History& history, std::uint32_t rank, std::uint32_t ranks, Journal& journal) {
    const std::string file = journal_path(history.path, rank, ranks);
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return success();
    if (const auto head = journal_head(file); head && head->id != (history.has_id ? history.id : "")) {
        return success();
    }
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

// Those that are there: a manifest may name any number of ranks.
std::set<std::uint32_t> ranks_with_journals(const std::string& path, std::uint32_t ranks) {
    if (ranks == 1) return {0};
    std::set<std::uint32_t> found;
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        std::uint32_t rank = 0;
        if (is_file && std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank) == 1 && rank < ranks &&
            name == rank_name(rank) + ".jsonl") {
            found.insert(rank);
        }
    }
    return found;
}

// A link, a pipe or a folder in a journal's place would be taken for a rank that committed nothing.
Result<> check_journals(const std::string& path, std::uint32_t ranks) {
    if (ranks == 1) return success();
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        std::uint32_t rank = 0;
        if (!is_file && std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank) == 1 && rank < ranks &&
            name == rank_name(rank) + ".jsonl") {
            return Error{ErrorCode::damaged, (fs::path(path) / name).string() +
                                                 ": damaged: is no regular file, and the journal of rank " +
                                                 std::to_string(rank) +
                                                 " is expected there; restore the file from a copy"};
        }
    }
    return success();
}

// Of steps and differences that the journals of a history name: they are its own, also where no marker says so.
Result<std::vector<std::string>> folders_named_by(const History& history) {
    std::set<std::string> folders;
    for (const std::uint32_t rank : ranks_with_journals(history.path, history.ranks)) {
        TWR_TRY(const Journal journal, read_rank_journal(history.path, rank, history.ranks));
        for (const auto& [step, files] : journal.steps)
            folders.insert(files.folder);
        for (const auto& [ordinal, file] : journal.differences)
            folders.insert(file.substr(0, file.find('/')));
    }
    return std::vector<std::string>(folders.begin(), folders.end());
}

// What has a manifest's name and is no file of its own can be nothing that twinrun made.
Result<> check_regular(const std::string& path) {
    std::error_code failure;
    const auto kind = fs::symlink_status(path, failure).type();
    if (kind == fs::file_type::not_found || kind == fs::file_type::regular) return success();
    return Error{
        ErrorCode::invalid_argument,
        path +
            ": is there, and is no regular file (a link, a folder, a pipe): move it away, or name another "
            "folder"};
}

// It tells how large the data beside it is: whoever dies in between leaves what the next one can tell.
void metadata_last(std::vector<std::string>& names) {
    std::stable_partition(names.begin(), names.end(),
                          [](const std::string& name) { return !name.ends_with(kMetadataSuffix); });
}

// Of folders that a run may have made.
std::vector<std::string> folders_of_steps(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        if (is_folder && (is_step_folder(name) || name.starts_with(kHiddenPrefix))) names.push_back(name);
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

bool is_step_folder(const std::string& name) { return name == kLeftoversFolder || step_of(name).has_value(); }

bool is_step_file(const std::string& name, std::optional<std::uint32_t> rank) {
    std::string_view rest = name;
    const auto takes = [&](std::string_view text) {
        if (!rest.starts_with(text)) return false;
        rest.remove_prefix(text.size());
        return true;
    };
    const auto takes_digits = [&] {
        const std::size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
        rest.remove_prefix(count);
        return count != 0;
    };
    std::uint32_t of = 0;
    if (std::sscanf(name.c_str(), "rank-%9" SCNu32, &of) != 1 || !takes(rank_name(of)) ||
        (rank && *rank != of))
        return false;
    // "rank-00003.1.twr", "rank-00003.difference-7.twr"
    bool of_difference = false;
    if (rest.size() > 1 && rest[1] >= '0' && rest[1] <= '9') {
        takes(".");
        of_difference = takes_digits();
    } else if (takes(".difference-")) {
        of_difference = takes_digits();
        if (!of_difference) return false;
    }
    if (!takes(".twr") && (of_difference || (!takes(".data") && !takes(kMetadataSuffix)))) return false;
    return rest.empty() || is_random_end(rest);
}

bool is_proven(const std::string& folder, const std::string& name) {
    if (name.size() > kRandomEnd && is_random_end(std::string_view(name).substr(name.size() - kRandomEnd)))
        return true;
    const std::string file = (fs::path(folder) / name).string();
    if (name.ends_with(kMetadataSuffix)) return is_metadata_file(file);
    if (name.ends_with(".twr")) return is_difference_file(file);
    if (name.find(kPartialName) != std::string::npos) return true;
    // Data is the user's bytes and nothing else.
    const auto stamp = stamp_of(file);
    if (!stamp) return false;
    const fs::path metadata = fs::path(file).replace_extension(kMetadataSuffix);
    if (is_metadata_file(metadata.string())) {
        if (const auto opened = MetadataFile::open(metadata.string())) {
            for (const DataFile& data : (*opened)->directory().data_files) {
                if (data.path == name) return data.stamp.size == stamp->size;
            }
        }
    }
    return stamp->size != 0 && stamp->size % kPageBytes == 0;
}

std::string marker_name(const HistoryId& id) { return kHiddenPrefix + id; }

bool is_marked(const std::string& path, const std::string& folder, const HistoryId& id) {
    const fs::path place = fs::path(path) / folder;
    std::error_code failure;
    return fs::symlink_status(place, failure).type() == fs::file_type::directory && !failure &&
           fs::symlink_status(place / marker_name(id), failure).type() == fs::file_type::regular && !failure;
}

std::string new_difference_name(const std::string& folder, std::uint32_t rank) {
    std::string name = rank_name(rank) + ".twr";
    for (std::uint64_t n = 1; is_there((fs::path(folder) / name).string()); ++n)
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
    struct Parts {
        std::vector<RankStep> ranks;
    };
    std::map<std::int64_t, Parts> steps;
    Journal manifest;
    TWR_CHECK(read_manifest(path, history, manifest));
    history.torn = manifest.torn;
    TWR_CHECK(check_journals(path, history.ranks));
    for (const std::uint32_t rank : ranks_with_journals(path, history.ranks)) {
        Journal own;
        if (history.ranks > 1) {
            TWR_CHECK(read_journal(history, rank, history.ranks, own));
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

Result<> HistoryWriter::check_place() const {
    struct stat ours, there;
    if (journal_lock_.descriptor() < 0 || ::fstat(journal_lock_.descriptor(), &ours) != 0) return success();
    if (::lstat(file_.c_str(), &there) == 0 && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return success();
    return Error{
        ErrorCode::damaged,
        file_ +
            ": is not the file any more that this run writes: the history was moved or replaced while "
            "the run went on, and nothing more is captured into it"};
}

// Gives the journal a file of its own where the same file has another name: a copy of the history that was made of links.
Result<> HistoryWriter::detach() {
    struct stat status;
    if (::lstat(file_.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink <= 1)
        return success();
    TWR_TRY(const auto bytes, read_whole_file(file_, kLargestManifest));
    const std::string temporary = temporary_name(file_);
    TWR_TRY(auto copy, system_.create(temporary, bytes.size()));
    TWR_CHECK(copy->write_at(0, bytes));
    TWR_CHECK(copy->sync());
    TWR_CHECK(system_.replace(temporary, file_));
    TWR_CHECK(copy->close());
    return system_.sync_folder(path_);
}

Result<> HistoryWriter::append(const std::string& lines) {
    TWR_CHECK(check_place());
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
    TWR_CHECK(check_place());
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
    writer->path_ = real_path(path);
    writer->rank_ = rank;
    writer->ranks_ = ranks;
    writer->file_ = journal_path(writer->path_, rank, ranks);
    writer->record_ = settings.record;
    TWR_CHECK(check_regular(manifest_path(writer->path_)));
    if (rank != 0) {
        // Rank 0 has made the manifest, or has found it.
        History history;
        TWR_CHECK(read_manifest(writer->path_, history, writer->journal_));
        TWR_CHECK(writer->check_same(history, settings));
        writer->go_on(history);
    }
    // Before anything is read: another process may still be committing steps, which would be taken for leftovers.
    Lock opening;
    TWR_CHECK(writer->lock(opening, rank == 0 && existing == Existing::refuse));
    if (!History::exists(path)) {
        TWR_CHECK(writer->check_nobody_writes());
        TWR_CHECK(writer->begin(settings, nullptr, nullptr));
        return writer;
    }
    History history;
    writer->journal_ = {};
    TWR_CHECK(read_manifest(writer->path_, history, writer->journal_));
    if (rank == 0 && existing == Existing::replace) {
        TWR_TRY(const Journal first, read_rank_journal(path, 0, history.ranks));
        TWR_CHECK(check_children(path, first));
        TWR_CHECK(writer->check_nobody_writes());
        TWR_CHECK(writer->begin(settings, nullptr, &history));
        return writer;
    }
    TWR_CHECK(writer->check_same(history, settings));
    writer->go_on(history);
    if (ranks > 1) {
        if (rank == 0) TWR_CHECK(writer->begin_journal());
        writer->journal_ = {};
        TWR_CHECK(read_journal(history, rank, ranks, writer->journal_));
        TWR_TRY(const bool locked, writer->lock_journal());
        if (!locked) return writer->busy();
    }
    TWR_CHECK(writer->remove_leftovers());
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

void HistoryWriter::go_on(const History& history) {
    id_ = history.id;
    has_id_ = history.has_id;
    replaced_ = history.replaced;
    version_ = version_of(history.settings);
}

Result<> HistoryWriter::check_same(const History& history, const HistorySettings& settings) const {
    HistorySettings wanted = settings;
    // Where files may be shared, steps may have files of their own.
    wanted.shared = wanted.shared || history.settings.shared;
    if (wanted.shared && !history.settings.shared) {
        wanted.shared = false;
        if (history.settings == wanted) {
            return Error{ErrorCode::mismatch, path_ +
                                                  ": was begun without shared_files: append without them, or "
                                                  "name another folder"};
        }
    }
    if (history.settings != wanted) {
        return Error{ErrorCode::mismatch, path_ + ": was captured with other settings: append with the same"};
    }
    if (history.ranks != ranks_) {
        return Error{ErrorCode::mismatch, path_ + ": was captured by " + std::to_string(history.ranks) +
                                              " ranks, now there are " + std::to_string(ranks_) +
                                              ": name another folder"};
    }
    return success();
}

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open_local(FileSystem& system, const std::string& path,
                                                                 const HistorySettings& settings,
                                                                 std::uint32_t rank, std::uint32_t ranks,
                                                                 const std::string& history, bool replace,
                                                                 const HistoryId& of) try {
    std::unique_ptr<HistoryWriter> writer(new HistoryWriter(system));
    writer->path_ = real_path(path);
    writer->rank_ = rank;
    writer->ranks_ = ranks;
    writer->file_ = journal_path(writer->path_, rank, ranks);
    writer->record_ = settings.record;
    writer->local_ = true;
    TWR_CHECK(check_regular(manifest_path(writer->path_)));
    Lock opening;
    TWR_CHECK(writer->lock(opening, false));  // another run of this node may be using the folder
    auto had = LocalHistory::read(path);
    const bool same = had && had->is_of(settings, rank, ranks, history, of);
    // Of what is replaced its own part goes too; another history's steps, and those of one that was here before, stay.
    if (had && (!replace || had->history != history))
        TWR_CHECK(check_part(path, *had, settings, rank, ranks, history, replace ? HistoryId() : of));
    History before;
    Journal ignored;
    if (had) TWR_CHECK(read_manifest(path, before, ignored));
    if (same && !replace && !had->journal.steps.empty()) {
        writer->go_on(before);
        writer->journal_ = std::move(had->journal);
        TWR_CHECK(writer->remove_leftovers());
        return writer;
    }
    if (!had && had.error().code != ErrorCode::not_found) return std::move(had).error();
    TWR_CHECK(writer->begin(settings, &history, had ? &before : nullptr, of));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the history's list of steps"};
}

// A file of one line, whole or not there. What it replaces was proven to be twinrun's.
Result<> HistoryWriter::write_first_line(const std::string& file, const std::string& object, bool replaces) {
    const std::string line = seal_line(object) + "\n";
    const std::string temporary = temporary_name(file);
    TWR_TRY(auto output, system_.create(temporary, 0));
    TWR_CHECK(output->write_at(0, std::as_bytes(std::span(line))));
    TWR_CHECK(output->sync());
    // Not closed yet: a file that does not get its name is removed.
    TWR_CHECK(replaces ? system_.replace(temporary, file) : system_.rename(temporary, file));
    TWR_CHECK(output->close());
    journal_ = {};
    journal_.whole_bytes = line.size();
    return success();
}

// First lines of manifest and journal, for a history that has none of this rank. had: what is replaced.
Result<> HistoryWriter::begin(const HistorySettings& settings, const std::string* history, const History* had,
                              const HistoryId& of) {
    TWR_CHECK(system_.make_folders(path_));
    if (rank_ == 0 || history != nullptr) {
        id_ = new_id();
        has_id_ = true;
        Json first = settings_to_json(settings, ranks_);
        first["id"] = id_;
        if (had != nullptr) {
            replaced_ = had->replaced;
            replaced_.push_back(had->id);
            // Only those that have left something.
            const auto names = folders_of_steps(path_);
            std::erase_if(replaced_, [&](const HistoryId& id) {
                return id != had->id &&
                       std::none_of(names.begin(), names.end(),
                                    [&](const std::string& name) { return is_marked(path_, name, id); });
            });
            first["replaced"] = replaced_;
        }
        if (history != nullptr) {
            first["rank"] = rank_;
            if (!of.empty()) first["of"] = of;
            first["history"] = path_to_json(*history);
        }
        // What is to leave is known from the journals, which do not count any more once the manifest is another.
        std::vector<std::string> folders;
        if (had != nullptr) {
            TWR_TRY(folders, folders_named_by(*had));
        }
        if (auto done = write_first_line(manifest_path(path_), first.dump(), had != nullptr); !done) {
            if (had != nullptr || !is_there(manifest_path(path_))) return done;
            return Error{ErrorCode::invalid_argument,
                         path_ + ": another process has begun a history there: choose another folder"};
        }
        made_ = true;
        if (had != nullptr) TWR_CHECK(remove_replaced(*had, folders));
    }
    version_ = version_of(settings);
    if (ranks_ > 1) TWR_CHECK(begin_journal());
    TWR_TRY(const bool locked, lock_journal());
    if (!locked) return busy();
    TWR_CHECK(system_.sync_folder(path_));
    return remove_leftovers();
}

// Of a rank of several that has none in this history. One of a history that was replaced goes; any other file is not ours.
Result<> HistoryWriter::begin_journal() {
    bool replaces = false;
    if (is_there(file_)) {
        const auto head = journal_head(file_);
        if (head && head->id == (has_id_ ? id_ : "")) return success();
        replaces = head && (head->id.empty()
                                ? !replaced_.empty()
                                : std::find(replaced_.begin(), replaced_.end(), head->id) != replaced_.end());
        if (!replaces) {
            return Error{
                ErrorCode::invalid_argument,
                file_ +
                    ": is there already, and is not the journal of this history: move it away, or name "
                    "another folder"};
        }
    }
    Json first{{"twinrun_journal", version_}, {"rank", rank_}, {"ranks", ranks_}};
    if (has_id_) first["id"] = id_;
    if (auto done = write_first_line(file_, first.dump(), replaces); !done) {
        // Another process of this rank was faster: who has the lock goes on.
        const auto head = journal_head(file_);
        return head && head->id == (has_id_ ? id_ : "") ? success() : done;
    }
    made_ = true;
    return system_.sync_folder(path_);
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
    const auto still_named = [&](int descriptor) {
        struct stat ours, there;
        return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
               ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
    };
    if (descriptor_ >= 0 && still_named(descriptor_)) return true;
    release();  // of what was replaced
    for (;;) {
        // O_NONBLOCK: a pipe of this name, that somebody else put there, must not hold us up.
        const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (opened < 0) return true;
        const int result = ::flock(opened, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB);
        const int why = errno;
        // Locked, or this storage has no locks.
        if ((result == 0 || (why != EINTR && why != EWOULDBLOCK)) && still_named(opened)) {
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
        TWR_CHECK(begin_journal());
    }
    if (journal_lock_.take(file_) &&
        (rank_ != 0 || local_ || ranks_ == 1 || manifest_lock_.take(manifest_path(path_)))) {
        // Nobody else writes it: now it may become another file.
        TWR_CHECK(detach());
        return journal_lock_.take(file_);
    }
    journal_lock_.release();
    return false;
}

Result<> HistoryWriter::check_refused() const {
    if (!History::exists(path_)) return success();
    return Error{ErrorCode::invalid_argument,
                 path_ + ": holds a history already: choose another folder, or append to it, or replace it"};
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
    History history;
    TWR_CHECK(read_manifest(path, history, journal));
    if (ranks > 1) {
        journal = {};
        TWR_CHECK(read_journal(history, rank, ranks, journal));
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

bool LocalHistory::is_of(const HistorySettings& other, std::uint32_t other_rank, std::uint32_t other_ranks,
                         const std::string& other_history, const HistoryId& other_id) const {
    return settings == other && rank == other_rank && ranks == other_ranks && history == other_history &&
           (of.empty() || other_id.empty() || of == other_id);
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
    local.id = history.id;
    local.has_id = history.has_id;
    local.replaced = history.replaced;
    local.settings = history.settings;
    local.ranks = history.ranks;
    if (local.ranks == 1) {
        local.journal = std::move(manifest);
    } else {
        TWR_CHECK(read_journal(history, local.rank, local.ranks, local.journal));
    }
    return local;
}

// A folder that this history made, or one that was here before it.
bool HistoryWriter::is_own(const std::string& folder) const {
    return is_marked(path_, folder, id_) ||
           std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const HistoryId& id) { return is_marked(path_, folder, id); });
}

Result<> HistoryWriter::make_folder(const std::string& name) const {
    TWR_CHECK(check_place());
    const std::string folder = (fs::path(path_) / name).string();
    TWR_TRY(const bool made, system_.make_marked_folder(folder, marker_name(id_)));
    if (made || is_marked(path_, name, id_)) return success();
    // Folders that were made before there were markers.
    if (!has_id_) {
        const auto named = [&](const std::string& file) { return file.starts_with(name + "/"); };
        if (std::any_of(journal_.steps.begin(), journal_.steps.end(),
                        [&](const auto& step) { return step.second.folder == name; }) ||
            std::any_of(journal_.differences.begin(), journal_.differences.end(),
                        [&](const auto& difference) { return named(difference.second); })) {
            return success();
        }
    }
    return Error{
        ErrorCode::invalid_argument,
        folder +
            ": is there already, and this history did not make it: move it away, or name another folder "
            "for the history"};
}

std::string HistoryWriter::folder_for(std::int64_t step, std::uint32_t attempt) const {
    for (;; ++attempt) {
        std::string name = step_folder(step, attempt);
        if (!is_there((fs::path(path_) / name).string()) || is_marked(path_, name, id_)) return name;
    }
}

Result<> HistoryWriter::remove_leftovers() {
    std::set<std::string> known;
    for (const auto& [step, files] : journal_.steps)
        known.insert(files.folder);
    for (const auto& [ordinal, file] : journal_.differences)
        known.insert(file.substr(0, file.find('/')));
    for (const std::string& name : folders_of_steps(path_)) {
        if (known.contains(name)) {
            if (!journal_.differences.empty()) TWR_CHECK(remove_unnamed(name));
        } else if (is_marked(path_, name, id_)) {
            TWR_CHECK(remove_files(name, rank_));
        } else if (rank_ == 0 && is_own(name)) {
            TWR_CHECK(remove_files(name, std::nullopt));  // of a history that is not there any more
        }
    }
    return success();
}

// Of a history that has just been replaced: what its journals name, and the journals of ranks that the new one may not have.
Result<> HistoryWriter::remove_replaced(const History& had, const std::vector<std::string>& folders) {
    for (const std::string& folder : folders)
        TWR_CHECK(remove_files(folder, std::nullopt, !had.has_id));
    if (had.ranks == 1) return success();
    for (const std::uint32_t rank : ranks_with_journals(path_, had.ranks)) {
        const std::string file = journal_path(path_, rank, had.ranks);
        const auto head = journal_head(file);
        if (head && head->id == (had.has_id ? had.id : "")) TWR_CHECK(system_.remove(file));
    }
    return success();
}

// rank: of which rank the files are; none: of all. named: a journal from before there were markers says that the folder is ours.
Result<> HistoryWriter::remove_files(const std::string& folder, std::optional<std::uint32_t> rank,
                                     bool named) {
    const fs::path place = fs::path(path_) / folder;
    std::error_code ignored;
    if (fs::symlink_status(place, ignored).type() != fs::file_type::directory) return success();
    if (!named && has_id_ && !is_own(folder)) return success();
    std::vector<std::string> names;
    std::vector<std::string> shared;
    std::vector<std::string> markers;
    bool others = false;
    const auto list = [&] {
        names.clear();
        shared.clear();
        markers.clear();
        others = false;
        for (const auto& [name, is_file, is_folder] : entries_of(place.string())) {
            if (!is_file) {
                others = true;
            } else if (is_step_file(name, rank) && is_proven(place.string(), name)) {
                names.push_back((place / name).string());
            } else if (name.starts_with(kSharedPrefix) && is_proven(place.string(), name)) {
                shared.push_back((place / name).string());
            } else if (name == marker_name(id_) ||
                       std::any_of(replaced_.begin(), replaced_.end(),
                                   [&, &file = name](const auto& id) { return file == marker_name(id); })) {
                markers.push_back((place / name).string());
            } else {
                others = true;
            }
        }
    };
    list();
    metadata_last(names);
    for (const std::string& name : names)
        TWR_CHECK(system_.remove(name));
    // The last rank to leave takes what is of all: each looks once its own files are gone, so that two that leave at once do not both
    // leave it to the other.
    if (!names.empty()) list();
    if (others) return success();
    for (const std::string& name : shared)
        TWR_CHECK(system_.remove(name));
    return remove_marked_folder(place.string(), markers);
}

// Only an empty folder goes. One that another rank puts a file into meanwhile gets its marker back: whose it is can be told.
Result<> HistoryWriter::remove_marked_folder(const std::string& folder,
                                             const std::vector<std::string>& markers) {
    for (const std::string& name : markers)
        TWR_CHECK(system_.remove(name));
    const auto gone = system_.remove_empty_folder(folder);
    if (gone && !is_there(folder)) return success();
    for (const std::string& name : markers) {
        auto marker = system_.create(name, 0);
        if (!marker && is_there(name)) continue;  // another rank was faster
        if (!marker) return is_there(folder) ? Result<>(marker.error()) : success();
        TWR_CHECK((*marker)->close());
    }
    return system_.sync_folder(folder);
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
    TWR_CHECK(add({"{\"child\":" + to_text(path_to_json(path)) + "}"}));
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
    if (has_id_ && !is_own(folder)) return success();
    const fs::path place = fs::path(path_) / folder;
    std::vector<std::string> names;
    for (const auto& [name, is_file, is_folder] : entries_of(place.string())) {
        if (is_file && is_step_file(name, rank_) && !named.contains(name) && is_proven(place.string(), name))
            names.push_back((place / name).string());
    }
    metadata_last(names);
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

Result<> HistoryWriter::remove_part() {
    TWR_CHECK(be_sure());
    if (!local_ || !journal_.steps.empty() || !journal_.differences.empty())
        return Error{ErrorCode::internal, path_ + ": is no part of a history without steps"};
    Lock folder;
    if (!folder.take(path_)) return success();
    TWR_TRY(const LocalHistory here, LocalHistory::read(path_));
    if (here.id != id_ || here.rank != rank_ || !here.journal.steps.empty()) return success();
    // First the journal: a manifest without one is a part that was begun.
    for (const std::string& file : {file_, manifest_path(path_)}) {
        std::error_code ignored;
        if (fs::symlink_status(file, ignored).type() == fs::file_type::regular)
            TWR_CHECK(system_.remove(file));
    }
    static_cast<void>(system_.remove_empty_folder(path_));
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
        if (had->second.files.difference == kNoBase && !had->second.files.shared &&
            (!has_id_ || is_own(had->second.folder)) &&
            is_proven((fs::path(path_) / had->second.folder).string(), had->second.files.data))
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
