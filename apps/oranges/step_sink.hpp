// SPDX-License-Identifier: Apache-2.0
// Where checkpoints of the counts go.
#pragma once

#include <cstdint>
#include <span>

namespace oranges {

class StepSink {
   public:
    virtual ~StepSink() = default;
    // counts: [vertices][73], valid during the call only. Throws std::runtime_error with a one-line
    // message on failure.
    virtual void capture(std::uint64_t step, std::span<const std::uint32_t> counts) = 0;
    // After the last step: all is on storage when it returns. Throws as capture does.
    virtual void finish() {}
};

}  // namespace oranges
