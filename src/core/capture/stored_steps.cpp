#include "capture/stored_steps.hpp"

#include <string>

namespace twinrun {

Result<> StoredSteps::restore(std::int64_t step, const std::vector<CapturedField>& fields) const {
    return read_stored([&] { return tiers_.stored(step); }, step,
                       [&](const auto& parts) { return restore_step(parts, step, fields, threads_); });
}

Result<std::shared_ptr<MetadataFile>> StoredSteps::metadata(std::int64_t step) {
    const auto find = [&] { return tiers_.stored(step); };
    TWR_CHECK(read_stored(find, step, [&](const std::vector<StoredPart>& parts) -> Result<> {
        if (last_.metadata != nullptr && same_places(parts, last_.parts)) return success();
        last_ = {};
        TWR_TRY(last_.metadata, open_stored(parts, step));
        last_.parts = parts;
        return success();
    }));
    return last_.metadata;
}

Result<> StoredSteps::read(std::int64_t step, const std::function<Result<>(const StoredPart&)>& use) const {
    const auto find = [&] { return tiers_.stored(step); };
    return read_stored(find, step, [&](const std::vector<StoredPart>& parts) -> Result<> {
        if (parts.empty()) {
            return Error{ErrorCode::not_found,
                         path_ + ": step " + std::to_string(step) + " is not committed by this rank"};
        }
        return use(parts.front());
    });
}

}  // namespace twinrun
