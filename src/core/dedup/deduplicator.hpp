// Finds what a step adds to a record: which chunks are unchanged, which are copies, and the bytes
// of all others.
//
// Two implementations behind one interface, for images in host memory and on a device. Both give
// the same runs and the same payload for the same inputs and options: of equal chunks the one with
// the smallest Location is the source, whatever the number of threads.
//
// An image is worked through in slices of consecutive chunks. In each: hash every chunk and compare
// with the hash at the same place of the base; look the others up in the table of all hashes seen,
// and enter those that are new; label; join; gather the payload. Source: Tan et al., ICPP'23,
// section 2, for all but the method `runs`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "difference/difference.hpp"
#include "element/dtype.hpp"
#include "record/delta.hpp"
#include "record/delta_writer.hpp"

namespace twinrun {

struct DedupOptions {
    RecordMethod method = RecordMethod::runs;
    std::uint32_t chunk_bytes = 256;
    // Limit of the table of hashes (about 42 bytes an entry while it grows). When it is full, the
    // entries that were of no use for longest leave. 0: no limit.
    std::uint64_t table_bytes = 0;
    // Chunks of a slice: a power of two. 0: what suits the place.
    std::uint64_t slice_chunks = 0;
    int threads = 1;  // of the host
    // Steps that follow one that was nearly all new are taken whole, without a look at their
    // chunks: 1, 2, 4, … 16 of them.
    bool skip_when_all_new = false;
    // A copy of the image that restore would give: what the next three need.
    bool keep_base = false;
    // Copies and unchanged chunks are compared byte by byte with what they are taken for
    // (keep_base; and `read` for copies of earlier steps).
    bool verify = false;
    // For tests: the hash keeps only this many of its bits, so that hashes collide.
    unsigned hash_bits = 128;
    // Whether XOR with the base is of use to the sink (keep_base): it is given the base's chunks
    // and their Locations.
    bool give_base = false;
    // Payload is packed on the device, and passed as blocks of this many bytes to take_packed(). On
    // devices only, and without give_base.
    std::uint32_t pack_block_bytes = 0;
    // Bytes of a payload chunk of an earlier difference, for `verify`.
    std::function<Result<>(Location, std::span<std::byte> chunk)> read;
};

// A stretch of the image. `data` is host memory, or memory of the deduplicator's device; any
// alignment.
struct ImageSegment {
    std::string name;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    // A chunk whose items are all within this bound of what restore would give is unchanged
    // (keep_base). The chunk's size is a multiple of the item's.
    std::optional<DifferenceRule> bound;
    DType dtype = DType::u8;
    // where `data` is: for Recorder, which brings it to where deduplication takes place
    int device = kHostMemory;
};

// Where the payload goes, chunk by chunk, in order. Called by step(), never concurrently.
class PayloadSink {
   public:
    struct Chunks {
        // Whole chunks; host memory, valid until the call returns.
        std::span<const std::byte> bytes;
        // With give_base: the chunks that restore would give at the same places of the base, zeros
        // where there is none, and their Locations (kNoLocation: none).
        std::span<const std::byte> base;
        std::span<const Location> base_at;
    };
    virtual ~PayloadSink() = default;
    virtual Result<> take(const Chunks& chunks) = 0;
    // Whole blocks, except the last one of a step: DedupOptions::pack_block_bytes.
    virtual Result<> take_packed(std::span<const PackedBlock>) {
        return Error{ErrorCode::internal, "packed payload that nobody takes"};
    }
};

struct StepOutcome {
    std::uint32_t base = kNoBase;
    RecordMethod method = RecordMethod::full;  // full where skip_when_all_new stored the whole step
    std::vector<Run> runs;                     // those of Difference
    std::vector<std::uint64_t> content;        // of each segment; RecordSegment::content
    std::uint64_t chunks = 0;
    std::uint64_t changed = 0;     // chunks that are not the base's
    std::uint64_t payload = 0;     // chunks
    std::uint64_t collisions = 0;  // that verify found
};

struct DedupFacts {
    std::uint64_t entries = 0;  // of the table
    std::uint64_t table_bytes = 0;
    std::uint64_t evicted = 0;       // entries, since the beginning
    std::uint64_t memory_bytes = 0;  // all that is held between steps
};

// Not thread-safe.
class Deduplicator {
   public:
    virtual ~Deduplicator() = default;
    // ordinal: larger than any before. After an error the step counts as not taken, and all that
    // was known is forgotten: the next step stands alone. Errors: out_of_memory; those of the sink
    // and of `read`; invalid_argument (names that repeat).
    virtual Result<StepOutcome> step(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                                     PayloadSink& sink) = 0;
    // The image of an earlier difference becomes the base of the next step. where: the Location of
    // each of its chunks, in the order of its segments; may be empty without give_base. After an
    // error of this call or of the next, too, all that was known is forgotten.
    virtual Result<> rebase(std::uint32_t ordinal, std::span<const ImageSegment> segments,
                            std::span<const Location> where) = 0;
    // Payload of an earlier difference, whole chunks in host memory, from this Location on: so that
    // later chunks can be copies of it. Oldest first.
    virtual Result<> learn(Location first, std::span<const std::byte> chunks) = 0;
    virtual void forget() = 0;
    [[nodiscard]] virtual DedupFacts facts() const = 0;
    // Runs of an outcome that are not needed any more: the next step puts its own into that memory.
    // New memory costs more than runs do.
    void reuse(std::vector<Run> runs) {
        if (runs.capacity() > spare_.capacity()) spare_ = std::move(runs);
    }

   protected:
    // Memory for runs. Its size and content are those of an earlier step: to be overwritten.
    [[nodiscard]] std::vector<Run> spare_runs() { return std::exchange(spare_, {}); }

   private:
    std::vector<Run> spare_;
};

// Errors: invalid_argument: options that contradict each other; unsupported: options that are
// supported on devices only.
Result<std::unique_ptr<Deduplicator>> make_host_deduplicator(const DedupOptions& options);
// Errors: invalid_argument: options that contradict each other; unsupported: the device cannot be
// used; `verify` and `read`; pack_block_bytes where there is no library for it. step() refuses
// segments with a bound.
Result<std::unique_ptr<Deduplicator>> make_device_deduplicator(int device, const DedupOptions& options);

}  // namespace twinrun
