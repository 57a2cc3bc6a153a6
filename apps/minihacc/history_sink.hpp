// SPDX-License-Identifier: Apache-2.0
// Captures steps into a twinrun history: data, digests, residues, committed one step at a time.
#pragma once

#include <memory>
#include <string>

#include "capture/session.hpp"
#include "minihacc/step_sink.hpp"

namespace minihacc {

class HistorySink final : public StepSink {
   public:
    // Two runs agree where |a - b| <= atol. settings: "name=value", as docs/reference/capture.md
    // lists them. Throws std::runtime_error where the folder holds a history already.
    HistorySink(const std::string& folder, double atol, int threads, std::span<const std::string> settings);
    void capture(std::uint64_t step, std::span<const Field> fields) override;
    void finish() override;

   private:
    twinrun::SelfComm comm_;
    std::unique_ptr<twinrun::Session> session_;
};

}  // namespace minihacc
