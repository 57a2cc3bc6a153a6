#include "record/write_behind.hpp"

#include <exception>
#include <utility>

#include "base/start_thread.hpp"

namespace twinrun {

namespace {

// Less is written in the time in which another thread wakes up.
constexpr std::size_t kSmallWrite = std::size_t{256} << 10;

}  // namespace

WriteBehind::~WriteBehind() {
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Result<> WriteBehind::put(OutputFile& file, std::uint64_t offset, AlignedBytes& bytes, std::size_t size) {
    TWR_CHECK(wait());
    if (!behind_ || size < kSmallWrite || !start()) return file.write_at(offset, {bytes.data(), size});
    {
        const std::lock_guard guard(mutex_);
        file_ = &file;
        offset_ = offset;
        size_ = size;
        std::swap(bytes_, bytes);
        busy_ = true;
    }
    changed_.notify_all();
    return success();
}

Result<> WriteBehind::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    return std::exchange(done_, success());
}

// Whether there is a thread that writes.
bool WriteBehind::start() {
    if (thread_.joinable()) return true;
    try {
        thread_ = start_thread([this] { run(); });
    } catch (const std::exception&) {
        behind_ = false;  // the caller writes
    }
    return behind_;
}

void WriteBehind::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return busy_ || stopping_; });
        if (!busy_) return;
        lock.unlock();
        Result<> written = success();
        try {
            written = file_->write_at(offset_, {bytes_.data(), size_});
        } catch (const std::exception&) {  // no memory for what to say
            written = Error{ErrorCode::out_of_memory, "out of memory"};
        }
        lock.lock();
        done_ = std::move(written);
        busy_ = false;
        changed_.notify_all();
    }
}

}  // namespace twinrun
