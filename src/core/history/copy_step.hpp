// Copies a rank's files of a step from one tier to another, and checks every byte on the way.
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

// Copies the files of a rank's step out of the history `from`; they are synced under their final
// names, not yet committed. After an error nothing is left of them. Data without checksums (of
// arrays on devices, whose bytes never were on the host) is copied as it is.
Result<> copy_step(const std::string& from, const RankStep& entry, const HistoryWriter& to);

// Copies one file to `to`, and syncs it. check: sees every byte in order; its error ends the copy.
using CheckBytes = std::function<Result<>(std::uint64_t offset, std::span<const std::byte> bytes)>;
Result<> copy_file(FileSystem& system, InputFile& from, const std::string& to, const CheckBytes& check = {});

}  // namespace twinrun
