// SPDX-License-Identifier: Apache-2.0
// Writes each checkpoint as a plain little-endian file: FOLDER/step-0000000001/rank-00000.gdv and
// so on.
#pragma once

#include <filesystem>

#include "oranges/step_sink.hpp"

namespace oranges {

class RawSink final : public StepSink {
   public:
    // Creates the folder. Throws std::runtime_error when it cannot be, or holds steps of an earlier
    // run.
    explicit RawSink(std::filesystem::path folder);

    // A step's folder appears under its name only when its file is complete.
    void capture(std::uint64_t step, std::span<const std::uint32_t> counts) override;

   private:
    std::filesystem::path folder_;
};

}  // namespace oranges
