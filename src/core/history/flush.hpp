// From one tier to the next: a rank's committed steps, file by file, every byte checked against its checksum on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Copies the files of a rank's step out of the history `from`; they are synced under their final names, not yet committed.
// After an error nothing is left of them. Data without checksums (of arrays on devices, whose bytes never were on the host)
// is copied as it is.
Result<> copy_step(const std::string& from, const RankStep& entry, const HistoryWriter& to);

// Brings over and commits one step; of a record, with the differences that it needs and that are not there, by themselves. A step
// that was there and left is not brought over again. mutex: held while `to` is used, not while files are copied; null: nobody else uses it.
Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex = nullptr);

struct FlushFacts {
    std::uint64_t steps = 0;
    std::uint64_t bytes = 0;
};
// Steps of a journal in the order in which they were captured; of a history without a record, by their numbers.
std::vector<std::int64_t> in_flush_order(const Journal& journal);

// Brings over and commits what `to` lacks of a journal's steps, in that order. Steps that cannot be read, or that storage does
// not take, are told to `lost` and left where they are; others follow. A step that leaves the part meanwhile is not lost; one that
// is captured again is brought over as it is then.
Result<FlushFacts> flush_steps(const std::string& from, const Journal& journal, HistoryWriter& to,
                               const std::function<void(std::int64_t, const Error&)>& lost);

// The same for a rank's folder on a node-local tier (local_path), whoever wrote it and however it ended: the run may be dead,
// and must not be alive. The history is made if it is not there.
Result<FlushFacts> flush_folder(FileSystem& system, const std::string& local, const std::string& history,
                                const std::function<void(std::int64_t, const Error&)>& lost);

// Error where the history at `path` is the folder of the node-local tier `local`, or lies in the folder of a rank there: each would
// find the other's files in its own. Links, and folders that are mounted twice, are seen through.
Result<> check_apart(const std::string& path, const std::string& local);

// Whether the history has all steps of its part on a node-local tier, or newer attempts at them, with their files, every byte
// that a checksum covers as it was written: then nothing is lost with that part. Reads these files once.
bool is_flushed(const LocalHistory& local);
// Error unless the part at `path` is that of this rank and history, or has nothing that is not in its own.
Result<> check_part(const std::string& path, const LocalHistory& part, const HistorySettings& settings,
                    std::uint32_t rank, std::uint32_t ranks, const std::string& history, const HistoryId& of);

}  // namespace twinrun
