// How a record is made: fixed when it begins, kept with it.
#pragma once

#include <cstdint>
#include <string>

#include "record/delta.hpp"

namespace twinrun {

struct RecordSettings {
    RecordMethod method = RecordMethod::runs;
    std::uint32_t chunk_bytes = 256;
    PayloadCodec codec = PayloadCodec::stored;
    int level = 1;  // of the codec
    // Each block of new chunks may be packed after XOR with what these chunks replace. With a codec
    // only.
    bool xored = false;
    // A chunk that is within the field's tolerance of what restore gives is not kept again.
    bool bounded = false;
    // Another record, which must stay where it is: what it has is not kept again, and each step is
    // based on its same step.
    std::string against;
    // The ID of that record's history. Empty: it has none, or this record was begun before there
    // was this member.
    std::string against_id;
    // Own ordinals begin here; smaller ones are the other record's.
    std::uint32_t first_difference = 0;
    bool operator==(const RecordSettings&) const = default;

    [[nodiscard]] Result<> check() const;
};

}  // namespace twinrun
