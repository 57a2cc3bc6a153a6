#include "capture/protected_fields.hpp"

#include <iterator>
#include <string>
#include <utility>

#include "base/utf8.hpp"
#include "history/gather.hpp"

namespace twinrun {

namespace {

Error not_protected(const std::string& name) {
    return Error{ErrorCode::not_found, "no protected field of the name '" + name + "'"};
}

}  // namespace

Result<> check_name(const CapturedField& field) {
    if (field.name.size() > kLongestName) {
        return Error{ErrorCode::invalid_argument,
                     "field '" + readable(field.name.substr(0, 60)) + "…': its name has " +
                         std::to_string(field.name.size()) + " bytes, more than " +
                         std::to_string(kLongestName) + ": give it a shorter one"};
    }
    if (is_utf8(field.name)) return success();
    return Error{ErrorCode::invalid_argument,
                 "field '" + readable(field.name) + "': its name is not UTF-8: give it another name"};
}

Result<> check_field(const CapturedField& field, const HistorySettings& settings) {
    if (field.device) TWR_CHECK(check_array(*field.device));
    TWR_CHECK(plan_captured(field, settings));
    if (!field.device) TWR_CHECK(FieldReader::create(field, nullptr));
    return success();
}

Result<> ProtectedFields::add(CapturedField field, const HistorySettings& settings) {
    TWR_CHECK(check_name(field));
    TWR_CHECK(check_field(field, settings));
    const auto [place, added] = by_name_.try_emplace(field.name);
    if (!added) {
        *place->second = std::move(field);
        return success();
    }
    try {
        fields_.push_back(std::move(field));
    } catch (...) {
        by_name_.erase(place);
        throw;
    }
    place->second = std::prev(fields_.end());
    return success();
}

Result<> ProtectedFields::remove(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return not_protected(name);
    const auto place = found->second;
    by_name_.erase(found);
    fields_.erase(place);
    return success();
}

Result<std::vector<CapturedField>> ProtectedFields::named(std::span<const std::string> names) const {
    if (names.empty()) return std::vector<CapturedField>(fields_.begin(), fields_.end());
    std::vector<CapturedField> fields;
    for (const std::string& name : names) {
        const auto field = by_name_.find(name);
        if (field == by_name_.end()) return not_protected(name);
        fields.push_back(*field->second);
    }
    return fields;
}

}  // namespace twinrun
