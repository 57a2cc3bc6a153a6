// The back end posix: a thread runs one job after the other.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aggregate/mpi/backends.hpp"
#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/parts.hpp"
#include "aggregate/mpi/stripes.hpp"
#include "aggregate/mpi/team.hpp"

#include "base/start_thread.hpp"

namespace twinrun::aggregation {

namespace {

// One thread runs one job after the other. File: Descriptor, DescriptorsOfParts or
// DescriptorsOfStripes.
template <class File>
class PosixStorage final : public Storage {
   public:
    PosixStorage(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
    ~PosixStorage() override { stop(); }
    // Before the first job.
    [[nodiscard]] File& file() { return file_; }

    std::uint64_t ended() override { return ended_.load(std::memory_order_acquire); }
    std::uint64_t start(std::vector<Piece> pieces) override {
        {
            const std::lock_guard lock(mutex_);
            jobs_.push_back(std::move(pieces));
        }
        if (!thread_.joinable()) thread_ = start_thread([this] { work(); });
        changed_.notify_one();
        return ++started_;
    }
    bool polls() const override { return false; }
    std::optional<Error> error() override {
        const std::lock_guard lock(mutex_);
        return error_;
    }
    double seconds() override {
        const std::lock_guard lock(mutex_);
        return seconds_;
    }
    Result<> transfer(std::span<const Piece> pieces) override { return file_.transfer(pieces); }
    Result<> sync() override { return file_.sync(); }
    Result<> close() override {
        stop();
        return file_.close();
    }

   private:
    void stop() {
        if (!thread_.joinable()) return;
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }

    void work() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return over_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            const std::vector<Piece> job = std::move(jobs_.front());
            jobs_.pop_front();
            if (!error_) {
                lock.unlock();
                const auto begin = Clock::now();
                auto done = file_.transfer(job);
                const double seconds = seconds_since(begin);
                lock.lock();
                seconds_ += seconds;
                if (!done) error_ = std::move(done).error();
            }
            ended_.fetch_add(1, std::memory_order_release);
            on_end_();
        }
    }

    File file_;
    std::function<void()> on_end_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::vector<Piece>> jobs_;
    std::optional<Error> error_;
    double seconds_ = 0;
    bool over_ = false;
    std::uint64_t started_ = 0;
    std::atomic<std::uint64_t> ended_{0};
    std::thread thread_;
};

}  // namespace

namespace {

template <class File, class Open>
MadeStorage made(std::function<void()> on_end, Open&& open) {
    auto storage = std::make_unique<PosixStorage<File>>(std::move(on_end));
    TWR_CHECK(open(storage->file()));
    return std::unique_ptr<Storage>(std::move(storage));
}

}  // namespace

MadeStorage open_posix(const std::string& path, const Opening& how, std::function<void()> on_end) {
    return made<Descriptor>(std::move(on_end), [&](Descriptor& file) { return file.open(path, how); });
}

MadeStorage adopt_posix(const OpenFile& file, Mode mode, std::function<void()> on_end) {
    return made<Descriptor>(std::move(on_end), [&](Descriptor& own) { return own.adopt(file, mode); });
}

MadeStorage adopt_posix_stripes(const OpenFile& file, Mode mode, std::function<void()> on_end) {
    return made<DescriptorsOfStripes>(std::move(on_end), [&](DescriptorsOfStripes& own) {
        return own.use(*file.striped, file.shift, mode);
    });
}

MadeStorage open_posix_parts(const SubFiles& files, std::function<void()> on_end) {
    return made<DescriptorsOfParts>(std::move(on_end),
                                    [&](DescriptorsOfParts& parts) { return parts.use(files); });
}

}  // namespace twinrun::aggregation
