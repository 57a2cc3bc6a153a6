// Callers that were compiled with another version: layouts that they rely on, and twr_shared_files. Of twr_array and twr_report:
// array_test.cpp, run_test.cpp.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/capi/pins.h"
#include "core/capi/support.hpp"

namespace twinrun {
namespace {

using GrowthTest = testing::CapiTest;

int minimum(void*, int64_t*, int) { return 0; }
int broadcast(void*, void*, size_t) { return 0; }
void release(void* context) { ++*static_cast<int*>(context); }
int prepare(void*, const char*, int, char* name, size_t name_bytes) {
    std::strncpy(name, "group.own", name_bytes);
    return TWR_OK;
}
int write_part(void*, twr_shared_part*) { return twr_fail(TWR_ERROR_NO_SPACE, "nothing is written here"); }

TEST_F(GrowthTest, SharedFilesOfOtherVersions) {
    int of_comm = 0;
    int of_shared = 0;
    const twr_comm comm{&of_comm, 0, 1, minimum, broadcast, release};
    struct {
        twr_shared_files files;
        std::uint64_t later = 0;
    } newer{{sizeof newer, &of_shared, prepare, write_part, release}, 0};
    twr_run* run = nullptr;
    const auto open_it = [&] {
        return twr_open_comm_shared(&run, path("run").c_str(), settings_, &comm, &newer.files);
    };
    newer.later = 1;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_UNSUPPORTED, "twr_shared_files");
    EXPECT_EQ(of_comm, 1);
    newer.later = 0;
    // Of a structure of no known size not even `release` is called.
    for (const std::size_t size : {std::size_t{0}, sizeof(twr_shared_files) - 8, std::size_t{1} << 40}) {
        newer.files.size = size;
        TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INVALID_ARGUMENT, "sizeof(twr_shared_files)");
    }
    EXPECT_EQ(of_comm, 4);
    EXPECT_EQ(of_shared, 0);
    newer.files.size = sizeof newer;
    // Without ranks there is nothing to open, and what was given is released.
    TWR_EXPECT_ERROR(twr_open_comm_shared(&run, path("run").c_str(), settings_, nullptr, &newer.files),
                     TWR_ERROR_INVALID_ARGUMENT, "comm");
    EXPECT_EQ(of_shared, 1);
    for (const std::size_t size : {sizeof newer, sizeof newer.files}) {
        newer.files.size = size;
        of_comm = of_shared = 0;
        TWR_ASSERT_OK(open_it());
        TWR_EXPECT_OK(twr_close(run));
        EXPECT_EQ(of_comm, 1);
        EXPECT_EQ(of_shared, 1);
        set("existing", "replace");
    }
}

// What functions of the application say with twr_fail is what their caller hears.
TEST_F(GrowthTest, SharedFilesSayWhy) {
    int of_comm = 0;
    int of_shared = 0;
    const twr_comm comm{&of_comm, 0, 1, minimum, broadcast, release};
    const twr_shared_files files{sizeof files, &of_shared, prepare, write_part, release};
    set("shared_files", "one");
    set("background", "false");
    double x = 1;
    twr_run* run = nullptr;
    TWR_ASSERT_OK(twr_open_comm_shared(&run, path("run").c_str(), settings_, &comm, &files));
    TWR_ASSERT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_EXPECT_ERROR(twr_capture(run, 1), TWR_ERROR_NO_SPACE, "nothing is written here");
    TWR_EXPECT_OK(twr_close(run));
}

}  // namespace
}  // namespace twinrun
