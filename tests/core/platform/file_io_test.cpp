#include "platform/file_io.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "platform/file_io_internal.hpp"

namespace twinrun {
namespace {

class Folder {
   public:
    Folder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "file_io_XXXXXX").string();
        if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }

   private:
    std::string path_;
};

std::vector<std::byte> noise(std::size_t bytes, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> result(bytes);
    for (auto& byte : result)
        byte = static_cast<std::byte>(random() >> 56);
    return result;
}

void put(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(stream.good());
}

struct AlignedFree {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Aligned = std::unique_ptr<std::byte, AlignedFree>;
Aligned aligned(std::size_t bytes) {
    return Aligned(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes)));
}

std::uint64_t rounded_up(std::uint64_t bytes) {
    return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

bool one_line(const std::string& message) {
    return !message.empty() && message.find('\n') == std::string::npos;
}

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

// ---- files to read ----

TEST(InputFileTest, OpensAndStamps) {
    Folder folder;
    const auto bytes = noise(12'345);
    put(folder / "x", bytes);
    auto file = InputFile::open(folder / "x");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->size(), 12'345U);
    EXPECT_EQ((*file)->path(), folder / "x");
    auto stamp = stamp_of(folder / "x");
    ASSERT_TRUE(stamp.ok());
    EXPECT_EQ(*stamp, (*file)->stamp());
    const timespec times[2] = {{1'000'000'000, 1}, {1'000'000'000, 7}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "x").c_str(), times, 0), 0);
    EXPECT_EQ(stamp_of(folder / "x")->mtime_ns, 1'000'000'000'000'000'007);
    EXPECT_NE(stamp_of(folder / "x").value(), (*file)->stamp());

    std::vector<std::byte> part(345);
    ASSERT_TRUE((*file)->read_at(12'000, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 12'000));
    EXPECT_EQ((*file)->read_at(12'001, part).error().code, ErrorCode::damaged);
    EXPECT_TRUE((*file)->read_at(99'999, {}).ok());
    EXPECT_EQ((*file)->read_at(~std::uint64_t{0}, part).error().code, ErrorCode::invalid_argument);
}

TEST(InputFileTest, ASmallFileIsReadAtOnceAndClosed) {
    Folder folder;
    const auto bytes = noise(12'345);
    put(folder / "x", bytes);
    EXPECT_FALSE(InputFile::open(folder / "x", 12'344).value()->in_memory());
    const auto file = InputFile::open(folder / "x", 12'345).value();
    ASSERT_TRUE(file->in_memory());
    EXPECT_TRUE(std::ranges::equal(file->content(), bytes));
    EXPECT_EQ(file->descriptor(), -1);
    EXPECT_EQ(file->direct_descriptor(), -1);
    EXPECT_EQ(file->stamp(), stamp_of(folder / "x").value());
    EXPECT_EQ(file->cached_share(0, 5), 1.0);
    file->will_need(0, 5);
    put(folder / "x", noise(12'345, 2));  // what was read stays
    std::vector<std::byte> part(345);
    ASSERT_TRUE(file->read_at(12'000, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 12'000));
    for (const std::uint64_t offset : {12'001U, 99'999U}) {
        const auto wrong = file->read_at(offset, part);
        EXPECT_EQ(wrong.error().code, ErrorCode::damaged);
        EXPECT_EQ(wrong.error().message,
                  InputFile::open(folder / "x").value()->read_at(offset, part).error().message);
    }
    EXPECT_TRUE(file->read_at(99'999, {}).ok());
    EXPECT_EQ(file->read_at(~std::uint64_t{0}, part).error().code, ErrorCode::invalid_argument);
    put(folder / "none", {});
    EXPECT_FALSE(InputFile::open(folder / "none", 100).value()->in_memory());
}

TEST(InputFileTest, SaysWhyNot) {
    Folder folder;
    const auto expect = [](const auto& outcome, ErrorCode code) {
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, code) << outcome.error().message;
        EXPECT_TRUE(one_line(outcome.error().message)) << outcome.error().message;
    };
    expect(InputFile::open(folder / "none"), ErrorCode::not_found);
    expect(InputFile::open(folder / "line\nfeed"), ErrorCode::not_found);
    expect(InputFile::open(""), ErrorCode::invalid_argument);
    expect(InputFile::open(folder / std::string("a\0b", 3)), ErrorCode::invalid_argument);
    expect(InputFile::open(folder.path()), ErrorCode::io);
    expect(InputFile::open("/dev/null"), ErrorCode::unsupported);
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    expect(InputFile::open(folder / "pipe"), ErrorCode::unsupported);
    expect(stamp_of(folder / "none"), ErrorCode::not_found);
    expect(read_whole_file(folder / "none", 10), ErrorCode::not_found);
    EXPECT_EQ(InputFile::open(folder / "none").error().message,
              (folder / "none") + ": cannot open for reading: no such file or directory; check the path");
}

TEST(InputFileTest, TheDirectDescriptorIsOfTheSameFile) {
    Folder folder;
    const auto bytes = noise(8192, 1);
    put(folder / "x", bytes);
    const auto file = InputFile::open(folder / "x").value();
    put(folder / "y", noise(8192, 2));
    std::filesystem::rename(folder / "y", folder / "x");
    const int direct = file->direct_descriptor();
    EXPECT_EQ(direct, file->direct_descriptor());
    if (direct < 0) GTEST_SKIP() << "no O_DIRECT in " << folder.path();
    auto memory = aligned(8192);
    ASSERT_EQ(::pread(direct, memory.get(), 8192, 0), 8192);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
}

TEST(InputFileTest, CachedShare) {
    Folder folder;
    put(folder / "x", noise(1 << 20));
    const auto file = InputFile::open(folder / "x").value();
    EXPECT_EQ(file->cached_share(0, 1 << 20), 1.0) << "just written";
    EXPECT_EQ(file->cached_share(0, 1), 1.0);
    EXPECT_EQ(file->cached_share(5000, ~std::uint64_t{0}, 1000), 1.0);
    EXPECT_EQ(file->cached_share(1 << 20, 1), 0.0);
    EXPECT_EQ(file->cached_share(0, 0), 0.0);
    EXPECT_EQ(file->cached_share(0, 100, 0), 0.0);
    ASSERT_EQ(::fsync(file->descriptor()), 0);
    ASSERT_EQ(::posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
    const double left = file->cached_share(0, 1 << 20, 256);  // advice: the system may keep some
    EXPECT_LE(left, 1.0);
    EXPECT_EQ(file->cached_share(0, 1 << 20, 256), left) << "looking must not read";
}

TEST(InputFileTest, ReadWholeFile) {
    Folder folder;
    for (const std::size_t size : {0U, 1U, 4096U, 100'000U}) {
        const auto bytes = noise(size);
        put(folder / "x", bytes);
        auto read = read_whole_file(folder / "x", size);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(*read, bytes);
        if (size > 0) {
            EXPECT_EQ(read_whole_file(folder / "x", size - 1).error().code, ErrorCode::damaged);
        }
    }
}

// ---- writing ----

class PosixFileSystemTest : public ::testing::Test {
   protected:
    std::vector<std::byte> read(const std::string& name) {
        auto bytes = read_whole_file(folder_ / name, 1 << 30);
        EXPECT_TRUE(bytes.ok());
        return bytes.ok() ? *bytes : std::vector<std::byte>{};
    }
    Folder folder_;
    FileSystem& files_ = posix_file_system();
};

TEST_F(PosixFileSystemTest, AWholeFileUnderItsFinalName) {
    const auto bytes = noise(100'001);
    put(folder_ / "final", noise(5, 2));
    auto file = files_.create(folder_ / "tmp", bytes.size());
    ASSERT_TRUE(file.ok());
    // In two halves, the second first.
    ASSERT_TRUE((*file)->write_at(50'000, std::span(bytes).subspan(50'000)).ok());
    ASSERT_TRUE((*file)->write_at(0, std::span(bytes).first(50'000)).ok());
    ASSERT_TRUE((*file)->write_at(7, {}).ok());
    ASSERT_TRUE((*file)->sync().ok());
    ASSERT_TRUE((*file)->close().ok());
    ASSERT_TRUE((*file)->close().ok());
    EXPECT_EQ((*file)->write_at(0, bytes).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ((*file)->sync().error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.rename(folder_ / "tmp", folder_ / "final").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(read("final").size(), 5U) << "untouched until it is replaced";
    ASSERT_TRUE(files_.replace(folder_ / "tmp", folder_ / "final").ok());
    ASSERT_TRUE(files_.sync_folder(folder_.path()).ok());
    file->reset();
    EXPECT_EQ(read("final"), bytes);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "tmp"));
}

TEST_F(PosixFileSystemTest, TheReservationLeavesNoTrace) {
    const auto bytes = noise(1000);
    {
        auto file = files_.create(folder_ / "x", 8 << 20);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE((*file)->write_at(0, bytes).ok());
        EXPECT_EQ(std::filesystem::file_size(folder_ / "x"), 1000U);
        ASSERT_TRUE((*file)->close().ok());
    }
    EXPECT_EQ(read("x"), bytes);
    struct stat status;
    ASSERT_EQ(::stat((folder_ / "x").c_str(), &status), 0);
    EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

TEST_F(PosixFileSystemTest, AnAbandonedFileIsRemoved) {
    { ASSERT_TRUE(files_.create(folder_ / "tmp", 100).ok()); }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "tmp"));
    {
        // Renamed or replaced meanwhile: what has the name now is not ours to remove.
        auto file = files_.create(folder_ / "tmp", 100);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE(files_.rename(folder_ / "tmp", folder_ / "kept").ok());
        put(folder_ / "tmp", noise(3));
    }
    EXPECT_TRUE(std::filesystem::exists(folder_ / "tmp"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "kept"));
    std::uint64_t size = 9;
    { ASSERT_TRUE(files_.open_append(folder_ / "log", size).ok()); }
    EXPECT_TRUE(std::filesystem::exists(folder_ / "log"));
    EXPECT_EQ(size, 0U);
}

TEST_F(PosixFileSystemTest, Append) {
    const auto bytes = noise(300);
    for (std::size_t i = 0; i < 3; ++i) {
        std::uint64_t size = 0;
        auto file = files_.open_append(folder_ / "log", size);
        ASSERT_TRUE(file.ok());
        EXPECT_EQ(size, i * 100);
        ASSERT_TRUE((*file)->write_at(size, std::span(bytes).subspan(i * 100, 100)).ok());
        ASSERT_TRUE((*file)->sync().ok());
        ASSERT_TRUE((*file)->close().ok());
    }
    EXPECT_EQ(read("log"), bytes);
    ASSERT_TRUE(files_.truncate(folder_ / "log", 150).ok());
    EXPECT_EQ(read("log").size(), 150U);
    EXPECT_EQ(files_.truncate(folder_ / "none", 0).error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.truncate(folder_ / "log", ~std::uint64_t{0}).error().code, ErrorCode::io);
}

TEST_F(PosixFileSystemTest, ThreadsWriteDisjointRanges) {
    const auto bytes = noise(400'000);
    auto file = files_.create(folder_ / "x", bytes.size());
    ASSERT_TRUE(file.ok());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t at = t * 1000; at < bytes.size(); at += 4000) {
                EXPECT_TRUE((*file)->write_at(at, std::span(bytes).subspan(at, 1000)).ok());
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    ASSERT_TRUE((*file)->close().ok());
    EXPECT_EQ(read("x"), bytes);
}

TEST_F(PosixFileSystemTest, Folders) {
    ASSERT_TRUE(files_.make_folders(folder_ / "a/b//c/").ok());
    ASSERT_TRUE(files_.make_folders(folder_ / "a/b/c").ok());
    EXPECT_TRUE(std::filesystem::is_directory(folder_ / "a/b/c"));
    put(folder_ / "a/b/file", noise(3));
    EXPECT_FALSE(files_.make_folders(folder_ / "a/b/file").ok());
    EXPECT_FALSE(files_.make_folders(folder_ / "a/b/file/d").ok());
    EXPECT_EQ(files_.make_folders("").error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.remove(folder_ / "a/b").ok());
    ASSERT_TRUE(files_.remove(folder_ / "a/b/file").ok());
    ASSERT_TRUE(files_.remove(folder_ / "a/b/file").ok()) << "not there: success";
    EXPECT_TRUE(files_.remove(folder_ / "none/file").ok()) << "nor its folder";
    EXPECT_TRUE(files_.remove_empty_folder(folder_ / "none/folder").ok());
    EXPECT_EQ(files_.sync_folder(folder_ / "none").error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.rename(folder_ / "none", folder_ / "x").error().code, ErrorCode::not_found);
    std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
    EXPECT_TRUE(files_.make_folders("relative/deep").ok());
    std::filesystem::current_path(before);
    EXPECT_TRUE(std::filesystem::is_directory(folder_ / "relative/deep"));
}

TEST_F(PosixFileSystemTest, WhatIsThereStays) {
    const auto bytes = noise(30);
    put(folder_ / "file", bytes);
    std::filesystem::create_directory(folder_ / "folder");
    std::filesystem::create_symlink("nowhere", folder_ / "dangling");
    std::filesystem::create_symlink("file", folder_ / "link");
    for (const char* name : {"file", "folder", "dangling", "link"}) {
        EXPECT_EQ(files_.create(folder_ / name, 1).error().code, ErrorCode::invalid_argument) << name;
        put(folder_ / "new", noise(3));
        EXPECT_EQ(files_.rename(folder_ / "new", folder_ / name).error().code, ErrorCode::invalid_argument)
            << name;
        const auto made = files_.make_marked_folder(folder_ / name, "mark");
        ASSERT_TRUE(made.ok()) << name;
        EXPECT_FALSE(made.value()) << name;
        EXPECT_TRUE(is_there(folder_ / name));
    }
    EXPECT_EQ(read("file"), bytes);
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "folder"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "nowhere"));
    EXPECT_FALSE(is_there(folder_ / "nowhere"));
    std::size_t names = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path()))
        ++names;
    EXPECT_EQ(names, 5U) << "nothing is left of what was refused";
}

TEST_F(PosixFileSystemTest, LinksAreNotFollowed) {
    const auto bytes = noise(30);
    std::filesystem::create_directories(folder_ / "elsewhere");
    put(folder_ / "elsewhere/file", bytes);
    std::filesystem::create_directory_symlink("elsewhere", folder_ / "folder");
    std::filesystem::create_symlink("elsewhere/file", folder_ / "link");
    std::uint64_t size = 0;
    EXPECT_EQ(files_.open_append(folder_ / "link", size).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.truncate(folder_ / "link", 0).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.create(folder_ / "folder/new", 1).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.open_append(folder_ / "folder/file", size).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(files_.truncate(folder_ / "folder/file", 0).error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.remove(folder_ / "folder/file").ok());
    EXPECT_FALSE(files_.make_marked_folder(folder_ / "folder/new", "mark").ok());
    const auto refused = files_.create(folder_ / "folder/new", 1);
    EXPECT_NE(refused.error().message.find("symbolic link"), std::string::npos) << refused.error().message;
    EXPECT_EQ(read("elsewhere/file"), bytes);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere/new"));
    // Who was given a link by the user names where it leads.
    EXPECT_EQ(real_path(folder_ / "folder/new"), std::string(folder_ / "elsewhere/new"));
    EXPECT_TRUE(files_.create(real_path(folder_ / "folder/new"), 1).ok());
    // A link itself may go, or be replaced: what it leads to stays.
    put(folder_ / "mine", noise(3));
    ASSERT_TRUE(files_.replace(folder_ / "mine", folder_ / "link").ok());
    ASSERT_TRUE(files_.remove(folder_ / "link").ok());
    EXPECT_EQ(read("elsewhere/file"), bytes);
}

TEST_F(PosixFileSystemTest, AMarkedFolderIsWhole) {
    const auto made = files_.make_marked_folder(folder_ / "step", "mark");
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(made.value());
    EXPECT_TRUE(std::filesystem::is_regular_file(folder_ / "step/mark"));
    EXPECT_FALSE(files_.make_marked_folder(folder_ / "step", "mark").value());
    EXPECT_EQ(files_.make_marked_folder(folder_ / "none/step", "mark").error().code, ErrorCode::not_found);
    ASSERT_TRUE(files_.remove_empty_folder(folder_ / "step").ok()) << "not empty: stays";
    EXPECT_TRUE(std::filesystem::exists(folder_ / "step/mark"));
    // Of many that want it, one makes it.
    std::atomic<int> winners{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            const auto outcome = files_.make_marked_folder(folder_ / "race", "mark");
            EXPECT_TRUE(outcome.ok());
            winners += outcome.ok() && outcome.value() ? 1 : 0;
            EXPECT_TRUE(std::filesystem::exists(folder_ / "race/mark"));
        });
    }
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(winners, 1);
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
        EXPECT_FALSE(entry.path().filename().string().starts_with(kHiddenPrefix)) << entry.path();
}

TEST_F(PosixFileSystemTest, CreateSaysWhyNot) {
    EXPECT_EQ(files_.create(folder_ / "none/x", 1).error().code, ErrorCode::not_found);
    EXPECT_EQ(files_.create(folder_.path(), 1).error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(files_.create("/dev/full", 0).ok());
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    EXPECT_FALSE(files_.create(folder_ / "pipe", 0).ok());
    const auto huge = files_.create(folder_ / "huge", ~std::uint64_t{0});
    ASSERT_FALSE(huge.ok());
    EXPECT_FALSE(std::filesystem::exists(folder_ / "huge"));
}

class FullDiskTest : public PosixFileSystemTest {
   protected:
    void SetUp() override {
        mount_ = folder_ / "disk";
        ASSERT_TRUE(files_.make_folders(mount_).ok());
        if (::mount("twinrun-test", mount_.c_str(), "tmpfs", 0, "size=256k") != 0) {
            GTEST_SKIP() << "needs the right to mount a small tmpfs: " << std::strerror(errno);
        }
        mounted_ = true;
    }
    void TearDown() override {
        if (mounted_) ::umount2(mount_.c_str(), MNT_DETACH);
    }
    std::string mount_;
    bool mounted_ = false;
};

TEST_F(FullDiskTest, TheReservationFindsOut) {
    const auto file = files_.create(mount_ + "/x", 1 << 20);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, ErrorCode::no_space);
    EXPECT_EQ(file.error().message,
              mount_ +
                  "/x: cannot reserve 1048576 bytes: no space left on device; free some "
                  "space or choose another file system");
    EXPECT_FALSE(std::filesystem::exists(mount_ + "/x"));
}

TEST_F(FullDiskTest, TheWriteFindsOut) {
    const auto bytes = noise(1 << 20);
    {
        auto file = files_.create(mount_ + "/x", 0);
        ASSERT_TRUE(file.ok());
        const auto outcome = (*file)->write_at(0, bytes);
        ASSERT_FALSE(outcome.ok());
        EXPECT_EQ(outcome.error().code, ErrorCode::no_space);
        EXPECT_NE(outcome.error().message.find("free some space"), std::string::npos);
    }
    EXPECT_FALSE(std::filesystem::exists(mount_ + "/x"));
    auto file = files_.create(mount_ + "/y", 1000);
    ASSERT_TRUE(file.ok()) << "the space is free again";
    EXPECT_TRUE((*file)->write_at(0, std::span(bytes).first(1000)).ok());
}

}  // namespace
}  // namespace twinrun
