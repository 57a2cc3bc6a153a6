// Objects that lie elsewhere than on a file system of this machine, and are read by ranges. They
// have names like files: InputFile::open() gives them. What reads them is told from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.hpp"

namespace twinrun {

// Brings the bytes from `offset` on, all of them or an error. Called from several threads.
using RangeReader =
    std::function<Result<>(const std::string& name, std::uint64_t offset, std::span<std::byte> to)>;

// How all objects are read from now on. Objects that are open already keep the reader that they
// have.
void set_range_reader(RangeReader reader);
// From now on files of this name are that object. Its size does not change.
void add_remote_file(const std::string& name, std::uint64_t size);
// Files that are open stay so. No such object: no effect.
void remove_remote_file(const std::string& name);

struct RemoteFile {
    std::uint64_t size = 0;
    std::shared_ptr<const RangeReader> reader;
};
// The object of this name; nothing: there is none, and a file of the system is meant.
std::optional<RemoteFile> remote_file(const std::string& name);

}  // namespace twinrun
