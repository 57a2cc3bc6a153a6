// Packing, by the library that the host has.
#include <algorithm>
#include <cstring>

#include "record/compression.hpp"
#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

DeviceStatus pack_library(const char** name) {
    constexpr int device = 0;
    FAKE_ENTER(kPackLibrary, device);
    if (!codec_available(PayloadCodec::zstd))
        return failure(ErrorCode::unsupported, device, "this build lacks zstd");
    *name = "zstd";
    return {};
}
DeviceStatus pack_scratch(int device, std::uint32_t block_bytes, std::uint64_t count, std::size_t* bytes,
                          StreamHandle) {
    FAKE_ENTER(kPackScratch, device);
    *bytes = count * block_bytes / 8 + kScratch;
    return {};
}
void pack_now(int device, const DevicePack& what) {
    Checker checker(device, "pack");
    const std::uint64_t count = what.blocks();
    checker.memory(what.from, what.bytes, 256, "what is packed");
    checker.require(what.scratch_bytes >= count * what.block_bytes / 8 + kScratch, "scratch memory",
                    "is too small");
    checker.memory(what.scratch, what.scratch_bytes, 256, "scratch memory");
    checker.memory(what.to, (what.bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment,
                   kPackedAlignment, "where blocks go");
    checker.memory(what.sizes, DevicePack::sizes_bytes(count), 8, "their sizes");
    if (!checker.ok()) return;
    std::memset(what.scratch, 0xEE, what.scratch_bytes);
    Compressor compressor;
    std::uint64_t end = 0;
    for (std::uint64_t b = 0; b < count; ++b) {
        const std::uint64_t begin = b * what.block_bytes;
        const std::uint64_t own = std::min<std::uint64_t>(what.block_bytes, what.bytes - begin);
        std::byte* const to = what.to + end;
        std::size_t size = compressor.pack({what.from + begin, own}, {to, own - 1}, 1);
        what.sizes[b] =
            static_cast<std::uint32_t>(size == 0 ? own : size) | (size == 0 ? kDeviceStoredBlock : 0);
        if (size == 0) {
            std::memcpy(to, what.from + begin, own);
            size = own;
        }
        end += (size + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    }
    std::memcpy(reinterpret_cast<std::byte*>(what.sizes) + DevicePack::end_at(count), &end, sizeof end);
}
DeviceStatus pack(int device, const DevicePack& what, StreamHandle stream) {
    FAKE_ENTER(kPack, device);
    return push(device, stream, [=] { pack_now(device, what); });
}

}  // namespace

const DevicePackKernels kPacking = {.library = pack_library, .scratch = pack_scratch, .pack = pack};

}  // namespace twinrun::fake
