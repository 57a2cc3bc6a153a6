// Settings by name: values as text, and lines of files.
#include "base/text_settings.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace twinrun {
namespace {

TEST(TextSettings, NumbersAreWholeTexts) {
    EXPECT_EQ(text::number<int>("-12"), -12);
    EXPECT_EQ(text::number<double>("1e-6"), 1e-6);
    for (const char* const wrong : {"", " 1", "1 ", "+1", "1.5", "0x7", "99999999999", "one"})
        EXPECT_EQ(text::number<int>(wrong), std::nullopt) << wrong;
    EXPECT_EQ(text::number<std::uint64_t>("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
    EXPECT_EQ(text::number<std::uint64_t>("-1"), std::nullopt);
}

TEST(TextSettings, SizesHaveUnits) {
    EXPECT_EQ(text::bytes("0"), 0U);
    EXPECT_EQ(text::bytes("1048576"), 1U << 20);
    EXPECT_EQ(text::bytes("64 MiB"), 64U << 20);
    EXPECT_EQ(text::bytes("1.5GiB"), 3ULL << 29);
    EXPECT_EQ(text::bytes("2 KB"), 2000U);
    EXPECT_EQ(text::bytes("281474976710656"), 1ULL << 48);
    for (const char* const wrong : {"", "MiB", "-1", "1 parsec", "1e3", "1..5", "1e20", "9999999999999 TiB"})
        EXPECT_EQ(text::bytes(wrong), std::nullopt) << wrong;
}

TEST(TextSettings, TruthHasFourWords) {
    for (const char* const yes : {"true", "yes", "on", "1"})
        EXPECT_EQ(text::truth(yes), true);
    for (const char* const no : {"false", "no", "off", "0"})
        EXPECT_EQ(text::truth(no), false);
    for (const char* const neither : {"", "True", "2"})
        EXPECT_EQ(text::truth(neither), std::nullopt);
}

TEST(TextSettings, ANumberIsNotCutToItsType) {
    std::uint32_t number = 7;
    EXPECT_FALSE(text::assign_narrow(number, text::bytes("4 GiB")));
    EXPECT_FALSE(text::assign_narrow(number, text::bytes("four")));
    EXPECT_EQ(number, 7U);
    EXPECT_TRUE(text::assign_narrow(number, text::bytes("4294967295")));
    EXPECT_EQ(number, 4294967295U);
}

struct Two {
    int count = 1;
    bool loud = false;
};
constexpr std::array kTwo{
    text::Setting<Two>{
        "count", "0 to 9",
        // Also where the value is refused: nothing of it stays.
        [](Two& two, std::string_view value) { return text::assign(two.count, text::number<int>(value)); },
        [](const Two& two) { return two.count >= 0 && two.count < 10; }},
    text::Setting<Two>{
        "loud", "true or false",
        [](Two& two, std::string_view value) { return text::assign(two.loud, text::truth(value)); }},
};
constexpr std::span<const text::Setting<Two>> kKnown(kTwo);

TEST(TextSettings, ABadValueSetsNothing) {
    Two two;
    const auto refused = text::set(two, kKnown, "count", "10");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.error().message, "setting count = '10': give 0 to 9");
    EXPECT_EQ(two.count, 1);
    ASSERT_TRUE(text::set(two, kKnown, " count\t", " 9 "));
    EXPECT_EQ(two.count, 9);
    const auto unknown = text::set(two, kKnown, "counts", "1");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().message, "no setting of the name 'counts'; there are count, loud");
}

TEST(TextSettings, AFileIsTakenWholeOrNotAtAll) {
    Two two;
    ASSERT_TRUE(text::set_lines(two, kKnown, "# these\r\ncount = 3 # few\n\n  loud=yes", "file"));
    EXPECT_EQ(two.count, 3);
    EXPECT_TRUE(two.loud);
    const auto refused = text::set_lines(two, kKnown, "count = 4\n\nloud = perhaps\n", "file");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "file:3: setting loud = 'perhaps': give true or false");
    EXPECT_EQ(two.count, 3);
    const auto no_line = text::set_lines(two, kKnown, "count\n", "file");
    ASSERT_FALSE(no_line);
    EXPECT_EQ(no_line.error().message, "file:1: not of the form name = value");
    ASSERT_TRUE(text::set_lines(two, kKnown, "", "file"));
}

}  // namespace
}  // namespace twinrun
