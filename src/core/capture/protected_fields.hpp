// The fields that an application protects, by name and in the order in which they are captured.
#pragma once

#include <list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "history/field.hpp"
#include "history/history.hpp"

namespace twinrun {

// Error: a name that is not UTF-8. Messages, reports and JSON contain it.
Result<> check_name(const CapturedField& field);
// Whether the field can be captured and restored. Errors: those of check_array(), plan_captured()
// and FieldReader::create().
Result<> check_field(const CapturedField& field, const HistorySettings& settings);

// A session's member, used by one thread at a time.
class ProtectedFields {
   public:
    // Replaces a field of the same name, in its place. Errors: those of check_name() and
    // check_field(). Throws std::bad_alloc; then nothing was added.
    Result<> add(CapturedField field, const HistorySettings& settings);
    Result<> remove(const std::string& name);  // error: not_found
    // The fields of these names, in their order; no names: all fields. Error: not_found.
    [[nodiscard]] Result<std::vector<CapturedField>> named(std::span<const std::string> names) const;

   private:
    std::list<CapturedField> fields_;  // in the order in which they are captured
    std::unordered_map<std::string, std::list<CapturedField>::iterator> by_name_;
};

}  // namespace twinrun
