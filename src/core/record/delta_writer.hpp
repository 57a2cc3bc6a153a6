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
#include "record/block_packer.hpp"
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

// Chunks that are to be packed, and what they may be XORed with: DifferenceWriter::add().
struct PendingChunks {
    std::span<const std::byte> bytes;
    std::span<const std::byte> base;
    std::span<const Location> at;
    std::span<const std::uint32_t> reads;
    [[nodiscard]] PendingChunks first(std::uint64_t chunks, std::uint64_t chunk_bytes) const;
    [[nodiscard]] PendingChunks behind(std::uint64_t chunks, std::uint64_t chunk_bytes) const;
};

// Of blocks near each other, measured on the first of them.
struct BlockCodings {
    BlockCoding plain;
    BlockCoding mixed;
};

// Threads, and memory that payload is packed in. Who writes one difference after the other keeps
// them: to start the threads and to touch new memory takes as long as to pack some MiB. They serve
// one writer at a time. Threads start when there is enough to pack.
class DifferenceTools {
   public:
    // Of `settings` level and threads count.
    explicit DifferenceTools(const PayloadSettings& settings);
    ~DifferenceTools();

   private:
    friend class DifferenceWriter;
    struct Block;
    struct Work;
    std::unique_ptr<Work> work_;
};

// Writes a difference, front to back. Not thread-safe. Abandoned before finish(): the file is
// removed. Much payload is written while what comes behind it is packed: an error of storage may be
// told by a later call.
class DifferenceWriter {
   public:
    // path: the final name; the file has another one until finish(). tools: of the same settings;
    // they stay until the writer is gone. Null: it has its own. Errors: those of storage;
    // unsupported codec.
    static Result<std::unique_ptr<DifferenceWriter>> create(FileSystem& system, std::string path,
                                                            std::uint32_t chunk_bytes,
                                                            const PayloadSettings& settings,
                                                            DifferenceTools* tools = nullptr);
    ~DifferenceWriter();

    // Whole chunks of payload. base, if not empty: as many bytes that each chunk may be XORed with
    // before it is packed, whose Locations are base_at (kNoLocation: none, and the base's bytes are
    // zeros). base_reads: the bytes that reading each of these takes (block_reads()); may be empty:
    // nothing is known of it. Each block is kept the way that is smallest, if reading it with all
    // that it needs takes no more than twice the bytes of keeping it alone.
    Result<> add(std::span<const std::byte> chunks, std::span<const std::byte> base,
                 std::span<const Location> base_at, std::span<const std::uint32_t> base_reads = {});
    // The same of blocks that are packed already: of block_bytes() each, except the last one, after
    // which nothing may be added. Not after an add() that left a part of a block.
    Result<> add_packed(std::span<const PackedBlock> blocks);
    [[nodiscard]] std::uint32_t block_bytes() const { return block_chunks_ * chunk_bytes_; }
    [[nodiscard]] std::uint64_t chunks() const;  // added so far
    // Of differences that blocks were XORed with: the ordinals, ascending. All of them are known
    // after finish().
    [[nodiscard]] const std::vector<std::uint32_t>& bases() const;

    // Of each block, after finish(): bytes of files that reading one of its chunks takes, a share
    // of its block and of the blocks that this was XORed with.
    [[nodiscard]] const std::vector<std::uint32_t>& block_reads() const { return block_reads_; }

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
                     const PayloadSettings& settings, DifferenceTools* tools);
    using Block = DifferenceTools::Block;
    void append(const PendingChunks& chunks);
    Result<> flush(bool all);
    Result<> write_blocks(std::span<const PendingChunks> parts);
    void pack_block(Block& block, int worker);
    void pack_plain(Block& block, int worker);
    void pack_mixed(Block& block, std::size_t plain, int worker);
    void pack_all(std::span<Block> blocks);
    Result<> write_packed(std::span<const Block> blocks);
    Result<> write_out(std::uint64_t size);
    void note_bases(const Block& block);
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
    bool with_base_ = false;
    std::vector<PayloadBlock> blocks_;
    std::vector<std::uint32_t> block_reads_;
    std::map<std::uint64_t, BlockCodings> codings_;  // by group of blocks
    std::vector<Run> base_runs_;
    std::vector<std::uint32_t> base_ordinals_;
    std::unique_ptr<DifferenceTools> own_tools_;
    DifferenceTools::Work* work_;
};

}  // namespace twinrun
