#include "history/record_source.hpp"

#include <utility>

#include "base/checked.hpp"

namespace twinrun {

Result<std::unique_ptr<ElementSource>> record_source(std::shared_ptr<RecordStore> record, std::int64_t step,
                                                     const std::string& field, DType dtype,
                                                     std::uint64_t items) {
    TWR_TRY(StepMap found_map, record->map_of(step, field));
    auto map = std::make_shared<const StepMap>(std::move(found_map));
    const RecordSegment* found = map->find(field);
    const auto bytes = checked_multiply(items, item_bytes(dtype));
    if (found == nullptr || !bytes || found->bytes != *bytes) {
        return Error{ErrorCode::mismatch, record->path() + ": step " + std::to_string(step) +
                                              " has no such field '" + field + "' in its record"};
    }
    const auto number = static_cast<std::size_t>(found - map->directory.segments.data());
    std::unique_ptr<ElementSource> source = std::make_unique<DecodedSource>(
        dtype, items,
        [record = std::move(record), map, number, item = item_bytes(dtype)](
            std::uint64_t first, std::uint64_t count, std::byte* to) -> Result<> {
            return record->read(*map, number, first * item, {to, count * item});
        });
    return source;
}

}  // namespace twinrun
