// De-duplication and restore on a device: the table "dedup" of the device library (dedup_cuda.cu).
// Results equal those of the host's code bit for bit. Conventions as in digest/digest_device.hpp:
// functions neither throw, print, block nor allocate; all pointers are device memory where nothing
// else is said; all work is put into `stream`.
//
// An image is worked through in slices of consecutive chunks. Within a slice chunks have numbers of
// 32 bits. They count from where the slice begins, or from where an earlier one did. All other
// numbers of chunks have 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dedup/chunk_hash.hpp"
#include "device/device.hpp"
#include "record/delta.hpp"

namespace twinrun {

inline constexpr std::uint64_t kMostSliceChunks = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMostDeviceSlots = std::uint64_t{1} << 32;

// A stretch of one segment in one slice. Those of a slice ascend, and cover it without gaps.
struct DeviceDedupPart {
    const std::byte* data = nullptr;  // of its first chunk; any alignment, 16 bytes is fastest
    // Bytes of all its chunks, from `data` on; the last chunk may be short.
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;   // of its first chunk in its segment
    std::uint32_t segment = 0;  // which of the sums of content is its own
    std::uint32_t first = 0;    // number of its first chunk, as in its slice
    std::uint32_t chunks = 0;   // more than 0
    // Number of these chunks, from the first on, whose hashes are those of the base.
    std::uint32_t with_base = 0;
    std::uint32_t group = 0;  // number of its first group
    std::uint32_t unused = 0;
};
// Chunks are looked at in groups, none of which spans two parts. A group has a whole number of
// words of 32 marks: chunk i of a part is mark i of the part's words.
[[nodiscard]] constexpr std::uint32_t dedup_group_chunks(std::uint32_t chunk_bytes) {
    return chunk_bytes == 32 ? 128 : chunk_bytes == 64 ? 64 : 32;
}

struct DeviceDedupSlice {
    std::uint32_t chunk_bytes = 0;
    std::uint32_t first = 0;  // number of its first chunk: slices may share their numbers
    std::uint32_t chunks = 0;
    const DeviceDedupPart* parts = nullptr;  // its own
    std::uint32_t part_count = 0;
    std::uint32_t first_group = 0;
    std::uint32_t groups = 0;          // of all its parts
    ChunkHash* hashes = nullptr;       // of chunks from number 0 on: the base's, which become its own
    std::uint64_t* content = nullptr;  // of each segment, added to
    ChunkHash mask;                    // bits of the hash that count
    std::uint32_t* words = nullptr;    // marks of changed chunks, from group 0 on
    std::uint32_t* changed = nullptr;  // how many of its chunks changed: added to; null: not counted
    void* scratch = nullptr;           // of list_changed: scan_scratch(words_of())

    [[nodiscard]] std::uint32_t words_each() const { return dedup_group_chunks(chunk_bytes) / 32; }
    [[nodiscard]] std::uint32_t first_word() const { return first_group * words_each(); }
    [[nodiscard]] std::uint32_t words_of() const { return groups * words_each(); }
};

// A table is an array of these, a power of two of them, cleared to zero bytes. Of a slot in use no
// half of the hash is 0: a half that is 0 counts as 1.
struct alignas(32) DeviceDedupSlot {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    // The complement of its Location, so that the smallest Location has the largest value here.
    std::uint64_t not_at = 0;
    std::uint32_t used = 0;  // ordinal of the last step that it was of use to
    std::uint32_t unused = 0;
};
struct DeviceDedupTable {
    DeviceDedupSlot* slots = nullptr;
    std::uint64_t count = 0;                // a power of two
    unsigned long long* entries = nullptr;  // added to
};

// Sources while a slice is under way: a Location, with this bit for chunks that are new to the
// payload.
inline constexpr Location kDeviceFresh = std::uint64_t{1} << (kLocationChunkBits - 1);

// Changed chunks [begin, end) of a slice on their way from hashes to sources.
struct DeviceLookUp {
    DeviceDedupTable table;
    const ChunkHash* hashes = nullptr;  // of chunks from number 0 on
    const std::uint32_t* changed = nullptr;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    ChunkHash mask;
    std::uint32_t ordinal = 0;
    std::uint64_t placed = 0;           // chunks of the step's payload so far
    std::uint64_t placed_in_slice = 0;  // of them, those of this slice
    std::uint32_t* slots = nullptr;     // of each changed chunk
    Location* sources = nullptr;        // of each changed chunk
    // For each changed chunk: the number of new ones of this call before it.
    std::uint32_t* places = nullptr;
    std::uint32_t* fresh = nullptr;             // the slice's new chunks, in order
    unsigned long long* fresh_count = nullptr;  // set: new ones of this call
    void* scratch = nullptr;                    // scan_scratch(end - begin)
};

// A run of chunks of a slice.
struct DeviceRunEntry {
    std::uint32_t begin = 0;  // numbers as in the slice
    std::uint32_t last = 0;
    Location source = 0;  // with kDeviceFresh: all of the run lies there (Run::repeat)
};
// Where the joiner stands: passed from slice to slice, in device memory. Zeros at first.
struct DeviceJoinState {
    std::uint64_t chunk = 0;  // the last, of the image
    Location source = 0;      // its own, with kDeviceFresh where new
    std::uint32_t open = 0;   // there is one that may be joined
    std::uint32_t head = 0;   // its run has no other
    std::uint32_t step = 0;   // otherwise: what its source added to the one before
    std::uint32_t unused = 0;
};
struct DeviceJoin {
    const std::uint32_t* changed = nullptr;
    const Location* sources = nullptr;
    std::uint32_t count = 0;
    std::uint64_t first = 0;  // chunk of the image that has number 0
    bool copies = false;      // copies are joined too (RecordMethod::runs)
    bool alone = false;       // nothing is joined, to what comes next neither
    const DeviceJoinState* state = nullptr;
    DeviceJoinState* next = nullptr;    // set: the state of the next call; not the same memory
    DeviceRunEntry* entries = nullptr;  // room for `count`
    // Both set. continues: the first entry belongs to the last run of the slices before.
    unsigned long long* entry_count = nullptr;
    unsigned long long* continues = nullptr;
    void* scratch = nullptr;  // scan_scratch(count)
};

// The published compaction (join_tree of the host). Level by level from the root on: node i of a
// level of n nodes is n + i.
struct DeviceTreeJoin {
    DeviceDedupTable table;
    ChunkHash mask;
    std::uint32_t ordinal = 0;
    const ChunkHash* leaf_hashes = nullptr;
    std::uint32_t leaves = 0;
    std::uint64_t width = 0;  // the next power of two
    const std::uint32_t* changed = nullptr;
    const Location* sources = nullptr;
    std::uint32_t count = 0;
    std::uint8_t* labels = nullptr;   // 2 width, 16-byte aligned
    Location* at = nullptr;           // 2 width
    ChunkHash* hashes = nullptr;      // width: of nodes above leaves
    std::uint8_t* levels = nullptr;   // of each changed chunk, scratch
    DeviceJoinState* next = nullptr;  // closed
    DeviceRunEntry* entries = nullptr;
    unsigned long long* entry_count = nullptr;
    unsigned long long* continues = nullptr;
    void* scratch = nullptr;  // scan_scratch(count)
};

// Entries, then chunks of a slice, then the base's chunks at the same places with their Locations:
// into one stretch of memory.
struct DeviceConsolidate {
    std::uint32_t chunk_bytes = 0;
    const DeviceDedupPart* parts = nullptr;
    std::uint32_t part_count = 0;
    const DeviceRunEntry* entries = nullptr;
    std::uint64_t entry_count = 0;
    DeviceRunEntry* to_entries = nullptr;
    const std::uint32_t* chunks = nullptr;  // numbers as in the slice; null: from first_chunk on
    std::uint32_t first_chunk = 0;
    std::uint64_t chunk_count = 0;
    std::byte* to = nullptr;  // 16-byte aligned; short chunks are filled up with zeros
    // Those without a base become zeros, and kNoLocation. Null: not copied.
    const std::byte* base = nullptr;  // of chunks from number 0 on, 16-byte aligned
    const Location* base_at = nullptr;
    std::byte* to_base = nullptr;
    Location* to_base_at = nullptr;
};

// Hashes, base image and Locations of chunks [from, from + count) of one array to `to` of another.
struct DeviceBaseMove {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t count = 0;
    std::uint64_t before = 0;   // chunks of the moves before this one
    std::uint64_t segment = 0;  // whose content they are: numbers from 0 on
};
struct DeviceBase {
    ChunkHash* hashes = nullptr;
    std::byte* image = nullptr;  // may be null, as the next
    Location* where = nullptr;
};

// For restore: a run of one segment.
struct DeviceScatterRun {
    std::uint64_t begin = 0;   // chunk of the segment
    std::uint64_t count = 0;   // more than 0
    std::uint64_t source = 0;  // chunk of the payload
    std::uint64_t before = 0;  // chunks of all runs before this one
    std::uint64_t repeat = 0;  // 1: all of them are the chunk at source
};
struct DeviceScatter {
    std::uint32_t chunk_bytes = 0;
    const DeviceScatterRun* runs = nullptr;
    std::uint64_t run_count = 0;
    std::uint64_t chunks = 0;            // of all runs
    const std::byte* payload = nullptr;  // whole chunks, 16-byte aligned
    std::byte* to = nullptr;             // the segment; any alignment, 16 bytes is fastest
    std::uint64_t bytes = 0;             // of the segment: of its last chunk no more is written
};

struct DeviceDedupKernels {
    // Writes words of 32 bits to page-locked host memory. A copy would wait for those of payload
    // that are under way.
    DeviceStatus (*report)(int device, std::uint32_t* to, const std::uint32_t* from, std::uint32_t words,
                           StreamHandle stream);
    // Bytes of scratch memory for any call over this many items; 8-byte aligned.
    std::size_t (*scan_scratch)(std::uint64_t items);

    // Hashes of all chunks, compared with the base's: marks, hashes, content and number of those
    // that changed.
    DeviceStatus (*find_changed)(int device, const DeviceDedupSlice& slice, StreamHandle stream);
    // changed: the numbers of marked chunks, ascending; room for all. The slice may be several that
    // were looked at one by one.
    DeviceStatus (*list_changed)(int device, const DeviceDedupSlice& slice, std::uint32_t* changed,
                                 StreamHandle stream);
    // Adds the terms of all chunks to the content of their segments. Of the slice: chunk_bytes,
    // chunks, parts, groups and content alone. For restore: whether an image on the device is what
    // was recorded.
    DeviceStatus (*hash_content)(int device, const DeviceDedupSlice& slice, StreamHandle stream);
    // Hashes of whole chunks that lie densely, 16-byte aligned.
    DeviceStatus (*hash_chunks)(int device, const std::byte* chunks, std::uint64_t count,
                                std::uint32_t chunk_bytes, ChunkHash* hashes, StreamHandle stream);

    // Enters `count` hashes with Locations first, first + 1, …: as HashTable::insert and use.
    DeviceStatus (*insert)(int device, const DeviceDedupTable& table, const ChunkHash* hashes,
                           std::uint64_t count, const ChunkHash& mask, Location first, std::uint32_t ordinal,
                           StreamHandle stream);
    // Entries whose `used` has these bits above its lowest shift + 8 ones, counted by the 8 bits
    // below: 256 counts, added to.
    DeviceStatus (*count_by_use)(int device, const DeviceDedupTable& table, unsigned shift,
                                 std::uint32_t above, unsigned long long* counts, StreamHandle stream);
    // Slots in use that were used since, densely in any order; count: added to.
    DeviceStatus (*take_out)(int device, const DeviceDedupTable& table, std::uint32_t used_since,
                             DeviceDedupSlot* taken, unsigned long long* count, StreamHandle stream);
    // Their entries into a table where they are not.
    DeviceStatus (*put_in)(int device, const DeviceDedupTable& table, const DeviceDedupSlot* taken,
                           std::uint64_t count, StreamHandle stream);

    // As look_up of the host: sources of changed chunks [begin, end), and those that are new.
    DeviceStatus (*look_up)(int device, const DeviceLookUp& what, StreamHandle stream);
    // All changed chunks are new (RecordMethod::basic): their sources.
    DeviceStatus (*place_all)(int device, std::uint32_t ordinal, std::uint64_t placed, std::uint32_t count,
                              Location* sources, StreamHandle stream);
    DeviceStatus (*join)(int device, const DeviceJoin& what, StreamHandle stream);
    DeviceStatus (*join_tree)(int device, const DeviceTreeJoin& what, StreamHandle stream);
    DeviceStatus (*consolidate)(int device, const DeviceConsolidate& what, StreamHandle stream);

    // Changed chunks into the base's image, and their sources into its Locations. base: of chunks
    // from number 0 on.
    DeviceStatus (*keep_base)(int device, std::uint32_t chunk_bytes, const DeviceDedupPart* parts,
                              std::uint32_t part_count, const std::uint32_t* changed, const Location* sources,
                              std::uint32_t count, const DeviceBase& base, StreamHandle stream);
    // The state of segments that moves with them. moves: `count` of them, of `chunks` chunks
    // in all; content: added to.
    DeviceStatus (*move_base)(int device, std::uint32_t chunk_bytes, const DeviceBaseMove* moves,
                              std::uint64_t count, std::uint64_t chunks, const DeviceBase& from,
                              const DeviceBase& to, std::uint64_t* content, StreamHandle stream);

    // Payload to the places of a segment that runs name, at the speed of a copy.
    DeviceStatus (*scatter)(int device, const DeviceScatter& what, StreamHandle stream);
};
[[nodiscard]] inline const DeviceDedupKernels* device_dedup_kernels() {
    return static_cast<const DeviceDedupKernels*>(device_table("dedup"));
}

}  // namespace twinrun
