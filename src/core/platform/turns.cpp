#include "platform/turns.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace twinrun {

namespace {

Error unlike(int rank) {
    return Error{ErrorCode::mismatch, "rank " + std::to_string(rank) +
                                          " of ranks that take turns does something else than rank 0 did"};
}

Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory for ranks that take turns"}; }

}  // namespace

TurnComm::TurnComm(std::shared_ptr<Turns> turns, int rank, int size)
    : turns_(std::move(turns)), rank_(rank), size_(size) {}

const Turns::Call* TurnComm::answer() {
    return next_ < turns_->calls.size() ? &turns_->calls[next_++] : nullptr;
}

Result<> TurnComm::minimum(std::span<std::int64_t> values) try {
    if (rank_ == 0) {
        turns_->calls.push_back({{values.begin(), values.end()}, {}});
        return success();
    }
    const Turns::Call* said = answer();
    if (said == nullptr || said->values.size() != values.size()) return unlike(rank_);
    std::copy(said->values.begin(), said->values.end(), values.begin());
    return success();
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> TurnComm::broadcast(std::span<std::byte> bytes) try {
    if (rank_ == 0) {
        turns_->calls.push_back({{}, {bytes.begin(), bytes.end()}});
        return success();
    }
    const Turns::Call* said = answer();
    if (said == nullptr || said->bytes.size() != bytes.size()) return unlike(rank_);
    std::copy(said->bytes.begin(), said->bytes.end(), bytes.begin());
    return success();
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
