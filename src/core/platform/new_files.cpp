#include "platform/new_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <limits>
#include <set>
#include <utility>

#include "platform/file_io_internal.hpp"
#include "platform/names_posix.hpp"

namespace twinrun {

using file_io::Descriptor;
using file_io::LastResort;
using file_io::open_at;
using file_io::rename_new;
using file_io::retrying;
using file_io::system_error;

namespace {

constexpr int kTries = 64;  // names that others have already, by chance of 2^-64 each
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;  // of one write

Error already_there(const std::string& path) {
    return file_io::say(ErrorCode::invalid_argument, [&] {
        return file_io::printable(path) + ": is there already: name another folder, or remove it";
    });
}

Error in_the_way(const std::string& path) {
    return file_io::say(ErrorCode::invalid_argument, [&] {
        return file_io::printable(path) +
               ": is a link or a file, but must be a folder: name another folder, or remove it";
    });
}

Result<> sync_descriptor(int descriptor, const std::string& path) {
    const int why = file_io::sync_folder(descriptor);
    return why == 0 ? success() : system_error(path, "bring to the disk", why);
}

// "a/b/c": "a/b" and "c".
std::pair<std::string, std::string> split(const std::string& name) {
    const std::size_t cut = name.rfind('/');
    if (cut == std::string::npos) return {"", name};
    return {name.substr(0, cut), name.substr(cut + 1)};
}

class PosixNewFile final : public NewFile {
   public:
    PosixNewFile(std::string path, std::string name, Descriptor folder)
        : path_(std::move(path)), name_(std::move(name)), folder_(std::move(folder)) {}

    ~PosixNewFile() override {
        if (file_.get() < 0 || done_) return;
        struct stat ours, there;
        if (::fstat(file_.get(), &ours) == 0 &&
            ::fstatat(folder_.get(), own_.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
            ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
            ::unlinkat(folder_.get(), own_.c_str(), 0);
    }

    // Under a name that nothing has, and that tells whose it is; a file's own may be as long as
    // names can be.
    Result<> open(std::uint64_t bytes) {
        if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
            return system_error(path_, "make it " + std::to_string(bytes) + " bytes long", EFBIG);
        for (int i = 0;; ++i) {
            const std::string random = random_hex(16);
            const std::string whole = name_ + "." + random + ".tmp";
            own_ = whole.size() <= NAME_MAX ? whole : kHiddenPrefix + random;
            file_ = Descriptor(
                open_at(folder_.get(), own_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666));
            if (file_.get() >= 0) break;
            if (errno != EEXIST || i == kTries) return system_error(path_, "open for writing", errno);
        }
        if (retrying([&] { return ::ftruncate(file_.get(), static_cast<off_t>(bytes)); }) != 0)
            return system_error(path_, "make it " + std::to_string(bytes) + " bytes long", errno);
        return success();
    }

    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t put = retrying([&] {
                return ::pwrite(file_.get(), bytes.data() + done,
                                std::min<std::uint64_t>(bytes.size() - done, kLargest),
                                static_cast<off_t>(offset + done));
            });
            if (put <= 0)
                return system_error(
                    path_,
                    "write " + std::to_string(bytes.size()) + " bytes at offset " + std::to_string(offset),
                    put == 0 ? ENOSPC : errno);
            done += static_cast<std::size_t>(put);
        }
        return success();
    }

    void set_time(std::int64_t mtime_ns) override { file_io::set_time(file_.get(), mtime_ns); }

    Result<> publish() override {
        if (retrying([&] { return ::fsync(file_.get()); }) != 0)
            return system_error(path_, "bring to the disk", errno);
        const int folder = folder_.get();
        if (rename_new(folder, own_.c_str(), folder, name_.c_str(), LastResort::fail) != 0)
            return errno == EEXIST ? already_there(path_) : system_error(path_, "give it its name", errno);
        done_ = true;
        file_ = Descriptor();
        return success();
    }

   private:
    std::string path_;  // for messages
    std::string name_;
    Descriptor folder_;
    std::string own_;
    Descriptor file_;
    bool done_ = false;
};

class PosixNewFiles final : public NewFiles {
   public:
    PosixNewFiles(std::string path, Descriptor folder) : path_(std::move(path)), folder_(std::move(folder)) {}

    Result<> check_free(const std::string& name, bool as_folder) override try {
        TWR_CHECK(check_name(name));
        auto [parents, last] = split(name);
        auto opened = walk(parents, false);
        if (!opened) return std::move(opened).error();
        if (opened->get() < 0) return success();  // not even its folder is there
        struct stat status;
        if (::fstatat(opened->get(), last.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
            return as_folder && S_ISDIR(status.st_mode) ? success() : Result<>(already_there(where(name)));
        return errno == ENOENT ? success() : system_error(where(name), "look at it", errno);
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<std::unique_ptr<NewFile>> create(const std::string& name, std::uint64_t bytes) override try {
        TWR_CHECK(check_name(name));
        auto [parents, last] = split(name);
        TWR_TRY(Descriptor folder, walk(parents, true));
        auto file = std::make_unique<PosixNewFile>(where(name), last, std::move(folder));
        TWR_CHECK(file->open(bytes));
        used_.insert(parents);
        return std::unique_ptr<NewFile>(std::move(file));
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<> make_folder(const std::string& name) override try {
        TWR_CHECK(check_name(name));
        TWR_TRY(const Descriptor made, walk(name, true));
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<> make_link(const std::string& name, const std::string& to) override try {
        TWR_CHECK(check_name(name));
        auto [parents, last] = split(name);
        TWR_TRY(const Descriptor folder, walk(parents, true));
        if (::symlinkat(to.c_str(), folder.get(), last.c_str()) != 0)
            return errno == EEXIST ? already_there(where(name))
                                   : system_error(where(name), "make the link", errno);
        used_.insert(parents);
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

    Result<> sync() override try {
        for (const std::string& name : used_) {
            TWR_TRY(const Descriptor folder, walk(name, false));
            if (folder.get() >= 0) TWR_CHECK(sync_descriptor(folder.get(), where(name)));
        }
        used_.clear();
        return success();
    } catch (const std::bad_alloc&) {
        return file_io::out_of_memory(path_);
    }

   private:
    [[nodiscard]] std::string where(const std::string& name) const {
        return name.empty() ? path_ : path_ + (path_.ends_with('/') ? "" : "/") + name;
    }

    Result<> check_name(const std::string& name) const {
        bool good = !name.empty() && name.find('\0') == std::string::npos;
        for (std::size_t begin = 0; good && begin <= name.size();) {
            const std::size_t end = std::min(name.find('/', begin), name.size());
            const std::string part = name.substr(begin, end - begin);
            good = !part.empty() && part != "." && part != "..";
            begin = end + 1;
        }
        if (good) return success();
        return Error{ErrorCode::invalid_argument,
                     file_io::printable(where(name)) + ": a name that leads out of its folder"};
    }

    // The folder of this name, through folders only, no links. make: creates it where it does not
    // exist; otherwise no descriptor is returned then.
    Result<Descriptor> walk(const std::string& name, bool make) {
        Descriptor at(::fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0));
        if (at.get() < 0) return system_error(path_, "open the folder", errno);
        for (std::size_t begin = 0; begin < name.size();) {
            const std::size_t end = std::min(name.find('/', begin), name.size());
            const std::string part = name.substr(begin, end - begin);
            const std::string so_far = name.substr(0, end);
            const auto open = [&] {
                return open_at(at.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            };
            int next = open();
            if (next < 0 && errno == ENOENT) {
                if (!make) return Descriptor();
                if (::mkdirat(at.get(), part.c_str(), 0777) != 0 && errno != EEXIST)
                    return system_error(where(so_far), "make the folder", errno);
                used_.insert(begin == 0 ? "" : name.substr(0, begin - 1));
                used_.insert(so_far);
                next = open();
            }
            if (next < 0) {
                if (errno == ENOTDIR || errno == ELOOP) return in_the_way(where(so_far));
                return system_error(where(so_far), "open the folder", errno);
            }
            at = Descriptor(next);
            begin = end + 1;
        }
        return at;
    }

    std::string path_;
    Descriptor folder_;
    std::set<std::string> used_;  // folders in which names were made
};

}  // namespace

Result<std::unique_ptr<NewFiles>> open_new_files(const std::string& folder) try {
    TWR_CHECK(file_io::check_path(folder));
    Descriptor opened(open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY));
    if (opened.get() < 0) return system_error(folder, "open the folder", errno);
    return std::unique_ptr<NewFiles>(std::make_unique<PosixNewFiles>(folder, std::move(opened)));
} catch (const std::bad_alloc&) {
    return file_io::out_of_memory(folder);
}

}  // namespace twinrun
