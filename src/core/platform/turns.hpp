// Several ranks of one run, played by one process one after another: each opens, captures and
// closes before the next one begins. For runs in which every rank does the same with data of its
// own, as when a history of several ranks is written again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "platform/comm.hpp"

namespace twinrun {

// The contributions of rank 0 to each collective call, in order. It is the answer to all later
// ranks.
struct Turns {
    struct Call {
        std::vector<std::int64_t> values;  // of minimum()
        std::vector<std::byte> bytes;      // of broadcast()
    };
    std::vector<Call> calls;
};

// One of the ranks. Rank 0 decides: what it said is the answer, also to a rank that would bring a
// smaller value. That is right where a rank's own value follows from what rank 0 has done since, as
// from the folder of the step that it made; ranks compare answers on which all must agree with
// their own, and fail. Errors: mismatch, in another call than rank 0's.
class TurnComm final : public Comm {
   public:
    TurnComm(std::shared_ptr<Turns> turns, int rank, int size);
    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }
    Result<> minimum(std::span<std::int64_t> values) override;
    Result<> broadcast(std::span<std::byte> bytes) override;

   private:
    // The contribution of rank 0 to this call; null where it made no such call.
    const Turns::Call* answer();

    std::shared_ptr<Turns> turns_;
    int rank_;
    int size_;
    std::size_t next_ = 0;
};

}  // namespace twinrun
