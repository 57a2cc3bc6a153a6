// The application's communicator (twr_comm).
#pragma once

#include "platform/comm.hpp"
#include "twinrun/twinrun.h"

namespace twinrun::capi {

// Owns the context.
class ApplicationComm final : public Comm {
   public:
    // shared: all 0 where there is none.
    ApplicationComm(const twr_comm& comm, const twr_shared_files& shared) : comm_(comm), shared_(shared) {}
    ~ApplicationComm() override;
    ApplicationComm(const ApplicationComm&) = delete;
    ApplicationComm& operator=(const ApplicationComm&) = delete;

    // Error: a function or a rank that cannot be.
    [[nodiscard]] Result<> check() const;
    [[nodiscard]] int rank() const override { return comm_.rank; }
    [[nodiscard]] int size() const override { return comm_.size; }
    Result<> minimum(std::span<std::int64_t> values) override;
    Result<> broadcast(std::span<std::byte> bytes) override;
    Result<std::string> prepare_shared(SharedFiles files, bool background) override;
    Result<SharedPlace> write_shared(FileSystem& system, const SharedPart& part) override;

   private:
    Result<> failure(const char* function, int code) const;
    [[nodiscard]] Error shared_failure(const char* function, int code) const;
    twr_comm comm_;
    twr_shared_files shared_;
};

}  // namespace twinrun::capi
