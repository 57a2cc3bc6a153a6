#include "aggregate/plan/last_transfer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

using Parts = std::vector<ArrayPart>;
using Figures = std::array<double, LastTransfer::kFigures>;

// A collective transfer: the parts of each rank.
using Transfer = std::vector<Parts>;

Figures agree(const std::vector<LastTransfer>& ranks, const Transfer& transfer) {
    Figures agreed{};
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        Figures own{};
        ranks[r].put(transfer[r], own);
        for (std::size_t f = 0; f < own.size(); ++f)
            agreed[f] = std::max(agreed[f], own[f]);
    }
    return agreed;
}

std::optional<std::uint64_t> first_byte(const Transfer& transfer) {
    std::optional<std::uint64_t> first;
    for (const Parts& parts : transfer) {
        if (!parts.empty()) first = std::min(first.value_or(UINT64_MAX), parts.front().where.offset);
    }
    return first;
}

Transfer moved(Transfer transfer, std::int64_t by) {
    for (Parts& parts : transfer) {
        for (ArrayPart& part : parts)
            part.where.offset += static_cast<std::uint64_t>(by);
    }
    return transfer;
}

// What a new plan is told of each rank's data.
void renew(std::vector<LastTransfer>& ranks, const Transfer& transfer, bool reads, std::uint64_t zero) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        const auto sets = ranks[r].renew(transfer[r], zero);
        ASSERT_TRUE(sets) << sets.error().message;
        ASSERT_EQ(sets->empty(), transfer[r].empty());
        ranks[r].declared(reads);
    }
}

struct Random {
    std::mt19937_64 numbers{test_seed(1)};
    std::uint64_t pick(std::uint64_t low, std::uint64_t high) { return low + numbers() % (high - low + 1); }

    Transfer transfer(std::size_t ranks, std::uint64_t begin) {
        Transfer made(ranks);
        for (Parts& parts : made) {
            std::uint64_t at = begin + pick(0, 3) * 100;
            for (std::uint64_t n = pick(0, 2); n > 0; --n) {
                const StridedSet where{at, 8, pick(1, 3), 16};
                parts.push_back({0, where, static_cast<std::int64_t>(pick(0, 9)), 8});
                at = where.end() + pick(0, 50);
            }
        }
        return made;
    }
};

TEST(LastTransfer, APlanServesWhatIsTheSameSomeBytesFartherOn) {
    Random random;
    int served = 0;
    int renewed = 0;
    for (int round = 0; round < 3000; ++round) {
        const std::size_t count = random.pick(1, 5);
        std::vector<LastTransfer> ranks(count);
        std::optional<Transfer> planned;  // what the plan is for, where it is now
        bool planned_reads = false;
        std::uint64_t begin = random.pick(0, 1) * LastTransfer::kFarthest / 2 + 100'000;
        Transfer now = random.transfer(count, begin);
        for (int call = 0; call < 8; ++call) {
            // The same again, the same farther on or back, one rank elsewhere, or another one.
            std::int64_t step = 0;
            switch (random.pick(0, 4)) {
                case 0: break;
                case 1: step = static_cast<std::int64_t>(random.pick(0, 64)) * 512; break;
                case 2: step = -static_cast<std::int64_t>(random.pick(0, 999)); break;
                case 3: {
                    Transfer one{now[0]};
                    now[0] = moved(one, 8)[0];
                    break;
                }
                default: now = random.transfer(count, begin);
            }
            now = moved(now, step);
            const auto first = first_byte(now);
            if (!first) continue;
            const bool reads = random.pick(0, 2) != 0;
            const std::uint64_t multiple = random.pick(0, 1) == 0 ? 1 : 512;
            const Figures agreed = agree(ranks, now);
            ASSERT_TRUE(LastTransfer::has_data(agreed));
            ASSERT_EQ(LastTransfer::zero(agreed, 512), *first - *first % 512);

            bool serves = planned && (reads || !planned_reads);
            if (serves) {
                const auto delta = static_cast<std::int64_t>(*first - first_byte(*planned).value_or(0));
                serves = moved(*planned, delta) == now && delta % static_cast<std::int64_t>(multiple) == 0;
            }
            for (LastTransfer& rank : ranks) {
                const std::uint64_t before = rank.base();
                ASSERT_EQ(rank.follow(agreed, reads, multiple), serves);
                if (serves) {
                    ASSERT_EQ(rank.base() - before, *first - *first_byte(*planned));
                }
            }
            if (serves) {
                ++served;
            } else {
                renew(ranks, now, reads, LastTransfer::zero(agreed, 512));
                planned_reads = reads;
                ++renewed;
            }
            planned = now;
        }
    }
    EXPECT_GT(served, 3000);
    EXPECT_GT(renewed, 3000);
}

TEST(LastTransfer, RanksWithoutDataHaveNothingToSay) {
    const std::vector<LastTransfer> ranks(3);
    EXPECT_FALSE(LastTransfer::has_data(agree(ranks, Transfer(3))));
}

TEST(LastTransfer, APlanThatWasForgottenOrFailedServesNoMore) {
    std::vector<LastTransfer> ranks(2);
    Random random;
    const Transfer transfer{{{0, {4096, 8, 2, 16}, 0, 8}}, {{0, {4104, 8, 2, 16}, 0, 8}}};
    renew(ranks, transfer, false, 4096);
    EXPECT_TRUE(ranks[0].follow(agree(ranks, transfer), false, 1));
    ranks[1].forget();
    // One rank is enough.
    EXPECT_FALSE(ranks[0].follow(agree(ranks, transfer), false, 1));
    renew(ranks, transfer, false, 4096);
    // Begun, and not declared.
    for (std::size_t r = 0; r < 2; ++r)
        ASSERT_TRUE(ranks[r].renew(transfer[r], 4096));
    EXPECT_FALSE(ranks[0].follow(agree(ranks, transfer), false, 1));
}

}  // namespace
}  // namespace twinrun
