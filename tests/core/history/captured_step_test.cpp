// Damaged data of a history is found before it is packed.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/pack.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/session.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::capture;
using testing::expect_record;
using testing::options;
using testing::pack;
using testing::QuickFolder;
using testing::random_truth;
using testing::Truth;
using testing::unsynced_file_system;

// Another size than the journal's, or a flipped byte, in any rank's part: an error before anything
// of the file is packed.
TEST(Pack, DamagedSharedFilesAreNotPacked) {
    QuickFolder folder;
    const Truth truth = random_truth(77, 1, 3);
    SessionSettings shared;
    shared.shared_files = SharedFiles::one;
    capture(folder / "run", truth, shared);
    const auto run = History::open(folder / "run");
    ASSERT_TRUE(run) << run.error().message;
    const std::string file = (fs::path(folder / "run") / run->steps[0].folder / "group.data").string();
    const auto good = read_whole_file(file, std::uint64_t{1} << 30);
    ASSERT_TRUE(good);
    const auto put = [&](const std::vector<std::byte>& bytes) {
        std::FILE* const out = std::fopen(file.c_str(), "wb");
        ASSERT_NE(out, nullptr);
        ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), out), bytes.size());
        std::fclose(out);
    };
    const auto refused = [&](const std::vector<std::byte>& bytes, const char* what) {
        put(bytes);
        fs::remove_all(folder / "record");
        const auto packed =
            pack_history(unsynced_file_system(), folder / "run", folder / "record", options(), {});
        ASSERT_FALSE(packed) << what;
        EXPECT_EQ(packed.error().code, ErrorCode::damaged) << packed.error().message;
        EXPECT_NE(packed.error().message.find("group.data"), std::string::npos) << packed.error().message;
    };
    auto shorter = *good;
    shorter.pop_back();
    refused(shorter, "shorter");
    auto longer = *good;
    longer.push_back(std::byte{0});
    refused(longer, "longer");
    for (const RankFiles& r : run->steps[0].ranks) {
        for (const std::uint64_t at : {r.offset, r.offset + r.data_bytes / 2, r.offset + r.data_bytes - 1}) {
            auto flipped = *good;
            flipped[at] ^= std::byte{0x10};
            refused(flipped, "flipped");
        }
    }
    put(*good);
    fs::remove_all(folder / "record");
    pack(folder / "run", folder / "record", options());
    expect_record(folder / "record", truth);
}

// Damage between capture and packing is found, and the damaged step does not become a step of the
// record.
TEST(Pack, DamagedDataIsNotPacked) {
    for (const bool between : {false, true}) {
        QuickFolder folder;
        const Truth truth{{0,
                           {{{"a", testing::RecordBytes(5000, std::byte{1}), 0},
                             {"b", testing::RecordBytes(700, std::byte{2}), 0}}}},
                          {10,
                           {{{"a", testing::RecordBytes(5000, std::byte{3}), 0},
                             {"b", testing::RecordBytes(700, std::byte{2}), 0}}}}};
        capture(folder / "run", truth);
        const std::string file = folder / "run" + "/step-0000000010/rank-00000.data";
        auto bytes = testing::read_file(file);
        bytes[between ? 5001 : 4097] ^= std::byte{4};
        testing::write_file(file, bytes);
        const auto packed =
            pack_history(unsynced_file_system(), folder / "run", folder / "record", options(), {});
        ASSERT_FALSE(packed);
        EXPECT_EQ(packed.error().code, ErrorCode::damaged) << packed.error().message;
        EXPECT_NE(packed.error().message.find(file), std::string::npos) << packed.error().message;
        expect_record(folder / "record", truth, {0});
    }
}

}  // namespace
}  // namespace twinrun
