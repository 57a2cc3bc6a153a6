// Hostile lines in a record's journal.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "history/history.hpp"
#include "history/journal_line.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::QuickFolder;

TEST(RecordJournal, HostileLinesAreRefused) {
    QuickFolder folder;
    const std::string path = folder / "record";
    fs::create_directories(path);
    const std::string head = seal_line(
        R"({"atol":0.0,"chunk_bytes":4096,"digest":"linear","keep_data":true,"record":{"bounded":false,"chunk_bytes":64,)"
        R"("codec":"none","level":1,"method":"runs","xor":false},"residue_bits":4,"rtol":0.0,"twinrun_history":2})");
    const auto step = [](std::int64_t number, const std::string& difference,
                         const std::string& folder_name = "", const std::string& more = "") {
        const std::string place = folder_name.empty() ? "step-" + std::to_string(number) : folder_name;
        return R"({"folder":")" + place +
               R"(","ranks":[{"data":"rank-00000.twr","data_bytes":9,"difference":)" + difference +
               R"(,"full_bytes":9,"header_xxh3":"0000000000000000","metadata":"m","metadata_bytes":0,"rank":0}],"step":)" +
               std::to_string(number) + more + "}";
    };
    const auto moved = [](const std::string& file, const std::string& ordinals = "0",
                          const std::string& gone = "") {
        return R"({"gone":[)" + gone + R"(],"moved":[{"differences":[)" + ordinals + R"(],"file":")" + file +
               R"("}]})";
    };
    const auto reads = [&](const std::vector<std::string>& lines) {
        std::string text = head + "\n";
        for (const std::string& line : lines)
            text += seal_line(line) + "\n";
        testing::write_file(manifest_path(path), std::as_bytes(std::span(text)));
        const auto history = History::open(path);
        const auto journal = read_rank_journal(path, 0, 1);
        EXPECT_EQ(history.ok(), journal.ok());
        if (!history) {
            EXPECT_EQ(history.error().code, ErrorCode::damaged) << history.error().message;
            EXPECT_NE(history.error().message.find(": line "), std::string::npos);
        }
        return history.ok();
    };
    EXPECT_TRUE(reads({step(1, "0"), step(2, "1")}));
    EXPECT_TRUE(
        reads({step(1, "0"), step(2, "1"), R"({"drop":1})", moved("step-leftovers/rank-00000.1.twr")}));
    EXPECT_TRUE(reads({step(1, "0"), step(1, "0", "", R"(,"replaces":true)")}))
        << "a step that is written anew";
    EXPECT_TRUE(reads({step(1, "0"), step(1, "1", "step-1.1", R"(,"replaces":true)")}));
    EXPECT_TRUE(reads({step(1, "0"), R"({"child":"/x"})"}));
    // Ordinals that cannot be, or that something else has.
    EXPECT_TRUE(reads({step(1, std::to_string(kMostOrdinals))}));
    for (const char* ordinal : {"16777216", "4294967295", "4294967296", "-1", "1.5", "\"0\"", "null"})
        EXPECT_FALSE(reads({step(1, ordinal)})) << ordinal;
    EXPECT_FALSE(reads({step(1, "0"), step(2, "0")})) << "two steps, one difference";
    EXPECT_FALSE(reads({step(1, "0"), R"({"drop":1})", step(2, "0")})) << "that had one";
    EXPECT_FALSE(reads({step(1, "0"), step(1, "0", "step-1.1", R"(,"replaces":true)")}))
        << "of another attempt";
    // Places that lead out, or to what is no difference.
    for (const char* file : {"/x", "x", "../x", "..", "a/..", "a/../b", "a/b/c", "./manifest.jsonl", "./x",
                             "a/.", "a/", "/", "", "a\\u0000/b", "a/b\\u0000"}) {
        EXPECT_FALSE(reads({step(1, "0"), moved(file)})) << file;
    }
    // Differences that are not there.
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "1")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "4294967296")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0.2")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "-0.2")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0", "1")}));
    EXPECT_FALSE(reads({step(1, "0"), moved("a/b", "0", "4294967296")}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"moved":[]})"}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"gone":{},"moved":5})"}));
    EXPECT_FALSE(reads({step(1, "0"), R"({"child":7})"}));
}

}  // namespace
}  // namespace twinrun
