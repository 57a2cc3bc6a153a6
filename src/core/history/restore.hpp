// Restores a committed step of one rank into the application's arrays. Bytes are checked against
// their checksums first.
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

// Whether both lists have the same paths in the same order, with the same journal entries of steps.
bool same_places(const std::vector<StoredPart>& a, const std::vector<StoredPart>& b);

// Reads a step that may be removed or captured again meanwhile. find() returns the parts that have
// it; use() reads it from them. If use() fails, and find() returns other parts now, use() is called
// again with these.
// Errors: the last one of use(); not_found if the step was removed.
Result<> read_stored(const std::function<std::vector<StoredPart>()>& find, std::int64_t step,
                     const std::function<Result<>(const std::vector<StoredPart>&)>& use);

// Restores a step from the first part that has it and can be read. fields: the arrays to write, by
// name; those on devices must be dense. Items are written in stored order (sorted by IDs, if there
// were any). threads: as many read at once, fewer where there are few bytes.
// Errors: not_found: no such step or field, or only metadata is stored; mismatch: another type,
// shape or order; damaged; unsupported. After an error some arrays may have the step's values.
Result<> restore_step(const std::vector<StoredPart>& parts, std::int64_t step,
                      const std::vector<CapturedField>& fields, int threads = 1);

// Metadata of a step's fields, in the order of capture, from the first part that has it and can be
// read.
Result<std::shared_ptr<MetadataFile>> open_stored(const std::vector<StoredPart>& parts, std::int64_t step);

}  // namespace twinrun
