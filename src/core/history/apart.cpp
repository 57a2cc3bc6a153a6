#include "history/apart.hpp"

#include <cinttypes>
#include <cstdio>
#include <filesystem>

#include "history/names.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// real_path(), of links too whose target is not there yet: it may be made.
fs::path place_of(const std::string& path) {
    constexpr int kMostLinks = 40;  // as the kernel has it
    fs::path place = real_path(path);
    for (int i = 0; i < kMostLinks; ++i) {
        // What is there has no links any more: only the first name that leads nowhere can be one.
        fs::path there;
        auto name = place.begin();
        std::error_code failure;
        for (; name != place.end(); ++name) {
            there /= *name;
            if (fs::symlink_status(there, failure).type() == fs::file_type::symlink) break;
        }
        if (name == place.end()) return place;
        fs::path to = there.parent_path() / fs::read_symlink(there, failure);
        if (failure) return place;
        while (++name != place.end())
            to /= *name;
        place = real_path(to.string());
    }
    return place;
}

}  // namespace

std::optional<std::string> first_below(const std::string& path, const std::string& folder) {
    const fs::path wanted = place_of(folder);
    std::string below;
    for (fs::path place = place_of(path);; place = place.parent_path()) {
        std::error_code not_there;
        if (place == wanted || fs::equivalent(place, wanted, not_there)) return below;
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
                 path + ": is in the way of the node-local tier: local is " + local +
                     ", where ranks keep their steps in " + rank_name(0) +
                     " and so on: give the history and local folders of their own"};
}

}  // namespace twinrun
