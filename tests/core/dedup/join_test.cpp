#include "dedup/join.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "record/entries.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using ChunkRun = Run;  // ::testing::Test has a member of that name

struct Chunk {
    std::uint64_t number;
    Location source;
    bool payload;
};

std::vector<ChunkRun> runs_of(RecordMethod method, std::uint32_t ordinal, const std::vector<Chunk>& chunks) {
    std::vector<ChunkRun> runs;
    RunJoiner joiner(method, ordinal, runs);
    for (const Chunk& chunk : chunks)
        joiner.add(chunk.number, chunk.source);
    return runs;
}

// Chunks [a, b) can be one run.
bool one_run(const std::vector<Chunk>& chunks, std::size_t a, std::size_t b, bool copies_join) {
    bool steps = true;
    bool stands = true;
    for (std::size_t i = a + 1; i < b; ++i) {
        if (chunks[i].number != chunks[i - 1].number + 1 || chunks[i].payload != chunks[i - 1].payload)
            return false;
        steps = steps && chunks[i].source == chunks[i - 1].source + 1;
        stands = stands && chunks[i].source == chunks[i - 1].source;
    }
    return b - a == 1 || ((copies_join || chunks[a].payload) && (steps || stands));
}
std::size_t fewest(const std::vector<Chunk>& chunks, bool copies_join) {
    std::vector<std::size_t> best(chunks.size() + 1, ~std::size_t{0});
    best[0] = 0;
    for (std::size_t b = 1; b <= chunks.size(); ++b) {
        for (std::size_t a = b; a-- != 0;) {
            if (one_run(chunks, a, b, copies_join)) best[b] = std::min(best[b], best[a] + 1);
        }
    }
    return best.back();
}

std::vector<Chunk> random_chunks(std::mt19937_64& random, std::uint32_t ordinal) {
    std::vector<Chunk> chunks;
    std::uint64_t next = 0;
    std::uint64_t number = random() % 3;
    for (std::uint64_t i = 0, n = random() % 40; i < n; ++i) {
        Chunk chunk{number, 0, false};
        const std::uint64_t kind = random() % 8;
        if (kind < 2) {
            chunk.payload = true;
            chunk.source = location(ordinal, next++);
        } else if (kind < 4 && !chunks.empty()) {  // goes on, unless that is not there yet
            chunk.source = chunks.back().source + 1;
            if (chunk.source == location(ordinal, next)) {
                chunk.payload = true;
                ++next;
            }
        } else if (kind < 6 && !chunks.empty()) {
            chunk.source = chunks.back().source;
        } else {
            chunk.source = location(static_cast<std::uint32_t>(random() % 2), random() % 6);
        }
        chunks.push_back(chunk);
        number += random() % 5 == 0 ? 2 : 1;
    }
    return chunks;
}

TEST(RunJoiner, SaysWhatTheChunksSayInTheFewestRuns) {
    std::mt19937_64 random(test_seed(7));
    for (int round = 0; round < 3000; ++round) {
        const auto chunks = random_chunks(random, 5);
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::list, RecordMethod::basic}) {
            const auto runs = runs_of(method, 5, chunks);
            std::size_t i = 0;
            for (const ChunkRun& run : runs) {
                for (std::uint64_t step = 0; step < run.count; ++step, ++i) {
                    ASSERT_LT(i, chunks.size());
                    ASSERT_EQ(run.begin + step, chunks[i].number);
                    ASSERT_EQ(run.repeat ? run.source : run.source + step, chunks[i].source);
                    // What is new and what is a copy share no run.
                    ASSERT_EQ(chunks[i].payload, chunks[i - step].payload);
                }
                if (run.repeat) {
                    ASSERT_GT(run.count, 1U);
                    ASSERT_EQ(method, RecordMethod::runs);
                }
            }
            ASSERT_EQ(i, chunks.size());
            ASSERT_EQ(runs.size(), fewest(chunks, method == RecordMethod::runs));
        }
    }
}

TEST(RunJoiner, RegionsStayAsTheyAre) {
    std::vector<ChunkRun> runs;
    RunJoiner joiner(RecordMethod::tree, 2, runs);
    joiner.add_region(0, 4, location(2, 0), true);
    joiner.add_region(4, 4, location(2, 4), true);
    joiner.add_region(8, 2, location(1, 0), false);
    joiner.add_region(10, 1, location(1, 2), false);
    joiner.add_region(11, 1, location(2, 8), true);
    EXPECT_EQ(runs, (std::vector<ChunkRun>{{0, 4, location(2, 0), false},
                                           {4, 4, location(2, 4), false},
                                           {8, 2, location(1, 0), false},
                                           {10, 1, location(1, 2), false},
                                           {11, 1, location(2, 8), false}}));
}

TEST(RunJoiner, SourcesBeyondFourBillionChunks) {
    constexpr std::uint64_t kBig = std::uint64_t{1} << 34;
    const auto runs = runs_of(RecordMethod::runs, 9,
                              {{kBig, location(3, kBig - 1), false},
                               {kBig + 1, location(3, kBig), false},
                               {kBig + 2, location(3, kBig), false},
                               {kBig + 3, location(3, kBig), false}});
    EXPECT_EQ(runs, (std::vector<ChunkRun>{{kBig, 2, location(3, kBig - 1), false},
                                           {kBig + 2, 2, location(3, kBig), true}}));
}

}  // namespace
}  // namespace twinrun
