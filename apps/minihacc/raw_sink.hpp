// SPDX-License-Identifier: Apache-2.0
// Writes each captured step as plain little-endian files: FOLDER/step-0000000010/x.f32 and so on.
#pragma once

#include <filesystem>

#include "minihacc/step_sink.hpp"

namespace minihacc {

class RawSink final : public StepSink {
   public:
    // Creates the folder. Throws std::runtime_error when it cannot be, or holds steps of an earlier
    // run.
    explicit RawSink(std::filesystem::path folder);

    // A step's folder appears under its name only when all its files are complete.
    void capture(std::uint64_t step, std::span<const Field> fields) override;

   private:
    std::filesystem::path folder_;
};

}  // namespace minihacc
