#include "aggregate/topology/slurm.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "support/seed.hpp"

namespace twinrun {
namespace {

using Names = std::vector<std::string>;

Names expanded(std::string_view list) {
    const auto found = expand_hostlist(list);
    EXPECT_TRUE(found.ok()) << list << ": " << (found.ok() ? "" : found.error().message);
    return found.ok() ? *found : Names{};
}

TEST(Hostlist, Expands) {
    EXPECT_EQ(expanded(""), Names{});
    EXPECT_EQ(expanded("login"), Names{"login"});
    EXPECT_EQ(expanded("n[0-3,7],m1"), (Names{"n0", "n1", "n2", "n3", "n7", "m1"}));
    EXPECT_EQ(expanded("n[08-11]"), (Names{"n08", "n09", "n10", "n11"}));
    EXPECT_EQ(expanded("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
    EXPECT_EQ(expanded("r[0-1]n[1-2]-ib"), (Names{"r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib"}));
    EXPECT_EQ(expanded("a.b-c_d"), Names{"a.b-c_d"});
    EXPECT_EQ(expanded("[1-2]"), (Names{"1", "2"}));
}

TEST(Hostlist, ThatIsNoneIsRefused) {
    for (const char* list : {"n[",
                             "n[0",
                             "n[0-",
                             "n[]",
                             "n[-1]",
                             "n[3-1]",
                             "n[a]",
                             "n[0-1",
                             "n]",
                             "n[0,]",
                             "n[[0]]",
                             ",",
                             "a,",
                             "a,,b",
                             "n[1-2-3]",
                             "n[0-9999999999]",
                             "n[18446744073709551616]",
                             "a b",
                             "a\tb",
                             "n[0 - 3]",
                             "n[0-99999999]",
                             "n[0-9999][0-9999]",
                             "x[0-999][0-999][0-999]"}) {
        const auto found = expand_hostlist(list);
        ASSERT_FALSE(found.ok()) << list;
        EXPECT_EQ(found.error().code, ErrorCode::invalid_argument);
    }
    EXPECT_FALSE(expand_hostlist(std::string(1000, 'a')).ok());
    EXPECT_FALSE(expand_hostlist("n[0-3]", 3).ok());
    EXPECT_TRUE(expand_hostlist("n[0-2]", 3).ok());
}

TEST(Hostlist, RangesOfRandomNumbersComeBack) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 200; ++round) {
        Names expected;
        std::string list;
        for (std::uint64_t k = 0; k <= random() % 5; ++k) {
            const std::string head = "h" + std::to_string(random() % 3);
            list += (k == 0 ? "" : ",") + head + "[";
            for (std::uint64_t j = 0; j <= random() % 3; ++j) {
                const std::uint64_t first = random() % 200;
                const std::uint64_t last = first + random() % 20;
                list += (j == 0 ? "" : ",") + std::to_string(first) +
                        (last == first ? "" : "-" + std::to_string(last));
                for (std::uint64_t n = first; n <= last; ++n)
                    expected.push_back(head + std::to_string(n));
            }
            list += "]";
        }
        ASSERT_EQ(expanded(list), expected) << list;
    }
}

std::uint32_t number_of(const NamedTopology& named, const std::string& name) {
    for (std::uint32_t k = 0; k < named.names.size(); ++k) {
        if (named.names[k] == name) return k;
    }
    ADD_FAILURE() << "no node " << name;
    return 0;
}

TEST(Scontrol, OfTrees) {
    const auto found = parse_scontrol_topology(
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-1]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[2-3]\n"
        "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=tux4\n"
        "SwitchName=s3 Level=1 LinkSpeed=1 Nodes=tux[0-3] Switches=s[0-1]\n"
        "SwitchName=s4 Level=2 LinkSpeed=1 Nodes=tux[0-4] Switches=s3,s2\n");
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->names, (Names{"tux0", "tux1", "tux2", "tux3", "tux4"}));
    const Topology& t = *found->topology;
    EXPECT_EQ(t.distance(0, 1), 2U);
    EXPECT_EQ(t.distance(0, 2), 4U);
    EXPECT_EQ(t.distance(0, 4), 5U);  // s0, s3, s4, s2
    EXPECT_EQ(t.distance_to_gateway(4, 0), 3U);
    EXPECT_EQ(t.distance_to_gateway(0, 0), 4U);
}

TEST(Scontrol, LinesInAnyOrderAndSwitchesUnderSeveral) {
    const auto found = parse_scontrol_topology(
        "SwitchName=top1 Level=1 LinkSpeed=1 Nodes=a,b Switches=x,y\n\n"
        "  SwitchName=y Level=0 LinkSpeed=1 Nodes=b  \r\n"
        "SwitchName=top2 Level=1 LinkSpeed=1 Nodes=a,b Switches=x,y\n"
        "SwitchName=x Level=0 LinkSpeed=1 Nodes=a");
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->topology->distance(number_of(*found, "a"), number_of(*found, "b")), 4U);
}

TEST(Scontrol, OfBlocks) {
    const auto found = parse_scontrol_topology(
        "BlockName=b1 BlockIndex=0 Nodes=n[01-04] BlockSize=4\n"
        "BlockName=b2 BlockIndex=1 Nodes=n[05-08] BlockSize=4\n"
        "BlockName=b3 BlockIndex=2 Nodes=n[09-12] BlockSize=4\n"
        "AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[01-08] BlockSize=8\n");
    ASSERT_TRUE(found.ok()) << found.error().message;
    const Topology& t = *found->topology;
    EXPECT_EQ(t.nodes(), 12U);
    EXPECT_EQ(t.distance(0, 3), 2U);
    EXPECT_EQ(t.distance(0, 4), 4U);
    EXPECT_EQ(t.distance(0, 8), 5U);
}

TEST(Scontrol, ThatSaysNothingUsefulIsRefused) {
    for (const char* text :
         {"", "\n\n", "No topology information available\n", "SwitchName=s0 Level=0\n",
          "SwitchName= Nodes=a\n", "SwitchName=s0 Switches=s0 Nodes=a\n", "SwitchName=s0 Nodes=a[\n",
          "SwitchName=l Nodes=a\nSwitchName=a Switches=b\nSwitchName=b Switches=a\n",
          "BlockName=b0 Nodes=a\nBlockName=b1 Nodes=a\n"}) {
        const auto found = parse_scontrol_topology(text);
        ASSERT_FALSE(found.ok()) << text;
        EXPECT_EQ(found.error().code, ErrorCode::invalid_argument) << text;
    }
}

TEST(Scontrol, OfTooManyLevels) {
    std::string text = "SwitchName=s0 Nodes=n0\n";
    for (int k = 1; k < 200; ++k)
        text += "SwitchName=s" + std::to_string(k) + " Switches=s" + std::to_string(k - 1) + "\n";
    EXPECT_FALSE(parse_scontrol_topology(text).ok());
}

TEST(Scontrol, BytesOfAnyKindAreAnAnswer) {
    std::mt19937_64 random(test_seed(2));
    const std::string good =
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\nSwitchName=s1 Level=1 Nodes=n[0-1] Switches=s0\n"
        "BlockName=b1 Nodes=n[2-4],m1\nAggregatedBlock=b1 Nodes=n[2-4]\n";
    int accepted = 0;
    for (int round = 0; round < 3000; ++round) {
        std::string text = good;
        for (std::uint64_t k = 0; k <= random() % 4; ++k) {
            const std::size_t at = random() % text.size();
            switch (random() % 3) {
                case 0: text[at] = static_cast<char>(random()); break;
                case 1: text.erase(at, random() % 9); break;
                default: text.insert(at, text.substr(random() % text.size(), random() % 20)); break;
            }
            if (text.empty()) text = "S";
        }
        const auto found = parse_scontrol_topology(text);
        if (!found.ok()) continue;
        ++accepted;
        ASSERT_EQ(found->names.size(), found->topology->nodes());
    }
    EXPECT_GT(accepted, 100);
}

TEST(Addresses, MakeATree) {
    const std::vector<Host> hosts{{"a", "t.l0.a", "switch.switch.node"},
                                  {"b", "t.l0.b", "switch.switch.node"},
                                  {"c", "t.l1.c", "switch.switch.node"},
                                  {"d.site", "t.l1.d.site", "switch.switch.node"},  // a name with a dot
                                  {"e", "u.l0.e", "switch.switch.node"}};  // another switch of that name
    const auto found = parse_slurm_addresses(hosts);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->names, (Names{"a", "b", "c", "d.site", "e"}));
    const Topology& t = *found->topology;
    EXPECT_EQ(t.distance(0, 1), 2U);
    EXPECT_EQ(t.distance(0, 2), 4U);
    EXPECT_EQ(t.distance(2, 3), 2U);
    EXPECT_EQ(t.distance(0, 4), 6U);
}

TEST(Addresses, GiveWhatScontrolGives) {
    const std::vector<Host> hosts{{"a", "top.s0.a", "switch.switch.node"},
                                  {"b", "top.s0.b", "switch.switch.node"},
                                  {"c", "top.s1.c", "switch.switch.node"}};
    const auto addresses = parse_slurm_addresses(hosts);
    const auto scontrol = parse_scontrol_topology(
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=a,b\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=c\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=a,b,c Switches=s0,s1\n");
    ASSERT_TRUE(addresses.ok() && scontrol.ok());
    ASSERT_EQ(addresses->names, scontrol->names);
    for (std::uint32_t from = 0; from < 3; ++from) {
        for (std::uint32_t to = 0; to < 3; ++to)
            EXPECT_EQ(addresses->topology->distance(from, to), scontrol->topology->distance(from, to));
        EXPECT_EQ(addresses->topology->distance_to_gateway(from, 0),
                  scontrol->topology->distance_to_gateway(from, 0));
    }
}

TEST(Addresses, OfDaemonsThatShareAName) {
    const std::vector<Host> hosts{
        {"x", "s0.x", "switch.node"}, {"x", "s1.x", "switch.node"}, {"x", "s0.x", "switch.node"}};
    const auto found = parse_slurm_addresses(hosts);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->topology->nodes(), 3U);
    EXPECT_EQ(found->topology->distance(0, 1), 4U);
    EXPECT_EQ(found->topology->distance(0, 2), 2U);
}

TEST(Addresses, ThatContradictAreRefused) {
    const auto refused = [](std::vector<Host> hosts) { return !parse_slurm_addresses(hosts).ok(); };
    EXPECT_TRUE(refused({}));
    EXPECT_TRUE(refused({{"a", "", "switch.node"}}));
    EXPECT_TRUE(refused({{"a", "s.a", "switch.node"}, {"b", "s.t.b", "switch.switch.node"}}));
    EXPECT_TRUE(refused({{"a", "a", "switch.node"}}));
    EXPECT_TRUE(refused({{"a", "s.", "switch.node"}}));
    EXPECT_TRUE(refused({{"a", std::string(20000, 'a'), "node"}}));
    std::string address;
    std::string pattern;
    for (int k = 0; k < 100; ++k) {
        address += "s.";
        pattern += "switch.";
    }
    EXPECT_TRUE(refused({{"a", address + "a", pattern + "node"}}));
    EXPECT_TRUE(refused({{"a", address + "a", ""}}));
}

// A program called scontrol, first on the PATH while this lives.
class FakeScontrol {
   public:
    explicit FakeScontrol(const std::string& script) : path_(std::getenv("PATH")) {
        folder_ =
            std::filesystem::path(::testing::TempDir()) / ("twinrun_scontrol_" + std::to_string(getpid()));
        std::filesystem::create_directory(folder_);
        const auto program = folder_ / "scontrol";
        std::ofstream(program) << "#!/bin/sh\n" << script;
        std::filesystem::permissions(program, std::filesystem::perms::owner_all);
        setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
    }
    ~FakeScontrol() {
        setenv("PATH", path_.c_str(), 1);
        std::filesystem::remove_all(folder_);
    }

   private:
    std::string path_;
    std::filesystem::path folder_;
};

TEST(Scontrol, IsRun) {
    {
        const FakeScontrol fake("[ \"$*\" = 'show topology' ] && echo 'SwitchName=s0 Nodes=n[0-1]'\n");
        const auto text = run_scontrol();
        ASSERT_TRUE(text.ok()) << text.error().message;
        EXPECT_EQ(*text, "SwitchName=s0 Nodes=n[0-1]\n");
    }
    {
        const FakeScontrol fake("echo 'SwitchName=s0 Nodes=n0'; echo no >&2; exit 1\n");
        EXPECT_FALSE(run_scontrol().ok());
    }
    {
        const FakeScontrol fake("exit 0\n");
        EXPECT_FALSE(run_scontrol().ok());
    }
}

TEST(ThisHost, HasAName) { EXPECT_FALSE(this_host().name.empty()); }

}  // namespace
}  // namespace twinrun
