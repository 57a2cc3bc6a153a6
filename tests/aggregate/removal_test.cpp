#include "aggregate/mpi/removal.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/test_folder.hpp"

namespace twinrun::aggregation {
namespace {

void put(const std::string& name, const std::string& text) { std::ofstream(name) << text; }

std::string text_of(const std::string& name) {
    std::ifstream file(name);
    return {std::istreambuf_iterator<char>(file), {}};
}

class Removal : public ::testing::Test {
   protected:
    const testing::TestFolder folder_;
    const std::string name_ = folder_.path("x");
    const std::string aside_ = folder_.path("aside");
};

TEST_F(Removal, OfTheFileThatIsMeant) {
    put(name_, "ours");
    EXPECT_TRUE(remove_if(name_, aside_, [](const std::string& now) { return text_of(now) == "ours"; }));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(Removal, LeavesAnotherFile) {
    put(name_, "theirs");
    EXPECT_FALSE(remove_if(name_, aside_, [](const std::string& now) { return text_of(now) == "ours"; }));
    EXPECT_EQ(text_of(name_), "theirs");
}

TEST_F(Removal, LeavesAFileThatComesBehindTheLook) {
    put(name_, "ours");
    const auto is_ours = [&](const std::string& now) {
        const bool ours = text_of(now) == "ours";
        if (now == name_) {
            std::filesystem::remove(name_);
            put(name_, "theirs");
        }
        return ours;
    };
    EXPECT_FALSE(remove_if(name_, aside_, is_ours));
    EXPECT_EQ(text_of(name_), "theirs");
    EXPECT_FALSE(std::filesystem::exists(aside_));
}

TEST_F(Removal, ReplacesNothingWhenItGivesANameBack) {
    put(name_, "ours");
    const auto is_ours = [&](const std::string& now) {
        if (now == name_) return true;
        put(name_, "a third one");
        return false;
    };
    EXPECT_FALSE(remove_if(name_, aside_, is_ours));
    EXPECT_EQ(text_of(name_), "a third one");
    EXPECT_EQ(text_of(aside_), "ours");
}

TEST_F(Removal, OfNothingIsNone) {
    EXPECT_FALSE(remove_if(name_, aside_, [](const std::string&) { return true; }));
}

}  // namespace
}  // namespace twinrun::aggregation
