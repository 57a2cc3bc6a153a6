// A committed step of one rank, back into the application's arrays. Every byte is checked against its checksum first.
#pragma once

#include <string>
#include <vector>

#include "capture/field.hpp"
#include "capture/history.hpp"

namespace twinrun {

// A rank's part of a history, on some tier.
struct StoredPart {
    std::string path;
    Journal journal;
};

// From the first part that has the step and is not damaged. fields: where to, by name; arrays on devices must be dense. Items
// come in the order in which they were kept (by IDs, if there were any). Errors: not_found; mismatch where type, shape or order
// differ; damaged; a step of which only metadata was kept. After an error some fields may hold the step's values.
Result<> restore_step(const std::vector<StoredPart>& parts, std::int64_t step,
                      const std::vector<CapturedField>& fields);

// What is stored of a field.
Result<FieldMetadata> find_stored_field(const std::vector<StoredPart>& parts, std::int64_t step,
                                        const std::string& name);
// Names of the fields of a step, in the order of capture.
Result<std::vector<std::string>> find_stored_names(const std::vector<StoredPart>& parts, std::int64_t step);

}  // namespace twinrun
