#include "platform/remote_files.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>

#include "platform/file_io.hpp"
#include "support/files.hpp"

namespace twinrun {
namespace {

// An object of noise under a name of its own, and what was asked of it.
class Object {
   public:
    explicit Object(std::size_t bytes) : content(testing::noise(bytes, 3)) {
        set_range_reader([this](const std::string& name, std::uint64_t offset, std::span<std::byte> to) {
            return read(name, offset, to);
        });
        add_remote_file("s3://bucket/x", content.size());
    }
    ~Object() {
        remove_remote_file("s3://bucket/x");
        set_range_reader([](const std::string&, std::uint64_t, std::span<std::byte>) -> Result<> {
            return Error{ErrorCode::internal, "nothing is open"};
        });
    }
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    std::vector<std::byte> content;
    std::atomic<std::uint64_t> asked{0};
    std::atomic<bool> changed{false};

   private:
    Result<> read(const std::string& name, std::uint64_t offset, std::span<std::byte> to) {
        if (changed) return Error{ErrorCode::damaged, name + ": was changed while it was read"};
        asked += to.size();
        std::memcpy(to.data(), content.data() + offset, to.size());
        return success();
    }
};

TEST(RemoteFiles, AreOpenedByNameAndReadByRanges) {
    Object object(10'000);
    const auto opened = InputFile::open("s3://bucket/x");
    ASSERT_TRUE(opened.ok());
    const InputFile& file = *opened.value();
    EXPECT_TRUE(file.remote());
    EXPECT_FALSE(file.in_memory());
    EXPECT_EQ(file.size(), 10'000U);
    EXPECT_EQ(file.cached_share(0, 10'000), 0);
    EXPECT_EQ(opened.value()->direct_descriptor(), -1);
    std::vector<std::byte> got(300);
    ASSERT_TRUE(file.read_at(5'000, got).ok());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), object.content.begin() + 5'000));
    EXPECT_EQ(object.asked, 300U);
    EXPECT_EQ(file.read_at(9'900, got).error().code, ErrorCode::damaged);
    EXPECT_EQ(object.asked, 300U);
}

TEST(RemoteFiles, SmallOnesAreReadAtOnce) {
    Object object(1'000);
    const auto opened = InputFile::open("s3://bucket/x", 4'096);
    ASSERT_TRUE(opened.ok());
    EXPECT_TRUE(opened.value()->in_memory());
    std::vector<std::byte> got(10);
    ASSERT_TRUE(opened.value()->read_at(990, got).ok());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), object.content.begin() + 990));
    EXPECT_EQ(object.asked, 1'000U);
}

TEST(RemoteFiles, AreGoneWhenTheyAreRemoved) {
    { const Object object(10); }
    EXPECT_EQ(InputFile::open("s3://bucket/x").error().code, ErrorCode::not_found);
}

// Both kinds in one call: each comes whole, once, and no byte is asked for that was only alignment.
TEST(RemoteFiles, AQueueReadsThemBesideFiles) {
    constexpr std::size_t kBytes = 64 << 10;
    Object object(16 * kBytes);
    const std::string path = ::testing::TempDir() + "/remote_files_beside";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(object.content.data()),
               static_cast<std::streamsize>(16 * kBytes));
    const auto there = InputFile::open("s3://bucket/x");
    const auto here = InputFile::open(path);
    ASSERT_TRUE(there.ok() && here.ok());
    for (const ReadBackend backend : {ReadBackend::automatic, ReadBackend::pread}) {
        object.asked = 0;
        ReadQueueOptions options;
        options.backend = backend;
        const auto made = make_read_queue(options);
        ASSERT_TRUE(made.ok());
        ReadQueue& queue = *made.value();
        std::vector<std::byte> got(32 * kBytes);
        std::vector<ReadRequest> requests;
        for (std::size_t i = 0; i < 32; ++i) {
            ReadRequest request;
            request.file = i % 2 == 0 ? there.value().get() : here.value().get();
            request.offset = i / 2 * kBytes;
            request.bytes = kBytes;
            request.to = got.data() + i * kBytes;
            request.skip = 100;
            request.at_least = kBytes - 50;
            request.tag = i;
            requests.push_back(request);
        }
        ASSERT_TRUE(queue.submit(requests).ok());
        EXPECT_EQ(queue.outstanding(), 32U);
        std::vector<ReadCompletion> done;
        while (queue.outstanding() > 0)
            ASSERT_TRUE(queue.wait(3, done).ok());
        ASSERT_EQ(done.size(), 32U);
        for (const ReadCompletion& completion : done)
            EXPECT_FALSE(completion.error.has_value());
        for (std::size_t i = 0; i < 32; ++i) {
            const auto* const want = object.content.data() + i / 2 * kBytes;
            EXPECT_EQ(std::memcmp(got.data() + i * kBytes + 100, want + 100, kBytes - 150), 0) << i;
        }
        EXPECT_EQ(object.asked, 16 * (kBytes - 150));
    }
}

TEST(RemoteFiles, AnErrorOfOneReadIsThatOfItsCompletion) {
    Object object(10'000);
    const auto there = InputFile::open("s3://bucket/x");
    ASSERT_TRUE(there.ok());
    object.changed = true;
    const auto queue = make_read_queue();
    ASSERT_TRUE(queue.ok());
    std::vector<std::byte> got(1'000);
    ReadRequest request;
    request.file = there.value().get();
    request.bytes = got.size();
    request.to = got.data();
    ASSERT_TRUE(queue.value()->submit({&request, 1}).ok());
    std::vector<ReadCompletion> done;
    ASSERT_TRUE(queue.value()->wait(1, done).ok());
    ASSERT_EQ(done.size(), 1U);
    ASSERT_TRUE(done[0].error.has_value());
    EXPECT_EQ(done[0].error->message, "s3://bucket/x: was changed while it was read");
}

}  // namespace
}  // namespace twinrun
