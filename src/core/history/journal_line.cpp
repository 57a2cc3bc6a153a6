#include "history/journal_line.hpp"

#include <algorithm>
#include <span>

#include "base/checksum.hpp"
#include "history/plain_step.hpp"
#include "platform/file_io.hpp"
#include "platform/new_files.hpp"
#include "record/settings.hpp"

namespace twinrun {

namespace {

constexpr const char* kSumKey = ",\"xxh3\":\"";  // always the last key of a line
constexpr const char* kDifferenceKey = "difference_xxh3";

std::uint64_t from_hex(const std::string& text) {
    std::uint64_t value = 0;
    if (text.size() != 16) throw bad("a checksum that is not 16 hexadecimal digits");
    for (const char c : text) {
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) throw bad("a checksum that is not 16 hexadecimal digits");
        value = value << 4 | static_cast<std::uint64_t>(digit);
    }
    return value;
}

// Whether a name may become part of a path: it must not lead out of the history's folder.
bool is_plain(const std::string& name) {
    return name != "." && name != ".." && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos;
}
std::string plain_name(const Json& j, const char* key) {
    auto name = j.at(key).get<std::string>();
    if (!is_plain(name)) throw bad("a name that leads out of the history");
    return name;
}
// What a line says of the checksum of a difference, with a comma in front.
std::string checksum_key(const std::optional<std::uint64_t>& sum) {
    return sum ? ",\"" + std::string(kDifferenceKey) + "\":\"" + hex_of(*sum) + "\"" : "";
}
// nullopt: an older twinrun wrote the line.
std::optional<std::uint64_t> difference_checksum(const Json& j) {
    if (!j.contains(kDifferenceKey)) return std::nullopt;
    return from_hex(j.at(kDifferenceKey).get<std::string>());
}
// The file of a difference, as a path in the history: "step-0000000010/rank-00003.twr".
DifferencePlace difference_place(const Json& j) {
    auto file = j.at("file").get<std::string>();
    const std::size_t cut = file.find('/');
    if (cut == std::string::npos || cut == 0 || cut + 1 == file.size() || !is_plain(file.substr(0, cut)) ||
        !is_plain(file.substr(cut + 1))) {
        throw bad("a difference that is not in the history");
    }
    return {std::move(file), difference_checksum(j)};
}
// A name that must not be empty: a path with an empty name would be that of the folder around it.
std::string some_name(const Json& j, const char* key) {
    auto name = plain_name(j, key);
    if (name.empty()) throw bad("an empty name");
    return name;
}

RankStep step_from_json(const Json& j, std::uint32_t rank) {
    RankStep step;
    step.folder = some_name(j, "folder");
    const Json& ranks = j.at("ranks");
    if (!ranks.is_array() || ranks.size() != 1) throw bad("not the files of exactly one rank");
    const Json& r = ranks[0];
    RankFiles& files = step.files;
    files.rank = whole_number<std::uint32_t>(r, "rank");
    if (files.rank != rank) throw bad("files of another rank");
    files.data = plain_name(r, "data");
    files.data_bytes = whole_number<std::uint64_t>(r, "data_bytes");
    if (r.contains("difference")) {
        files.difference = whole_number<std::uint32_t>(r, "difference");
        files.full_bytes = whole_number<std::uint64_t>(r, "full_bytes");
        files.difference_checksum = difference_checksum(r);
        if (files.difference > kMostOrdinals || files.data.empty()) throw bad("an impossible difference");
    }
    if (r.contains("offset")) {
        files.shared = true;
        files.offset = whole_number<std::uint64_t>(r, "offset");
        files.file_bytes = whole_number<std::uint64_t>(r, "file_bytes");
        if (files.difference != kNoBase || files.data.empty() || files.offset > files.file_bytes ||
            files.data_bytes > files.file_bytes - files.offset) {
            throw bad("an impossible part of a shared file");
        }
    }
    files.metadata = files.difference != kNoBase ? plain_name(r, "metadata") : some_name(r, "metadata");
    files.metadata_bytes = whole_number<std::uint64_t>(r, "metadata_bytes");
    files.header_checksum = from_hex(r.at("header_xxh3").get<std::string>());
    files.blocked_seconds = r.value("blocked_seconds", 0.0);
    files.divergence = r.value("divergence", std::string());
    return step;
}

}  // namespace

std::string seal_line(std::string json_object) {
    json_object.pop_back();  // the closing brace
    const std::uint64_t sum = xxh3(json_object);
    return json_object + kSumKey + hex_of(sum) + "\"}";
}

Result<std::string> open_line(std::string_view line) {
    const std::size_t at = line.rfind(kSumKey);
    if (at == std::string_view::npos ||
        line.substr(at) != kSumKey + hex_of(xxh3(line.substr(0, at))) + "\"}") {
        return Error{ErrorCode::damaged, "its checksum is wrong"};
    }
    std::string object;
    object.reserve(at + 1);
    return std::move(object.append(line, 0, at).append("}"));
}

std::string to_text(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string words_of(const Json::exception& e) {
    if (dynamic_cast<const Json::parse_error*>(&e) != nullptr) return "it is not JSON";
    constexpr int kNoSuchKey = 403;  // number of the error in the library's documentation
    if (e.id == kNoSuchKey) return "a key that such a line has is missing";
    if (dynamic_cast<const Json::type_error*>(&e) != nullptr)
        return "a value has another type than it should";
    return "it is not a line of a history";
}

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
            if (!s.record->against_id.empty()) j["record"]["against_id"] = s.record->against_id;
        }
    }
    return j;
}

HistoryId new_id() { return random_hex(32); }
HistoryId hash_id(const std::string& first_line) {
    return hex_of(xxh3(first_line)) + hex_of(xxh3(std::as_bytes(std::span(first_line)), 1));
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
            if (r.contains("against_id")) record.against_id = id_of(r.at("against_id"));
        }
        if (auto good = record.check(); !good) throw bad(good.error().message);
        s.record = std::move(record);
    }
    return s;
}

HistoryId id_of(const Json& j) {
    auto id = j.get<std::string>();
    if (id.size() != 32 || id.find_first_not_of("0123456789abcdef") != std::string::npos)
        throw bad("an ID that is not 32 hexadecimal digits");
    return id;
}
// Written without the JSON library: its nested values allocate when they are destroyed, and end the
// program if there is no memory.
std::string step_line(std::int64_t number, const RankStep& step, bool replaces) {
    const RankFiles& r = step.files;
    std::string line = "{\"folder\":" + to_text(step.folder) +
                       ",\"ranks\":[{\"blocked_seconds\":" + to_text(r.blocked_seconds) +
                       ",\"data\":" + to_text(r.data) + ",\"data_bytes\":" + std::to_string(r.data_bytes);
    if (r.shared) {
        line += ",\"file_bytes\":" + std::to_string(r.file_bytes) + ",\"offset\":" + std::to_string(r.offset);
    }
    if (!r.divergence.empty()) line += ",\"divergence\":" + to_text(r.divergence);
    if (r.difference != kNoBase) {
        line += ",\"difference\":" + std::to_string(r.difference) + checksum_key(r.difference_checksum) +
                ",\"full_bytes\":" + std::to_string(r.full_bytes);
    }
    line += ",\"header_xxh3\":\"" + hex_of(r.header_checksum) + "\",\"metadata\":" + to_text(r.metadata) +
            ",\"metadata_bytes\":" + std::to_string(r.metadata_bytes) +
            ",\"rank\":" + std::to_string(r.rank) + "}]";
    if (replaces) line += ",\"replaces\":true";
    return line + ",\"step\":" + std::to_string(number) + "}";
}

namespace {

void forget_data(RankFiles& files) {
    files.data.clear();
    files.data_bytes = 0;
    files.difference = kNoBase;
    files.difference_checksum.reset();
    files.full_bytes = 0;
    files.shared = false;
    files.offset = 0;
    files.file_bytes = 0;
}

}  // namespace

bool may_use_ordinal(const Journal& journal, std::int64_t number, const RankStep& step) {
    const std::uint32_t ordinal = step.files.difference;
    if (ordinal == kNoBase || !journal.taken.contains(ordinal)) return true;
    const auto known = journal.steps.find(number);
    return known != journal.steps.end() && known->second.files.difference == ordinal &&
           known->second.folder == step.folder;
}

void put_step(Journal& journal, std::int64_t number, const RankStep& step) {
    if (const std::uint32_t ordinal = step.files.difference; ordinal != kNoBase) {
        journal.differences[ordinal] = {step.folder + "/" + step.files.data, step.files.difference_checksum};
        journal.next_difference = std::max(journal.next_difference, ordinal + 1);
        journal.taken.insert(ordinal);
    }
    journal.steps.put(number, step);
}

bool drop_step(Journal& journal, std::int64_t number) {
    const auto known = journal.steps.find(number);
    if (known == journal.steps.end()) return false;
    const auto [dropped, first] = journal.dropped.try_emplace(number, 0);
    dropped->second = std::max(dropped->second, attempt_of(known->second.folder));
    journal.steps.erase(number);
    return true;
}

bool drop_step_data(Journal& journal, std::int64_t number) {
    const auto known = journal.steps.find(number);
    if (known == journal.steps.end()) return false;
    RankStep step = known->second;
    forget_data(step.files);
    journal.steps.put(number, step);
    return true;
}

std::string place_keys(const DifferencePlace& place) {
    const std::string sum = checksum_key(place.checksum);
    return (sum.empty() ? sum : sum.substr(1) + ",") + "\"file\":" + to_text(place.file);
}

void put_difference(Journal& journal, std::uint32_t ordinal, DifferencePlace place) {
    journal.differences[ordinal] = std::move(place);
    journal.next_difference = std::max(journal.next_difference, ordinal + 1);
}

namespace {

void take_step(Journal& journal, std::int64_t number, const RankStep& step, bool replaces) {
    if (journal.steps.contains(number) && !replaces) throw bad("a step that is listed twice");
    if (!may_use_ordinal(journal, number, step)) throw bad("a difference that another step has or had");
    put_step(journal, number, step);
}

void take_any(const Json& j, std::uint32_t rank, Journal& journal) {
    if (j.contains("step")) {
        const auto number = whole_number<std::int64_t>(j, "step");
        take_step(journal, number, step_from_json(j, rank), j.value("replaces", false));
    } else if (j.contains("drop")) {
        if (!drop_step(journal, whole_number<std::int64_t>(j, "drop")))
            throw bad("drops a step that is not there");
    } else if (j.contains("drop_data")) {
        if (!drop_step_data(journal, whole_number<std::int64_t>(j, "drop_data")))
            throw bad("drops the data of a step that is not there");
    } else if (j.contains("child")) {
        journal.children.push_back(path_from_json(j.at("child")));
    } else if (j.contains("moved")) {
        const auto known = [&](const Json& number) {
            const auto ordinal = number_of<std::uint32_t>(number, "a difference");
            if (!journal.differences.contains(ordinal)) throw bad("moves a difference that is not there");
            return ordinal;
        };
        for (const Json& part : j.at("moved")) {
            const DifferencePlace place = difference_place(part);
            for (const Json& number : part.at("differences"))
                journal.differences[known(number)] = place;
        }
        for (const Json& number : j.at("gone"))
            journal.differences.erase(known(number));
    } else if (j.contains("difference")) {
        const auto ordinal = whole_number<std::uint32_t>(j, "difference");
        if (ordinal > kMostOrdinals || journal.differences.contains(ordinal) ||
            journal.taken.contains(ordinal))
            throw bad("an impossible difference");
        put_difference(journal, ordinal, difference_place(j));
    } else if (j.contains("reserved")) {
        const auto end = whole_number<std::uint32_t>(j, "reserved");
        if (end > kMostOrdinals) throw bad("more differences than a record can have");
        journal.next_difference = std::max(journal.next_difference, end);
    } else if (j.contains("provenance")) {
        auto facts = provenance_of(j.at("provenance"));
        if (!facts) throw bad(facts.error().message);
        journal.provenance.push_back(std::move(facts).value());
    } else {
        throw bad("a line of an unknown kind: it was written by a newer twinrun");
    }
}

}  // namespace

void take_line(const std::string& object, std::uint32_t rank, Journal& journal) {
    if (const auto plain = plain_step(object, rank)) {
        take_step(journal, plain->number, plain->step, false);
    } else {
        take_any(Json::parse(object), rank, journal);
    }
}

}  // namespace twinrun
