// A session while memory is not there: each step is committed, or told to be lost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>

#include "capture/pipeline.hpp"
#include "capture/session.hpp"
#include "capture/tiers.hpp"
#include "support/session_mishaps.hpp"

// Allocations of the whole program: the one that is counted down to fails.
namespace {
std::atomic<std::int64_t> allocations_left = -1;  // below 0: none fails

void* counted(std::size_t bytes, std::size_t alignment) {
    if (allocations_left.load(std::memory_order_relaxed) >= 0 && allocations_left.fetch_sub(1) == 0)
        throw std::bad_alloc();
    void* const at = alignment == 0
                         ? std::malloc(bytes == 0 ? 1 : bytes)
                         : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (at == nullptr) throw std::bad_alloc();
    return at;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 0); }
void* operator new[](std::size_t bytes) { return counted(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t to) {
    return counted(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to) {
    return counted(bytes, static_cast<std::size_t>(to));
}
// Those that say failure with a null never fail here; they must go with the operators below all the same.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    const auto alignment = static_cast<std::size_t>(to);
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    return operator new(bytes, to, std::nothrow);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::SessionMishaps;

struct NoneFails {
    NoneFails() = default;
    NoneFails(const NoneFails&) = delete;
    NoneFails& operator=(const NoneFails&) = delete;
    ~NoneFails() { allocations_left = -1; }
};

// Any single allocation fails, in whatever thread: each step is there, or told to be lost, and only once.
TEST_F(SessionMishaps, AnyAllocationFails) {
    const NoneFails afterwards;
    for (const int kind : {0, 1, 2, 3, 4, 5}) {
        int misses = 0;
        for (std::int64_t at = kind; misses < 3; at += at < 60 ? 1 : 23) {
            SCOPED_TRACE("kind " + std::to_string(kind) + ", allocation " + std::to_string(at));
            fs::remove_all(folder_);
            fs::create_directories(folder_);
            SessionSettings s = settings();
            if (kind == 1) s.local = local_;
            s.background = kind != 2 && kind != 5;
            if (kind >= 4) s.shared_files = SharedFiles::one;
            s.history.keep_data = kind != 3;
            s.keep.data_steps = kind == 1 ? 1 : 0;
            std::vector<double> values(kind == 0 ? 700'000 : 3000);
            std::array<int, 3> told{};  // no memory is taken in between
            const auto tell = [&](std::int64_t step) { ++told[static_cast<std::size_t>(step)]; };
            {
                auto run = open(s);
                ASSERT_TRUE(run) << run.error().message;
                for (std::int64_t step = 0; step < 3; ++step) {
                    const std::int64_t left = step == 0 ? -1 : allocations_left.exchange(-1);
                    std::vector<CapturedField> fields{field(values, step)};
                    allocations_left = step == 1 ? at : left;
                    const auto report = (*run)->capture_fields(step, std::move(fields));
                    if (!report) {
                        tell(step);
                        continue;
                    }
                    for (const LostStep& lost : report->lost)
                        tell(lost.step);
                }
                const auto lost = (*run)->close();
                misses += allocations_left.exchange(-1) >= 0 ? 1 : 0;
                ASSERT_TRUE(lost);
                for (const LostStep& step : *lost)
                    tell(step.step);
            }
            const auto steps = check(run_);
            for (std::int64_t step = 0; step < 3; ++step) {
                EXPECT_LE(told[static_cast<std::size_t>(step)], 1);
                EXPECT_TRUE(told[static_cast<std::size_t>(step)] == 1 ||
                            std::binary_search(steps.begin(), steps.end(), step))
                    << step;
            }
            s.existing = Existing::append;
            auto run = open(s);
            ASSERT_TRUE(run) << run.error().message;
            ASSERT_TRUE((*run)->capture_fields(9, {field(values, 9)}));
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
            EXPECT_EQ(check(run_).back(), 9);
            if (HasFailure()) return;
        }
    }
}

// Any single allocation fails while threads start: those that run already do the work, or none was started.
TEST_F(SessionMishaps, AnyAllocationOfAPipelineFails) {
    const NoneFails afterwards;
    const auto tiers = Tiers::open(posix_file_system(), run_, 0, 1, {}, [](std::int64_t, const Error*) {});
    ASSERT_TRUE(tiers) << tiers.error().message;
    const Pipeline::Lost lost = [](const PendingStep&, const Error&) {};
    const Pipeline::Diverged diverged = [](const Divergence&) {};
    int begun = 0;
    for (std::int64_t at = 0, misses = 0; misses < 3; ++at) {
        allocations_left = at;
        try {
            Pipeline pipeline(**tiers, nullptr, 1 << 20, 8, lost, diverged);
            pipeline.drain();
            ++begun;
        } catch (const std::bad_alloc&) {  // the first thread, or the room for all of them
        }
        misses += allocations_left.exchange(-1) >= 0 ? 1 : 0;
    }
    EXPECT_GT(begun, 3);
}

}  // namespace
}  // namespace twinrun
