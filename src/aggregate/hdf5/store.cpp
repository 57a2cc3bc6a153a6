#include "aggregate/hdf5/store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "aggregate/hdf5/abi.hpp"
#include "base/checksum.hpp"

namespace twinrun::hdf5 {

using aggregation::file_error;
using aggregation::Index;
using aggregation::index_name;
using aggregation::Mode;
using aggregation::sub_file_name;

namespace {

constexpr int kOpening = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

// Sub-files that are written are files themselves: a new index identifies them.
int of_set(int flags) { return flags == O_RDONLY ? flags : flags | O_NOFOLLOW; }

Error refused(ErrorCode code, const std::string& what) { return Error{code, what}; }

bool there(const std::string& name) {
    struct stat found {};
    return ::lstat(name.c_str(), &found) == 0;
}

Result<> lock_file(int number, const std::string& name, bool for_writing) {
    if (::flock(number, (for_writing ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return success();
    // File systems without locks: nobody can hold one.
    if (errno != EWOULDBLOCK) return success();
    return refused(ErrorCode::io, name +
                                      ": another program has it open, and holds its lock: close it there "
                                      "(HDF5_USE_FILE_LOCKING=FALSE opens it all the same)");
}

// Whether nobody else has a sub-file open that is to be removed.
Result<> check_free(const std::string& path, const Index& index) {
    for (std::size_t i = 0; i < index.size(); ++i) {
        const std::string name = sub_file_name(path, i);
        const int number = ::open(name.c_str(), O_RDONLY | O_NOFOLLOW | kOpening);
        if (number < 0) continue;
        auto free = lock_file(number, name, true);
        ::close(number);
        TWR_CHECK(free);
    }
    return success();
}

// Whether the index identifies each of the sub-files, so that they may be removed.
Result<> check_own(const std::string& path, const Index& index) {
    for (std::size_t i = 0; i < index.size(); ++i) {
        const std::string name = sub_file_name(path, i);
        struct stat found {};
        if (::lstat(name.c_str(), &found) == 0 && !aggregation::is_known(name, index.files[i])) {
            return refused(
                ErrorCode::damaged,
                name + ": is not the file that " + index_name(path) +
                    " describes: it was changed, copied or replaced. Nothing is removed: look at it, "
                    "and remove it yourself");
        }
    }
    return success();
}

Result<std::optional<Index>> index_of(const std::string& path) {
    TWR_TRY(auto index, aggregation::read_index(path));
    if (index) TWR_CHECK(aggregation::check_places(path, *index));
    return index;
}

Result<> remove_set(const std::string& path, const Index& index) {
    TWR_CHECK(check_own(path, index));
    TWR_CHECK(aggregation::remove_index(path, index.own, false));
    aggregation::remove_sub_files(path, index, 0);
    return success();
}

}  // namespace

Store::~Store() {
    for (const int number : files_.numbers)
        ::close(number);
}

Result<> Store::add(const std::string& name, int flags) {
    const int number = ::open(name.c_str(), flags | kOpening, 0666);
    if (number < 0) return file_error(name, (flags & O_CREAT) != 0 ? "create" : "open", errno);
    files_.numbers.push_back(number);
    files_.paths.push_back(name);
    struct stat found {};
    if (::fstat(number, &found) != 0) return file_error(name, "stat", errno);
    if (!S_ISREG(found.st_mode))
        return refused(ErrorCode::invalid_argument, name + ": is not a regular file");
    const std::uint64_t own[3] = {facts_.identity, found.st_dev, found.st_ino};
    facts_.identity =
        xxh3(std::string_view(reinterpret_cast<const char*>(static_cast<const void*>(own)), sizeof own));
    return success();
}

// After all files are open.
Result<> Store::ready() {
    files_.stripes = facts_.stripes;
    TWR_CHECK(reader_.use(files_, 0, Mode::read));
    return writer_.use(files_, 0, Mode::write);
}

Result<> Store::open_one(int flags) {
    TWR_CHECK(add(path_, flags));
    struct stat found {};
    if (::fstat(files_.numbers[0], &found) != 0) return file_error(path_, "stat", errno);
    facts_.bytes = static_cast<std::uint64_t>(found.st_size);
    return success();
}

Result<> Store::open_set(const Index& index, int flags, std::uint64_t likely) {
    facts_.several = true;
    if (there(path_)) {
        return refused(ErrorCode::mismatch, path_ + ": there are this file and sub-files of its name (" +
                                                index_name(path_) + "): remove or rename what is not meant");
    }
    TWR_CHECK(aggregation::check_sub_files(path_, index));
    const auto stripes = stripes_of(index.places, index.whole_bytes, likely);
    if (!stripes || stripes->files > kMostStripedFiles) {
        return refused(ErrorCode::unsupported,
                       index_name(path_) +
                           ": these sub-files are not cut in stripes, and were not written by "
                           "the HDF5 driver: make one file of them by 'twinrun aggregate join'");
    }
    facts_.stripes = *stripes;
    facts_.bytes = index.whole_bytes;
    for (std::size_t i = 0; i < index.size(); ++i)
        TWR_CHECK(add(sub_file_name(path_, i), of_set(flags)));
    struct stat found {};
    if (::stat(index_name(path_).c_str(), &found) != 0) return file_error(index_name(path_), "stat", errno);
    note_index(found.st_ino, std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec);
    return success();
}

// New sub-files. Those of an earlier write are removed, if their index identifies them.
Result<> Store::make_set(const Config& config, const std::optional<Index>& old) {
    if (there(path_)) {
        return refused(ErrorCode::mismatch, path_ +
                                                ": this file is there, and sub-files of its name are asked "
                                                "for (files): remove it, or write to another name");
    }
    const std::size_t before = old ? old->size() : 0;
    for (std::size_t i = before; i < config.files; ++i) {
        const std::string name = sub_file_name(path_, i);
        if (there(name)) {
            return refused(ErrorCode::mismatch,
                           name +
                               ": is there, and no index shows that it is a sub-file of an earlier write: "
                               "remove it, or write to another name");
        }
    }
    if (old) TWR_CHECK(remove_set(path_, *old));
    made_ = true;
    facts_.several = true;
    facts_.stripes = {config.files, config.stripe};
    for (std::size_t i = 0; i < config.files; ++i) {
        if (auto made = add(sub_file_name(path_, i), O_RDWR | O_CREAT | O_EXCL); !made) {
            abandon();
            return made;
        }
    }
    return success();
}

void Store::abandon() {
    if (!made_) return;
    for (std::size_t i = 0; i < files_.numbers.size(); ++i) {
        struct stat own {};
        struct stat found {};
        if (::fstat(files_.numbers[i], &own) == 0 && ::lstat(files_.paths[i].c_str(), &found) == 0 &&
            own.st_ino == found.st_ino && own.st_dev == found.st_dev && own.st_size == 0)
            ::unlink(files_.paths[i].c_str());
    }
}

Result<> Store::prepare(const std::string& path, unsigned flags, const Config& config, Lock lock) {
    path_ = path;
    const bool writes = (flags & kReadWrite) != 0;
    const bool makes = (flags & (kCreate | kTruncate)) != 0;
    const int how = writes ? O_RDWR : O_RDONLY;
    TWR_TRY(const auto index, index_of(path));
    if ((flags & kExclusive) != 0 && index)
        return refused(ErrorCode::io, index_name(path) + ": there are sub-files of this name");
    if (makes && index && lock != Lock::none) TWR_CHECK(check_free(path, *index));
    if (makes && config.files > 1) {
        TWR_CHECK(make_set(config, index));
    } else if (makes) {
        if (index && there(path)) return open_set(*index, how, config.stripe);  // says what is wrong
        if (index) TWR_CHECK(remove_set(path, *index));
        const int more = (flags & kExclusive) != 0 ? O_EXCL : 0;
        TWR_CHECK(open_one(how | O_CREAT | more));
    } else if (index) {
        TWR_CHECK(open_set(*index, how, config.stripe));
    } else {
        if (!there(path) && there(sub_file_name(path, 0))) {
            return refused(ErrorCode::not_found, sub_file_name(path, 0) + ": there is no " +
                                                     index_name(path) +
                                                     ": the write of these sub-files did not end");
        }
        TWR_CHECK(open_one(how));
    }
    if (lock != Lock::none && (lock == Lock::keep || (flags & kTruncate) != 0)) {
        TWR_CHECK(this->lock(writes));
        if (lock == Lock::probe) unlock();
    }
    if ((flags & kTruncate) != 0 && facts_.bytes != 0) {
        if (::ftruncate(files_.numbers[0], 0) != 0) return file_error(path, "truncate", errno);
        facts_.bytes = 0;
    }
    return ready();
}

Result<> Store::follow(const std::string& path, unsigned flags, const Facts& facts) {
    path_ = path;
    facts_ = facts;
    facts_.identity = 0;
    const int how = (flags & kReadWrite) != 0 ? O_RDWR : O_RDONLY;
    for (std::size_t i = 0; i < facts.stripes.files; ++i)
        TWR_CHECK(facts.several ? add(sub_file_name(path, i), of_set(how)) : add(path, how));
    if (facts_.identity != facts.identity) {
        return refused(ErrorCode::mismatch,
                       path +
                           ": this rank sees another file under its name than rank 0: use a file system that "
                           "all nodes share");
    }
    return ready();
}

Result<> Store::remove(const std::string& path) {
    TWR_TRY(const auto index, index_of(path));
    if (index && there(path)) {
        return refused(ErrorCode::mismatch, path + ": there are this file and sub-files of its name (" +
                                                index_name(path) + "): remove what is meant yourself");
    }
    if (index) return remove_set(path, *index);
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) return file_error(path, "remove", errno);
    if (S_ISDIR(found.st_mode)) return file_error(path, "remove", EISDIR);
    if (::unlink(path.c_str()) != 0) return file_error(path, "remove", errno);
    return success();
}

Result<> Store::begin_writing() {
    if (facts_.index_inode == 0) return success();
    const std::string name = index_name(path_);
    struct stat found {};
    if (::lstat(name.c_str(), &found) == 0) {
        if (found.st_ino != facts_.index_inode ||
            std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec != facts_.index_time) {
            return refused(ErrorCode::mismatch,
                           name +
                               ": somebody else wrote this index while the file is open: "
                               "write again, to another name");
        }
        TWR_CHECK(aggregation::remove_index(path_, aggregation::known_by(found), false));
    }
    facts_.index_inode = 0;
    return success();
}

Result<> Store::write(std::span<const aggregation::Piece> pieces) {
    TWR_CHECK(begin_writing());
    return writer_.transfer(pieces);
}

Result<> Store::set_size(std::uint64_t bytes) {
    for (std::size_t i = 0; i < files_.numbers.size(); ++i) {
        const std::uint64_t length = length_in_file(files_.stripes, i, bytes);
        struct stat found {};
        if (::fstat(files_.numbers[i], &found) != 0) return file_error(files_.paths[i], "stat", errno);
        if (static_cast<std::uint64_t>(found.st_size) == length) continue;
        TWR_CHECK(begin_writing());
        if (::ftruncate(files_.numbers[i], static_cast<off_t>(length)) != 0)
            return file_error(files_.paths[i], "set the size", errno);
    }
    return success();
}

Result<> Store::write_index(std::uint64_t bytes) {
    if (!facts_.several) return success();
    TWR_CHECK(set_size(bytes));
    Index index;
    for (std::size_t i = 0; i < files_.numbers.size(); ++i) {
        struct stat open {};
        struct stat named {};
        if (::fstat(files_.numbers[i], &open) != 0 || ::lstat(files_.paths[i].c_str(), &named) != 0)
            return file_error(files_.paths[i], "stat", errno);
        if (open.st_ino != named.st_ino || open.st_dev != named.st_dev) {
            return refused(ErrorCode::mismatch, files_.paths[i] +
                                                    ": somebody put another file under this name "
                                                    "during the write: there is no index");
        }
        index.files.push_back({static_cast<std::uint64_t>(open.st_size), open.st_ino,
                               std::int64_t{open.st_mtim.tv_sec} * 1'000'000'000 + open.st_mtim.tv_nsec});
    }
    index.whole_bytes = bytes;
    index.places = stripe_places(files_.stripes, bytes);
    TWR_CHECK(aggregation::write_index(path_, index, facts_.index_inode != 0, false));
    struct stat found {};
    if (::lstat(index_name(path_).c_str(), &found) != 0) return file_error(index_name(path_), "stat", errno);
    note_index(found.st_ino, std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec);
    return success();
}

void Store::note_index(std::uint64_t inode, std::int64_t time) {
    facts_.index_inode = inode;
    facts_.index_time = time;
}

Result<> Store::lock(bool for_writing) const {
    for (std::size_t i = 0; i < files_.numbers.size(); ++i)
        TWR_CHECK(lock_file(files_.numbers[i], files_.paths[i], for_writing));
    return success();
}

void Store::unlock() const {
    for (const int number : files_.numbers)
        ::flock(number, LOCK_UN);
}

std::optional<struct stat> Store::identity() const {
    struct stat found {};
    if (files_.numbers.empty() || ::fstat(files_.numbers[0], &found) != 0) return std::nullopt;
    return found;
}

}  // namespace twinrun::hdf5
