#include "base/start_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

namespace twinrun {
namespace {

TEST(StartThread, DoesItsWork) {
    std::atomic<int> sum{0};
    std::vector<std::thread> threads;
    std::vector<std::jthread> joining;
    for (int t = 1; t <= 8; ++t) {
        threads.push_back(start_thread([&sum, t] { sum += t; }));
        joining.push_back(
            start_thread<std::jthread>([&sum, own = std::make_unique<int>(t)] { sum += *own; }));
    }
    for (std::thread& thread : threads)
        thread.join();
    joining.clear();
    EXPECT_EQ(sum, 72);
}

TEST(StartThread, ItMayThrowAndCatch) {
    std::atomic<bool> caught{false};
    start_thread([&] {
        try {
            throw std::runtime_error("x");
        } catch (const std::runtime_error&) {
            caught = true;
        }
    }).join();
    EXPECT_TRUE(caught);
}

TEST(StartThread, WhatThrowsIsThere) {
    EXPECT_TRUE(allocate_what_throws());
    try {
        throw std::bad_alloc();
    } catch (const std::bad_alloc&) {
        EXPECT_TRUE(allocate_what_throws());
    }
}

}  // namespace
}  // namespace twinrun
