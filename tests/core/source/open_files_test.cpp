#include "source/open_files.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "source/source.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

class OpenFilesTest : public testing::FolderTest {
   protected:
    std::string file(int number) {
        const auto path = folder_ / std::to_string(number);
        if (!std::filesystem::exists(path)) {
            std::ofstream out(path, std::ios::binary);
            const std::vector<char> bytes(64, static_cast<char>(number));
            out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        }
        return path.string();
    }
    static std::size_t descriptors() {
        std::size_t count = 0;
        for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
            ++count;
        return count;
    }
};

TEST_F(OpenFilesTest, AFileIsOpenOnce) {
    OpenFiles files(4);
    const auto first = files.open(file(1)).value();
    EXPECT_EQ(files.open(file(1)).value(), first);
    EXPECT_NE(files.open(file(2)).value(), first);
    EXPECT_FALSE(files.open(file(3) + "x"));
}

TEST_F(OpenFilesTest, FilesInMemoryAreKept) {
    OpenFiles files(2);
    const auto kept = InputFile::open(file(1), 64).value();
    files.keep(kept);
    for (int number = 2; number < 9; ++number)
        ASSERT_TRUE(files.open(file(number)));
    EXPECT_EQ(files.open(file(1)).value(), kept);
}

TEST_F(OpenFilesTest, NoMoreFilesStayOpenThanAreAllowed) {
    const std::size_t before = descriptors();
    OpenFiles files(3);
    const auto used = files.open(file(0)).value();
    for (int number = 1; number < 30; ++number)
        ASSERT_TRUE(files.open(file(number)));
    EXPECT_LE(descriptors(), before + 4);
    // What is in use stays open, and the file that was used last is the same.
    std::byte byte{1};
    EXPECT_TRUE(used->read_at(0, std::span(&byte, 1)));
    EXPECT_EQ(byte, std::byte{0});
    EXPECT_EQ(files.open(file(29)).value(), files.open(file(29)).value());
    EXPECT_NE(files.open(file(0)).value(), used);
}

TEST_F(OpenFilesTest, SourcesReadThroughItAndGiveFilesBack) {
    const std::size_t before = descriptors();
    const auto shared = std::make_shared<OpenFiles>(2);
    std::vector<std::unique_ptr<FileSource>> sources;
    for (int number = 0; number < 20; ++number) {
        sources.push_back(FileSource::create(DType::u8, ByteOrder::little, 10, {{file(number), 5, 1, 10}},
                                             CacheUse::buffered, shared)
                              .value());
    }
    for (int round = 0; round < 2; ++round) {
        for (int number = 0; number < 20; ++number) {
            std::vector<std::byte> items(10);
            FileSource& source = *sources[static_cast<std::size_t>(number)];
            ASSERT_TRUE(read_items(source, 0, 10, items.data()));
            EXPECT_EQ(items, std::vector<std::byte>(10, static_cast<std::byte>(number)));
            source.release();
        }
        EXPECT_LE(descriptors(), before + 2);
    }
}

TEST_F(OpenFilesTest, ThreadsGetWholeFiles) {
    for (int number = 0; number < 9; ++number)
        file(number);
    OpenFiles files(3);
    std::atomic<int> wrong{0};
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                for (int i = 0; i < 300; ++i) {
                    const int number = (i * (t + 1)) % 9;
                    std::byte byte{99};
                    const auto found = files.open((folder_ / std::to_string(number)).string());
                    if (!found || !(*found)->read_at(3, std::span(&byte, 1)) ||
                        byte != static_cast<std::byte>(number))
                        wrong.fetch_add(1);
                }
            });
        }
    }
    EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace twinrun
