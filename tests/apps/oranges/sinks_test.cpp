// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/oranges/support.hpp"
#include "oranges/graphlets.hpp"
#include "oranges/history_sink.hpp"
#include "oranges/raw_sink.hpp"

namespace oranges {
namespace {

namespace fs = std::filesystem;

class Sinks : public testing::Test {
   protected:
    void SetUp() override {
        folder_ = fs::path(testing::TempDir()) /
                  (std::string("oranges_") + testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::remove_all(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    // Takes two checkpoints and returns what they were.
    std::vector<std::vector<std::uint32_t>> run(StepSink& sink) const {
        std::vector<std::vector<std::uint32_t>> taken;
        GraphletCounter counter(graph_, 2);
        for (std::uint64_t step = 1; step <= 2; ++step) {
            counter.advance(static_cast<Vertex>(step * graph_.vertices() / 2));
            sink.capture(step, counter.counts());
            taken.emplace_back(counter.counts().begin(), counter.counts().end());
        }
        sink.finish();
        return taken;
    }

    static bool begins_with(const fs::path& path, const std::vector<std::uint32_t>& counts) {
        std::ifstream file(path, std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(file), {}};
        return bytes.size() >= counts.size() * sizeof(std::uint32_t) &&
               std::memcmp(bytes.data(), counts.data(), counts.size() * sizeof(std::uint32_t)) == 0;
    }

    fs::path folder_;
    Graph graph_ = random_graph(50, 0.2, 1);
};

TEST_F(Sinks, RawFilesAreTheCounts) {
    RawSink sink(folder_ / "a" / "b");
    const auto taken = run(sink);
    for (std::size_t i = 0; i < 2; ++i) {
        const fs::path path = folder_ / "a/b" / ("step-000000000" + std::to_string(i + 1)) / "rank-00000.gdv";
        EXPECT_EQ(fs::file_size(path), 50 * 73 * 4u);
        EXPECT_TRUE(begins_with(path, taken[i]));
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "a/b"), {}), 2);
    EXPECT_THROW(RawSink(folder_ / "a" / "b"), std::runtime_error);
    std::ofstream(folder_ / "file") << "x";
    EXPECT_THROW(RawSink(folder_ / "file"), std::runtime_error);
}

TEST_F(Sinks, AHistoryHoldsTheCounts) {
    const std::vector<std::string> settings{"background=false"};
    HistorySink sink(folder_.string(), graph_.vertices(), 1, settings);
    const auto taken = run(sink);
    for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(
            begins_with(folder_ / ("step-000000000" + std::to_string(i + 1)) / "rank-00000.data", taken[i]));
    EXPECT_THROW(HistorySink(folder_.string(), 50, 1, settings), std::runtime_error);
    EXPECT_THROW(HistorySink((folder_ / "x").string(), 50, 1, std::vector<std::string>{"nothing=1"}),
                 std::runtime_error);
}

// Counts are exact: a single one that differs is a difference.
TEST_F(Sinks, ASecondRunIsComparedExactly) {
    HistorySink first((folder_ / "a").string(), graph_.vertices(), 1, {});
    const auto taken = run(first);
    const std::vector<std::string> settings{"reference=" + (folder_ / "a").string(),
                                            "stop_on_divergence=true"};
    {
        HistorySink second((folder_ / "b").string(), graph_.vertices(), 1, settings);
        run(second);
    }
    HistorySink third((folder_ / "c").string(), graph_.vertices(), 1, settings);
    third.capture(1, taken[0]);
    auto wrong = taken[1];
    ++wrong[1234];
    EXPECT_THROW(third.capture(2, wrong), std::runtime_error);
}

}  // namespace
}  // namespace oranges
