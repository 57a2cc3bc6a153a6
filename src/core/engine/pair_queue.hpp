// A stream of pairs that a thread of its own works on once there are many: launches and results
// take no time of the thread that finds the pairs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/pair_stream.hpp"

namespace twinrun {

// Used by one thread at a time, the caller's.
class PairQueue {
   public:
    // Pairs that the caller's thread adds to the stream: a thread does not pay for few, and the
    // first launch waits for none.
    static constexpr std::size_t kAlone = 256;
    // Pairs that are handed over at a time.
    static constexpr std::size_t kHandedOver = 64;

    // take: as of PairStream, in the caller's thread or in the queue's.
    PairQueue(DeviceChoice choice, PairStream::Take take) : stream_(std::move(choice), std::move(take)) {}
    // What was started is waited for.
    ~PairQueue();
    PairQueue(const PairQueue&) = delete;
    PairQueue& operator=(const PairQueue&) = delete;

    bool takes(int device);
    // As of PairStream. Waits only where no thread could be started and too much is under way.
    void add(std::size_t number, int device, const DevicePair& pair);
    // Whether add() may wait.
    [[nodiscard]] bool is_full(int device) const { return !thread_.joinable() && stream_.is_full(device); }

    // All were added. leads: later work of the arrays' streams waits for the work.
    void start(bool leads);
    // After start(true): whether that could be done for all pairs.
    bool led();
    // After start(): whether finish() need not wait.
    [[nodiscard]] bool is_done() const { return thread_.joinable() ? finished_.load() : stream_.is_done(); }
    // After start(): as of PairStream. goes_on is asked by the caller's thread now and then. Throws
    // what `take` threw.
    void finish(const std::function<bool()>& goes_on);
    // After finish().
    [[nodiscard]] const std::vector<std::size_t>& failed() const { return stream_.failed(); }
    [[nodiscard]] const std::optional<Error>& error() const { return stream_.error(); }

   private:
    struct Added {
        std::size_t number;
        int device;
        DevicePair pair;
    };
    void hand_over(bool ends);
    void work();
    void work_through();

    PairStream stream_;
    std::size_t count_ = 0;
    std::map<int, bool> takes_;
    std::vector<Added> added_;  // not yet handed over

    std::mutex in_use_;  // of stream_, while the thread runs
    std::mutex mutex_;   // of what follows
    std::condition_variable changed_;
    std::vector<Added> queue_;
    bool ends_ = false;  // nothing follows
    bool leads_ = false;
    std::optional<bool> led_;
    std::exception_ptr thrown_;
    std::atomic<bool> stops_{false};
    std::atomic<bool> finished_{false};
    std::thread thread_;
};

}  // namespace twinrun
