// Settings: names, files, the environment.
#include <set>
#include <sstream>

#include "core/capi/support.hpp"
#include "history/history.hpp"

namespace twinrun {
namespace {

using SettingsTest = testing::CapiTest;

TEST_F(SettingsTest, UnknownNamesAndBadValuesAreNamed) {
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "atoll", "1"), TWR_ERROR_INVALID_ARGUMENT, "atoll");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "atol", "much"), TWR_ERROR_INVALID_ARGUMENT, "much");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "atol", ""), TWR_ERROR_INVALID_ARGUMENT, "atol");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "mode", "some"), TWR_ERROR_INVALID_ARGUMENT, "some");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "memory", "1 parsec"), TWR_ERROR_INVALID_ARGUMENT, "memory");
}

TEST_F(SettingsTest, TheDocumentHasEveryName) {
    // The table in docs/reference/capture.md: | `name` | `an example` | ...
    std::ifstream document(std::string(TWINRUN_SOURCE_DIR) + "/docs/reference/capture.md");
    std::set<std::string> documented;
    bool in_table = false;
    for (std::string line; std::getline(document, line);) {
        if (line.starts_with("| setting")) in_table = true;
        if (in_table && !line.starts_with("|")) break;
        if (!in_table || !line.starts_with("| `")) continue;
        std::istringstream cells(line);
        std::string skipped;
        std::string name;
        std::string value;
        std::getline(cells, skipped, '`');
        std::getline(cells, name, '`');
        std::getline(cells, skipped, '`');
        std::getline(cells, value, '`');
        TWR_EXPECT_OK(twr_settings_set(settings_, name.c_str(), value.c_str()));
        documented.insert(name);
    }
    // The library lists its names where it is given one that it does not know.
    EXPECT_EQ(twr_settings_set(settings_, "?", "1"), TWR_ERROR_INVALID_ARGUMENT);
    std::string message = twr_error_message();
    message.erase(0, message.find("there are ") + 10);
    std::set<std::string> known;
    std::istringstream names(message);
    for (std::string name; std::getline(names >> std::ws, name, ',');)
        known.insert(name);
    EXPECT_GT(known.size(), 10U);
    EXPECT_EQ(documented, known);
}

TEST_F(SettingsTest, AFileHasLinesOfThem) {
    TWR_EXPECT_OK(twr_settings_load(
        settings_, write("good", "# what we compare with\natol = 1e-3\n\n  mode=digests # small\n").c_str()));
    TWR_EXPECT_ERROR(twr_settings_load(settings_, write("bad", "atol = 1\nnonsense = 2\n").c_str()),
                     TWR_ERROR_INVALID_ARGUMENT, "bad:2");
    TWR_EXPECT_ERROR(twr_settings_load(settings_, path("none").c_str()), TWR_ERROR_NOT_FOUND, "none");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_EXPECT_OK(twr_close(run));
    const auto history = History::open(path("run"));
    ASSERT_TRUE(history) << history.error().message;
    EXPECT_EQ(history->settings.tolerance.atol, 1e-3);
    EXPECT_FALSE(history->settings.keep_data);
}

TEST_F(SettingsTest, TheEnvironmentsFileComesOnTop) {
    setenv("TWINRUN_SETTINGS", write("outside", "atol = 0.25\n").c_str(), 1);
    set("rtol", "1e-9");
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    TWR_EXPECT_OK(twr_close(run));
    const auto history = History::open(path("run"));
    ASSERT_TRUE(history) << history.error().message;
    EXPECT_EQ(history->settings.tolerance.atol, 0.25);
    EXPECT_EQ(history->settings.tolerance.rtol, 1e-9);

    setenv("TWINRUN_SETTINGS", path("none").c_str(), 1);
    twr_run* none = nullptr;
    TWR_EXPECT_ERROR(twr_open(&none, path("other").c_str(), settings_), TWR_ERROR_NOT_FOUND,
                     "TWINRUN_SETTINGS");
    EXPECT_EQ(none, nullptr);
    setenv("TWINRUN_SETTINGS", "", 1);  // as if it were not set
    TWR_EXPECT_OK(twr_open(&none, path("other").c_str(), nullptr));
    TWR_EXPECT_OK(twr_close(none));
}

TEST_F(SettingsTest, ARunDoesNotNeedThemAnyLonger) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    set("atol", "1");  // of later runs only
    twr_settings_destroy(settings_);
    settings_ = nullptr;
    double x = 1;
    TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    TWR_EXPECT_OK(twr_capture(run, 1));
    TWR_EXPECT_OK(twr_close(run));
    const auto history = History::open(path("run"));
    ASSERT_TRUE(history) << history.error().message;
    EXPECT_EQ(history->settings.tolerance.atol, 1e-6);
    EXPECT_FALSE(history->provenance.empty());  // collected, as none was given
}

}  // namespace
}  // namespace twinrun
