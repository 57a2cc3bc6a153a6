#include "record/entries.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using ChunkRun = Run;  // ::testing::Test has a member of that name

using testing::kAllMethods;

std::vector<std::byte> encoded(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                               const std::vector<ChunkRun>& runs) {
    Encoder encoder;
    encode_entries(method, ordinal, chunks, runs, encoder);
    return encoder.bytes();
}

std::uint64_t payload_of(std::uint32_t ordinal, const std::vector<ChunkRun>& runs) {
    std::uint64_t next = 0;
    for (const ChunkRun& run : runs) {
        if (run.source == location(ordinal, next) && !run.repeat) next += run.count;
    }
    return next;
}

// What two lists of runs say is the same, however they are cut.
std::vector<ChunkRun> joined(const std::vector<ChunkRun>& runs) {
    std::vector<ChunkRun> out;
    for (const ChunkRun& run : runs) {
        if (!out.empty() && !run.repeat && !out.back().repeat &&
            out.back().begin + out.back().count == run.begin &&
            out.back().source + out.back().count == run.source) {
            out.back().count += run.count;
        } else {
            out.push_back(run);
        }
    }
    return out;
}

void expect_round_trip(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                       const std::vector<ChunkRun>& runs) {
    const auto bytes = encoded(method, ordinal, chunks, runs);
    const auto decoded = decode_entries(method, ordinal, chunks, payload_of(ordinal, runs), bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(joined(*decoded), joined(runs));
    if (method == RecordMethod::runs) {
        EXPECT_EQ(*decoded, runs);
    }
}

constexpr std::uint64_t kBig = std::uint64_t{1} << 33;

TEST(Entries, OfNothing) {
    for (const RecordMethod method : kAllMethods) {
        expect_round_trip(method, 0, 0, {});
        if (method != RecordMethod::full) expect_round_trip(method, 5, 100, {});
    }
}

TEST(Entries, Full) {
    expect_round_trip(RecordMethod::full, 3, 77, {{0, 77, location(3, 0), false}});
    expect_round_trip(RecordMethod::full, 3, kBig + 7, {{0, kBig + 7, location(3, 0), false}});
    EXPECT_FALSE(decode_entries(RecordMethod::full, 3, 77, 76, {}).ok());
    const std::vector<std::byte> one(1);
    EXPECT_FALSE(decode_entries(RecordMethod::full, 3, 77, 77, one).ok());
}

TEST(Entries, Basic) {
    for (const std::uint64_t chunks : {1U, 7U, 8U, 9U, 63U, 64U, 65U, 1000U}) {
        std::mt19937_64 random(chunks);
        std::vector<ChunkRun> runs;
        std::uint64_t next = 0;
        for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
            if (random() % 3 == 0) runs.push_back({chunk, 1, location(9, next++), false});
        }
        expect_round_trip(RecordMethod::basic, 9, chunks, joined(runs));
        EXPECT_EQ(encoded(RecordMethod::basic, 9, chunks, runs).size(), (chunks + 7) / 8);
    }
    const std::vector<std::byte> behind = {std::byte{0xFF}, std::byte{0x03}};
    EXPECT_TRUE(decode_entries(RecordMethod::basic, 0, 10, 10, behind).ok());
    EXPECT_FALSE(decode_entries(RecordMethod::basic, 0, 9, 10, behind).ok());
    EXPECT_FALSE(decode_entries(RecordMethod::basic, 0, 10, 9, behind).ok());
    EXPECT_FALSE(decode_entries(RecordMethod::basic, 0, 17, 10, behind).ok());
}

TEST(Entries, MoreThanFourBillionChunks) {
    // list: every number may be beyond 32 bits, and the width says so.
    const std::vector<ChunkRun> far = {
        {kBig, 1, location(7, 0), false},
        {kBig + 1, 1, location(2, 5), false},
        {kBig + 5, 2, location(7, 1), false},
        {kBig * 2 - 1, 1, location(kMostOrdinals - 1 > 7 ? 6 : 0, kMostPayloadChunks - 1), false},
    };
    expect_round_trip(RecordMethod::list, 7, kBig * 2, far);
    EXPECT_EQ(encoded(RecordMethod::list, 7, kBig * 2, far)[0], std::byte{8});
    expect_round_trip(RecordMethod::runs, 7, kBig * 2, far);

    // A source beyond 32 bits in a small image.
    const std::vector<ChunkRun> from_far = {{3, 1, location(1, kBig), false}};
    EXPECT_EQ(encoded(RecordMethod::list, 2, 10, from_far)[0], std::byte{8});
    expect_round_trip(RecordMethod::list, 2, 10, from_far);
    expect_round_trip(RecordMethod::tree, 2, 10, from_far);
    expect_round_trip(RecordMethod::runs, 2, 10, from_far);

    // tree: nodes of an image that is no power of two, the largest number is that of the last leaf.
    const std::uint64_t chunks = kBig + 12345;
    const std::vector<ChunkRun> nodes = {
        {0, kBig / 2, location(3, 0), false},
        {kBig / 2, kBig / 4, location(1, kBig * 3), false},
        {kBig, 8192, location(3, kBig / 2), false},
        {kBig + 12344, 1, location(0, 0), false},
    };
    expect_round_trip(RecordMethod::tree, 3, chunks, nodes);
    EXPECT_EQ(encoded(RecordMethod::tree, 3, chunks, nodes)[0], std::byte{8});

    // runs: counts and repeats.
    const std::vector<ChunkRun> long_runs = {
        {0, 1, location(3, 0), false},
        {1, kBig, location(3, 0), true},
        {kBig + 2, kBig, location(3, 1), false},
        {kBig * 2 + 2, kBig, location(2, kMostPayloadChunks - kBig), false},
    };
    expect_round_trip(RecordMethod::runs, 3, kBig * 3 + 2, long_runs);

    EXPECT_EQ(ordinal_of(location(kMostOrdinals, kMostPayloadChunks - 1)), kMostOrdinals);
    EXPECT_EQ(chunk_of(location(kMostOrdinals, kMostPayloadChunks - 1)), kMostPayloadChunks - 1);
    EXPECT_LT(location(1, kMostPayloadChunks), location(2, 0));
    EXPECT_LT(location(kMostOrdinals, kMostPayloadChunks), kNoLocation);
}

TEST(Entries, WidthChangesWhereThirtyTwoBitsEnd) {
    const std::uint64_t last = 0xFFFFFFFFU;
    EXPECT_EQ(encoded(RecordMethod::list, 1, last, {{last - 1, 1, location(1, 0), false}})[0], std::byte{4});
    expect_round_trip(RecordMethod::list, 1, last, {{last - 1, 1, location(1, 0), false}});
    expect_round_trip(RecordMethod::list, 1, last + 1, {{last, 1, location(1, 0), false}});
    expect_round_trip(RecordMethod::list, 1, last + 2, {{last + 1, 1, location(1, 0), false}});
    for (const std::uint64_t chunks : {(std::uint64_t{1} << 31), (std::uint64_t{1} << 31) + 1})
        expect_round_trip(RecordMethod::tree, 1, chunks, {{chunks - 1, 1, location(1, 0), false}});
}

TEST(Entries, RandomRuns) {
    std::mt19937_64 random(test_seed(3));
    for (int round = 0; round < 400; ++round) {
        const auto ordinal =
            static_cast<std::uint32_t>(random() % 4 == 0 ? kMostOrdinals : 1 + random() % 50);
        const bool huge = random() % 2 == 0;
        for (const RecordMethod method : {RecordMethod::list, RecordMethod::runs}) {
            std::vector<ChunkRun> runs;
            std::uint64_t end = 0;
            std::uint64_t next = 0;
            for (std::uint64_t i = 0, n = random() % 20; i < n; ++i) {
                ChunkRun run;
                run.begin = end + random() % (huge ? kBig : 4);
                run.count =
                    (1 + random() % (huge && method == RecordMethod::runs ? kBig : 9)) & ChunkRun::kMostCount;
                switch (random() % 4) {
                    case 0:
                        run.source = location(ordinal, next);
                        next += run.count;
                        break;
                    case 1:
                        if (next != 0) {  // of itself
                            run.source = location(ordinal, random() % next);
                            run.count = std::min<std::uint64_t>(run.count, next - chunk_of(run.source)) &
                                        ChunkRun::kMostCount;
                            break;
                        }
                        [[fallthrough]];
                    case 2:
                        run.source = location(static_cast<std::uint32_t>(random() % ordinal),
                                              random() % (huge ? kBig : 99));
                        break;
                    default:
                        run.source = location(static_cast<std::uint32_t>(random() % ordinal),
                                              random() % (huge ? kBig : 99));
                        run.repeat = method == RecordMethod::runs && run.count > 1;
                }
                end = run.begin + run.count;
                runs.push_back(run);
            }
            expect_round_trip(method, ordinal, end + random() % 5, runs);
            if (HasFailure()) return;
        }
    }
}

// An ordinal for each group in place of one for each copy, as the published code has it.
TEST(Entries, CopiesInGroups) {
    // Chunks in turn from difference 3, from difference 1, and new.
    std::vector<ChunkRun> runs;
    std::uint64_t next = 0;
    for (std::uint64_t chunk = 0; chunk < 300; ++chunk) {
        const Location source =
            chunk % 3 == 0 ? location(5, next++) : location(chunk % 3 == 1 ? 3 : 1, 7 + chunk);
        runs.push_back({chunk, 1, source, false});
    }
    for (const RecordMethod method : {RecordMethod::list, RecordMethod::tree}) {
        SCOPED_TRACE(method_name(method));
        expect_round_trip(method, 5, 300, runs);
        const auto bytes = encoded(method, 5, 300, runs);
        EXPECT_TRUE(says_grouped(method, bytes));
        EXPECT_TRUE(entries_grouped(method, 5, runs));
        EXPECT_EQ(bytes.size(), 17U + 100 * 4 + 4 + 2 * 12 + 200 * 8);
        for (std::size_t size = 0; size < bytes.size(); ++size)
            EXPECT_FALSE(decode_entries(method, 5, 300, 100, std::span(bytes).first(size)).ok());
        // Where it is no smaller, each copy says its ordinal: older programs read that.
        const std::vector<ChunkRun> few(runs.begin(), runs.begin() + 9);
        EXPECT_FALSE(entries_grouped(method, 5, few));
        EXPECT_FALSE(says_grouped(method, encoded(method, 5, 9, few)));
    }
    EXPECT_FALSE(entries_grouped(RecordMethod::runs, 5, runs));
}

TEST(Entries, GroupsThatContradictThemselvesAreDamaged) {
    const auto refused = [](std::uint64_t said,
                            const std::vector<std::pair<std::uint32_t, std::uint64_t>>& groups,
                            const std::vector<std::uint32_t>& numbers) {
        Encoder encoder;
        encoder.put(std::uint8_t{128 + 4});
        encoder.put(std::uint64_t{0});
        encoder.put(said);
        encoder.put(static_cast<std::uint32_t>(groups.size()));
        for (const auto& [ordinal, size] : groups) {
            encoder.put(ordinal);
            encoder.put(size);
        }
        for (const std::uint32_t number : numbers)
            encoder.put(number);
        const auto decoded = decode_entries(RecordMethod::list, 5, 8, 0, encoder.bytes());
        return !decoded.ok() && decoded.error().code == ErrorCode::damaged;
    };
    EXPECT_FALSE(refused(2, {{0, 1}, {4, 1}}, {1, 0, 0, 9}));
    EXPECT_FALSE(refused(0, {}, {}));
    EXPECT_TRUE(refused(2, {{4, 1}, {0, 1}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(2, {{4, 1}, {4, 1}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(2, {{0, 2}, {4, 0}}, {0, 0, 1, 9}));
    EXPECT_TRUE(refused(2, {{0, 2}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(2, {{0, 1}, {4, 1}}, {1, 0, 1, 9}));
    EXPECT_TRUE(refused(2, {{0, 1}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(2, {{0, 3}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(2, {{0, 1}, {5, 1}}, {1, 0, 0, 9}));
    EXPECT_TRUE(refused(1, {{0, 1}}, {8, 0}));
    EXPECT_TRUE(refused(std::uint64_t{1} << 62, {{0, std::uint64_t{1} << 62}}, {1, 0}));
}

TEST(Entries, RunsOfBasesHaveNoPayload) {
    const std::vector<ChunkRun> bases = {{2, 5, location(3, 9), false}, {8, 100, location(0, 1), true}};
    Encoder encoder;
    encode_runs(4, bases, false, encoder);
    const auto decoded = decode_runs(4, 108, 0, false, encoder.bytes());
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, bases);
    EXPECT_FALSE(decode_runs(4, 107, 0, false, encoder.bytes()).ok());
    EXPECT_FALSE(decode_runs(2, 108, 0, false, encoder.bytes()).ok());
    // A chunk of its own payload is no base: reading it would not end.
    Encoder own;
    encode_runs(4, std::vector<ChunkRun>{{2, 1, location(4, 0), false}}, false, own);
    EXPECT_FALSE(decode_runs(4, 108, 0, false, own.bytes()).ok());
}

TEST(Entries, WhatContradictsItselfIsDamaged) {
    const auto refused = [](RecordMethod method, std::uint64_t chunks, std::uint64_t payload,
                            const std::vector<ChunkRun>& runs) {
        const auto decoded = decode_entries(method, 5, chunks, payload, encoded(method, 5, chunks, runs));
        return !decoded.ok() && decoded.error().code == ErrorCode::damaged;
    };
    for (const RecordMethod method : {RecordMethod::list, RecordMethod::tree, RecordMethod::runs}) {
        SCOPED_TRACE(method_name(method));
        EXPECT_FALSE(refused(method, 8, 2, {{0, 2, location(5, 0), false}}));
        EXPECT_TRUE(refused(method, 8, 1, {{0, 2, location(5, 0), false}}));  // more payload than there is
        EXPECT_TRUE(refused(method, 8, 3, {{0, 2, location(5, 0), false}}));  // less
        EXPECT_TRUE(refused(method, 8, 0, {{0, 1, location(5, 0), false}}));
        EXPECT_FALSE(refused(method, 8, 0, {{0, 1, location(4, 3), false}}));
        EXPECT_FALSE(refused(method, 8, 1, {{0, 1, location(5, 0), false}, {1, 1, location(5, 0), false}}));
        EXPECT_TRUE(refused(method, 8, 1, {{0, 1, location(5, 1), false}, {1, 1, location(5, 0), false}}));
        EXPECT_TRUE(refused(method, 8, 1, {{0, 1, location(5, 0), false}, {1, 1, location(5, 1), false}}));
        // Sources in the future.
        std::vector<std::byte> later =
            encoded(method, 6, 8, {{0, 1, location(6, 0), false}, {1, 1, location(6, 0), false}});
        EXPECT_TRUE(decode_entries(method, 6, 8, 1, later).ok());
        if (method != RecordMethod::runs) {  // there ordinals are relative
            EXPECT_FALSE(decode_entries(method, 5, 8, 1, later).ok());
        }
        // Cut short, or longer.
        for (std::size_t size = 0; size < later.size(); ++size) {
            EXPECT_FALSE(decode_entries(method, 6, 8, 1, std::span(later).first(size)).ok());
        }
        later.push_back(std::byte{0});
        EXPECT_FALSE(decode_entries(method, 6, 8, 1, later).ok());
    }
    // Out of the image, or on top of each other.
    EXPECT_TRUE(refused(RecordMethod::list, 8, 1, {{8, 1, location(5, 0), false}}));
    EXPECT_TRUE(refused(RecordMethod::list, 8, 1, {{0xFFFFFFFFU, 1, location(5, 0), false}}));
    EXPECT_TRUE(
        refused(RecordMethod::list, 8, 2, {{3, 1, location(5, 0), false}, {3, 1, location(5, 1), false}}));
    EXPECT_TRUE(
        refused(RecordMethod::list, 8, 2, {{3, 1, location(5, 0), false}, {2, 1, location(5, 1), false}}));
    EXPECT_TRUE(
        refused(RecordMethod::list, 8, 0, {{3, 1, location(4, 0), false}, {3, 1, location(4, 1), false}}));
    EXPECT_TRUE(refused(RecordMethod::tree, 9, 8, {{8, 8, location(5, 0), false}}));
    EXPECT_TRUE(
        refused(RecordMethod::tree, 8, 6, {{0, 4, location(5, 0), false}, {2, 2, location(5, 4), false}}));
}

}  // namespace
}  // namespace twinrun
