#include "capi/comm.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "capi/status.hpp"

namespace twinrun::capi {

ApplicationComm::~ApplicationComm() {
    try {
        if (shared_.release != nullptr) shared_.release(shared_.context);
    } catch (...) {  // thrown by an application in C++; a destructor cannot report it
    }
    try {
        if (comm_.release != nullptr) comm_.release(comm_.context);
    } catch (...) {
    }
}

Result<> ApplicationComm::check() const {
    if (comm_.minimum == nullptr || comm_.broadcast == nullptr) {
        return Error{
            ErrorCode::invalid_argument,
            std::string("twr_comm.") + (comm_.minimum == nullptr ? "minimum" : "broadcast") + " is NULL"};
    }
    if (comm_.size < 1 || comm_.rank < 0 || comm_.rank >= comm_.size) {
        return Error{ErrorCode::invalid_argument, "twr_comm: rank " + std::to_string(comm_.rank) + " of " +
                                                      std::to_string(comm_.size) + " ranks cannot be"};
    }
    return success();
}

Result<> ApplicationComm::failure(const char* function, int code) const {
    if (code == -TWR_ERROR_OTHER_RANK) return Error{ErrorCode::other_rank, twr_error_message()};
    return Error{ErrorCode::io, std::string("twr_comm.") + function + " of rank " +
                                    std::to_string(comm_.rank) + " failed: it returned " +
                                    std::to_string(code)};
}

// Exceptions must not pass through the session, whose state they would leave behind as it is.
Result<> ApplicationComm::minimum(std::span<std::int64_t> values) {
    return caught([&]() -> Result<> {
        while (!values.empty()) {
            const std::size_t count = std::min<std::size_t>(values.size(), std::numeric_limits<int>::max());
            const int code = comm_.minimum(comm_.context, values.data(), static_cast<int>(count));
            if (code != 0) return failure("minimum", code);
            values = values.subspan(count);
        }
        return success();
    });
}

Result<> ApplicationComm::broadcast(std::span<std::byte> bytes) {
    return caught([&]() -> Result<> {
        const int code = comm_.broadcast(comm_.context, bytes.data(), bytes.size());
        return code == 0 ? success() : failure("broadcast", code);
    });
}

Error ApplicationComm::shared_failure(const char* function, int code) const {
    // The text of its twr_fail, in this thread.
    const char* const said = twr_error_message();
    std::string message = said != nullptr && *said != '\0'
                              ? std::string(said)
                              : std::string("twr_shared_files.") + function + " of rank " +
                                    std::to_string(comm_.rank) + " failed: it returned " +
                                    std::to_string(code);
    const bool known = code >= TWR_ERROR_INVALID_ARGUMENT && code <= TWR_ERROR_OTHER_RANK;
    return Error{known ? static_cast<ErrorCode>(code) : ErrorCode::io, std::move(message)};
}

Result<std::string> ApplicationComm::prepare_shared(SharedFiles files, bool background) {
    if (shared_.prepare == nullptr || shared_.write == nullptr)
        return Comm::prepare_shared(files, background);
    std::string file;
    const auto prepared = caught([&]() -> Result<> {
        char name[128] = "";
        set_message("");
        const int code = shared_.prepare(shared_.context, files == SharedFiles::one ? "one" : "node",
                                         background ? 1 : 0, name, sizeof name);
        if (code != 0) return shared_failure("prepare", code);
        name[sizeof name - 1] = '\0';
        file = name;
        if (!file.starts_with(kSharedPrefix) || file.find('/') != std::string::npos) {
            return Error{ErrorCode::invalid_argument, "twr_shared_files.prepare: '" + file +
                                                          "' is not a name of a file that begins with '" +
                                                          kSharedPrefix + "'"};
        }
        return success();
    });
    if (!prepared) return prepared.error();
    return file;
}

Result<SharedPlace> ApplicationComm::write_shared(FileSystem& system, const SharedPart& part) {
    if (shared_.write == nullptr) return Comm::write_shared(system, part);
    SharedPlace place;
    const auto written = caught([&]() -> Result<> {
        twr_shared_part given = {sizeof(twr_shared_part), part.ordinal, part.folder, part.bytes.data(),
                                 part.bytes.size(),       part.well,    0,           0};
        set_message("");
        const int code = shared_.write(shared_.context, &given);
        if (code != 0) return shared_failure("write", code);
        place = {given.offset, given.file_bytes};
        return success();
    });
    if (!written) return written.error();
    return place;
}

}  // namespace twinrun::capi
