#include "source/device_array.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "device/device_workspace.hpp"

namespace twinrun {

namespace {

struct Dimension {
    std::uint64_t size = 1;
    std::int64_t stride = 0;
};

// The dimensions, outermost first, without those of one item; neighbours that lie as one are one.
std::vector<Dimension> merged(const DeviceArray& array) {
    std::vector<Dimension> all;
    auto dense = static_cast<std::int64_t>(item_bytes(array.dtype));
    for (std::size_t d = array.shape.size(); d-- > 0;) {
        const std::uint64_t size = array.shape[d];
        const std::int64_t stride = array.strides.empty() ? dense : array.strides[d];
        dense *= static_cast<std::int64_t>(size);
        if (size == 1) continue;
        if (!all.empty() && stride == all.back().stride * static_cast<std::int64_t>(all.back().size)) {
            all.back().size *= size;
        } else {
            all.push_back({size, stride});
        }
    }
    return {all.rbegin(), all.rend()};
}

std::uint32_t swap_bytes(const DeviceArray& array) {
    const std::size_t scalar = item_bytes(scalar_type(array.dtype));
    return array.swap && scalar > 1 ? static_cast<std::uint32_t>(scalar) : 0;
}

}  // namespace

std::uint64_t DeviceArray::items() const { return checked_product(shape).value_or(0); }

bool DeviceArray::dense() const {
    if (swap_bytes(*this) != 0) return false;
    if (strides.empty() || items() == 0) return true;
    const std::vector<Dimension> dimensions = merged(*this);
    return dimensions.empty() ||
           (dimensions.size() == 1 && dimensions[0].stride == static_cast<std::int64_t>(item_bytes(dtype)));
}

Result<> check_array(const DeviceArray& array) {
    if (!array.strides.empty() && array.strides.size() != array.shape.size()) {
        return Error{ErrorCode::invalid_argument,
                     "a device array with another number of strides than dimensions"};
    }
    const auto items = checked_product(array.shape);
    if (!items || *items > kMostArrayBytes / item_bytes(array.dtype)) {
        return Error{ErrorCode::invalid_argument, "a device array of an impossible shape"};
    }
    if (*items == 0) return success();
    if (array.data == nullptr) return Error{ErrorCode::invalid_argument, "a device array without data"};
    const auto scalar = static_cast<std::int64_t>(item_bytes(scalar_type(array.dtype)));
    bool misaligned = reinterpret_cast<std::uintptr_t>(array.data) % static_cast<std::uintptr_t>(scalar) != 0;
    // Dense arrays have no strides that could be wrong.
    const std::vector<Dimension> dimensions =
        array.strides.empty() ? std::vector<Dimension>() : merged(array);
    for (const Dimension& d : dimensions)
        misaligned = misaligned || d.stride % scalar != 0;
    if (misaligned) {
        return Error{ErrorCode::invalid_argument,
                     "a device array whose elements are not aligned to their size: copy it first"};
    }
    if (dimensions.size() > kMostGatherDimensions) {
        return Error{ErrorCode::unsupported, "a device array of more than " +
                                                 std::to_string(kMostGatherDimensions) +
                                                 " strided dimensions: copy it into a dense one first"};
    }
    return success();
}

DeviceGather gather_of(const DeviceArray& array, std::uint64_t first, std::uint64_t count, void* to) {
    DeviceGather gather;
    gather.from = array.data;
    gather.item_bytes = static_cast<std::uint32_t>(item_bytes(array.dtype));
    gather.swap_bytes = swap_bytes(array);
    for (const Dimension& d : merged(array)) {
        gather.shape[gather.dimensions] = d.size;
        gather.strides[gather.dimensions++] = d.stride;
    }
    gather.first = first;
    gather.count = count;
    gather.to = to;
    return gather;
}

Result<> copy_out(const DeviceArray& array, std::size_t part_bytes, const TakePart& take) {
    TWR_CHECK(check_array(array));
    const std::uint64_t items = array.items();
    if (items == 0) return success();
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    const DeviceElementKernels* elements = device_element_kernels();
    if (elements == nullptr) return Error{ErrorCode::internal, "the device library has no table of elements"};
    const std::size_t item = item_bytes(array.dtype);
    const std::uint64_t per_part = std::min<std::uint64_t>(part_bytes / item, items);
    const std::size_t half = round_up(per_part * item, 4096);
    const bool dense = array.dense();
    TWR_TRY(auto workspace, DeviceWorkspaces::copies().lease(array.device));
    if (!dense) TWR_CHECK(workspace->reserve_device(2 * half));
    TWR_CHECK(workspace->reserve_host(2 * half));
    DeviceStream& stream = workspace->stream();
    TWR_CHECK(stream.follow(array.stream));
    const std::uint64_t parts = divide_up(items, per_part);
    const auto count = [&](std::uint64_t part) { return std::min(per_part, items - part * per_part); };
    const auto begin = [&](std::uint64_t part) -> Result<> {
        const std::byte* from = static_cast<const std::byte*>(array.data) + part * per_part * item;
        if (!dense) {
            std::byte* const gathered = workspace->device_memory() + part % 2 * half;
            TWR_CHECK(to_result(elements->gather(
                array.device, gather_of(array, part * per_part, count(part), gathered), stream.get())));
            from = gathered;
        }
        TWR_CHECK(to_result(runtime->copy(array.device, workspace->host_memory() + part % 2 * half, from,
                                          count(part) * item, stream.get())));
        return workspace->mark(part % 2);
    };
    TWR_CHECK(begin(0));
    for (std::uint64_t part = 0; part < parts; ++part) {
        if (part + 1 < parts) TWR_CHECK(begin(part + 1));
        TWR_CHECK(workspace->wait_mark(part % 2));
        TWR_CHECK(take(part * per_part, {workspace->host_memory() + part % 2 * half, count(part) * item}));
    }
    return success();
}

DeviceSource::DeviceSource(DeviceArray array)
    : ElementSource(array.dtype, array.items()), array_(std::move(array)) {}

Result<> DeviceSource::prepare() { return check_array(array_); }

std::size_t DeviceSource::buffer_bytes(std::uint64_t count) const { return count * item_bytes(array_.dtype); }

Result<> DeviceSource::plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                            std::vector<ReadRequest>&) {
    if (count == 0) return success();
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    const std::size_t bytes = count * item_bytes(array_.dtype);
    const bool dense = array_.dense();
    TWR_TRY(auto workspace, DeviceWorkspaces::copies().lease(array_.device));
    if (!dense) TWR_CHECK(workspace->reserve_device(bytes));
    bool locked = false;  // then the copy can go there at once
    TWR_CHECK(to_result(runtime->page_locked(buffer, &locked)));
    if (!locked) TWR_CHECK(workspace->reserve_host(bytes));
    DeviceStream& stream = workspace->stream();
    TWR_CHECK(stream.follow(array_.stream));
    const std::byte* from = static_cast<const std::byte*>(array_.data) + first * item_bytes(array_.dtype);
    if (!dense) {
        const DeviceElementKernels* elements = device_element_kernels();
        if (elements == nullptr)
            return Error{ErrorCode::internal, "the device library has no table of elements"};
        TWR_CHECK(to_result(elements->gather(
            array_.device, gather_of(array_, first, count, workspace->device_memory()), stream.get())));
        from = workspace->device_memory();
    }
    std::byte* const to = locked ? buffer : workspace->host_memory();
    TWR_CHECK(to_result(runtime->copy(array_.device, to, from, bytes, stream.get())));
    TWR_CHECK(stream.wait());
    if (!locked) std::memcpy(buffer, to, bytes);
    return success();
}

ElementView DeviceSource::view(std::uint64_t, std::uint64_t, std::byte* buffer) {
    return dense_view(array_.dtype, buffer);
}

}  // namespace twinrun
