#include "aggregate/mpi/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace twinrun::aggregation {

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

Descriptor::~Descriptor() {
    if (number_ >= 0 && !borrowed_) ::close(number_);
}

Result<> Descriptor::adopt(const OpenFile& file, Mode mode) {
    number_ = file.number;
    path_ = file.path;
    shift_ = file.shift;
    mode_ = mode;
    zeros_ = file.zeros;
    borrowed_ = true;
    return success();
}

Result<> Descriptor::open(const std::string& path, const Opening& how) {
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

Result<> Descriptor::transfer(std::span<const Piece> pieces) const {
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

Result<> Descriptor::sync() const {
    if (::fsync(number_) != 0) return file_error(path_, "fsync", errno);
    return success();
}

Result<> Descriptor::close() {
    const int number = std::exchange(number_, -1);
    if (number >= 0 && !borrowed_ && ::close(number) != 0 && errno != EINTR)
        return file_error(path_, "close", errno);
    return success();
}

Result<> Descriptor::transfer_all(std::span<const Piece> pieces) const {
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
            if (mode_ == Mode::read && zeros_) {
                std::memset(pieces[at].bytes + done, 0, pieces[at].count - done);
                ++at;
                done = 0;
                continue;
            }
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

Result<std::uint64_t> Descriptor::read_to_end(const Piece& piece) const {
    std::uint64_t done = 0;
    while (done < piece.count) {
        const iovec vector{piece.bytes + done, std::min(piece.count - done, most_a_call())};
        const ssize_t moved = move(&vector, 1, piece.offset + done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) {
            return file_error(path_, place_text(mode_, vector.iov_len, piece.offset + done + shift_), errno);
        }
        if (moved == 0) break;
        done += static_cast<std::uint64_t>(moved);
    }
    return done;
}

ssize_t Descriptor::move(const iovec* vectors, int count, std::uint64_t offset) const {
    const auto at = static_cast<off_t>(offset + shift_);
    if (mode_ == Mode::write) {
        return count == 1 ? ::pwrite(number_, vectors->iov_base, vectors->iov_len, at)
                          : ::pwritev(number_, vectors, count, at);
    }
    return count == 1 ? ::pread(number_, vectors->iov_base, vectors->iov_len, at)
                      : ::preadv(number_, vectors, count, at);
}

}  // namespace twinrun::aggregation
