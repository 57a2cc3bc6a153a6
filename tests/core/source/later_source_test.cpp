#include "source/later_source.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "source/stream.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

class LaterSourceTest : public testing::FolderTest {
   protected:
    void SetUp() override { paths_ = {(folder_ / "one").string(), (folder_ / "two").string()}; }

    // Numbers from `first` on.
    static void write(const std::string& path, float first, std::size_t count) {
        std::vector<float> values(count);
        std::iota(values.begin(), values.end(), first);
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(values.data()),
                   static_cast<std::streamsize>(count * sizeof(float)));
    }
    LaterSource source(std::uint64_t items) {
        return {DType::f32, items, {paths_, extents_, ByteOrder::little}, CacheUse::buffered, nullptr};
    }
    static std::vector<float> read(LaterSource& from) {
        std::vector<float> values(from.items());
        const auto done = read_items(from, 0, from.items(), reinterpret_cast<std::byte*>(values.data()));
        EXPECT_TRUE(done) << done.error().message;
        return values;
    }

    std::vector<std::string> paths_;
    std::vector<Extent> extents_;
};

TEST_F(LaterSourceTest, TheFilesAreOpenedWhenTheyAreNeeded) {
    extents_ = {{1, 4, 4, 2}, {0, 0, 8, 2}};  // items of the second file, and every second one of the first
    LaterSource later = source(4);            // neither file is there yet
    ASSERT_FALSE(later.prepare());
    write(paths_[0], 0, 4);
    write(paths_[1], 100, 4);
    EXPECT_EQ(read(later), (std::vector<float>{101, 102, 0, 2}));
}

TEST_F(LaterSourceTest, WhatWasGivenBackIsMadeAgain) {
    extents_ = {{0, 0, 4, 3}};
    write(paths_[0], 5, 3);
    LaterSource later = source(3);
    EXPECT_EQ(read(later), (std::vector<float>{5, 6, 7}));
    later.release();
    std::filesystem::remove(paths_[0]);
    EXPECT_FALSE(later.prepare());
    write(paths_[0], 8, 3);
    EXPECT_EQ(read(later), (std::vector<float>{8, 9, 10}));
}

TEST_F(LaterSourceTest, ExtentsThatDoNotFitAreAnError) {
    write(paths_[0], 0, 4);
    extents_ = {{0, 0, 4, 3}};
    EXPECT_FALSE(source(4).prepare());  // an item has no place
    extents_ = {{2, 0, 4, 4}};
    LaterSource elsewhere = source(4);
    const auto refused = elsewhere.prepare();  // there is no third file
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::damaged);
}

}  // namespace
}  // namespace twinrun
