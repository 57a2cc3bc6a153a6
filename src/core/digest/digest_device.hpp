// Digests, residues and sketch checks on a device: the table "digest" of the device library
// (digest_cuda.cu). Results equal those of the portable kernels bit for bit.
//
// All pointers but those said to be the host's are device memory. All work is put into `stream`;
// nothing blocks and nothing is allocated. One call takes any number of fields and makes no launch
// a field.
#pragma once

#include "device/device.hpp"
#include "digest/digest.hpp"
#include "digest/field61.hpp"

namespace twinrun {

// One field: dense native scalars.
struct DeviceDigestItem {
    const void* data = nullptr;  // aligned to the scalar's size; 16-byte alignment is fastest
    std::uint64_t scalars = 0;
    DType scalar = DType::f32;  // not complex
    DigestSettings settings;
    // Linear: coarse digests, a word a chunk (the tree's leaves). Published: both halves, two words
    // a chunk.
    std::uint64_t* leaves = nullptr;
    std::uint64_t* fine = nullptr;    // linear: a word a chunk; may be null
    std::byte* residues = nullptr;    // as Digester::chunks; may be null
    ElementCounts* counts = nullptr;  // added to: the caller clears them; may be null
    // Bits of the largest finite |x| of a sample (FieldMetadata::largest_sampled), raised; may be
    // null.
    std::uint64_t* largest = nullptr;
};

// The residues and fine digests of two runs for consecutive chunks of one field, the first of them
// at a chunk's beginning.
struct DeviceSketchItem {
    const std::uint64_t* fine_a = nullptr;
    const std::uint64_t* fine_b = nullptr;
    const std::byte* residues_a = nullptr;  // 16-byte aligned
    const std::byte* residues_b = nullptr;
    std::uint64_t scalars = 0;  // of all these chunks: the last may be short
    DType scalar = DType::f32;
    std::uint32_t chunk_bytes = kSmallestChunk;
    unsigned residue_bits = 4;
    std::int32_t widest = 0;
    // The chunks to look at, as numbers among these; null: all of them.
    const std::uint32_t* chunks = nullptr;
    std::uint64_t count = 0;
    std::uint8_t* proven = nullptr;   // of each chunk looked at: 1 or 0
    std::uint64_t* counts = nullptr;  // 8: scalars of proven chunks by |c|, added to
};

// A root as its parts' sums give it: sums of their low halves and of their high halves, of 32 bits.
// While it is made, the number of parts that were added is above each.
struct DeviceRootSums {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
};
[[nodiscard]] constexpr std::uint64_t root_of(const DeviceRootSums& sums) {
    return reduce61_wide((static_cast<unsigned __int128>(sums.high) << 32) + sums.low);
}

// Where words lie that are no dense stretch: in runs, by the dimensions around them, outermost
// first. Strides are bytes, and may be negative or 0.
// - dense runs: bytes and strides are multiples of kRootRunUnit, as is the address of the data
// - spread ones, as in a transposed matrix: strides are multiples of the word
inline constexpr std::uint32_t kRootRunUnit = 16;
inline constexpr int kMostRunDimensions = 4;
struct DeviceRuns {
    std::uint32_t run_bytes = 0;  // of its words alone; 0: a dense stretch
    bool spread = false;
    std::int64_t step = 0;  // of spread runs: from one word to the next
    int dimensions = 0;
    std::uint32_t shape[kMostRunDimensions] = {};  // not 0
    std::int64_t strides[kMostRunDimensions] = {};
};

// Words of bits (sketch/words.hpp) whose root alone is asked for. Their chunks have
// kRootChunkBytes.
struct DeviceRootItem {
    const void* data = nullptr;  // aligned to the word; 16-byte alignment is fastest
    std::uint64_t words = 0;     // not 0; at most kMostRootBytes, in runs kMostRunsBytes
    DType word = DType::i32;     // i8, i16 or i32
    // On the device; of this item alone until its root is there. Zeros before and after.
    DeviceRootSums* sums = nullptr;
    // On the device, or page-locked on the host. Each half is written once, in any order, when all
    // else that it needs is done.
    DeviceRootSums* root = nullptr;
    DeviceRuns runs;
};
inline constexpr std::size_t kRootChunkBytes = 1 << 16;
inline constexpr std::uint64_t kMostRootBytes = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMostRunsBytes = std::uint64_t{1} << 31;

struct DeviceDigestKernels {
    // Scratch that digest() needs for these items: on the device, and page-locked on the host.
    void (*scratch)(const DeviceDigestItem* items, std::size_t n, std::size_t* device_bytes,
                    std::size_t* host_bytes);
    // Both scratch areas belong to the call until its work in `stream` is done. Items of 0 scalars
    // are left out.
    DeviceStatus (*digest)(int device, const DeviceDigestItem* items, std::size_t n, void* scratch,
                           void* host_scratch, StreamHandle stream);
    DeviceStatus (*sketch)(int device, const DeviceSketchItem& item, StreamHandle stream);
    // One launch for up to 96 dense items of one type, or 8 others, without scratch.
    DeviceStatus (*roots)(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream);
};
[[nodiscard]] inline const DeviceDigestKernels* device_digest_kernels() {
    return static_cast<const DeviceDigestKernels*>(device_table("digest"));
}

}  // namespace twinrun
