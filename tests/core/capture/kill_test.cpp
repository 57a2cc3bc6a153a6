// kill -9 at random moments of capture and flush: every committed step is whole, no half step is visible, the next run goes
// on where the last one ended.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "history/flush.hpp"
#include "history/record_residues.hpp"
#include "history/restore.hpp"
#include "sketch/build.hpp"
#include "support/victim/victim_values.hpp"

extern char** environ;

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Runs the program until `delay` after it said `lines` lines, and kills it. Returns the newest step that it was promised.
std::optional<std::int64_t> run_and_kill(const std::string& history, const std::string& settings,
                                         std::int64_t first, int lines, std::chrono::microseconds delay) {
    int output[2];
    EXPECT_EQ(::pipe(output), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, output[0]);
    posix_spawn_file_actions_addclose(&actions, output[1]);
    const std::string number = std::to_string(first);
    const char* arguments[] = {TWINRUN_CAPTURE_VICTIM, history.c_str(), settings.c_str(), number.c_str(),
                               nullptr};
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, TWINRUN_CAPTURE_VICTIM, &actions, nullptr,
                            const_cast<char* const*>(arguments), environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(output[1]);
    std::string said;
    std::optional<Clock::time_point> end;
    const auto count = [&] { return std::count(said.begin(), said.end(), '\n'); };
    if (lines == 0) end = Clock::now() + delay;
    bool open = true;
    while (open && (!end || Clock::now() < *end)) {
        pollfd ready{output[0], POLLIN, 0};
        const auto left =
            end ? std::chrono::ceil<std::chrono::milliseconds>(*end - Clock::now()).count() : 60'000;
        if (::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) <= 0) continue;
        char part[4096];
        const ssize_t got = ::read(output[0], part, sizeof part);
        open = got > 0;
        if (open) said.append(part, static_cast<std::size_t>(got));
        if (!end && count() >= lines) end = Clock::now() + delay;
    }
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with status " << WEXITSTATUS(status);
    for (;;) {  // what it said last
        char part[4096];
        const ssize_t got = ::read(output[0], part, sizeof part);
        if (got <= 0) break;
        said.append(part, static_cast<std::size_t>(got));
    }
    ::close(output[0]);
    said.resize(said.rfind('\n') == std::string::npos ? 0 : said.rfind('\n') + 1);
    const std::size_t at = said.rfind("committed ");
    if (at == std::string::npos) return std::nullopt;
    return std::strtoll(said.c_str() + at + 10, nullptr, 10);
}

// Every committed step, checked bit for bit; from `checked` on.
std::vector<std::int64_t> check(const std::string& path, std::int64_t checked) {
    std::vector<std::int64_t> steps;
    if (!History::exists(path)) return steps;
    auto history = History::open(path);
    EXPECT_TRUE(history) << history.error().message;  // a manifest begins whole
    if (!history) return steps;
    auto state = testing::victim_state();
    for (const HistoryStep& step : history->steps) {
        steps.push_back(step.step);
        if (step.step < checked) continue;
        std::vector<CapturedField> fields;
        for (std::size_t f = 0; f < state.size(); ++f) {
            std::fill(state[f].begin(), state[f].end(), -1.0);
            CapturedField field;
            field.name = "field" + std::to_string(f);
            field.dtype = DType::f64;
            field.shape = {state[f].size()};
            field.data = state[f].data();
            fields.push_back(field);
        }
        Journal journal;
        journal.steps.put(step.step, {step.folder, step.ranks.at(0)});
        if (!step.ranks[0].data.empty()) {
            const auto restored = restore_step({{path, journal}}, step.step, fields);
            EXPECT_TRUE(restored) << restored.error().message;
            auto expected = testing::victim_state();
            testing::victim_become(expected, step.step);
            EXPECT_TRUE(state == expected) << "step " << step.step;
        }
        const std::string name = (fs::path(path) / step.folder / step.ranks[0].metadata).string();
        auto metadata = MetadataFile::open(name);
        EXPECT_TRUE(metadata) << metadata.error().message;
        if (!metadata) continue;
        if (step.ranks[0].difference != kNoBase) {
            const auto record = RecordStore::open(path, 0);
            EXPECT_TRUE(record) << record.error().message;
            if (!record) continue;
            read_residues_from(*record, step.ranks[0].difference, **metadata);
        }
        for (std::size_t f = 0; f < state.size(); ++f) {
            for (std::size_t s = 0; s < kSections; ++s) {
                std::vector<std::byte> bytes((*metadata)->directory().fields[f].sections[s].length);
                const auto read = (*metadata)->read(f, static_cast<Section>(s), 0, bytes);
                EXPECT_TRUE(read) << read.error().message;
            }
        }
    }
    return steps;
}

// What is in the folders of a run, for the message of a failure.
std::string listing(const fs::path& folder) {
    std::string names;
    std::error_code failure;
    for (const auto& entry : fs::recursive_directory_iterator(folder, failure))
        names += "\n  " + entry.path().lexically_relative(folder).string();
    return names;
}

struct Kills {
    int number;
    int fewest_lines;       // that the program says before
    int longest_delay;      // microseconds after the last one
    std::int64_t promised;  // more steps than this are committed in all
};

// Kills the program so often, each time at another moment, in a folder below `place`.
void kill_and_check(const fs::path& place, std::string settings, const Kills& kills) {
    std::string name = (place / "twinrun-kill-XXXXXX").string();
    const fs::path folder = ::mkdtemp(name.data());
    const std::string history = (folder / "run").string();
    const std::size_t local = settings.find("@");
    if (local != std::string::npos) settings.replace(local, 1, (folder / "local").string());
    std::ofstream(folder / "settings") << settings << "\natol = 1e-6\nmemory = 16 MiB\nthreads = 1\n";
    const bool process = settings.find("process") != std::string::npos;
    const bool all_stay = settings.find("keep") == std::string::npos;
    std::mt19937 random(20);
    std::int64_t next = 0;
    std::int64_t promised = -1;
    std::int64_t checked = 0;
    for (int kill = 0; kill < kills.number; ++kill) {
        SCOPED_TRACE("kill " + std::to_string(kill) + ", steps from " + std::to_string(next));
        const auto lines = kills.fewest_lines + static_cast<int>(random() % 6);
        const std::chrono::microseconds delay(random() % static_cast<unsigned>(kills.longest_delay));
        const auto committed = run_and_kill(history, (folder / "settings").string(), next, lines, delay);
        if (committed) promised = std::max(promised, *committed);
        // Another process may be bringing steps over still: it ends with the last of them.
        if (process && fs::exists(local_path((folder / "local").string(), 0) + "/manifest.jsonl")) {
            const auto done =
                flush_folder(posix_file_system(), local_path((folder / "local").string(), 0), history,
                             [](std::int64_t, const Error& e) { ADD_FAILURE() << e.message; });
            EXPECT_TRUE(done) << done.error().message;
        }
        const auto steps = check(history, checked);
        if (::testing::Test::HasFailure()) break;
        if (promised >= 0) {
            ASSERT_FALSE(steps.empty());
            EXPECT_GE(steps.back(), promised);
            if (all_stay) {
                for (std::int64_t s = 0; s <= promised; ++s)
                    ASSERT_TRUE(std::binary_search(steps.begin(), steps.end(), s)) << s << listing(folder);
            } else {
                EXPECT_GE(steps.size(), std::min<std::size_t>(4, static_cast<std::size_t>(promised) + 1));
            }
        }
        checked = steps.empty() ? 0 : steps.back();  // earlier ones were checked before
        // Steps that reached the local tier only are brought over when the next run begins.
        next = steps.empty() ? 0 : steps.back() + 1;
        if (!settings.empty() && settings.find("local") != std::string::npos && !process) {
            const auto rest = LocalHistory::read(local_path((folder / "local").string(), 0));
            if (rest && !rest->journal.steps.empty())
                next = std::max(next, rest->journal.steps.last().first + 1);
        }
    }
    EXPECT_GT(promised, kills.promised);
    fs::remove_all(folder);
}

class Kill : public ::testing::TestWithParam<const char*> {};

TEST_P(Kill, NothingCommittedIsLost) {
    kill_and_check(fs::temp_directory_path(), GetParam(), {50, 0, 12'000, 20});
}

// Files that have their size from the beginning, on a disk and in memory: the bytes that are missing
// read as zeros, and no such step may be seen.
TEST(KillLarge, NothingCommittedIsLost) {
    ASSERT_EQ(::setenv(testing::kVictimLarge, "1", 1), 0);
    std::vector<fs::path> places{fs::temp_directory_path()};
    // Containers may have 64 MiB there, which is less than two steps.
    std::error_code none;
    if (const auto space = fs::space("/dev/shm", none); !none && space.available > 400 << 20)
        places.emplace_back("/dev/shm");
    for (const fs::path& place : places) {
        SCOPED_TRACE(place.string());
        kill_and_check(place, "flush_threads = 4\nkeep_steps = 6\nresidue_bits = 0", {4, 2, 40'000, -1});
    }
    ::unsetenv(testing::kVictimLarge);
}

std::string setting_name(const ::testing::TestParamInfo<const char*>& each) {
    constexpr std::array of{"straight", "waiting",      "local",         "process",
                            "record",   "record_local", "record_process"};
    return of[each.index];
}

INSTANTIATE_TEST_SUITE_P(Settings, Kill,
                         ::testing::Values("", "background = false\nkeep_steps = 4\nkeep_data_steps = 2",
                                           "local = @\nlocal_limit = 8 MiB",
                                           "local = @\nflusher = process\nkeep_steps = 4", "record = runs",
                                           "record = runs\nlocal = @\nlocal_limit = 4 MiB",
                                           "record = basic\nlocal = @\nflusher = process"),
                         setting_name);

}  // namespace
}  // namespace twinrun
