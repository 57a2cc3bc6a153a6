// A rank's committed steps from one tier to the next, every byte checked against its checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Brings over and commits one step; of a record, also the differences that it needs and that are
// not there. A step that was there and left is not brought over again. mutex: held while `to` is
// used, not while files are copied; null: nobody else uses it.
Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex = nullptr);

struct FlushFacts {
    std::uint64_t steps = 0;
    std::uint64_t bytes = 0;
};
// Steps of a journal in the order in which they were captured; of a history without a record, by
// their numbers.
std::vector<std::int64_t> in_flush_order(const Journal& journal);

// Brings over and commits what `to` lacks of a journal's steps, in that order. Steps that cannot be
// read, or that storage does not take, are reported to `lost` and left where they are; others
// follow. A step that leaves the part meanwhile is not lost; one that is captured again is brought
// over as it is then.
Result<FlushFacts> flush_steps(const std::string& from, const Journal& journal, HistoryWriter& to,
                               const std::function<void(std::int64_t, const Error&)>& lost);

// The same for a rank's folder on a node-local tier (local_path), whoever wrote it and however it
// ended: the run may be dead, and must not be alive. A history that is not there is made: as the
// one that the part belongs to (`of`), and has its ID; where the part does not know it, `id` (""
// draws one). Error, before anything is written, if the part belongs to another history than the
// one that is there.
Result<FlushFacts> flush_folder(FileSystem& system, const std::string& local, const std::string& history,
                                const std::function<void(std::int64_t, const Error&)>& lost,
                                const HistoryId& id = {});

// Error if a part that belongs to the history `of` ("": not known) is not one of the history with
// this ID.
Result<> check_of(const std::string& local, const HistoryId& of, const std::string& history,
                  const HistoryId& id);

// The ID that a history gets which is made of these parts (folders of ranks); "": none of them
// knows it. Error, where the history is not there yet, if parts are of different histories: its
// steps would be made of two runs.
Result<HistoryId> id_of_parts(const std::vector<std::string>& parts, const std::string& history);

}  // namespace twinrun
