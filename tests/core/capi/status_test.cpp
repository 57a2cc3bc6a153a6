// Codes, messages, and what is not a valid call.
#include <algorithm>
#include <future>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "core/capi/support.hpp"

namespace twinrun {
namespace {

using StatusTest = testing::CapiTest;

TEST(Status, NumbersAndNamesAreFixed) {
    const std::vector<std::pair<int, const char*>> all = {{0, "TWR_OK"},
                                                          {1, "TWR_ERROR_INVALID_ARGUMENT"},
                                                          {2, "TWR_ERROR_NOT_FOUND"},
                                                          {3, "TWR_ERROR_IO"},
                                                          {4, "TWR_ERROR_NO_SPACE"},
                                                          {5, "TWR_ERROR_DAMAGED"},
                                                          {6, "TWR_ERROR_UNSUPPORTED"},
                                                          {7, "TWR_ERROR_STALE"},
                                                          {8, "TWR_ERROR_MISMATCH"},
                                                          {9, "TWR_ERROR_OUT_OF_MEMORY"},
                                                          {10, "TWR_ERROR_INTERRUPTED"},
                                                          {11, "TWR_ERROR_INTERNAL"},
                                                          {12, "TWR_ERROR_OTHER_RANK"},
                                                          {100, "TWR_DIVERGED"},
                                                          {101, "TWR_STEP_LOST"},
                                                          {102, "TWR_DIFFERENT"},
                                                          {103, "TWR_INCOMPARABLE"}};
    std::set<int> known;
    for (const auto& [number, name] : all) {
        EXPECT_STREQ(twr_status_name(number), name);
        known.insert(number);
    }
    for (int number = -3; number < 200; ++number) {
        if (known.contains(number)) continue;
        EXPECT_STREQ(twr_status_name(number), "not a twr_status") << number;
    }
}

TEST(Status, VersionIsThatOfTheBuild) {
    EXPECT_STREQ(twr_version(), TWINRUN_PROJECT_VERSION);  // CMake's
    EXPECT_STREQ(TWINRUN_VERSION, TWINRUN_PROJECT_VERSION);
    EXPECT_EQ(std::to_string(TWINRUN_VERSION_MAJOR) + "." + std::to_string(TWINRUN_VERSION_MINOR) + "." +
                  std::to_string(TWINRUN_VERSION_PATCH),
              TWINRUN_PROJECT_VERSION);
    EXPECT_EQ(twr_version_number(),
              TWINRUN_VERSION_MAJOR * 10000 + TWINRUN_VERSION_MINOR * 100 + TWINRUN_VERSION_PATCH);
#if TWINRUN_VERSION_NUMBER < 100 || TWINRUN_VERSION_NUMBER >= 10000000
#error "no number that #if can compare"
#endif
}

TEST_F(StatusTest, NullIsAnErrorThatNamesTheArgument) {
    twr_run* run = open("run");
    ASSERT_NE(run, nullptr);
    twr_settings* settings = nullptr;
    double x = 0;
    const uint64_t shape[] = {1};
    const char* names[] = {"x", nullptr};
    int64_t step = 0;
    uint64_t bytes = 0;
    twr_report report{};
    report.size = sizeof report;
    twr_array array = TWR_ARRAY_INIT;

    TWR_EXPECT_ERROR(twr_settings_create(nullptr), TWR_ERROR_INVALID_ARGUMENT,
                     "twr_settings_create: settings");
    TWR_EXPECT_ERROR(twr_settings_set(nullptr, "atol", "1"), TWR_ERROR_INVALID_ARGUMENT, "settings");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, nullptr, "1"), TWR_ERROR_INVALID_ARGUMENT, "name");
    TWR_EXPECT_ERROR(twr_settings_set(settings_, "atol", nullptr), TWR_ERROR_INVALID_ARGUMENT, "atol");
    TWR_EXPECT_ERROR(twr_settings_load(nullptr, "x"), TWR_ERROR_INVALID_ARGUMENT, "settings");
    TWR_EXPECT_ERROR(twr_settings_load(settings_, nullptr), TWR_ERROR_INVALID_ARGUMENT, "path");
    TWR_EXPECT_ERROR(twr_open(nullptr, "x", nullptr), TWR_ERROR_INVALID_ARGUMENT, "run");
    twr_run* none = run;
    TWR_EXPECT_ERROR(twr_open(&none, nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT, "path");
    EXPECT_EQ(none, nullptr);
    TWR_EXPECT_ERROR(twr_open_comm(&none, "x", nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT, "comm");
    TWR_EXPECT_ERROR(twr_protect(nullptr, "x", &x, TWR_F64, 1, shape), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_protect(run, nullptr, &x, TWR_F64, 1, shape), TWR_ERROR_INVALID_ARGUMENT, "name");
    TWR_EXPECT_ERROR(twr_protect(run, "x", nullptr, TWR_F64, 1, shape), TWR_ERROR_INVALID_ARGUMENT,
                     "'x': data");
    TWR_EXPECT_ERROR(twr_protect(run, "x", &x, TWR_F64, 1, nullptr), TWR_ERROR_INVALID_ARGUMENT,
                     "'x': shape");
    TWR_EXPECT_ERROR(twr_protect_array(nullptr, &array), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_protect_array(run, nullptr), TWR_ERROR_INVALID_ARGUMENT, "array");
    TWR_EXPECT_ERROR(twr_protect_array(run, &array), TWR_ERROR_INVALID_ARGUMENT, "name");
    TWR_EXPECT_ERROR(twr_unprotect(nullptr, "x"), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_unprotect(run, nullptr), TWR_ERROR_INVALID_ARGUMENT, "name");
    TWR_EXPECT_ERROR(twr_capture(nullptr, 0), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_capture_some(nullptr, 0, names, 1), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_capture_some(run, 0, nullptr, 1), TWR_ERROR_INVALID_ARGUMENT, "names");
    TWR_EXPECT_ERROR(twr_capture_some(run, 0, names, 2), TWR_ERROR_INVALID_ARGUMENT, "names[1]");
    // Not all of them, as it would be without this.
    TWR_EXPECT_ERROR(twr_capture_some(run, 0, names, 0), TWR_ERROR_INVALID_ARGUMENT, "count");
    TWR_EXPECT_ERROR(twr_wait(nullptr), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_last_report(nullptr, &report), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_last_report(run, nullptr), TWR_ERROR_INVALID_ARGUMENT, "report");
    EXPECT_STREQ(twr_report_json(nullptr), "{}");
    TWR_EXPECT_ERROR(twr_latest(nullptr, 0, &step), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_latest(run, 0, nullptr), TWR_ERROR_INVALID_ARGUMENT, "step");
    TWR_EXPECT_ERROR(twr_stored_bytes(nullptr, 0, "x", &bytes), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_stored_bytes(run, 0, nullptr, &bytes), TWR_ERROR_INVALID_ARGUMENT, "name");
    TWR_EXPECT_ERROR(twr_stored_bytes(run, 0, "x", nullptr), TWR_ERROR_INVALID_ARGUMENT, "bytes");
    const auto ignore = [](void*, const char*) {};
    TWR_EXPECT_ERROR(twr_stored_names(nullptr, 0, ignore, nullptr), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_stored_names(run, 0, nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT, "callback");
    TWR_EXPECT_ERROR(twr_stored_names(run, 0, ignore, nullptr), TWR_ERROR_NOT_FOUND, "step 0");
    std::uint64_t local_steps = 7;
    TWR_EXPECT_ERROR(twr_local_steps(nullptr, &local_steps), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_local_steps(run, nullptr), TWR_ERROR_INVALID_ARGUMENT, "steps");
    EXPECT_EQ(twr_local_steps(run, &local_steps), TWR_OK);
    EXPECT_EQ(local_steps, 0U);
    TWR_EXPECT_ERROR(twr_drop_local(nullptr), TWR_ERROR_INVALID_ARGUMENT, "run");
    EXPECT_EQ(twr_drop_local(run), TWR_OK);
    TWR_EXPECT_ERROR(twr_restore(nullptr, 0), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_restore_some(nullptr, 0, names, 1), TWR_ERROR_INVALID_ARGUMENT, "run");
    TWR_EXPECT_ERROR(twr_restore_some(run, 0, nullptr, 1), TWR_ERROR_INVALID_ARGUMENT, "names");
    TWR_EXPECT_ERROR(twr_restore_some(run, 0, names, 0), TWR_ERROR_INVALID_ARGUMENT, "count");
    TWR_EXPECT_ERROR(twr_on_divergence(nullptr, nullptr, nullptr), TWR_ERROR_INVALID_ARGUMENT, "run");
    // These are the exceptions, as free(NULL) is.
    twr_settings_destroy(nullptr);
    TWR_EXPECT_OK(twr_close(nullptr));
    TWR_EXPECT_OK(twr_on_divergence(run, nullptr, nullptr));
    EXPECT_EQ(settings, nullptr);
    TWR_EXPECT_OK(twr_close(run));
}

TEST_F(StatusTest, TheMessageIsOfThisThreadsLastFailure) {
    TWR_EXPECT_ERROR(twr_capture(nullptr, 0), TWR_ERROR_INVALID_ARGUMENT, "twr_capture");
    const std::string before = twr_error_message();
    std::promise<void> failed;
    std::promise<void> looked;
    auto other = std::async(std::launch::async, [&] {
        const std::string at_first = twr_error_message();
        static_cast<void>(twr_wait(nullptr));
        failed.set_value();
        looked.get_future().wait();
        return at_first + "|" + twr_error_message();
    });
    failed.get_future().wait();
    EXPECT_EQ(twr_error_message(), before);
    TWR_EXPECT_OK(twr_settings_set(settings_, "atol", "1e-7"));
    EXPECT_EQ(twr_error_message(), before);  // success leaves it
    looked.set_value();
    EXPECT_EQ(other.get(), "|twr_wait: run is NULL");
}

TEST_F(StatusTest, LongMessagesAreCut) {
    const std::string name(10'000, 'n');
    EXPECT_EQ(twr_settings_set(settings_, name.c_str(), "1"), TWR_ERROR_INVALID_ARGUMENT);
    const std::string message = twr_error_message();
    EXPECT_LT(message.size(), 5000U);
    EXPECT_TRUE(message.ends_with("...")) << message;
    TWR_EXPECT_ERROR(twr_wait(nullptr), TWR_ERROR_INVALID_ARGUMENT, "twr_wait");
    EXPECT_STREQ(twr_error_message(), "twr_wait: run is NULL");
}

TEST_F(StatusTest, LayersSetTheText) {
    EXPECT_EQ(twr_fail(TWR_ERROR_IO, "a disk fell off"), TWR_ERROR_IO);
    EXPECT_STREQ(twr_error_message(), "a disk fell off");
    EXPECT_EQ(twr_fail(-7, twr_error_message() + 2), -7);  // a part of itself
    EXPECT_STREQ(twr_error_message(), "disk fell off");
    EXPECT_EQ(twr_fail(TWR_OK, nullptr), TWR_OK);
    EXPECT_STREQ(twr_error_message(), "");
    const std::string longest(4095, 'n');
    twr_fail(TWR_ERROR_IO, longest.c_str());
    EXPECT_EQ(twr_error_message(), longest);
    twr_fail(TWR_ERROR_IO, (longest + "n").c_str());
    EXPECT_EQ(twr_error_message(), longest.substr(3) + "...");
    twr_fail(TWR_OK, "");
}

// ---- the application's communicator ----

struct Behaviour {
    int fail_with = 0;
    int throws = 0;
    bool other_rank_fails = false;
    int released = 0;
};

int behaved_minimum(void* context, int64_t* values, int count) {
    const auto& how = *static_cast<Behaviour*>(context);
    if (how.throws == 1) throw std::bad_alloc();
    if (how.throws == 2) throw std::runtime_error("of the application");
    if (how.throws == 3) throw 3;  // NOLINT
    for (int i = 0; i < count && how.other_rank_fails; ++i)
        values[i] = std::min<int64_t>(values[i], 0);
    return how.fail_with;
}
int behaved_broadcast(void* context, void*, size_t) { return static_cast<Behaviour*>(context)->fail_with; }
void behaved_release(void* context) { ++static_cast<Behaviour*>(context)->released; }

TEST_F(StatusTest, TheCommunicatorsFailuresAreErrorsAndItIsReleasedOnce) {
    Behaviour how;
    twr_comm comm{&how, 0, 1, behaved_minimum, behaved_broadcast, behaved_release};
    twr_run* run = nullptr;
    const std::string folder = path("run");
    const auto open_it = [&] { return twr_open_comm(&run, folder.c_str(), settings_, &comm); };

    how.fail_with = 7;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_IO, "returned 7");
    EXPECT_EQ(how.released, 1);
    how = {};
    how.throws = 1;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_OUT_OF_MEMORY, "out of memory");
    how.throws = 2;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INTERNAL, "of the application");
    how.throws = 3;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INTERNAL, "exception");
    EXPECT_EQ(how.released, 3);

    how = {};
    how.other_rank_fails = true;
    comm.size = 2;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_OTHER_RANK, "another rank");
    EXPECT_EQ(how.released, 1);
    EXPECT_FALSE(std::filesystem::exists(folder));

    how = {};
    comm.rank = 2;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INVALID_ARGUMENT, "rank 2 of 2");
    comm = {&how, 0, 1, nullptr, behaved_broadcast, behaved_release};
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INVALID_ARGUMENT, "minimum");
    comm = {&how, 0, 1, behaved_minimum, nullptr, behaved_release};
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_INVALID_ARGUMENT, "broadcast");
    EXPECT_EQ(how.released, 3);
    EXPECT_EQ(run, nullptr);

    how = {};
    comm = {&how, 0, 1, behaved_minimum, behaved_broadcast, behaved_release};
    TWR_EXPECT_OK(open_it());
    EXPECT_EQ(how.released, 0);
    TWR_EXPECT_OK(twr_close(run));
    EXPECT_EQ(how.released, 1);

    comm.release = nullptr;  // may be
    how.fail_with = 1;
    TWR_EXPECT_ERROR(open_it(), TWR_ERROR_IO, "returned 1");
}

TEST_F(StatusTest, ACommunicatorThatFailsDuringCaptureIsAnError) {
    Behaviour how;
    // The other rank is always well.
    const twr_comm comm{&how, 0, 2, behaved_minimum, behaved_broadcast, behaved_release};
    twr_run* run = nullptr;
    TWR_ASSERT_OK(twr_open_comm(&run, path("run").c_str(), settings_, &comm));
    double x = 1;
    TWR_EXPECT_OK(twr_protect(run, "x", &x, TWR_F64, 0, nullptr));
    how.throws = 1;
    TWR_EXPECT_ERROR(twr_capture(run, 1), TWR_ERROR_OUT_OF_MEMORY, "out of memory");
    how.throws = 0;
    TWR_EXPECT_OK(twr_capture(run, 2));
    TWR_EXPECT_OK(twr_close(run));
}

}  // namespace
}  // namespace twinrun
