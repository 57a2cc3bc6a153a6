// A field of a step that a record holds, as a source of elements.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "history/record_store.hpp"
#include "source/source.hpp"

namespace twinrun {

// Reads the elements from the record when they are asked for. Errors: those of RecordStore::map();
// mismatch: the step has no such field, or one of another size.
Result<std::unique_ptr<ElementSource>> record_source(std::shared_ptr<RecordStore> record, std::int64_t step,
                                                     const std::string& field, DType dtype,
                                                     std::uint64_t items);

}  // namespace twinrun
