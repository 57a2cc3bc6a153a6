// Differences, by the portable kernels.
#include <algorithm>
#include <cstring>
#include <vector>

#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

void difference_scratch(int, const DeviceDifference&, const DevicePart*, std::size_t n,
                        std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * 64 + kScratch;
    *host_bytes = n * 32 + 64;
}
// Adds a part, chunk by chunk.
void compare_part(const DeviceDifference& what, const DevicePart& part, DeviceDifferenceResult& result) {
    for (std::uint64_t at = 0; at < part.scalars; at += what.chunk_scalars) {
        DifferenceStats chunk;  // of its own: a sum over all would lose more bits than a device's
        compare_elements(kPortableDifference, dense_view(what.scalar, part.a),
                         dense_view(what.scalar, part.b), at, std::min(what.chunk_scalars, part.scalars - at),
                         part.index + at, what.rule, &chunk);
        result.stats.merge(chunk);
        if (chunk.different != 0) ++result.different_chunks;
    }
}
void check_parts(Checker& checker, const DeviceDifference& what, const std::vector<DevicePart>& parts) {
    const std::size_t item = item_bytes(what.scalar);
    for (const DevicePart& part : parts) {
        checker.memory(part.a, part.scalars * item, item, "a");
        checker.memory(part.b, part.scalars * item, item, "b");
    }
}
DeviceStatus compare(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                     DeviceDifferenceResult* result, void* scratch, void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kCompare, device);
    const Scratch area(scratch, n * 64 + kScratch, host_scratch, n * 32 + 64);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DevicePart>(parts, parts + n)] {
        Checker checker(device, "compare");
        area.check(checker);
        checker.memory_or_locked(result, sizeof *result, 8, "its result");
        check_parts(checker, what, all);
        if (!checker.ok()) return;
        *result = {};
        for (const DevicePart& part : all)
            compare_part(what, part, *result);
    });
}
DeviceStatus put_pairs(int device, const DeviceDifference&, const DevicePart*, std::size_t n, void* scratch,
                       void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kCompare, device);
    const Scratch area(scratch, n * 64 + kScratch, host_scratch, n * 32 + 64);
    area.prepare();
    return push(device, stream, [=] {
        Checker checker(device, "put_pairs");
        area.check(checker);
    });
}
DeviceStatus compare_pairs(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                           DevicePairResult* results, void* scratch, StreamHandle stream) {
    FAKE_ENTER(kCompare, device);
    return push(device, stream, [=, all = std::vector<DevicePart>(parts, parts + n)] {
        Checker checker(device, "compare_pairs");
        checker.memory(scratch, n * 64 + kScratch, 8, "its scratch");
        checker.memory(results, n * sizeof *results, 8, "its results");
        check_parts(checker, what, all);
        for (const DevicePart& part : all)
            checker.require(part.scalars != 0, "a part", "is empty");
        checker.require(
            *std::max_element(what.rule.measure.period.begin(), what.rule.measure.period.end()) == 0,
            "a measure", "has circles");
        if (!checker.ok()) return;
        for (std::size_t i = 0; i < n; ++i) {
            DevicePairResult& result = results[i];
            result = {};
            compare_part(what, all[i], result.found);
            const DifferenceStats& stats = result.found.stats;
            const auto bits = [&](const void* run, std::uint64_t at) {
                std::uint64_t value = 0;
                const std::size_t item = item_bytes(what.scalar);
                if (at != kNowhere) {
                    std::memcpy(&value, static_cast<const std::byte*>(run) + (at - all[i].index) * item,
                                item);
                }
                return value;
            };
            result.first_bits[0] = bits(all[i].a, stats.first);
            result.first_bits[1] = bits(all[i].b, stats.first);
            result.largest_bits[0] = bits(all[i].a, stats.max_abs_at);
            result.largest_bits[1] = bits(all[i].b, stats.max_abs_at);
        }
    });
}

}  // namespace

const DeviceDifferenceKernels kDifference = {.scratch = difference_scratch,
                                             .compare = compare,
                                             .pairs_scratch = difference_scratch,
                                             .put_pairs = put_pairs,
                                             .compare_pairs = compare_pairs};

}  // namespace twinrun::fake
