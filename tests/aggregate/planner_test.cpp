#include "aggregate/plan/planner.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "aggregate/plan/exits.hpp"
#include "aggregate/topologies.hpp"
#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::topology;

constexpr std::array<Placement, 5> kAll{Placement::cost, Placement::rank, Placement::bridge,
                                        Placement::random, Placement::worst};

std::vector<std::uint64_t> volumes(const VolumeModel& model, std::uint32_t ranks) {
    const auto made = volumes_of(model, ranks);
    EXPECT_TRUE(made.ok());
    return made.ok() ? *made : std::vector<std::uint64_t>{};
}
Plan planned(const Topology& t, const std::vector<std::uint64_t>& bytes, const PlanSettings& settings) {
    auto made = make_plan(t, bytes, settings, kAll);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *made : Plan{};
}

TEST(Volumes, HaveTheirMeanAndUnit) {
    for (const auto kind : {VolumeModel::Kind::uniform, VolumeModel::Kind::lognormal,
                            VolumeModel::Kind::linear, VolumeModel::Kind::heavy}) {
        const VolumeModel model{
            .kind = kind, .mean = 380'000, .unit = 38, .spread = 2, .every = 8, .seed = 3};
        const auto bytes = volumes(model, 4000);
        EXPECT_EQ(bytes, volumes(model, 4000));
        double sum = 0;
        for (const std::uint64_t b : bytes) {
            EXPECT_EQ(b % 38, 0U);
            sum += static_cast<double>(b);
        }
        EXPECT_NEAR(sum / 4000, 380'000, 40);
    }
    VolumeModel other{.kind = VolumeModel::Kind::lognormal, .mean = 1000, .seed = 1};
    const auto first = volumes(other, 100);
    other.seed = 2;
    EXPECT_NE(volumes(other, 100), first);
}

TEST(Volumes, ThatAreNoneAreRefused) {
    EXPECT_FALSE(volumes_of({.mean = 1}, 0).ok());
    EXPECT_FALSE(volumes_of({.mean = 1, .unit = 0}, 1).ok());
    EXPECT_FALSE(volumes_of({.mean = ~0ULL}, 2).ok());
    EXPECT_FALSE(volumes_of({.kind = VolumeModel::Kind::lognormal, .mean = 1, .spread = NAN}, 2).ok());
    EXPECT_FALSE(volumes_of({.kind = VolumeModel::Kind::lognormal, .mean = 1, .spread = -1}, 2).ok());
    EXPECT_FALSE(volumes_of({.kind = VolumeModel::Kind::lognormal, .mean = 1, .spread = 1e6}, 2).ok());
}

// Byte by byte: whose is it, in which partition?
TEST(Plans, ContributionsAreThoseOfEachByte) {
    std::mt19937_64 random(test_seed(4));
    for (int round = 0; round < test_rounds(200); ++round) {
        const auto up_to = [&](std::uint64_t most) { return random() % (most + 1); };
        const auto t = topology("flat:12");
        PlanSettings settings;
        settings.ranks_per_node = static_cast<std::uint32_t>(1 + up_to(3));
        settings.aggregators = static_cast<std::uint32_t>(1 + up_to(9));
        settings.nodes_per_file = static_cast<std::uint32_t>(up_to(4));
        settings.block = std::array<std::uint64_t, 3>{1, 16, 64}[up_to(2)];
        settings.item_bytes = {4, 1, 3};
        settings.layout =
            std::array{PlanLayout::records, PlanLayout::blocks, PlanLayout::variables}[up_to(2)];
        std::vector<std::uint64_t> bytes(1 + up_to(12 * settings.ranks_per_node - 1));
        for (std::uint64_t& b : bytes)
            b = 8 * up_to(9);
        bytes[up_to(bytes.size() - 1)] = 80;
        const Plan plan = planned(*t, bytes, settings);

        const std::uint64_t group = settings.nodes_per_file == 0
                                        ? bytes.size()
                                        : std::uint64_t{settings.nodes_per_file} * settings.ranks_per_node;
        std::map<std::uint32_t, std::vector<std::uint32_t>> owners;  // of each byte, by file
        for (std::uint64_t first = 0; first < bytes.size(); first += group) {
            auto& file = owners[static_cast<std::uint32_t>(first / group)];
            const std::uint64_t end = std::min<std::uint64_t>(bytes.size(), first + group);
            if (settings.layout == PlanLayout::variables) {
                for (const std::uint64_t item : settings.item_bytes) {
                    for (std::uint64_t r = first; r < end; ++r)
                        file.insert(file.end(), bytes[r] / 8 * item, static_cast<std::uint32_t>(r));
                }
            } else {
                for (std::uint64_t r = first; r < end; ++r)
                    file.insert(file.end(), bytes[r], static_cast<std::uint32_t>(r));
            }
        }
        EXPECT_EQ(plan.files, owners.size());
        std::map<std::uint32_t, std::uint64_t> done;
        for (const PlannedPartition& part : plan.partitions) {
            ASSERT_EQ(part.offset, done[part.file]);
            ASSERT_GT(part.bytes, 0U);
            EXPECT_EQ(part.offset % settings.block, 0U);
            done[part.file] += part.bytes;
            std::map<std::uint32_t, std::uint64_t> expected;
            for (std::uint64_t at = part.offset; at < part.offset + part.bytes; ++at)
                ++expected[owners[part.file].at(at)];
            ASSERT_EQ(part.contributions.size(), expected.size());
            std::size_t k = 0;
            std::map<std::uint32_t, bool> nodes;
            for (const auto& [rank, count] : expected) {
                const Contribution& c = part.contributions[k++];
                EXPECT_EQ(c.rank, rank);
                EXPECT_EQ(c.node, rank / settings.ranks_per_node);
                EXPECT_EQ(c.bytes, static_cast<float>(count));
                nodes[c.node] = true;
            }
            EXPECT_EQ(part.nodes, nodes.size());
            EXPECT_EQ(part.gateway, gateway_of_partition(*t, part.contributions));
        }
        for (const auto& [file, owned] : owners)
            EXPECT_EQ(done[file], owned.size());
        EXPECT_EQ(plan.bytes, std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
    }
}

TEST(Plans, InterleavedRanksAreInEveryPartition) {
    const auto t = topology("torus:4x4,pset=8");
    PlanSettings settings{
        .ranks_per_node = 2, .aggregators = 5, .layout = PlanLayout::interleaved, .block = 1};
    const Plan plan = planned(*t, std::vector<std::uint64_t>(32, 1000), settings);
    ASSERT_EQ(plan.partitions.size(), 5U);
    for (const PlannedPartition& part : plan.partitions) {
        EXPECT_EQ(part.contributions.size(), 32U);
        EXPECT_EQ(part.nodes, 16U);
        EXPECT_EQ(part.contributions[3].bytes, 200);
    }
}

TEST(Plans, CostIsLeastAndWorstIsMostWhereRanksBelongToOnePartition) {
    for (const char* description : {"torus:4x4x4,pset=16", "dragonfly:5x4x3", "fattree:8,2"}) {
        const auto t = topology(description);
        PlanSettings settings{.ranks_per_node = 4, .aggregators = 6, .block = 1};
        // Partitions of equal volume begin with a rank, so that no choice narrows another one.
        std::vector<std::uint64_t> bytes;
        for (int p = 0; p < 6; ++p)
            bytes.insert(bytes.end(), {100, 50'000, 300, 7, 20'000, 60'000 - 57, 4'000, 650});
        const Plan plan = planned(*t, bytes, settings);
        ASSERT_EQ(plan.partitions.size(), 6U);
        for (const PlannedPlacement& other : plan.placements) {
            for (std::size_t p = 0; p < 6; ++p) {
                EXPECT_LE(plan.placements[0].elections[p].cost.total(), other.elections[p].cost.total());
                EXPECT_GE(plan.placements[4].elections[p].cost.total(), other.elections[p].cost.total());
            }
            EXPECT_LE(plan.placements[0].prediction.sum, other.prediction.sum);
            EXPECT_LE(plan.placements[0].prediction.most, other.prediction.most);
        }
    }
}

TEST(Plans, PredictionsDivideWhatIsShared) {
    // One hop each; links of 1000 bytes a second, memory of 10000; a gateway that all nodes share.
    const auto named = parse_topology_file(R"({"nodes": 4, "latency": 1, "memory": 10000, "bandwidth": 1000,
        "distances": [[0,1,1,1],[1,0,1,1],[1,1,0,1],[1,1,1,0]], "gateways": [{"bandwidth": 1000, "capacity": 1500}]})");
    ASSERT_TRUE(named.ok());
    const Topology& t = *named->topology;
    std::vector<PlannedPartition> parts(2);
    parts[0] = {0, 0, 0, 6000, 3, 0, {{0, 0, 1000}, {1, 0, 1000}, {2, 1, 3000}, {4, 2, 1000}}};
    parts[1] = {0, 1, 6000, 3000, 2, 0, {{5, 2, 1000}, {6, 3, 2000}}};
    const auto elected = [&](std::size_t p, std::size_t candidate) {
        return Election{parts[p].contributions[candidate].rank,
                        placement_cost(t, parts[p].contributions, candidate, 0)};
    };
    const std::vector<Election> apart{elected(0, 2), elected(1, 1)};  // on nodes 1 and 3
    const Prediction a = predict(t, parts, apart, 2);
    const double c1 = 1 + 1.0;  // from the farthest with the most
    const double c2 = 1 + 6000.0 / (3 * 1000);
    const double d1 = 1 + 1.0;
    const double d2 = 1 + 3000.0 / (2 * 1000);
    EXPECT_NEAR(a.sum, c1 + c2 + d1 + d2, 1e-5);
    EXPECT_NEAR(a.most, c1 + c2, 1e-5);
    // 3000 bytes arrive at node 1; 6000 leave it, as long as the gateway takes for 9000.
    EXPECT_NEAR(a.seconds, 3 + 1 + 6, 1e-5);
    const std::vector<Election> together{elected(0, 3), elected(1, 0)};  // both on node 2
    const Prediction b = predict(t, parts, together, 2);
    EXPECT_NEAR(b.seconds, (5 + 2) + 1 + (6 + 3), 1e-5);
}

// What is said of the objective, on fixed seeds: one rank in 256 with 64 times the others' bytes, rank after rank in the file.
// Where writing is limited by what aggregators share, none can be much faster: the last line holds that it is not slower.
TEST(Plans, CostOfSkewedVolumesIsAtMostSevenTenthsOfRankOrders) {
    for (const char* description : {"torus:4x4x4x8x2", "dragonfly:9x16x8", "fattree:16,3"}) {
        const auto t = topology(description);
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            PlanSettings settings{.ranks_per_node = 16, .aggregators = t->nodes() / 16};
            const VolumeModel model{VolumeModel::Kind::heavy, 950'000, 38, 64, 256, seed};
            const Plan plan = planned(*t, volumes(model, t->nodes() * 16), settings);
            const Prediction& ours = plan.placements[0].prediction;
            const Prediction& theirs = plan.placements[1].prediction;
            EXPECT_LE(ours.sum, 0.7 * theirs.sum) << description << ", seed " << seed;
            EXPECT_LE(ours.seconds, 1.02 * theirs.seconds) << description << ", seed " << seed;
        }
    }
}

TEST(Plans, OfAHundredThousandRanks) {
    const auto t = topology("torus:8x8x8x8x2");  // 8192 nodes
    PlanSettings settings{.ranks_per_node = 16,
                          .aggregators = 512,
                          .layout = PlanLayout::variables,
                          .item_bytes = {4, 4, 4, 4, 4, 4, 4, 8, 2}};
    const VolumeModel model{VolumeModel::Kind::lognormal, 950'000, 38, 1, 1, 1};
    const Plan plan = planned(*t, volumes(model, 131'072), settings);
    EXPECT_EQ(plan.ranks, 131'072U);
    EXPECT_EQ(plan.partitions.size(), 512U);
    EXPECT_EQ(plan.partition_of_node.size(), 8192U);
    for (const std::uint32_t part : plan.partition_of_node)
        ASSERT_LT(part, 512U);
}

TEST(Plans, ThatMakeNoSenseAreRefused) {
    const auto t = topology("flat:2");
    const std::vector<std::uint64_t> four(4, 100);
    PlanSettings settings{.ranks_per_node = 2, .aggregators = 2};
    ASSERT_TRUE(make_plan(*t, four, settings, kAll).ok());
    const auto refused = [&](const std::vector<std::uint64_t>& bytes, const auto& change) {
        PlanSettings other = settings;
        change(other);
        const auto made = make_plan(*t, bytes, other, kAll);
        return !made.ok() && made.error().code == ErrorCode::invalid_argument;
    };
    const auto as_is = [](PlanSettings&) {};
    EXPECT_TRUE(refused(std::vector<std::uint64_t>(5, 1), as_is));
    EXPECT_TRUE(refused({}, as_is));
    EXPECT_TRUE(refused({0, 0}, as_is));
    EXPECT_TRUE(refused({~0ULL, 5}, as_is));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) { s.ranks_per_node = 0; }));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) { s.aggregators = 0; }));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) { s.aggregators = ~0U; }));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) { s.block = 0; }));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) { s.item_bytes = {}; }));
    EXPECT_TRUE(refused(four, [](PlanSettings& s) {
        s.item_bytes = {3, 4};
        s.layout = PlanLayout::variables;
    }));
    EXPECT_FALSE(plan_layout_of("soa").ok());
}

TEST(Plans, OfOneByte) {
    const auto t = topology("flat:2");
    const Plan plan = planned(*t, {0, 1, 0}, {.ranks_per_node = 2, .aggregators = 100});
    ASSERT_EQ(plan.partitions.size(), 1U);
    EXPECT_EQ(plan.partitions[0].bytes, 1U);
    for (const PlannedPlacement& placement : plan.placements)
        EXPECT_EQ(placement.elections[0].rank, 1U);
    EXPECT_EQ(plan.partition_of_node, (std::vector<std::uint32_t>{0, kNoPartition}));
}

}  // namespace
}  // namespace twinrun
