// The other processes of a run. The core knows them only through this: a process alone by itself, MPI through a table of
// functions that the application's side hands in (include/twinrun/twinrun.h: twr_comm), so that nothing here links to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace twinrun {

// All functions are collective: every rank calls them, in the same order. Not thread-safe. After an error the others may
// wait for ever: what to do then is the transport's business (MPI ends the job unless told otherwise).
class Comm {
   public:
    virtual ~Comm() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    // Each value becomes its minimum over all ranks.
    virtual Result<> minimum(std::span<std::int64_t> values) = 0;
    // Rank 0's bytes, everywhere.
    virtual Result<> broadcast(std::span<std::byte> bytes) = 0;
};

// One process.
class SelfComm final : public Comm {
   public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    Result<> minimum(std::span<std::int64_t>) override { return success(); }
    Result<> broadcast(std::span<std::byte>) override { return success(); }
};

}  // namespace twinrun
