// One line of a manifest or journal: parses it, writes it, and applies it to a Journal. Only files
// of this room include this.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "history/history.hpp"

namespace twinrun {

using Json = nlohmann::json;

// Adds a checksum to a JSON object as its last key, which makes it a line without the line feed.
std::string seal_line(std::string json_object);
// Checks and removes the checksum of a line. Error: damaged.
Result<std::string> open_line(std::string_view line);

// Thrown for a line whose content is wrong; what() says why.
struct Bad : std::runtime_error {
    using std::runtime_error::runtime_error;
};
inline Bad bad(const std::string& what) { return Bad(what); }
// The reason why a line cannot be read, in words for users: the library's own messages are for
// programmers.
std::string words_of(const Json::exception& e);

// A number of a line. Both throw Bad if it is not in the range of T, or an error of Json.
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

// JSON as text. Bytes of strings that are not UTF-8 are replaced.
std::string to_text(const Json& j);
// A path as JSON, and back. A path that is not UTF-8 becomes an object with its bytes in
// hexadecimal.
Json path_to_json(const std::string& path);
std::string path_from_json(const Json& j);
// Version of the format that a history with these settings needs.
int version_of(const HistorySettings& s);
// The first line of a manifest. settings_from_json() throws Bad, or an error of Json.
Json settings_to_json(const HistorySettings& s, std::uint32_t ranks);
HistorySettings settings_from_json(const Json& j);
HistoryId new_id();
// The ID of a history that has none in its manifest.
HistoryId hash_id(const std::string& first_line);
// Reads an ID and checks its form, because it becomes part of file names. Throws Bad, or an error
// of Json.
HistoryId id_of(const Json& j);
// The line of a committed step; replaces: the journal has an earlier attempt at it.
std::string step_line(std::int64_t number, const RankStep& step, bool replaces);

// Changes that lines make.
// Whether the step's difference may have its ordinal: no other step, and no other attempt, ever had
// it. Other differences refer to it by this number.
bool may_use_ordinal(const Journal& journal, std::int64_t number, const RankStep& step);
void put_step(Journal& journal, std::int64_t number, const RankStep& step);
bool drop_step(Journal& journal, std::int64_t number);  // false: the journal has no such step
// The data was dropped, metadata stays. false: the journal has no such step.
bool drop_step_data(Journal& journal, std::int64_t number);
void put_difference(Journal& journal, std::uint32_t ordinal, DifferencePlace place);
// The keys of a line that name the file of a difference, without braces.
std::string place_keys(const DifferencePlace& place);
// The facts of a line. Error: damaged.
Result<Provenance> provenance_of(const Json& all);
// Applies a line of `rank`'s journal, any but the first; object: as open_line() gives it. Throws
// Bad, or an error of Json.
void take_line(const std::string& object, std::uint32_t rank, Journal& journal);

}  // namespace twinrun
