// The payload blocks that a read needs. Each is read, checked and unpacked once, by one of many
// threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.hpp"
#include "base/result.hpp"
#include "platform/team.hpp"
#include "record/delta_file.hpp"

namespace twinrun {

// What one thread reads with. Kept to reuse its memory.
struct ReadScratch {
    Compressor compressor;
    BlockScratch block;
    std::vector<std::byte> chunks;
    std::vector<SparsePiece> pieces;
    AlignedBytes part;  // for who calls RecordChain::read()
};

// Blocks that were read, and their bytes in the files.
struct ReadCounts {
    std::atomic<std::uint64_t> blocks{0};
    std::atomic<std::uint64_t> bytes{0};
};

// Several chunks may come to one place: at most one as it is, and the others by XOR. Not
// thread-safe.
class BlockPass {
   public:
    // to: where chunk 0 of the output lies.
    BlockPass(std::uint32_t chunk_bytes, std::byte* to, ReadCounts& counts)
        : chunk_bytes_(chunk_bytes), to_(to), counts_(counts) {}

    // The file of the parts that are added next.
    void add_file(std::shared_ptr<DifferenceFile> file) { files_.push_back(std::move(file)); }
    // Chunks [first, first + count) of a block, or with repeat its chunk `first` count times, come
    // to the output from chunk `to` on. mix: they are XORed with what is there.
    void add_part(std::size_t block, std::uint64_t first, std::uint64_t count, std::uint64_t to, bool repeat,
                  bool mix) {
        parts_.push_back({files_.size() - 1, block, first, count, to, repeat, mix});
    }
    // These chunks of the output become zeros, before others are XORed with them. Only parts with
    // mix may come to them.
    void add_zeros(std::uint64_t to, std::uint64_t count) { zeros_.push_back({to, count}); }
    [[nodiscard]] std::size_t files() const { return files_.size(); }
    [[nodiscard]] std::size_t parts() const { return parts_.size(); }

    // Once, when all parts are there. scratch: one of each thread of the team. team: null: with the
    // calling thread alone. no_memory: the text of that error. Other errors: damaged, io.
    Result<> read(Team* team, std::span<ReadScratch> scratch, const char* no_memory);

   private:
    struct Part {
        std::size_t file;
        std::size_t block;
        std::uint64_t first;
        std::uint64_t count;
        std::uint64_t to;
        bool repeat;
        bool mix;
    };
    using Group = std::span<Part>;  // all parts of one block
    struct Zeros {
        std::uint64_t to;
        std::uint64_t count;
    };
    struct Stripes;

    void sort();
    Group group(std::size_t number) {
        return Group(parts_).subspan(groups_[number], groups_[number + 1] - groups_[number]);
    }
    [[nodiscard]] std::uint64_t bytes_of(const Part& part) const { return part.count * chunk_bytes_; }
    [[nodiscard]] std::uint64_t block_bytes(Group parts) const;
    template <typename Put>
    void each_stretch(Group parts, Stripes* stripes, Put put) const;
    Result<> read_block(Group parts, ReadScratch& scratch, Stripes* stripes);
    static bool apart(Group parts);

    const std::uint64_t chunk_bytes_;
    std::byte* const to_;
    ReadCounts& counts_;
    std::vector<std::shared_ptr<DifferenceFile>> files_;
    std::vector<Part> parts_;
    std::vector<Zeros> zeros_;
    std::vector<std::size_t> groups_;  // of each block its first part; one more: the end
};

}  // namespace twinrun
