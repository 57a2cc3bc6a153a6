// Small files of twinrun's own beside the data: the index of sub-files, saved plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace twinrun::aggregation {

// The error where a file of the name is somebody's. what: what it should be, as "an index".
[[nodiscard]] Error not_ours(const std::string& name, const std::string& why, const char* what);

// nullopt: no such file. Errors: not_ours() for a link, another kind of file, one of more bytes
// than `most`.
Result<std::optional<std::string>> text_of_file(const std::string& name, std::uint64_t most,
                                                const char* what);
// Writes the file atomically, under a temporary name first. replace: an existing file is replaced;
// otherwise it is an error. sync: the file survives a power cut.
Result<> put_text_file(const std::string& name, const std::string& text, bool replace, bool sync);
Result<> sync_folder_of(const std::string& path);

}  // namespace twinrun::aggregation
