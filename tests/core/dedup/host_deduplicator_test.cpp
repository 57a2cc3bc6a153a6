#include <gtest/gtest.h>

#include <bit>

#include "dedup/deduplicator.hpp"
#include "dedup/hash_table.hpp"
#include "support/dedup.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using ChunkRun = Run;  // ::testing::Test has a member of that name

using testing::bytes_of;
using testing::expect_same;
using testing::kAllMethods;
using testing::ModelRecord;
using testing::options_for;
using testing::random_bytes;
using testing::RandomHistory;
using testing::RecordBytes;
using testing::TestImage;

TestImage image_of(RecordBytes bytes, const std::string& name = "x") { return {{name, std::move(bytes)}}; }

// The step is taken, and what restore would give is the image.
void add_and_check(ModelRecord& record, const TestImage& image, StepOutcome* outcome = nullptr) {
    const auto taken = record.add(image);
    ASSERT_TRUE(taken.ok()) << taken.error().message;
    if (outcome != nullptr) *outcome = *taken;
    expect_same(record.restore(record.last()), image);
}

class HostDeduplicator : public ::testing::TestWithParam<RecordMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, HostDeduplicator, ::testing::ValuesIn(kAllMethods),
                         [](const auto& each) { return std::string(method_name(each.param)); });

TEST_P(HostDeduplicator, RestoresRandomHistoriesOfEveryChunkSize) {
    for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        for (std::uint64_t seed = 0; seed < (chunk <= 512 ? 8U : 1U); ++seed) {
            SCOPED_TRACE("chunk " + std::to_string(chunk) + ", seed " + std::to_string(seed));
            ModelRecord record(options_for(GetParam(), chunk));
            RandomHistory history(seed * 100 + chunk, chunk, chunk <= 4096 ? 40 : 12);
            for (int step = 0; step < 12; ++step) {
                add_and_check(record, history.next());
                if (::testing::Test::HasFailure()) return;
            }
            // Nothing later touched what is earlier.
            for (std::uint32_t step = 0; step < history.past().size(); ++step)
                expect_same(record.restore(step), history.past()[step]);
        }
    }
}

// Slices are where a step is cut; threads are who does it. Payload and runs are the same for all (the published tree is built
// slice by slice: its runs are the same for equal slices).
TEST_P(HostDeduplicator, ReportIsTheSameForAnyThreadsAndSlices) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        std::map<std::uint64_t, std::vector<std::vector<ChunkRun>>> runs_of_slices;
        std::vector<StepOutcome> first;
        std::vector<RecordBytes> first_payload;
        for (const int threads : {1, 2, 5}) {
            for (const std::uint64_t slice : {0U, 1U, 16U, 64U}) {
                SCOPED_TRACE("seed " + std::to_string(seed) + ", threads " + std::to_string(threads) +
                             ", slices of " + std::to_string(slice));
                DedupOptions options = options_for(GetParam(), 32);
                options.threads = threads;
                options.slice_chunks = slice;
                ModelRecord record(options);
                RandomHistory history(seed, 32, 150);
                for (std::uint32_t step = 0; step < 6; ++step) {
                    StepOutcome outcome;
                    add_and_check(record, history.next(), &outcome);
                    if (::testing::Test::HasFatalFailure()) return;
                    if (step >= first.size()) {
                        first.push_back(outcome);
                        first_payload.push_back(record.step(step).payload);
                    }
                    const StepOutcome& wanted = first[step];
                    ASSERT_EQ(outcome.base, wanted.base);
                    ASSERT_EQ(outcome.content, wanted.content);
                    ASSERT_EQ(outcome.changed, wanted.changed);
                    ASSERT_EQ(outcome.payload, wanted.payload);
                    ASSERT_EQ(record.step(step).payload, first_payload[step]);
                    ASSERT_EQ(outcome.collisions, 0U);
                    if (GetParam() != RecordMethod::tree) {
                        ASSERT_EQ(outcome.runs, wanted.runs);
                        continue;
                    }
                    auto& same_slices = runs_of_slices[slice];
                    if (step >= same_slices.size()) same_slices.push_back(outcome.runs);
                    ASSERT_EQ(outcome.runs, same_slices[step]);
                }
            }
        }
    }
}

TEST_P(HostDeduplicator, NothingChanged) {
    ModelRecord record(options_for(GetParam()));
    RandomHistory history(7, 64);
    const TestImage image = history.next();
    add_and_check(record, image);
    for (int again = 0; again < 3; ++again) {
        StepOutcome outcome;
        add_and_check(record, image, &outcome);
        if (GetParam() == RecordMethod::full) {
            EXPECT_EQ(outcome.payload, outcome.chunks);
            continue;
        }
        EXPECT_EQ(outcome.payload, 0U);
        EXPECT_EQ(outcome.changed, 0U);
        EXPECT_TRUE(outcome.runs.empty());
        EXPECT_EQ(outcome.base, record.last() - 1);
    }
}

TEST_P(HostDeduplicator, ThereAndBackAgain) {
    std::mt19937_64 random(test_seed(3));
    for (const std::size_t size : {64U * 37, 64U * 64 + 5, 31U}) {
        ModelRecord record(options_for(GetParam()));
        const TestImage a = image_of(random_bytes(random, size));
        const TestImage b = image_of(random_bytes(random, size));
        StepOutcome outcome;
        add_and_check(record, a);
        add_and_check(record, b, &outcome);
        EXPECT_EQ(outcome.payload, outcome.chunks);
        add_and_check(record, a, &outcome);
        switch (GetParam()) {
            case RecordMethod::full:
            case RecordMethod::basic: EXPECT_EQ(outcome.payload, outcome.chunks); break;
            case RecordMethod::list: EXPECT_EQ(outcome.payload, 0U); break;
            case RecordMethod::tree:
                EXPECT_EQ(outcome.payload, 0U);
                // One entry for each complete subtree.
                EXPECT_EQ(outcome.runs.size(), static_cast<std::size_t>(std::popcount(outcome.chunks)));
                break;
            case RecordMethod::runs:
                EXPECT_EQ(outcome.payload, 0U);
                EXPECT_EQ(outcome.runs, (std::vector<ChunkRun>{{0, outcome.chunks, location(0, 0), false}}));
                break;
        }
    }
}

TEST_P(HostDeduplicator, ChunkCountsThatAreNotPowersOfTwo) {
    std::mt19937_64 random(test_seed(11));
    for (std::size_t chunks = 1; chunks <= 70; ++chunks) {
        for (const std::uint64_t slice : {0U, 8U}) {
            SCOPED_TRACE(chunks);
            DedupOptions options = options_for(GetParam(), 32);
            options.slice_chunks = slice;
            ModelRecord record(options);
            RecordBytes bytes = random_bytes(random, chunks * 32);
            add_and_check(record, image_of(bytes));
            const std::size_t half = chunks / 2 * 32;  // what was behind comes first, the rest is new
            std::memmove(bytes.data(), bytes.data() + half, half);
            const RecordBytes fresh = random_bytes(random, bytes.size() - half);
            std::memcpy(bytes.data() + half, fresh.data(), fresh.size());
            add_and_check(record, image_of(bytes));
            if (HasFailure()) return;
        }
    }
}

TEST_P(HostDeduplicator, BuffersThatGrowAndShrink) {
    std::mt19937_64 random(test_seed(5));
    const RecordBytes all = random_bytes(random, 64 * 50);
    ModelRecord record(options_for(GetParam()));
    std::uint64_t before = 0;
    for (const std::size_t size : {700U, 1400U, 1401U, 64U, 65U, 0U, 1U, 64U * 50, 63U, 640U, 64U * 50}) {
        StepOutcome outcome;
        add_and_check(record, image_of({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)}),
                      &outcome);
        if (GetParam() != RecordMethod::full) {
            // What stays is not kept again; the last chunk of the shorter one may have changed with its length.
            const std::uint64_t chunks = divide_up(size, 64);
            EXPECT_LE(outcome.changed, chunks > before ? chunks - before + 1 : 1);
        }
        before = divide_up(size, 64);
    }
}

TEST_P(HostDeduplicator, EmptyImagesAndEmptySegments) {
    ModelRecord record(options_for(GetParam()));
    add_and_check(record, {});
    add_and_check(record, {{"a", {}}, {"b", {}}});
    add_and_check(record, {{"a", {}}, {"b", RecordBytes(100, std::byte{1})}, {"c", {}}});
    add_and_check(record, {{"b", RecordBytes(100, std::byte{1})}, {"a", RecordBytes(1)}, {"c", {}}});
    add_and_check(record, {});
    add_and_check(record, {{"a", {}}, {"b", RecordBytes(100, std::byte{1})}, {"c", {}}});
}

// The first chunks of an interval are its only payload, and what follows are copies, in slices of another rhythm.
TEST_P(HostDeduplicator, DataWithAPeriod) {
    std::mt19937_64 random(test_seed(17));
    constexpr std::size_t kChunks = 200;
    for (const std::size_t period : {1U, 2U, 3U, 5U, 8U, 12U, 100U}) {
        for (const std::uint64_t slice : {0U, 16U}) {
            SCOPED_TRACE("period " + std::to_string(period) + ", slice " + std::to_string(slice));
            DedupOptions options = options_for(GetParam(), 32);
            options.slice_chunks = slice;
            ModelRecord record(options);
            const RecordBytes pattern = random_bytes(random, period * 32);
            RecordBytes bytes(kChunks * 32);
            for (std::size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = pattern[i % pattern.size()];
            StepOutcome outcome;
            add_and_check(record, image_of(bytes), &outcome);
            // The first step of `tree` is taken fully.
            const bool finds = GetParam() == RecordMethod::list || GetParam() == RecordMethod::runs;
            EXPECT_EQ(outcome.payload, finds ? period : kChunks);
            if (GetParam() == RecordMethod::runs) {
                EXPECT_EQ(outcome.runs.size(), period == 1 ? 2 : divide_up(kChunks, period));
            }
            // Periods of bytes, not of chunks.
            for (std::size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = pattern[i % (period * 7)];
            add_and_check(record, image_of(bytes));
        }
    }
}

TEST_P(HostDeduplicator, OneWordRecordsThatDiffer) {
    std::mt19937_64 random(test_seed(23));
    for (const std::uint64_t record_bytes : {32U, 256U}) {
        ModelRecord record(options_for(GetParam(), static_cast<std::uint32_t>(record_bytes)));
        RecordBytes bytes = random_bytes(random, record_bytes * 100);
        add_and_check(record, image_of(bytes));
        for (const std::size_t at : {0U, 17U, 99U}) {
            bytes[at * record_bytes + (at * 13) % record_bytes] ^= std::byte{0x10};
            StepOutcome outcome;
            add_and_check(record, image_of(bytes), &outcome);
            EXPECT_EQ(outcome.payload, GetParam() == RecordMethod::full ? 100U : 1U);
        }
        // In every chunk another single word.
        for (std::size_t at = 0; at < 100; ++at)
            bytes[at * record_bytes + (at * 7) % record_bytes] ^= std::byte{1};
        StepOutcome outcome;
        add_and_check(record, image_of(bytes), &outcome);
        EXPECT_EQ(outcome.payload, 100U);
    }
}

TEST(HostDeduplicatorRuns, ZerosAreOneRepeat) {
    for (const int threads : {1, 3}) {
        for (const std::uint64_t slice : {0U, 16U}) {
            DedupOptions options = options_for(RecordMethod::runs, 32);
            options.threads = threads;
            options.slice_chunks = slice;
            ModelRecord record(options);
            StepOutcome outcome;
            add_and_check(record, image_of(RecordBytes(32 * 1000 + 7)), &outcome);
            EXPECT_EQ(outcome.payload, 1U);
            EXPECT_EQ(outcome.runs, (std::vector<ChunkRun>{{0, 1, location(0, 0), false},
                                                           {1, 1000, location(0, 0), true}}));
            // A later stretch of them is one run alone.
            std::mt19937_64 random(test_seed(1));
            RecordBytes bytes = random_bytes(random, 32 * 1000);
            add_and_check(record, image_of(bytes));
            std::memset(bytes.data() + 32 * 100, 0, 32 * 800);
            add_and_check(record, image_of(bytes), &outcome);
            EXPECT_EQ(outcome.payload, 0U);
            EXPECT_EQ(outcome.runs, (std::vector<ChunkRun>{{100, 800, location(0, 0), true}}));
        }
    }
}

// `tree` keeps the first step fully, with the chunks that repeat in it. A region of it with such chunks is one entry of `tree`
// and several of `runs`, which keeps them once. Where none repeats, `runs` never has more entries.
TEST(HostDeduplicatorRuns, NeverMoreEntriesThanTreeOrList) {
    std::uint64_t runs_total = 0;
    std::uint64_t tree_total = 0;
    unsigned without_repeats = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        ModelRecord runs(options_for(RecordMethod::runs, 32));
        ModelRecord tree(options_for(RecordMethod::tree, 32));
        ModelRecord list(options_for(RecordMethod::list, 32));
        RandomHistory history(seed, 32, 1 + seed * 8);
        for (std::uint32_t step = 0; step < 10; ++step) {
            SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
            const TestImage& image = history.next();
            StepOutcome by_runs;
            StepOutcome by_tree;
            StepOutcome by_list;
            add_and_check(runs, image, &by_runs);
            add_and_check(tree, image, &by_tree);
            add_and_check(list, image, &by_list);
            if (step == 0) {
                ASSERT_EQ(by_tree.payload, by_tree.chunks);
            } else {
                ASSERT_EQ(runs.step(step).payload, tree.step(step).payload);
            }
            ASSERT_EQ(runs.step(step).payload, list.step(step).payload);
            ASSERT_LE(by_tree.runs.size(), by_tree.changed);
            ASSERT_LE(by_runs.runs.size(), by_list.changed);
            ASSERT_LE(runs.step(step).entry_bytes, list.step(step).entry_bytes);
            runs_total += runs.step(step).entry_bytes + runs.step(step).payload.size();
            tree_total += tree.step(step).entry_bytes + tree.step(step).payload.size();
            if (runs.step(0).payload.size() != tree.step(0).payload.size()) continue;
            ++without_repeats;
            ASSERT_LE(by_runs.runs.size(), by_tree.runs.size());
            ASSERT_LE(runs.step(step).entry_bytes, tree.step(step).entry_bytes);
        }
        ASSERT_LE(runs_total, tree_total);
    }
    EXPECT_LT(runs_total, tree_total);
    EXPECT_GT(without_repeats, 50U);
}

// The first step: all nodes are entered, those with repeated chunks too. Then any aligned part of it that comes back is one entry.
// Source: Tan et al., ICPP'23, section 2.2 (figure 2).
TEST(HostDeduplicatorTree, EveryRegionOfTheFirstStepIsFound) {
    std::mt19937_64 random(test_seed(131));
    ModelRecord record(options_for(RecordMethod::tree, 32));
    RecordBytes bytes(32 * 64);
    for (std::size_t chunk = 0; chunk < 64; ++chunk)  // few values: nearly all chunks repeat
        bytes[chunk * 32] = static_cast<std::byte>(random() % 3);
    StepOutcome outcome;
    add_and_check(record, image_of(bytes), &outcome);
    EXPECT_EQ(outcome.payload, 64U);
    add_and_check(record, image_of(random_bytes(random, bytes.size())), &outcome);
    EXPECT_EQ(outcome.payload, 64U);
    add_and_check(record, image_of(bytes), &outcome);
    EXPECT_EQ(outcome.runs, (std::vector<ChunkRun>{{0, 64, location(0, 0), false}}));
    // In the step before, no chunk at 16 to 31 is the one that comes there: none is unchanged.
    add_and_check(record, image_of(random_bytes(random, bytes.size())));
    RecordBytes swapped = random_bytes(random, bytes.size());  // chunks 48 to 63 at 16
    std::memcpy(swapped.data() + 32 * 16, bytes.data() + 32 * 48, 32 * 16);
    add_and_check(record, image_of(swapped), &outcome);
    ASSERT_EQ(std::count_if(outcome.runs.begin(), outcome.runs.end(),
                            [](const ChunkRun& run) { return ordinal_of(run.source) == 0; }),
              1);
    EXPECT_TRUE(std::any_of(outcome.runs.begin(), outcome.runs.end(), [](const ChunkRun& run) {
        return run == ChunkRun{16, 16, location(0, 48), false};
    }));
    // After an error nothing is known: the next step is a first one.
    ASSERT_FALSE(record.add_failing(image_of(random_bytes(random, 3200)), 0).ok());
    add_and_check(record, image_of(bytes), &outcome);
    EXPECT_EQ(outcome.payload, 64U);
}

// A chunk that was entered first in a step and is copied right behind: leaves are told apart by where they come in the payload.
TEST(HostDeduplicatorTree, CopiesBesideTheirSource) {
    std::mt19937_64 random(test_seed(29));
    for (int round = 0; round < 300; ++round) {
        DedupOptions options = options_for(RecordMethod::tree, 32);
        options.slice_chunks = 8;
        ModelRecord record(options);
        for (int step = 0; step < 3; ++step) {
            RecordBytes bytes(32 * (1 + random() % 20));
            for (std::size_t chunk = 0; chunk < bytes.size() / 32; ++chunk)
                bytes[chunk * 32] = static_cast<std::byte>(random() % 4 + 1);
            add_and_check(record, image_of(bytes));
            if (HasFailure()) return;
        }
    }
}

// ---- hashes that collide ----

TEST_P(HostDeduplicator, VerifyFindsCollisions) {
    for (const unsigned bits : {0U, 1U, 8U, 16U, 70U}) {
        for (const int threads : {1, 3}) {
            SCOPED_TRACE(std::to_string(bits) + " bits, " + std::to_string(threads) + " threads");
            DedupOptions options = options_for(GetParam(), 32);
            options.keep_base = true;
            options.verify = true;
            options.hash_bits = bits;
            options.threads = threads;
            options.slice_chunks = 64;
            ModelRecord record(options);
            RandomHistory history(bits, 32, 100);
            std::uint64_t collisions = 0;
            for (int step = 0; step < 8; ++step) {
                StepOutcome outcome;
                add_and_check(record, history.next(), &outcome);
                if (HasFatalFailure()) return;
                collisions += outcome.collisions;
            }
            if (bits <= 8 && GetParam() != RecordMethod::full && GetParam() != RecordMethod::basic) {
                EXPECT_GT(collisions, 0U);
            }
            if (bits == 70) {
                EXPECT_EQ(collisions, 0U);
            }
        }
    }
}

TEST_P(HostDeduplicator, CollisionsCorruptWithoutVerify) {
    if (GetParam() == RecordMethod::full || GetParam() == RecordMethod::basic)
        GTEST_SKIP() << "looks nothing up";
    DedupOptions options = options_for(GetParam(), 32);
    options.hash_bits = 18;
    std::mt19937_64 random(test_seed(31));
    const TestImage before = image_of(random_bytes(random, 32 * 4000));
    const TestImage image = image_of(random_bytes(random, 32 * 4000));
    {
        ModelRecord record(options);
        ASSERT_TRUE(record.add(before).ok());
        const auto outcome = record.add(image);
        ASSERT_TRUE(outcome.ok());
        EXPECT_LT(outcome->payload, outcome->chunks);
        EXPECT_NE(record.restore(1)[0].bytes, image[0].bytes);
    }
    options.keep_base = true;
    options.verify = true;
    ModelRecord record(options);
    StepOutcome outcome;
    add_and_check(record, before);
    add_and_check(record, image, &outcome);
    EXPECT_EQ(outcome.payload, outcome.chunks);
    EXPECT_GT(outcome.collisions, 50U);
}

TEST_P(HostDeduplicator, VerifyAloneChangesNothing) {
    DedupOptions plain = options_for(GetParam(), 64);
    DedupOptions checked = plain;
    checked.keep_base = checked.verify = true;
    ModelRecord a(plain);
    ModelRecord b(checked);
    RandomHistory history(37, 64);
    for (std::uint32_t step = 0; step < 15; ++step) {
        StepOutcome from_a;
        StepOutcome from_b;
        const TestImage& image = history.next();
        add_and_check(a, image, &from_a);
        add_and_check(b, image, &from_b);
        if (GetParam() != RecordMethod::tree) {
            ASSERT_EQ(from_a.runs, from_b.runs);
        } else {  // regions are joined only where the sources of all their chunks confirm it
            ASSERT_LE(from_a.runs.size(), from_b.runs.size());
        }
        ASSERT_EQ(a.step(step).payload, b.step(step).payload);
        ASSERT_EQ(from_b.collisions, 0U);
    }
}

// A collision whose bytes are equal as far as the segment goes: what lies behind its end counts too.
TEST_P(HostDeduplicator, VerifyOfAShortenedChunk) {
    DedupOptions options = options_for(GetParam(), 32);
    options.keep_base = options.verify = true;
    options.hash_bits = 0;  // all collide
    ModelRecord record(options);
    add_and_check(record, image_of(RecordBytes(64, std::byte{9})));
    add_and_check(record, image_of(RecordBytes(40, std::byte{9})));
    add_and_check(record, image_of(RecordBytes(64, std::byte{9})));
}

TEST(HostDeduplicatorVerify, ErrorsOfReadEndTheStep) {
    DedupOptions options = options_for(RecordMethod::runs, 32);
    options.keep_base = options.verify = true;
    options.read = [](Location, std::span<std::byte>) -> Result<> {
        return Error{ErrorCode::damaged, "the earlier step is damaged"};
    };
    ModelRecord record(options);
    std::mt19937_64 random(test_seed(1));
    const RecordBytes a = random_bytes(random, 320);
    RecordBytes swapped = a;
    std::swap_ranges(swapped.begin(), swapped.begin() + 32, swapped.begin() + 32);
    add_and_check(record, image_of(a));
    const auto failed = record.add(image_of(swapped));
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::damaged);
    StepOutcome outcome;
    add_and_check(record, image_of(swapped), &outcome);  // alone
    EXPECT_EQ(outcome.base, kNoBase);
}

// ---- a table with bounds ----

TEST_P(HostDeduplicator, BoundedTableEvictsAndIsNeverWrong) {
    for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{100'000}}) {
        for (const int threads : {1, 3}) {
            DedupOptions options = options_for(GetParam(), 32);
            options.table_bytes = limit;
            options.threads = threads;
            ModelRecord record(options);
            std::mt19937_64 random(test_seed(41));
            RecordBytes a = random_bytes(random, 32 * 3000);
            const RecordBytes b = random_bytes(random, 32 * 3000 + 11);
            for (int round = 0; round < 3; ++round) {
                add_and_check(record, image_of(a));
                add_and_check(record, image_of(b));
                a[32 * 77] ^= std::byte{1};
                ASSERT_LE(record.deduplicator().facts().table_bytes,
                          std::max(limit, HashTable::kSmallest * HashTable::kSlotBytes));
            }
            if (GetParam() == RecordMethod::full || GetParam() == RecordMethod::basic) continue;
            EXPECT_GT(record.deduplicator().facts().evicted, 0U);
            EXPECT_GT(record.deduplicator().facts().entries, 0U);
        }
    }
}

TEST_P(HostDeduplicator, BoundedTableWithRandomHistories) {
    for (const std::uint64_t slice : {0U, 64U, 256U}) {
        for (const bool verify : {false, true}) {
            DedupOptions options = options_for(GetParam(), 32);
            options.table_bytes = 1;
            options.slice_chunks = slice;
            options.keep_base = options.verify = verify;
            options.threads = 2;
            ModelRecord record(options);
            RandomHistory history(slice, 32, 600);
            for (int step = 0; step < 20; ++step) {
                add_and_check(record, history.next());
                if (HasFailure()) return;
            }
        }
    }
}

TEST(HostDeduplicatorTable, WhatWasUsedLastStaysWhenItIsFull) {
    DedupOptions options = options_for(RecordMethod::runs, 32);
    options.table_bytes = 1;  // 512 entries
    ModelRecord record(options);
    std::mt19937_64 random(test_seed(43));
    const RecordBytes kept = random_bytes(random, 32 * 50);
    const auto with = [&](const RecordBytes& head, std::size_t fresh) {
        RecordBytes bytes = head;
        const RecordBytes more = random_bytes(random, 32 * fresh);
        bytes.insert(bytes.end(), more.begin(), more.end());
        return image_of(bytes);
    };
    // The chunks of `kept` move by one each time, so that they are looked up in each step.
    add_and_check(record, with(kept, 10));
    RecordBytes moving = kept;
    for (int step = 0; step < 40; ++step) {
        std::rotate(moving.begin(), moving.begin() + 32, moving.end());
        StepOutcome outcome;
        add_and_check(record, with(moving, 40), &outcome);
        EXPECT_EQ(outcome.payload, 40U);
        if (HasFailure()) return;
    }
    EXPECT_GT(record.deduplicator().facts().evicted, 0U);
}

// ---- what is given to the sink, and kept ----

TEST_P(HostDeduplicator, BasesThatAreGivenAreWhatRestoreWouldGive) {
    for (const std::uint64_t slice : {0U, 8U}) {
        DedupOptions options = options_for(GetParam(), 64);
        options.keep_base = options.give_base = GetParam() != RecordMethod::full;
        options.slice_chunks = slice;
        options.threads = 3;
        ModelRecord record(options);  // which compares them
        RandomHistory history(71 + slice, 64);
        for (int step = 0; step < 25; ++step) {
            add_and_check(record, history.next());
            if (HasFailure()) return;
        }
    }
}

TEST_P(HostDeduplicator, ManyMegabytesReachTheSinkInOrder) {
    DedupOptions options = options_for(GetParam(), 4096);
    options.threads = 2;
    options.slice_chunks = 1024;
    ModelRecord record(options);
    std::mt19937_64 random(test_seed(73));
    TestImage image = {{"a", random_bytes(random, (9U << 20) + 1), 1},
                       {"b", random_bytes(random, 5U << 20), 3}};
    add_and_check(record, image);
    for (std::size_t at = 0; at < image[1].bytes.size(); at += 8000)
        image[1].bytes[at] ^= std::byte{1};
    add_and_check(record, image);
}

TEST_P(HostDeduplicator, SinkThatFailsEndsTheStepAndTheNextStandsAlone) {
    ModelRecord record(options_for(GetParam()));
    RandomHistory history(79, 64);
    add_and_check(record, history.next());
    add_and_check(record, history.next());
    std::mt19937_64 random(test_seed(83));
    const auto failed = record.add_failing(image_of(random_bytes(random, 1000), "fresh"), 0);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::no_space);
    StepOutcome outcome;
    add_and_check(record, history.past().back(), &outcome);
    EXPECT_EQ(outcome.base, kNoBase);
    EXPECT_EQ(outcome.changed, outcome.chunks);
    for (const ChunkRun& run : outcome.runs)  // nothing that the failed step had is a source
        EXPECT_EQ(ordinal_of(run.source), record.last());
    for (int step = 0; step < 5; ++step)
        add_and_check(record, history.next());
}

TEST_P(HostDeduplicator, NamesThatRepeatAreRefused) {
    ModelRecord record(options_for(GetParam()));
    for (int again = 0; again < 2; ++again) {
        const auto outcome = record.add({{"x", RecordBytes(3)}, {"y", {}}, {"x", RecordBytes(40)}});
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, ErrorCode::invalid_argument);
    }
}

// A base that cannot be taken leaves none: the next step stands alone.
TEST(HostDeduplicatorRebase, AnErrorLeavesNoBase) {
    ModelRecord record(options_for(RecordMethod::runs));
    add_and_check(record, image_of(RecordBytes(1000, std::byte{1})));
    const testing::PlacedImage placed({{"x", RecordBytes(64)}, {"x", RecordBytes(64)}});
    const auto based = record.deduplicator().rebase(0, placed.segments(), {});
    ASSERT_FALSE(based.ok());
    EXPECT_EQ(based.error().code, ErrorCode::invalid_argument);
    StepOutcome outcome;
    add_and_check(record, image_of(RecordBytes(1000, std::byte{1})), &outcome);
    EXPECT_EQ(outcome.base, kNoBase);
}

TEST(HostDeduplicatorSkip, StepsAfterOneThatWasAllNewAreTakenWhole) {
    DedupOptions options = options_for(RecordMethod::runs, 32);
    options.skip_when_all_new = true;
    ModelRecord record(options);
    std::mt19937_64 random(test_seed(89));
    std::vector<int> whole;  // how many in a row
    int row = 0;
    std::uint32_t last_looked_at = kNoBase;
    for (int step = 0; step < 80; ++step) {
        StepOutcome outcome;
        add_and_check(record, image_of(random_bytes(random, 32 * 100 + 9)), &outcome);
        EXPECT_EQ(outcome.payload, outcome.chunks);
        if (outcome.method == RecordMethod::full) {
            EXPECT_EQ(outcome.base, kNoBase);
            ++row;
            continue;
        }
        EXPECT_EQ(outcome.base, last_looked_at);
        last_looked_at = record.last();
        whole.push_back(row);
        row = 0;
    }
    EXPECT_EQ(whole, (std::vector<int>{0, 0, 1, 2, 4, 8, 16, 16, 16}));
    // A step that is not new ends it.
    StepOutcome outcome;
    const TestImage same = record.restore(last_looked_at);
    do {
        add_and_check(record, same, &outcome);
    } while (outcome.method == RecordMethod::full && !HasFailure());
    EXPECT_EQ(outcome.payload, 0U);
    add_and_check(record, same, &outcome);
    EXPECT_EQ(outcome.method, RecordMethod::runs);
    EXPECT_EQ(outcome.payload, 0U);
}

// Of base `ordinal`, what follows costs what differs from it.
TEST_P(HostDeduplicator, RebaseAndLearn) {
    for (const bool give : {false, true}) {
        DedupOptions options = options_for(GetParam(), 64);
        options.keep_base = options.give_base = give;
        if (give && GetParam() == RecordMethod::full) continue;
        ModelRecord record(options);
        RandomHistory history(97, 64);
        for (int step = 0; step < 12; ++step)
            add_and_check(record, history.next());
        // Back to step 5, in a process that knows of later ones, and in one that has forgotten all.
        for (const bool forgotten : {false, true}) {
            SCOPED_TRACE(forgotten);
            if (forgotten) {
                record.deduplicator().forget();
                for (std::uint32_t step = 0; step <= 5; ++step)
                    ASSERT_TRUE(
                        record.deduplicator().learn(location(step, 0), record.step(step).payload).ok());
            }
            const testing::PlacedImage placed(record.restore(5));
            ASSERT_TRUE(
                record.deduplicator()
                    .rebase(5, placed.segments(), give ? record.step(5).where : std::vector<Location>{})
                    .ok());
            StepOutcome outcome;
            add_and_check(record, record.restore(5), &outcome);
            if (GetParam() == RecordMethod::full) continue;
            EXPECT_EQ(outcome.base, 5U);
            EXPECT_EQ(outcome.changed, 0U);
            // Another layout, then on.
            ASSERT_TRUE(
                record.deduplicator()
                    .rebase(5, placed.segments(), give ? record.step(5).where : std::vector<Location>{})
                    .ok());
            add_and_check(record, record.restore(2), &outcome);
            EXPECT_EQ(outcome.base, 5U);
            if (GetParam() != RecordMethod::basic) {
                EXPECT_EQ(outcome.payload, 0U);  // all of it was seen
            }
            for (int step = 0; step < 4; ++step)
                add_and_check(record, history.next());
            if (HasFailure()) return;
        }
    }
}

TEST(HostDeduplicatorLearn, TheOldestIsTheSource) {
    std::mt19937_64 random(test_seed(101));
    for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1}}) {
        DedupOptions options = options_for(RecordMethod::runs, 32);
        options.table_bytes = limit;
        ModelRecord record(options);
        const TestImage image = image_of(random_bytes(random, 32 * 100));
        add_and_check(record, image);
        add_and_check(record, image_of(random_bytes(random, 32 * 2000)));
        record.deduplicator().forget();
        for (std::uint32_t step = 0; step < 2; ++step)
            ASSERT_TRUE(record.deduplicator().learn(location(step, 0), record.step(step).payload).ok());
        StepOutcome outcome;
        add_and_check(record, image, &outcome);
        if (limit == 0) {
            EXPECT_EQ(outcome.runs, (std::vector<ChunkRun>{{0, 100, location(0, 0), false}}));
        }
        EXPECT_EQ(outcome.base, kNoBase);
    }
}

TEST(HostDeduplicatorOptions, ThatContradictEachOtherAreRefused) {
    const auto refused = [](auto change) {
        DedupOptions options;
        change(options);
        const auto made = make_host_deduplicator(options);
        return !made.ok() && made.error().code == ErrorCode::invalid_argument;
    };
    EXPECT_FALSE(refused([](DedupOptions&) {}));
    for (const std::uint32_t chunk : {0U, 16U, 33U, 100U, 131072U})
        EXPECT_TRUE(refused([&](DedupOptions& options) { options.chunk_bytes = chunk; }));
    EXPECT_TRUE(refused([](DedupOptions& options) { options.slice_chunks = 3; }));
    EXPECT_TRUE(refused([](DedupOptions& options) { options.give_base = true; }));
    EXPECT_TRUE(refused([](DedupOptions& options) { options.verify = true; }));
    EXPECT_TRUE(refused([](DedupOptions& options) { options.verify = options.keep_base = true; }));
    EXPECT_TRUE(refused([](DedupOptions& options) { options.skip_when_all_new = options.keep_base = true; }));
}

}  // namespace
}  // namespace twinrun
