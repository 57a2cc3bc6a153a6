#include "platform/comm.hpp"

#include <array>
#include <filesystem>
#include <new>

#include "platform/file_io.hpp"

namespace twinrun {

namespace {

Error unsupported() {
    return Error{ErrorCode::unsupported,
                 "shared_files: these ranks have no way to write one file together: open the run with "
                 "twr_open_mpi, or leave shared_files off"};
}

}  // namespace

Result<std::string> Comm::prepare_shared(SharedFiles, bool) { return unsupported(); }
Result<SharedPlace> Comm::write_shared(FileSystem&, const SharedPart&) { return unsupported(); }

Result<std::string> SelfComm::prepare_shared(SharedFiles, bool) { return std::string(kSharedFile); }

Result<SharedPlace> SelfComm::write_shared(FileSystem& system, const SharedPart& part) try {
    if (!part.well) return Error{ErrorCode::internal, "a step that failed is not written"};
    const std::array parts{part.bytes};
    TWR_CHECK(write_parts(system, part.folder, kSharedFile, parts));
    return SharedPlace{0, part.bytes.size()};
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "out of memory"};
}

Result<> write_parts(FileSystem& system, const std::string& folder, const std::string& name,
                     std::span<const std::span<const std::byte>> parts) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    std::uint64_t bytes = 0;
    for (const auto& part : parts)
        bytes += part.size();
    const std::string temporary = temporary_name(path);
    TWR_TRY(auto file, system.create(temporary, bytes));
    std::uint64_t at = 0;
    for (const auto& part : parts) {
        if (!part.empty()) TWR_CHECK(file->write_at(at, part));
        at += part.size();
    }
    TWR_CHECK(file->sync());
    TWR_CHECK(close_at_own_time(*file, temporary));
    TWR_CHECK(system.rename(temporary, path));
    return system.sync_folder(folder);
}

}  // namespace twinrun
