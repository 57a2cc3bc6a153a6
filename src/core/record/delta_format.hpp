// The bytes of a difference's file but for its payload (spec/record.md): the header, and the index
// behind the payload's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "record/compression.hpp"
#include "record/delta.hpp"

namespace twinrun {

inline constexpr std::size_t kDifferenceHeaderBytes = 128;
// 1 is without links and folders, 2 without groups of entries and planes, 3 without signs that are
// last and sparse blocks
inline constexpr std::uint32_t kDifferenceVersion = 4;
// Of a block of payload, unpacked.
inline constexpr std::uint32_t kLargestPayloadBlock = 16U << 20;

// Times its packed size: an index that says to be larger is no honest one.
inline constexpr std::uint64_t kMostUnpacked = 4096;

// Whether the file of this name, which is not a link, begins as differences do: then twinrun wrote
// it.
bool is_difference_file(const std::string& path);

std::vector<std::byte> encode_difference_tail(const Difference& difference);
// packed: the tail is a Zstandard frame of tail_unpacked bytes.
std::vector<std::byte> encode_difference_header(const Difference& difference, std::span<const std::byte> tail,
                                                std::uint64_t tail_offset, std::uint64_t tail_unpacked,
                                                bool packed);
// The last field of a header, which has kDifferenceHeaderBytes or more.
std::uint64_t checksum_in(std::span<const std::byte> header);
struct DifferenceHeader {
    std::uint32_t version = kDifferenceVersion;
    RecordMethod method = RecordMethod::runs;
    std::uint32_t chunk_bytes = 0;
    bool packed = false;
    bool partial = false;
    std::uint32_t ordinal = 0;
    std::uint32_t base = kNoBase;
    std::uint64_t tail_offset = 0;
    std::uint64_t tail_bytes = 0;
    std::uint64_t tail_unpacked = 0;
    std::uint64_t tail_checksum = 0;
    std::uint64_t payload_chunks = 0;
    std::uint32_t block_chunks = 0;
};
Result<DifferenceHeader> decode_difference_header(std::span<const std::byte> bytes, std::uint64_t file_bytes);
// tail: as stored. Checks everything against everything. compressor: to reuse its memory.
Result<Difference> decode_difference_tail(const DifferenceHeader& header, std::span<const std::byte> tail,
                                          Compressor& compressor);
inline Result<Difference> decode_difference_tail(const DifferenceHeader& header,
                                                 std::span<const std::byte> tail) {
    Compressor compressor;
    return decode_difference_tail(header, tail, compressor);
}

}  // namespace twinrun
