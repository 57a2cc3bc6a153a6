// Hostile lines in a record's journal, and lines of steps with and without a document of JSON.
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "history/history.hpp"
#include "history/journal_line.hpp"
#include "history/plain_step.hpp"
#include "support/packed_record.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"

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
    // Checksums of differences.
    const auto summed = [&](const std::string& sum) { return step(1, R"(0,"difference_xxh3":)" + sum); };
    EXPECT_TRUE(reads({summed(R"("0123456789abcdef")")}));
    EXPECT_EQ(read_rank_journal(path, 0, 1).value().differences.at(0).checksum, 0x0123456789abcdefU);
    EXPECT_TRUE(reads({summed(R"("0123456789abcdef")"), moved("a/b")}));
    EXPECT_EQ(read_rank_journal(path, 0, 1).value().differences.at(0), DifferencePlace{"a/b"})
        << "moved by an older twinrun";
    for (const char* sum : {R"("0123456789abcde")", R"("0123456789ABCDEF")", R"("")", "7", "null"})
        EXPECT_FALSE(reads({summed(sum)})) << sum;
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

// What is written is what is read.
TEST(RecordJournal, LinesNameTheFilesOfDifferences) {
    for (const std::optional<std::uint64_t> sum :
         {std::optional<std::uint64_t>(), {7}, {~std::uint64_t{0}}}) {
        RankStep step{step_folder(3, 0), {}};
        step.files.data = "rank-00000.twr";
        step.files.metadata = "rank-00000.twm";
        step.files.difference = 5;
        step.files.difference_checksum = sum;
        Journal journal;
        take_line(step_line(3, step, false), 0, journal);
        EXPECT_EQ(journal.steps.at(3), step);
        EXPECT_EQ(journal.differences.at(5), (DifferencePlace{step.folder + "/rank-00000.twr", sum}));
        const DifferencePlace other{"step-leftovers/rank-00000.difference-9.twr", sum};
        take_line("{\"difference\":9," + place_keys(other) + "}", 0, journal);
        EXPECT_EQ(journal.differences.at(9), other);
        const DifferencePlace moved{"step-leftovers/rank-00000.twr", sum};
        take_line("{\"gone\":[],\"moved\":[{\"differences\":[5,9]," + place_keys(moved) + "}]}", 0, journal);
        EXPECT_EQ(journal.differences.at(5), moved);
        EXPECT_EQ(journal.differences.at(9), moved);
    }
}

// What a journal has after a line; nothing where the line is refused.
std::optional<RankSteps> steps_after(const std::string& object) {
    Journal journal;
    try {
        take_line(object, 0, journal);
    } catch (const std::exception&) {
        return std::nullopt;
    }
    return journal.steps;
}

// The same line with a space, which no plain line has.
std::string spaced(std::string object) { return object.insert(object.empty() ? 0 : 1, " "); }

RankStep some_step(std::mt19937_64& random) {
    RankStep step{step_folder(static_cast<std::int64_t>(random() % 5), 0), {}};
    RankFiles& files = step.files;
    if (random() % 4 != 0) files.data = "rank-00000.data";
    files.data_bytes = random() >> (random() % 64);
    files.metadata = "rank-00000.twm";
    files.metadata_bytes = random() >> (random() % 64);
    files.header_checksum = random();
    const double seconds[] = {0, 1, 1e-5 * static_cast<double>(random() % 1'000'000), 1e300, 5e-324, -1};
    files.blocked_seconds = seconds[random() % std::size(seconds)];
    if (random() % 8 == 0) files.divergence = "x";
    if (random() % 3 == 0) {
        files.difference = static_cast<std::uint32_t>(random() >> (32 + random() % 32));
        files.full_bytes = random() >> (random() % 64);
        if (random() % 4 != 0) files.difference_checksum = random();
        if (random() % 4 == 0) files.metadata.clear();
    }
    return step;
}

TEST(PlainStep, SaysWhatTheLineSays) {
    std::mt19937_64 random(test_seed(41));
    int plain = 0;
    for (int round = 0; round < 2000; ++round) {
        const RankStep step = some_step(random);
        const auto number = static_cast<std::int64_t>(random() >> (1 + random() % 63));
        const std::string line = step_line(number, step, random() % 8 == 0);
        const auto found = plain_step(line, 0);
        if (found) {
            ++plain;
            EXPECT_EQ(found->number, number);
            EXPECT_EQ(found->step, step) << line;
            EXPECT_FALSE(plain_step(line, 1)) << "of another rank";
        }
        EXPECT_EQ(steps_after(line), steps_after(spaced(line))) << line;
    }
    EXPECT_GT(plain, 500);
    // A step of a record is as plain.
    RankStep recorded{"step-0000000007", {}};
    recorded.files.data = "rank-00000.twr";
    recorded.files.difference = 7;
    EXPECT_TRUE(plain_step(step_line(7, recorded, false), 0));
    recorded.files.difference_checksum = 1;
    recorded.files.metadata = "rank-00000.twm";
    const auto found = plain_step(step_line(7, recorded, false), 0);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, recorded);
}

TEST(PlainStep, TakesNoOtherLine) {
    std::mt19937_64 random(test_seed(42));
    constexpr std::string_view kBytes = "\"\\/.,:{}[]0129-+eE \n\x01\x7f\xc3\xa4x";
    int refused = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string line = step_line(7, some_step(random), false);
        for (std::uint64_t change = 1 + random() % 2; change-- > 0;) {
            const std::size_t at = random() % line.size();
            switch (random() % 3) {
                case 0: line[at] = kBytes[random() % kBytes.size()]; break;
                case 1: line.insert(at, 1, kBytes[random() % kBytes.size()]); break;
                default: line.erase(at, 1); break;
            }
        }
        const auto found = steps_after(line);
        EXPECT_EQ(found, steps_after(spaced(line))) << line;
        refused += found ? 0 : 1;
    }
    EXPECT_GT(refused, 5000);
    for (const char* name : {".", "..", "a/b", ""})
        EXPECT_FALSE(steps_after(step_line(7, {name, some_step(random).files}, false))) << name;
}

}  // namespace
}  // namespace twinrun
