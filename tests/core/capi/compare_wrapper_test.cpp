// Comparison through the C++ wrapper: owners, types and exceptions.
#include <filesystem>
#include <twinrun/compare.hpp>

#include "core/capi/support.hpp"

namespace twinrun {
namespace {

class CompareWrapperTest : public testing::CapiTest {
   protected:
    std::string capture(const std::string& name, double by) {
        std::vector<float> x(100, 1.0F);
        x[42] += static_cast<float>(by);
        twr::Run run(path(name), twr::Settings{{"atol", "1e-3"}});
        run.protect("x", x);
        run.capture(1);
        run.close();
        return path(name);
    }
};

TEST_F(CompareWrapperTest, Histories) {
    const std::string a = capture("a", 0);
    const std::string b = capture("b", 0.5);
    EXPECT_TRUE(twr::compare(a, a).same());
    twr::Comparison found = twr::compare(a, b);
    EXPECT_EQ(found.verdict(), twr::Verdict::different);
    ASSERT_TRUE(found.first().has_value());
    EXPECT_EQ(found.first()->first_index[0], 42U);
    EXPECT_EQ(found.first()->first_b.of.real, 1.5);
    EXPECT_NE(found.verdict_line().find("x[42]"), std::string::npos);
    EXPECT_NE(found.json().find("\"first_divergence\""), std::string::npos);
    EXPECT_TRUE(found.problems().empty());
    twr::CompareOptions options;
    options.atol = 1;
    found = twr::compare(a, b, options);
    EXPECT_TRUE(found.same());
    EXPECT_FALSE(found.first().has_value());
    options.direct = true;
    EXPECT_EQ(twr::compare(a, b, options).field(0).elements_read, 100U);
}

TEST_F(CompareWrapperTest, ErrorsAreExceptions) {
    const std::string a = capture("a", 0);
    try {
        static_cast<void>(twr::compare(a, path("none")));
        FAIL();
    } catch (const twr::Error& error) {
        EXPECT_EQ(error.code(), TWR_ERROR_NOT_FOUND);
        EXPECT_NE(std::string(error.what()).find("none"), std::string::npos);
    }
    // -1 is TWR_AS_CAPTURED in C.
    for (const double value : {-1.0, -2.0}) {
        twr::CompareOptions options;
        options.rtol = value;
        EXPECT_THROW(static_cast<void>(twr::compare(a, a, options)), twr::Error);
    }
    twr::CompareOptions options;
    options.ulps = -1;
    EXPECT_THROW(static_cast<void>(twr::compare(a, a, options)), twr::Error);
    // Cut at the zero byte it would name the history.
    EXPECT_THROW(static_cast<void>(twr::compare(a, a + std::string("\0x", 2))), twr::Error);
    EXPECT_THROW(twr::Run(path("b") + std::string("\0x", 2)), twr::Error);
    EXPECT_FALSE(std::filesystem::exists(path("b")));
    EXPECT_THROW(static_cast<void>(twr::compare(a, a).field(1)), twr::Error);
}

TEST_F(CompareWrapperTest, Arrays) {
    std::vector<double> x = {1, 2, 3, 4};
    const std::vector<double> y = {1, 2, 3, 5};
    const int n[3] = {1, 2, 3};
    twr::Arrays a;
    twr::Arrays b;
    a.add("x", x);
    a.add("n", n);
    b.add("n", n);
    b.add("x", y.data(), {4});
    const twr::Comparison found = twr::compare(a, b);
    EXPECT_EQ(found.verdict(), twr::Verdict::different);
    EXPECT_EQ(found.first()->first_index[0], 3U);
    EXPECT_EQ(found.first()->step, TWR_NO_STEP);
    twr::ArrayOptions loose;
    loose.atol = 2;
    twr::Arrays c;
    c.add("x", x, loose);
    twr::Arrays d;
    d.add("x", y);
    EXPECT_TRUE(twr::compare(c, d).same());
    const twr::Comparison part = twr::compare(a, d);
    EXPECT_EQ(part.verdict(), twr::Verdict::incomparable);
    ASSERT_EQ(part.problems().size(), 1U);
    EXPECT_NE(part.problems()[0].find("'n'"), std::string::npos);
    EXPECT_THROW(static_cast<void>(twr::compare(twr::Arrays(), d)), twr::Error);
}

TEST_F(CompareWrapperTest, AStep) {
    const std::string reference = capture("reference", 0);
    std::vector<float> x(100, 1.0F);
    twr::Run run(path("run"), twr::Settings{{"atol", "1e-3"}, {"reference", reference}});
    run.protect("x", x);
    run.capture(1);
    EXPECT_TRUE(twr::compare_step(run).same());
    EXPECT_TRUE(twr::compare_step(run, path("reference")).same());
    EXPECT_THROW(static_cast<void>(twr::compare_step(run, path("none"))), twr::Error);
    run.close();
}

}  // namespace
}  // namespace twinrun
