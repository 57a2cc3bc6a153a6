// Reads the steps of a session back from its tiers, the nearest one first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "capture/tiers.hpp"
#include "history/field.hpp"
#include "history/restore.hpp"

namespace twinrun {

// A session's member, used by one thread at a time. A step may be removed or captured again while
// it is read; then it is read from where it is now.
class StoredSteps {
   public:
    // path: the run's folder, for messages. threads: of restore_step(). tiers outlives this.
    StoredSteps(const Tiers& tiers, std::string path, int threads)
        : tiers_(tiers), path_(std::move(path)), threads_(threads) {}

    // Errors: those of restore_step().
    [[nodiscard]] Result<> restore(std::int64_t step, const std::vector<CapturedField>& fields) const;
    // Metadata of the step's fields. Keeps the last result, because a program asks for one field
    // after the other. Errors: those of open_stored().
    Result<std::shared_ptr<MetadataFile>> metadata(std::int64_t step);
    // Calls use() with the nearest part that has the step, and again if the step moved meanwhile.
    // Errors: not_found: no tier has it; those of use().
    [[nodiscard]] Result<> read(std::int64_t step,
                                const std::function<Result<>(const StoredPart&)>& use) const;

   private:
    const Tiers& tiers_;
    const std::string path_;
    const int threads_;
    struct Opened {
        std::vector<StoredPart> parts;
        std::shared_ptr<MetadataFile> metadata;
    };
    Opened last_;
};

}  // namespace twinrun
