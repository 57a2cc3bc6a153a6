// Comparison through the C interface: histories, arrays in memory, the step of a run that is going on; bad input; files that are
// damaged. That verdicts and facts equal Python's is held by tests/python/comparison/test_compare_c.py.
#include <twinrun/compare.h>

#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/capi/support.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kItems = 3000;

// Owns what a comparison gave.
class Found {
   public:
    Found() = default;
    ~Found() { twr_comparison_destroy(comparison_); }
    Found(const Found&) = delete;
    Found& operator=(const Found&) = delete;
    twr_comparison** out() {
        twr_comparison_destroy(comparison_);
        comparison_ = nullptr;
        return &comparison_;
    }
    [[nodiscard]] twr_comparison* get() const { return comparison_; }
    [[nodiscard]] twr_comparison_report facts() const {
        twr_comparison_report report{};
        report.size = sizeof report;
        TWR_EXPECT_OK(twr_comparison_facts(comparison_, &report));
        return report;
    }
    [[nodiscard]] twr_field_report field(std::uint64_t number) const {
        twr_field_report report{};
        report.size = sizeof report;
        TWR_EXPECT_OK(twr_comparison_field(comparison_, number, &report));
        return report;
    }
    [[nodiscard]] Json json() const { return Json::parse(twr_comparison_json(comparison_)); }

   private:
    twr_comparison* comparison_ = nullptr;
};

class CompareTest : public testing::CapiTest {
   protected:
    // A history with steps 0 to steps - 1 of the fields x and n; x[at] of the last step is larger by `by`.
    std::string capture(const std::string& name, int steps, std::size_t at = 0, double by = 0) {
        std::vector<double> x(kItems);
        std::vector<std::int64_t> n(10, 7);
        const std::uint64_t shape[] = {kItems};
        const std::uint64_t short_shape[] = {n.size()};
        twr_run* run = open(name);
        if (run == nullptr) return path(name);
        TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
        TWR_EXPECT_OK(twr_protect(run, "n", n.data(), TWR_I64, 1, short_shape));
        for (int step = 0; step < steps; ++step) {
            for (std::size_t i = 0; i < x.size(); ++i)
                x[i] = std::sin(static_cast<double>(i) + step);
            if (step == steps - 1) x[at] += by;
            TWR_EXPECT_OK(twr_capture(run, step));
        }
        TWR_EXPECT_OK(twr_close(run));
        return path(name);
    }
    int compare(const std::string& a, const std::string& b, const twr_compare_options* options = nullptr) {
        return twr_compare(a.c_str(), b.c_str(), options, found_.out());
    }
    Found found_;
};

twr_array array_of(const char* name, const std::vector<double>& values, const std::uint64_t* shape,
                   int dimensions = 1) {
    twr_array array = TWR_ARRAY_INIT;
    array.name = name;
    array.data = const_cast<double*>(values.data());
    array.dimensions = dimensions;
    array.shape = shape;
    return array;
}

// ---- histories ----

TEST_F(CompareTest, TheSame) {
    const std::string a = capture("a", 3);
    const std::string b = capture("b", 3, 5, 1e-9);
    TWR_ASSERT_OK(compare(a, b));
    const twr_comparison_report facts = found_.facts();
    EXPECT_EQ(facts.verdict, TWR_OK);
    EXPECT_EQ(facts.fields, 6U);
    EXPECT_EQ(facts.different_fields, 0U);
    EXPECT_EQ(facts.first_field, TWR_NONE);
    EXPECT_EQ(facts.problems, 0U);
    EXPECT_EQ(facts.bytes_compared, 3 * (kItems * 8 + 80));
    EXPECT_EQ(std::string(twr_comparison_verdict(found_.get())).rfind("same: 2 fields, 3 steps, ", 0), 0U);
    const twr_field_report field = found_.field(0);
    EXPECT_EQ(field.first_index, nullptr);
    EXPECT_EQ(field.first_a.dtype, 0);
    EXPECT_STREQ(field.field, "x");
    EXPECT_EQ(field.shape[0], kItems);
    EXPECT_EQ(field.atol, 1e-6);
    EXPECT_EQ(found_.json().at("verdict"), "same");
}

TEST_F(CompareTest, Different) {
    const std::string a = capture("a", 3);
    const std::string b = capture("b", 3, 1234, 0.5);
    EXPECT_EQ(compare(a, b), TWR_DIFFERENT);
    EXPECT_NE(std::string(twr_error_message()).find("twr_compare: different: first at step 2, x[1234]"),
              std::string::npos)
        << twr_error_message();
    const twr_comparison_report facts = found_.facts();
    EXPECT_EQ(facts.verdict, TWR_DIFFERENT);
    EXPECT_EQ(facts.first_field, 4U);
    EXPECT_EQ(facts.different, 1U);
    const twr_field_report field = found_.field(4);
    EXPECT_EQ(field.step, 2);
    EXPECT_EQ(field.rank, 0);
    EXPECT_EQ(field.dtype, TWR_F64);
    EXPECT_EQ(field.index_length, 1);
    EXPECT_EQ(field.first_index[0], 1234U);
    EXPECT_EQ(field.first_a.dtype, TWR_F64);
    EXPECT_EQ(field.first_a.of.real, std::sin(1234.0 + 2));
    EXPECT_EQ(field.first_b.of.real, std::sin(1234.0 + 2) + 0.5);
    EXPECT_EQ(field.max_abs_index[0], 1234U);
    EXPECT_NEAR(field.max_abs_diff, 0.5, 1e-12);
    const Json json = found_.json();
    EXPECT_EQ(json.at("first_divergence").at("index"), Json({1234}));
    EXPECT_EQ(json.at("fields").size(), 6U);
    // A wider tolerance.
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.atol = 1;
    TWR_EXPECT_OK(compare(a, b, &options));
    options.device = TWR_HOST;
    options.method = TWR_METHOD_DIRECT;
    options.threads = 1;
    options.memory_bytes = 1;
    TWR_EXPECT_OK(compare(a, b, &options));
    EXPECT_EQ(found_.field(4).elements_read, kItems);
}

TEST_F(CompareTest, WhatOnlyOneRunHasIsNeverTheSame) {
    const std::string a = capture("a", 3);
    const std::string b = capture("b", 2);
    EXPECT_EQ(compare(a, b), TWR_INCOMPARABLE);
    ASSERT_EQ(found_.facts().problems, 1U);
    EXPECT_NE(std::string(twr_comparison_problem(found_.get(), 0)).find("step 2 of"), std::string::npos);
    EXPECT_EQ(twr_comparison_problem(found_.get(), 1), nullptr);
    EXPECT_EQ(found_.json().at("error"), twr_comparison_problem(found_.get(), 0));
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.common = 1;
    TWR_EXPECT_OK(compare(a, b, &options));
    ASSERT_EQ(found_.facts().notes, 1U);
    EXPECT_NE(std::string(twr_comparison_note(found_.get(), 0)).find("step 2"), std::string::npos);
    EXPECT_EQ(twr_comparison_note(found_.get(), 1), nullptr);
}

TEST_F(CompareTest, NothingInCommonAndEmptyHistories) {
    const std::string a = capture("a", 1);
    TWR_EXPECT_OK(twr_close(open("empty")));
    TWR_EXPECT_ERROR(compare(a, path("empty")), TWR_ERROR_MISMATCH, "step 0 of");
    EXPECT_EQ(found_.get(), nullptr);
    TWR_EXPECT_ERROR(compare(path("empty"), path("empty")), TWR_ERROR_MISMATCH, "no steps were committed");
}

TEST_F(CompareTest, WhatIsNotAHistory) {
    const std::string a = capture("a", 1);
    fs::create_directories(path("folder"));
    TWR_EXPECT_ERROR(compare(a, path("nothing")), TWR_ERROR_NOT_FOUND, "nothing");
    TWR_EXPECT_ERROR(compare(path("folder"), a), TWR_ERROR_NOT_FOUND, "manifest.jsonl");
    EXPECT_NE(std::string(twr_error_message()).find("name the folder of a captured history"),
              std::string::npos);
    EXPECT_NE(compare(write("file", "text"), a), TWR_OK);
    EXPECT_NE(compare(a, "\xff\xfe/no"), TWR_OK);
    TWR_EXPECT_ERROR(compare(a, ""), TWR_ERROR_INVALID_ARGUMENT, "b is empty");
    EXPECT_EQ(found_.get(), nullptr);
}

// A path is bytes; reports are UTF-8.
TEST_F(CompareTest, APathThatIsNotUtf8) {
    const std::string a = capture("a\xff", 1);
    TWR_ASSERT_OK(compare(a, a));
    EXPECT_NE(found_.json().at("a").get<std::string>().find("a\\xff"), std::string::npos);
}

TEST_F(CompareTest, BadArguments) {
    const std::string a = capture("a", 1);
    twr_comparison* result = nullptr;
    TWR_EXPECT_ERROR(twr_compare(nullptr, a.c_str(), nullptr, &result), TWR_ERROR_INVALID_ARGUMENT,
                     "a is NULL");
    TWR_EXPECT_ERROR(twr_compare(a.c_str(), nullptr, nullptr, &result), TWR_ERROR_INVALID_ARGUMENT,
                     "b is NULL");
    TWR_EXPECT_ERROR(twr_compare(a.c_str(), a.c_str(), nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT,
                     "result");
    const auto refused = [&](auto change, const char* word) {
        twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
        change(options);
        TWR_EXPECT_ERROR(compare(a, a, &options), TWR_ERROR_INVALID_ARGUMENT, word);
        EXPECT_EQ(found_.get(), nullptr);
    };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    refused([&](auto& o) { o.atol = nan; }, "atol");
    refused([&](auto& o) { o.rtol = nan; }, "rtol");
    refused([&](auto& o) { o.atol = HUGE_VAL; }, "atol");
    refused([&](auto& o) { o.rtol = -0.5; }, "rtol");
    refused([&](auto& o) { o.ulps = -2; }, "ulps");
    refused([&](auto& o) { o.nan_differs = 2; }, "nan_differs");
    refused([&](auto& o) { o.tolerate_integers = -1; }, "tolerate_integers");
    refused([&](auto& o) { o.common = 3; }, "common");
    refused([&](auto& o) { o.method = 7; }, "method");
    refused([&](auto& o) { o.device = TWR_DETECT_DEVICE; }, "device");
    refused([&](auto& o) { o.threads = -1; }, "threads");
    refused([&](auto& o) { o.threads = 1 << 30; }, "threads");
    refused([&](auto& o) { o.memory_bytes = UINT64_MAX; }, "memory_bytes");
    for (const std::size_t size : {std::size_t{0}, std::size_t{9}, std::size_t{1} << 40})
        refused([&](auto& o) { o.size = size; }, "sizeof(twr_compare_options)");
}

TEST_F(CompareTest, CallersOfOtherVersions) {
    const std::string a = capture("a", 1);
    struct {
        twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
        std::uint64_t later = 0;
    } newer;
    newer.options.size = sizeof newer;
    TWR_EXPECT_OK(compare(a, a, &newer.options));
    newer.later = 1;
    TWR_EXPECT_ERROR(compare(a, a, &newer.options), TWR_ERROR_UNSUPPORTED, "twr_compare_options");
    twr_compare_options older = TWR_COMPARE_OPTIONS_INIT;
    older.size = offsetof(twr_compare_options, device);
    older.device = 12345;  // beyond what it knows
    TWR_ASSERT_OK(compare(a, a, &older));

    twr_comparison_report report{};
    for (const std::size_t size : {std::size_t{0}, std::size_t{12}, std::size_t{1} << 40}) {
        report.size = size;
        TWR_EXPECT_ERROR(twr_comparison_facts(found_.get(), &report), TWR_ERROR_INVALID_ARGUMENT, "sizeof");
    }
    report.size = offsetof(twr_comparison_report, problems);
    report.problems = 99;
    TWR_EXPECT_OK(twr_comparison_facts(found_.get(), &report));
    EXPECT_EQ(report.fields, 2U);
    EXPECT_EQ(report.problems, 99U) << "written beyond the caller's structure";
    twr_field_report field{};
    field.size = 24;
    TWR_EXPECT_ERROR(twr_comparison_field(found_.get(), 0, &field), TWR_ERROR_INVALID_ARGUMENT, "sizeof");
    field.size = sizeof field;
    TWR_EXPECT_ERROR(twr_comparison_field(found_.get(), 2, &field), TWR_ERROR_NOT_FOUND, "2 entries");
    TWR_EXPECT_ERROR(twr_comparison_field(nullptr, 0, &field), TWR_ERROR_INVALID_ARGUMENT, "comparison");
    TWR_EXPECT_ERROR(twr_comparison_field(found_.get(), 0, nullptr), TWR_ERROR_INVALID_ARGUMENT, "report");
    TWR_EXPECT_ERROR(twr_comparison_facts(nullptr, &report), TWR_ERROR_INVALID_ARGUMENT, "comparison");
    TWR_EXPECT_ERROR(twr_comparison_facts(found_.get(), nullptr), TWR_ERROR_INVALID_ARGUMENT, "report");
    EXPECT_EQ(twr_comparison_problem(nullptr, 0), nullptr);
    EXPECT_EQ(twr_comparison_note(nullptr, 0), nullptr);
    EXPECT_STREQ(twr_comparison_verdict(nullptr), "");
    EXPECT_EQ(twr_comparison_json(nullptr), nullptr);
    twr_comparison_destroy(nullptr);
}

TEST_F(CompareTest, TolerancesOfTheCapture) {
    const std::string a = capture("a", 1);
    set("atol", "1e-3");
    const std::string b = capture("b", 1);
    // Integers compare exactly, but the runs were captured for different tolerances.
    EXPECT_EQ(compare(a, b), TWR_INCOMPARABLE);
    EXPECT_NE(std::string(twr_comparison_problem(found_.get(), 0)).find("different tolerances"),
              std::string::npos);
    EXPECT_EQ(found_.facts().fields, 1U);
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.ulps = 0;
    TWR_EXPECT_OK(compare(a, b, &options));
}

TEST_F(CompareTest, DataThatWasNotKept) {
    set("mode", "digests");
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2, 7, 1);
    TWR_EXPECT_OK(compare(a, a));
    EXPECT_EQ(compare(a, b), TWR_INCOMPARABLE);
    EXPECT_NE(std::string(twr_comparison_problem(found_.get(), 0)).find("step 1, rank 0: field 'x'"),
              std::string::npos);
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.method = TWR_METHOD_DIRECT;
    TWR_EXPECT_ERROR(compare(a, a, &options), TWR_ERROR_MISMATCH, "its data is needed");
}

// ---- files that are damaged ----

std::vector<fs::path> files_of(const std::string& history) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(history)) {
        if (entry.is_regular_file() && entry.file_size() != 0) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

std::string content(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Whatever is cut off, the runs are never the same: what is lost is missing.
TEST_F(CompareTest, TruncatedFiles) {
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2);
    std::mt19937 random(5);
    for (const std::string& damaged : {a, b}) {
        for (const fs::path& file : files_of(damaged)) {
            const std::string whole = content(file);
            const auto written = fs::last_write_time(file);
            std::vector<std::size_t> lengths = {0, 1, whole.size() / 2, whole.size() - 1};
            for (int i = 0; i < 8; ++i)
                lengths.push_back(random() % whole.size());
            for (const std::size_t length : lengths) {
                // The last byte of a journal ends its line, and says nothing.
                if (file.extension() == ".jsonl" && length == whole.size() - 1) continue;
                put(file, whole.substr(0, length));
                fs::last_write_time(file, written);
                const int status = compare(a, b);
                EXPECT_NE(status, TWR_OK) << file << " cut to " << length;
                EXPECT_NE(status, TWR_DIFFERENT) << file << " cut to " << length;
                EXPECT_STRNE(twr_error_message(), "");
            }
            put(file, whole);
            fs::last_write_time(file, written);
            TWR_ASSERT_OK(compare(a, b));
        }
    }
}

// A byte that changed hides no difference, wherever it is.
TEST_F(CompareTest, ChangedBytesHideNoDifference) {
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2, 2345, 1);
    std::mt19937 random(6);
    for (const std::string& damaged : {a, b}) {
        for (const fs::path& file : files_of(damaged)) {
            if (file.extension() == ".data")
                continue;  // another value may well be the same as the other run's
            const std::string whole = content(file);
            const auto written = fs::last_write_time(file);
            for (int i = 0; i < 60; ++i) {
                std::string changed = whole;
                changed[random() % whole.size()] ^= static_cast<char>(1U << (random() % 8));
                put(file, changed);
                fs::last_write_time(file, written);
                EXPECT_NE(compare(a, b), TWR_OK) << file << " change " << i;
                // What is said is UTF-8, and JSON.
                if (found_.get() != nullptr) {
                    EXPECT_FALSE(found_.json().at("fields").empty());
                }
            }
            put(file, whole);
            fs::last_write_time(file, written);
        }
    }
    EXPECT_EQ(compare(a, b), TWR_DIFFERENT);
}

TEST_F(CompareTest, FilesThatCannotBeRead) {
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2);
    for (const fs::path& file : files_of(b)) {
        const std::string whole = content(file);
        fs::remove(file);
        EXPECT_NE(compare(a, b), TWR_OK) << file << " is gone";
        fs::create_directory(file);
        EXPECT_NE(compare(a, b), TWR_OK) << file << " is a folder";
        fs::remove(file);
        fs::create_symlink(file, file);
        EXPECT_NE(compare(a, b), TWR_OK) << file << " is a link to itself";
        fs::remove(file);
        put(file, whole);
    }
}

// A whole file that belongs to another step is not the step's.
TEST_F(CompareTest, MetadataOfAnotherStep) {
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2);
    const fs::path first = fs::path(b) / "step-0000000000" / "rank-00000.twm";
    const fs::path second = fs::path(b) / "step-0000000001" / "rank-00000.twm";
    const std::string of_first = content(first);
    put(first, content(second));
    put(second, of_first);
    TWR_EXPECT_ERROR(compare(a, b), TWR_ERROR_DAMAGED, "is not the file that the manifest names");
    put(second, content(first));
    EXPECT_EQ(compare(a, b), TWR_INCOMPARABLE);
    EXPECT_EQ(found_.facts().fields, 2U);
}

// Reading fails for want of open files: an error or a problem, whichever read it is.
TEST_F(CompareTest, NoFileCanBeOpened) {
    const std::string a = capture("a", 2);
    const std::string b = capture("b", 2, 9, 1);
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.device = TWR_HOST;
    options.threads = 1;
    EXPECT_EQ(compare(a, b, &options), TWR_DIFFERENT);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = ::dup(0);
    ASSERT_GE(next, 0);
    ::close(next);
    bool differed = false;
    for (rlim_t more = 0; more < 32 && !differed; ++more) {
        const rlimit low{static_cast<rlim_t>(next) + more, before.rlim_max};
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
        const int status = compare(a, b, &options);
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
        EXPECT_NE(status, TWR_OK) << more;
        differed = status == TWR_DIFFERENT;
        if (more == 0) {
            EXPECT_NE(status, TWR_DIFFERENT);
        }
    }
    EXPECT_TRUE(differed);
}

// ---- arrays in memory ----

class CompareArraysTest : public CompareTest {
   protected:
    int compare(const std::vector<twr_array>& a, const std::vector<twr_array>& b,
                const twr_compare_options* options = nullptr) {
        return twr_compare_arrays(a.data(), a.size(), b.data(), b.size(), options, found_.out());
    }
    const std::uint64_t shape_[2] = {3, 4};
    const std::uint64_t turned_[2] = {4, 3};
    std::vector<double> x_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
};

TEST_F(CompareArraysTest, ByName) {
    std::vector<double> y = x_;
    const auto a = array_of("x", x_, shape_, 2);
    const auto b = array_of("x", y, shape_, 2);
    const auto other = array_of("z", x_, shape_, 2);
    TWR_EXPECT_OK(compare({a, other}, {other, b}));
    EXPECT_EQ(found_.field(0).step, TWR_NO_STEP);
    EXPECT_TRUE(found_.json().at("fields").at(0).at("step").is_null());
    y[7] += 2;
    EXPECT_EQ(compare({a}, {b}), TWR_DIFFERENT);
    const twr_field_report field = found_.field(0);
    EXPECT_EQ(field.first_index[0], 1U);
    EXPECT_EQ(field.first_index[1], 3U);
    EXPECT_EQ(field.first_abs_diff, 2);
    EXPECT_EQ(compare({a}, {b, other}), TWR_INCOMPARABLE);
    TWR_EXPECT_ERROR(compare({a}, {other}), TWR_ERROR_MISMATCH, "'x'");
    const auto turned = array_of("x", x_, turned_, 2);
    TWR_EXPECT_ERROR(compare({a}, {turned}), TWR_ERROR_MISMATCH, "[3, 4]");
}

// Both runs are arrays: messages say which of the two they mean, by the name of the parameter.
TEST_F(CompareArraysTest, MessagesNameTheSide) {
    const auto x = array_of("x", x_, shape_, 2);
    const auto q = array_of("q", x_, shape_, 2);
    auto single = x;
    single.dtype = TWR_F32;
    TWR_EXPECT_ERROR(compare({x, q}, {x}), TWR_INCOMPARABLE, "arrays b: field 'q' of arrays a: not there");
    TWR_EXPECT_ERROR(compare({x}, {x, q}), TWR_INCOMPARABLE, "arrays a: field 'q' of arrays b: not there");
    TWR_EXPECT_ERROR(compare({x}, {single}), TWR_ERROR_MISMATCH, "f64 in arrays a, f32 in arrays b");
}

TEST_F(CompareArraysTest, DifferencesReadAsMoreThanTheTolerance) {
    std::vector<double> y = x_;
    y[0] += 0.5;
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.atol = std::nextafter(0.5, 0);
    ASSERT_EQ(compare({array_of("x", x_, shape_, 2)}, {array_of("x", y, shape_, 2)}, &options),
              TWR_DIFFERENT);
    EXPECT_NE(std::string(twr_error_message()).find("|a-b| = 0.5 > 0.4999999999999999"), std::string::npos)
        << twr_error_message();
}

TEST_F(CompareArraysTest, InAnyOrderOfStorage) {
    std::vector<double> columns(x_.size());
    for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t c = 0; c < 4; ++c)
            columns[c * 3 + r] = x_[r * 4 + c];
    }
    const auto a = array_of("x", x_, shape_, 2);
    auto b = array_of("x", columns, shape_, 2);
    b.order = TWR_COLUMN_MAJOR;
    TWR_EXPECT_OK(compare({a}, {b}));
    TWR_EXPECT_OK(compare({b}, {a}));
    TWR_EXPECT_OK(compare({b}, {b}));
    columns[1] += 1;  // [1, 0]
    columns[6] += 2;  // [0, 2], the first one row by row
    const std::vector<double> before = columns;
    auto changed = array_of("x", before, shape_, 2);
    changed.order = TWR_COLUMN_MAJOR;
    EXPECT_EQ(compare({a}, {changed}), TWR_DIFFERENT);
    EXPECT_EQ(found_.field(0).first_index[0], 0U);
    EXPECT_EQ(found_.field(0).first_index[1], 2U);
    columns[1] -= 1;
    columns[6] -= 2;
    EXPECT_EQ(compare({b}, {changed}), TWR_DIFFERENT);
    EXPECT_EQ(found_.field(0).first_index[0], 0U);
    EXPECT_EQ(found_.field(0).first_index[1], 2U);
    EXPECT_EQ(found_.field(0).max_abs_index[1], 2U);
    // Strides in bytes, backwards too.
    const std::vector<double> backwards(x_.rbegin(), x_.rend());
    auto c = array_of("x", backwards, shape_, 2);
    const std::int64_t strides[] = {-32, -8};
    c.data = const_cast<double*>(backwards.data()) + 11;
    c.strides = strides;
    TWR_EXPECT_OK(compare({a}, {c}));
    TWR_EXPECT_OK(compare({c}, {b}));
}

TEST_F(CompareArraysTest, ValuesOfEveryKind) {
    const std::uint64_t shape[] = {2};
    const auto differ = [&](auto x, auto y, int dtype) {
        twr_array a = TWR_ARRAY_INIT;
        a.name = "x";
        a.dtype = dtype;
        a.dimensions = 1;
        a.shape = shape;
        twr_array b = a;
        a.data = x.data();
        b.data = y.data();
        EXPECT_EQ(compare({a}, {b}), TWR_DIFFERENT);
        return found_.field(0);
    };
    const auto largest = std::numeric_limits<std::uint64_t>::max();
    const auto u =
        differ(std::array<std::uint64_t, 2>{0, largest}, std::array<std::uint64_t, 2>{0, 1}, TWR_U64);
    EXPECT_EQ(u.first_a.dtype, TWR_U64);
    EXPECT_EQ(u.first_a.of.whole, largest);
    EXPECT_EQ(found_.json().at("fields").at(0).at("first_abs_diff"), largest - 1);
    const auto lowest = std::numeric_limits<std::int64_t>::min();
    const auto i = differ(std::array<std::int64_t, 2>{0, lowest}, std::array<std::int64_t, 2>{0, 1}, TWR_I64);
    EXPECT_EQ(i.first_a.dtype, TWR_I64);
    EXPECT_EQ(i.first_a.of.integer, lowest);
    EXPECT_EQ(found_.json().at("fields").at(0).at("first_abs_diff"), (std::uint64_t{1} << 63) + 1);
    const auto b = differ(std::array<bool, 2>{true, false}, std::array<bool, 2>{true, true}, TWR_BOOL);
    EXPECT_EQ(b.first_b.dtype, TWR_I64);
    EXPECT_EQ(b.first_b.of.integer, 1);
    const auto c = differ(std::array<float, 4>{0, 0, 0, 1}, std::array<float, 4>{0, 0, 0, 2}, TWR_C64);
    EXPECT_EQ(c.index_length, 2);
    EXPECT_EQ(c.first_index[0], 1U);
    EXPECT_EQ(c.first_index[1], 1U);
    EXPECT_EQ(c.first_a.of.real, 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto n = differ(std::array<double, 2>{0, nan}, std::array<double, 2>{0, 1}, TWR_F64);
    EXPECT_EQ(n.infinite, 1U);
    EXPECT_TRUE(std::isinf(n.first_abs_diff));
    EXPECT_EQ(found_.json().at("fields").at(0).at("first_a"), "nan");
    // An item of an array without dimensions has an index of no numbers.
    std::vector<double> one = {1};
    std::vector<double> two = {2};
    EXPECT_EQ(compare({array_of("s", one, nullptr, 0)}, {array_of("s", two, nullptr, 0)}), TWR_DIFFERENT);
    EXPECT_NE(found_.field(0).first_index, nullptr);
    EXPECT_EQ(found_.field(0).index_length, 0);
}

TEST_F(CompareArraysTest, Tolerances) {
    std::vector<double> y = x_;
    y[3] += 0.25;
    auto a = array_of("x", x_, shape_, 2);
    auto b = array_of("x", y, shape_, 2);
    EXPECT_EQ(compare({a}, {b}), TWR_DIFFERENT);
    a.atol = 0.5;
    TWR_EXPECT_OK(compare({a}, {b}));
    b.atol = 0.3;
    TWR_EXPECT_ERROR(compare({a}, {b}), TWR_ERROR_MISMATCH, "different tolerances");
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.atol = 0.1;
    EXPECT_EQ(compare({a}, {b}, &options), TWR_DIFFERENT);
    options.rtol = 0.1;
    TWR_EXPECT_OK(compare({a}, {b}, &options));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    x_[0] = y[0] = nan;
    TWR_EXPECT_OK(compare({a}, {b}, &options));
    options.nan_differs = 1;
    EXPECT_EQ(compare({a}, {b}, &options), TWR_DIFFERENT);
    EXPECT_EQ(found_.field(0).infinite, 1U);
    // An array's own tolerance is checked too.
    a.atol = nan;
    b.atol = nan;
    EXPECT_NE(compare({a}, {b}), TWR_OK);
}

TEST_F(CompareArraysTest, PartsOfAGlobalArray) {
    const std::uint64_t whole[] = {9, 4};
    const std::uint64_t first[] = {0, 0};
    const std::uint64_t second[] = {3, 0};
    auto a = array_of("x", x_, shape_, 2);
    a.global_shape = whole;
    a.global_offset = first;
    auto b = a;
    TWR_EXPECT_OK(compare({a}, {b}));
    b.global_offset = second;
    TWR_EXPECT_ERROR(compare({a}, {b}), TWR_ERROR_MISMATCH, "does not join parts");
}

TEST_F(CompareArraysTest, BadArrays) {
    const auto a = array_of("x", x_, shape_, 2);
    TWR_EXPECT_ERROR(compare({}, {a}), TWR_ERROR_INVALID_ARGUMENT, "a_count is 0");
    TWR_EXPECT_ERROR(compare({a}, {}), TWR_ERROR_INVALID_ARGUMENT, "b_count is 0");
    TWR_EXPECT_ERROR(twr_compare_arrays(nullptr, 1, &a, 1, nullptr, found_.out()), TWR_ERROR_INVALID_ARGUMENT,
                     "a is NULL");
    TWR_EXPECT_ERROR(twr_compare_arrays(&a, 1, &a, 1, nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT,
                     "result");
    TWR_EXPECT_ERROR(compare({a, a}, {a}), TWR_ERROR_INVALID_ARGUMENT, "two arrays");
    const auto refused = [&](auto change, const char* word) {
        auto bad = a;
        change(bad);
        EXPECT_NE(compare({a}, {bad}), TWR_OK);
        EXPECT_NE(std::string(twr_error_message()).find(word), std::string::npos) << twr_error_message();
        EXPECT_EQ(found_.get(), nullptr);
    };
    refused([](auto& o) { o.name = nullptr; }, "name is NULL");
    refused([](auto& o) { o.name = ""; }, "name is empty");
    refused([](auto& o) { o.name = "x\xff"; }, "not UTF-8");
    refused([](auto& o) { o.data = nullptr; }, "data is NULL");
    refused([](auto& o) { o.shape = nullptr; }, "shape is NULL");
    refused([](auto& o) { o.dtype = 99; }, "dtype");
    refused([](auto& o) { o.dimensions = 1000; }, "dimensions");
    refused([](auto& o) { o.ids = "id"; }, "IDs");
    refused([](auto& o) { o.size = 0; }, "sizeof(twr_array)");
    refused([](auto& o) { o.size = std::size_t{1} << 40; }, "sizeof(twr_array)");
    // The device is asked for first: another problem must not hide that it cannot be used.
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    options.device = 1000;
    const auto turned = array_of("x", x_, turned_, 2);
    TWR_EXPECT_ERROR(compare({a}, {turned}, &options), TWR_ERROR_UNSUPPORTED, "(device: cpu)");
    // The second array has another size than the first one.
    std::vector<twr_array> two = {a, array_of("z", x_, shape_, 2)};
    two[1].size = sizeof(twr_array) - 8;
    TWR_EXPECT_ERROR(compare(two, {a}), TWR_ERROR_INVALID_ARGUMENT, "a[1]");
}

TEST_F(CompareArraysTest, NamesAreEscapedInReports) {
    const char* name = "a\"b\\c\n\x01μ";
    const auto a = array_of(name, x_, shape_, 2);
    TWR_ASSERT_OK(compare({a}, {a}));
    EXPECT_EQ(found_.json().at("fields").at(0).at("field"), name);
    EXPECT_STREQ(found_.field(0).field, name);
}

TEST_F(CompareArraysTest, FromSeveralThreads) {
    std::vector<double> y = x_;
    y[2] += 1;
    const auto a = array_of("x", x_, shape_, 2);
    const auto b = array_of("x", y, shape_, 2);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                Found found;
                const auto& other = (t + i) % 2 == 0 ? a : b;
                EXPECT_EQ(twr_compare_arrays(&a, 1, &other, 1, nullptr, found.out()),
                          (t + i) % 2 == 0 ? TWR_OK : TWR_DIFFERENT);
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
}

// ---- the step of a run that is going on ----

class CompareStepTest : public CompareTest, public ::testing::WithParamInterface<const char*> {
   protected:
    void SetUp() override {
        CompareTest::SetUp();
        reference_ = capture("reference", 3, 5, 0);
    }
    std::string reference_;
};

TEST_P(CompareStepTest, EachStepAsItIsTaken) {
    const std::string how = GetParam();
    if (how == "local") set("local", path("local"));
    if (how == "nobody flushes") {
        set("local", path("local"));
        set("flusher", "none");
    }
    if (how == "record") set("record", "runs");
    if (how == "in the foreground") set("background", "false");
    if (how == "setting") set("reference", reference_);
    const char* named = how == "setting" ? nullptr : reference_.c_str();
    std::vector<double> x(kItems);
    std::vector<std::int64_t> n(10, 7);
    const std::uint64_t shape[] = {kItems};
    const std::uint64_t short_shape[] = {n.size()};
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    TWR_ASSERT_OK(twr_protect(run, "n", n.data(), TWR_I64, 1, short_shape));
    TWR_EXPECT_ERROR(twr_compare_step(run, named, nullptr, found_.out()), TWR_ERROR_NOT_FOUND, "captured");
    for (int step = 0; step < 4; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] = std::sin(static_cast<double>(i) + step);
        if (step == 1) x[77] += 1;
        if (step == 2) n[3] += 1;
        TWR_ASSERT_OK(twr_capture(run, step));
        const int status = twr_compare_step(run, named, nullptr, found_.out());
        if (step == 0) {
            EXPECT_EQ(status, TWR_OK) << twr_error_message();
        }
        if (step == 1) {
            EXPECT_EQ(status, TWR_DIFFERENT) << twr_error_message();
            EXPECT_EQ(found_.field(0).first_index[0], 77U);
            EXPECT_EQ(found_.field(0).first_a.of.real, std::sin(78.0)) << "a is the reference";
            EXPECT_EQ(found_.facts().fields, 2U);
        }
        if (step == 2) {
            EXPECT_EQ(status, TWR_DIFFERENT);
            EXPECT_STREQ(found_.field(found_.facts().first_field).field, "n");
        }
        if (step == 3) {
            TWR_EXPECT_ERROR(status, TWR_ERROR_NOT_FOUND, "step 3 of rank 0 is not there");
        }
    }
    TWR_EXPECT_OK(twr_close(run));
}
INSTANTIATE_TEST_SUITE_P(Ways, CompareStepTest,
                         ::testing::Values("plain", "local", "nobody flushes", "record", "in the foreground",
                                           "setting"),
                         [](const auto& way) {
                             std::string name = way.param;
                             std::erase(name, ' ');
                             return name;
                         });

TEST_F(CompareTest, AStepWithoutAReference) {
    double x = 1;
    twr_run* run = open("run");
    TWR_ASSERT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_ASSERT_OK(twr_capture(run, 1));
    TWR_EXPECT_ERROR(twr_compare_step(run, nullptr, nullptr, found_.out()), TWR_ERROR_INVALID_ARGUMENT,
                     "reference");
    TWR_EXPECT_ERROR(twr_compare_step(nullptr, "x", nullptr, found_.out()), TWR_ERROR_INVALID_ARGUMENT,
                     "run");
    TWR_EXPECT_ERROR(twr_compare_step(run, "x", nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT, "result");
    TWR_EXPECT_ERROR(twr_compare_step(run, path("none").c_str(), nullptr, found_.out()), TWR_ERROR_NOT_FOUND,
                     "none");
    // Itself: the step is the same.
    TWR_EXPECT_OK(twr_wait(run));
    TWR_EXPECT_OK(twr_compare_step(run, path("run").c_str(), nullptr, found_.out()));
    TWR_EXPECT_OK(twr_close(run));
}

// Two ranks, as threads.
struct TwoRanks {
    std::barrier<> arrive{2};
    std::mutex mutex;
    std::vector<std::int64_t> values;
    std::vector<char> bytes;
};
struct OneOfTwo {
    TwoRanks* all;
    int rank;
    static int minimum(void* context, std::int64_t* values, int count) {
        const OneOfTwo& own = *static_cast<OneOfTwo*>(context);
        {
            const std::lock_guard guard(own.all->mutex);
            if (own.all->values.empty()) own.all->values.assign(values, values + count);
            for (int i = 0; i < count; ++i) {
                auto& least = own.all->values[static_cast<std::size_t>(i)];
                least = std::min(least, values[i]);
            }
        }
        own.all->arrive.arrive_and_wait();
        std::copy(own.all->values.begin(), own.all->values.end(), values);
        own.all->arrive.arrive_and_wait();
        if (own.rank == 0) own.all->values.clear();
        own.all->arrive.arrive_and_wait();
        return 0;
    }
    static int broadcast(void* context, void* bytes, std::size_t count) {
        const OneOfTwo& own = *static_cast<OneOfTwo*>(context);
        char* const to = static_cast<char*>(bytes);
        if (own.rank == 0) own.all->bytes.assign(to, to + count);
        own.all->arrive.arrive_and_wait();
        std::copy(own.all->bytes.begin(), own.all->bytes.end(), to);
        own.all->arrive.arrive_and_wait();
        return 0;
    }
};

// Each rank compares its own part, and the others need not.
TEST_F(CompareTest, AStepOfSeveralRanks) {
    const auto capture_on_two = [&](const std::string& name, double by, const std::string& reference) {
        TwoRanks all;
        const auto program = [&](int rank) {
            OneOfTwo own{&all, rank};
            const twr_comm comm{&own, rank, 2, OneOfTwo::minimum, OneOfTwo::broadcast, nullptr};
            std::vector<double> x(kItems, rank);
            const std::uint64_t shape[] = {kItems};
            twr_run* run = nullptr;
            TWR_EXPECT_OK(twr_open_comm(&run, path(name).c_str(), settings_, &comm));
            if (run == nullptr) return;
            TWR_EXPECT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
            for (int step = 0; step < 2; ++step) {
                if (rank == 1) x[11] = 1 + by;
                TWR_EXPECT_OK(twr_capture(run, step));
                if (reference.empty() || (rank == 0 && step == 1)) continue;
                Found found;
                EXPECT_EQ(twr_compare_step(run, reference.c_str(), nullptr, found.out()),
                          rank == 0 ? TWR_OK : TWR_DIFFERENT)
                    << twr_error_message();
                if (found.get() == nullptr) continue;
                EXPECT_EQ(found.facts().fields, 1U);
                EXPECT_EQ(found.field(0).rank, rank);
                EXPECT_EQ(found.field(0).step, step);
            }
            TWR_EXPECT_OK(twr_close(run));
        };
        std::thread other(program, 1);
        program(0);
        other.join();
    };
    capture_on_two("reference", 0, "");
    capture_on_two("run", 0.5, path("reference"));
    // One rank has no counterpart among two.
    double x = 1;
    twr_run* run = open("alone");
    TWR_ASSERT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_ASSERT_OK(twr_capture(run, 0));
    TWR_EXPECT_ERROR(twr_compare_step(run, path("reference").c_str(), nullptr, found_.out()),
                     TWR_ERROR_MISMATCH, "captured by 2 ranks");
    TWR_EXPECT_OK(twr_close(run));
}

// A step that is lost is not compared. Whichever call hears of the loss first tells it.
TEST_F(CompareTest, AStepThatIsLost) {
    const std::string reference = capture("reference", 1);
    std::vector<double> x(100000);
    const std::uint64_t shape[] = {x.size()};
    twr_run* run = open("run");
    TWR_ASSERT_OK(twr_protect(run, "x", x.data(), TWR_F64, 1, shape));
    const testing::NoLargeFiles full;
    const int captured = twr_capture(run, 0);
    EXPECT_TRUE(captured == TWR_OK || captured == TWR_STEP_LOST) << twr_error_message();
    TWR_EXPECT_ERROR(twr_compare_step(run, reference.c_str(), nullptr, found_.out()), TWR_ERROR_NOT_FOUND,
                     "not committed");
    EXPECT_EQ(captured + twr_close(run), TWR_OK + TWR_STEP_LOST);
}

}  // namespace
}  // namespace twinrun
