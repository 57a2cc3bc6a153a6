// Runs through the C interface: capture, restore, and what they say of it.
#include <algorithm>
#include <climits>
#include <clocale>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <regex>
#include <stdexcept>
#include <vector>

#include "core/capi/support.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

class RunTest : public testing::CapiTest {
   protected:
    // The only file of a run whose name ends so.
    [[nodiscard]] fs::path file(const std::string& run, const std::string& suffix) const {
        fs::path found;
        for (const auto& entry : fs::recursive_directory_iterator(folder_ / run)) {
            if (entry.path().string().ends_with(suffix)) found = entry.path();
        }
        return found;
    }
};

TEST_F(RunTest, EveryDTypeComesBack) {
    struct Type {
        int dtype;
        std::size_t bytes;
    };
    const std::vector<Type> types = {{TWR_F16, 2},  {TWR_BF16, 2}, {TWR_F32, 4},  {TWR_F64, 8},
                                     {TWR_I8, 1},   {TWR_I16, 2},  {TWR_I32, 4},  {TWR_I64, 8},
                                     {TWR_U8, 1},   {TWR_U16, 2},  {TWR_U32, 4},  {TWR_U64, 8},
                                     {TWR_BOOL, 1}, {TWR_C64, 8},  {TWR_C128, 16}};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    std::mt19937 random(1);
    const std::uint64_t shape[] = {3, 50};
    std::vector<std::vector<unsigned char>> arrays;
    for (const Type& type : types) {
        auto& bytes = arrays.emplace_back(150 * type.bytes);
        for (auto& b : bytes)
            b = static_cast<unsigned char>(type.dtype == TWR_BOOL ? random() % 2 : random());
        TWR_EXPECT_OK(
            twr_protect(run, ("a" + std::to_string(type.dtype)).c_str(), bytes.data(), type.dtype, 2, shape));
    }
    const auto expected = arrays;
    TWR_EXPECT_OK(twr_capture(run, -5));  // any number is a step
    for (auto& bytes : arrays)
        std::fill(bytes.begin(), bytes.end(), 0xEE);
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_restore(run, -5));
    EXPECT_EQ(arrays, expected);
    for (const Type& type : types) {
        std::uint64_t bytes = 0;
        TWR_EXPECT_OK(twr_stored_bytes(run, -5, ("a" + std::to_string(type.dtype)).c_str(), &bytes));
        EXPECT_EQ(bytes, 150 * type.bytes);
    }
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, TheLocalPartLeavesAndForeignFilesStay) {
    const fs::path part = folder_ / "local" / "rank-00000";
    fs::create_directories(part / "step-0000000002");
    const std::vector<fs::path> foreign = {folder_ / "local" / "notes", part / "notes",
                                           part / "step-0000000002" / "notes"};
    for (const fs::path& file : foreign)
        std::ofstream(file) << file.string();
    set("local", path("local"));
    std::vector<double> x(100, 1.0);
    const std::uint64_t shape[] = {100};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    for (const std::int64_t step : {1, 2, 3})
        TWR_ASSERT_OK(twr_capture(run, step));
    TWR_ASSERT_OK(twr_wait(run));
    EXPECT_TRUE(fs::exists(part / "manifest.jsonl"));
    // In a folder of ours a file comes that is not: this one stays, and the folder with it.
    std::ofstream(part / "step-0000000003" / "notes") << "late";
    TWR_ASSERT_OK(twr_drop_local(run));
    EXPECT_FALSE(fs::exists(part / "step-0000000001"));
    EXPECT_FALSE(fs::exists(part / "step-0000000002.1"));
    std::fill(x.begin(), x.end(), 0.0);
    TWR_ASSERT_OK(twr_restore(run, 2));
    EXPECT_EQ(x, std::vector<double>(100, 1.0));
    TWR_ASSERT_OK(twr_close(run));
    EXPECT_FALSE(fs::exists(part / "manifest.jsonl"));
    for (const fs::path& file : foreign) {
        std::ifstream stream(file);
        EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), file.string());
    }
    EXPECT_TRUE(fs::exists(part / "step-0000000003" / "notes"));

    // Captured again after it: the part stays, and works.
    set("existing", "append");
    run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_ASSERT_OK(twr_capture(run, 4));
    TWR_ASSERT_OK(twr_drop_local(run));
    TWR_ASSERT_OK(twr_capture(run, 5));
    TWR_ASSERT_OK(twr_close(run));
    EXPECT_TRUE(fs::exists(part / "manifest.jsonl"));
    run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_EXPECT_OK(twr_restore(run, 5));
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, StepsThatAreNowhereElseDoNotLeaveTheLocalTier) {
    set("local", path("local"));
    set("flusher", "none");
    std::vector<double> x(100, 1.0);
    const std::uint64_t shape[] = {100};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_ASSERT_OK(twr_capture(run, 7));
    TWR_EXPECT_ERROR(twr_drop_local(run), TWR_ERROR_INVALID_ARGUMENT, "step 7 is in no other folder");
    TWR_EXPECT_OK(twr_restore(run, 7));
    TWR_ASSERT_OK(twr_close(run));
    EXPECT_TRUE(fs::exists(folder_ / "local" / "rank-00000" / "manifest.jsonl"));
}

// Every third column of every second row, upside down, and once more in the other order: what lies between stays.
TEST_F(RunTest, StridedArraysComeBackToWhereTheyWere) {
    constexpr std::size_t rows = 6;
    constexpr std::size_t columns = 9;
    std::vector<double> grid(rows * columns);
    std::iota(grid.begin(), grid.end(), 0.5);
    const auto before = grid;
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    const std::uint64_t shape[] = {3, 3};
    const std::int64_t strides[] = {-2 * static_cast<std::int64_t>(columns * 8), 3 * 8};
    for (const int order : {TWR_ROW_MAJOR, TWR_COLUMN_MAJOR}) {
        twr_array array = TWR_ARRAY_INIT;
        array.name = order == TWR_ROW_MAJOR ? "rows" : "columns";
        array.data = &grid[4 * columns + (order == TWR_ROW_MAJOR ? 0 : 1)];
        array.order = order;
        array.dimensions = 2;
        array.shape = shape;
        array.strides = strides;
        TWR_EXPECT_OK(twr_protect_array(run, &array));
    }
    TWR_EXPECT_OK(twr_capture(run, 0));
    std::fill(grid.begin(), grid.end(), -1.0);
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_restore(run, 0));
    for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; ++c) {
            const bool captured = r % 2 == 0 && c % 3 != 2;
            EXPECT_EQ(grid[r * columns + c], captured ? before[r * columns + c] : -1.0) << r << " " << c;
        }
    }
    TWR_EXPECT_OK(twr_close(run));
    // The bytes are kept in each array's order.
    std::ifstream data(file("run", ".data"), std::ios::binary);
    std::vector<double> kept(9);
    data.read(reinterpret_cast<char*>(kept.data()), 72);
    const auto at = [&](std::size_t r, std::size_t c) { return before[r * columns + c]; };
    EXPECT_EQ(kept, (std::vector{at(4, 0), at(4, 3), at(4, 6), at(2, 0), at(2, 3), at(2, 6), at(0, 0),
                                 at(0, 3), at(0, 6)}));
    data.seekg(128);  // small fields share a page
    data.read(reinterpret_cast<char*>(kept.data()), 72);
    EXPECT_EQ(kept, (std::vector{at(4, 1), at(2, 1), at(0, 1), at(4, 4), at(2, 4), at(0, 4), at(4, 7),
                                 at(2, 7), at(0, 7)}));
}

TEST_F(RunTest, StridesOfADenseArrayAreThoseOfNone) {
    std::vector<double> x(600, 2.5);
    const std::uint64_t shape[] = {20, 30};
    for (const int order : {TWR_ROW_MAJOR, TWR_COLUMN_MAJOR}) {
        const std::int64_t dense[] = {order == TWR_ROW_MAJOR ? 240 : 8, order == TWR_ROW_MAJOR ? 8 : 160};
        const std::string name = "run" + std::to_string(order);
        twr_run* run = open(name);
        ASSERT_NE(run, nullptr);
        twr_array array = TWR_ARRAY_INIT;
        array.name = "x";
        array.data = x.data();
        array.order = order;
        array.dimensions = 2;
        array.shape = shape;
        for (const std::int64_t* strides : {dense, static_cast<const std::int64_t*>(nullptr)}) {
            std::iota(x.begin(), x.end(), 0.0);
            array.strides = strides;
            TWR_EXPECT_OK(twr_protect_array(run, &array));
            TWR_EXPECT_OK(twr_capture(run, strides == nullptr ? 1 : 0));
        }
        TWR_EXPECT_OK(twr_wait(run));
        for (const std::int64_t step : {0, 1}) {
            std::fill(x.begin(), x.end(), 0.0);
            TWR_EXPECT_OK(twr_restore(run, step));
            for (std::size_t i = 0; i < x.size(); ++i)
                ASSERT_EQ(x[i], static_cast<double>(i));
        }
        TWR_EXPECT_OK(twr_close(run));
    }
}

TEST_F(RunTest, ItemsAreKeptInAscendingOrderOfTheirIds) {
    std::vector<std::int64_t> id = {30, 10, 20};
    std::vector<double> v = {30.1, 30.2, 10.1, 10.2, 20.1, 20.2};
    const std::uint64_t shape[] = {3, 2};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_EXPECT_OK(twr_protect(run, "id", id.data(), TWR_I64, 1, shape));
    twr_array array = TWR_ARRAY_INIT;
    array.name = "v";
    array.data = v.data();
    array.dimensions = 2;
    array.shape = shape;
    array.ids = "id";
    TWR_EXPECT_OK(twr_protect_array(run, &array));
    TWR_EXPECT_OK(twr_capture(run, 0));
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_restore(run, 0));
    EXPECT_EQ(id, (std::vector<std::int64_t>{10, 20, 30}));
    EXPECT_EQ(v, (std::vector{10.1, 10.2, 20.1, 20.2, 30.1, 30.2}));
    array.ids = "none";
    TWR_EXPECT_OK(twr_protect_array(run, &array));  // it may come later
    TWR_EXPECT_ERROR(twr_capture(run, 1), TWR_ERROR_NOT_FOUND, "none");
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, WhatIsProtectedIsCapturedAsItIsThen) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    double x = 1;
    std::vector<float> y = {1, 2, 3};
    std::uint64_t bytes = 0;
    std::uint64_t count = y.size();
    TWR_EXPECT_ERROR(twr_capture(run, 0), TWR_ERROR_INVALID_ARGUMENT, "");  // of nothing
    TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_EXPECT_OK(twr_protect(run, "y", y.data(), TWR_F32, 1, &count));
    TWR_EXPECT_OK(twr_capture(run, 1));
    y.resize(100, 7.0F);  // moved, and grown
    count = y.size();
    TWR_EXPECT_OK(twr_protect(run, "y", y.data(), TWR_F32, 1, &count));
    TWR_EXPECT_OK(twr_capture(run, 2));
    TWR_EXPECT_OK(twr_unprotect(run, "x"));
    TWR_EXPECT_ERROR(twr_unprotect(run, "x"), TWR_ERROR_NOT_FOUND, "x");
    TWR_EXPECT_OK(twr_capture(run, 3));
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_stored_bytes(run, 1, "y", &bytes));
    EXPECT_EQ(bytes, 12U);
    TWR_EXPECT_OK(twr_stored_bytes(run, 2, "y", &bytes));
    EXPECT_EQ(bytes, 400U);
    TWR_EXPECT_OK(twr_stored_bytes(run, 2, "x", &bytes));
    TWR_EXPECT_ERROR(twr_stored_bytes(run, 3, "x", &bytes), TWR_ERROR_NOT_FOUND, "x");
    TWR_EXPECT_ERROR(twr_stored_bytes(run, 4, "y", &bytes), TWR_ERROR_NOT_FOUND, "4");
    TWR_EXPECT_ERROR(twr_restore(run, 1), TWR_ERROR_MISMATCH, "y");
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, SomeOfTheArrays) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    double x = 1;
    double y = 2;
    double z = 3;
    TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_EXPECT_OK(twr_protect(run, "y", &y, TWR_F64, 0, nullptr));
    TWR_EXPECT_OK(twr_protect(run, "z", &z, TWR_F64, 0, nullptr));
    const char* const xy[] = {"x", "y"};
    const char* const just_y[] = {"y"};
    const char* const missing[] = {"x", "w"};
    TWR_EXPECT_ERROR(twr_capture_some(run, 0, missing, 2), TWR_ERROR_NOT_FOUND, "w");
    TWR_EXPECT_OK(twr_capture_some(run, 0, xy, 2));
    TWR_EXPECT_OK(twr_wait(run));
    x = y = z = 0;
    TWR_EXPECT_OK(twr_restore_some(run, 0, just_y, 1));
    EXPECT_EQ(x, 0);
    EXPECT_EQ(y, 2);
    TWR_EXPECT_ERROR(twr_restore(run, 0), TWR_ERROR_NOT_FOUND, "z");
    TWR_EXPECT_ERROR(twr_restore_some(run, 0, missing, 2), TWR_ERROR_NOT_FOUND, "w");
    EXPECT_EQ(z, 0);
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, TheReportIsOfTheLastCapture) {
    set("background", "false");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    twr_report report;
    std::memset(&report, 0x5A, sizeof report);
    report.size = sizeof report;
    TWR_EXPECT_ERROR(twr_last_report(run, &report), TWR_ERROR_NOT_FOUND, "nothing");
    std::vector<double> x(1000, 1.0);
    const std::uint64_t shape[] = {1000};
    TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_EXPECT_OK(twr_capture(run, 4));
    TWR_EXPECT_ERROR(twr_capture(run, 4), TWR_ERROR_INVALID_ARGUMENT, "4");
    TWR_EXPECT_OK(twr_last_report(run, &report));
    EXPECT_EQ(report.size, sizeof report);
    EXPECT_EQ(report.step, 4);
    EXPECT_EQ(report.data_bytes, 8000U);
    EXPECT_GT(report.seconds, 0.0);
    EXPECT_GE(report.seconds, report.waited_seconds);
    EXPECT_EQ(report.diverged, 0);

    // An older caller's is filled as far as it goes, a newer one's has zeros where this version knows nothing.
    std::memset(&report, 0x5A, sizeof report);
    report.size = offsetof(twr_report, data_bytes);
    TWR_EXPECT_OK(twr_last_report(run, &report));
    EXPECT_EQ(report.step, 4);
    EXPECT_EQ(report.data_bytes, 0x5A5A5A5A5A5A5A5AU);
    struct {
        twr_report report;
        std::uint64_t later;
    } newer;
    std::memset(&newer, 0x5A, sizeof newer);
    newer.report.size = sizeof newer;
    TWR_EXPECT_OK(twr_last_report(run, &newer.report));
    EXPECT_EQ(newer.report.data_bytes, 8000U);
    EXPECT_EQ(newer.later, 0U);
    for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{9}, ~std::size_t{0}}) {
        report.size = size;
        TWR_EXPECT_ERROR(twr_last_report(run, &report), TWR_ERROR_INVALID_ARGUMENT, "sizeof(twr_report)");
    }
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, TheReportAsJsonSaysTheSame) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    EXPECT_STREQ(twr_report_json(run), "{}");
    std::vector<double> x(1000, 1.0);
    const std::uint64_t shape[] = {1000};
    TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_EXPECT_OK(twr_capture(run, -4));
    TWR_EXPECT_OK(twr_wait(run));
    twr_report report;
    report.size = sizeof report;
    TWR_EXPECT_OK(twr_last_report(run, &report));
    // A program whose numbers have a comma has none in JSON, if this machine knows such a language.
    const std::string locale = std::setlocale(LC_NUMERIC, nullptr);
    for (const char* const name : {"de_DE.UTF-8", "fr_FR.UTF-8"})
        static_cast<void>(std::setlocale(LC_NUMERIC, name));
    const nlohmann::json json = nlohmann::json::parse(twr_report_json(run));
    std::setlocale(LC_NUMERIC, locale.c_str());
    const nlohmann::json wanted = {{"step", -4},
                                   {"seconds", report.seconds},
                                   {"waited_seconds", report.waited_seconds},
                                   {"data_bytes", 8000},
                                   {"staged_bytes", report.staged_bytes},
                                   {"diverged", false},
                                   {"pending_steps", 0}};
    EXPECT_EQ(json, wanted);
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, AHistoryIsGoneOnWith) {
    double x = 0;
    std::int64_t step = 77;
    for (int part = 0; part < 3; ++part) {
        set("existing", part == 0 ? "refuse" : "append");
        twr_run* run = open("run");
        ASSERT_NE(run, nullptr);
        TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
        if (part == 0) {
            TWR_EXPECT_ERROR(twr_latest(run, INT64_MAX, &step), TWR_ERROR_NOT_FOUND, "run");
            EXPECT_EQ(step, 77);
        } else {
            TWR_EXPECT_OK(twr_latest(run, INT64_MAX, &step));
            EXPECT_EQ(step, 10 * part);
            x = -1;
            TWR_EXPECT_OK(twr_restore(run, step));
            EXPECT_EQ(x, 10 * part);
            EXPECT_EQ(twr_latest(run, 10 * part - 1, &step), part == 1 ? TWR_ERROR_NOT_FOUND : TWR_OK);
            EXPECT_EQ(step, part == 1 ? 10 : 10 * (part - 1));
        }
        x = 10 * (part + 1);
        TWR_EXPECT_OK(twr_capture(run, 10 * (part + 1)));
        TWR_EXPECT_OK(twr_close(run));
    }
    twr_run* run = nullptr;
    set("existing", "refuse");
    EXPECT_NE(twr_open(&run, path("run").c_str(), settings_), TWR_OK);
    EXPECT_NE(std::string(twr_error_message()).find(path("run")), std::string::npos);
    EXPECT_EQ(run, nullptr);
    set("existing", "append");
    set("atol", "0.5");  // other digests
    TWR_EXPECT_ERROR(twr_open(&run, path("run").c_str(), settings_), TWR_ERROR_MISMATCH, path("run"));
    EXPECT_EQ(run, nullptr);
}

// They would become folders of these names.
TEST_F(RunTest, UrlsAreRefused) {
    twr_run* run = nullptr;
    for (const char* url : {"s3://bucket/a", "az://box/a", "s3:/a", "file:///a", "x+y://u:SEC@h/a?SEC"}) {
        TWR_EXPECT_ERROR(twr_open(&run, url, settings_), TWR_ERROR_UNSUPPORTED, "a URL");
        EXPECT_EQ(std::string(twr_error_message()).find("SEC"), std::string::npos) << url;
        EXPECT_EQ(run, nullptr);
    }
    set("local", "s3://bucket/a");
    TWR_EXPECT_ERROR(twr_open(&run, path("run").c_str(), settings_), TWR_ERROR_UNSUPPORTED, "a URL");
    set("local", "");
    TWR_EXPECT_OK(twr_open(&run, path("s3:/a").c_str(), settings_));  // begins with a folder
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(RunTest, StorageThatRefusesIsAnIoError) {
    write("file", "not a folder");
    twr_run* run = nullptr;
    TWR_EXPECT_ERROR(twr_open(&run, path("file/run").c_str(), settings_), TWR_ERROR_IO, "file");
    EXPECT_EQ(run, nullptr);
}

TEST_F(RunTest, DamageIsFoundBeforeItIsRestored) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    std::vector<double> x(1000, 1.0);
    const std::uint64_t shape[] = {1000};
    TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_EXPECT_OK(twr_capture(run, 1));
    TWR_EXPECT_OK(twr_wait(run));
    std::fstream data(file("run", ".data"), std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(4000);
    data.put('!');
    data.close();
    std::fill(x.begin(), x.end(), 2.0);
    TWR_EXPECT_ERROR(twr_restore(run, 1), TWR_ERROR_DAMAGED, "x");
    EXPECT_EQ(x[0], 2.0);
    TWR_EXPECT_OK(twr_close(run));
}

// A step that storage refuses once it was taken: told once, by the next call.
TEST_F(RunTest, ALostStepIsToldOnce) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    std::vector<double> x(100'000, 1);
    const std::uint64_t shape = x.size();
    TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, &shape));
    TWR_EXPECT_OK(twr_capture(run, 1));
    TWR_EXPECT_OK(twr_wait(run));
    auto limit = std::make_unique<testing::NoLargeFiles>();
    const int first = twr_capture(run, 2);
    EXPECT_TRUE(first == TWR_OK || first == TWR_STEP_LOST) << twr_error_message();
    const int second = twr_wait(run);
    limit.reset();
    EXPECT_EQ(first + second, TWR_OK + TWR_STEP_LOST);
    const std::string message = twr_error_message();
    EXPECT_NE(message.find("step 2 is lost"), std::string::npos) << message;
    EXPECT_NE(message.find("step-0000000002"), std::string::npos) << message;
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_capture(run, 3));
    TWR_EXPECT_OK(twr_close(run));
}

// The background may know of a loss before the capturing call returns, after it, or only at close:
// whichever call tells it, every lost step is told once.
TEST_F(RunTest, EveryLostStepIsToldByOneCall) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    std::vector<double> x(100'000, 1);
    const std::uint64_t shape = x.size();
    TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, &shape));
    const testing::NoLargeFiles limit;
    std::vector<std::string> told;
    const auto hear = [&told](int status) {
        EXPECT_TRUE(status == TWR_OK || status == TWR_STEP_LOST) << twr_error_message();
        if (status == TWR_STEP_LOST) told.emplace_back(twr_error_message());
    };
    hear(twr_capture(run, 2));
    hear(twr_capture(run, 3));
    hear(twr_close(run));
    for (const std::string step : {"2", "3"}) {
        const std::regex named("^twr_(capture|close): steps? ([0-9]+, )*" + step +
                               "( is lost|, [0-9]| are lost)");
        EXPECT_EQ(std::count_if(told.begin(), told.end(),
                                [&](const std::string& text) { return std::regex_search(text, named); }),
                  1)
            << step << ": " << ::testing::PrintToString(told);
    }
}

// ---- comparison with a reference ----

struct Heard {
    std::mutex mutex;
    std::vector<twr_divergence> all;
    std::vector<std::string> fields;
    std::vector<std::string> reasons;
};
void hear(const twr_divergence* divergence, void* context) {
    auto& heard = *static_cast<Heard*>(context);
    const std::lock_guard lock(heard.mutex);
    heard.all.push_back(*divergence);
    heard.fields.emplace_back(divergence->field);
    heard.reasons.emplace_back(divergence->reason);
}

class DivergenceTest : public RunTest {
   protected:
    void SetUp() override {
        RunTest::SetUp();
        x_.assign(5000, 1.0);
        y_.assign(5000, 1.0);
        capture_run("reference");
        if (HasFatalFailure()) return;
        set("reference", path("reference"));
    }
    void protect(twr_run* run) {
        const std::uint64_t shape[] = {5000};
        TWR_ASSERT_OK(twr_protect(run, "x", x_.data(), TWR_F64, 1, shape));
        TWR_ASSERT_OK(twr_protect(run, "y", y_.data(), TWR_F64, 1, shape));
    }
    void capture_run(const std::string& name) {
        twr_run* run = open(name);
        ASSERT_NE(run, nullptr);
        protect(run);
        for (const int step : {1, 2, 3})
            TWR_EXPECT_OK(twr_capture(run, step));
        TWR_EXPECT_OK(twr_close(run));
    }
    std::vector<double> x_;
    std::vector<double> y_;
};

TEST_F(DivergenceTest, IsHeardOfWhileTheRunGoesOn) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    Heard heard;
    TWR_EXPECT_OK(twr_on_divergence(run, hear, &heard));
    protect(run);
    TWR_EXPECT_OK(twr_capture(run, 1));
    y_[4000] += 1e-3;
    TWR_EXPECT_OK(twr_capture(run, 2));
    TWR_EXPECT_OK(twr_close(run));
    ASSERT_EQ(heard.all.size(), 1U);
    EXPECT_EQ(heard.all[0].size, sizeof(twr_divergence));
    EXPECT_EQ(heard.all[0].step, 2);
    EXPECT_EQ(heard.all[0].rank, 0);
    EXPECT_EQ(heard.fields[0], "y");
    EXPECT_EQ(heard.reasons[0], "");
    EXPECT_EQ(heard.all[0].chunks, 1U);
    EXPECT_LE(heard.all[0].first_item, 4000U);
    EXPECT_GT(heard.all[0].first_item + 512, 4000U);
    EXPECT_EQ(heard.all[0].chunks_in_all, 10U);  // of 512 doubles
}

TEST_F(DivergenceTest, StopsTheRunThatAsksForIt) {
    set("stop_on_divergence", "true");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    Heard heard;
    TWR_EXPECT_OK(twr_on_divergence(run, hear, &heard));
    protect(run);
    TWR_EXPECT_OK(twr_capture(run, 1));
    x_[0] += 1e-3;
    EXPECT_EQ(twr_capture(run, 2), TWR_DIVERGED);
    const std::string message = twr_error_message();
    EXPECT_NE(message.find("step 2"), std::string::npos) << message;
    EXPECT_NE(message.find("x from item 0"), std::string::npos) << message;
    EXPECT_EQ(heard.all.size(), 1U);  // before capture returned
    twr_report report;
    report.size = sizeof report;
    TWR_EXPECT_OK(twr_last_report(run, &report));
    EXPECT_EQ(report.step, 2);
    EXPECT_EQ(report.diverged, 1);
    // The step was taken.
    TWR_EXPECT_OK(twr_wait(run));
    std::int64_t latest = 0;
    TWR_EXPECT_OK(twr_latest(run, INT64_MAX, &latest));
    EXPECT_EQ(latest, 2);
    TWR_EXPECT_OK(twr_on_divergence(run, nullptr, nullptr));
    EXPECT_EQ(twr_capture(run, 3), TWR_DIVERGED);
    EXPECT_EQ(heard.all.size(), 1U);
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(DivergenceTest, WhatCannotBeComparedHasAReason) {
    set("stop_on_divergence", "true");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    Heard heard;
    TWR_EXPECT_OK(twr_on_divergence(run, hear, &heard));
    const std::uint64_t shape[] = {4000};
    TWR_EXPECT_OK(twr_protect(run, "x", x_.data(), TWR_F64, 1, shape));
    EXPECT_EQ(twr_capture(run, 1), TWR_DIVERGED);
    ASSERT_EQ(heard.reasons.size(), 1U);
    EXPECT_NE(heard.reasons[0], "");
    EXPECT_NE(std::string(twr_error_message()).find(heard.reasons[0]), std::string::npos)
        << twr_error_message();
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(DivergenceTest, ExceptionsOfACallbackGoNoFurther) {
    set("stop_on_divergence", "true");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_EXPECT_OK(twr_on_divergence(
        run, [](const twr_divergence*, void*) { throw std::runtime_error("of the application"); }, nullptr));
    protect(run);
    x_[0] += 1e-3;
    EXPECT_EQ(twr_capture(run, 1), TWR_DIVERGED);
    TWR_EXPECT_OK(twr_close(run));
}

// The digests are of what particles are, not of where they lie.
TEST_F(DivergenceTest, ThereIsNoneOfParticlesInAnotherOrder) {
    set("reference", "");
    set("stop_on_divergence", "true");
    std::vector<std::int64_t> id(5000);
    std::iota(id.begin(), id.end(), 100);
    for (std::size_t i = 0; i < id.size(); ++i)
        x_[i] = std::sin(static_cast<double>(id[i]));
    const std::uint64_t shape[] = {5000};
    const std::vector<std::string> runs = {"sorted", "shuffled", "other"};
    for (const std::string& name : runs) {
        if (name != "sorted") {
            set("reference", path("sorted"));
            std::shuffle(id.begin(), id.end(), std::mt19937(7));
            for (std::size_t i = 0; i < id.size(); ++i)
                x_[i] = std::sin(static_cast<double>(id[i]));
        }
        twr_run* run = open(name);
        ASSERT_NE(run, nullptr);
        TWR_EXPECT_OK(twr_protect(run, "id", id.data(), TWR_I64, 1, shape));
        twr_array array = TWR_ARRAY_INIT;
        array.name = "x";
        array.data = x_.data();
        array.dimensions = 1;
        array.shape = shape;
        array.ids = "id";
        TWR_EXPECT_OK(twr_protect_array(run, &array));
        if (name == "other") x_[17] += 1;
        EXPECT_EQ(twr_capture(run, 1), name == "other" ? TWR_DIVERGED : TWR_OK) << twr_error_message();
        TWR_EXPECT_OK(twr_close(run));
    }
}

}  // namespace
}  // namespace twinrun
