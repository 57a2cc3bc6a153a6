#include "capture/attempts.hpp"

#include <algorithm>
#include <filesystem>
#include <new>
#include <string>

#include "history/names.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

void Attempts::add(std::int64_t step, std::uint32_t attempt) {
    steps_.insert(step);
    if (attempt == 0) return;
    std::uint32_t& newest = newest_[step];
    newest = std::max(newest, attempt);
}

void Attempts::add(const Journal& journal) {
    for (const auto& [step, entry] : journal.steps)
        add(step, attempt_of(entry.folder));
    for (const auto& [step, attempt] : journal.dropped)
        add(step, attempt);
    // Differences of dropped steps stay, because other steps may need them: the names of their
    // folders are in use.
    for (const auto& [ordinal, place] : journal.differences) {
        const std::string folder = place.file.substr(0, place.file.find('/'));
        if (const auto step = step_of(folder)) add(*step, attempt_of(folder));
    }
}

std::uint32_t Attempts::after_newest(std::int64_t step) const {
    if (!steps_.contains(step)) return 0;
    const auto newest = newest_.find(step);
    return newest == newest_.end() ? 1 : newest->second + 1;
}

Result<std::uint32_t> first_unused(std::int64_t step, std::uint32_t attempt,
                                   std::span<const std::string_view> parents) try {
    const auto used = [&](std::string_view parent) {
        return !parent.empty() &&
               is_there((std::filesystem::path(parent) / step_folder(step, attempt)).string());
    };
    while (std::any_of(parents.begin(), parents.end(), used))
        ++attempt;
    return attempt;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to capture a step"};
}

}  // namespace twinrun
