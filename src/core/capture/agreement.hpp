// What the ranks of a run agree on. Functions marked [collective] are called by all ranks, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "capture/session.hpp"
#include "history/history.hpp"
#include "platform/comm.hpp"

namespace twinrun {

// A step that every rank has committed on the run's last tier, in the same attempt.
struct CommonStep {
    std::int64_t step = 0;
    bool has_data = false;
};

// add() and settled() may be called from any thread, the rest from the one that calls MPI.
class Agreement {
   public:
    // track: which steps all ranks have committed is found out on the way, and told to `everywhere` by the thread that calls.
    Agreement(Comm& comm, bool track, std::function<void(std::int64_t)> everywhere);

    [[nodiscard]] bool several() const { return comm_.size() > 1; }
    // [collective] Own failure, or that of another rank, or none.
    Result<> agree(Result<> own);
    // [collective] What later collective calls depend on: ranks that differ in it would wait for each other for ever. ends_local
    // becomes true if it is on some rank.
    Result<> on_settings(const SessionSettings& settings, bool staged, bool& ends_local,
                         const std::string& path);
    // [collective] That all capture this step, in the highest attempt that one of them names; own: a failure here. Then add() needs no
    // memory for it.
    Result<> on_step(Result<> own, std::int64_t step, std::uint32_t& attempt);
    // [collective] Goes on finding out which steps all have committed.
    Result<> exchange();
    // [collective] The steps that every rank has. here: those of this rank, where they end on its node (ends_local) or it is alone; else
    // they are the history's, which rank 0 reads by `open`. needs_data: a step without it counts as one with it where none is kept.
    Result<std::vector<CommonStep>> common_steps(
        bool ends_local, bool keeps_data, const std::function<std::map<std::int64_t, RankStep>()>& here,
        const std::function<Result<History>()>& open);

    // A step that was agreed on is under way, in the same order on every rank; and what became of it here.
    void add(std::int64_t step);
    void settled(std::int64_t step, bool lost);
    // Steps not known to be committed, or lost, on all ranks.
    [[nodiscard]] std::size_t unresolved() const;

   private:
    Result<> minimum(std::vector<std::int64_t>& values);

    Comm& comm_;
    const bool track_;
    const std::function<void(std::int64_t)> everywhere_;
    struct Ordinal {
        std::int64_t step;
        std::int64_t state;  // 0: under way, 1: committed, -1: lost
    };
    mutable std::mutex mutex_;  // of the next
    std::vector<Ordinal> unresolved_;
};

Error other_rank();

}  // namespace twinrun
