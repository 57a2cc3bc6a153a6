// Ranks as threads of one process, for tests.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
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
                shared.writes.arrive.arrive_and_drop();
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

    // One file of all ranks, which the lowest that is there writes.
    Result<std::string> prepare_shared(SharedFiles, bool) override { return std::string("group.data"); }
    Result<SharedPlace> write_shared(FileSystem& system, const SharedPart& part) override {
        auto& writes = shared_.writes;
        for (;;) {
            writes.arrive.arrive_and_wait();
            {
                const std::lock_guard guard(shared_.mutex);
                writes.parts[rank_] = part;
            }
            writes.arrive.arrive_and_wait();
            const auto parts = writes.parts;
            writes.arrive.arrive_and_wait();
            if (parts.begin()->first == rank_) writes.parts.clear();
            std::uint64_t lowest = part.ordinal;
            std::uint64_t highest = part.ordinal;
            bool well = true;
            SharedPlace place;
            std::vector<std::span<const std::byte>> bytes;
            for (const auto& [rank, other] : parts) {
                lowest = std::min(lowest, other.ordinal);
                highest = std::max(highest, other.ordinal);
                well = well && other.well;
                if (rank < rank_) place.offset += other.bytes.size();
                place.file_bytes += other.bytes.size();
                bytes.push_back(other.bytes);
            }
            if (lowest < part.ordinal) continue;
            if (highest != lowest) return Error{ErrorCode::other_rank, "a rank did not take this step"};
            if (!well) return Error{ErrorCode::other_rank, "a rank could not bring its part"};
            if (parts.begin()->first == rank_) {
                for (const auto& [rank, other] : parts)
                    EXPECT_STREQ(other.folder, part.folder);
                auto written = write_parts(system, part.folder, "group.data", bytes);
                const std::lock_guard guard(shared_.mutex);
                writes.written = std::move(written);
            }
            writes.arrive.arrive_and_wait();
            const auto written = writes.written;
            writes.arrive.arrive_and_wait();
            if (!written) return written.error();
            return place;
        }
    }

   private:
    struct Writes {
        explicit Writes(int ranks) : arrive(ranks) {}
        std::barrier<> arrive;
        std::map<int, SharedPart> parts;
        Result<> written = success();
    };
    struct Shared {
        explicit Shared(int ranks) : arrive(ranks), writes(ranks) {}
        std::barrier<> arrive;
        Writes writes;
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
