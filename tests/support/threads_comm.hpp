// Ranks as threads of one process, for tests.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/comm.hpp"

namespace twinrun::testing {

class ThreadsComm final : public Comm {
   public:
    // program(comm) on every rank at once.
    static void run(int ranks, const std::function<void(Comm&)>& program) {
        Shared shared(ranks);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank) {
            threads.emplace_back([&, rank] {
                ThreadsComm comm(shared, rank, ranks);
                program(comm);
                shared.arrive.arrive_and_drop();  // one that gave up does not hold up the others
            });
        }
        for (auto& thread : threads)
            thread.join();
    }

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }
    Result<> minimum(std::span<std::int64_t> values) override {
        shared_.arrive.arrive_and_wait();
        {
            const std::lock_guard guard(shared_.mutex);
            if (shared_.values.empty()) shared_.values.assign(values.begin(), values.end());
            EXPECT_EQ(shared_.values.size(), values.size());
            for (std::size_t i = 0; i < values.size() && i < shared_.values.size(); ++i)
                shared_.values[i] = std::min(shared_.values[i], values[i]);
        }
        shared_.arrive.arrive_and_wait();
        std::copy(shared_.values.begin(), shared_.values.end(), values.begin());
        shared_.arrive.arrive_and_wait();
        if (rank_ == 0) shared_.values.clear();
        shared_.arrive.arrive_and_wait();
        return success();
    }
    Result<> broadcast(std::span<std::byte> bytes) override {
        shared_.arrive.arrive_and_wait();
        if (rank_ == 0) shared_.bytes.assign(bytes.begin(), bytes.end());
        shared_.arrive.arrive_and_wait();
        std::copy(shared_.bytes.begin(), shared_.bytes.end(), bytes.begin());
        shared_.arrive.arrive_and_wait();
        return success();
    }

   private:
    struct Shared {
        explicit Shared(int ranks) : arrive(ranks) {}
        std::barrier<> arrive;
        std::mutex mutex;
        std::vector<std::int64_t> values;
        std::vector<std::byte> bytes;
    };
    ThreadsComm(Shared& shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}
    Shared& shared_;
    int rank_;
    int size_;
};

}  // namespace twinrun::testing
