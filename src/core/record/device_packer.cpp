#include "record/device_packer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kSmallestBatch = std::uint64_t{16} << 20;

}  // namespace

Result<std::unique_ptr<DevicePacker>> DevicePacker::create(int device, std::uint32_t block_bytes,
                                                           std::uint64_t batch_bytes) {
    const DevicePackKernels* kernels = device_pack_kernels();
    if (kernels == nullptr) return Error{ErrorCode::unsupported, "the library for devices has no packing"};
    const char* name = nullptr;
    TWR_CHECK(to_result(kernels->library(&name)));
    return std::unique_ptr<DevicePacker>(new DevicePacker(device, block_bytes, batch_bytes, *kernels));
}

// Memory for a batch, smaller where there is little.
Result<std::byte*> DevicePacker::reserve(std::uint64_t expected) {
    const std::uint64_t least =
        std::min(batch_bytes_, std::bit_ceil(std::max(expected, kSmallestBatch / 16)));
    if (capacity_ != 0 && (pending_ != 0 || capacity_ >= least)) return memory_.data() + pending_;
    const auto take = [&](std::uint64_t bytes) -> Result<> {
        const std::uint64_t blocks = bytes / block_bytes_;
        std::size_t scratch = 0;
        TWR_CHECK(to_result(kernels_.scratch(device_, block_bytes_, blocks, &scratch, nullptr)));
        TWR_CHECK(memory_.reserve(device_, bytes));
        TWR_CHECK(scratch_.reserve(device_, scratch));
        return packed_.reserve(device_, bytes + DevicePack::sizes_bytes(blocks));
    };
    for (std::uint64_t bytes = std::max<std::uint64_t>(least, block_bytes_);; bytes /= 2) {
        bytes = round_up(bytes, block_bytes_);
        auto taken = take(bytes);
        if (taken) {
            capacity_ = bytes;
            return memory_.data();
        }
        release();
        if (taken.error().code != ErrorCode::out_of_memory || bytes <= kSmallestBatch)
            return std::move(taken).error();
    }
}

Result<> DevicePacker::pack(bool all, std::uint32_t chunk_bytes, DeviceStream& stream, const Take& take) {
    const std::uint64_t bytes = all ? pending_ : pending_ / block_bytes_ * block_bytes_;
    if (bytes == 0) return success();
    DevicePack what;
    what.from = memory_.data();
    what.bytes = bytes;
    what.block_bytes = block_bytes_;
    what.scratch = scratch_.data();
    what.scratch_bytes = scratch_.bytes();
    what.to = packed_.data();
    what.sizes = packed_.as<std::uint32_t>(capacity_);
    const DeviceRuntime& runtime = *device_runtime();
    TWR_CHECK(to_result(kernels_.pack(device_, what, stream.get())));
    const std::uint64_t blocks = what.blocks();
    const std::size_t sizes_bytes = DevicePack::sizes_bytes(blocks);
    TWR_CHECK(host_.reserve(kHostMemory, sizes_bytes));
    TWR_CHECK(to_result(runtime.copy(device_, host_.data(), what.sizes, sizes_bytes, stream.get())));
    // The rest of a block begins the next batch.
    const std::uint64_t rest = pending_ - bytes;
    if (rest != 0)
        TWR_CHECK(
            to_result(runtime.copy(device_, memory_.data(), memory_.data() + bytes, rest, stream.get())));
    TWR_CHECK(stream.wait());
    pending_ = rest;

    std::vector<std::uint32_t> sizes(blocks);
    std::memcpy(sizes.data(), host_.data(), blocks * sizeof(std::uint32_t));
    std::uint64_t end = 0;
    std::memcpy(&end, host_.data() + DevicePack::end_at(blocks), sizeof end);
    if (end > capacity_) return Error{ErrorCode::internal, "packed payload that is larger than it was"};
    TWR_CHECK(host_.reserve(kHostMemory, end));
    TWR_CHECK(to_result(runtime.copy(device_, host_.data(), what.to, end, stream.get())));
    TWR_CHECK(stream.wait());
    blocks_.clear();
    std::uint64_t at = 0;
    for (std::uint64_t b = 0; b < blocks; ++b) {
        const std::uint64_t own = std::min<std::uint64_t>(block_bytes_, bytes - b * block_bytes_);
        const bool stored = (sizes[b] & kDeviceStoredBlock) != 0;
        const std::uint32_t size = sizes[b] & ~kDeviceStoredBlock;
        if (at + size > end || size > own || (stored && size != own))
            return Error{ErrorCode::internal, "packed payload of a size that it cannot have"};
        blocks_.push_back({{host_.data() + at, size}, static_cast<std::uint32_t>(own / chunk_bytes), stored});
        at += round_up(size, kPackedAlignment);
    }
    return take(blocks_);
}

void DevicePacker::release() {
    for (DeviceMemory* memory : {&memory_, &scratch_, &packed_, &host_})
        memory->clear();
    capacity_ = pending_ = 0;
}

std::uint64_t DevicePacker::memory_bytes() const {
    std::uint64_t bytes = 0;
    for (const DeviceMemory* memory : {&memory_, &scratch_, &packed_, &host_})
        bytes += memory->bytes();
    return bytes;
}

}  // namespace twinrun
