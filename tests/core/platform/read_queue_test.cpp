// Reads that wait in a queue, by both backends, and which backend is taken.
#include "platform/file_io.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "platform/file_io_internal.hpp"
#include "support/files.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using Folder = testing::FreshFolder;
using testing::aligned;
using testing::noise;
using testing::one_line;
using testing::put;
using testing::rounded_up;

// ---- both queues, the same tests ----

class ReadQueueTest : public ::testing::TestWithParam<ReadBackend> {
   protected:
    void SetUp() override {
        if (GetParam() == ReadBackend::uring && !uring_available()) {
            GTEST_SKIP() << file_io::probe_uring().error().message;
        }
    }

    static std::unique_ptr<ReadQueue> make(std::size_t depth = 16, int threads = 3) {
        auto queue = make_read_queue({.backend = GetParam(), .depth = depth, .threads = threads});
        EXPECT_TRUE(queue.ok());
        return queue.ok() ? std::move(*queue) : nullptr;
    }

    std::shared_ptr<InputFile> open(std::span<const std::byte> bytes) {
        const std::string path = folder_ / ("data" + std::to_string(files_++));
        put(path, bytes);
        auto file = InputFile::open(path);
        EXPECT_TRUE(file.ok());
        return file.ok() ? *file : nullptr;
    }

    static ReadCompletion only(ReadQueue& queue, const ReadRequest& request) {
        EXPECT_TRUE(queue.submit({&request, 1}).ok());
        EXPECT_EQ(queue.outstanding(), 1U);
        std::vector<ReadCompletion> done;
        EXPECT_TRUE(queue.wait(1, done).ok());
        EXPECT_EQ(done.size(), 1U);
        EXPECT_EQ(queue.outstanding(), 0U);
        return done.empty() ? ReadCompletion{} : done.front();
    }

    Folder folder_;
    int files_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Backends, ReadQueueTest, ::testing::Values(ReadBackend::uring, ReadBackend::pread),
                         [](const auto& test) {
                             return test.param == ReadBackend::uring ? "uring" : "pread";
                         });

TEST_P(ReadQueueTest, TheForcedBackendRuns) {
    const auto queue = make(7);
    EXPECT_STREQ(queue->name(), GetParam() == ReadBackend::uring ? "io_uring" : "pread");
    EXPECT_EQ(queue->depth(), 7U);
    EXPECT_EQ(queue->outstanding(), 0U);
}

TEST_P(ReadQueueTest, RandomRequestsEqualTheFile) {
    const auto bytes = noise(3'000'017);
    const auto file = open(bytes);
    for (const bool registered : {false, true}) {
        const auto queue = make(16);
        std::mt19937_64 random(7);
        constexpr std::size_t slot = 100'000;
        std::vector<std::byte> memory(64 * slot);
        if (registered) {
            // The other half is read the plain way.
            const std::span<std::byte> half(memory.data(), memory.size() / 2);
            ASSERT_TRUE(queue->register_buffers({&half, 1}).ok());
        }
        for (int round = 0; round < 10; ++round) {
            std::vector<ReadRequest> requests;
            for (std::size_t i = 0; i < 64; ++i) {
                const std::size_t length = random() % (slot + 1);
                requests.push_back({.file = file.get(),
                                    .offset = random() % (bytes.size() - length + 1),
                                    .bytes = length,
                                    .to = memory.data() + i * slot,
                                    .tag = i});
            }
            ASSERT_TRUE(queue->submit(requests).ok());
            std::vector<ReadCompletion> done;
            while (queue->outstanding() > 0) {
                const std::size_t before = done.size();
                ASSERT_TRUE(queue->wait(5, done).ok());
                ASSERT_GE(done.size(), before + 1);
            }
            ASSERT_EQ(done.size(), requests.size());
            std::vector<bool> seen(requests.size());
            for (const auto& completion : done) {
                ASSERT_FALSE(completion.error) << completion.error->message;
                ASSERT_FALSE(seen[completion.tag]) << "twice";
                seen[completion.tag] = true;
                const auto& request = requests[completion.tag];
                ASSERT_EQ(completion.bytes, request.bytes);
                ASSERT_TRUE(std::equal(request.to, request.to + request.bytes,
                                       bytes.begin() + static_cast<std::ptrdiff_t>(request.offset)));
            }
        }
    }
}

TEST_P(ReadQueueTest, DeeperThanTheDepth) {
    const auto bytes = noise(1 << 20);
    const auto file = open(bytes);
    for (const std::size_t depth : {1U, 2U, 3U, 64U}) {
        const auto queue = make(depth, 2);
        constexpr std::size_t count = 1000;
        std::vector<std::byte> memory(count * 64);
        std::vector<ReadRequest> requests;
        for (std::size_t i = 0; i < count; ++i) {
            requests.push_back(
                {.file = file.get(), .offset = i * 997, .bytes = 64, .to = memory.data() + i * 64, .tag = i});
        }
        ASSERT_TRUE(queue->submit(std::span(requests).first(300)).ok());
        ASSERT_TRUE(queue->submit(std::span(requests).subspan(300)).ok());
        EXPECT_EQ(queue->outstanding(), count);
        std::vector<ReadCompletion> done;
        ASSERT_TRUE(queue->wait(count + 5, done).ok()) << "more than there are: all";
        ASSERT_EQ(done.size(), count);
        EXPECT_EQ(queue->outstanding(), 0U);
        for (std::size_t i = 0; i < count; ++i) {
            ASSERT_TRUE(std::equal(memory.begin() + static_cast<std::ptrdiff_t>(i * 64),
                                   memory.begin() + static_cast<std::ptrdiff_t>(i * 64 + 64),
                                   bytes.begin() + static_cast<std::ptrdiff_t>(i * 997)));
        }
    }
}

TEST_P(ReadQueueTest, TagsComeBackAsGiven) {
    const auto bytes = noise(10'000);
    const auto file = open(bytes);
    const auto queue = make(8);
    std::mt19937_64 random(3);
    std::vector<std::byte> memory(500);
    std::map<std::uint64_t, int> expected;
    std::vector<ReadRequest> requests;
    for (std::size_t i = 0; i < 500; ++i) {
        const std::uint64_t tag = i % 3 == 0 ? ~std::uint64_t{0} : random();
        ++expected[tag];
        requests.push_back({.file = file.get(),
                            .offset = i,
                            .bytes = i % 7 == 0 ? 0U : 1U,
                            .to = memory.data() + i,
                            .tag = tag});
    }
    ASSERT_TRUE(queue->submit(requests).ok());
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(500, done).ok());
    for (const auto& completion : done)
        --expected[completion.tag];
    for (const auto& [tag, left] : expected)
        EXPECT_EQ(left, 0) << tag;
}

TEST_P(ReadQueueTest, WaitingForNothingReturns) {
    const auto queue = make();
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(0, done).ok());
    ASSERT_TRUE(queue->wait(10, done).ok());
    EXPECT_TRUE(done.empty());
}

TEST_P(ReadQueueTest, PollingGetsThere) {
    const auto bytes = noise(1 << 20);
    const auto file = open(bytes);
    const auto queue = make(2);
    auto memory = aligned(1 << 20);
    std::vector<ReadRequest> requests;
    for (std::size_t i = 0; i < 16; ++i) {
        requests.push_back({.file = file.get(),
                            .offset = i << 16,
                            .bytes = 1 << 16,
                            .to = memory.get() + (i << 16),
                            .direct = true});
    }
    ASSERT_TRUE(queue->submit(requests).ok());
    std::vector<ReadCompletion> done;
    while (queue->outstanding() > 0) {
        ASSERT_TRUE(queue->wait(0, done).ok());
        std::this_thread::yield();
    }
    EXPECT_EQ(done.size(), 16U);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
}

TEST_P(ReadQueueTest, DirectReadsWithUnalignedFileEnd) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
                                   std::size_t{65536}, std::size_t{1'000'003}}) {
        const auto bytes = noise(size);
        const auto file = open(bytes);
        const auto queue = make(4);
        constexpr std::size_t piece = 65536;
        auto memory = aligned(rounded_up(size) + piece);
        const std::span<std::byte> all(memory.get(), rounded_up(size) + piece);
        ASSERT_TRUE(queue->register_buffers({&all, 1}).ok());
        std::vector<ReadRequest> requests;
        for (std::size_t at = 0; at < size; at += piece) {
            const std::size_t wanted = std::min(piece, size - at);
            requests.push_back({.file = file.get(),
                                .offset = at,
                                .bytes = static_cast<std::size_t>(rounded_up(wanted)),
                                .to = memory.get() + at,
                                .direct = true,
                                .at_least = wanted,
                                .tag = wanted});
        }
        ASSERT_TRUE(queue->submit(requests).ok());
        std::vector<ReadCompletion> done;
        ASSERT_TRUE(queue->wait(requests.size(), done).ok());
        for (const auto& completion : done) {
            ASSERT_FALSE(completion.error) << completion.error->message;
            EXPECT_EQ(completion.bytes, completion.tag);
        }
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get())) << size;
    }
}

TEST_P(ReadQueueTest, TruncatedFile) {
    const auto file = open(noise(10'000));
    const auto queue = make();
    auto memory = aligned(16384);
    for (const bool direct : {false, true}) {
        const auto cut =
            only(*queue,
                 {.file = file.get(), .offset = 8192, .bytes = 4096, .to = memory.get(), .direct = direct});
        ASSERT_TRUE(cut.error);
        EXPECT_EQ(cut.error->code, ErrorCode::damaged);
        EXPECT_EQ(cut.bytes, 10'000U - 8192U);
        const std::string& text = cut.error->message;
        EXPECT_TRUE(one_line(text));
        EXPECT_EQ(text.rfind(file->path() + ": truncated: ", 0), 0U) << text;
        EXPECT_NE(text.find("4096 bytes requested at offset 8192, only 1808 there"), std::string::npos)
            << text;
        EXPECT_NE(text.find("the file has 10000 bytes"), std::string::npos) << text;
        const auto beyond = only(
            *queue,
            {.file = file.get(), .offset = 1 << 20, .bytes = 4096, .to = memory.get(), .direct = direct});
        ASSERT_TRUE(beyond.error);
        EXPECT_EQ(beyond.error->code, ErrorCode::damaged);
        EXPECT_EQ(beyond.bytes, 0U);
    }
    // One bad read among good ones spoils only itself.
    std::vector<ReadRequest> requests;
    for (std::uint64_t i = 0; i < 12; ++i) {
        requests.push_back(
            {.file = file.get(), .offset = i * 1000, .bytes = 1000, .to = memory.get() + i * 1000, .tag = i});
    }
    ASSERT_TRUE(queue->submit(requests).ok());
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(12, done).ok());
    for (const auto& completion : done)
        EXPECT_EQ(completion.error.has_value(), completion.tag >= 10) << completion.tag;
}

TEST_P(ReadQueueTest, FileThatShrinksAfterOpen) {
    const auto file = open(noise(100'000));
    ASSERT_NE(file->direct_descriptor(), -2);
    ASSERT_EQ(::truncate(file->path().c_str(), 50'000), 0);
    const auto queue = make();
    auto memory = aligned(rounded_up(100'000));
    for (const bool direct : {false, true}) {
        const auto done = only(*queue, {.file = file.get(),
                                        .bytes = static_cast<std::size_t>(rounded_up(100'000)),
                                        .to = memory.get(),
                                        .direct = direct,
                                        .at_least = 100'000});
        ASSERT_TRUE(done.error);
        EXPECT_EQ(done.error->code, ErrorCode::damaged);
        EXPECT_EQ(done.bytes, 50'000U);
        EXPECT_NE(done.error->message.find("has 50000 bytes (100000 when it was opened)"), std::string::npos)
            << done.error->message;
    }
}

TEST_P(ReadQueueTest, ZeroLength) {
    const auto file = open(noise(100));
    const auto empty = open({});
    const auto queue = make();
    std::byte nothing{};
    for (InputFile* from : {file.get(), empty.get()}) {
        for (const std::uint64_t offset : {0U, 50U, 1000U}) {
            const auto done =
                only(*queue, {.file = from, .offset = offset, .bytes = 0, .to = &nothing, .tag = 9});
            EXPECT_FALSE(done.error);
            EXPECT_EQ(done.bytes, 0U);
            EXPECT_EQ(done.tag, 9U);
        }
    }
    EXPECT_FALSE(only(*queue, {.file = file.get()}).error) << "not even a buffer is needed";
    const auto done = only(*queue, {.file = empty.get(), .bytes = 1, .to = &nothing});
    ASSERT_TRUE(done.error);
    EXPECT_EQ(done.error->code, ErrorCode::damaged);
    ASSERT_TRUE(queue->submit({}).ok());
}

TEST_P(ReadQueueTest, ClosedDescriptor) {
    const auto file = open(noise(5000));
    const int saved = ::fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0);
    ASSERT_GE(saved, 0);
    {
        const auto queue = make(4, 1);  // before the close, or the ring would get the number
        ASSERT_EQ(::close(file->descriptor()), 0);
        std::byte byte{};
        const auto done = only(*queue, {.file = file.get(), .offset = 3, .bytes = 1, .to = &byte});
        ASSERT_TRUE(done.error);
        EXPECT_EQ(done.error->code, ErrorCode::io);
        EXPECT_TRUE(one_line(done.error->message));
        EXPECT_NE(done.error->message.find(file->path()), std::string::npos) << done.error->message;
        EXPECT_NE(done.error->message.find("offset 3"), std::string::npos) << done.error->message;
    }
    ASSERT_EQ(::dup2(saved, file->descriptor()), file->descriptor());
    ::close(saved);
}

// A descriptor that was closed by mistake may become a pipe's: a read from it never ends, the queue
// must.
TEST_P(ReadQueueTest, TearDownWithReadsThatNeverEnd) {
    const auto file = open(noise(5000));
    const int saved = ::fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0);
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    ASSERT_EQ(::dup2(pipe[0], file->descriptor()), file->descriptor());
    {
        const auto queue = make(2, 1);
        std::byte bytes[5] = {};
        std::vector<ReadRequest> requests;
        for (auto& byte : bytes)
            requests.push_back({.file = file.get(), .bytes = 1, .to = &byte});
        ASSERT_TRUE(queue->submit(requests).ok());
    }
    ASSERT_EQ(::dup2(saved, file->descriptor()), file->descriptor());
    for (const int descriptor : {saved, pipe[0], pipe[1]})
        ::close(descriptor);
}

TEST_P(ReadQueueTest, RequestsWithoutMeaningAreRefusedWhole) {
    const auto file = open(noise(10'000));
    const auto queue = make();
    auto memory = aligned(8192);
    const ReadRequest good{.file = file.get(), .bytes = 10, .to = memory.get()};
    const std::vector<ReadRequest> bad = {
        {.bytes = 10, .to = memory.get()},
        {.file = file.get(), .bytes = 10},
        {.file = file.get(), .bytes = 10, .to = memory.get(), .at_least = 11},
        {.file = file.get(), .offset = ~std::uint64_t{0}, .bytes = 10, .to = memory.get()},
        {.file = file.get(), .offset = 1, .bytes = 4096, .to = memory.get(), .direct = true},
        {.file = file.get(), .bytes = 4095, .to = memory.get(), .direct = true},
        {.file = file.get(), .bytes = 4096, .to = memory.get() + 1, .direct = true},
    };
    for (const auto& request : bad) {
        const std::vector<ReadRequest> both = {good, request};
        const auto outcome = queue->submit(both);
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, ErrorCode::invalid_argument);
        EXPECT_TRUE(one_line(outcome.error().message));
        EXPECT_EQ(queue->outstanding(), 0U);
    }
    EXPECT_FALSE(only(*queue, good).error);
}

TEST_P(ReadQueueTest, WithoutDirectReadsThePageCacheServes) {
    auto file = InputFile::open("/proc/self/maps");  // no O_DIRECT there
    if (!file.ok()) GTEST_SKIP() << file.error().message;
    if ((*file)->direct_descriptor() != -1) GTEST_SKIP() << "this kernel reads /proc with O_DIRECT";
    const auto queue = make();
    auto memory = aligned(4096);
    const auto done = only(
        *queue, {.file = file->get(), .bytes = 4096, .to = memory.get(), .direct = true, .at_least = 10});
    EXPECT_FALSE(done.error) << done.error->message;
    EXPECT_GE(done.bytes, 10U);
}

TEST_P(ReadQueueTest, BuffersDoNotChangeUnderReads) {
    const auto file = open(noise(100));
    const auto queue = make();
    std::vector<std::byte> memory(100);
    const std::span<std::byte> all(memory);
    const ReadRequest request{.file = file.get(), .bytes = 100, .to = memory.data()};
    ASSERT_TRUE(queue->register_buffers({&all, 1}).ok());
    ASSERT_TRUE(queue->register_buffers({&all, 1}).ok());
    ASSERT_TRUE(queue->submit({&request, 1}).ok());
    if (GetParam() == ReadBackend::uring) {
        EXPECT_FALSE(queue->register_buffers({&all, 1}).ok());
    }
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(1, done).ok());
    ASSERT_TRUE(queue->register_buffers({}).ok());
    EXPECT_FALSE(only(*queue, request).error);
}

TEST_P(ReadQueueTest, TearDownWithReadsUnderWay) {
    const auto bytes = noise(4 << 20);
    const auto file = open(bytes);
    for (int round = 0; round < 20; ++round) {
        auto memory = aligned(4 << 20);
        auto queue = make(8);
        std::vector<ReadRequest> requests;
        for (std::size_t i = 0; i < 64; ++i) {
            requests.push_back({.file = file.get(),
                                .offset = i << 16,
                                .bytes = 1 << 16,
                                .to = memory.get() + (i << 16),
                                .direct = round % 2 == 0});
        }
        ASSERT_TRUE(queue->submit(requests).ok());
        std::vector<ReadCompletion> done;
        if (round % 3 == 0) {
            ASSERT_TRUE(queue->wait(3, done).ok());
        }
        queue.reset();
        // Whatever was under way has landed: this must not race with the kernel or a thread.
        std::memset(memory.get(), round, 4 << 20);
        ASSERT_EQ(std::count(memory.get(), memory.get() + (4 << 20), static_cast<std::byte>(round)), 4 << 20);
    }
}

TEST_P(ReadQueueTest, MovesBetweenThreads) {
    const auto bytes = noise(1 << 20);
    const auto file = open(bytes);
    auto queue = make(4);
    auto memory = aligned(1 << 20);
    // Submitted by a thread that ends before its reads are collected.
    std::thread([&] {
        std::vector<ReadRequest> requests;
        for (std::size_t i = 0; i < 16; ++i) {
            requests.push_back({.file = file.get(),
                                .offset = i << 16,
                                .bytes = 1 << 16,
                                .to = memory.get() + (i << 16),
                                .direct = true});
        }
        EXPECT_TRUE(queue->submit(requests).ok());
    }).join();
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(16, done).ok());
    for (const auto& completion : done)
        EXPECT_FALSE(completion.error) << completion.error->message;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
}

TEST_P(ReadQueueTest, AForkedChildLeavesTheParentsQueueAlone) {
    const auto bytes = noise(1 << 20);
    const auto file = open(bytes);
    auto queue = make(4);
    auto memory = aligned(1 << 20);
    const ReadRequest request{.file = file.get(), .bytes = 1 << 20, .to = memory.get(), .direct = true};
    ASSERT_TRUE(queue->submit({&request, 1}).ok());
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        std::vector<ReadCompletion> done;
        const bool refused = !queue->wait(1, done).ok() && !queue->submit({&request, 1}).ok();
        queue.reset();
        ::_exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue->wait(1, done).ok());
    ASSERT_EQ(done.size(), 1U);
    EXPECT_FALSE(done[0].error);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
}

TEST_P(ReadQueueTest, ManyQueuesAtOnce) {
    const auto bytes = noise(300'000);
    const auto file = open(bytes);
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&, seed] {
            const auto queue = make(4, 2);
            std::mt19937_64 random(seed);
            for (int i = 0; i < 50; ++i) {
                std::vector<std::byte> memory(1 + random() % 5000);
                const std::uint64_t offset = random() % (bytes.size() - memory.size());
                const auto done =
                    only(*queue,
                         {.file = file.get(), .offset = offset, .bytes = memory.size(), .to = memory.data()});
                EXPECT_FALSE(done.error);
                EXPECT_TRUE(std::equal(memory.begin(), memory.end(),
                                       bytes.begin() + static_cast<std::ptrdiff_t>(offset)));
                EXPECT_GE(file->direct_descriptor(), -1);
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
}

// ---- one request, answers made up ----

TEST(ReadProgressTest, ContinuesShortReads) {
    Folder folder;
    put(folder / "x", noise(100'000));
    const auto file = InputFile::open(folder / "x").value();
    std::vector<std::byte> memory(1000);
    file_io::ReadProgress progress(
        {.file = file.get(), .offset = 5, .bytes = 1000, .to = memory.data(), .tag = 4});
    EXPECT_EQ(progress.next().bytes, 1000U);
    EXPECT_FALSE(progress.advance(1));
    EXPECT_FALSE(progress.advance(-EINTR));
    EXPECT_EQ(progress.next().offset, 6U);
    EXPECT_EQ(progress.next().bytes, 999U);
    EXPECT_EQ(progress.next().to, memory.data() + 1);
    EXPECT_FALSE(progress.advance(-EAGAIN));
    EXPECT_TRUE(progress.would_block());
    EXPECT_FALSE(progress.advance(998));
    EXPECT_FALSE(progress.would_block());
    EXPECT_TRUE(progress.advance(1));
    const auto done = progress.take_completion();
    EXPECT_EQ(done.bytes, 1000U);
    EXPECT_EQ(done.tag, 4U);
    EXPECT_FALSE(done.error);
}

TEST(ReadProgressTest, DirectContinuesDirectWhereAlignedElseThroughTheCache) {
    Folder folder;
    put(folder / "x", noise(100'000));
    const auto file = InputFile::open(folder / "x").value();
    if (file->direct_descriptor() < 0) GTEST_SKIP() << "no O_DIRECT in " << folder.path();
    auto memory = aligned(65536);
    const ReadRequest request{.file = file.get(), .bytes = 65536, .to = memory.get(), .direct = true};
    file_io::ReadProgress progress(request);
    EXPECT_EQ(progress.next().descriptor, file->direct_descriptor());
    EXPECT_FALSE(progress.advance(8192));
    EXPECT_EQ(progress.next().descriptor, file->direct_descriptor());
    EXPECT_FALSE(progress.advance(100));
    EXPECT_EQ(progress.next().descriptor, file->descriptor());
    EXPECT_EQ(progress.next().offset, 8292U);
    EXPECT_TRUE(progress.advance(0));
    EXPECT_EQ(progress.take_completion().error->code, ErrorCode::damaged);

    file_io::ReadProgress refused(request);
    EXPECT_FALSE(refused.advance(-EINVAL)) << "larger sectors than ours: the page cache has none";
    EXPECT_EQ(refused.next().descriptor, file->descriptor());
    EXPECT_TRUE(refused.advance(-EINVAL));
    EXPECT_EQ(refused.take_completion().error->code, ErrorCode::io);
}

TEST(ReadProgressTest, GivesUpInTheEnd) {
    Folder folder;
    put(folder / "x", noise(100));
    const auto file = InputFile::open(folder / "x").value();
    std::byte byte{};
    file_io::ReadProgress progress({.file = file.get(), .bytes = 1, .to = &byte});
    int asked = 1;
    while (!progress.advance(-EAGAIN))
        ASSERT_LT(++asked, 1'000'000);
    EXPECT_EQ(progress.take_completion().error->code, ErrorCode::io);
    file_io::ReadProgress broken({.file = file.get(), .bytes = 1, .to = &byte});
    EXPECT_TRUE(broken.advance(-EIO));
    const auto done = broken.take_completion();
    EXPECT_NE(done.error->message.find("input/output error"), std::string::npos) << done.error->message;
}

TEST(ReadProgressTest, LengthsBeyondOneSystemCall) {
    Folder folder;
    put(folder / "x", noise(100));
    const auto file = InputFile::open(folder / "x").value();
    std::byte byte{};  // never written: the answers are made up
    file_io::ReadProgress progress({.file = file.get(), .bytes = std::size_t{5} << 30, .to = &byte});
    std::uint64_t total = 0;
    for (bool finished = false; !finished;) {
        const auto step = progress.next();
        EXPECT_EQ(step.offset, total);
        EXPECT_LE(step.bytes, std::size_t{0x7ffff000});
        total += step.bytes;
        finished = progress.advance(static_cast<std::int64_t>(step.bytes));
    }
    EXPECT_EQ(total, std::uint64_t{5} << 30);
}

// ---- the choice of a backend ----

class EnvironmentTest : public ::testing::Test {
   protected:
    void SetUp() override {
        if (const char* value = std::getenv("TWINRUN_IO")) saved_ = value;
    }
    void TearDown() override {
        if (saved_) {
            ::setenv("TWINRUN_IO", saved_->c_str(), 1);
        } else {
            ::unsetenv("TWINRUN_IO");
        }
    }
    std::optional<std::string> saved_;
};

TEST_F(EnvironmentTest, OverridesTheAutomaticChoice) {
    ::setenv("TWINRUN_IO", "pread", 1);
    auto queue = make_read_queue();
    ASSERT_TRUE(queue.ok());
    EXPECT_STREQ((*queue)->name(), "pread");
    ::setenv("TWINRUN_IO", "uring", 1);
    queue = make_read_queue();
    ASSERT_EQ(queue.ok(), uring_available());
    if (queue.ok()) {
        EXPECT_STREQ((*queue)->name(), "io_uring");
    } else {
        EXPECT_EQ(queue.error().code, ErrorCode::unsupported);
    }
    queue = make_read_queue({.backend = ReadBackend::pread});
    ASSERT_TRUE(queue.ok());
    EXPECT_STREQ((*queue)->name(), "pread") << "what the caller insists on stays";
    ::unsetenv("TWINRUN_IO");
    queue = make_read_queue();
    ASSERT_TRUE(queue.ok());
    EXPECT_STREQ((*queue)->name(), uring_available() ? "io_uring" : "pread");
    ::setenv("TWINRUN_IO", "mmap\n", 1);
    queue = make_read_queue();
    ASSERT_FALSE(queue.ok());
    EXPECT_EQ(queue.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(one_line(queue.error().message));
}

TEST(ReadQueueOptionsTest, OddNumbersAreMadeUsable) {
    for (const auto backend : {ReadBackend::uring, ReadBackend::pread}) {
        if (backend == ReadBackend::uring && !uring_available()) continue;
        auto shallow = make_read_queue({.backend = backend, .depth = 0, .threads = -3});
        ASSERT_TRUE(shallow.ok());
        EXPECT_EQ((*shallow)->depth(), 1U);
        auto deep = make_read_queue({.backend = backend, .depth = ~std::size_t{0} >> 1, .threads = 1});
        ASSERT_TRUE(deep.ok()) << deep.error().message;
    }
}

// A sandbox that answers `error` to one system call.
bool forbid(unsigned call, int error) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(UringProbeTest, ASandboxLeadsToPread) {
    if (!uring_available()) GTEST_SKIP() << file_io::probe_uring().error().message;
    Folder folder;
    put(folder / "x", noise(100));
    constexpr unsigned setup = 425, enter = 426;
    struct Case {
        unsigned call;
        int error;
    };
    for (const Case test :
         {Case{setup, EPERM}, Case{setup, ENOSYS}, Case{setup, ENOMEM}, Case{enter, EPERM}}) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            if (!forbid(test.call, test.error)) ::_exit(77);
            const auto probe = file_io::probe_uring();
            if (probe.ok() || probe.error().code != ErrorCode::unsupported ||
                !one_line(probe.error().message)) {
                ::_exit(1);
            }
            if (test.call == enter) ::_exit(0);
            if (make_read_queue({.backend = ReadBackend::uring}).ok()) ::_exit(2);
            auto queue = make_read_queue({.threads = 1});
            if (!queue.ok() || std::strcmp((*queue)->name(), "pread") != 0) ::_exit(3);
            ::_exit(0);
        }
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
        EXPECT_EQ(WEXITSTATUS(status), 0) << test.call << " " << test.error;
    }
}

}  // namespace
}  // namespace twinrun
