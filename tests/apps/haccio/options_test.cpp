// SPDX-License-Identifier: Apache-2.0
#include "haccio/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "haccio/random.hpp"

namespace haccio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::vector<std::string>& words) {
    try {
        parse_options(words);
    } catch (const BadArgument& error) {
        return error.what();
    }
    return "";
}

TEST(Options, DefaultsAreAnAggregatedWrite) {
    const Options options = parse_options({"f"});
    EXPECT_EQ(options.path, "f");
    ASSERT_EQ(options.methods.size(), 1u);
    EXPECT_EQ(options.methods[0].name, "aggregate");
    EXPECT_TRUE(options.write);
    EXPECT_FALSE(options.read);
    EXPECT_EQ(options.layout, Layout::records);
}

TEST(Options, BothFormsOfAValue) {
    for (const auto& words :
         std::vector<std::vector<std::string>>{{"--particles", "1,2", "--layout", "blocks", "f"},
                                               {"f", "--particles=1,2", "--layout=blocks"}}) {
        const Options options = parse_options(words);
        EXPECT_THAT(options.particles, ElementsAre(1, 2));
        EXPECT_EQ(options.layout, Layout::blocks);
    }
}

TEST(Options, SettingsOfAMethodCountBeforeThoseOfAll) {
    const Options options = parse_options({"--methods", "aggregate,posix", "--method",
                                           "aggregate placement=worst topology=torus:4x4,pset=8",
                                           "--placement", "rank", "--files", "node", "f"});
    ASSERT_EQ(options.methods.size(), 3u);
    EXPECT_EQ(options.methods[0].setting("placement"), "rank");
    EXPECT_EQ(options.methods[1].setting("placement"), std::nullopt);
    EXPECT_EQ(options.methods[2].setting("placement"), "worst");
    EXPECT_EQ(options.methods[2].setting("topology"), "torus:4x4,pset=8");
    EXPECT_EQ(options.methods[2].label, "aggregate placement=worst topology=torus:4x4,pset=8");
    for (const MethodChoice& choice : options.methods)
        EXPECT_EQ(choice.setting("files"), "node");
}

TEST(Options, EveryRefusalNamesWhatItIsAbout) {
    EXPECT_THAT(refusal({}), HasSubstr("file is missing"));
    EXPECT_THAT(refusal({"a", "b"}), HasSubstr("'b'"));
    EXPECT_THAT(refusal({"--wrong", "f"}), HasSubstr("--wrong"));
    EXPECT_THAT(refusal({"-x", "f"}), HasSubstr("-x"));
    EXPECT_THAT(refusal({"f", "--repeat"}), HasSubstr("--repeat needs a value"));
    EXPECT_THAT(refusal({"--verify=yes", "f"}), HasSubstr("--verify takes no value"));
    EXPECT_THAT(refusal({"f", "--keep=1"}), HasSubstr("--keep takes no value"));
    EXPECT_THAT(refusal({"--repeat", "0", "f"}), HasSubstr("'0'"));
    EXPECT_THAT(refusal({"--particles", "5,,6", "f"}), HasSubstr("''"));
    EXPECT_THAT(refusal({"--particles", "-1", "f"}), HasSubstr("'-1'"));
    EXPECT_THAT(refusal({"--skew", "1.5", "f"}), HasSubstr("--skew"));
    EXPECT_THAT(refusal({"--skew", "nan", "f"}), HasSubstr("nan"));
    EXPECT_THAT(refusal({"--layout", "rows", "f"}), HasSubstr("records, blocks, variables"));
    EXPECT_THAT(refusal({"--methods", "posix,magic", "f"}), HasSubstr("'magic'"));
    EXPECT_THAT(refusal({"--methods", "posix,posix", "f"}), HasSubstr("twice"));
    EXPECT_THAT(refusal({"--method", "posix speed=9", "f"}), HasSubstr("'speed'"));
    EXPECT_THAT(refusal({"--method", "aggregate speed=9", "f"}), HasSubstr("'speed'"));
    EXPECT_THAT(refusal({"--method", "aggregate buffers", "f"}), HasSubstr("NAME=VALUE"));
    EXPECT_THAT(refusal({"--method", "aggregate buffers=x", "f"}), HasSubstr("'x'"));
    EXPECT_THAT(refusal({"--method", "posix files=two", "f"}), HasSubstr("'two'"));
    EXPECT_THAT(refusal({"--methods", "posix", "--placement", "rank", "f"}), HasSubstr("--placement"));
    EXPECT_THAT(refusal({"--cold", "f"}), HasSubstr("--cold"));
    EXPECT_THAT(refusal({"--operations", "read", "--methods", "ceiling-write", "f"}),
                HasSubstr("ceiling-write"));
    EXPECT_THAT(refusal({"--operations", "erase", "f"}), HasSubstr("'erase'"));
}

TEST(Options, OfSplit) {
    const SplitOptions options = parse_split_options({"--communicators", "5", "--ways", "group,split,group"});
    EXPECT_EQ(options.communicators, 5u);
    EXPECT_THAT(options.ways, ElementsAre("group", "split"));
    EXPECT_EQ(parse_split_options({}).ways.size(), 4u);
    EXPECT_THROW(parse_split_options({"--ways", "magic"}), BadArgument);
    EXPECT_THROW(parse_split_options({"--communicators", "0"}), BadArgument);
    EXPECT_THROW(parse_split_options({"file"}), BadArgument);
}

TEST(Shuffled, IsAPermutationThatSeedAndRoundDecide) {
    for (std::size_t items = 0; items < 9; ++items) {
        std::vector<std::vector<std::size_t>> orders;
        for (std::uint64_t round = 0; round < 50; ++round) {
            orders.push_back(shuffled(items, 3, round));
            EXPECT_EQ(orders.back(), shuffled(items, 3, round));
            std::vector<std::size_t> sorted = orders.back();
            std::sort(sorted.begin(), sorted.end());
            for (std::size_t i = 0; i < items; ++i)
                EXPECT_EQ(sorted[i], i);
        }
        // Each comes first at times.
        for (std::size_t i = 0; i < items; ++i)
            EXPECT_TRUE(
                std::any_of(orders.begin(), orders.end(), [&](const auto& order) { return order[0] == i; }));
    }
}

}  // namespace
}  // namespace haccio
