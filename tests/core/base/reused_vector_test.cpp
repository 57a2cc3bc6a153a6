// Vectors that leave their memory to the next ones.
#include "base/reused_vector.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <utility>

namespace twinrun {
namespace {

// Counts what is made and moved.
struct Counted {
    static inline int there = 0;
    static inline std::size_t moved = 0;
    int number = 0;
    char more[64] = {};

    explicit Counted(int n) : number(n) { ++there; }
    Counted(Counted&& other) noexcept : number(other.number) {
        ++there;
        ++moved;
    }
    Counted& operator=(Counted&& other) noexcept {
        number = other.number;
        ++moved;
        return *this;
    }
    ~Counted() { --there; }
};

TEST(ReusedVector, RoomForAFewMoreAtATimeMovesEachElementAFewTimes) {
    constexpr std::size_t count = 40'000;
    Counted::moved = 0;
    {
        ReusedVector<Counted> all;
        while (all->size() < count) {
            all.make_room(all->size() + 3);
            for (int i = 0; i < 3; ++i)
                all->emplace_back(static_cast<int>(all->size()));
        }
        for (std::size_t i = 0; i < all->size(); ++i)
            ASSERT_EQ((*all)[i].number, static_cast<int>(i));
    }
    EXPECT_EQ(Counted::there, 0);
    EXPECT_LE(Counted::moved, 2 * count);
}

TEST(ReusedVector, TheNextOneHasTheMemoryAndNoElements) {
    const int* before = nullptr;
    {
        ReusedVector<int> first;
        first.make_room(5000);
        first->assign(5000, 7);
        before = first->data();
    }
    ReusedVector<int> second;
    second.make_room(4000);
    EXPECT_TRUE(second->empty());
    second->push_back(1);
    EXPECT_EQ(second->data(), before);
    ReusedVector<int> third;
    third.make_room(4000);
    third->push_back(2);
    EXPECT_NE(third->data(), before);
}

TEST(ReusedVector, MuchLargerMemoryIsNotTaken) {
    { ReusedVector<double>().make_room(100'000); }
    ReusedVector<double> few;
    few.make_room(300);
    EXPECT_LT(few->capacity(), 2000U);
}

TEST(ReusedVector, WhatIsTooLargeGoesBack) {
    using Vector = ReusedVector<long>;
    { Vector().make_room(Vector::kMost + 1); }
    Vector next;
    next.make_room(Vector::kMost / 2);
    EXPECT_LE(next->capacity(), Vector::kMost);
}

// The end of an element makes and ends another vector of its kind, as objects of Python may.
struct Ending {
    bool makes;
    explicit Ending(bool yes) : makes(yes) {}
    Ending(Ending&& other) noexcept : makes(std::exchange(other.makes, false)) {}
    Ending& operator=(Ending&& other) noexcept {
        makes = std::exchange(other.makes, false);
        return *this;
    }
    ~Ending() {
        if (!makes) return;
        ReusedVector<Ending> other;
        other.make_room(1000);
        other->emplace_back(false);
    }
};

TEST(ReusedVector, AnElementsEndMayUseOthers) {
    for (int round = 0; round < 3; ++round) {
        ReusedVector<Ending> all;
        all.make_room(1000);
        for (int i = 0; i < 1000; ++i)
            all->emplace_back(i % 3 == 0);
    }
    ReusedVector<Ending> last;
    last.make_room(1000);
    EXPECT_TRUE(last->empty());
}

TEST(ReusedVector, HoldsWhatAVectorHolds) {
    std::mt19937 random(1);
    std::vector<std::pair<ReusedVector<std::shared_ptr<int>>, std::vector<int>>> all(4);
    for (int step = 0; step < 3000; ++step) {
        auto& [mine, plain] = all[random() % all.size()];
        switch (random() % 8) {
            case 0:
                mine = ReusedVector<std::shared_ptr<int>>();
                plain.clear();
                break;
            case 1: {
                auto& [other, other_plain] = all[random() % all.size()];
                std::swap(mine, other);
                std::swap(plain, other_plain);
                break;
            }
            case 2: mine.make_room(mine->size() + random() % 2000); break;
            default:
                for (std::size_t more = random() % 300; more != 0; --more) {
                    mine.make_room(mine->size() + 1);
                    mine->push_back(std::make_shared<int>(step));
                    plain.push_back(step);
                }
        }
        for (const auto& [reused, expected] : all) {
            ASSERT_EQ(reused->size(), expected.size());
            if (expected.empty()) continue;
            const std::size_t at = random() % expected.size();
            ASSERT_EQ(*(*reused)[at], expected[at]);
            ASSERT_EQ(*reused->back(), expected.back());
        }
    }
}

TEST(ReusedVector, AnotherThreadMayEndIt) {
    ReusedVector<int> mine;
    mine.make_room(5000);
    std::thread([taken = std::move(mine)]() mutable { taken = ReusedVector<int>(); }).join();
    EXPECT_TRUE(mine->empty());  // NOLINT: as its vector says
}

}  // namespace
}  // namespace twinrun
