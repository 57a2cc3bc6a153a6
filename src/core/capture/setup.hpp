// The settings of a run as a whole: which of them exclude each other, and what follows from them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "capture/session.hpp"
#include "capture/tiers.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Where a run is, and one of its ranks.
struct RunPlace {
    std::string path;    // of the history's folder, as the caller gave it; for messages
    std::string folder;  // the same, absolute: the program may change its working folder
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
};

// Checks the settings that are not checked one by one, and completes settings.history by those of
// records and shared files. Changes nothing on storage. Errors: invalid_argument; those of
// RecordSettings::check(), settle_against() and Tiers::check_local().
Result<> set_up(FileSystem& system, const RunPlace& place, SessionSettings& settings);

// Whether steps wait in memory, and threads write them in the background.
bool is_staged(const SessionSettings& settings);
// Whether ranks write data into common files.
bool shares_files(const SessionSettings& settings);
// Whether steps stay on the node-local tier, because nobody copies them to the history's folder.
bool stays_local(const SessionSettings& settings);
// The part of settings.memory_bytes for the heap; the staging ring has the rest.
std::uint64_t heap_share(const SessionSettings& settings);
TierSettings tier_settings(const SessionSettings& settings);

}  // namespace twinrun
