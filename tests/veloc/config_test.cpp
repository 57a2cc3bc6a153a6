// The configuration file of VELOC: what it means, and that no bytes harm.
#include "veloc/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <twinrun/twinrun.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

namespace {

using namespace twinrun::veloc;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr const char* kLeast = "scratch = /s\nmode = sync\n";

std::string problem(const std::string& text, const Variables& variables = {}) {
    Config config;
    return parse_config(text, "veloc.cfg", variables, config).value_or("");
}

Config good(const std::string& text, const Variables& variables = {}) {
    Config config;
    EXPECT_EQ(parse_config(text, "veloc.cfg", variables, config).value_or(""), "") << text;
    return config;
}

TEST(VelocConfig, AFileAsVelocDocumentsIt) {
    const Config config = good(
        "scratch = /tmp/scratch\n"
        "persistent = /tmp/persistent\n"
        "meta = /tmp/meta\n"
        "mode = async\n"
        "persistent_interval = 0\nec_interval = -1\nwatchdog_interval = 10\n"
        "max_versions = 3\nscratch_versions = 1\nfailure_domain = rack\naxl_type = native\nchksum = true\n"
        "aggregated = false\nthreaded = TRUE\nmax_parallelism = 64\nlog_prefix = /dev/shm\n");
    EXPECT_EQ(config.scratch, "/tmp/scratch");
    EXPECT_EQ(config.persistent, "/tmp/persistent");
    EXPECT_FALSE(config.sync);
    EXPECT_EQ(config.max_versions, 3);
    EXPECT_FALSE(config.digests_only);
    EXPECT_TRUE(config.copy_regions);
    EXPECT_THAT(config.settings, IsEmpty());
    EXPECT_THAT(config.unknown, IsEmpty());
}

TEST(VelocConfig, TheLeast) {
    const Config config = good(kLeast);
    EXPECT_TRUE(config.sync);
    EXPECT_EQ(config.persistent, "");
    EXPECT_EQ(config.max_versions, 0);
    const RegionRule rule = config.rule("default", 5);
    EXPECT_EQ(rule.dtype, TWR_U8);
    EXPECT_EQ(rule.item_bytes, 1U);
    EXPECT_EQ(rule.field, "region-5");
    EXPECT_EQ(rule.atol, 0);  // bytes compare exactly, whatever the run's tolerance
    EXPECT_EQ(rule.rtol, 0);
    EXPECT_EQ(config.rule("default", -5).field, "region--5");
}

TEST(VelocConfig, SyntaxOfIniFiles) {
    const Config config = good(
        "\xef\xbb\xbf; a comment\n"
        "# another\r\n"
        "\n"
        "   \t \n"
        "SCRATCH=/s p;c ; not a comment before a space\r\n"
        "Mode : async   # VELOC reads one word\n"
        "persistent = /p#1\n"
        "max_versions =\n"
        "mine = 3\n"
        "[section] ; \n"
        "scratch = /ignored\n"
        "   and ignored\n"
        "more = nothing",
        {});
    EXPECT_EQ(config.scratch, "/s p;c");
    EXPECT_FALSE(config.sync);
    EXPECT_EQ(config.persistent, "/p#1");
    EXPECT_EQ(config.max_versions, 0);
    EXPECT_THAT(config.unknown, ElementsAre("mine"));
}

TEST(VelocConfig, IntervalsAndVersions) {
    const std::string with = std::string(kLeast) + "persistent = /p\n";
    EXPECT_EQ(good(with + "persistent_interval = -1\n").persistent, "");
    EXPECT_EQ(good(with + "persistent_interval = 60\n").persistent, "/p");
    EXPECT_EQ(good(with + "max_versions = -3\n").max_versions, 0);
    EXPECT_THAT(problem(with + "max_versions = 2 of them\n"),
                HasSubstr("veloc.cfg:4: max_versions is '2 of them'"));
    EXPECT_THAT(problem(with + "max_versions = 99999999999\n"), HasSubstr("whole number"));
    EXPECT_THAT(problem(with + "persistent_interval = soon\n"), HasSubstr("whole number"));
}

TEST(VelocConfig, RegionsHaveTypesTolerancesAndNames) {
    const Config config = good(std::string(kLeast) +
                               "twinrun_atol = 1e-6\ntwinrun_rtol = 1e-3\n"
                               "twinrun_type_1 = F64\n"
                               "twinrun_type_2 = c128\ntwinrun_atol_2 = 0.5\n"
                               "twinrun_type_3 = f32\ntwinrun_rtol_3 = 0\ntwinrun_name_3 = a name\n"
                               "twinrun_type_-4 = i16\n"
                               "twinrun_type_Ocean.1 = f32\n"
                               "twinrun_name_6 = bytes\n");
    EXPECT_THAT(config.settings, ElementsAre(Pair("atol", "1e-6"), Pair("rtol", "1e-3")));
    const RegionRule one = config.rule("default", 1);
    EXPECT_EQ(one.dtype, TWR_F64);
    EXPECT_EQ(one.item_bytes, 8U);
    EXPECT_LT(one.atol, 0);  // the run's
    const RegionRule two = config.rule("default", 2);
    EXPECT_EQ(two.dtype, TWR_C128);
    EXPECT_EQ(two.item_bytes, 16U);
    EXPECT_EQ(two.atol, 0.5);
    EXPECT_EQ(two.rtol, 1e-3);  // not said for the region: the run's
    const RegionRule three = config.rule("default", 3);
    EXPECT_EQ(three.atol, 1e-6);
    EXPECT_EQ(three.rtol, 0);
    EXPECT_EQ(three.field, "a name");
    EXPECT_EQ(config.rule("default", -4).dtype, TWR_I16);
    EXPECT_EQ(config.rule("Ocean", 1).dtype, TWR_F32);
    EXPECT_EQ(config.rule("ocean", 1).dtype, TWR_F64);  // names of checkpoints have a case
    EXPECT_EQ(config.rule("default", 6).dtype, TWR_U8);
    EXPECT_EQ(config.rule("default", 6).field, "bytes");
}

TEST(VelocConfig, EverySettingOfTwinrun) {
    const Config config = good(std::string(kLeast) +
                               "twinrun_mode = digests\ntwinrun_memory = 64MiB\ntwinrun_reference = /r\n"
                               "twinrun_log = /l\ntwinrun_copy_regions = false\n");
    EXPECT_TRUE(config.digests_only);
    EXPECT_EQ(config.reference, "/r");
    EXPECT_EQ(config.log, "/l");
    EXPECT_FALSE(config.copy_regions);
    EXPECT_THAT(config.settings, ElementsAre(Pair("memory", "64MiB"), Pair("mode", "digests")));
    for (const char* taken : {"existing", "replace_steps", "local", "background", "keep_steps"})
        EXPECT_THAT(problem(std::string(kLeast) + "twinrun_" + taken + " = 1\n"),
                    HasSubstr("is not for this file"));
}

TEST(VelocConfig, VariablesGoFirst) {
    const Config config =
        good("scratch = /s\nmode = sync\ntwinrun_atol = 1\n", {{"VELOC_MODE", "async"},
                                                               {"VELOC_PERSISTENT", "/p"},
                                                               {"VELOC_SCRATCH", ""},
                                                               {"VELOC_BIN", "/bin"},
                                                               {"VELOC_UNKNOWN", "1"},
                                                               {"VELOC_TWINRUN_ATOL", "2"},
                                                               {"VELOC_TWINRUN_TYPE_1", "f32"},
                                                               {"OTHER", "3"}});
    EXPECT_FALSE(config.sync);
    EXPECT_EQ(config.scratch, "/s");
    EXPECT_EQ(config.persistent, "/p");
    EXPECT_EQ(config.atol, 2);
    EXPECT_EQ(config.rule("default", 1).dtype, TWR_F32);
    EXPECT_THAT(config.unknown, IsEmpty());
    EXPECT_THAT(problem(kLeast, {{"VELOC_TWINRUN_ATOL", "x"}}),
                HasSubstr("VELOC_TWINRUN_ATOL: 'x' is not a tolerance"));
    Config alone;
    EXPECT_EQ(read_config("", {{"VELOC_SCRATCH", "/s"}, {"VELOC_MODE", "sync"}}, alone), std::nullopt);
    EXPECT_EQ(alone.scratch, "/s");
}

struct Bad {
    std::string text;
    std::string says;
};

TEST(VelocConfig, BadFilesSayWhereAndWhat) {
    const std::string least = kLeast;
    const std::vector<Bad> table = {
        {"", "the key scratch is missing"},
        {"scratch = /s\n", "the key mode is missing"},
        {"mode = sync\n", "the key scratch is missing"},
        {"scratch =\nmode = sync\n", "the key scratch is missing"},
        {"scratch = ; none\nmode = sync\n", "the key scratch is missing"},
        {"[veloc]\nscratch = /s\nmode = sync\n", "the key scratch is missing"},
        {"scratch = /s\nmode = both\n", "veloc.cfg:2: mode is 'both': it must be sync or async"},
        {"scratch = /s\nmode = Sync\n", "it must be sync or async"},
        {least + "nonsense\n", "veloc.cfg:3: 'nonsense' is not of the form"},
        {least + "= 3\n", "is not of the form"},
        {least + "some ; thing = 3\n", "is not of the form"},
        {least + "[open\n", "veloc.cfg:3: a section without its ]"},
        {least + " persistent = /p\n", "veloc.cfg:3: begins with a space"},
        {least + "mode = async\n", "veloc.cfg:3: 'mode' was set to something else above"},
        {least + "MODE = async\n", "was set to something else above"},
        {least + std::string("a = \0\n", 6), "veloc.cfg:3: a zero byte"},
        {least + "daos_pool = a\ndaos_cont = b\n", "DAOS is not supported"},
        {least + "twinrun = 3\n", "keys of twinrun begin with twinrun_"},
        {least + "twinrun-atol = 3\n", "keys of twinrun begin with twinrun_"},
        {least + "[a]\ntwinrun_atol = 3\n", "put it before the first [section]"},
        {least + "twinrun_no_such = 3\n", "no_such"},
        {least + "twinrun_memory = much\n", "memory"},
        {least + "twinrun_atol = -1\n", "'-1' is not a tolerance"},
        {least + "twinrun_atol = nan\n", "'nan' is not a tolerance"},
        {least + "twinrun_atol = 1e-6 or so\n", "is not a tolerance"},
        {least + "twinrun_rtol = inf\n", "'inf' is not a tolerance"},
        {least + "twinrun_copy_regions = perhaps\n", "neither true nor false"},
        {least + "twinrun_type_1 = double\n", "'double' is not a type: f16, bf16, f32, f64"},
        {least + "twinrun_type_ = f64\n", "after twinrun_type_ comes the id of a region"},
        {least + "twinrun_type_x = f64\n", "comes the id of a region"},
        {least + "twinrun_type_01 = f64\n", "comes the id of a region"},
        {least + "twinrun_type_1. = f64\n", "comes the id of a region"},
        {least + "twinrun_type_.1 = f64\n", "comes the id of a region"},
        {least + "twinrun_type_a/b.1 = f64\n", "comes the id of a region"},
        {least + "twinrun_type_99999999999 = f64\n", "comes the id of a region"},
        {least + "twinrun_atol_1 = 0.1\n", "region 1 has a tolerance and no type"},
        {least + "twinrun_atol_a.1 = 0.1\n", "region a.1 has a tolerance and no type"},
        {least + "twinrun_name_1 = x\ntwinrun_name_2 = x\n", "two regions are named 'x'"},
        {least + "twinrun_name_1 = region-2\n", "a name that twinrun gives"},
        {least + "twinrun_name_1 = file\n", "a name that twinrun gives"},
        {least + "twinrun_name_1 = " + std::string(201, 'x') + "\n", "not a name for a field"},
        {std::string((1 << 20) + 1, '\n'), "larger than 1 MiB"},
    };
    for (const Bad& bad : table) {
        const std::string said = problem(bad.text);
        EXPECT_THAT(said, HasSubstr(bad.says)) << bad.text.substr(0, 200);
        EXPECT_EQ(said.find('\n'), std::string::npos) << "more than one line";
        EXPECT_LT(said.size(), 1000U);
    }
}

TEST(VelocConfig, MessagesHaveNothingThatATerminalObeys) {
    const std::string said = problem(std::string(kLeast) + "\x1b[31mred\x07\n");
    EXPECT_THAT(said, HasSubstr("?[31mred?"));
    EXPECT_EQ(said.find('\x1b'), std::string::npos);
}

TEST(VelocConfig, TheLogIsKnownThoughTheRestIsWrong) {
    Config config;
    EXPECT_NE(parse_config("twinrun_log = /l\nnonsense\n", "f", {}, config), std::nullopt);
    EXPECT_EQ(config.log, "/l");
    Config other;
    EXPECT_NE(parse_config("nonsense\n", "f", {{"VELOC_TWINRUN_LOG", "/v"}}, other), std::nullopt);
    EXPECT_EQ(other.log, "/v");
}

TEST(VelocConfig, FilesThatCannotBeRead) {
    Config config;
    EXPECT_THAT(read_config("/no/such/file", {}, config).value_or(""),
                HasSubstr("/no/such/file: cannot be opened"));
    EXPECT_THAT(read_config("/", {}, config).value_or(""), HasSubstr("/: cannot be read"));
    EXPECT_THAT(read_config("/dev/zero", {}, config).value_or(""), HasSubstr("larger than 1 MiB"));
}

TEST(VelocConfig, NamesOfCheckpoints) {
    for (const char* name : {"a", "heat_1.2", "A.", "..a", "0"})
        EXPECT_TRUE(valid_name(name)) << name;
    for (const std::string& name :
         {std::string(), std::string("."), std::string(".."), std::string("a-b"), std::string("a/b"),
          std::string("a b"), std::string("\xc3\xa4"), std::string("a\0b", 3), std::string(128, 'a')})
        EXPECT_FALSE(valid_name(name)) << name;
    EXPECT_TRUE(valid_name(std::string(127, 'a')));
}

// Any bytes: an answer of one line, or a configuration that makes sense.
TEST(VelocConfig, AnyBytes) {
    const std::vector<std::string> words = {"scratch",
                                            "mode",
                                            "sync",
                                            "async",
                                            "persistent",
                                            "max_versions",
                                            "twinrun_",
                                            "twinrun_type_",
                                            "twinrun_atol_",
                                            "1",
                                            "-1",
                                            "f64",
                                            "=",
                                            ":",
                                            " ",
                                            "\n",
                                            "\r\n",
                                            ";",
                                            "#",
                                            "[",
                                            "]",
                                            "\t",
                                            ".",
                                            "/s",
                                            "x",
                                            "twinrun_name_",
                                            "twinrun_atol",
                                            "1e-6",
                                            "\xef\xbb\xbf",
                                            std::string(1, '\0'),
                                            "\xff",
                                            "twinrun_memory",
                                            "16MiB",
                                            "a.1",
                                            kLeast,
                                            "persistent_interval"};
    std::mt19937 random(7);
    int accepted = 0;
    for (int round = 0; round < 20000; ++round) {
        std::string text = round % 2 == 0 ? kLeast : "";
        for (auto count = random() % 24; count > 0; --count)
            text += random() % 8 == 0 ? std::string(1, static_cast<char>(random()))
                                      : words[random() % words.size()];
        Config config;
        const auto said = parse_config(text, "f", {}, config);
        if (said) {
            ASSERT_FALSE(said->empty());
            ASSERT_EQ(said->find('\n'), std::string::npos) << text;
            continue;
        }
        ++accepted;
        ASSERT_FALSE(config.scratch.empty());
        ASSERT_GE(config.max_versions, 0);
        for (const auto& [region, rule] : config.rules) {
            ASSERT_TRUE(rule.dtype != 0 || (rule.atol < 0 && rule.rtol < 0)) << text;
            ASSERT_GE(rule.item_bytes, 1U);
        }
        // The same file says the same.
        Config again;
        ASSERT_EQ(parse_config(text, "f", {}, again), std::nullopt);
        ASSERT_EQ(again.settings, config.settings);
    }
    EXPECT_GT(accepted, 100);
}

}  // namespace
