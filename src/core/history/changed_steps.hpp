// Finds steps that a record has, and whose files have changed since they were packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"

namespace twinrun {

// Step and record are compared in parts of this many bytes.
inline constexpr std::uint64_t kCompareBytes = 16 * kRecordPart;

// How a step differs from the step in the record: names of files, or of ranks.
struct StepChange {
    std::vector<std::string> changed;
    std::vector<std::string> late;  // the record does not have them
    [[nodiscard]] bool any() const { return !changed.empty() || !late.empty(); }
};

// The error for changed steps if PackOptions::update is not set. changes: not empty.
Error changed_steps(const std::string& target, const std::map<std::int64_t, StepChange>& changes);

// Steps of a history that a record has already.
struct KnownSteps {
    std::map<std::int64_t, StepChange> changes;  // only steps that have changed
    // For each step the attempt to pack: the record's newest one, or the next one if the step has
    // changed.
    std::map<std::int64_t, std::uint32_t> attempts;
};

// Compares the history at `source` with the record at `target`. Returns nothing known if
// PackOptions::append is not set, or there is no record of as many ranks at `target`.
Result<KnownSteps> compare_steps(const History& history, const std::string& source, const std::string& target,
                                 const PackOptions& options);

}  // namespace twinrun
