// The C++ interface (twinrun.hpp).
#include <array>
#include <complex>
#include <cstddef>
#include <limits>
#include <list>
#include <numeric>
#include <span>
#include <string_view>
#include <twinrun/twinrun.hpp>
#include <type_traits>
#include <vector>

#include "core/capi/support.hpp"
#if __has_include(<mdspan>)
#include <mdspan>
#endif

namespace twinrun {
namespace {

// As much of std::mdspan as the wrapper looks at.
template <class T>
struct View2 {
    T* data = nullptr;
    std::array<int, 2> extents{};
    std::array<int, 2> strides{};
    static constexpr std::size_t rank() noexcept { return 2; }
    [[nodiscard]] int extent(std::size_t r) const { return extents[r]; }
    [[nodiscard]] int stride(std::size_t r) const { return strides[r]; }
    [[nodiscard]] T* data_handle() const { return data; }
    T& at(int i, int j) const { return data[i * strides[0] + j * strides[1]]; }
};

enum class Phase : std::uint16_t { solid, liquid };

static_assert(twr::kVersionNumber == TWINRUN_VERSION_NUMBER);

static_assert(twr::DTypeOf<float>::value == TWR_F32 && twr::DTypeOf<double>::value == TWR_F64);
static_assert(twr::DTypeOf<bool>::value == TWR_BOOL && twr::DTypeOf<std::byte>::value == TWR_U8);
static_assert(twr::DTypeOf<std::int8_t>::value == TWR_I8 && twr::DTypeOf<std::int16_t>::value == TWR_I16);
static_assert(twr::DTypeOf<std::int32_t>::value == TWR_I32 && twr::DTypeOf<std::int64_t>::value == TWR_I64);
static_assert(twr::DTypeOf<std::uint8_t>::value == TWR_U8 && twr::DTypeOf<std::uint16_t>::value == TWR_U16);
static_assert(twr::DTypeOf<std::uint32_t>::value == TWR_U32 && twr::DTypeOf<std::uint64_t>::value == TWR_U64);
static_assert(twr::DTypeOf<long long>::value == TWR_I64 && twr::DTypeOf<unsigned long>::value == TWR_U64);
static_assert(twr::DTypeOf<Phase>::value == TWR_U16);
static_assert(twr::DTypeOf<std::complex<float>>::value == TWR_C64);
static_assert(twr::DTypeOf<std::complex<double>>::value == TWR_C128);
#ifdef __STDCPP_FLOAT16_T__
static_assert(twr::DTypeOf<std::float16_t>::value == TWR_F16);
#endif

template <class T>
concept CanProtect = requires(twr::Run& run, T&& value) {
    run.protect("x", std::forward<T>(value));
};
static_assert(CanProtect<std::vector<double>&> && CanProtect<std::array<int, 3>&> &&
              CanProtect<float (&)[4]>);
static_assert(CanProtect<std::span<double>> && CanProtect<double&> && CanProtect<View2<double>>);
// Elements that would be gone, and what is not in one piece.
static_assert(!CanProtect<std::vector<double>> && !CanProtect<std::array<int, 3>>);
static_assert(!CanProtect<std::list<double>&> && !CanProtect<std::vector<bool>&> && !CanProtect<double*&>);
static_assert(!std::is_copy_constructible_v<twr::Run> && std::is_nothrow_move_constructible_v<twr::Run>);
static_assert(!std::is_copy_constructible_v<twr::Settings> && std::is_nothrow_move_assignable_v<twr::Run>);

class WrapperTest : public testing::CapiTest {
   protected:
    static twr::Settings settings() { return {{"atol", "1e-6"}}; }
};

TEST(Wrapper, HasTheLibrarysVersion) {
    EXPECT_EQ(twr::version(), TWINRUN_VERSION);
    EXPECT_EQ(twr::version_number(), twr::kVersionNumber);
}

TEST_F(WrapperTest, AllThatCanBeProtectedComesBack) {
    std::vector<double> vector = {1, 2, 3};
    std::array<std::int32_t, 2> array = {4, 5};
    float plain[4] = {6, 7, 8, 9};
    std::vector<std::complex<float>> complex = {{1, 2}, {3, 4}};
    double one = 10;
    Phase phase = Phase::liquid;
    std::vector<std::uint8_t> matrix = {1, 2, 3, 4, 5, 6};
    std::vector<double> grid(20);
    std::iota(grid.begin(), grid.end(), 0.0);
    const int rows = 2;
    const int columns = 3;

    twr::Run run(path("run"), settings());
    run.protect("vector", vector);
    run.protect("array", array);
    run.protect("plain", plain);
    run.protect("complex", std::span(complex));
    run.protect("one", one);
    run.protect("phase", phase);
    run.protect("matrix", matrix.data(), {rows, columns});
    run.protect("grid", View2<double>{grid.data() + 1, {3, 2}, {5, 2}});
#ifdef __cpp_lib_mdspan
    std::vector<double> cube(24, 1.5);
    run.protect("mdspan", std::mdspan(cube.data(), 2, 3, 4));
#endif
    run.capture(7);
    run.wait();
    EXPECT_EQ(run.stored_bytes(7, "matrix"), 6U);
    EXPECT_EQ(run.last_report().step, 7);
    EXPECT_EQ(run.report_json().rfind("{\"step\": 7, ", 0), 0U) << run.report_json();

    std::fill(vector.begin(), vector.end(), 0.0);
    array = {};
    std::fill(std::begin(plain), std::end(plain), 0.0F);
    std::fill(complex.begin(), complex.end(), std::complex<float>());
    one = 0;
    phase = Phase::solid;
    std::fill(matrix.begin(), matrix.end(), std::uint8_t{0});
    std::fill(grid.begin(), grid.end(), -1.0);
    run.restore(7);
    EXPECT_EQ(vector, (std::vector<double>{1, 2, 3}));
    EXPECT_EQ(array, (std::array<std::int32_t, 2>{4, 5}));
    EXPECT_EQ(plain[3], 9);
    EXPECT_EQ(complex[1], (std::complex<float>{3, 4}));
    EXPECT_EQ(one, 10);
    EXPECT_EQ(phase, Phase::liquid);
    EXPECT_EQ(matrix, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
    for (std::size_t i = 0; i < grid.size(); ++i) {
        const bool captured = i % 5 == 1 || i % 5 == 3;
        EXPECT_EQ(grid[i], captured && i < 15 ? static_cast<double>(i) : -1.0) << i;
    }
    run.close();
}

TEST_F(WrapperTest, AnArraysOrderIsThatInWhichItLies) {
    using twr::detail::order_of;
    const auto order = [](std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides) {
        return order_of({nullptr, TWR_F64, std::move(shape), std::move(strides)});
    };
    EXPECT_EQ(order({3, 4}, {32, 8}), twr::Order::row_major);
    EXPECT_EQ(order({3, 4}, {8, 24}), twr::Order::column_major);
    EXPECT_EQ(order({3, 4}, {8, 32}), twr::Order::column_major);  // padded
    EXPECT_EQ(order({3, 4}, {-8, -24}), twr::Order::column_major);
    EXPECT_EQ(order({3, 4}, {}), twr::Order::row_major);
    EXPECT_EQ(order({5}, {8}), twr::Order::row_major);
    EXPECT_EQ(order({1, 5}, {400, 8}), twr::Order::row_major);
    EXPECT_EQ(order({2, 3, 4}, {8, 96, 16}), twr::Order::row_major);  // neither
    EXPECT_EQ(order({}, {}), twr::Order::row_major);
}

// One run keeps it as rows, the other as columns; asked to agree, they do.
TEST_F(WrapperTest, TheOrderCanBeChosenSoThatRunsCompare) {
    std::vector<double> values(2000);
    std::iota(values.begin(), values.end(), 0.0);
    View2<double> by_rows{values.data(), {40, 50}, {50, 1}};
    std::vector<double> transposed(2000);
    View2<double> by_columns{transposed.data(), {40, 50}, {1, 40}};
    for (int i = 0; i < 40; ++i) {
        for (int j = 0; j < 50; ++j)
            by_columns.at(i, j) = by_rows.at(i, j);
    }
    twr::Run reference(path("reference"), settings());
    reference.protect("x", by_rows);
    reference.capture(1);
    reference.close();
    for (const bool agree : {true, false}) {
        twr::Run run(path(agree ? "agrees" : "differs"),
                     twr::Settings{
                         {"atol", "1e-6"}, {"reference", path("reference")}, {"stop_on_divergence", "true"}});
        twr::ArrayOptions options;
        if (agree) options.order = twr::Order::row_major;
        run.protect("x", by_columns, options);
        if (agree) {
            EXPECT_NO_THROW(run.capture(1));
        } else {
            EXPECT_THROW(run.capture(1), twr::Diverged);
        }
    }
}

TEST_F(WrapperTest, ErrorsAreExceptions) {
    EXPECT_THROW(twr::Settings().set("nonsense", "1"), twr::Error);
    EXPECT_THROW(twr::Settings().load(path("none")), twr::Error);
    twr::Run run(path("run"), settings());
    try {
        twr::Run again(path("run"), settings());
        ADD_FAILURE() << "no exception";
    } catch (const twr::Error& e) {
        EXPECT_NE(e.code(), TWR_OK);
        EXPECT_NE(std::string_view(e.what()).find(path("run")), std::string_view::npos) << e.what();
    }
    EXPECT_EQ(run.latest(), std::nullopt);
    EXPECT_THROW(run.restore(1), twr::Error);
    EXPECT_THROW(run.unprotect("x"), twr::Error);
    EXPECT_THROW(run.capture(1, {}), twr::Error);
    std::vector<double> x(6);
    twr::ArrayOptions options;
    options.global_shape = {6};
    EXPECT_THROW(run.protect("x", x, options), twr::Error);  // without an offset
    EXPECT_THROW(run.protect("x", twr::Array{x.data(), TWR_F64, {2, 3}, {8}}), twr::Error);
    options.global_offset = {0};
    EXPECT_THROW(run.protect("x", x.data(), {2, 3}, options), twr::Error);
    EXPECT_NO_THROW(run.protect("x", x, options));
    run.close();
    EXPECT_THROW(run.capture(2), twr::Error);
    EXPECT_NO_THROW(run.close());
}

TEST_F(WrapperTest, ALostStepIsAnExceptionOfItsOwn) {
    std::vector<double> x(100'000, 1);
    twr::Run run(path("run"), twr::Settings{{"background", "true"}});
    run.protect("x", x.data(), {x.size()});
    auto limit = std::make_unique<testing::NoLargeFiles>();
    EXPECT_THROW(
        {
            run.capture(1);
            run.wait();
        },
        twr::StepLost);
    limit.reset();
    EXPECT_NO_THROW(run.capture(2));
    EXPECT_EQ((run.wait(), run.latest()), 2);
}

TEST_F(WrapperTest, ARunCanMove) {
    double x = 3;
    twr::Run first(path("first"), settings());
    int waits = 0;
    first.before_access([&] { ++waits; });
    first.protect("x", x);
    twr::Run run = std::move(first);
    EXPECT_THROW(first.capture(1), twr::Error);  // NOLINT(bugprone-use-after-move)
    run.capture(1);
    EXPECT_EQ(waits, 1);
    run = twr::Run(path("second"), settings());
    run.protect("x", x);
    run.capture(2);
    EXPECT_EQ(waits, 1);
    run.close();
    twr::Run again(path("first"), twr::Settings{{"atol", "1e-6"}, {"existing", "append"}});
    EXPECT_EQ(again.latest(), 1);  // what was moved away was closed
}

TEST_F(WrapperTest, CallbacksAreFunctionObjectsAndTheirExceptionsComeBack) {
    std::vector<double> x(1000, 1.0);
    {
        twr::Run reference(path("reference"), settings());
        reference.protect("x", x);
        for (const int step : {1, 2, 3})
            reference.capture(step);
    }
    twr::Run run(path("run"), twr::Settings{{"atol", "1e-6"}, {"reference", path("reference")}});
    run.protect("x", x);
    std::vector<std::string> heard;
    run.on_divergence(
        [&](const twr::Divergence& d) { heard.push_back(d.field + "@" + std::to_string(d.step)); });
    run.capture(1);
    run.wait();
    x[5] = 2;
    run.capture(2);
    run.wait();
    EXPECT_EQ(heard, (std::vector<std::string>{"x@2"}));
    run.on_divergence([](const twr::Divergence&) { throw std::out_of_range("enough"); });
    EXPECT_THROW(
        {
            run.capture(3);
            run.wait();
        },
        std::out_of_range);
    EXPECT_NO_THROW(run.close());
}

}  // namespace
}  // namespace twinrun
