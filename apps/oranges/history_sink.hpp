// SPDX-License-Identifier: Apache-2.0
// Captures checkpoints into a twinrun history, as the field gdv of [vertices][73] u32.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "capture/session.hpp"
#include "oranges/step_sink.hpp"

namespace oranges {

class HistorySink final : public StepSink {
   public:
    // settings: "name=value", as docs/reference/capture.md lists them. Throws std::runtime_error where the
    // folder holds a history already.
    HistorySink(const std::string& folder, std::uint64_t vertices, int threads,
                std::span<const std::string> settings);
    void capture(std::uint64_t step, std::span<const std::uint32_t> counts) override;
    void finish() override;

   private:
    twinrun::SelfComm comm_;
    std::unique_ptr<twinrun::Session> session_;
    std::uint64_t vertices_;
};

}  // namespace oranges
