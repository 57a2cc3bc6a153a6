#include "aggregate/topology/hwloc.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "aggregate/plan/placement.hpp"
#include "aggregate/topologies.hpp"
#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/hwloc_abi.hpp"
#include "support/seed.hpp"

#if __has_include(<hwloc.h>)
#include <hwloc.h>
#endif

namespace twinrun {
namespace {

using testing::topology;

constexpr std::uint32_t kAny = InnerPlace::kAny;
// Two packages of two NUMA nodes of two L3 groups of two cores.
constexpr const char* kMachine = "hwloc:synthetic:pack:2 numa:2 l3:2 core:2 pu:2";

bool has_hwloc() { return ask_hwloc(*parse_hwloc("hwloc:synthetic:core:2 pu:1")).ok(); }

#define NEEDS_HWLOC() \
    if (!has_hwloc()) GTEST_SKIP() << "libhwloc.so.15 is not installed"

#if __has_include(<hwloc.h>) && HWLOC_API_VERSION >= 0x00020000 && HWLOC_API_VERSION < 0x00030000
static_assert(offsetof(hwloc::Object, logical_index) == offsetof(hwloc_obj, logical_index));
static_assert(offsetof(hwloc::Object, cpuset) == offsetof(hwloc_obj, cpuset));
static_assert(hwloc::kPackage == HWLOC_OBJ_PACKAGE && hwloc::kCore == HWLOC_OBJ_CORE &&
              hwloc::kUnit == HWLOC_OBJ_PU && hwloc::kCache == HWLOC_OBJ_L3CACHE &&
              hwloc::kNuma == HWLOC_OBJ_NUMANODE && hwloc::kBindingOfProcess == HWLOC_CPUBIND_PROCESS &&
              hwloc::kUnknownDepth == HWLOC_TYPE_DEPTH_UNKNOWN &&
              hwloc::kMultipleDepths == HWLOC_TYPE_DEPTH_MULTIPLE);
#endif

TEST(Hwloc, Descriptions) {
    EXPECT_TRUE(is_hwloc("hwloc") && is_hwloc("hwloc:xml:a") && is_hwloc("hwloc,hosts=2"));
    EXPECT_FALSE(is_hwloc("hwlocs") || is_hwloc("flat:2"));
    const auto plain = parse_hwloc("hwloc");
    ASSERT_TRUE(plain.ok());
    EXPECT_EQ(plain->source, HwlocDescription::Source::host);
    const auto all = parse_hwloc(
        "hwloc:synthetic:pack:2 numa:1(indexes=0,1) "
        "pu:2,hosts=3,numa=1e9,package=5e8,memory=2e9,cache=4e9,latency=0,"
        "bandwidth=1e10,gateway_bandwidth=3e9");
    ASSERT_TRUE(all.ok()) << all.error().message;
    EXPECT_EQ(all->text, "pack:2 numa:1(indexes=0,1) pu:2");
    EXPECT_EQ(all->hosts, 3U);
    EXPECT_EQ(all->inner.numa, 1e9F);
    EXPECT_EQ(all->inner.package, 5e8F);
    EXPECT_EQ(all->inner.memory, 2e9F);
    EXPECT_EQ(all->inner.cache, 4e9F);
    EXPECT_EQ(all->network.latency, 0.0F);
    EXPECT_EQ(all->network.bandwidth, 1e10F);
    EXPECT_EQ(all->network.gateway_bandwidth, 3e9F);
    // A comma that begins no setting belongs to the text.
    EXPECT_EQ(parse_hwloc("hwloc:xml:/tmp/a,b=1.xml")->text, "/tmp/a,b=1.xml");
    for (const std::string wrong :
         {"hwloc:", "hwloc:synthetic:", "hwloc:xml:", "hwloc:other:1", "hwloc,cores=2", "hwloc,hosts=0",
          "hwloc,hosts=x", "hwloc,numa=0", "hwloc,package=-1", "hwloc,cache=nan", "hwloc,memory=1e99",
          "hwloc,", "hwloc:synthetic:pu:999999999", "hwloc:synthetic:pu:99999999999999999999",
          "hwloc:synthetic:pack:100 core:100 pu:100", "hwloc:synthetic:100 100 100"}) {
        const auto made = parse_hwloc(wrong);
        ASSERT_FALSE(made.ok()) << wrong;
        EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(made.error().message.find("hwloc"), std::string::npos);
    }
    EXPECT_FALSE(parse_hwloc(std::string("hwloc:xml:a\0b", 13)).ok());
    EXPECT_FALSE(parse_hwloc("hwloc:xml:" + std::string(5000, 'x')).ok());
}

TEST(Hwloc, ASyntheticMachineIsWhatItSays) {
    NEEDS_HWLOC();
    const auto t =
        topology(std::string(kMachine) + ",hosts=3,memory=8e9,cache=16e9,numa=4e9,package=2e9,bandwidth=1e9");
    ASSERT_NE(t, nullptr);
    ASSERT_EQ(t->nodes(), 48U);
    for (std::uint32_t a = 0; a < 48; ++a) {
        EXPECT_EQ(t->host_of(a), a / 16);
        const std::uint32_t core = a % 16;
        EXPECT_EQ(t->inner_place(a).parts,
                  (std::array<std::uint32_t, 4>{core / 8, core / 4, core / 2, core}));
        EXPECT_EQ(t->gateway_of(a), 0U);
        for (std::uint32_t b = 0; b < 48; ++b) {
            // Halves of halves: the level of the smallest part that has both.
            const std::uint32_t other = b % 16;
            const bool host = a / 16 == b / 16;
            const std::uint32_t hops = a == b                  ? 0
                                       : !host                 ? 5
                                       : core / 2 == other / 2 ? 1
                                       : core / 4 == other / 4 ? 2
                                       : core / 8 == other / 8 ? 3
                                                               : 4;
            ASSERT_EQ(t->distance(a, b), hops) << a << " " << b;
            const float rate = hops <= 1   ? 16e9F
                               : hops == 2 ? 8e9F
                               : hops == 3 ? 4e9F
                               : hops == 4 ? 2e9F
                                           : 1e9F;
            ASSERT_EQ(t->bandwidth(a, b), rate) << a << " " << b;
            ASSERT_LE(t->distance(a, b), t->diameter());
            ASSERT_GE(t->bandwidth(a, b), t->least_bandwidth());
        }
    }
}

Election elect_one(const Topology& t, const std::vector<Contribution>& partition) {
    return elect(t, Placement::cost, std::vector<std::vector<Contribution>>{partition},
                 std::vector<Exit>{{0}}, 0)[0];
}

// One rank a core; what one of them has more decides, and distance where all have the same.
TEST(Hwloc, TheElectionWithinAHostIsExact) {
    NEEDS_HWLOC();
    const auto t = topology(kMachine);
    ASSERT_NE(t, nullptr);
    const std::vector<Exit> exits(4);
    // The last rank has most: it costs least to let it gather. The slowest on its way to it is another one of its NUMA node, not of
    // its cache.
    std::vector<Contribution> heavy;
    for (std::uint32_t rank = 0; rank < 16; ++rank)
        heavy.push_back({rank, rank, rank == 15 ? 5e6F : rank >= 12 ? 4e6F : rank >= 8 ? 3e6F : 1e6F});
    const auto one = elect_one(*t, heavy);
    EXPECT_EQ(one.rank, 15U);
    EXPECT_EQ(one.cost.gather, 1e-7F * 2.0F + 4e6F / 25e9F);
    // Only ranks of a NUMA node each: the aggregator is one of them, and no link between packages is used.
    std::vector<std::vector<Contribution>> quarters(4);
    for (std::uint32_t rank = 0; rank < 16; ++rank)
        quarters[3 - rank / 4].push_back({rank, rank, rank % 4 == 2 ? 2e6F : 1e6F});
    const auto four = elect(*t, Placement::cost, quarters, exits, 0);
    for (std::uint32_t p = 0; p < 4; ++p)
        EXPECT_EQ(four[p].rank, (3 - p) * 4 + 2) << p;  // its own two megabytes need not move
    // Node-aware, it is the same as long as one rank has most.
    const auto flat = topology("flat:1");
    for (Contribution& c : heavy)
        c.node = 0;
    EXPECT_EQ(elect_one(*flat, heavy).rank, 15U);
    // A light rank beside many of another package: hwloc lets the package with most ranks gather, the flat model the lowest rank.
    std::vector<Contribution> apart;
    for (std::uint32_t rank = 0; rank < 8; ++rank)
        apart.push_back({rank, rank == 0 ? 0 : 8 + rank, rank == 0 ? 1e5F : 1e6F});
    const auto near = elect_one(*t, apart);
    EXPECT_EQ(t->inner_place(apart[near.rank].node).parts[0], 1U);
    for (Contribution& c : apart)
        c.node = 0;
    EXPECT_EQ(elect_one(*flat, apart).rank, 0U);
}

// Aggregators go to hosts in turns before they go to a second core of one.
TEST(Hwloc, HostsTakeTurnsBeforeCores) {
    NEEDS_HWLOC();
    const auto t = topology(std::string(kMachine) + ",hosts=4");
    std::vector<Contribution> all;
    for (std::uint32_t rank = 0; rank < 64; ++rank)
        all.push_back({rank, rank, 1e6F});
    for (const Placement placement : {Placement::cost, Placement::rank, Placement::random}) {
        const auto elected =
            elect(*t, placement, std::vector<std::vector<Contribution>>(8, all), std::vector<Exit>(8), 3);
        std::vector<int> of_host(4, 0);
        for (const Election& e : elected)
            ++of_host[t->host_of(e.rank)];
        EXPECT_EQ(of_host, (std::vector<int>{2, 2, 2, 2})) << placement_name(placement);
    }
}

// Ranks that may be anywhere are elected as without hwloc.
TEST(Hwloc, UnboundRanksAreAsOnPlainNodes) {
    std::mt19937_64 random(test_seed(5));
    for (int round = 0; round < 100; ++round) {
        const std::uint32_t hosts = 1 + static_cast<std::uint32_t>(random() % 5);
        const auto flat = topology("flat:" + std::to_string(hosts) + ",latency=0");
        std::vector<HostPlace> places;
        for (std::uint32_t k = 0; k < hosts; ++k)
            places.push_back({k, {}});
        const auto made = make_places(flat, places, {}, "unbound");
        ASSERT_TRUE(made.ok());
        std::vector<std::vector<Contribution>> partitions(1 + random() % 6);
        for (auto& partition : partitions) {
            for (std::uint32_t rank = 0; rank < 12; ++rank)
                partition.push_back({rank, rank % hosts, static_cast<float>(random() % 1'000'000)});
        }
        const std::vector<Exit> exits(partitions.size());
        const auto plain = elect(*flat, Placement::cost, partitions, exits, 0);
        const auto inner = elect(**made, Placement::cost, partitions, exits, 0);
        for (std::size_t p = 0; p < partitions.size(); ++p) {
            ASSERT_EQ(plain[p].rank, inner[p].rank);
            ASSERT_EQ(plain[p].cost.total(), inner[p].cost.total());
        }
    }
}

TEST(Hwloc, MachinesThatLackLevels) {
    NEEDS_HWLOC();
    const auto cores = ask_hwloc(*parse_hwloc("hwloc:synthetic:core:3 pu:2"))->cores;
    ASSERT_EQ(cores.size(), 3U);
    for (std::uint32_t k = 0; k < 3; ++k) {
        EXPECT_EQ(cores[k].parts[2], kAny);  // no L3
        EXPECT_EQ(cores[k].parts[3], k);
    }
    const auto units = ask_hwloc(*parse_hwloc("hwloc:synthetic:pack:2 pu:2"))->cores;  // no cores: units
    EXPECT_EQ(units.size(), 4U);
    // The number-th process is on the number-th core, and round again.
    const auto d = *parse_hwloc(kMachine);
    EXPECT_EQ(place_of_process(d, 5)->parts[3], 5U);
    EXPECT_EQ(place_of_process(d, 16 + 5)->parts[3], 5U);
    EXPECT_EQ(place_words(*place_of_process(d, 13)), "package 1, NUMA node 3, L3 6, core 13");
    EXPECT_EQ(place_words({}), "anywhere");
    const auto wrong = ask_hwloc(*parse_hwloc("hwloc:synthetic:no such thing"));
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(ask_hwloc(*parse_hwloc("hwloc:xml:/no/such/file")).ok());
}

// A host that was exported to a file is that host.
TEST(Hwloc, Xml) {
    NEEDS_HWLOC();
    void* const library = ::dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) GTEST_SKIP() << "libhwloc.so.15 is not installed";
    const auto call = [&](const char* name) { return ::dlsym(library, name); };
    void* machine = nullptr;
    ASSERT_EQ(reinterpret_cast<int (*)(void**)>(call("hwloc_topology_init"))(&machine), 0);
    ASSERT_EQ(reinterpret_cast<int (*)(void*, const char*)>(call("hwloc_topology_set_synthetic"))(
                  machine, std::string(kMachine).substr(16).c_str()),
              0);
    ASSERT_EQ(reinterpret_cast<int (*)(void*)>(call("hwloc_topology_load"))(machine), 0);
    const std::string path = ::testing::TempDir() + "twinrun-hwloc-" + std::to_string(::getpid()) + ".xml";
    ASSERT_EQ(reinterpret_cast<int (*)(void*, const char*, unsigned long)>(call("hwloc_topology_export_xml"))(
                  machine, path.c_str(), 0),
              0);
    reinterpret_cast<void (*)(void*)>(call("hwloc_topology_destroy"))(machine);
    const auto from_file = ask_hwloc(*parse_hwloc("hwloc:xml:" + path));
    std::remove(path.c_str());
    ASSERT_TRUE(from_file.ok()) << from_file.error().message;
    EXPECT_EQ(from_file->cores, ask_hwloc(*parse_hwloc(kMachine))->cores);
}

// The machine that the tests run on: whatever it is, this process is somewhere in it.
TEST(Hwloc, ThisHost) {
    NEEDS_HWLOC();
    const auto host = ask_hwloc(*parse_hwloc("hwloc"));
    ASSERT_TRUE(host.ok()) << host.error().message;
    ASSERT_FALSE(host->cores.empty());
    const auto t = topology("hwloc,hosts=2");
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->nodes(), 2 * host->cores.size());
    for (std::size_t level = 0; level < InnerPlace::kLevels; ++level) {
        if (host->own.parts[level] == kAny) continue;
        bool found = false;
        for (const InnerPlace& core : host->cores)
            found = found || core.parts[level] == host->own.parts[level];
        EXPECT_TRUE(found) << level;
    }
}

TEST(Places, Refuses) {
    const auto flat = topology("flat:2");
    EXPECT_FALSE(make_places(flat, {}, {}, "").ok());
    EXPECT_FALSE(make_places(flat, {{2, {}}}, {}, "").ok());
    for (const float rate : {0.0F, -1.0F, std::numeric_limits<float>::infinity()}) {
        PlaceBandwidths b;
        b.numa = rate;
        EXPECT_FALSE(make_places(flat, {{0, {}}}, b, "").ok());
        b = {};
        b.cache = rate;
        EXPECT_FALSE(make_places(flat, {{0, {}}}, b, "").ok());
    }
}

}  // namespace
}  // namespace twinrun
