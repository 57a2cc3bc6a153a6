// Comparison of histories and arrays in the core: other ranks, parts on a node-local tier, steps that a running run removes, words and
// JSON. Verdicts and facts are held to Python's by tests/python/comparison/test_compare_c.py, the C interface by tests/core/capi.
#include "comparison/compare_runs.hpp"

#include <gmock/gmock.h>

#include <clocale>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comparison/document.hpp"
#include "comparison/words.hpp"
#include "support/session.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class CompareRunsTest : public ::testing::Test {
   protected:
    void SetUp() override {
        folder_ = testing::quick_folder() / ("twinrun_comparison_" + std::to_string(::getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        std::iota(x_.begin(), x_.end(), 0.0);
    }
    void TearDown() override { fs::remove_all(folder_); }
    [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

    static CapturedField field(const std::string& name, const std::vector<double>& values) {
        CapturedField made;
        made.name = name;
        made.dtype = DType::f64;
        made.shape = {values.size()};
        made.data = values.data();
        return made;
    }
    using Fields = std::function<std::vector<CapturedField>(int rank, std::int64_t step)>;
    // A history of these ranks with steps 0 to steps - 1.
    std::string capture(const std::string& name, int ranks, int steps, const Fields& fields,
                        const std::map<std::string, std::string>& own = {}) {
        testing::ThreadsComm::run(ranks, [&](Comm& comm) {
            SessionSettings settings;
            settings.history.tolerance = {1e-6, 0};
            for (const auto& [setting, value] : own)
                ASSERT_TRUE(settings.set(setting, value).ok());
            auto session = Session::open(posix_file_system(), comm, path(name), settings);
            ASSERT_TRUE(session.ok()) << session.error().message;
            for (std::int64_t step = 0; step < steps; ++step) {
                const auto taken = (*session)->capture_fields(step, fields(comm.rank(), step));
                ASSERT_TRUE(taken.ok()) << taken.error().message;
            }
            ASSERT_TRUE((*session)->close().ok());
        });
        return path(name);
    }
    std::string capture(const std::string& name, int ranks, int steps) {
        return capture(name, ranks, steps, [&](int, std::int64_t) { return std::vector{field("x", x_)}; });
    }
    static std::unique_ptr<HistoryRun> opened(const std::string& path) {
        auto run = HistoryRun::open(path);
        EXPECT_TRUE(run.ok()) << run.error().message;
        return run.ok() ? std::move(run).value() : nullptr;
    }
    static Result<RunsResult> compare(const std::string& a, const std::string& b, RunsOptions options = {}) {
        TWR_TRY(const auto run_a, HistoryRun::open(a));
        TWR_TRY(const auto run_b, HistoryRun::open(b));
        return compare_runs(*run_a, *run_b, options);
    }

    fs::path folder_;
    std::vector<double> x_ = std::vector<double>(2000);
};

TEST_F(CompareRunsTest, SeveralRanks) {
    const std::string a = capture("a", 3, 2);
    std::vector<double> y = x_;
    y[9] += 1;
    const std::string b = capture("b", 3, 2, [&](int rank, std::int64_t step) {
        return std::vector{field("x", rank == 2 && step == 1 ? y : x_)};
    });
    const auto same = compare(a, a);
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(same->verdict, Verdict::same);
    EXPECT_THAT(same->fields, SizeIs(6));
    const auto found = compare(a, b);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->verdict, Verdict::different);
    ASSERT_EQ(found->first, 5U);
    EXPECT_EQ(found->fields[5].rank, 2U);
    EXPECT_THAT(found->fields[5].first_index, ElementsAre(9));
    EXPECT_THAT(verdict_line(*found),
                HasSubstr("step 1, rank 2, x[9]: 9 against 10, |a-b| = 1 > 1e-06 (11%)"));
}

// A file of another run keeps its time when it is moved here: the record's metadata alone decides nothing.
TEST_F(CompareRunsTest, AnExchangedFileOfARecordIsNeverTheSame) {
    const std::map<std::string, std::string> record = {{"record", "runs"}};
    const auto all = [&](int, std::int64_t) { return std::vector{field("x", x_)}; };
    const auto own = [&](int rank, std::int64_t step) {
        auto fields = all(rank, step);
        if (rank == 1) return fields;
        static const std::vector<double> other(100, 7.0);
        return std::vector{field("x", other)};
    };
    const std::string old = capture("old", 2, 3, own, record);
    const std::string a = capture("a", 2, 3);
    const std::string b = capture("b", 2, 3, all, record);
    EXPECT_EQ(compare(a, b)->verdict, Verdict::same);
    const std::string file = "/step-0000000001/rank-00000.twr";
    const auto time = fs::last_write_time(b + file);
    fs::rename(old + file, b + file);
    fs::last_write_time(b + file, time - std::chrono::hours(1));
    const auto found = compare(a, b);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->verdict, Verdict::incomparable);
    EXPECT_THAT(found->problems,
                ::testing::Contains(HasSubstr(b + file + ": is not the difference that the journal names")));
    RunsOptions direct;
    direct.method = Method::direct;
    const auto read = compare(a, b, direct);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->verdict, Verdict::incomparable);
}

TEST_F(CompareRunsTest, AnotherRecordInThePlaceOfAParent) {
    const std::map<std::string, std::string> record = {{"record", "runs"}};
    const std::vector<double> other(x_.size(), 7.0);
    const auto all = [&](int, std::int64_t) { return std::vector{field("x", x_)}; };
    const auto sevens = [&](int, std::int64_t) { return std::vector{field("x", other)}; };
    const std::string p = capture("p", 1, 3, all, record);
    const std::string q = capture("q", 1, 3, sevens, record);
    const std::string a = capture("a", 1, 3);
    const std::string b = capture("b", 1, 3, all, {{"record", "runs"}, {"record_against", p}});
    EXPECT_EQ(compare(a, b)->verdict, Verdict::same);
    fs::rename(p, path("kept"));
    fs::rename(q, p);
    const auto found = compare(a, b);
    ASSERT_FALSE(found.ok() && found->verdict != Verdict::incomparable);
    EXPECT_THAT(found.ok() ? found->problems.at(0) : found.error().message,
                HasSubstr(p + ": is not the record that " + b + " was captured against"));
}

// What ranks hold that only one run has is never passed over; what the same ranks hold is compared.
TEST_F(CompareRunsTest, OtherNumbersOfRanks) {
    std::vector<double> masses = {1, 2};
    std::vector<double> others = {1, 3};
    const auto with = [&](const std::vector<double>& first) {
        return [&](int rank, std::int64_t) {
            std::vector<CapturedField> fields = {field("x", x_)};
            if (rank == 0) fields.push_back(field("masses", first));
            return fields;
        };
    };
    const std::string a = capture("a", 2, 1, with(masses));
    const std::string b = capture("b", 3, 1, with(masses));
    const std::string c = capture("c", 3, 1, with(others));
    for (const auto& [other, differs] : {std::pair{b, false}, std::pair{c, true}}) {
        const auto found = compare(a, other);
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(found->verdict, Verdict::incomparable);
        ASSERT_THAT(found->fields, SizeIs(1));
        EXPECT_EQ(found->fields[0].name, "masses");
        EXPECT_EQ(found->first.has_value(), differs);
        ASSERT_THAT(found->problems, SizeIs(1));
        EXPECT_THAT(found->problems[0], HasSubstr("field 'x': "));
        EXPECT_THAT(found->problems[0], HasSubstr("step 0, rank 2 of"));
    }
    // `common` leaves no rank out.
    RunsOptions options;
    options.common = true;
    EXPECT_EQ(compare(a, b, options)->verdict, Verdict::incomparable);
}

TEST_F(CompareRunsTest, PartsOfAnArrayThatRanksCutDifferently) {
    const auto parts = [&](std::vector<std::uint64_t> cuts) {
        return [this, cuts](int rank, std::int64_t) {
            const auto r = static_cast<std::size_t>(rank);
            CapturedField part = field("x", x_);
            part.data = x_.data() + cuts[r];
            part.shape = {cuts[r + 1] - cuts[r]};
            part.global_shape = {x_.size()};
            part.global_offset = {cuts[r]};
            return std::vector{part};
        };
    };
    const std::string a = capture("a", 2, 1, parts({0, 500, 2000}));
    const std::string b = capture("b", 2, 1, parts({0, 600, 2000}));
    const std::string c = capture("c", 3, 1, parts({0, 600, 700, 2000}));
    EXPECT_EQ(compare(a, a)->verdict, Verdict::same);
    for (const std::string& other : {b, c}) {
        const auto found = compare(a, other);
        ASSERT_FALSE(found.ok());
        EXPECT_EQ(found.error().code, ErrorCode::mismatch);
        EXPECT_THAT(found.error().message, HasSubstr("field 'x'"));
        EXPECT_THAT(found.error().message, HasSubstr("twinrun compare"));
    }
}

TEST_F(CompareRunsTest, APartOnANodeLocalTier) {
    const std::string a = capture("a", 1, 3);
    static_cast<void>(capture("b", 1, 3, [&](int, std::int64_t) { return std::vector{field("x", x_)}; },
                              {{"local", path("local")}, {"flusher", "none"}}));
    const std::string part = path("local") + "/rank-00000";
    ASSERT_TRUE(fs::is_directory(part));
    const auto found = compare(a, part);
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->verdict, Verdict::same);
    EXPECT_THAT(found->fields, SizeIs(3));
}

TEST_F(CompareRunsTest, AStepThatTheRunRemovesMeanwhile) {
    const std::string a = capture("a", 1, 2);
    const std::string b = capture("b", 1, 2);
    const auto run_a = opened(a);
    const auto run_b = opened(b);
    // A run goes on with b, and keeps its newest step only.
    SessionSettings settings;
    settings.history.tolerance = {1e-6, 0};
    settings.existing = Existing::append;
    ASSERT_TRUE(settings.set("keep_steps", "2").ok());
    auto session = testing::open_run(posix_file_system(), b, settings);
    ASSERT_TRUE(session.ok()) << session.error().message;
    ASSERT_TRUE((*session)->capture_fields(7, {field("x", x_)}).ok());
    ASSERT_TRUE((*session)->close().ok());
    const auto found = compare_runs(*run_a, *run_b, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->verdict, Verdict::incomparable);
    ASSERT_THAT(found->problems, SizeIs(1));
    EXPECT_THAT(found->problems[0], HasSubstr("step 0 was removed from the history while it was read"));
    // It is what only one run has.
    RunsOptions options;
    options.common = true;
    EXPECT_EQ(compare_runs(*run_a, *run_b, options)->verdict, Verdict::same);
}

TEST_F(CompareRunsTest, TheLastStepOfARunThatWasKilled) {
    const std::string a = capture("a", 1, 2);
    const std::string b = capture("b", 1, 2);
    const fs::path manifest = fs::path(b) / "manifest.jsonl";
    fs::resize_file(manifest, fs::file_size(manifest) - 5);
    const auto found = compare(a, b);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->verdict, Verdict::incomparable);
    EXPECT_THAT(found->problems, ElementsAre(HasSubstr("step 1 of " + a)));
    EXPECT_THAT(found->notes, ElementsAre(HasSubstr("was being committed when the run ended")));
}

TEST_F(CompareRunsTest, OptionsWithoutAMeaning) {
    const std::string a = capture("a", 1, 1);
    const auto refused = [&](auto change) {
        RunsOptions options;
        change(options);
        const auto found = compare(a, a, options);
        EXPECT_FALSE(found.ok());
        if (!found.ok()) {
            EXPECT_EQ(found.error().code, ErrorCode::invalid_argument);
        }
    };
    refused([](RunsOptions& o) { o.atol = std::numeric_limits<double>::quiet_NaN(); });
    refused([](RunsOptions& o) { o.rtol = -1; });
    refused([](RunsOptions& o) { o.ulps = Measure::kNoUlps; });
    refused([](RunsOptions& o) { o.method = Method::published; });
    refused([](RunsOptions& o) { o.stream.threads = -1; });
}

// ---- words and JSON ----

TEST(ComparisonWords, AreOneLineOfUtf8) {
    EXPECT_EQ(one_line("a\nb\t\x01\x7f\xff μ\xc2\x85"), "a\\nb\\t\\x01\\x7f\\xff μ\\xc2\\x85");
    EXPECT_LT(one_line(std::string(100000, 'x')).size(), 2100U);
    EXPECT_EQ(in_quotes("x"), "'x'");
    EXPECT_EQ(in_quotes("it's"), "\"it's\"");
    EXPECT_EQ(in_quotes("it's \"x\"\\"), "'it\\'s \"x\"\\\\'");
    const std::vector<std::string> words = {"1", "2", "3", "4", "5", "6", "7"};
    EXPECT_EQ(listed(words), "1, 2, 3, 4, 5 and 2 more");
    EXPECT_EQ(listed(std::span(words).first(5)), "1, 2, 3, 4, 5");
    EXPECT_EQ(place_text(4, 2), "step 4, rank 2");
    EXPECT_EQ(place_text(std::nullopt, 0), "rank 0");
    EXPECT_EQ(error_at(ErrorCode::io, "w", "x", "y").message, "w: x; y");
    EXPECT_EQ(error_at(ErrorCode::io, "", "x").message, "x");
}

RunsResult result_of(double a, double b, double atol) {
    std::vector<double> of_a = {a};
    std::vector<double> of_b = {b};
    const auto run = [](const std::vector<double>& values, const char* label) {
        CapturedField field;
        field.name = "x\"\\\n\xff";
        field.dtype = DType::f64;
        field.shape = {1};
        field.data = values.data();
        return ArraysRun::create({field}, label);
    };
    auto run_a = run(of_a, "arrays a");
    auto run_b = run(of_b, "arrays b");
    RunsOptions options;
    options.atol = atol;
    auto found = compare_runs(**run_a, **run_b, options);
    EXPECT_TRUE(found.ok());
    return found.ok() ? std::move(found).value() : RunsResult{};
}

TEST(ComparisonDocument, IsJsonWhateverTheNumbersAndNames) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const std::vector<double> values = {0, -0.0, 1, 1e-300, 0.1, 1e22, kInf, -kInf, std::nan("")};
    // Another locale has another decimal point.
    const char* const before = std::setlocale(LC_ALL, nullptr);
    const std::string kept = before == nullptr ? "C" : before;
    std::setlocale(LC_ALL, "de_DE.UTF-8");
    for (const double a : values) {
        for (const double b : values) {
            const auto json = nlohmann::json::parse(document(result_of(a, b, 0), "0.1.0"));
            const auto& field = json.at("fields").at(0);
            EXPECT_EQ(field.at("field"), "x\"\\\n\\xff");
            EXPECT_EQ(json.at("verdict"), a == b || (std::isnan(a) && std::isnan(b)) ? "same" : "different");
            if (json.at("verdict") == "same") continue;
            const auto shown = field.at("first_a");
            if (std::isfinite(a)) {
                EXPECT_EQ(shown.get<double>(), a);
                EXPECT_TRUE(shown.is_number_float());
            } else {
                EXPECT_EQ(shown, std::isnan(a) ? "nan" : a > 0 ? "inf" : "-inf");
            }
        }
    }
    std::setlocale(LC_ALL, kept.c_str());
}

TEST(ComparisonVerdict, HasAsManyDigitsAsItTakes) {
    EXPECT_THAT(verdict_line(result_of(0.4667538, 0.4667436, 1e-6)),
                HasSubstr("[0]: 0.4667538 against 0.4667436, |a-b| = 1.02e-05 > 1e-06 (0.0022%)"));
    EXPECT_THAT(verdict_line(result_of(0, 1, 0)), HasSubstr("[0]: 0 against 1, |a-b| = 1 > 0"));
    EXPECT_THAT(verdict_line(result_of(1e-30, 1, 0)), EndsWith("1e-30 against 1, |a-b| = 1 > 0"));
    EXPECT_THAT(verdict_line(result_of(0, 1.0000001e-6, 1e-6)), HasSubstr("|a-b| = 1.0000001e-06 > 1e-06"));
    EXPECT_THAT(verdict_line(result_of(1, 3, 0.5)), HasSubstr("[0]: 1 against 3, |a-b| = 2 > 0.5 (200%)"));
    EXPECT_THAT(verdict_line(result_of(1, std::nan(""), 0.5)), HasSubstr("1 against nan"));
    EXPECT_THAT(verdict_line(result_of(1, 1.25, 0.5)),
                HasSubstr("same: 1 field, 1 step, 1 element (8 B a run) agree within 0.5"));
    EXPECT_EQ(verdict_line(result_of(1, 3, 0.5)).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace twinrun
