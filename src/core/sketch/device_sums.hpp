// Sums of digests of parts of global arrays (digest/sums.hpp) that live on devices: planned on the
// host, from places alone, and added up where the elements are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "digest/sums_device.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

struct DeviceSumsPlan {
    PartialSums sums;  // to plan and to finish: nothing is added on the host
    // Where buckets have gaps and are not far apart: a bit each from the first on, and how many
    // there are before each word.
    std::vector<std::uint64_t> bits;
    std::vector<std::uint32_t> before;
};
// How the field's sums by place are made; null: it has none, or they follow from its digests
// (own_chunks()). The plans of recent layouts are kept, for they are those of the next steps.
// Thread-safe.
std::shared_ptr<const DeviceSumsPlan> plan_device_sums(const FieldMetadata& field);
// Of device memory, for the sums of a field.
std::uint64_t device_sums_bytes(const FieldMetadata& field);

// The buckets that scalars [first, first + count) of a part lie in, as numbers among the plan's.
struct SumsSlots {
    std::size_t first = 0;
    std::size_t count = 0;
};
SumsSlots sums_slots(const DeviceSumsPlan& plan, std::uint64_t first, std::uint64_t count);

// The kernel's item for these scalars, dense at `data`. halves: kSumsWords of each of their
// buckets. The plan outlives it.
DeviceSumsItem sums_item(const DeviceSumsPlan& plan, const FieldMetadata& field, std::uint64_t first,
                         std::uint64_t count, const void* data, std::uint64_t* halves);

}  // namespace twinrun
