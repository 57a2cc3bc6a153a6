#include "history/names.hpp"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "metadata/metadata.hpp"
#include "platform/comm.hpp"
#include "platform/file_io.hpp"
#include "record/delta_format.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRandomEnd = 21;  // length of what temporary_name() adds
// in the name of a shared file while MPI ranks write it
constexpr const char* kPartialName = ".twr-partial.";

// Whether the text is what temporary_name() adds to a name.
bool is_random_end(std::string_view text) {
    return text.size() == kRandomEnd && text.starts_with('.') && text.ends_with(".tmp") &&
           text.substr(1, 16).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether the name is that of a shared file while MPI ranks write it. No other program gives such
// names.
bool is_partial_group(std::string_view name) {
    constexpr std::size_t kDigits = 16;
    const std::size_t at = name.find(kPartialName);
    if (at == std::string_view::npos) return false;
    const std::string_view digits = name.substr(at + std::string_view(kPartialName).size());
    return digits.size() == kDigits && digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// "group.data", "group.data.00003"
bool is_shared_file(const std::string& name) {
    unsigned file = 0;
    std::array<char, 32> own{};
    if (name == kSharedFile) return true;
    if (std::sscanf(name.c_str(), "group.data.%9u", &file) != 1) return false;
    std::snprintf(own.data(), own.size(), "%s.%05u", kSharedFile, file);
    return name == own.data();
}

constexpr const char* kBegunSuffix = ".begun";

bool is_begun_by_any(const std::string& folder) {
    const auto entries = entries_of(folder);
    return std::any_of(entries.begin(), entries.end(), [&](const FolderEntry& entry) {
        return is_begun_name(entry.name) && has_mark(folder, entry.name);
    });
}

}  // namespace

bool is_temporary(const std::string& name) {
    return name.size() > kRandomEnd && is_random_end(std::string_view(name).substr(name.size() - kRandomEnd));
}

std::string name_of_temporary(const std::string& name) { return name.substr(0, name.size() - kRandomEnd); }

std::uint32_t rank_of(const std::string& name) {
    std::uint32_t rank = 0;
    std::sscanf(name.c_str(), "rank-%9" SCNu32, &rank);
    return rank;
}

std::string begun_name(std::uint32_t rank) { return rank_name(rank) + kBegunSuffix; }

bool is_begun_name(const std::string& name) { return name == begun_name(rank_of(name)); }

bool is_begun_by(const std::string& folder, std::uint32_t rank) { return has_mark(folder, begun_name(rank)); }

bool has_mark(const std::string& folder, const std::string& name) {
    const fs::path file = fs::path(folder) / name;
    std::error_code failure;
    return fs::symlink_status(file, failure).type() == fs::file_type::regular &&
           fs::file_size(file, failure) == 0 && !failure;
}

std::string absolute_path(const std::string& path) {
    std::error_code ignored;
    const fs::path whole = fs::absolute(path, ignored).lexically_normal();
    const std::string text = whole.string();
    return text.size() > 1 && text.back() == '/' ? text.substr(0, text.size() - 1) : text;
}

std::string local_path(const std::string& local, std::uint32_t rank) {
    return (fs::path(local) / rank_name(rank)).string();
}

std::string manifest_path(const std::string& path) { return (fs::path(path) / "manifest.jsonl").string(); }

std::string rank_name(std::uint32_t rank) {
    char name[32];
    std::snprintf(name, sizeof name, "rank-%05" PRIu32, rank);
    return name;
}

std::string journal_path(const std::string& path, std::uint32_t rank, std::uint32_t ranks) {
    return ranks == 1 ? manifest_path(path) : (fs::path(path) / (rank_name(rank) + ".jsonl")).string();
}

std::string step_folder(std::int64_t step, std::uint32_t attempt) {
    char name[64];
    std::snprintf(name, sizeof name, "step-%010" PRId64, step);
    return attempt == 0 ? name : std::string(name) + "." + std::to_string(attempt);
}

std::uint32_t attempt_of(const std::string& folder) {
    const std::size_t dot = folder.rfind('.');
    std::uint32_t attempt = 0;
    if (dot == std::string::npos) return 0;
    for (std::size_t i = dot + 1; i < folder.size(); ++i) {
        if (folder[i] < '0' || folder[i] > '9' || attempt > 100'000'000) return 0;
        attempt = attempt * 10 + static_cast<std::uint32_t>(folder[i] - '0');
    }
    return attempt;
}

std::optional<std::int64_t> step_of(const std::string& folder) {
    std::int64_t step = 0;
    if (std::sscanf(folder.c_str(), "step-%20" SCNd64, &step) != 1 ||
        folder != step_folder(step, attempt_of(folder))) {
        return std::nullopt;
    }
    return step;
}

bool is_step_folder(const std::string& name) { return name == kLeftoversFolder || step_of(name).has_value(); }

bool is_step_file(const std::string& name, std::optional<std::uint32_t> rank) {
    std::string_view rest = name;
    const auto takes = [&](std::string_view text) {
        if (!rest.starts_with(text)) return false;
        rest.remove_prefix(text.size());
        return true;
    };
    const auto takes_digits = [&] {
        const std::size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
        rest.remove_prefix(count);
        return count != 0;
    };
    std::uint32_t of = 0;
    if (std::sscanf(name.c_str(), "rank-%9" SCNu32, &of) != 1 || !takes(rank_name(of)) ||
        (rank && *rank != of))
        return false;
    // Names of differences: "rank-00003.1.twr", "rank-00003.difference-7.twr"
    bool of_difference = false;
    if (rest.size() > 1 && rest[1] >= '0' && rest[1] <= '9') {
        takes(".");
        of_difference = takes_digits();
    } else if (takes(".difference-")) {
        of_difference = takes_digits();
        if (!of_difference) return false;
    }
    if (!takes(".twr") && (of_difference || (!takes(".data") && !takes(kMetadataSuffix)))) return false;
    return rest.empty() || is_random_end(rest);
}

bool is_proven(const std::string& folder, const std::string& name) {
    if (is_temporary(name))  // proven by the mark of the rank that writes there
        return name.starts_with(kSharedPrefix) ? is_begun_by_any(folder) : is_begun_by(folder, rank_of(name));
    const std::string file = (fs::path(folder) / name).string();
    if (name.ends_with(kMetadataSuffix)) return is_metadata_file(file);
    if (name.ends_with(".twr")) return is_difference_file(file);
    if (is_partial_group(name)) return true;
    // A data file has only the user's bytes. The metadata beside it says which size it has; without
    // metadata, a whole number of pages must do.
    const auto stamp = stamp_of(file);
    if (!stamp) return false;
    const auto said_by = [&](const std::string& metadata) -> std::optional<bool> {
        if (!is_metadata_file(metadata)) return std::nullopt;
        const auto opened = MetadataFile::open(metadata);
        if (!opened) return std::nullopt;
        for (const DataFile& data : (*opened)->directory().data_files) {
            if (data.path == name) return data.stamp.size == stamp->size;
        }
        return std::nullopt;
    };
    if (name.starts_with(kSharedPrefix)) {  // the metadata of any rank whose data is in it will do
        for (const auto& [beside, is_file, is_folder] : entries_of(folder)) {
            if (!is_file || !beside.ends_with(kMetadataSuffix)) continue;
            if (const auto said = said_by((fs::path(folder) / beside).string())) return *said;
        }
        if (!is_shared_file(name)) return false;
    } else if (const auto said = said_by(fs::path(file).replace_extension(kMetadataSuffix).string())) {
        return *said;
    }
    return stamp->size != 0 && stamp->size % kPageBytes == 0;
}

std::string marker_name(const HistoryId& id) { return kHiddenPrefix + id; }

std::string left_name(const HistoryId& id) { return marker_name(id) + ".left"; }

bool is_unnamed_folder(const std::string& name) {
    constexpr std::size_t kDigits = 16;
    const std::string_view prefix = kHiddenPrefix;
    return name.size() == prefix.size() + kDigits && name.starts_with(prefix) &&
           name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
}

bool is_marked(const std::string& path, const std::string& folder, const HistoryId& id) {
    const fs::path place = fs::path(path) / folder;
    std::error_code failure;
    return fs::symlink_status(place, failure).type() == fs::file_type::directory && !failure &&
           fs::symlink_status(place / marker_name(id), failure).type() == fs::file_type::regular && !failure;
}

bool is_marked_by_any(const std::string& path, const std::string& folder) {
    const auto entries = entries_of((fs::path(path) / folder).string());
    return std::any_of(entries.begin(), entries.end(), [](const FolderEntry& entry) {
        constexpr std::size_t kDigits = 32;
        const std::string_view name = entry.name;
        const std::size_t begin = std::string_view(kHiddenPrefix).size();
        return entry.is_file && name.size() == begin + kDigits && name.starts_with(kHiddenPrefix) &&
               name.find_first_not_of("0123456789abcdef", begin) == std::string_view::npos;
    });
}

bool has_step_files(const std::string& folder) {
    const auto entries = entries_of(folder);
    return std::any_of(entries.begin(), entries.end(), [](const FolderEntry& entry) {
        return entry.is_file && (is_step_file(entry.name, std::nullopt) || entry.name.starts_with("group."));
    });
}

std::string new_difference_name(const std::string& folder, std::uint32_t rank) {
    std::string name = rank_name(rank) + ".twr";
    for (std::uint64_t n = 1; is_there((fs::path(folder) / name).string()); ++n)
        name = rank_name(rank) + "." + std::to_string(n) + ".twr";
    return name;
}

}  // namespace twinrun
