#include "capi/comm.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "capi/status.hpp"

namespace twinrun::capi {

ApplicationComm::~ApplicationComm() {
    if (comm_.release == nullptr) return;
    try {
        comm_.release(comm_.context);
    } catch (...) {  // of an application in C++: there is nobody to tell
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

}  // namespace twinrun::capi
