// Bytes in the order in which a program lists them: what a datatype of MPI, a view of a file or a
// block of an array selects. No MPI.
//
// Two streams of equal length, one of places in the file and one of places in memory, say which
// byte goes where: match() cuts both into parts at constant distances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"
#include "base/result.hpp"

namespace twinrun {
inline namespace aggregate_plan {

// `count` pieces of `width` bytes, each `stride` bytes behind the one before. Strides may be 0 or
// negative. Never empty.
struct Run {
    std::int64_t offset = 0;
    std::uint64_t width = 0;
    std::uint64_t count = 1;
    std::int64_t stride = 0;  // equals width if count is 1

    [[nodiscard]] std::uint64_t bytes() const { return width * count; }
    [[nodiscard]] std::int64_t at(std::uint64_t item) const {
        return offset + static_cast<std::int64_t>(item) * stride;
    }
    bool operator==(const Run&) const = default;
};

// The most runs of a stream: 128 MiB of them.
inline constexpr std::size_t kMostRuns = std::size_t{1} << 22;

class Stream {
   public:
    [[nodiscard]] std::span<const Run> runs() const { return runs_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] bool empty() const { return runs_.empty(); }

    // Adds bytes at the end; joins them with the last run where they continue it. Runs without
    // bytes are ignored.
    // Errors: more than kMostRuns runs; places beyond +-2^62.
    Result<> append(Run run);
    Result<> append(const Stream& other, std::int64_t shift);
    bool operator==(const Stream&) const = default;

   private:
    std::vector<Run> runs_;
    std::uint64_t bytes_ = 0;
};

// The stream `times` times, `stride` bytes from one to the next.
Result<Stream> repeated(const Stream& stream, std::uint64_t times, std::int64_t stride);
// The bytes number `begin` to `end` - 1 of the stream.
Result<Stream> slice(const Stream& stream, std::uint64_t begin, std::uint64_t end);
// The bytes number `begin` to `end` - 1 of the stream that repeats `tile` for ever, `extent` bytes
// from one to the next, from `shift` on. tile must have bytes.
Result<Stream> slice_of_tiles(const Stream& tile, std::int64_t extent, std::int64_t shift,
                              std::uint64_t begin, std::uint64_t end);
// How many bytes at the front of the stream lie before `end`. The stream must ascend.
[[nodiscard]] std::uint64_t bytes_before(const Stream& stream, std::int64_t end);

// Adds the parts of a variable whose bytes lie at `file` in the file and at `memory` in memory.
// Both streams have equal lengths.
// Errors: invalid_argument: places in the file that are negative or do not ascend; unsupported:
// more than kMostRuns parts.
Result<> match(const Stream& file, const Stream& memory, std::uint32_t variable,
               std::vector<ArrayPart>& parts);

// A hyper-rectangle of a global array, and its place in this rank's array.
enum class ArrayOrder : std::uint8_t { c, fortran };
struct Block {
    std::uint64_t item_bytes = 0;
    ArrayOrder order = ArrayOrder::c;
    std::uint64_t file_offset = 0;  // of the global array
    std::span<const std::uint64_t> global_shape;
    std::span<const std::uint64_t> start;  // of the block in the global array
    std::span<const std::uint64_t> shape;
    std::span<const std::uint64_t> local_shape;  // of the array in memory, with its halo
    std::span<const std::uint64_t> local_start;  // of the block in it
};
inline constexpr std::size_t kMostDimensions = 32;

// Adds the parts of a block. number: of its variable, also for messages. All spans have the same
// length.
// Errors: invalid_argument: items of no bytes, a block that leaves the global array or the local
// one, an array too large for 2^62 bytes; unsupported: more than kMostRuns parts.
Result<> block_parts(const Block& block, std::uint32_t number, std::vector<ArrayPart>& parts);

}  // namespace aggregate_plan
}  // namespace twinrun
