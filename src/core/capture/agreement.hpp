// The agreement of the ranks of a run: settings, each step and its attempt, and which steps all of
// them have committed. [collective]: all ranks call it, in the same order.
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

// A session's member. add(), settled() and unresolved() may be called from any thread, the others
// from the one thread that may use the Comm.
class Agreement {
   public:
    // track: collective calls also find out which steps all ranks have committed, and call
    // `everywhere` with each, in the calling thread. comm outlives this.
    Agreement(Comm& comm, bool track, std::function<void(std::int64_t)> everywhere);

    [[nodiscard]] bool several() const { return comm_.size() > 1; }
    // [collective] Returns this rank's error, or other_rank() if another rank has one, or success.
    Result<> agree(Result<> own);
    // [collective] Compares the settings that later collective calls depend on: with different
    // ones, ranks would wait for each other for ever. Sets ends_local if any rank has it set.
    // Error: mismatch.
    Result<> on_settings(const SessionSettings& settings, bool staged, bool& ends_local,
                         const std::string& path);
    // [collective] Agrees that all ranks capture this step. attempt: becomes the highest that any
    // rank proposed. own: an error of this rank, which stops all of them. After success, add() of
    // this step needs no memory.
    Result<> on_step(Result<> own, std::int64_t step, std::uint32_t& attempt);
    // [collective] Exchanges only which steps all ranks have committed.
    Result<> exchange();
    // [collective] The steps that every rank has committed, ascending. own_steps: this rank's; it
    // is called where steps stay on the nodes (ends_local) or the run has one rank. Otherwise rank
    // 0 reads the history by `open`. keeps_data: false: the run stores no data, and has_data is set
    // for every step.
    Result<std::vector<CommonStep>> common_steps(bool ends_local, bool keeps_data,
                                                 const std::function<RankSteps()>& own_steps,
                                                 const std::function<Result<History>()>& open);

    // A step that on_step() agreed on is under way. Every rank adds the same steps in the same
    // order.
    void add(std::int64_t step);
    // This rank committed the step, or lost it.
    void settled(std::int64_t step, bool lost);
    // How many added steps are not yet known to be committed by all ranks, or lost by one.
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
    mutable std::mutex mutex_;         // protects unresolved_
    std::vector<Ordinal> unresolved_;  // in the order of capture
};

// The error where this rank did well and another one did not.
Error other_rank();

}  // namespace twinrun
