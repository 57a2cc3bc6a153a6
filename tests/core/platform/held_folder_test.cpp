// Files of a folder that is held are those that their paths name.
#include "platform/held_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "platform/file_io.hpp"
#include "support/files.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Folder = testing::FreshFolder;
using testing::noise;
using testing::put;

std::uint64_t bytes_of(const std::string& path, const HeldFolder* folder) {
    const auto file = InputFile::open(path, 0, folder);
    const auto stamp = stamp_of(path, folder);
    EXPECT_EQ(file.ok(), stamp.ok()) << path;
    if (!file) return 0;
    EXPECT_EQ((*file)->path(), path);
    EXPECT_EQ((*file)->stamp(), *stamp);
    return (*file)->size();
}

TEST(HeldFolderTest, ItsFilesAreWhatTheirPathsName) {
    Folder folder;
    fs::create_directories(folder / "run/step");
    fs::create_directories(folder / "running");
    put(folder / "run/step/x", noise(1));
    put(folder / "run/y", noise(2));
    put(folder / "running/x", noise(3));
    fs::create_symlink(folder / "running", folder / "run/link");
    const std::string run = folder / "run";
    for (const std::string& root : {run, run + "/", run + "//", folder / "run/../run"}) {
        const HeldFolder held(root);
        EXPECT_EQ(bytes_of(root + "/step/x", &held), 1U);
        EXPECT_EQ(bytes_of(root + "//step//x", &held), 1U) << "a name that begins with a slash";
        EXPECT_EQ(bytes_of(root + "/y", &held), 2U);
        EXPECT_EQ(bytes_of(root + "/../running/x", &held), 3U);
        EXPECT_EQ(bytes_of(root + "/link/x", &held), 3U);
        EXPECT_EQ(bytes_of(folder / "running/x", &held), 3U) << "its name only begins like the folder's";
        EXPECT_EQ(bytes_of(root + "/z", &held), 0U);
    }
    const HeldFolder held(run);
    EXPECT_EQ(HeldFolder::place_of(&held, run + "/y").name, std::string("y"));
    EXPECT_NE(HeldFolder::place_of(&held, run + "/y").folder, AT_FDCWD);
    EXPECT_EQ(HeldFolder::place_of(&held, run).folder, AT_FDCWD);
    EXPECT_EQ(HeldFolder::place_of(&held, run + "//").folder, AT_FDCWD);
    EXPECT_EQ(HeldFolder::place_of(nullptr, run + "/y").folder, AT_FDCWD);
}

TEST(HeldFolderTest, WithoutOneAPathIsLookedUpAsAWhole) {
    Folder folder;
    put(folder / "x", noise(5));
    for (const std::string& root : {std::string(), std::string("/"), folder / "not there", folder / "x"}) {
        const HeldFolder held(root);
        EXPECT_EQ(bytes_of(folder / "x", &held), 5U) << root;
        EXPECT_EQ(HeldFolder::place_of(&held, folder / "x").folder, AT_FDCWD) << root;
    }
}

}  // namespace
}  // namespace twinrun
