// The difference that one step adds to a record: runs of chunks and the places of their bytes
// (spec/record.md).
//
// A step's image is the concatenation of its segments, each cut into chunks of a fixed size, the
// last one of a segment filled up with zeros. Every chunk's bytes lie in the payload of exactly one
// difference, at a Location. A difference names the Locations of some chunks of its image, as runs;
// all others are those of the chunk with the same number in the segment of the same name of its
// base, an earlier difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace twinrun {

// How chunks that are there already are found, and how entries are kept (spec/record.md,
// "Entries").
enum class RecordMethod : std::uint8_t {
    full = 0,   // no chunk is looked for
    basic = 1,  // unchanged in place: a bit a chunk
    list = 2,   // unchanged, or a copy of any earlier chunk: an entry a chunk
    tree = 3,   // copies joined along a binary tree: Tan et al., ICPP'23, Algorithm 1
    runs = 4,   // maximal runs of copies whose sources are consecutive, or all the same
};
[[nodiscard]] std::string_view method_name(RecordMethod method);
[[nodiscard]] std::optional<RecordMethod> method_of(std::string_view name);

inline constexpr std::uint32_t kSmallestRecordChunk = 32;
inline constexpr std::uint32_t kLargestRecordChunk = 65536;
[[nodiscard]] bool record_chunk_ok(std::uint64_t bytes);  // a power of two between these

// A chunk of payload: the ordinal of a difference (24 bits) and the chunk's number in its payload
// (40 bits). Locations order by age.
using Location = std::uint64_t;
inline constexpr Location kNoLocation = std::numeric_limits<Location>::max();
inline constexpr unsigned kLocationChunkBits = 40;
inline constexpr std::uint64_t kMostPayloadChunks = std::uint64_t{1} << 39;  // of one difference
inline constexpr std::uint32_t kMostOrdinals = (1U << 24) - 1;
[[nodiscard]] constexpr Location location(std::uint32_t ordinal, std::uint64_t chunk) {
    return static_cast<Location>(ordinal) << kLocationChunkBits | chunk;
}
[[nodiscard]] constexpr std::uint32_t ordinal_of(Location at) {
    return static_cast<std::uint32_t>(at >> kLocationChunkBits);
}
[[nodiscard]] constexpr std::uint64_t chunk_of(Location at) {
    return at & ((std::uint64_t{1} << kLocationChunkBits) - 1);
}

// Chunks [begin, begin + count) of an image: their bytes lie at source, source + 1, …, or all at
// source (repeat).
struct Run {
    Run() = default;
    Run(std::uint64_t from, std::uint64_t chunks, Location of, bool all_one)
        : begin(from), source(of), count(chunks & kMostCount), repeat(all_one) {}

    static constexpr std::uint64_t kMostCount = ~std::uint64_t{0} >> 1;

    std::uint64_t begin = 0;
    Location source = 0;
    // In one word: a step may have millions of runs, which are written and read.
    std::uint64_t count : 63 = 0;
    bool repeat : 1 = false;
    bool operator==(const Run&) const = default;
};
static_assert(sizeof(Run) == 24);

// A named stretch of bytes of one of the files that a step had.
struct RecordSegment {
    std::string name;          // unique in a step
    std::uint32_t file = 0;    // number in RecordDirectory::files
    std::uint64_t offset = 0;  // in that file
    std::uint64_t bytes = 0;
    std::uint64_t content = 0;  // checksum of the segment's chunks: chunk_hash.hpp, content_term
    bool operator==(const RecordSegment&) const = default;
};
enum class RecordFileKind : std::uint8_t { file = 0, link = 1, folder = 2 };
struct RecordFile {
    std::string name;         // a relative path that stays within its folder: bytes
    std::uint64_t bytes = 0;  // what no segment covers is zero; of files only
    RecordFileKind kind = RecordFileKind::file;
    std::string to;  // of a link: its text, which may lead anywhere
    bool operator==(const RecordFile&) const = default;
};
// Segments in the order of the image; those of one file do not overlap.
struct RecordDirectory {
    std::vector<RecordFile> files;
    std::vector<RecordSegment> segments;
    bool operator==(const RecordDirectory&) const = default;
    // Errors: what the comments above forbid; sizes that overflow; more than kMostPayloadChunks
    // chunks.
    [[nodiscard]] Result<> check(std::uint32_t chunk_bytes) const;
    // First chunk of each segment, and the end.
    [[nodiscard]] std::vector<std::uint64_t> first_chunks(std::uint32_t chunk_bytes) const;
    [[nodiscard]] bool only_files() const;  // no links, no folders
};

inline constexpr std::size_t kLongestRecordName = 4096;  // of files and segments

inline constexpr std::uint32_t kNoBase = std::numeric_limits<std::uint32_t>::max();

enum class PayloadCodec : std::uint8_t { stored = 0, zstd = 1 };

// What is packed of a block's items.
enum class BlockForm : std::uint8_t {
    planes,     // one byte of each in turn (planes.hpp)
    sign_last,  // the same, with the top bit of each behind its lowest one
    sparse,     // those that are not zero (sparse.hpp)
};

// A part of the payload that is checked and unpacked as one.
struct PayloadBlock {
    std::uint64_t offset = 0;  // in the file
    std::uint32_t bytes = 0;   // there
    PayloadCodec codec = PayloadCodec::stored;
    // Of packed blocks: bytes of an item, 2, 4 or 8. 1: they are packed as they are.
    std::uint8_t width = 1;
    bool xored = false;                  // with the chunks that `bases` names
    std::uint64_t checksum = 0;          // XXH3-64 of the bytes in the file
    BlockForm form = BlockForm::planes;  // with a width of more than 1
};

// All of a difference but its payload's bytes.
struct Difference {
    RecordMethod method = RecordMethod::runs;
    std::uint32_t chunk_bytes = 256;
    std::uint32_t ordinal = 0;
    std::uint32_t base = kNoBase;  // ordinal; none: the runs cover the image
    RecordDirectory directory;
    std::vector<Run> runs;  // ascending, disjoint
    std::uint64_t payload_chunks = 0;
    std::uint32_t block_chunks = 1;  // of every block of the payload but the last
    std::vector<PayloadBlock> blocks;
    // Of xored blocks: begin counts payload chunks; chunks that no run covers were taken with
    // zeros.
    std::vector<Run> bases;
    // Payload chunks that are in this file: (first, count), ascending, of `owner`s. Empty: all of
    // its own. Compaction leaves some of several differences together in one file.
    struct Kept {
        std::uint32_t ordinal = 0;
        std::uint64_t first = 0;
        std::uint64_t count = 0;
        bool operator==(const Kept&) const = default;
    };
    std::vector<Kept> kept;
    [[nodiscard]] bool partial() const { return !kept.empty(); }

    [[nodiscard]] std::uint64_t chunks() const;  // of the image
    [[nodiscard]] std::uint64_t image_bytes() const;
};

}  // namespace twinrun
