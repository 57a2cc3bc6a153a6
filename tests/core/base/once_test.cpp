#include "base/once.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>
#include <vector>

namespace twinrun {
namespace {

TEST(Once, OneOfManyThreadsDoesIt) {
    for (int round = 0; round < 50; ++round) {
        Once once;
        std::atomic<int> times{0};
        int written = 0;
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&] {
                once.run([&] {
                    ++times;
                    written = 7;
                });
                EXPECT_EQ(written, 7);  // by another thread too
            });
        }
        threads.clear();
        EXPECT_EQ(times, 1);
    }
}

TEST(Once, AnExceptionLeavesItToTheNext) {
    Once once;
    int times = 0;
    EXPECT_THROW(once.run([&] {
        ++times;
        throw std::bad_alloc();
    }),
                 std::bad_alloc);
    once.run([&] { ++times; });
    once.run([&] { ++times; });
    EXPECT_EQ(times, 2);
}

}  // namespace
}  // namespace twinrun
