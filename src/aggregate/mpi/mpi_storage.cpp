// The back end mpiio: jobs by MPI-IO.
#include <mpi.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/mpi/backends.hpp"
#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/team.hpp"

namespace twinrun::aggregation {

namespace {

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

MadeStorage open_mpiio(const std::string& path, const Opening& how) {
    auto storage = std::make_unique<MpiStorage>();
    TWR_CHECK(storage->open(path, how));
    return std::unique_ptr<Storage>(std::move(storage));
}

}  // namespace twinrun::aggregation
