// Copies a rank's files of a step from one tier to another, and checks every byte while it copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "history/history.hpp"
#include "history/writer.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// Copies the files of a rank's step from the history `from` to that of `to`, and syncs them under
// their final names. Does not commit them. After an error the copies are removed. Fields without
// data sums (of arrays whose bytes were never on the host) are copied unchecked. Errors: damaged;
// unsupported: data in a file of several ranks; those of storage.
Result<> copy_step(const std::string& from, const RankStep& entry, const HistoryWriter& to);

// Copies one file, with its time of change, to the path `to`, and syncs it. check: called with all
// bytes in order; its error ends the copy. After an error the copy is removed.
using CheckBytes = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> bytes)>;
Result<> copy_file(FileSystem& system, InputFile& from, const std::string& to, const CheckBytes& check = {});

}  // namespace twinrun
