#include "compare/stream.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

namespace twinrun {
namespace {

// Reads a file of numbered 8-byte words in slices and sums it up.
class SumJob final : public SliceJob {
   public:
    SumJob(std::shared_ptr<InputFile> file, std::uint64_t slices, std::size_t slice_bytes)
        : file_(std::move(file)), slices_(slices), slice_bytes_(slice_bytes) {}
    [[nodiscard]] std::uint64_t slices() const override { return slices_; }
    [[nodiscard]] std::size_t buffer_bytes() const override { return slice_bytes_; }
    [[nodiscard]] std::uint64_t total_bytes() const override { return total; }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        const std::lock_guard lock(mutex);
        planned.insert(slice);
        if (slice == fail_plan) return Error{ErrorCode::io, "plan failed"};
        ReadRequest request;
        request.file = file_.get();
        request.offset = slice * slice_bytes_;
        request.bytes = slice_bytes_;
        request.to = buffer;
        requests.push_back(request);
        return success();
    }
    Result<> process(std::uint64_t slice, std::byte* buffer, int) override {
        if (slice == fail_process) return Error{ErrorCode::io, "process failed"};
        std::uint64_t part = 0;
        for (std::size_t i = 0; i < slice_bytes_; i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, buffer + i, 8);
            part += word;
        }
        sum += part;
        ++processed;
        return success();
    }

    std::uint64_t total = 1ULL << 40;
    std::uint64_t fail_plan = ~0ULL;
    std::uint64_t fail_process = ~0ULL;
    std::mutex mutex;
    std::multiset<std::uint64_t> planned;
    std::atomic<std::uint64_t> sum{0};
    std::atomic<std::uint64_t> processed{0};

   private:
    std::shared_ptr<InputFile> file_;
    std::uint64_t slices_;
    std::size_t slice_bytes_;
};

class Stream : public ::testing::TestWithParam<ReadBackend> {
   protected:
    void SetUp() override {
        if (GetParam() == ReadBackend::uring && !uring_available()) {
            GTEST_SKIP() << "this kernel or container forbids io_uring";
        }
        path_ = std::filesystem::temp_directory_path() /
                ("twinrun_stream_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + "_" +
                 std::to_string(getpid()));
        std::ofstream out(path_, std::ios::binary);
        for (std::uint64_t i = 0; i < kWords; ++i)
            out.write(reinterpret_cast<const char*>(&i), 8);
        out.close();
        file_ = InputFile::open(path_).value();
    }
    void TearDown() override { std::filesystem::remove(path_); }
    [[nodiscard]] StreamOptions options(int threads, std::uint64_t memory) const {
        StreamOptions o;
        o.threads = threads;
        o.memory_bytes = memory;
        o.io = GetParam();
        return o;
    }

    static constexpr std::uint64_t kWords = 64 * 1024;
    static constexpr std::size_t kSlice = 4096;
    static constexpr std::uint64_t kSlices = kWords * 8 / kSlice;
    std::string path_;
    std::shared_ptr<InputFile> file_;
};

TEST_P(Stream, EverySliceOnceWhateverThreadsAndMemory) {
    for (const int threads : {1, 2, 5}) {
        for (const std::uint64_t memory :
             {std::uint64_t{1}, std::uint64_t{kSlice} * 3, std::uint64_t{1} << 30}) {
            SumJob job(file_, kSlices, kSlice);
            const auto stats = run_slices(job, options(threads, memory));
            ASSERT_TRUE(stats) << stats.error().message;
            EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
            EXPECT_EQ(job.processed, kSlices);
            EXPECT_EQ(job.planned.size(), kSlices);
            EXPECT_EQ(stats.value().bytes_read, kWords * 8);
            // Memory for one slot is memory for one worker.
            EXPECT_EQ(stats.value().threads,
                      memory == 1 ? 1 : std::min<int>(threads, memory == kSlice * 3 ? 3 : threads));
        }
    }
}

TEST_P(Stream, SmallWorkIsDoneInline) {
    SumJob job(file_, kSlices, kSlice);
    job.total = kWords * 8;
    const auto stats = run_slices(job, options(4, 1 << 20));
    ASSERT_TRUE(stats);
    EXPECT_EQ(stats.value().threads, 1);
    EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
}

TEST_P(Stream, ErrorsOfPlanProcessAndReadsEndIt) {
    for (const int threads : {1, 3}) {
        SumJob bad_plan(file_, kSlices, kSlice);
        bad_plan.fail_plan = 37;
        auto result = run_slices(bad_plan, options(threads, 1 << 20));
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().message, "plan failed");
        SumJob bad_process(file_, kSlices, kSlice);
        bad_process.fail_process = 41;
        result = run_slices(bad_process, options(threads, 1 << 20));
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().message, "process failed");
        SumJob too_far(file_, kSlices + 1, kSlice);
        result = run_slices(too_far, options(threads, 1 << 20));
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::damaged);
    }
}

TEST_P(Stream, APollThatSaysStopIsAnInterrupt) {
    // Slices without reads that never end by themselves: only the poll ends the run.
    class Endless final : public SliceJob {
       public:
        [[nodiscard]] std::uint64_t slices() const override { return ~0ULL; }
        [[nodiscard]] std::size_t buffer_bytes() const override { return 0; }
        [[nodiscard]] std::uint64_t total_bytes() const override { return ~0ULL; }
        Result<> plan(std::uint64_t, std::byte*, std::vector<ReadRequest>&) override { return success(); }
        Result<> process(std::uint64_t, std::byte*, int) override { return success(); }
    } endless;
    StreamOptions o = options(2, 1 << 20);
    int asked = 0;
    o.poll = [&](std::uint64_t, std::uint64_t) { return ++asked < 3; };
    const auto result = run_slices(endless, o);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::interrupted);
    EXPECT_EQ(asked, 3);
}

INSTANTIATE_TEST_SUITE_P(Backends, Stream, ::testing::Values(ReadBackend::uring, ReadBackend::pread),
                         [](const auto& param) {
                             return param.param == ReadBackend::uring ? "uring" : "pread";
                         });

}  // namespace
}  // namespace twinrun
