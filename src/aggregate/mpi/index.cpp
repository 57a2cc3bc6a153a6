#include "aggregate/mpi/index.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "aggregate/mpi/storage.hpp"
#include "base/checked.hpp"

namespace twinrun::aggregation {

namespace {

constexpr const char* kFormat = "twinrun sub-files";
constexpr int kPlain = 1;  // versions
constexpr int kWhole = 2;
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;  // bytes of an index that is read
constexpr std::uint64_t kLargestWhole = std::uint64_t{1} << 62;

class Descriptor {
   public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int number() const { return number_; }

   private:
    int number_;
};

SubFile known_by(const struct stat& about) {
    return {static_cast<std::uint64_t>(about.st_size), static_cast<std::uint64_t>(about.st_ino),
            std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec};
}

Error no_index(const std::string& name, const std::string& why) {
    return Error{ErrorCode::invalid_argument,
                 name + ": is not an index of sub-files (" + why +
                     "), and is left alone: choose another path, or move it away"};
}

Result<std::string> whole_text(int file, const std::string& name, std::uint64_t bytes) {
    std::string text(bytes, '\0');
    std::size_t at = 0;
    while (at < text.size()) {
        const ssize_t got = ::read(file, text.data() + at, text.size() - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return file_error(name, "read", errno);
        if (got == 0) break;
        at += static_cast<std::size_t>(got);
    }
    text.resize(at);
    return text;
}

Result<> put_text(int file, const std::string& name, const std::string& text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const ssize_t done = ::write(file, text.data() + at, text.size() - at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return file_error(name, "write", done < 0 ? errno : EIO);
        at += static_cast<std::size_t>(done);
    }
    return success();
}

Result<> sync_folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (file.number() < 0) return file_error(folder, "open", errno);
    if (::fsync(file.number()) != 0) return file_error(folder, "fsync", errno);
    return success();
}

// Makes a file with a new name, and returns the name.
Result<std::string> own_file(const std::string& name, int& file) {
    for (int attempt = 0; attempt < 100; ++attempt) {
        timespec now{};
        ::clock_gettime(CLOCK_REALTIME, &now);
        std::string own = name + "." + std::to_string(::getpid()) + "-" + std::to_string(now.tv_sec) + "-" +
                          std::to_string(now.tv_nsec);
        file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file >= 0) return own;
        if (errno != EEXIST) return file_error(own, "create", errno);
    }
    return file_error(name, "create", EEXIST);
}

Result<> put_in_place(const std::string& from, const std::string& to, bool replace) {
    int result = -1;
    if (!replace) result = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
    // A file system without RENAME_NOREPLACE: whether `to` exists was checked before this write.
    if (replace || (result != 0 && (errno == EINVAL || errno == ENOSYS)))
        result = ::rename(from.c_str(), to.c_str());
    if (result != 0) return file_error(to, "rename of '" + from + "' to it", errno);
    return success();
}

// Numbers of an array of `count` non-negative ones; nullopt: it is another value.
template <std::size_t count>
std::optional<std::array<std::uint64_t, count>> numbers_in(const nlohmann::json& value) {
    if (!value.is_array() || value.size() != count) return std::nullopt;
    std::array<std::uint64_t, count> numbers{};
    for (std::size_t i = 0; i < count; ++i) {
        if (!value[i].is_number_unsigned()) return std::nullopt;
        numbers[i] = value[i].get<std::uint64_t>();
    }
    return numbers;
}

// A set of the whole file that ends at `end` or before; nullopt: it is none.
std::optional<StridedSet> set_in(const nlohmann::json& value, std::uint64_t end) {
    const auto numbers = numbers_in<4>(value);
    if (!numbers) return std::nullopt;
    const auto [offset, width, count, stride] = *numbers;
    if (width == 0 || count == 0 || stride < width || end > kLargestWhole || offset > end)
        return std::nullopt;
    const auto before = checked_multiply(count - 1, stride);
    const auto length = before ? checked_add(*before, width) : std::nullopt;
    if (!length || *length > end - offset) return std::nullopt;
    return StridedSet{offset, width, count, stride};
}

// Fills in where the files' bytes lie in the whole file. False: the text is not what twinrun
// writes.
bool add_places(const nlohmann::json& whole, Index& index) {
    if (!whole.is_object()) return false;
    const nlohmann::json bytes = whole.value("bytes", nlohmann::json());
    const nlohmann::json places = whole.value("places", nlohmann::json());
    if (!bytes.is_number_unsigned() || !places.is_array() || places.size() != index.size()) return false;
    index.whole_bytes = bytes.get<std::uint64_t>();
    for (std::size_t number = 0; number < places.size(); ++number) {
        if (!places[number].is_array()) return false;
        std::vector<StridedSet> sets;
        std::uint64_t sum = 0;
        for (const nlohmann::json& entry : places[number]) {
            const auto set = set_in(entry, index.whole_bytes);
            if (!set) return false;
            sets.push_back(*set);
            sum += set->bytes();  // at most the length of the whole each
            if (sum > index.files[number].bytes) return false;
        }
        if (sum != index.files[number].bytes) return false;
        index.places.push_back(std::move(sets));
    }
    return true;
}

std::optional<Index> index_in(const nlohmann::json& document, bool whole) {
    const nlohmann::json files = document.value("files", nlohmann::json());
    if (!files.is_array() || files.empty()) return std::nullopt;
    Index index;
    for (const nlohmann::json& entry : files) {
        if (!entry.is_array() || entry.size() != 3 || !entry[0].is_number_unsigned() ||
            !entry[1].is_number_unsigned() || !entry[2].is_number_integer()) {
            return std::nullopt;
        }
        index.files.push_back(
            {entry[0].get<std::uint64_t>(), entry[1].get<std::uint64_t>(), entry[2].get<std::int64_t>()});
    }
    if (whole && !add_places(document.value("whole", nlohmann::json()), index)) return std::nullopt;
    return index;
}

}  // namespace

std::string index_name(const std::string& path) { return path + ".twr-index"; }

std::string sub_file_name(const std::string& path, std::size_t number) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), ".%05zu", number);
    return path + digits.data();
}

Result<std::optional<Index>> read_index(const std::string& path) {
    const std::string name = index_name(path);
    const Descriptor file(::open(name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.number() < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return std::optional<Index>();
        if (errno == ELOOP) return no_index(name, "a symbolic link");
        return file_error(name, "open", errno);
    }
    struct stat about {};
    if (::fstat(file.number(), &about) != 0) return file_error(name, "stat", errno);
    if (!S_ISREG(about.st_mode)) return no_index(name, "no regular file");
    if (static_cast<std::uint64_t>(about.st_size) > kLargest) return no_index(name, "too large");
    TWR_TRY(const std::string text,
            whole_text(file.number(), name, static_cast<std::uint64_t>(about.st_size)));
    const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
    if (!document.is_object() || document.value("format", nlohmann::json()) != kFormat)
        return no_index(name, "other bytes");
    const nlohmann::json version = document.value("version", nlohmann::json());
    if (version != kPlain && version != kWhole) {
        return Error{ErrorCode::unsupported,
                     name + ": version " + version.dump() +
                         ", and this twinrun reads 1 and 2: a newer twinrun wrote it"};
    }
    std::optional<Index> index = index_in(document, version == kWhole);
    if (!index) return Error{ErrorCode::damaged, name + ": is cut or altered: write the files again"};
    return index;
}

Result<Index> look_at_sub_files(const std::string& path, std::size_t count) {
    Index index;
    for (std::size_t number = 0; number < count; ++number) {
        const std::string name = sub_file_name(path, number);
        struct stat about {};
        if (::lstat(name.c_str(), &about) != 0) return file_error(name, "stat", errno);
        index.files.push_back(known_by(about));
    }
    return index;
}

Result<> write_index(const std::string& path, const Index& index, bool replace, bool sync) {
    const std::string name = index_name(path);
    nlohmann::json files = nlohmann::json::array();
    for (const SubFile& file : index.files)
        files.push_back({file.bytes, file.inode, file.modified});
    nlohmann::json document = {
        {"format", kFormat}, {"version", index.whole() ? kWhole : kPlain}, {"files", std::move(files)}};
    if (index.whole()) {
        nlohmann::json places = nlohmann::json::array();
        for (const std::vector<StridedSet>& sets : index.places) {
            nlohmann::json of_file = nlohmann::json::array();
            for (const StridedSet& set : sets)
                of_file.push_back({set.offset, set.width, set.count, set.stride});
            places.push_back(std::move(of_file));
        }
        document["whole"] = {{"bytes", index.whole_bytes}, {"places", std::move(places)}};
    }
    const std::string text = document.dump() + "\n";
    int number = -1;
    TWR_TRY(const std::string own, own_file(name, number));
    const auto finish = [&]() -> Result<> {
        const Descriptor file(number);
        TWR_CHECK(put_text(number, own, text));
        if (sync && ::fsync(number) != 0) return file_error(own, "fsync", errno);
        return put_in_place(own, name, replace);
    };
    if (auto done = finish(); !done) {
        ::unlink(own.c_str());
        return done;
    }
    return sync ? sync_folder_of(name) : success();
}

Result<> remove_index(const std::string& path, bool sync) {
    const std::string name = index_name(path);
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) return file_error(name, "remove", errno);
    return sync ? sync_folder_of(name) : success();
}

void remove_sub_files(const std::string& path, const Index& index, std::size_t first) {
    for (std::size_t number = first; number < index.size(); ++number) {
        const std::string name = sub_file_name(path, number);
        struct stat about {};
        if (::lstat(name.c_str(), &about) != 0 || !S_ISREG(about.st_mode) ||
            !(known_by(about) == index.files[number]))
            continue;
        ::unlink(name.c_str());
    }
}

}  // namespace twinrun::aggregation
