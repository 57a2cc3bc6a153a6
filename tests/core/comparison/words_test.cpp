#include "comparison/words.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twinrun {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

TEST(Words, TolerancesAreWrittenAsRules) {
    EXPECT_EQ(tolerance_text({0, 0}, {}), "0");
    EXPECT_EQ(tolerance_text({1e-9, 0}, {}), "1e-09");
    EXPECT_EQ(tolerance_text({1e-9, 0.5}, {}), "1e-09 + 0.5 |a|");
    EXPECT_EQ(tolerance_text({0, 0.5}, 0), "0.5 |a|");
    EXPECT_EQ(tolerance_text({0, 0}, 4), "4 ulp");
    EXPECT_EQ(tolerance_text({1e-9, 0.5}, 4), "4 ulp or 1e-09 + 0.5 |a|");
    EXPECT_EQ(tolerance_text({1234567, 0}, {}), "1.23457e+06");
}

TEST(Words, ValuesHaveTheDigitsInWhichTheyDiffer) {
    EXPECT_EQ(values_text(0.46675381, 0.46674362, 1.019e-5), "0.4667538 against 0.4667436");
    EXPECT_EQ(values_text(1, 2, 1), "1 against 2");
    EXPECT_EQ(values_text(0.1, std::nextafter(0.1, 1), 1e-17),
              "0.10000000000000001 against 0.10000000000000002");
    EXPECT_EQ(values_text(kNaN, 1, kInfinite), "nan against 1");
    EXPECT_EQ(values_text(-kInfinite, 0.123456, kInfinite), "-inf against 0.123");
    EXPECT_EQ(values_text(0, 0, 0), "0 against 0");
}

TEST(Words, DifferencesHaveTheDigitsInWhichTheyPassWhatIsAllowed) {
    EXPECT_EQ(distance_text(0.1234, "1e-09"), "0.123");
    EXPECT_EQ(distance_text(1.00001e-9, "1e-09"), "1.00001e-09");
    EXPECT_EQ(distance_text(std::nextafter(0.5, 1), "0.5"), "0.5000000000000001");
    EXPECT_EQ(distance_text(1e-9, "1e-09"), "1.0000000000000001e-09");
    EXPECT_EQ(distance_text(0.123366, "0.12336"), "0.1234");
    EXPECT_EQ(distance_text(0.123366, "0.12336 + 0.5 |a|"), "0.123");
    EXPECT_EQ(distance_text(0.5, "0.5"), "0.5");  // as nothing is that has passed it
    EXPECT_EQ(distance_text(kInfinite, "0.5"), "inf");
    EXPECT_EQ(distance_text(kNaN, "0.5"), "nan");
}

TEST(Words, ExceededTolerancesHaveTheDigitsInWhichTheyAreLess) {
    const double below = std::nextafter(0.5, 0);
    EXPECT_EQ(exceeded_text({below, 0}, {}, 0.5), "0.4999999999999999");
    EXPECT_EQ(exceeded_text({below, 0}, 4, 0.5), "4 ulp or 0.4999999999999999");
    EXPECT_EQ(exceeded_text({0.49999998, 0}, {}, 0.49999999), "0.49999998");
    EXPECT_EQ(exceeded_text({below, 0}, {}, 0.6), "0.5");
    EXPECT_EQ(exceeded_text({1234567, 0}, {}, 2e6), "1.23457e+06");
    EXPECT_EQ(exceeded_text({1e-9, 0}, {}, 1e-9), "1e-09");  // rounded to what it exceeds
    EXPECT_EQ(exceeded_text({below, 0.5}, {}, 0.5), "0.5 + 0.5 |a|");
    EXPECT_EQ(exceeded_text({0, 0}, {}, 5e-324), "0");
    EXPECT_EQ(exceeded_text({below, 0}, {}, kNaN), "0.5");
}

TEST(Words, SeveralThingsHaveAPlural) {
    const std::vector<std::string> words = {"3", "5"};
    EXPECT_EQ(named("step", std::span(words).first(1)), "step 3");
    EXPECT_EQ(named("step", words), "steps 3, 5");
}

TEST(Words, DatesAreDatesOfTheCalendar) {
    EXPECT_EQ(time_text(18661, "M8[D]"), "2021-02-03");
    EXPECT_EQ(time_text(-1, "M8[ns]"), "1969-12-31T23:59:59.999999999");
    EXPECT_EQ(time_text(-719529, "M8[D]"), "-001-12-31");
    EXPECT_EQ(time_text(2, "M8[25s]"), "1970-01-01T00:00:50");
    EXPECT_EQ(time_text(std::numeric_limits<std::int64_t>::min(), "m8[D]"), "NaT");
    EXPECT_EQ(time_text(-3, "m8[25ms]"), "-75 ms");
    EXPECT_EQ(time_text(5, "no unit"), "5");
    EXPECT_EQ(span_text(3, "M8[D]"), "3 days");
    EXPECT_EQ(span_text(1, "m8[h]"), "1 hour");
    EXPECT_EQ(span_text(~std::uint64_t{0}, "m8[W]"), "18446744073709551615 weeks");
}

TEST(Words, DistancesInUlpAreThoseOfTheType) {
    EXPECT_EQ(ulps_text(DType::f64, 1, 1 + 0x1p-51), " (2 ulp)");
    EXPECT_EQ(ulps_text(DType::f32, 1, 1 + 0x1p-22), " (2 ulp)");
    EXPECT_EQ(ulps_text(DType::f64, -5e-324, 5e-324), " (2 ulp)");
}

TEST(Words, SharesThatSayNothingAreLeftOut) {
    EXPECT_EQ(percent_text(1.5, 0.1), " (6.7%)");
    EXPECT_EQ(percent_text(-2, 5), " (250%)");
    EXPECT_EQ(percent_text(1, 10), "");  // ten times as large
    EXPECT_EQ(percent_text(0, 1), "");
    EXPECT_EQ(percent_text(1, 0), "");
    EXPECT_EQ(percent_text(kNaN, 1), "");
    EXPECT_EQ(percent_text(kInfinite, 1), "");
}

TEST(Words, ProofsSayWhatWasRead) {
    EXPECT_EQ(proof_text(7, 7), "");
    EXPECT_EQ(proof_text(0, 0), "");
    EXPECT_EQ(proof_text(0, 7), "; metadata proves it, no element was read");
    EXPECT_EQ(proof_text(1, 8), "; 12.5% of them were read, metadata proves the rest");
}

TEST(Words, NoToleranceAppliesToTextsMasksAndShapes) {
    EXPECT_TRUE(never_tolerated("x@text"));
    EXPECT_TRUE(never_tolerated("@mask"));
    EXPECT_TRUE(never_tolerated("a@text@shape"));
    EXPECT_FALSE(never_tolerated("x@text#"));
    EXPECT_FALSE(never_tolerated("text"));
    for (const char* name : {"m@indices", "m@plain", "m@compressed", "T@index", "T@index.0", "T@coords.x",
                             "@coords.x", "x@categories", "x@attrs.a.b", "x@metadata.k"})
        EXPECT_TRUE(never_tolerated(name)) << name;
    for (const char* name : {"m.indices", "T@indexed", "T@coordsx", "x@fill", "@", "", "x@attrs.a@unit"})
        EXPECT_FALSE(never_tolerated(name)) << name;
}

}  // namespace
}  // namespace twinrun
