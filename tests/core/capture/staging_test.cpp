#include "capture/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace twinrun {
namespace {

constexpr std::size_t kBytes = StagingRing::kSmallest;

TEST(StagingRing, TooSmallOrImpossibleSizesAreErrors) {
    EXPECT_FALSE(StagingRing::create(StagingRing::kSmallest - 1));
    EXPECT_FALSE(StagingRing::create(std::size_t{1} << 60));
}

// Random blocks that come back in any order: none overlaps another, all lie within the ring, what is used is their sum.
TEST(StagingRing, BlocksNeverOverlap) {
    for (unsigned seed = 0; seed < 20; ++seed) {
        std::mt19937 random(seed);
        const auto ring = StagingRing::create(kBytes + random() % 5 * 4096).value();
        struct Block {
            std::byte* at;
            std::size_t bytes;
        };
        std::vector<Block> held;
        std::deque<std::size_t>
            since_oldest;  // sizes of all blocks that were taken since the oldest that is held
        std::deque<const std::byte*> order;  // and where they are; null: given back
        std::size_t largest = 0;             // of these
        const std::byte* lowest = nullptr;
        std::size_t most = 0;
        for (int i = 0; i < 4000; ++i) {
            std::size_t in_use = 0;
            for (const Block& b : held)
                in_use += b.bytes;
            ASSERT_EQ(ring->used(), in_use);
            most = std::max(most, in_use);
            const bool small = random() % 4 != 0;
            const std::size_t wanted = 1 + random() % (small ? 60'000 : ring->largest_block());
            // One thread must not wait for itself: room is reused in order, so that all from the oldest held block on counts,
            // and once what was left at the end because a block did not fit there.
            std::size_t span = 0;
            for (const std::size_t bytes : since_oldest)
                span += bytes;
            const bool sure = held.empty() || span + 2 * (wanted + 4096) + largest <= kBytes;
            if (sure && random() % 3 != 0) {
                double waited = 0;
                std::byte* const at = ring->allocate(wanted, waited);
                ASSERT_NE(at, nullptr);
                EXPECT_EQ(waited, 0);
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % StagingRing::kAlignment, 0U);
                if (lowest == nullptr || at < lowest) lowest = at;
                const std::size_t bytes = (wanted + 4095) / 4096 * 4096;
                EXPECT_LE(static_cast<std::size_t>(at - lowest) + bytes, kBytes + 5 * 4096);
                for (const Block& b : held)
                    ASSERT_TRUE(at + bytes <= b.at || b.at + b.bytes <= at);
                held.push_back({at, bytes});
                since_oldest.push_back(bytes);
                order.push_back(at);
                largest = std::max(largest, bytes);
                std::memset(at, static_cast<int>(seed), wanted);
            } else if (!held.empty()) {
                const std::size_t which = random() % held.size();
                ring->release(held[which].at);
                ring->release(held[which].at);  // twice: no effect
                std::replace(order.begin(), order.end(), static_cast<const std::byte*>(held[which].at),
                             static_cast<const std::byte*>(nullptr));
                while (!order.empty() && order.front() == nullptr) {
                    order.pop_front();
                    since_oldest.pop_front();
                }
                if (order.empty()) largest = 0;
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
            }
        }
        EXPECT_GE(ring->most_used(), most);
        for (const Block& b : held)
            ring->release(b.at);
        EXPECT_EQ(ring->used(), 0U);
        double waited = 0;
        EXPECT_NE(ring->allocate(ring->largest_block(), waited), nullptr);
        EXPECT_EQ(ring->allocate(ring->largest_block() + 1, waited), nullptr);
    }
}

// One thread takes, others give back out of order: contents stay, and nobody waits for ever.
TEST(StagingRing, ThreadsShareIt) {
    const auto ring = StagingRing::create(kBytes).value();
    std::mutex mutex;
    std::condition_variable changed;
    struct Block {
        std::byte* at;
        std::size_t bytes;
        unsigned char mark;
    };
    std::deque<Block> blocks;
    bool over = false;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            for (;;) {
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return over || !blocks.empty(); });
                if (blocks.empty()) return;
                const std::size_t which = random() % std::min<std::size_t>(blocks.size(), 3);
                const Block block = blocks[which];
                blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
                lock.unlock();
                for (std::size_t i = 0; i < block.bytes; i += 509)
                    wrong += block.at[i] != std::byte{block.mark};
                ring->release(block.at);
            }
        });
    }
    std::mt19937 random(99);
    double waited = 0;
    for (int i = 0; i < 1500; ++i) {
        const std::size_t bytes = 1 + random() % (i % 10 == 0 ? ring->largest_block() : 300'000);
        std::byte* const at = ring->allocate(bytes, waited);
        ASSERT_NE(at, nullptr);
        std::memset(at, i % 251, bytes);
        const std::lock_guard guard(mutex);
        blocks.push_back({at, bytes, static_cast<unsigned char>(i % 251)});
        changed.notify_one();
    }
    {
        const std::lock_guard guard(mutex);
        over = true;
    }
    changed.notify_all();
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(ring->used(), 0U);
    EXPECT_LE(ring->most_used(), kBytes);
}

TEST(StagingRing, StopWakesWhoWaits) {
    const auto ring = StagingRing::create(kBytes).value();
    double waited = 0;
    ASSERT_NE(ring->allocate(ring->largest_block(), waited), nullptr);
    ASSERT_NE(ring->allocate(ring->largest_block(), waited), nullptr);
    std::thread waits([&] {
        double own = 0;
        EXPECT_EQ(ring->allocate(4096, own), nullptr);
    });
    ring->stop();
    waits.join();
    EXPECT_EQ(ring->allocate(1, waited), nullptr);
}

}  // namespace
}  // namespace twinrun
