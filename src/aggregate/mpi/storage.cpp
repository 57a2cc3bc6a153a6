#include "aggregate/mpi/storage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "aggregate/mpi/team.hpp"

#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING
#include <liburing.h>
#endif

namespace twinrun::aggregation {

namespace {

// The most bytes of one system or MPI call, whose counts are ints. Tests set a smaller limit.
std::uint64_t most_a_call() {
    static const std::uint64_t most = [] {
        const char* const text = std::getenv("TWINRUN_AGGREGATE_COUNT_LIMIT");
        const std::uint64_t value = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
        return value == 0 ? std::uint64_t{1} << 30 : value;
    }();
    return most;
}

std::string place_text(Mode mode, std::uint64_t count, std::uint64_t offset) {
    return std::string(mode == Mode::write ? "write of " : "read of ") + std::to_string(count) +
           " bytes at offset " + std::to_string(offset);
}

Error ended_early(const std::string& path, std::uint64_t offset) {
    return Error{ErrorCode::damaged, path + ": the file ends at offset " + std::to_string(offset) +
                                         ", before the last byte that is declared: it is not the file "
                                         "that was written, or it was cut"};
}

class Descriptor {
   public:
    Descriptor() = default;
    ~Descriptor() {
        if (number_ >= 0 && !borrowed_) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    Result<> adopt(const OpenFile& file, Mode mode) {
        number_ = file.number;
        path_ = file.path;
        shift_ = file.shift;
        mode_ = mode;
        borrowed_ = true;
        return success();
    }

    Result<> open(const std::string& path, const Opening& how) {
        sync_follows_ = how.sync_follows;
        const int flags =
            (how.mode == Mode::write ? O_WRONLY : O_RDONLY) | (how.follow ? 0 : O_NOFOLLOW) | O_CLOEXEC;
        do {
            number_ = ::open(path.c_str(), flags);
        } while (number_ < 0 && errno == EINTR);
        if (number_ < 0) return file_error(path, "open", errno);
        path_ = path;
        mode_ = how.mode;
        return success();
    }
    [[nodiscard]] int number() const { return number_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] Mode mode() const { return mode_; }
    [[nodiscard]] std::uint64_t shift() const { return shift_; }

    // Adjacent pieces share one call.
    Result<> transfer(std::span<const Piece> pieces) const {
        TWR_CHECK(transfer_all(pieces));
        if (sync_follows_ && mode_ == Mode::write && !pieces.empty()) {
            // Starts writing to storage while the rest is gathered. Only a hint: fsync reports
            // failures.
            const std::uint64_t begin = pieces.front().offset;
            const std::uint64_t end = pieces.back().offset + pieces.back().count;
            ::sync_file_range(number_, static_cast<off64_t>(begin), static_cast<off64_t>(end - begin),
                              SYNC_FILE_RANGE_WRITE);
        }
        return success();
    }

    Result<> sync() const {
        if (::fsync(number_) != 0) return file_error(path_, "fsync", errno);
        return success();
    }
    Result<> close() {
        const int number = std::exchange(number_, -1);
        if (number >= 0 && !borrowed_ && ::close(number) != 0 && errno != EINTR)
            return file_error(path_, "close", errno);
        return success();
    }

   private:
    Result<> transfer_all(std::span<const Piece> pieces) const {
        // Pieces of one call; IOV_MAX is at least 1024 on current systems.
        constexpr std::size_t kMost = 512;
        std::array<iovec, kMost> vectors;
        std::size_t at = 0;
        std::uint64_t done = 0;  // bytes of pieces[at]
        while (at < pieces.size()) {
            if (pieces[at].count == done) {
                ++at;
                done = 0;
                continue;
            }
            const std::uint64_t offset = pieces[at].offset + done;
            std::uint64_t requested = 0;
            int count = 0;
            for (std::size_t i = at; i < pieces.size() && count < static_cast<int>(kMost); ++i) {
                const std::uint64_t skip = i == at ? done : 0;
                if (pieces[i].offset + skip != offset + requested) break;
                const std::uint64_t length = std::min(pieces[i].count - skip, most_a_call() - requested);
                if (length == 0) break;
                vectors[static_cast<std::size_t>(count++)] = {pieces[i].bytes + skip, length};
                requested += length;
                if (length < pieces[i].count - skip) break;
            }
            const ssize_t moved = move(vectors.data(), count, offset);
            if (moved < 0) {
                if (errno == EINTR) continue;
                return file_error(path_, place_text(mode_, requested, offset + shift_), errno);
            }
            if (moved == 0) {
                if (mode_ == Mode::read) return ended_early(path_, offset + shift_);
                return file_error(path_, place_text(mode_, requested, offset + shift_), EIO);
            }
            auto left = static_cast<std::uint64_t>(moved);
            while (left > 0) {
                const std::uint64_t step = std::min(left, pieces[at].count - done);
                done += step;
                left -= step;
                if (done == pieces[at].count) {
                    ++at;
                    done = 0;
                }
            }
        }
        return success();
    }

    ssize_t move(const iovec* vectors, int count, std::uint64_t offset) const {
        const auto at = static_cast<off_t>(offset + shift_);
        if (mode_ == Mode::write) {
            return count == 1 ? ::pwrite(number_, vectors->iov_base, vectors->iov_len, at)
                              : ::pwritev(number_, vectors, count, at);
        }
        return count == 1 ? ::pread(number_, vectors->iov_base, vectors->iov_len, at)
                          : ::preadv(number_, vectors, count, at);
    }

    int number_ = -1;
    std::string path_;
    Mode mode_ = Mode::write;
    std::uint64_t shift_ = 0;
    bool sync_follows_ = false;
    bool borrowed_ = false;
};

// One thread runs one job after the other.
class PosixStorage final : public Storage {
   public:
    PosixStorage(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
    ~PosixStorage() override { stop(); }
    Result<> open(const std::string& path, const Opening& how) { return file_.open(path, how); }
    Result<> adopt(const OpenFile& file, Mode mode) { return file_.adopt(file, mode); }

    std::uint64_t ended() override { return ended_.load(std::memory_order_acquire); }
    std::uint64_t start(std::vector<Piece> pieces) override {
        {
            const std::lock_guard lock(mutex_);
            jobs_.push_back(std::move(pieces));
        }
        if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
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

    Descriptor file_;
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

#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING

class UringStorage final : public Storage {
   public:
    ~UringStorage() override {
        if (!open_) return;
        while (in_flight_ > 0)
            collect(true);
        ::io_uring_queue_exit(&ring_);
    }
    Result<> open(const std::string& path, const Opening& how) {
        TWR_CHECK(file_.open(path, how));
        return set_up();
    }
    Result<> adopt(const OpenFile& file, Mode mode) {
        TWR_CHECK(file_.adopt(file, mode));
        return set_up();
    }
    Result<> set_up() {
        if (const int result = ::io_uring_queue_init(kDepth, &ring_, 0); result < 0) {
            return file_error("io_uring", "set-up", -result);
        }
        open_ = true;
        return success();
    }

    std::uint64_t ended() override {
        submit();
        collect(false);
        submit();
        return ended_;
    }
    std::uint64_t start(std::vector<Piece> pieces) override {
        jobs_.push_back({pieces.size(), Clock::now()});
        const std::uint64_t number = first_ + jobs_.size() - 1;
        for (const Piece& piece : pieces)
            waiting_.push_back({piece, number});
        submit();
        retire();
        return number;
    }
    bool polls() const override { return true; }
    std::optional<Error> error() override { return error_; }
    double seconds() override { return seconds_; }
    Result<> transfer(std::span<const Piece> pieces) override { return file_.transfer(pieces); }
    Result<> sync() override { return file_.sync(); }
    Result<> close() override { return file_.close(); }

   private:
    static constexpr unsigned kDepth = 64;
    struct Part {
        Piece piece;
        std::uint64_t job = 0;
    };
    struct Job {
        std::size_t left = 0;
        Clock::time_point begin;
    };

    void submit() {
        bool any = false;
        while (!waiting_.empty()) {
            if (error_) {  // after an error no job is tried
                finish_part(waiting_.front().job);
                waiting_.pop_front();
                continue;
            }
            if (in_flight_ == kDepth) break;
            io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
            if (entry == nullptr) break;
            std::size_t slot = 0;
            while (used_[slot])
                ++slot;
            used_[slot] = true;
            parts_[slot] = waiting_.front();
            waiting_.pop_front();
            const Piece& piece = parts_[slot].piece;
            const auto count = static_cast<unsigned>(std::min(piece.count, most_a_call()));
            if (file_.mode() == Mode::write) {
                ::io_uring_prep_write(entry, file_.number(), piece.bytes, count,
                                      piece.offset + file_.shift());
            } else {
                ::io_uring_prep_read(entry, file_.number(), piece.bytes, count, piece.offset + file_.shift());
            }
            // Without this flag the kernel copies to the page cache during the submitting call, and
            // nothing overlaps.
            entry->flags |= IOSQE_ASYNC;
            ::io_uring_sqe_set_data64(entry, slot);
            ++in_flight_;
            any = true;
        }
        if (any || ::io_uring_sq_ready(&ring_) != 0) ::io_uring_submit(&ring_);
    }

    void collect(bool wait) {
        io_uring_cqe* entry = nullptr;
        if (wait) {
            submit();
            if (::io_uring_wait_cqe(&ring_, &entry) == -EINTR) return;
        }
        while (::io_uring_peek_cqe(&ring_, &entry) == 0) {
            const auto slot = static_cast<std::size_t>(entry->user_data);
            const int result = entry->res;
            ::io_uring_cqe_seen(&ring_, entry);
            used_[slot] = false;
            --in_flight_;
            Part part = parts_[slot];
            if (result == -EINTR || result == -EAGAIN) {
                waiting_.push_front(part);
                continue;
            }
            if (result <= 0) {
                if (!error_) {
                    error_ = result == 0 && file_.mode() == Mode::read
                                 ? ended_early(file_.path(), part.piece.offset)
                                 : file_error(file_.path(),
                                              place_text(file_.mode(), part.piece.count, part.piece.offset),
                                              result == 0 ? EIO : -result);
                }
                finish_part(part.job);
                continue;
            }
            const auto moved = static_cast<std::uint64_t>(result);
            part.piece.offset += moved;
            part.piece.bytes += moved;
            part.piece.count -= moved;
            if (part.piece.count != 0) {
                waiting_.push_front(part);
            } else {
                finish_part(part.job);
            }
        }
    }

    void finish_part(std::uint64_t job) {
        --jobs_[job - first_].left;
        retire();
    }
    void retire() {
        while (!jobs_.empty() && jobs_.front().left == 0) {
            seconds_ += seconds_since(jobs_.front().begin);
            jobs_.pop_front();
            ++first_;
            ++ended_;
        }
    }

    Descriptor file_;
    io_uring ring_{};
    bool open_ = false;
    unsigned in_flight_ = 0;
    std::array<bool, kDepth> used_{};
    std::array<Part, kDepth> parts_{};
    std::deque<Part> waiting_;
    std::deque<Job> jobs_;  // first_ is the number of the first
    std::uint64_t first_ = 1;
    std::uint64_t ended_ = 0;
    std::optional<Error> error_;
    double seconds_ = 0;
};

#endif

// Files through MPI-IO, each opened by one rank alone, so that no collective call can wait for
// others.
class MpiStorage final : public Storage {
   public:
    ~MpiStorage() override {
        if (lost_) return;  // an endless request still uses the file
        let_end();
        if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
    }
    Result<> open(const std::string& path, const Opening& how) {
        path_ = path;
        mode_ = how.mode;
        struct stat about {};  // MPI has no flag against links
        if (!how.follow && ::lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode))
            return file_error(path, "open", ELOOP);
        if (const int code = MPI_File_open(MPI_COMM_SELF, path.c_str(),
                                           mode_ == Mode::write ? MPI_MODE_WRONLY : MPI_MODE_RDONLY,
                                           MPI_INFO_NULL, &file_)) {
            return failed("open", code);
        }
        MPI_File_set_errhandler(file_, MPI_ERRORS_RETURN);
        return success();
    }

    std::uint64_t ended() override {
        while (!jobs_.empty()) {
            if (request_ != MPI_REQUEST_NULL) {
                int flag = 0;
                MPI_Status status;
                if (const int code = test(flag, status)) {
                    request_ = MPI_REQUEST_NULL;
                    error_ = failed(place_text(mode_, under_way_, next().offset), code);
                } else if (flag == 0) {
                    if (!overdue()) break;
                    request_ = MPI_REQUEST_NULL;
                    lost_ = true;
                } else if (failed_) {
                    failed_ = false;
                    if (auto done = move_again(); !done) error_ = std::move(done).error();
                } else if (auto done = advance(status); !done) {
                    error_ = std::move(done).error();
                }
            }
            if (error_ || jobs_.front().pieces.empty()) {
                seconds_ += seconds_since(jobs_.front().begin);
                jobs_.pop_front();
                ++ended_;
                continue;
            }
            begin_next();
        }
        return ended_;
    }
    std::uint64_t start(std::vector<Piece> pieces) override {
        jobs_.push_back({{pieces.begin(), pieces.end()}, Clock::now()});
        ended();
        return ++started_;
    }
    bool polls() const override { return true; }
    std::optional<Error> error() override { return error_; }
    double seconds() override { return seconds_; }
    Result<> transfer(std::span<const Piece> pieces) override {
        for (Piece piece : pieces) {
            while (piece.count != 0) {
                TWR_TRY(const std::uint64_t moved, move_now(piece));
                piece.offset += moved;
                piece.bytes += moved;
                piece.count -= moved;
            }
        }
        return success();
    }
    Result<> sync() override {
        if (const int code = MPI_File_sync(file_)) return failed("MPI_File_sync", code);
        return success();
    }
    Result<> close() override {
        if (file_ == MPI_FILE_NULL || lost_) return success();
        const int code = MPI_File_close(&file_);
        file_ = MPI_FILE_NULL;
        if (code != MPI_SUCCESS) return failed("MPI_File_close", code);
        return success();
    }

   private:
    struct Job {
        std::deque<Piece> pieces;
        Clock::time_point begin;
    };
    Piece& next() { return jobs_.front().pieces.front(); }

    Error failed(const std::string& what, int code) const {
        int error_class = MPI_ERR_OTHER;
        MPI_Error_class(code, &error_class);
        Error error = mpi_error(path_ + ": " + what, code);
        if (error_class == MPI_ERR_NO_SPACE || error_class == MPI_ERR_QUOTA) error.code = ErrorCode::no_space;
        if (error_class == MPI_ERR_NO_SUCH_FILE) error.code = ErrorCode::not_found;
        return error;
    }
    // Moves a part of a piece with the blocking call.
    Result<std::uint64_t> move_now(const Piece& piece) {
        const auto count = static_cast<int>(std::min(piece.count, most_a_call()));
        const auto at = static_cast<MPI_Offset>(piece.offset);
        MPI_Status status;
        const int code = mode_ == Mode::write
                             ? MPI_File_write_at(file_, at, piece.bytes, count, MPI_BYTE, &status)
                             : MPI_File_read_at(file_, at, piece.bytes, count, MPI_BYTE, &status);
        if (code != MPI_SUCCESS) {
            return failed(place_text(mode_, static_cast<std::uint64_t>(count), piece.offset), code);
        }
        return moved_by(status, piece.offset);
    }
    // A request of ROMIO never ends if the system's asynchronous write failed
    // (adio/common/ad_iwrite.c tests for success only). So a transfer that takes long is repeated
    // with the blocking call, which reports the error. Writing the same bytes twice does no harm.
    bool overdue() {
        if (seconds_since(asked_) < patience_) return false;
        auto tried = move_now(next());
        asked_ = Clock::now();
        patience_ *= 2;
        if (tried) return false;
        error_ = std::move(tried).error();
        return true;
    }
    Result<std::uint64_t> moved_by(MPI_Status& status, std::uint64_t offset) const {
        int count = 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (count > 0) return static_cast<std::uint64_t>(count);
        if (mode_ == Mode::read) return ended_early(path_, offset);
        return file_error(path_, place_text(mode_, under_way_, offset), EIO);
    }
    Result<> advance(MPI_Status& status) {
        TWR_TRY(const std::uint64_t moved, moved_by(status, next().offset));
        return advance_by(moved);
    }
    Result<> advance_by(std::uint64_t moved) {
        Piece& piece = next();
        piece.offset += moved;
        piece.bytes += moved;
        piece.count -= moved;
        if (piece.count == 0) jobs_.front().pieces.pop_front();
        return success();
    }
    // Open MPI 4.1 and 5.0 crash in MPI_Test and MPI_Wait if the request failed:
    // ompi_errhandler_request_invoke reads a file from the request that was never set. So
    // MPI_Request_get_status, which handles no errors, asks first whether all bytes were moved.
    int test(int& flag, MPI_Status& status) {
#if defined(OPEN_MPI)
        if (const int code = MPI_Request_get_status(request_, &flag, &status);
            code != MPI_SUCCESS || flag == 0)
            return code;
        int count = 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (count < 0 || static_cast<std::uint64_t>(count) != under_way_) {
            failed_ = true;
            return MPI_Request_free(&request_);
        }
#endif
        return MPI_Test(&request_, &flag, &status);
    }
    // Repeats it with the blocking call, which reports the error. Writing the same bytes twice does
    // no harm.
    Result<> move_again() {
        TWR_TRY(const std::uint64_t moved, move_now(next()));
        return advance_by(moved);
    }
    // Waits until the request has ended, with or without success.
    void let_end() {
        int flag = 0;
        MPI_Status status;
        while (request_ != MPI_REQUEST_NULL && flag == 0) {
            if (test(flag, status) != MPI_SUCCESS) return;
        }
    }
    void begin_next() {
        Piece& piece = next();
        if (piece.count == 0) {
            jobs_.front().pieces.pop_front();
            return;
        }
        under_way_ = std::min(piece.count, most_a_call());
        const auto count = static_cast<int>(under_way_);
        const auto at = static_cast<MPI_Offset>(piece.offset);
        const int code = mode_ == Mode::write
                             ? MPI_File_iwrite_at(file_, at, piece.bytes, count, MPI_BYTE, &request_)
                             : MPI_File_iread_at(file_, at, piece.bytes, count, MPI_BYTE, &request_);
        asked_ = Clock::now();
        patience_ = kPatience;
        if (code != MPI_SUCCESS) {
            request_ = MPI_REQUEST_NULL;
            error_ = failed(place_text(mode_, under_way_, piece.offset), code);
        }
    }

    static constexpr double kPatience = 0.5;  // seconds

    std::string path_;
    Mode mode_ = Mode::write;
    MPI_File file_ = MPI_FILE_NULL;
    MPI_Request request_ = MPI_REQUEST_NULL;
    bool lost_ = false;    // a request never ended
    bool failed_ = false;  // a request ended with an error or too few bytes
    std::uint64_t under_way_ = 0;
    Clock::time_point asked_;
    double patience_ = kPatience;
    std::deque<Job> jobs_;
    std::uint64_t started_ = 0;
    std::uint64_t ended_ = 0;
    std::optional<Error> error_;
    double seconds_ = 0;
};

}  // namespace

const char* backend_name(Backend backend) {
    switch (backend) {
        case Backend::posix: return "posix";
        case Backend::uring: return "uring";
        case Backend::mpiio: return "mpiio";
    }
    return "";
}

Result<Backend> backend_of(const std::string& name) {
    for (const Backend backend : {Backend::posix, Backend::uring, Backend::mpiio}) {
        if (name == backend_name(backend)) return backend;
    }
    return Error{ErrorCode::invalid_argument, "'" + name + "' is no back end: posix, uring or mpiio"};
}

Result<> backend_usable(Backend backend) {
    if (backend != Backend::uring) return success();
#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING
    io_uring ring{};
    if (const int result = ::io_uring_queue_init(1, &ring, 0); result < 0) {
        Error error = file_error("io_uring", "set-up", -result);
        error.code = ErrorCode::unsupported;
        error.message += "; use the back end posix";
        return error;
    }
    ::io_uring_queue_exit(&ring);
    return success();
#else
    return Error{ErrorCode::unsupported,
                 "this build has no io_uring (liburing was not found); use the back end posix"};
#endif
}

Error file_error(const std::string& path, const std::string& what, int error_number) {
    char buffer[256];
    const char* const words = ::strerror_r(error_number, buffer, sizeof buffer);
    ErrorCode code = ErrorCode::io;
    if (error_number == ENOSPC || error_number == EDQUOT) code = ErrorCode::no_space;
    if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::not_found;
    if (error_number == ENOMEM) code = ErrorCode::out_of_memory;
    return Error{code, path + ": " + what + ": " + words};
}

Result<std::unique_ptr<Storage>> storage_of(Backend backend, const OpenFile& file, Mode mode,
                                            std::function<void()> on_end) {
    const auto adopted = [&](auto storage) -> Result<std::unique_ptr<Storage>> {
        TWR_CHECK(storage->adopt(file, mode));
        return std::unique_ptr<Storage>(std::move(storage));
    };
    if (backend == Backend::posix) return adopted(std::make_unique<PosixStorage>(std::move(on_end)));
#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING
    if (backend == Backend::uring) return adopted(std::make_unique<UringStorage>());
#endif
    return Error{ErrorCode::unsupported, "this back end takes no file that is open already"};
}

Result<std::unique_ptr<Storage>> open_storage(Backend backend, const std::string& path, const Opening& how,
                                              std::function<void()> on_end) {
    const auto opened = [&](auto storage) -> Result<std::unique_ptr<Storage>> {
        TWR_CHECK(storage->open(path, how));
        return std::unique_ptr<Storage>(std::move(storage));
    };
    switch (backend) {
        case Backend::posix: return opened(std::make_unique<PosixStorage>(std::move(on_end)));
        case Backend::mpiio: return opened(std::make_unique<MpiStorage>());
        case Backend::uring:
#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING
            return opened(std::make_unique<UringStorage>());
#else
            break;
#endif
    }
    return Error{ErrorCode::unsupported, "this build has not got this back end"};
}

}  // namespace twinrun::aggregation
