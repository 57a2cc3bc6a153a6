#include "history/journal.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <string_view>
#include <utility>

#include "history/journal_line.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestHead = 4096;      // most bytes of a journal's first line
constexpr std::size_t kLongestBegun = 1 << 20;  // most bytes of a manifest's first line
// Other programs may have files of these names too.
constexpr const char* kPerhapsNotOurs = ", or move it away if it is not twinrun's";

// Calls visit(number, object) for each line of a file, in order, with the text of its object; visit
// may throw Bad or an error of Json. Errors name file and line.
template <class Visit>
Result<> for_each_line(const std::string& file, Journal& journal, Visit visit) {
    TWR_TRY(const auto bytes, read_whole_file(file, kLargestManifest));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        const std::string_view line = text.substr(begin, end == std::string_view::npos ? end : end - begin);
        ++number;
        const auto damaged = [&](const std::string& why) {
            return Error{ErrorCode::damaged, file + ": damaged: line " + std::to_string(number) + ": " + why +
                                                 "; restore the file from a copy" +
                                                 (number == 1 ? kPerhapsNotOurs : "")};
        };
        if (end == std::string_view::npos) {
            // A file gets its name only when its first line is complete: no crash leaves a part of
            // it.
            if (begin == 0) return damaged("it is not complete: a line of a history ends with a line feed");
            // A crash cuts a line. A complete line that is followed by another character than a
            // line feed is damaged.
            if (open_line(line.substr(0, line.size() - 1))) return damaged("its end is missing");
            journal.torn = true;
            break;
        }
        begin = end + 1;
        auto object = open_line(line);
        if (!object) return damaged(object.error().message);
        try {
            if (auto taken = visit(number, *object); !taken) return taken;
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

// Takes what the first line of a manifest says. May throw Bad or an error of Json.
Result<> take_settings(const Json& j, const std::string& path, History& history, LocalHistory* local,
                       bool* is_part) {
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
    if (is_part != nullptr) *is_part = j.contains("rank") && j.contains("history");
    if (local != nullptr && (is_part == nullptr || *is_part)) {
        local->rank = whole_number<std::uint32_t>(j, "rank");
        if (j.contains("of")) local->history_id = id_of(j.at("of"));
        local->history = path_from_json(j.at("history"));
        if (local->rank >= history.ranks) throw bad("a rank that is not below the number of ranks");
    }
    return success();
}

// The first line of a file, without its end; nullopt: it is longer than most are, or not there.
std::optional<std::string> first_line(const std::string& file) {
    std::error_code failure;
    if (fs::symlink_status(file, failure).type() != fs::file_type::regular) return std::nullopt;
    std::ifstream stream(file, std::ios::binary);
    std::string line(kLongestHead, '\0');
    stream.read(line.data(), static_cast<std::streamsize>(line.size()));
    line.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
    const std::size_t end = line.find('\n');
    if (end == std::string::npos) return std::nullopt;
    line.resize(end);
    return line;
}

}  // namespace

Result<> read_manifest(const std::string& path, History& history, Journal& journal, LocalHistory* local,
                       bool* is_part) {
    const std::string file = manifest_path(path);
    history.path = path;
    TWR_CHECK(for_each_line(file, journal, [&](std::size_t number, const std::string& object) -> Result<> {
        if (number == 1) return take_settings(Json::parse(object), path, history, local, is_part);
        if (history.ranks != 1) throw bad("more than the settings in the manifest of several ranks");
        take_line(object, 0, journal);
        return success();
    }));
    if (journal.whole_bytes == 0) {
        return Error{
            ErrorCode::damaged,
            file + ": empty: no history begins like this; restore the file from a copy" + kPerhapsNotOurs};
    }
    return success();
}

Result<> read_manifest_head(const std::string& path, History& history) {
    if (const auto line = first_line(manifest_path(path))) {
        history.path = path;
        try {
            if (const auto object = open_line(*line))
                return take_settings(Json::parse(*object), path, history, nullptr, nullptr);
        } catch (const std::bad_alloc&) {
            throw;
        } catch (const std::exception&) {  // read_manifest() says what is wrong with it
        }
        history = {};
    }
    Journal ignored;
    return read_manifest(path, history, ignored);
}

std::optional<JournalHead> journal_head(const std::string& file) try {
    const auto line = first_line(file);
    if (!line) return std::nullopt;
    const auto object = open_line(*line);
    if (!object) return std::nullopt;
    const Json j = Json::parse(*object);
    if (!j.contains("twinrun_journal")) return std::nullopt;
    return JournalHead{j.contains("id") ? id_of(j.at("id")) : "", whole_number<std::uint32_t>(j, "rank")};
} catch (const std::bad_alloc&) {
    throw;
} catch (const std::exception&) {
    return std::nullopt;
}

bool is_begun_lines(const std::string& file, const std::vector<HistoryId>& ids) try {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) return false;
    std::string line(kLongestBegun + 1, '\0');
    stream.read(line.data(), static_cast<std::streamsize>(line.size()));
    line.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
    const std::size_t end = line.find('\n');
    if (end != std::string::npos) {
        const auto object = open_line(line.substr(0, end));
        if (!object) return false;
        const Json j = Json::parse(*object);
        if (ids.empty()) return j.contains("twinrun_history");
        const HistoryId id = j.contains("id") ? id_of(j.at("id")) : "";
        return j.contains("twinrun_journal") && std::find(ids.begin(), ids.end(), id) != ids.end();
    }
    const auto begins = [&](const std::string& head) {
        return line.starts_with(head.substr(0, std::min(head.size(), line.size())));
    };
    if (line.size() > kLongestBegun) return false;
    if (ids.empty()) return begins("{\"atol\":");
    return std::any_of(ids.begin(), ids.end(), [&](const HistoryId& id) {
        return begins(id.empty() ? "{\"rank\":" : "{\"id\":\"" + id + "\"");
    });
} catch (const std::bad_alloc&) {
    throw;
} catch (const std::exception&) {
    return false;
}

Result<> read_journal(const History& history, std::uint32_t rank, std::uint32_t ranks, Journal& journal) {
    const std::string file = journal_path(history.path, rank, ranks);
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return success();
    if (const auto head = journal_head(file); head && head->id != (history.has_id ? history.id : "")) {
        return success();
    }
    return for_each_line(file, journal, [&](std::size_t number, const std::string& object) -> Result<> {
        if (number > 1) {
            take_line(object, rank, journal);
            return success();
        }
        const Json j = Json::parse(object);
        if (whole_number<int>(j, "twinrun_journal") > kHistoryVersion) {
            return Error{ErrorCode::unsupported, file + ": written by a newer twinrun: upgrade"};
        }
        if (whole_number<std::uint32_t>(j, "rank") != rank ||
            whole_number<std::uint32_t>(j, "ranks") != ranks) {
            throw bad("the journal of another rank or run");
        }
        return success();
    });
}

std::map<std::string, HistoryId> find_journals(const std::string& path,
                                               std::span<const FolderEntry> entries) {
    std::map<std::string, HistoryId> found;
    for (const auto& [name, is_file, is_folder] : entries) {
        if (!is_file || !name.ends_with(".jsonl") || name != rank_name(rank_of(name)) + ".jsonl") continue;
        const auto head = journal_head((fs::path(path) / name).string());
        if (head && head->rank == rank_of(name)) found.emplace(name, head->id);
    }
    return found;
}

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

Result<> check_journals(const std::string& path, std::uint32_t ranks) {
    if (ranks == 1) return success();
    for (const auto& [name, is_file, is_folder] : entries_of(path)) {
        std::uint32_t rank = 0;
        if (!is_file && std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank) == 1 && rank < ranks &&
            name == rank_name(rank) + ".jsonl") {
            return Error{ErrorCode::damaged,
                         (fs::path(path) / name).string() +
                             ": damaged: is not a regular file, and the journal of rank " +
                             std::to_string(rank) + " is expected there; restore the file from a copy"};
        }
    }
    return success();
}

Result<std::vector<std::string>> folders_named_by(const History& history) {
    std::set<std::string> folders;
    for (const std::uint32_t rank : ranks_with_journals(history.path, history.ranks)) {
        TWR_TRY(const Journal journal, read_rank_journal(history.path, rank, history.ranks));
        for (const auto& [step, files] : journal.steps)
            folders.insert(files.folder);
        for (const auto& [ordinal, place] : journal.differences)
            folders.insert(place.file.substr(0, place.file.find('/')));
    }
    return std::vector<std::string>(folders.begin(), folders.end());
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

}  // namespace twinrun
