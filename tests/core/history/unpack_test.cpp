// Steps of a record back into files: nothing that is there is harmed.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "history/pack.hpp"
#include "history/unpack.hpp"
#include "support/faulty_file_system.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::expect_same_files;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::Truth;
using testing::unsynced_file_system;

TEST(Pack, NothingIsOverwritten) {
    QuickFolder folder;
    const Truth truth = random_truth(6, 4, 1);
    Truth other = random_truth(7, 4, 1);
    capture(folder / "run", truth);
    capture(folder / "other", other);
    pack(folder / "run", folder / "record", options());
    // The same steps once more: nothing to do. Steps of another run: refused, and left as they are.
    ASSERT_TRUE(unpack_steps(unsynced_file_system(), folder / "record", {0, 10}, folder / "back", false, 1));
    const auto again =
        unpack_steps(unsynced_file_system(), folder / "record", {0, 10, 20, 30}, folder / "back", false, 1);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->size(), 4U);
    expect_same_files(folder / "run", folder / "back");
    const auto before = testing::read_file(folder / "other" + "/step-0000000010/rank-00000.data");
    EXPECT_FALSE(unpack_steps(unsynced_file_system(), folder / "record", {10}, folder / "other", false, 1));
    EXPECT_TRUE(testing::read_file(folder / "other" + "/step-0000000010/rank-00000.data") == before);
}

// Whatever fails while files are given back: no partial file stays, and nothing else is touched.
TEST(Pack, RestoreThatFails) {
    QuickFolder folder;
    std::mt19937_64 random(18);
    FileSystem& system = unsynced_file_system();
    FilesOfStep step;
    step.step = 1;
    std::map<std::string, testing::RecordBytes> truth;
    for (const std::string name : {"a", "sub/b", "sub/deep/c"}) {
        truth[name] = testing::random_bytes(random, 5000);
        const std::string path = folder / ("in-" + std::to_string(step.files.size()));
        testing::write_file(path, truth[name]);
        step.files.push_back({name, path, name});
    }
    step.files.push_back({"sub/link", "", "link", RecordFileKind::link, "/nowhere"});
    step.files.push_back({"empty", "", "empty", RecordFileKind::folder});
    ASSERT_TRUE(pack_files(system, {step}, folder / "record", options(), {}));
    // And what a hostile record may say: a file behind a link of the same record.
    FilesOfStep hostile = step;
    hostile.files.push_back({"sub/link/d", hostile.files[0].path, "d"});
    ASSERT_TRUE(pack_files(system, {hostile}, folder / "hostile", options(), {}));
    EXPECT_FALSE(unpack_steps(system, folder / "hostile", {1}, folder / "hostile-to", true, 1));
    EXPECT_FALSE(fs::is_symlink(folder / "hostile-to/sub/link"));

    testing::FaultyFileSystem faulty(system);
    for (std::size_t at = 1;; ++at) {
        const fs::path to = folder / ("to-" + std::to_string(at));
        fs::create_directories(to / "sub");
        testing::write_file((to / "sub/b.tmp").string(), truth["a"]);
        testing::Fault fault;
        fault.at = at;
        faulty.inject(fault);
        const auto made = unpack_steps(faulty, folder / "record", {1}, to.string(), true, 1);
        EXPECT_TRUE(testing::read_file((to / "sub/b.tmp").string()) == truth["a"]);
        std::size_t files = 0;
        for (const auto& entry : fs::recursive_directory_iterator(to)) {
            if (!entry.is_regular_file() || entry.path().filename() == "b.tmp") continue;
            const std::string name = entry.path().lexically_relative(to).string();
            ASSERT_TRUE(truth.contains(name)) << name << ", operation " << at;
            EXPECT_TRUE(testing::read_file(entry.path().string()) == truth[name]) << name;
            ++files;
        }
        if (!made) continue;
        EXPECT_EQ(files, 3U);
        EXPECT_EQ(made->size(), 5U);
        EXPECT_TRUE(fs::is_symlink(to / "sub/link"));
        EXPECT_GT(at, 10U);
        break;
    }
}

}  // namespace
}  // namespace twinrun
