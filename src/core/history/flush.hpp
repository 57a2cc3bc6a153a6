// Copies a rank's committed steps from one tier to the next ("flushes" them), and checks every byte
// against its checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/writer.hpp"

namespace twinrun {

// Copies one step from the folder `from` to `to`, and commits it there; of a record, also the
// differences that it needs and that `to` lacks. A step that `to` has dropped is not copied again.
// mutex: held while `to` is used, not while files are copied; null: no other thread uses `to`.
Result<> flush_step(const std::string& from, std::int64_t step, const RankStep& entry, HistoryWriter& to,
                    std::mutex* mutex = nullptr);

struct FlushFacts {
    std::uint64_t steps = 0;
    std::uint64_t bytes = 0;
};
// Numbers of a journal's steps in the order in which flush_steps() copies them: in a record the
// order of their differences, otherwise ascending.
std::vector<std::int64_t> in_flush_order(const Journal& journal);

// Copies and commits the journal's steps that `to` lacks. A step that cannot be read or written is
// reported to `lost` and stays where it is; later ones are still copied. A step that is dropped
// meanwhile is not lost; one that is captured again meanwhile is copied in its new state.
Result<FlushFacts> flush_steps(const std::string& from, const Journal& journal, HistoryWriter& to,
                               const std::function<void(std::int64_t, const Error&)>& lost);

// The same for a rank's folder on a node-local tier (local_path()) of a run that has ended,
// normally or not. Makes the history if there is none, with the ID that the part names; if it names
// none, with `id` ("": a new one). Error, before anything is written, if the part belongs to
// another history than the one that is there.
Result<FlushFacts> flush_folder(FileSystem& system, const std::string& local, const std::string& history,
                                const std::function<void(std::int64_t, const Error&)>& lost,
                                const HistoryId& id = {});

// Error if the part in the folder `local`, which belongs to the history with the ID `part_of` ("":
// not known), does not belong to the history with the ID `id`.
Result<> check_history_id(const std::string& local, const HistoryId& part_of, const std::string& history,
                          const HistoryId& id);

// The ID for a history that is made of these parts (folders of ranks); "": none of them names one.
// Error, if the history does not exist yet, and parts belong to different histories: its steps
// would mix two runs.
Result<HistoryId> id_of_parts(const std::vector<std::string>& parts, const std::string& history);

}  // namespace twinrun
