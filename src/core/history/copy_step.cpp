#include "history/copy_step.hpp"

#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>
#include <vector>

#include "base/aligned.hpp"
#include "base/checksum.hpp"
#include "history/step_check.hpp"
#include "metadata/metadata.hpp"
#include "metadata/verify.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kCopyBytes = 8 << 20;

}  // namespace

Result<> copy_file(FileSystem& system, InputFile& from, const std::string& to, const CheckBytes& check) {
    TWR_TRY(auto output, system.create(to, from.size()));
    // Aligned memory, for direct I/O.
    const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, from.size()));
    AlignedBytes memory;
    std::byte* const buffer = memory.reserve(room);
    for (std::uint64_t at = 0; at < from.size(); at += room) {
        const auto part = std::span(buffer, std::min<std::uint64_t>(room, from.size() - at));
        TWR_CHECK(from.read_at(at, part));
        if (check) TWR_CHECK(check(at, part));
        TWR_CHECK(output->write_at(at, part));
    }
    output->set_time(from.stamp().mtime_ns);
    TWR_CHECK(output->sync());
    return output->close();
}

Result<> copy_step(const std::string& from, const RankStep& entry, const HistoryWriter& to) try {
    FileSystem& system = to.system();
    if (entry.files.shared) {
        return Error{
            ErrorCode::unsupported,
            from + ": a step in files of several ranks (shared_files) cannot be copied to another folder"};
    }
    const fs::path source = fs::path(from) / entry.folder;
    const fs::path target = fs::path(to.path()) / entry.folder;
    TWR_TRY(const auto metadata, MetadataFile::open((source / entry.files.metadata).string()));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(metadata->file().read_at(0, header));
    if (xxh3(header) != entry.files.header_checksum ||
        metadata->file().size() != entry.files.metadata_bytes) {
        return Error{ErrorCode::damaged, metadata->path() + ": is not the file that the journal names"};
    }
    TWR_CHECK(verify(*metadata));
    struct Cleanup {
        FileSystem& system;
        std::vector<std::string> files;
        bool armed = true;
        ~Cleanup() {
            for (const auto& file : files) {
                if (armed) static_cast<void>(system.remove(file));
            }
        }
    } cleanup{system, {}};
    TWR_CHECK(to.make_folder(entry.folder));
    if (!entry.files.data.empty()) {
        TWR_TRY(const auto data, InputFile::open((source / entry.files.data).string()));
        if (data->size() != entry.files.data_bytes) {
            return Error{ErrorCode::damaged, data->path() + ": damaged: " + std::to_string(data->size()) +
                                                 " bytes, the journal says " +
                                                 std::to_string(entry.files.data_bytes)};
        }
        const bool recorded = entry.files.difference != kNoBase;
        if (recorded) {
            TWR_TRY(const auto file, DifferenceFile::open(data->path()));
            if (file->difference().ordinal != entry.files.difference)
                return Error{ErrorCode::damaged,
                             data->path() + ": is not the difference that the journal names"};
            TWR_CHECK(check_blocks(*file));
        }
        TWR_TRY(DataCheck check, DataCheck::create(*metadata));
        const std::string name = (target / entry.files.data).string();
        const std::string temporary = temporary_name(name);
        auto copied = recorded ? copy_file(system, *data, temporary)
                               : copy_file(system, *data, temporary, std::ref(check));
        if (!copied) {
            Error error = std::move(copied).error();
            return error.code == ErrorCode::damaged ? std::move(error).at(data->path()) : error;
        }
        cleanup.files = {temporary};  // copy_file() has closed it, so that nothing else removes it
        if (!recorded && !check.complete())
            return Error{ErrorCode::damaged, data->path() + ": damaged: shorter than its metadata says"};
        TWR_CHECK(system.rename(temporary, name));
        cleanup.files = {name};
    }
    const std::string name = (target / entry.files.metadata).string();
    const std::string temporary = temporary_name(name);
    TWR_CHECK(copy_file(system, metadata->file(), temporary));
    cleanup.files.push_back(temporary);
    TWR_CHECK(system.rename(temporary, name));
    cleanup.files.back() = name;
    TWR_CHECK(system.sync_folder(target.string()));
    cleanup.armed = false;
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to copy a step"};
}

}  // namespace twinrun
