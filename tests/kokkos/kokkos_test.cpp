// twr::protect of Kokkos views: layouts, ranks, types and spaces.
#include <cstdlib>
#include <filesystem>
#include <twinrun/kokkos.hpp>

#include "core/capi/support.hpp"

namespace twinrun {
namespace {

// Kokkos lives as long as the program's tests.
class KokkosEnvironment : public ::testing::Environment {
   public:
    void SetUp() override { Kokkos::initialize(); }
    void TearDown() override { Kokkos::finalize(); }
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new KokkosEnvironment);

using KokkosTest = testing::CapiTest;

template <class View>
void fill(const View& view, double from) {
    const auto on_host = Kokkos::create_mirror_view(view);
    double next = from;
    for (std::size_t i = 0; i < view.extent(0); ++i) {
        for (std::size_t j = 0; j < view.extent(1); ++j)
            on_host(i, j) = next++;
    }
    Kokkos::deep_copy(view, on_host);
}
template <class View>
void expect(const View& view, double from) {
    const auto on_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    double next = from;
    for (std::size_t i = 0; i < view.extent(0); ++i) {
        for (std::size_t j = 0; j < view.extent(1); ++j)
            EXPECT_EQ(on_host(i, j), next++) << view.label();
    }
}

TEST_F(KokkosTest, EveryLayoutComesBack) {
    const Kokkos::View<double**> natural("natural", 7, 5);
    const Kokkos::View<double**, Kokkos::LayoutLeft> left("left", 7, 5);
    const Kokkos::View<double**, Kokkos::LayoutRight> right("right", 7, 5);
    const Kokkos::View<double**, Kokkos::LayoutStride> strided("strided", Kokkos::LayoutStride(7, 11, 5, 77));
    const Kokkos::View<double**, Kokkos::LayoutLeft> whole("whole", 9, 9);
    const auto part = Kokkos::subview(whole, std::make_pair(1, 8), std::make_pair(2, 7));
    const Kokkos::View<double[7][5]> fixed("fixed");
    fill(whole, 1000);
    fill(part, 0);

    twr::Run run(path("run"));
    const auto all = [&](auto&& each) {
        each(natural, 100.0);
        each(left, 200.0);
        each(right, 300.0);
        each(strided, 400.0);
        each(fixed, 500.0);
    };
    all([&](const auto& view, double from) {
        fill(view, from);
        twr::protect(run, view);
    });
    twr::protect(run, "part", part);
    run.capture(1);
    run.wait();
    EXPECT_EQ(run.stored_bytes(1, "natural"), 280U);
    EXPECT_EQ(run.stored_bytes(1, "part"), 280U);
    all([&](const auto& view, double) { Kokkos::deep_copy(view, -1.0); });
    Kokkos::deep_copy(whole, -1.0);
    run.restore(1);
    all([&](const auto& view, double from) { expect(view, from); });
    expect(part, 0);
    const auto on_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), whole);
    EXPECT_EQ(on_host(0, 0), -1.0);  // around the part
    EXPECT_EQ(on_host(8, 8), -1.0);
}

TEST_F(KokkosTest, RanksAndTypes) {
    const Kokkos::View<int> none("none");
    const Kokkos::View<float*> one("one", 3);
    const Kokkos::View<Kokkos::complex<double>***> three("three", 2, 3, 4);
    const Kokkos::View<char*******> seven("seven", 1, 2, 1, 2, 1, 2, 3);
    const Kokkos::View<unsigned*, Kokkos::HostSpace> host("host", 4);
    twr::Run run(path("run"));
    twr::protect(run, none);
    twr::protect(run, one);
    twr::protect(run, three);
    twr::protect(run, seven);
    twr::protect(run, host);
    Kokkos::deep_copy(none, 7);
    Kokkos::deep_copy(three, Kokkos::complex<double>(1, 2));
    run.capture(1);
    run.wait();
    EXPECT_EQ(run.stored_bytes(1, "none"), 4U);
    EXPECT_EQ(run.stored_bytes(1, "one"), 12U);
    EXPECT_EQ(run.stored_bytes(1, "three"), 24U * 16);
    EXPECT_EQ(run.stored_bytes(1, "seven"), 24U);
    EXPECT_EQ(run.stored_bytes(1, "host"), 16U);
    Kokkos::deep_copy(none, 0);
    Kokkos::deep_copy(three, Kokkos::complex<double>());
    run.restore(1);
    int value = 0;
    Kokkos::deep_copy(value, none);
    EXPECT_EQ(value, 7);
    EXPECT_EQ(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), three)(1, 2, 3),
              Kokkos::complex<double>(1, 2));
}

// A LayoutLeft view (a GPU's) against a LayoutRight one (a CPU's).
TEST_F(KokkosTest, LayoutsCompareWhereTheOrderIsChosen) {
    const Kokkos::View<double**, Kokkos::LayoutLeft> left("x", 40, 50);
    const Kokkos::View<double**, Kokkos::LayoutRight> right("x", 40, 50);
    fill(left, 0);
    fill(right, 0);
    {
        twr::Run run(path("right"), twr::Settings{{"atol", "1e-9"}});
        twr::protect(run, right);
        run.capture(1);
        run.close();
    }
    const auto against = [&] {
        return twr::Settings{{"atol", "1e-9"}, {"reference", path("right")}, {"stop_on_divergence", "true"}};
    };
    twr::Run alike(path("alike"), against());
    twr::ArrayOptions rows;
    rows.order = twr::Order::row_major;
    twr::protect(alike, "x", left, rows);
    EXPECT_NO_THROW(alike.capture(1));
    twr::Run unlike(path("unlike"), against());
    twr::protect(unlike, left);
    EXPECT_THROW(unlike.capture(1), twr::Diverged);
}

// Rank one has one order, whatever the layout.
TEST_F(KokkosTest, VectorsOfAnyLayoutCompare) {
    const Kokkos::View<double*, Kokkos::LayoutLeft> left("x", 2000);
    const Kokkos::View<double*, Kokkos::LayoutRight> right("x", 2000);
    {
        twr::Run run(path("right"), twr::Settings{{"atol", "1e-9"}});
        twr::protect(run, right);
        run.capture(1);
    }
    twr::Run run(
        path("left"),
        twr::Settings{{"atol", "1e-9"}, {"reference", path("right")}, {"stop_on_divergence", "true"}});
    twr::protect(run, left);
    EXPECT_NO_THROW(run.capture(1));
}

}  // namespace
}  // namespace twinrun
