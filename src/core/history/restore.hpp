// A committed step of one rank, back into the application's arrays. Every byte is checked against its checksum first.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "history/field.hpp"
#include "history/history.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

// A rank's part of a history, on some tier.
struct StoredPart {
    std::string path;
    Journal journal;
};

// Whether the parts are the same ones, and say the same of their steps.
bool same_places(const std::vector<StoredPart>& a, const std::vector<StoredPart>& b);

// Reads a step that may leave meanwhile, or be captured again: use(parts) of what find() says has it; when that fails, again with
// what find() says then, if that is something else. Errors: use()'s last one; not_found where the step left.
Result<> read_stored(const std::function<std::vector<StoredPart>()>& find, std::int64_t step,
                     const std::function<Result<>(const std::vector<StoredPart>&)>& use);

// From the first part that has the step and is not damaged. fields: where to, by name; arrays on devices must be dense. Items
// come in the order in which they were kept (by IDs, if there were any). Errors: not_found; mismatch where type, shape or order
// differ; damaged; a step of which only metadata was kept. After an error some fields may hold the step's values.
Result<> restore_step(const std::vector<StoredPart>& parts, std::int64_t step,
                      const std::vector<CapturedField>& fields);

// What is stored of a step's fields, in the order of capture: of the first part that has it and is not damaged.
Result<std::shared_ptr<MetadataFile>> open_stored(const std::vector<StoredPart>& parts, std::int64_t step);

}  // namespace twinrun
