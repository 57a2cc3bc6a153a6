// Steps whose data file is large enough to get its size before it is written.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "history/restore.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kItems = (37 << 20) / sizeof(double) + 5;

// Fails one write of the files of data, and counts them.
class FailingWrites final : public testing::ForwardingFileSystem {
   public:
    int fail_at = 0;  // 0: none
    std::atomic<int> writes = 0;

    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
        TWR_TRY(auto file, testing::ForwardingFileSystem::create(path, bytes));
        if (path.find(".data.") == std::string::npos) return file;
        return std::unique_ptr<OutputFile>(std::make_unique<File>(std::move(file), *this));
    }

   private:
    class File final : public OutputFile {
       public:
        File(std::unique_ptr<OutputFile> inner, FailingWrites& of) : inner_(std::move(inner)), of_(of) {}
        Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
            if (++of_.writes == of_.fail_at) return Error{ErrorCode::io, "injected"};
            return inner_->write_at(offset, bytes);
        }
        Result<> sync() override { return inner_->sync(); }
        void set_time(std::int64_t mtime_ns) override { inner_->set_time(mtime_ns); }
        Result<> close() override { return inner_->close(); }

       private:
        std::unique_ptr<OutputFile> inner_;
        FailingWrites& of_;
    };
};

class LargeStepsTest : public ::testing::TestWithParam<const char*> {
   protected:
    LargeStepsTest() : values_(kItems) {
        const fs::path below = *GetParam() != '\0' ? fs::path(GetParam()) : fs::temp_directory_path();
        std::string name = (below / "twinrun-large-XXXXXX").string();
        place_ = ::mkdtemp(name.data());
        std::mt19937_64 random(test_seed(30));
        for (double& x : values_)
            x = static_cast<double>(random() >> 11) * 0x1p-53;
    }
    ~LargeStepsTest() override { fs::remove_all(place_); }

    [[nodiscard]] std::unique_ptr<Session> open(FileSystem& system, const std::string& name, int threads) {
        SessionSettings settings;
        settings.history.tolerance.atol = 1e-6;
        settings.history.residue_bits = 0;
        settings.flush_threads = threads;
        auto run = Session::open(system, comm_, (place_ / name).string(), settings);
        EXPECT_TRUE(run) << run.error().message;
        return std::move(run).value();
    }
    [[nodiscard]] CapturedField field() {
        CapturedField field;
        field.name = "x";
        field.dtype = DType::f64;
        field.shape = {values_.size()};
        field.data = values_.data();
        return field;
    }

    fs::path place_;
    std::vector<double> values_;
    SelfComm comm_;
};

INSTANTIATE_TEST_SUITE_P(Folders, LargeStepsTest, ::testing::Values("", "/dev/shm"),
                         [](const auto& one) { return *one.param == '\0' ? "Temporary" : "Memory"; });

TEST_P(LargeStepsTest, TheFileIsTheSameWhateverTheNumberOfThreads) {
    for (const int threads : {1, 2, 7}) {
        const std::string name = "run" + std::to_string(threads);
        auto run = open(posix_file_system(), name, threads);
        const auto report = run->capture_fields(0, {field()});
        ASSERT_TRUE(report) << report.error().message;
        const auto lost = run->close();
        ASSERT_TRUE(lost && lost->empty());
        const auto data =
            read_whole_file((place_ / name / "step-0000000000" / "rank-00000.data").string(), 1 << 30);
        ASSERT_TRUE(data) << data.error().message;
        // The last page is filled with zeros (spec/history.md).
        std::vector<std::byte> expected((kItems * sizeof(double) + 4095) / 4096 * 4096);
        std::memcpy(expected.data(), values_.data(), kItems * sizeof(double));
        EXPECT_TRUE(*data == expected) << threads << " threads";
        fs::remove_all(place_ / name);
    }
}

TEST_P(LargeStepsTest, OneFailedWriteLosesTheStepAndSaysSo) {
    FailingWrites system;
    {
        auto run = open(system, "counted", 4);
        ASSERT_TRUE(run->capture_fields(0, {field()}));
        ASSERT_TRUE(run->close());
    }
    fs::remove_all(place_ / "counted");  // /dev/shm of a container may have no room for two
    const int writes = system.writes;
    ASSERT_GE(writes, 9);
    for (const int at : {1, writes / 2, writes}) {
        SCOPED_TRACE("write " + std::to_string(at) + " of " + std::to_string(writes));
        const std::string name = "run" + std::to_string(at);
        system.writes = 0;
        system.fail_at = at;
        auto run = open(system, name, 4);
        auto report = run->capture_fields(7, {field()});
        ASSERT_TRUE(report) << report.error().message;
        auto lost = run->wait();
        ASSERT_TRUE(lost) << lost.error().message;
        if (!report->lost.empty()) lost->insert(lost->end(), report->lost.begin(), report->lost.end());
        ASSERT_EQ(lost->size(), 1U);
        EXPECT_EQ(lost->front().step, 7);
        EXPECT_NE(lost->front().error.message.find("injected"), std::string::npos);
        // The next one is taken as if nothing had been.
        system.fail_at = 0;
        ASSERT_TRUE(run->capture_fields(8, {field()}));
        const auto rest = run->close();
        ASSERT_TRUE(rest && rest->empty());
        const auto history = History::open((place_ / name).string());
        ASSERT_TRUE(history) << history.error().message;
        ASSERT_EQ(history->steps.size(), 1U);
        EXPECT_EQ(history->steps.front().step, 8);
        EXPECT_FALSE(fs::exists(place_ / name / "step-0000000007"));
        fs::remove_all(place_ / name);
    }
}

}  // namespace
}  // namespace twinrun
