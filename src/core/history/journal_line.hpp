// One line of a manifest or journal: JSON in, facts out, and back. For the files beside it only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "history/history.hpp"

namespace twinrun {

using Json = nlohmann::json;

// A line without its end of line: its last key is a checksum of the rest. Opening it checks and removes that. Errors: damaged.
std::string seal_line(std::string json_object);
Result<std::string> open_line(const std::string& line);

// What is wrong with a line.
struct Bad : std::runtime_error {
    using std::runtime_error::runtime_error;
};
inline Bad bad(const std::string& what) { return Bad(what); }
std::string words_of(const Json::exception& e);

// Numbers of a line. Both throw Bad, or an error of Json.
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

std::string to_text(const Json& j);
Json path_to_json(const std::string& path);
std::string path_from_json(const Json& j);
int version_of(const HistorySettings& s);
Json settings_to_json(const HistorySettings& s, std::uint32_t ranks);
HistorySettings settings_from_json(const Json& j);
HistoryId new_id();
HistoryId hash_id(const std::string& first_line);
HistoryId id_of(const Json& j);
std::string step_line(std::int64_t number, const RankStep& step, bool replaces);

// What lines do to a journal.
void forget_data(RankFiles& files);
bool may_have(const Journal& journal, std::int64_t number, const RankStep& step);
void put_step(Journal& journal, std::int64_t number, const RankStep& step);
bool drop_step(Journal& journal, std::int64_t number);  // false: it is not there
void put_difference(Journal& journal, std::uint32_t ordinal, const std::string& file);
// Any line after the first. Throws Bad, or an error of Json.
void take_line(const Json& j, std::uint32_t rank, Journal& journal);

}  // namespace twinrun
