#include "aggregate/mpi/index.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "aggregate/mpi/removal.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpi/text_file.hpp"
#include "aggregate/plan/overlap.hpp"
#include "base/checked.hpp"
#include "base/checksum.hpp"

namespace twinrun::aggregation {

namespace {

constexpr const char* kFormat = "twinrun sub-files";
constexpr const char* kWhat = "an index of sub-files";
constexpr int kPlain = 1;  // versions
constexpr int kWhole = 2;
constexpr int kChecked = 3;
constexpr std::string_view kChecksum = ",\"checksum\":\"";  // then 16 digits, and kEnd
constexpr std::string_view kEnd = "\"}\n";
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;  // bytes of an index that is read
constexpr std::uint64_t kLargestWhole = std::uint64_t{1} << 62;

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

// What has to be before a checksum's key of such a document, and the end that goes behind it.
std::string end_of(std::string_view before) {
    return std::string(kChecksum) + hex_of(xxh3(before)) + std::string(kEnd);
}

bool has_right_end(std::string_view text) {
    const std::size_t length = kChecksum.size() + 16 + kEnd.size();
    return text.size() > length &&
           text.substr(text.size() - length) == end_of(text.substr(0, text.size() - length));
}

// Whether the index says no more and no less than its version does.
bool fits_version(const nlohmann::json& document, int version, std::string_view text) {
    if (version == kChecked) return has_right_end(text);
    return !document.contains("checksum") && document.contains("whole") == (version == kWhole);
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

Error altered(const std::string& name) {
    return Error{ErrorCode::damaged, name + ": is cut or altered: remove it, and write the files again"};
}

// Which of an index' files lies under which name.
class KnownFiles {
   public:
    KnownFiles(const std::string& path, const Index& index) : path_(path), index_(index) {
        for (std::size_t number = 0; number < index.size(); ++number)
            numbers_.try_emplace(index.files[number], number);
    }

    // Damaged: the file under the sub-file's name is that of another one.
    [[nodiscard]] Result<> check(std::size_t number, const SubFile& there) const {
        if (there == index_.files[number]) return success();
        const auto other = numbers_.find(there);
        if (other == numbers_.end()) return success();
        return Error{ErrorCode::damaged,
                     sub_file_name(path_, number) + ": is the file that was written as " +
                         sub_file_name(path_, other->second) +
                         ": sub-files were renamed; give each its own name again, or write them again"};
    }

   private:
    const std::string& path_;
    const Index& index_;
    std::map<SubFile, std::size_t> numbers_;
};

// linked: also a file with a second name.
bool remove_known(const std::string& name, const SubFile& file, bool linked) {
    return remove_if(name, name + ".twr-removed." + hex_of(random_number()), [&](const std::string& at) {
        struct stat about {};
        return is_known(at, file) || (linked && ::lstat(at.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
                                      known_by(about) == file);
    });
}

}  // namespace

SubFile known_by(const struct stat& about) {
    return {static_cast<std::uint64_t>(about.st_size), static_cast<std::uint64_t>(about.st_ino),
            std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec};
}

bool is_known(const std::string& name, const SubFile& file) {
    struct stat about {};
    return ::lstat(name.c_str(), &about) == 0 && S_ISREG(about.st_mode) && about.st_nlink == 1 &&
           known_by(about) == file;
}

std::string index_name(const std::string& path) { return path + ".twr-index"; }

std::string sub_file_name(const std::string& path, std::size_t number) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), ".%05zu", number);
    return path + digits.data();
}

Result<std::optional<Index>> read_index(const std::string& path) {
    const std::string name = index_name(path);
    struct stat about {};
    const bool seen = ::lstat(name.c_str(), &about) == 0;  // before it is read: a later file is another
    TWR_TRY(const std::optional<std::string> text, text_of_file(name, kLargest, kWhat));
    if (!text) return std::optional<Index>();
    const nlohmann::json document = nlohmann::json::parse(*text, nullptr, false);
    if (!document.is_object() || document.value("format", nlohmann::json()) != kFormat)
        return not_ours(name, "other bytes", kWhat);
    const nlohmann::json version = document.value("version", nlohmann::json());
    if (version != kPlain && version != kWhole && version != kChecked) {
        return Error{ErrorCode::unsupported, name + ": version " + version.dump() +
                                                 ", and this twinrun reads 1 to 3: a newer twinrun wrote it"};
    }
    std::optional<Index> index;
    if (fits_version(document, version.get<int>(), *text))
        index = index_in(document, document.contains("whole"));
    if (!index) return altered(name);
    if (seen) index->own = known_by(about);
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
    nlohmann::json document = {{"format", kFormat}, {"version", kChecked}, {"files", std::move(files)}};
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
    std::string text = document.dump();
    text.pop_back();  // the brace, which the end has
    return put_text_file(name, text + end_of(text), replace, sync);
}

Result<> remove_index(const std::string& path, const SubFile& own, bool sync) {
    const std::string name = index_name(path);
    if (!remove_known(name, own, true)) {
        const int why = errno;
        struct stat about {};
        const bool there = ::lstat(name.c_str(), &about) == 0;
        if (there && known_by(about) == own) return file_error(name, "remove", why);
        if (there) {
            return Error{ErrorCode::mismatch,
                         name + ": somebody else wrote it meanwhile, and it stays: write to another name"};
        }
        if (errno != ENOENT) return file_error(name, "remove", errno);
    }
    return sync ? sync_folder_of(name) : success();
}

Result<> check_places(const std::string& path, const Index& index) {
    if (!index.whole()) return success();
    std::vector<SetNumbers> sets;
    std::uint64_t end = 0;
    for (const auto& of_file : index.places) {
        for (const StridedSet& set : of_file) {
            sets.push_back({set.offset, set.width, set.count, set.stride});
            end = std::max(end, set.end());
        }
    }
    if (end != index.whole_bytes) return altered(index_name(path));
    auto looked = first_overlap(std::span<const SetNumbers>(sets));
    if (!looked) return std::move(looked).error().at(index_name(path));
    const auto overlap = *looked;
    if (!overlap) return success();
    return Error{ErrorCode::damaged, index_name(path) + ": gives the byte at offset " +
                                         std::to_string(*overlap) +
                                         " of the whole file twice: it is altered; write the files again"};
}

Result<> check_exchanged(const std::string& path, const Index& index) {
    const KnownFiles known(path, index);
    for (std::size_t number = 0; number < index.size(); ++number) {
        struct stat about {};
        if (::stat(sub_file_name(path, number).c_str(), &about) != 0) continue;
        TWR_CHECK(known.check(number, known_by(about)));
    }
    return success();
}

Result<> check_sub_files(const std::string& path, const Index& index) {
    const KnownFiles known(path, index);
    for (std::size_t number = 0; number < index.size(); ++number) {
        const std::string name = sub_file_name(path, number);
        TWR_TRY(const struct stat about, facts_of_file(name));
        const SubFile there = known_by(about);
        TWR_CHECK(known.check(number, there));
        if (there.bytes == index.files[number].bytes) continue;
        return Error{ErrorCode::damaged, name + ": has " + std::to_string(there.bytes) + " bytes, and " +
                                             index_name(path) + " says " +
                                             std::to_string(index.files[number].bytes) +
                                             ": it is not the file that was written, or it was cut"};
    }
    return success();
}

void remove_sub_files(const std::string& path, const Index& index, std::size_t first) {
    for (std::size_t number = first; number < index.size(); ++number)
        remove_known(sub_file_name(path, number), index.files[number], false);
}

}  // namespace twinrun::aggregation
