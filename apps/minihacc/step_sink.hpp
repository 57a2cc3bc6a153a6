// SPDX-License-Identifier: Apache-2.0
// Where the simulation hands over its fields at the capture steps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace minihacc {

struct Field {
    std::string_view name;
    std::span<const float> values;  // element i belongs to particle i, at every step
};

class StepSink {
   public:
    virtual ~StepSink() = default;
    // The fields are valid during the call only. Throws std::runtime_error with a one-line message
    // on failure.
    virtual void capture(std::uint64_t step, std::span<const Field> fields) = 0;
    // After the last step: all is on storage when it returns. Throws as capture does.
    virtual void finish() {}
};

}  // namespace minihacc
