// The times of data files: each file has one of its own, however coarse the clock is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "capture/session.hpp"
#include "metadata/metadata.hpp"
#include "support/forwarding_file_system.hpp"
#include "support/session_states.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::kSmall;
using testing::SessionTest;
using testing::State;
using testing::ThreadsComm;

constexpr std::int64_t kTick = 1'700'000'000;  // seconds

// All files are written within one tick of its clock.
class OneTick final : public testing::ForwardingFileSystem {
   public:
    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t bytes) override {
        TWR_TRY(auto file, testing::ForwardingFileSystem::create(path, bytes));
        return std::unique_ptr<OutputFile>(std::make_unique<File>(std::move(file), path));
    }

   private:
    class File final : public OutputFile {
       public:
        File(std::unique_ptr<OutputFile> inner, std::string path)
            : inner_(std::move(inner)), path_(std::move(path)) {}
        Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
            return inner_->write_at(offset, bytes);
        }
        Result<> sync() override {
            TWR_CHECK(inner_->sync());
            const struct timespec times[2] = {{kTick, 0}, {kTick, 0}};
            EXPECT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
            return success();
        }
        void set_time(std::int64_t mtime_ns) override { inner_->set_time(mtime_ns); }
        Result<> close() override { return inner_->close(); }

       private:
        std::unique_ptr<OutputFile> inner_;
        std::string path_;
    };
};

// Captures steps 0 to 3, and returns the times of the data files. Each is the one that its metadata
// has.
std::set<std::int64_t> times_of(const std::string& run, Comm& comm, SessionSettings settings) {
    OneTick system;
    std::set<std::int64_t> times;
    {
        auto session = Session::open(system, comm, run, std::move(settings));
        EXPECT_TRUE(session) << session.error().message;
        State state(kSmall);
        for (std::int64_t step = 0; step < 4; ++step) {
            state.become(step, comm.rank());
            EXPECT_TRUE((*session)->capture_fields(step, state.list()));
        }
        const auto lost = (*session)->close();
        EXPECT_TRUE(lost && lost->empty());
    }
    for (const auto& step : testing::folders_in(run)) {
        const std::string name = "rank-0000" + std::to_string(comm.rank()) + ".twm";
        const auto metadata = MetadataFile::open((fs::path(run) / step / name).string());
        EXPECT_TRUE(metadata) << metadata.error().message;
        const auto touched = (*metadata)->touched_data_file();
        EXPECT_TRUE(touched && !*touched) << step;
        const auto stamp = stamp_of((*metadata)->data_path(0));
        EXPECT_TRUE(stamp);
        EXPECT_LE(stamp->mtime_ns, kTick * 1'000'000'000);
        EXPECT_GT(stamp->mtime_ns, (kTick - 1) * 1'000'000'000);
        times.insert(stamp->mtime_ns);
    }
    return times;
}

TEST_F(SessionTest, DataFilesOfOneTickHaveTimesOfTheirOwn) {
    std::mutex mutex;
    std::set<std::int64_t> times;
    ThreadsComm::run(3, [&](Comm& comm) {
        const auto mine = times_of(run_, comm, settings());
        const std::lock_guard lock(mutex);
        times.insert(mine.begin(), mine.end());
    });
    EXPECT_EQ(times.size(), 12U);
}

TEST_F(SessionTest, SharedFilesOfOneTickHaveTimesOfTheirOwn) {
    SessionSettings shared = settings();
    shared.shared_files = SharedFiles::one;
    EXPECT_EQ(times_of(run_, comm_, shared).size(), 4U);
}

}  // namespace
}  // namespace twinrun
