#include "source/stream.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "source/tuning.hpp"

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

// Runs of all kinds, one after another, on one team: what one leaves behind is never taken for what
// the next one reads.
TEST_P(Stream, ATeamIsUsedAgain) {
    StreamTeam team;
    for (int round = 0; round < 60; ++round) {
        SCOPED_TRACE(round);
        StreamOptions o = options(1 + round % 4, std::uint64_t{kSlice} << (round % 9));
        o.team = &team;
        const std::size_t slice = kSlice << (round % 3);
        SumJob job(file_, kWords * 8 / slice, slice);
        // Buffers are registered, or not.
        if (round % 2 == 0) job.total = kWords * 8 * kReusesToRegister;
        if (round % 5 == 4) job.total = kWords * 8;  // inline
        if (round % 7 == 5) job.fail_process = 11;
        if (round % 7 == 6) job.fail_plan = 30;
        const auto stats = run_slices(job, o);
        ASSERT_EQ(stats.ok(), round % 7 < 5);
        if (!stats) continue;
        EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
        EXPECT_EQ(job.planned.size(), kWords * 8 / slice);
        EXPECT_EQ(stats.value().bytes_read, kWords * 8);
    }
}

// Several threads, each with runs of all kinds on the same workers: each run has its own slices and
// errors, whatever runs beside it.
TEST_P(Stream, RunsOfSeveralCallersShareWorkers) {
    constexpr std::size_t callers = 3;
    StreamWorkers workers(3, callers);
    ASSERT_EQ(workers.size(), 3);
    std::vector<std::jthread> threads;
    for (std::size_t caller = 0; caller < callers; ++caller) {
        threads.emplace_back([&, caller] {
            StreamTeam team(workers);
            for (std::size_t round = 0; round < 30; ++round) {
                StreamOptions o =
                    options(1 + static_cast<int>((round + caller) % 5), std::uint64_t{kSlice} << (round % 9));
                o.team = &team;
                const std::size_t slice = kSlice << ((round + caller) % 3);
                SumJob job(file_, kWords * 8 / slice, slice);
                if (round % 2 == 0) job.total = kWords * 8 * kReusesToRegister;
                if (round % 5 == 4) job.total = kWords * 8;  // inline
                const bool fails = (round + caller) % 7 > 4;
                if ((round + caller) % 7 == 5) job.fail_process = 11;
                if ((round + caller) % 7 == 6) job.fail_plan = 30;
                const auto stats = run_slices(job, o);
                EXPECT_EQ(stats.ok(), !fails);
                if (!stats) continue;
                EXPECT_LE(stats.value().threads, 3);
                EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
                EXPECT_EQ(job.planned.size(), kWords * 8 / slice);
                EXPECT_EQ(stats.value().bytes_read, kWords * 8);
            }
        });
    }
}

// A run begins on the workers that an earlier one has no more slices for: here the earlier one ends
// only when the later one is over.
TEST_P(Stream, ARunBeginsBeforeTheOneBeforeItEnds) {
    StreamWorkers workers(2, 2);
    std::mutex mutex;
    std::condition_variable changed;
    bool first_began = false;
    bool second_ended = false;
    std::jthread first([&] {
        workers.run(2, [&](int worker) {
            if (worker == 0) return;
            std::unique_lock lock(mutex);
            first_began = true;
            changed.notify_all();
            changed.wait(lock, [&] { return second_ended; });
        });
    });
    {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return first_began; });
    }
    SumJob job(file_, kSlices, kSlice);
    StreamTeam team(workers);
    StreamOptions o = options(1, 1 << 20);
    o.team = &team;
    EXPECT_TRUE(run_slices(job, o));
    EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
    const std::lock_guard lock(mutex);
    second_ended = true;
    changed.notify_all();
}

TEST_P(Stream, FilesInMemoryNeedNoQueue) {
    for (const int threads : {1, 3}) {
        SumJob job(InputFile::open(path_, kWords * 8).value(), kSlices, kSlice);
        const auto stats = run_slices(job, options(threads, 1 << 20));
        ASSERT_TRUE(stats) << stats.error().message;
        EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
        EXPECT_EQ(stats.value().bytes_read, kWords * 8);
    }
}

TEST_P(Stream, PiecesRunOnceEach) {
    for (const int threads : {1, 2, 4}) {
        std::vector<std::uint64_t> bytes;
        std::vector<bool> in_order;
        for (std::size_t at = 0; at < 200; ++at) {
            bytes.push_back(at % 17 == 0 ? kInlineBytes + 1 : at);
            in_order.push_back(at % 5 == 0);
        }
        std::vector<std::atomic<int>> runs(bytes.size());
        std::vector<std::size_t> ordered;
        const auto run = [&](std::size_t at, const StreamOptions& own) -> Result<> {
            ++runs[at];
            if (in_order[at]) ordered.push_back(at);
            if (bytes[at] > kInlineBytes) {
                EXPECT_EQ(own.threads, threads);
            }
            SumJob job(file_, kSlices, kSlice);
            job.total = 1;
            TWR_CHECK(run_slices(job, own));
            EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
            return success();
        };
        ASSERT_TRUE(run_pieces(bytes, in_order, options(threads, 1 << 20), run));
        for (const auto& count : runs)
            EXPECT_EQ(count, 1);
        EXPECT_TRUE(std::ranges::is_sorted(ordered));
        EXPECT_EQ(ordered.size(), 40U);
        for (const std::size_t broken : {0U, 3U, 199U}) {
            const auto result = run_pieces(bytes, in_order, options(threads, 1 << 20),
                                           [&](std::size_t at, const StreamOptions&) -> Result<> {
                                               if (at == broken) return Error{ErrorCode::io, "broken"};
                                               if (at == broken + 40) throw std::runtime_error("broken");
                                               return success();
                                           });
            ASSERT_FALSE(result);
            EXPECT_EQ(result.error().message, "broken");
        }
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

// Work that goes on elsewhere, as on a device: a thread of its own looks at the buffers some time
// after begin() returned.
class ElsewhereJob final : public SliceJob {
   public:
    ElsewhereJob(std::shared_ptr<InputFile> file, std::uint64_t slices, std::size_t slice_bytes, int workers,
                 std::size_t most)
        : file_(std::move(file)), slices_(slices), slice_bytes_(slice_bytes), most_(most) {
        for (int w = 0; w < workers; ++w)
            engines_.push_back(std::make_unique<Engine>(*this));
    }
    [[nodiscard]] std::uint64_t slices() const override { return slices_; }
    [[nodiscard]] std::size_t buffer_bytes() const override { return slice_bytes_; }
    [[nodiscard]] std::uint64_t total_bytes() const override { return total; }
    [[nodiscard]] std::size_t most_under_way() const override { return most_; }
    [[nodiscard]] std::size_t most_slots() const override { return slots; }
    Result<std::byte*> allocate(int worker, std::size_t bytes) override {
        if (!own_memory) return nullptr;
        if (worker == fail_allocate) return Error{ErrorCode::out_of_memory, "allocate failed"};
        auto& memory = engines_[static_cast<std::size_t>(worker)]->memory;
        memory.resize(bytes + kDirectAlignment);
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        allocated += bytes;
        return memory.data() + (kDirectAlignment - address % kDirectAlignment) % kDirectAlignment;
    }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        ReadRequest request;
        request.file = file_.get();
        request.offset = slice * slice_bytes_;
        request.bytes = slice_bytes_;
        request.to = buffer;
        requests.push_back(request);
        return success();
    }
    Result<> process(std::uint64_t, std::byte*, int) override {
        return Error{ErrorCode::internal, "process was called"};
    }
    Result<bool> begin(std::uint64_t slice, std::byte* buffer, int worker) override {
        if (slice == fail_begin) return Error{ErrorCode::io, "begin failed"};
        if (slice == throw_begin) throw std::bad_alloc();
        Engine& engine = *engines_[static_cast<std::size_t>(worker)];
        ++begun;
        if (slice % 7 == 3) {  // some slices need nothing elsewhere
            sum += add_up(buffer);
            ++finished;
            return false;
        }
        engine.order.push_back(slice);
        most_seen = std::max<std::size_t>(most_seen, engine.order.size());
        engine.give(buffer);
        return true;
    }
    Result<> finish(std::uint64_t slice, std::byte* buffer, int worker) override {
        Engine& engine = *engines_[static_cast<std::size_t>(worker)];
        if (engine.order.empty() || engine.order.front() != slice) wrong_order = true;
        engine.order.pop_front();
        const auto [done, part] = engine.take();
        if (done != buffer) wrong_order = true;
        ++finished;
        if (slice == fail_finish) return Error{ErrorCode::io, "finish failed"};
        sum += part;
        return success();
    }
    // Nothing is left elsewhere.
    [[nodiscard]] bool idle() const {
        return std::all_of(engines_.begin(), engines_.end(), [](const auto& e) { return e->order.empty(); });
    }

    std::uint64_t total = 1ULL << 40;
    std::size_t slots = 4;
    bool own_memory = false;
    int fail_allocate = -1;
    std::uint64_t fail_begin = ~0ULL;
    std::uint64_t throw_begin = ~0ULL;
    std::uint64_t fail_finish = ~0ULL;
    std::atomic<std::size_t> allocated{0};
    std::atomic<std::size_t> most_seen{0};
    std::atomic<std::uint64_t> sum{0};
    std::atomic<std::uint64_t> begun{0};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<bool> wrong_order{false};

   private:
    [[nodiscard]] std::uint64_t add_up(const std::byte* buffer) const {
        std::uint64_t part = 0;
        for (std::size_t i = 0; i < slice_bytes_; i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, buffer + i, 8);
            part += word;
        }
        return part;
    }
    struct Engine {
        explicit Engine(ElsewhereJob& job) : owner(job), thread([this] { run(); }) {}
        ~Engine() {
            {
                const std::lock_guard lock(mutex);
                stop = true;
            }
            changed.notify_all();
            thread.join();
        }
        void give(std::byte* buffer) {
            {
                const std::lock_guard lock(mutex);
                todo.push_back(buffer);
            }
            changed.notify_all();
        }
        std::pair<std::byte*, std::uint64_t> take() {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return !done.empty(); });
            const auto first = done.front();
            done.pop_front();
            return first;
        }
        void run() {
            std::unique_lock lock(mutex);
            for (;;) {
                changed.wait(lock, [&] { return stop || !todo.empty(); });
                if (todo.empty()) return;
                std::byte* const buffer = todo.front();
                todo.pop_front();
                lock.unlock();
                std::this_thread::yield();
                const std::uint64_t part = owner.add_up(buffer);
                lock.lock();
                done.emplace_back(buffer, part);
                changed.notify_all();
            }
        }
        ElsewhereJob& owner;
        std::vector<std::byte> memory;
        std::deque<std::uint64_t> order;  // begun by the worker, not finished
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<std::byte*> todo;
        std::deque<std::pair<std::byte*, std::uint64_t>> done;
        bool stop = false;
        std::thread thread;
    };
    std::shared_ptr<InputFile> file_;
    std::uint64_t slices_;
    std::size_t slice_bytes_;
    std::size_t most_;
    std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_P(Stream, WorkElsewhereKeepsItsBuffersAndItsOrder) {
    for (const int threads : {1, 3}) {
        for (const std::size_t most : {1, 2, 3, 8}) {
            for (const std::size_t slots : {1, 2, 4, 9}) {
                for (const bool own_memory : {false, true}) {
                    ElsewhereJob job(file_, kSlices, kSlice, threads, most);
                    job.slots = slots;
                    job.own_memory = own_memory;
                    const auto stats = run_slices(job, options(threads, 1 << 20));
                    ASSERT_TRUE(stats) << stats.error().message;
                    EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
                    EXPECT_EQ(job.begun, kSlices);
                    EXPECT_EQ(job.finished, kSlices);
                    EXPECT_FALSE(job.wrong_order);
                    EXPECT_TRUE(job.idle());
                    EXPECT_LE(job.most_seen, std::min(most, slots));
                    EXPECT_EQ(job.allocated,
                              own_memory ? static_cast<std::size_t>(threads) * slots * kSlice : 0);
                }
            }
        }
    }
    // Inline, too.
    ElsewhereJob job(file_, kSlices, kSlice, 1, 3);
    job.total = kWords * 8;
    job.own_memory = true;
    ASSERT_TRUE(run_slices(job, options(4, 1 << 20)));
    EXPECT_EQ(job.sum, kWords * (kWords - 1) / 2);
    EXPECT_EQ(job.allocated, kSlice);
}

TEST_P(Stream, ErrorsLeaveNothingElsewhereUnderWay) {
    for (const int threads : {1, 3}) {
        for (const int which : {0, 1, 2, 3}) {
            ElsewhereJob job(file_, which == 3 ? kSlices + 1 : kSlices, kSlice, threads, 3);
            if (which == 0) job.fail_begin = 40;
            if (which == 1) job.fail_finish = 39;
            if (which == 2) job.throw_begin = 40;
            const auto result = run_slices(job, options(threads, 1 << 20));
            ASSERT_FALSE(result);
            EXPECT_EQ(result.error().code, which == 2   ? ErrorCode::out_of_memory
                                           : which == 3 ? ErrorCode::damaged
                                                        : ErrorCode::io);
            EXPECT_TRUE(job.idle());
            EXPECT_EQ(job.begun, job.finished);
            EXPECT_FALSE(job.wrong_order);
        }
        ElsewhereJob job(file_, kSlices, kSlice, threads, 3);
        job.own_memory = true;
        job.fail_allocate = threads - 1;
        const auto result = run_slices(job, options(threads, 1 << 20));
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().message, "allocate failed");
        EXPECT_EQ(job.begun, 0U);
    }
}

TEST_P(Stream, AnInterruptWaitsForWhatIsElsewhere) {
    class Endless final : public SliceJob {
       public:
        [[nodiscard]] std::uint64_t slices() const override { return ~0ULL; }
        [[nodiscard]] std::size_t buffer_bytes() const override { return 0; }
        [[nodiscard]] std::uint64_t total_bytes() const override { return ~0ULL; }
        [[nodiscard]] std::size_t most_under_way() const override { return 3; }
        Result<> plan(std::uint64_t, std::byte*, std::vector<ReadRequest>&) override { return success(); }
        Result<> process(std::uint64_t, std::byte*, int) override { return success(); }
        Result<bool> begin(std::uint64_t, std::byte*, int) override {
            ++under_way;
            return true;
        }
        Result<> finish(std::uint64_t, std::byte*, int) override {
            --under_way;
            return success();
        }
        std::atomic<int> under_way{0};
    } endless;
    StreamOptions o = options(2, 1 << 20);
    int asked = 0;
    o.poll = [&](std::uint64_t, std::uint64_t) { return ++asked < 3; };
    const auto result = run_slices(endless, o);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::interrupted);
    EXPECT_EQ(endless.under_way, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, Stream, ::testing::Values(ReadBackend::uring, ReadBackend::pread),
                         [](const auto& param) {
                             return param.param == ReadBackend::uring ? "uring" : "pread";
                         });

}  // namespace
}  // namespace twinrun
