#include "aggregate/plan/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/device.hpp"

namespace twinrun {
namespace {

class SetDraw {
   public:
    explicit SetDraw(std::uint64_t seed) : random_(seed) {}
    std::uint64_t operator()(std::uint64_t low, std::uint64_t high) {
        return low + random_() % (high - low + 1);
    }

   private:
    std::mt19937_64 random_;
};

using Owners = std::map<std::uint64_t, std::uint32_t>;  // of bytes

// Ranks' sets without overlaps: each part takes the next range of the file.
std::vector<OwnedSet> random_sets(SetDraw& draw, std::uint32_t ranks) {
    std::vector<OwnedSet> sets;
    std::uint64_t at = draw(0, 100);
    for (std::uint64_t part = draw(0, 5); part > 0; --part) {
        switch (draw(0, 3)) {
            case 0:
                for (std::uint32_t rank = 0; rank < ranks; ++rank) {
                    const std::uint64_t bytes = draw(1, 200);
                    sets.push_back({{at, bytes, 1, bytes}, rank});
                    at += bytes;
                }
                break;
            case 1: {
                const std::uint64_t width = draw(1, 8);
                const std::uint64_t stride = width * ranks + draw(0, 5);
                const std::uint64_t count = draw(2, 30);
                for (std::uint32_t rank = 0; rank < ranks; ++rank)
                    sets.push_back({{at + rank * width, width, count, stride}, rank});
                at += stride * count;
                break;
            }
            case 2: {
                const std::uint64_t width = draw(1, 40);
                const std::uint64_t stride = width + draw(1, 900);
                const std::uint64_t count = draw(2, 4);
                sets.push_back({{at, width, count, stride}, static_cast<std::uint32_t>(draw(0, ranks - 1))});
                at += stride * count;
                break;
            }
            default: at += draw(0, 700);
        }
    }
    return sets;
}

Owners owners_of(const std::vector<OwnedSet>& sets) {
    Owners owners;
    for (const OwnedSet& owned : sets) {
        for (std::uint64_t i = 0; i < owned.set.count; ++i) {
            for (std::uint64_t b = 0; b < owned.set.width; ++b)
                owners[owned.set.offset + i * owned.set.stride + b] = owned.rank;
        }
    }
    return owners;
}

TEST(Partitions, CutTheFileAtBlocksIntoEqualShares) {
    SetDraw draw(1);
    for (int round = 0; round < test_rounds(1500); ++round) {
        const auto ranks = static_cast<std::uint32_t>(draw(1, 6));
        const auto sets = random_sets(draw, ranks);
        const Owners owners = owners_of(sets);
        const FileTable table(sets);
        EXPECT_EQ(table.bytes(), owners.size());
        const std::uint64_t wanted = draw(1, 9);
        const std::uint64_t block = draw(1, 300);
        const auto partitions = make_partitions(table, wanted, block);
        EXPECT_EQ(partitions.empty(), owners.empty());
        EXPECT_LE(partitions.size(), wanted);
        std::uint64_t sum = 0;
        for (std::size_t p = 0; p < partitions.size(); ++p) {
            const Range& range = partitions[p];
            ASSERT_LT(range.begin, range.end);
            if (p > 0) {
                ASSERT_GE(range.begin, partitions[p - 1].end);
            }
            if (range.begin != owners.begin()->first) {
                EXPECT_EQ(range.begin % block, 0U);
            }
            if (range.end != owners.rbegin()->first + 1) {
                EXPECT_EQ(range.end % block, 0U);
            }
            const std::uint64_t bytes = table.bytes_within(range);
            EXPECT_GT(bytes, 0U);
            // A share, and what rounding to blocks adds on both sides.
            EXPECT_LE(bytes, owners.size() / wanted + 1 + 2 * block);
            sum += bytes;
            std::map<std::uint32_t, std::uint64_t> by_rank;
            for (auto at = owners.lower_bound(range.begin); at != owners.end() && at->first < range.end; ++at)
                ++by_rank[at->second];
            std::vector<std::uint32_t> node_of;
            for (std::uint32_t rank = 0; rank < ranks; ++rank)
                node_of.push_back(rank / 2);
            const auto contributions = contributions_to(table, range, node_of);
            ASSERT_EQ(contributions.size(), by_rank.size());
            auto expected = by_rank.begin();
            for (const Contribution& contribution : contributions) {
                EXPECT_EQ(contribution.rank, expected->first);
                EXPECT_EQ(contribution.node, expected->first / 2);
                EXPECT_EQ(contribution.bytes, static_cast<float>(expected->second));
                ++expected;
            }
        }
        EXPECT_EQ(sum, owners.size());
    }
}

// Ranges to read: all gathered bytes, with the holes between them that are short enough.
void expect_sieve(const std::vector<Range>& ranges, const std::set<std::uint64_t>& bytes,
                  std::uint64_t hole) {
    std::vector<Range> expected;
    for (const std::uint64_t at : bytes) {
        if (!expected.empty() && at <= expected.back().end + hole) {
            expected.back().end = at + 1;
        } else {
            expected.push_back({at, at + 1});
        }
    }
    EXPECT_EQ(ranges, expected);
}

// The shorter limit is for sets of which each rank has one at most, all dense.
TEST(Partitions, ShortStretchesAreDirectWhereRanksHaveOneEach) {
    const DirectRule rule{100, 1, 10};
    const auto least = [&](const std::vector<OwnedSet>& sets) {
        return rule_for(FileTable(sets), rule).least_bytes;
    };
    EXPECT_EQ(least({{{0, 20, 1, 20}, 0}, {{20, 20, 1, 20}, 2}, {{40, 5, 4, 5}, 1}}), 10U);
    EXPECT_EQ(least({}), 10U);
    EXPECT_EQ(least({{{0, 20, 1, 20}, 0}, {{20, 20, 1, 20}, 1}, {{60, 20, 1, 20}, 0}}), 100U);
    EXPECT_EQ(least({{{0, 20, 1, 20}, 0}, {{20, 5, 2, 10}, 1}}), 100U);
    // Never longer than without it.
    EXPECT_EQ(rule_for(FileTable({{{0, 20, 1, 20}, 0}}), {5, 1, 10}).least_bytes, 5U);
    EXPECT_EQ(rule_for(FileTable({{{0, 20, 1, 20}, 0}}), {}).least_bytes, UINT64_MAX);
}

TEST(Partitions, WindowsAndRunsEqualBruteForce) {
    SetDraw draw(2);
    int with_direct = 0;
    int with_holes = 0;
    for (int round = 0; round < test_rounds(2000); ++round) {
        const auto ranks = static_cast<std::uint32_t>(draw(1, 6));
        const auto sets = random_sets(draw, ranks);
        const Owners owners = owners_of(sets);
        const FileTable table(sets);
        const std::uint64_t block = draw(1, 200);
        const std::uint64_t buffer = block * draw(1, 4);
        const auto hole = static_cast<std::uint64_t>(round % 50);
        DirectRule rule;
        if (draw(0, 1) == 0) rule = {draw(1, 150), draw(0, 1) == 0 ? 1 : draw(1, 60), UINT64_MAX};
        std::set<std::uint64_t> direct;
        for (const OwnedSet& owned : table.sets()) {
            const auto part = direct_part(owned.set, rule);
            if (!part) continue;
            EXPECT_GE(part->begin, owned.set.begin());
            EXPECT_LE(part->end, owned.set.end());
            EXPECT_EQ(part->begin % rule.alignment, 0U);
            EXPECT_EQ(part->end % rule.alignment, 0U);
            for (std::uint64_t at = part->begin; at < part->end; ++at)
                direct.insert(at);
        }
        with_direct += direct.empty() ? 0 : 1;
        std::set<std::uint64_t> gathered;
        for (const Range& partition : make_partitions(table, draw(1, 4), block)) {
            const PartitionPlan plan(table, partition, rule, buffer, block);
            std::uint64_t before = partition.begin;
            for (const Window& window : plan.windows()) {
                ASSERT_GE(window.range.begin, before);
                ASSERT_LE(window.range.end, partition.end);
                ASSERT_LE(window.range.bytes(), buffer);
                before = window.range.end;
                std::set<std::uint32_t> by;
                std::set<std::uint64_t> bytes;
                for (auto at = owners.lower_bound(window.range.begin);
                     at != owners.end() && at->first < window.range.end; ++at) {
                    if (direct.contains(at->first)) continue;
                    by.insert(at->second);
                    bytes.insert(at->first);
                }
                ASSERT_FALSE(bytes.empty());
                EXPECT_EQ(window.bytes, bytes.size());
                EXPECT_EQ(window.data, (Range{*bytes.begin(), *bytes.rbegin() + 1}));
                EXPECT_EQ(plan.ranks_of(window), std::vector<std::uint32_t>(by.begin(), by.end()));
                gathered.insert(bytes.begin(), bytes.end());
                with_holes += window.bytes != window.data.bytes() ? 1 : 0;
                expect_sieve(plan.sieve_of(window, hole), bytes, hole);
                for (const bool exact : {true, false}) {
                    std::set<std::uint64_t> covered;
                    std::uint64_t last = 0;
                    for (const Range& run : plan.runs_of(window, exact, block)) {
                        ASSERT_LT(run.begin, run.end);
                        ASSERT_GE(run.begin, std::max(last, window.data.begin));
                        last = run.end;
                        for (std::uint64_t at = run.begin; at < run.end; ++at)
                            covered.insert(at);
                    }
                    ASSERT_LE(last, window.data.end);
                    if (exact) {
                        EXPECT_EQ(covered, bytes);
                    } else {
                        EXPECT_TRUE(
                            std::includes(covered.begin(), covered.end(), bytes.begin(), bytes.end()));
                        for (const std::uint64_t at : covered)
                            EXPECT_TRUE(bytes.contains(at) || !owners.contains(at))
                                << "a byte of a direct stretch";
                    }
                }
            }
        }
        // Windows and direct stretches are all there is, and nothing twice.
        EXPECT_EQ(gathered.size() + direct.size(), owners.size());
    }
    EXPECT_GT(with_direct, 0);
    EXPECT_GT(with_holes, 0);
}

TEST(Partitions, OverlapsAreFoundWhereTheyAre) {
    SetDraw draw(3);
    int found = 0;
    for (int round = 0; round < test_rounds(2000); ++round) {
        const auto ranks = static_cast<std::uint32_t>(draw(2, 5));
        auto sets = random_sets(draw, ranks);
        if (sets.empty()) continue;
        const FileTable good(sets);
        EXPECT_FALSE(find_overlap(good, {0, UINT64_MAX}));
        // One set more, somewhere.
        const auto rank = static_cast<std::uint32_t>(draw(0, ranks - 1));
        const std::uint64_t width = draw(1, 5);
        const OwnedSet more{{draw(0, good.span().end), width, draw(1, 4), width + draw(0, 50)}, rank};
        std::set<std::uint64_t> twice;
        const Owners owners = owners_of(sets);
        for (std::uint64_t i = 0; i < more.set.count; ++i) {
            for (std::uint64_t b = 0; b < more.set.width; ++b) {
                const auto at = owners.find(more.set.offset + i * more.set.stride + b);
                if (at != owners.end() && at->second != rank) twice.insert(at->first);
            }
        }
        sets.push_back(more);
        const FileTable table(sets);
        // Whoever looks at the whole finds one; of those who look at parts, at least one does.
        std::optional<Overlap> of_parts;
        const std::uint64_t parts = draw(1, 5);
        for (std::uint64_t part = 0; part < parts; ++part) {
            const std::uint64_t end = table.span().end;
            const auto overlap = find_overlap(table, {end * part / parts, end * (part + 1) / parts});
            if (overlap && !of_parts) of_parts = overlap;
        }
        ASSERT_EQ(of_parts.has_value(), !twice.empty());
        if (!of_parts) continue;
        ++found;
        EXPECT_TRUE(twice.contains(of_parts->offset));
        EXPECT_LT(of_parts->ranks[0], of_parts->ranks[1]);
        EXPECT_TRUE(of_parts->ranks[0] == rank || of_parts->ranks[1] == rank);
    }
    EXPECT_GT(found, 0);
}

TEST(Partitions, NumberOfAggregators) {
    constexpr std::uint64_t kMega = std::uint64_t{1} << 20;
    EXPECT_EQ(default_aggregators(0, 4, 64), 1U);
    EXPECT_EQ(default_aggregators(3 * kMega, 4, 64), 1U);
    EXPECT_EQ(default_aggregators(1000 * kMega, 4, 64), 4U);
    EXPECT_EQ(default_aggregators(10000 * kMega, 4, 64), 8U);
    EXPECT_EQ(default_aggregators(100000 * kMega, 1, 1), 1U);
}

// Windows are found by arithmetic: items far apart do not make time.
TEST(Partitions, SparseFilesAreQuick) {
    const std::uint64_t stride = std::uint64_t{1} << 40;
    const FileTable table({{{0, 8, 1000, stride}, 0}, {{stride / 2, 8, 1000, stride}, 1}});
    const auto partitions = make_partitions(table, 4, 4096);
    ASSERT_EQ(partitions.size(), 4U);
    std::size_t windows = 0;
    for (const Range& partition : partitions)
        windows += PartitionPlan(table, partition, {}, 8192, 4096).windows().size();
    EXPECT_EQ(windows, 2000U);
}

}  // namespace
}  // namespace twinrun
