// Writes the file of a difference (spec/record.md): payload block by block, then its index, and its
// header last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/file_io.hpp"
#include "record/compression.hpp"
#include "record/delta.hpp"
#include "record/delta_format.hpp"

namespace twinrun {

// Of payload, unpacked, where nothing else is said.
inline constexpr std::uint32_t kPackedBlockBytes = 128U << 10;

// How payload is kept.
struct PayloadSettings {
    PayloadCodec codec = PayloadCodec::stored;
    int level = 1;
    std::uint32_t block_bytes = 0;  // of payload, unpacked; 0: what suits the codec
    int threads = 1;
};

// Chunks that were packed elsewhere. Valid until the call returns.
struct PackedBlock {
    // a Zstandard frame; the chunks themselves, where that is no larger
    std::span<const std::byte> bytes;
    std::uint32_t chunks = 0;
    bool stored = false;
};

// Writes a difference, front to back. Not thread-safe. Abandoned before finish(): the file is
// removed.
class DifferenceWriter {
   public:
    // path: the final name; the file has another one until finish(). Errors: those of storage;
    // unsupported codec.
    static Result<std::unique_ptr<DifferenceWriter>> create(FileSystem& system, std::string path,
                                                            std::uint32_t chunk_bytes,
                                                            const PayloadSettings& settings);
    ~DifferenceWriter();

    // Whole chunks of payload. base, if not empty: as many bytes that each chunk may be XORed with
    // before it is packed, whose Locations are base_at (kNoLocation: none, and the base's bytes are
    // zeros). Each block is kept the way that is smallest.
    Result<> add(std::span<const std::byte> chunks, std::span<const std::byte> base,
                 std::span<const Location> base_at);
    // The same of blocks that are packed already: of block_bytes() each, except the last one, after
    // which nothing may be added. Not after an add() that left a part of a block.
    Result<> add_packed(std::span<const PackedBlock> blocks);
    [[nodiscard]] std::uint32_t block_bytes() const { return block_chunks_ * chunk_bytes_; }
    [[nodiscard]] std::uint64_t chunks() const;  // added so far
    // Of differences that blocks were XORed with: the ordinals, ascending. All of them are known
    // after finish().
    [[nodiscard]] const std::vector<std::uint32_t>& bases() const;

    // difference: all but what add() knows, which is put into it; its runs stay. The file is synced
    // under its final name (the folder is not). Gives its size, and the checksum of its header,
    // which seals all else.
    struct Written {
        std::uint64_t bytes = 0;
        std::uint64_t payload_bytes = 0;
        std::uint64_t header_checksum = 0;
    };
    Result<Written> finish(Difference&& difference);

   private:
    DifferenceWriter(FileSystem& system, std::string path, std::uint32_t chunk_bytes,
                     const PayloadSettings& settings);
    Result<> flush(bool all);
    struct Block;
    struct Work;
    // How blocks near each other are packed: planes, 1 for none. Measured on the first of them.
    struct Coding {
        std::uint8_t plain = 1;
        std::uint8_t mixed = 1;
        // Bytes of the measured block for each 1024 of it; 0: not measured.
        std::uint32_t plain_share = 0;
        std::uint32_t mixed_share = 0;
    };
    void pack_block(Block& block, int worker);
    void pack_alone(Block& block, std::span<const std::byte> raw, int worker);
    void pack_mixed(Block& block, std::span<const std::byte> raw, int worker);
    std::size_t pack_coded(std::span<const std::byte> raw, std::size_t room, std::uint8_t& planes,
                           std::uint32_t& share, int worker);
    std::size_t pack_in(std::span<const std::byte> raw, std::uint8_t planes, std::span<std::byte> to,
                        int worker);
    void pack_all(std::span<Block> blocks, std::uint64_t pending);
    void note_bases(const Block& block, std::uint64_t before);
    FileSystem& system_;
    std::string path_;
    std::string temporary_;  // what the file is called until it is whole
    std::uint32_t chunk_bytes_;
    PayloadSettings settings_;
    std::unique_ptr<OutputFile> file_;
    bool done_ = false;
    std::uint64_t written_ = kDifferenceHeaderBytes;
    std::uint64_t chunks_ = 0;
    std::uint32_t block_chunks_ = 1;
    std::vector<std::byte> pending_;
    std::vector<std::byte> pending_base_;
    std::vector<Location> pending_at_;
    bool with_base_ = false;
    std::vector<PayloadBlock> blocks_;
    std::map<std::uint64_t, Coding> codings_;  // by group of blocks
    std::vector<Run> base_runs_;
    std::vector<std::uint32_t> base_ordinals_;
    std::unique_ptr<Work> work_;
};

}  // namespace twinrun
