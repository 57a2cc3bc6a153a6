#include "history/apart.hpp"

#include <cinttypes>
#include <cstdio>
#include <filesystem>

#include "history/names.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// real_path(), which also resolves links whose target does not exist yet: it may be made later.
fs::path place_of(const std::string& path) {
    constexpr int kMostLinks = 40;  // the kernel's limit
    fs::path place = real_path(path);
    for (int i = 0; i < kMostLinks; ++i) {
        // real_path() resolves links up to the first name that does not exist: a link that is left
        // has no target.
        fs::path link;
        auto name = place.begin();
        std::error_code failure;
        for (; name != place.end(); ++name) {
            link /= *name;
            if (fs::symlink_status(link, failure).type() == fs::file_type::symlink) break;
        }
        if (name == place.end()) return place;
        fs::path to = link.parent_path() / fs::read_symlink(link, failure);
        if (failure) return place;
        while (++name != place.end())
            to /= *name;
        place = real_path(to.string());
    }
    return place;
}

}  // namespace

std::optional<std::string> first_below(const std::string& path, const std::string& folder) {
    const fs::path target = place_of(folder);
    std::string below;
    for (fs::path place = place_of(path);; place = place.parent_path()) {
        std::error_code not_there;
        if (place == target || fs::equivalent(place, target, not_there)) return below;
        if (place == place.parent_path()) return std::nullopt;
        below = place.filename().string();
    }
}

Result<> check_apart(const std::string& path, const std::string& local) {
    const auto below = first_below(path, local);
    if (!below) return success();
    std::uint32_t rank = 0;
    const bool of_rank =
        std::sscanf(below->c_str(), "rank-%9" SCNu32, &rank) == 1 && *below == rank_name(rank);
    if (!below->empty() && !of_rank) return success();
    return Error{ErrorCode::invalid_argument,
                 path + ": the node-local tier uses this folder: local is " + local +
                     ", where ranks write their steps to " + rank_name(0) +
                     " and so on: choose separate folders for the history and for local"};
}

}  // namespace twinrun
