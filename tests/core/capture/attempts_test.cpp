#include "capture/attempts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace twinrun {
namespace {

namespace fs = std::filesystem;

RankStep at(std::int64_t step, std::uint32_t attempt) { return {step_folder(step, attempt), {}}; }

TEST(Attempts, TheFirstIsZero) {
    Attempts attempts;
    EXPECT_EQ(attempts.after_newest(7), 0U);
    attempts.add(7, 0);
    EXPECT_EQ(attempts.after_newest(7), 1U);
    EXPECT_EQ(attempts.after_newest(8), 0U);
}

TEST(Attempts, AnOlderAttemptHidesNoNewerOne) {
    Attempts attempts;
    attempts.add(7, 5);
    attempts.add(7, 2);
    EXPECT_EQ(attempts.after_newest(7), 6U);
}

// All that a journal names has a folder: committed steps, dropped ones, and differences of dropped ones.
TEST(Attempts, AJournalNamesThem) {
    Journal journal;
    journal.steps.put(1, at(1, 2));
    journal.dropped[1] = 1;
    journal.dropped[2] = 4;
    journal.differences[0] = {step_folder(3, 6) + "/rank-00000.difference"};
    journal.differences[1] = {step_folder(1, 9) + "/rank-00000.difference"};
    journal.differences[2] = {"no folder of a step/rank-00000.difference"};
    Attempts attempts;
    attempts.add(journal);
    EXPECT_EQ(attempts.after_newest(1), 10U);
    EXPECT_EQ(attempts.after_newest(2), 5U);
    EXPECT_EQ(attempts.after_newest(3), 7U);
}

TEST(Attempts, NamesThatAreUsedAreSkipped) {
    const fs::path folder =
        fs::temp_directory_path() / ("twinrun_NamesThatAreUsed_" + std::to_string(getpid()));
    fs::remove_all(folder);
    const std::string shared = (folder / "shared").string();
    const std::string local = (folder / "local").string();
    fs::create_directories(fs::path(shared) / step_folder(3, 1));
    fs::create_directories(local);
    std::ofstream(fs::path(local) / step_folder(3, 2)) << "a file of others";
    const std::array<std::string_view, 2> both{shared, local};
    const std::array<std::string_view, 2> one{shared, ""};
    EXPECT_EQ(first_unused(3, 0, both).value(), 0U);
    EXPECT_EQ(first_unused(3, 1, both).value(), 3U);
    EXPECT_EQ(first_unused(3, 1, one).value(), 2U);
    EXPECT_EQ(first_unused(4, 1, both).value(), 1U);
    fs::remove_all(folder);
}

}  // namespace
}  // namespace twinrun
