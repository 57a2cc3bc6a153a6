// Pairs of arrays that lie on one device, compared there by one launch for each element type and
// rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device_workspace.hpp"
#include "device/event.hpp"
#include "difference/difference_device.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Two arrays on one device, dense and native, of one type and size.
struct DevicePair {
    const void* a = nullptr;
    const void* b = nullptr;
    StreamHandle stream_a = nullptr;  // whose earlier work makes the data
    StreamHandle stream_b = nullptr;
    std::uint64_t items = 0;
    DType dtype = DType::f32;
    const DifferenceRule* rule = nullptr;

    [[nodiscard]] std::uint64_t scalars() const { return items * scalars_per_item(dtype); }
    [[nodiscard]] std::uint64_t bytes() const { return 2 * items * item_bytes(dtype); }
};

// One batch of pairs, from the moment that its work is put into a stream until the results are
// there. Used by one thread.
class DevicePairs {
   public:
    // The pair of two arrays, if it can be in a batch: both are dense, native and aligned, on one
    // device, of one type and size, and not empty, and no value lies on a circle.
    static std::optional<DevicePair> pair_of(const DeviceArray& a, const DeviceArray& b,
                                             const DifferenceRule& rule);
    // Whether a pair can be, of which that much is known: it is dense, native, on one device, and
    // of one type and size.
    static bool takes(const DevicePair& pair);

    // Returns as soon as the work is in a stream of the device, behind the streams of the arrays
    // and behind `before`, a batch on the same device or null. The arrays must stay until wait() or
    // the end of the batch. Errors: the device's; `unsupported` where it has no library.
    static Result<std::unique_ptr<DevicePairs>> start(int device, std::span<const DevicePair> pairs,
                                                      const DevicePairs* before = nullptr);

    // Later work of the arrays' streams waits for the batch: it may change the arrays.
    Result<> lead();
    // Whether wait() need not wait.
    [[nodiscard]] Result<bool> is_done() const { return end_.done(); }

    // Once, before what follows.
    Result<> wait();
    [[nodiscard]] const DevicePairResult& of(std::size_t pair) const { return results_[place_[pair]]; }
    [[nodiscard]] double seconds() const { return seconds_; }  // that the device took

   private:
    // Pairs of one type and rule.
    struct Group {
        DeviceDifference what;
        const DifferenceRule* rule;  // one of the pairs'
        std::vector<DevicePart> parts;
        std::size_t device_bytes = 0;  // of scratch
        std::size_t host_bytes = 0;
    };
    DevicePairs() = default;
    void divide(std::span<const DevicePair> pairs);
    Result<> follow(std::span<const DevicePair> pairs);
    Result<> launch(const DevicePairs* before);

    DeviceWorkspaces::Lease space_;
    DeviceEvent begin_, compared_, end_;  // compared_: its kernels ended
    std::vector<Group> groups_;
    std::vector<std::size_t> place_;      // of each pair's result
    std::vector<StreamHandle> followed_;  // of the arrays
    const DevicePairResult* results_ = nullptr;
    double seconds_ = 0;
};

}  // namespace twinrun
