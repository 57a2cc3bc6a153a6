// The back end uring: jobs in an io_uring.
#include "aggregate/mpi/backends.hpp"

#if defined(TWINRUN_HAVE_URING) && TWINRUN_HAVE_URING

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/team.hpp"

namespace twinrun::aggregation {

namespace {

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

}  // namespace

Result<> uring_usable() {
    io_uring ring{};
    if (const int result = ::io_uring_queue_init(1, &ring, 0); result < 0) {
        Error error = file_error("io_uring", "set-up", -result);
        error.code = ErrorCode::unsupported;
        error.message += "; use the back end posix";
        return error;
    }
    ::io_uring_queue_exit(&ring);
    return success();
}

MadeStorage open_uring(const std::string& path, const Opening& how) {
    auto storage = std::make_unique<UringStorage>();
    TWR_CHECK(storage->open(path, how));
    return std::unique_ptr<Storage>(std::move(storage));
}

MadeStorage adopt_uring(const OpenFile& file, Mode mode) {
    auto storage = std::make_unique<UringStorage>();
    TWR_CHECK(storage->adopt(file, mode));
    return std::unique_ptr<Storage>(std::move(storage));
}

}  // namespace twinrun::aggregation

#else

namespace twinrun::aggregation {

Result<> uring_usable() {
    return Error{ErrorCode::unsupported,
                 "this build has no io_uring (liburing was not found); use the back end posix"};
}

MadeStorage open_uring(const std::string& /*path*/, const Opening& /*how*/) {
    return Error{ErrorCode::unsupported, "this build has not got this back end"};
}

MadeStorage adopt_uring(const OpenFile& /*file*/, Mode /*mode*/) {
    return Error{ErrorCode::unsupported, "this back end takes no file that is open already"};
}

}  // namespace twinrun::aggregation

#endif
