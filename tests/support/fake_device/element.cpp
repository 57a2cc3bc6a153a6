// Gathering of elements.
#include <algorithm>
#include <cstring>
#include <vector>

#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

void gather_now(int device, const DeviceGather& g) {
    std::int64_t low = 0;
    std::int64_t high = static_cast<std::int64_t>(g.item_bytes);
    for (int d = 0; d < g.dimensions; ++d) {
        const std::int64_t reach = (static_cast<std::int64_t>(g.shape[d]) - 1) * g.strides[d];
        if (g.shape[d] != 0) (reach < 0 ? low : high) += reach;
    }
    Checker checker(device, "gather");
    checker.memory(static_cast<const std::byte*>(g.from) + low, static_cast<std::size_t>(high - low), 1,
                   "what it reads");
    checker.memory(g.to, g.count * g.item_bytes, g.item_bytes, "what it writes");
    if (!checker.ok()) return;
    const auto* from = static_cast<const std::byte*>(g.from);
    auto* to = static_cast<std::byte*>(g.to);
    for (std::uint64_t i = g.first; i < g.first + g.count; ++i, to += g.item_bytes) {
        std::uint64_t rest = i;
        std::int64_t at = 0;
        for (int d = g.dimensions; d-- > 0;) {
            at += static_cast<std::int64_t>(rest % g.shape[d]) * g.strides[d];
            rest /= g.shape[d];
        }
        std::memcpy(to, from + at, g.item_bytes);
        for (std::uint32_t s = 0; g.swap_bytes != 0 && s < g.item_bytes; s += g.swap_bytes)
            std::reverse(to + s, to + s + g.swap_bytes);
    }
}
DeviceStatus gather(int device, const DeviceGather& what, StreamHandle stream) {
    FAKE_ENTER(kGather, device);
    const bool known = what.item_bytes == 1 || what.item_bytes == 2 || what.item_bytes == 4 ||
                       what.item_bytes == 8 || what.item_bytes == 16;
    if (!known || what.dimensions < 0 || what.dimensions > kMostGatherDimensions)
        return failure(ErrorCode::invalid_argument, device,
                       "gather: items or dimensions that it does not know");
    if (what.count == 0) return {};
    return push(device, stream, [=] { gather_now(device, what); });
}

DeviceStatus copy_all(int device, const DeviceCopy* copies, std::size_t count, StreamHandle stream) {
    FAKE_ENTER(kCopyAll, device);
    // Copied now: the caller's list may be gone when the stream comes to it.
    return push(device, stream, [device, all = std::vector<DeviceCopy>(copies, copies + count)] {
        Checker checker(device, "copy_all");
        for (const DeviceCopy& copy : all) {
            checker.memory(copy.from, copy.bytes, 1, "what it reads");
            checker.memory(copy.to, copy.bytes, 1, "what it writes");
            if (checker.ok() && copy.bytes != 0) std::memcpy(copy.to, copy.from, copy.bytes);
        }
    });
}

}  // namespace

const DeviceElementKernels kElement = {.gather = gather, .copy_all = copy_all};

}  // namespace twinrun::fake
