#include "capture/setup.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "capture/staging.hpp"
#include "history/apart.hpp"
#include "history/record_store.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kSmallestMemory = 16 << 20;

Result<> check_limits(const SessionSettings& settings) {
    if (settings.flusher == Flusher::process && settings.local.empty())
        return Error{ErrorCode::invalid_argument, "flusher: a process needs a local tier: set local"};
    if (settings.flush_threads < 1 || settings.flush_threads > 64)
        return Error{ErrorCode::invalid_argument, "flush_threads: 1 to 64"};
    if (is_staged(settings) && settings.memory_bytes < kSmallestMemory)
        return Error{ErrorCode::invalid_argument, "memory: at least 16 MiB, or 0 for none"};
    return success();
}

// Errors where two of the run's folders must differ and do not.
Result<> check_places(const RunPlace& place, const SessionSettings& settings) {
    if (!settings.local.empty()) TWR_CHECK(check_apart(place.path, settings.local));
    std::error_code not_there;
    if (settings.existing == Existing::replace && !settings.reference.empty() &&
        (settings.reference == place.folder ||
         std::filesystem::equivalent(settings.reference, place.folder, not_there))) {
        return Error{
            ErrorCode::invalid_argument,
            place.path + ": is the reference of this run and cannot be replaced: name another folder"};
    }
    return success();
}

// Checks the settings of a record, and makes history.record of them.
Result<> set_up_record(FileSystem& system, const RunPlace& place, SessionSettings& settings) {
    if (!settings.record) return success();
    RecordSettings& record = settings.record_settings;
    record.method = *settings.record;
    if (record.method == RecordMethod::full) record.xored = false;
    TWR_CHECK(record.check());
    if (!settings.history.keep_data)
        return Error{ErrorCode::invalid_argument, "record: there is no data to record where mode is digests"};
    if (settings.keep.any()) {
        return Error{
            ErrorCode::invalid_argument,
            "record: later steps need earlier ones: leave keep_steps and keep_data_steps at 0, and remove "
            "steps with 'twinrun compact'"};
    }
    const std::string against = record.against;
    TWR_CHECK(settle_against(system, record, place.folder, place.ranks, against, place.rank == 0,
                             settings.existing == Existing::replace));
    settings.history.record = record;
    return success();
}

// Errors where another setting excludes shared files.
Result<> set_up_shared(SessionSettings& settings) {
    if (!shares_files(settings)) return success();
    const auto refuse = [](const std::string& what) {
        return Error{ErrorCode::invalid_argument, "shared_files: " + what};
    };
    if (!settings.history.keep_data) return refuse("there is no data to share where mode is digests");
    if (settings.history.record)
        return refuse("a record has a file a rank: leave one of record and shared_files off");
    if (!settings.local.empty())
        return refuse("a node-local tier has a file a rank: leave one of local and shared_files off");
    if (settings.keep.data_steps != 0) {
        return refuse(
            "a rank cannot drop its part of a file that others read: instead of keep_data_steps use "
            "keep_steps");
    }
    settings.history.shared = true;
    return success();
}

}  // namespace

Result<> set_up(FileSystem& system, const RunPlace& place, SessionSettings& settings) {
    TWR_CHECK(check_limits(settings));
    TWR_CHECK(check_places(place, settings));
    TWR_CHECK(set_up_record(system, place, settings));
    TWR_CHECK(set_up_shared(settings));
    return Tiers::check_local(place.folder, place.rank, place.ranks, tier_settings(settings));
}

bool is_staged(const SessionSettings& settings) { return settings.background && settings.memory_bytes != 0; }

bool shares_files(const SessionSettings& settings) { return settings.shared_files != SharedFiles::off; }

bool stays_local(const SessionSettings& settings) {
    return settings.flusher == Flusher::none && !settings.local.empty();
}

std::uint64_t heap_share(const SessionSettings& settings) {
    // Digests are on the heap: an eighth. If files are shared, so is all data until it is written:
    // then the ring has a quarter.
    if (!shares_files(settings)) return settings.memory_bytes / 8;
    return settings.memory_bytes - std::max<std::uint64_t>(settings.memory_bytes / 4, StagingRing::kSmallest);
}

TierSettings tier_settings(const SessionSettings& settings) {
    TierSettings tiers;
    tiers.history = settings.history;
    tiers.existing = settings.existing;
    tiers.local = settings.local;
    tiers.local_bytes = settings.local_bytes;
    tiers.flusher = settings.flusher;
    tiers.flush_program = settings.flush_program;
    tiers.keep = settings.keep;
    return tiers;
}

}  // namespace twinrun
