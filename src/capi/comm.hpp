// The application's communicator (twr_comm).
#pragma once

#include "platform/comm.hpp"
#include "twinrun/twinrun.h"

namespace twinrun::capi {

// Owns the context.
class ApplicationComm final : public Comm {
   public:
    explicit ApplicationComm(const twr_comm& comm) : comm_(comm) {}
    ~ApplicationComm() override;
    ApplicationComm(const ApplicationComm&) = delete;
    ApplicationComm& operator=(const ApplicationComm&) = delete;

    // Error: a function or a rank that cannot be.
    [[nodiscard]] Result<> check() const;
    [[nodiscard]] int rank() const override { return comm_.rank; }
    [[nodiscard]] int size() const override { return comm_.size; }
    Result<> minimum(std::span<std::int64_t> values) override;
    Result<> broadcast(std::span<std::byte> bytes) override;

   private:
    Result<> failure(const char* function, int code) const;
    twr_comm comm_;
};

}  // namespace twinrun::capi
