// An array of the caller's that lives on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "element/dtype.hpp"
#include "element/element_device.hpp"
#include "source/source.hpp"

namespace twinrun {

struct DeviceArray {
    int device = 0;
    const void* data = nullptr;
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;
    std::vector<std::int64_t> strides;  // bytes, one a dimension; empty: dense, row-major
    bool swap = false;                  // the byte order is not this machine's
    // The stream whose earlier work makes the data. Ours waits for it on the device; work that the
    // caller puts into it after our call returned may change the data.
    StreamHandle stream = nullptr;
    // Whether the data changes in the order of `stream` only. False: at any time after our call
    // returned.
    bool ordered = false;
    // Keeps the memory. Work that goes on after our call returned holds it until it is done; null:
    // the caller keeps the memory.
    std::shared_ptr<const void> owner;

    [[nodiscard]] std::uint64_t items() const;
    [[nodiscard]] bool dense() const;  // native, row-major without gaps
};

inline constexpr std::uint64_t kMostArrayBytes = 1ULL << 58;

// Error: strides that do not fit the shape, data that is not aligned to its scalars, or too many
// dimensions.
Result<> check_array(const DeviceArray& array);

// How items [first, first + count) become dense and native at `to`. The array passed check_array().
DeviceGather gather_of(const DeviceArray& array, std::uint64_t first, std::uint64_t count, void* to);

// The array's items, dense and native, brought to the host in order in parts of `part_bytes` (a
// multiple of the item's size): while one part is taken, the next is on its way. Waits for the
// array's stream on the device only.
using TakePart = std::function<Result<>(std::uint64_t first, std::span<const std::byte> bytes)>;
Result<> copy_out(const DeviceArray& array, std::size_t part_bytes, const TakePart& take);

// Elements of a device array. To everything that works on the host it looks like decoded storage:
// what is asked for is copied to the host. Work on devices takes device_array() instead.
class DeviceSource final : public ElementSource {
   public:
    explicit DeviceSource(DeviceArray array);
    [[nodiscard]] const DeviceArray* device_array() const override { return &array_; }
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t count) const override;
    Result<> plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                  std::vector<ReadRequest>& requests) override;
    ElementView view(std::uint64_t first, std::uint64_t count, std::byte* buffer) override;

    // Error: check_array's.
    Result<> prepare() override;

   private:
    DeviceArray array_;
};

}  // namespace twinrun
