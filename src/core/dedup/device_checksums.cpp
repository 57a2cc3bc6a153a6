#include "dedup/device_checksums.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/checksum.hpp"
#include "dedup/dedup_device.hpp"
#include "device/device_workspace.hpp"
#include "element/element_device.hpp"

namespace twinrun {

Result<DeviceChecksums> device_checksums(int device, std::span<const std::byte> pages,
                                         std::uint32_t page_bytes,
                                         std::span<const std::span<const std::byte>> others) try {
    const DeviceRuntime* const runtime = device_runtime();
    const DeviceDedupKernels* const dedup = device_dedup_kernels();
    const DeviceElementKernels* const elements = device_element_kernels();
    if (runtime == nullptr || dedup == nullptr || elements == nullptr)
        return Error{ErrorCode::internal, "the device library lacks a table"};
    DeviceChecksums sums;
    sums.pages.resize(pages.size() / page_bytes);
    sums.others.reserve(others.size());

    std::size_t end = device_aligned(sums.pages.size() * sizeof(ChunkHash));
    std::vector<DeviceCopy> copies(others.size());
    std::vector<std::size_t> places(others.size());
    for (std::size_t i = 0; i < others.size(); ++i) {
        places[i] = end;
        end += device_aligned(others[i].size());
    }
    if (end == 0) return sums;
    TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device));
    TWR_CHECK(workspace->reserve_device(end));
    TWR_CHECK(workspace->reserve_host(end));
    std::byte* const there = workspace->device_memory();
    std::byte* const here = workspace->host_memory();
    const StreamHandle stream = workspace->stream().get();
    // The low half of XXH3-128 of more than 240 bytes is XXH3-64 of them (xxHash,
    // doc/xxhash_spec.md).
    if (!sums.pages.empty()) {
        TWR_CHECK(to_result(dedup->hash_chunks(device, pages.data(), sums.pages.size(), page_bytes,
                                               reinterpret_cast<ChunkHash*>(there), stream)));
    }
    for (std::size_t i = 0; i < others.size(); ++i)
        copies[i] = {others[i].data(), there + places[i], others[i].size()};
    if (!copies.empty())
        TWR_CHECK(to_result(elements->copy_all(device, copies.data(), copies.size(), stream)));
    TWR_CHECK(to_result(runtime->copy(device, here, there, end, stream)));
    TWR_CHECK(workspace->stream().wait_soon());
    const std::span hashes(reinterpret_cast<const ChunkHash*>(here), sums.pages.size());
    std::transform(hashes.begin(), hashes.end(), sums.pages.begin(),
                   [](const ChunkHash& h) { return h.low; });
    for (std::size_t i = 0; i < others.size(); ++i)
        sums.others.push_back(xxh3({here + places[i], others[i].size()}));
    return sums;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for checksums of device memory"};
}

}  // namespace twinrun
