// Files of other programs into records.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/pack.hpp"
#include "history/unpack.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::bytes_in;
using testing::options;
using testing::QuickFolder;
using testing::unsynced_file_system;

TEST(Pack, FilesOfOtherPrograms) {
    QuickFolder folder;
    std::mt19937_64 random(8);
    FileSystem& system = unsynced_file_system();
    std::vector<FilesOfStep> steps;
    std::map<std::int64_t, std::map<std::string, testing::RecordBytes>> truth;
    testing::RecordBytes changing = testing::random_bytes(random, 30'001);
    for (std::int64_t step = 1; step <= 6; ++step) {
        changing[static_cast<std::size_t>(step) * 1000] ^= std::byte{9};
        std::map<std::string, testing::RecordBytes> files{
            {"out/mesh/" + std::to_string(step) + ".bin", changing},
            {"log.txt", testing::random_bytes(random, 10)}};
        if (step % 2 == 0) files["empty"] = {};
        FilesOfStep one;
        one.step = step;
        for (const auto& [name, bytes] : files) {
            const std::string path =
                folder / ("in-" + std::to_string(step) + "-" + std::to_string(one.files.size()));
            testing::write_file(path, bytes);
            one.files.push_back({name, path, name.starts_with("out") ? "out/mesh" : name});
        }
        truth[step] = files;
        steps.push_back(one);
    }
    PackOptions how = options();
    const std::vector<FilesOfStep> some(steps.begin(), steps.begin() + 3);
    ASSERT_TRUE(pack_files(system, some, folder / "record", how, {}));
    EXPECT_FALSE(pack_files(system, steps, folder / "record", how, {}));
    how.append = true;
    const auto packed = pack_files(system, steps, folder / "record", how, {});
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_LT(bytes_in(folder / "record"), 30'001U + 6U * 2000U);
    const auto right = [&](const fs::path& at, std::int64_t step) {
        std::size_t there = 0;
        for (const auto& entry : fs::recursive_directory_iterator(at))
            there += entry.is_regular_file() ? 1 : 0;
        EXPECT_EQ(there, truth[step].size());
        for (const auto& [name, bytes] : truth[step])
            EXPECT_TRUE(testing::read_file((at / name).string()) == bytes) << name;
    };
    auto made = unpack_steps(system, folder / "record", {1, 2, 3, 4, 5, 6}, folder / "back", false, 1);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->size(), 15U);
    for (std::int64_t step = 1; step <= 6; ++step)
        right(fs::path(folder / "back") / step_folder(step, 0), step);
    made = unpack_steps(system, folder / "record", {4}, folder / "flat", true, 1);
    ASSERT_TRUE(made) << made.error().message;
    right(folder / "flat", 4);
    // Neither over what is there, nor half beside it.
    testing::write_file(folder / "flat" + "/log.txt", {});
    EXPECT_EQ(unpack_steps(system, folder / "record", {4}, folder / "flat", true, 1).error().code,
              ErrorCode::invalid_argument);
    EXPECT_TRUE(testing::read_file(folder / "flat" + "/log.txt").empty());
    fs::create_directories(folder / "half");
    testing::write_file(folder / "half" + "/log.txt", {});
    EXPECT_FALSE(unpack_steps(system, folder / "record", {4}, folder / "half", true, 1));
    EXPECT_FALSE(fs::exists(folder / "half" + "/out"));
    EXPECT_FALSE(unpack_steps(system, folder / "record", {4, 5}, folder / "two", true, 1));
    how.settings.bounded = true;
    EXPECT_FALSE(pack_files(system, steps, folder / "bounded", how, {}));
    // It is no history of captures.
    const auto other = pack_history(system, folder / "record", folder / "other", options(), {});
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::invalid_argument) << other.error().message;
    CompactOptions fewer;
    fewer.keep_last = 2;
    ASSERT_TRUE(compact_record(system, folder / "record", fewer));
    ASSERT_TRUE(unpack_steps(system, folder / "record", {6}, folder / "after", true, 1));
    right(folder / "after", 6);
    EXPECT_TRUE(check_record(folder / "record", 0, 1)->empty());
}

}  // namespace
}  // namespace twinrun
