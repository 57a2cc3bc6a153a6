// Which file has a difference, or what is left of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace twinrun {

struct DifferencePlace {
    std::string file;  // a path
    // DifferenceFile::header_checksum() of that file, which seals its content. nullopt: not known:
    // an older twinrun wrote the journal.
    std::optional<std::uint64_t> checksum = std::nullopt;
    // The same of a path in this folder.
    [[nodiscard]] DifferencePlace in(const std::string& folder) const {
        return {(std::filesystem::path(folder) / file).string(), checksum};
    }
    bool operator==(const DifferencePlace&) const = default;
};

}  // namespace twinrun
