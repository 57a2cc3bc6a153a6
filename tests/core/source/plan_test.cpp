#include "source/plan.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

std::vector<Range> random_ranges(std::mt19937_64& random, std::uint64_t chunks) {
    std::vector<Range> ranges;
    for (std::uint64_t at = random() % 5; at < chunks;) {
        const std::uint64_t end = std::min(chunks, at + 1 + random() % 40);
        ranges.push_back({at, end});
        at = end + 1 + random() % (random() % 2 != 0 ? 4 : 400);
    }
    return ranges;
}

TEST(PlanReads, CoversEveryWantedChunkOnceAndKeepsItsLimits) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 300; ++round) {
        const std::uint64_t chunk = std::uint64_t{512} << random() % 8;
        const std::uint64_t slice = chunk * (1 + random() % 64);
        const std::uint64_t gap = chunk * (random() % 6);
        const std::uint64_t most_windows = 1 + random() % 8;
        const auto wanted = random_ranges(random, 3000);
        const ReadPlan plan = plan_reads(wanted, chunk, slice, gap, most_windows);
        std::vector<bool> seen(3000);
        std::uint64_t read = 0;
        for (const Window& w : plan.windows) {
            ASSERT_LE((w.end - w.begin) * chunk, std::max(slice, chunk));
            read += w.end - w.begin;
            std::uint64_t at = w.begin;
            for (std::size_t p = w.first_part; p < w.last_part; ++p) {
                ASSERT_LE(at, plan.parts[p].begin);
                ASSERT_LE((plan.parts[p].begin - at) * chunk, gap);
                for (std::uint64_t c = plan.parts[p].begin; c < plan.parts[p].end; ++c) {
                    ASSERT_FALSE(seen[c]);
                    seen[c] = true;
                }
                at = plan.parts[p].end;
            }
            ASSERT_EQ(at, w.end);
        }
        EXPECT_EQ(read, plan.chunks_read);
        for (std::uint64_t c = 0; c < 3000; ++c) {
            const bool is_wanted = std::any_of(wanted.begin(), wanted.end(),
                                               [&](const Range& r) { return r.begin <= c && c < r.end; });
            ASSERT_EQ(seen[c], is_wanted) << c;
        }
        std::uint64_t next = 0;
        for (const Range& s : plan.slices) {
            ASSERT_EQ(s.begin, next);
            ASSERT_LE(s.size(), most_windows);
            next = s.end;
        }
        EXPECT_EQ(next, plan.windows.size());
    }
}

// Windows of parts that were divided at multiples of the grain are those of the whole.
TEST(PlanReads, WindowsDoNotDependOnDivisionsAtTheGrain) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < 200; ++round) {
        const std::uint64_t grain = std::uint64_t{16} << random() % 5;
        const std::uint64_t slice = 512 * (1 + random() % 64);
        const std::uint64_t gap = 512 * (random() % 6);
        const auto wanted = random_ranges(random, 3000);
        const ReadPlan whole = plan_reads(wanted, 512, slice, gap, 8, grain);
        std::vector<Range> apart;
        for (std::uint64_t begin = 0; begin < 3000;) {
            const std::uint64_t end = begin + grain * (1 + random() % 9);
            std::vector<Range> part;
            for (const Range& r : wanted) {
                const Range own{std::max(r.begin, begin), std::min(r.end, end)};
                if (own.begin < own.end) part.push_back(own);
            }
            for (const Window& w : plan_reads(part, 512, slice, gap, 8, grain).windows)
                apart.push_back({w.begin, w.end});
            begin = end;
        }
        std::vector<Range> windows;
        for (const Window& w : whole.windows) {
            EXPECT_EQ(w.begin / grain, (w.end - 1) / grain);
            windows.push_back({w.begin, w.end});
        }
        ASSERT_EQ(windows, apart);
    }
}

TEST(PlanReads, NothingWantedIsNothingRead) {
    const ReadPlan plan = plan_reads({}, 4096, 1 << 20, 0, 8);
    EXPECT_TRUE(plan.windows.empty());
    EXPECT_TRUE(plan.slices.empty());
}

}  // namespace
}  // namespace twinrun
