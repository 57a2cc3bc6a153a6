// Steps that a record has and that changed since they were packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"

namespace twinrun {

// Both are compared a part of this size at a time.
inline constexpr std::uint64_t kCompareBytes = 16 * kRecordPart;

// How a step differs from what the record has of it, as names.
struct StepChange {
    std::vector<std::string> changed;
    std::vector<std::string> late;  // that the record does not have
    [[nodiscard]] bool any() const { return !changed.empty() || !late.empty(); }
};

// The error where PackOptions::update is not given. changes: not empty.
Error changed_steps(const std::string& target, const std::map<std::int64_t, StepChange>& changes);

// Steps of a history that a record has already.
struct KnownSteps {
    std::map<std::int64_t, StepChange> changes;  // those that changed
    // The attempt that ranks make which do not have the step yet, or not its new version.
    std::map<std::int64_t, std::uint32_t> attempts;
};

// Compares the history at `source` with the record at `target`, if PackOptions::append says that
// the record goes on.
Result<KnownSteps> compare_steps(const History& history, const std::string& source, const std::string& target,
                                 const PackOptions& options);

}  // namespace twinrun
