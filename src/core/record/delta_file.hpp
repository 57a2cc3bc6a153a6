// The file of a difference (spec/record.md) that is there, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/file_io.hpp"
#include "record/compression.hpp"
#include "record/delta.hpp"
#include "record/difference_place.hpp"
#include "record/sparse.hpp"

namespace twinrun {

// Memory that read_block() uses again: one a thread.
struct BlockScratch {
    std::vector<std::byte> packed;
    std::vector<std::byte> planes;
    SparseScratch sparse;
};

// A difference that is there. Thread-safe after open: all reads are positional.
class DifferenceFile {
   public:
    // Reads and checks all but the payload. Errors: io; damaged (its own text says what), also if
    // the header's checksum is known and another one; unsupported: a newer version.
    // compressor: to reuse its memory.
    static Result<std::shared_ptr<DifferenceFile>> open(const DifferencePlace& place, Compressor& compressor);
    static Result<std::shared_ptr<DifferenceFile>> open(const DifferencePlace& place) {
        Compressor compressor;
        return open(place, compressor);
    }
    static Result<std::shared_ptr<DifferenceFile>> open(const std::string& path) {
        return open(DifferencePlace{path});
    }

    [[nodiscard]] const Difference& difference() const { return difference_; }
    [[nodiscard]] const std::string& path() const { return file_->path(); }
    [[nodiscard]] std::uint64_t bytes() const { return file_->size(); }
    // The last field of the header, which seals the rest of it, and by this all of the file.
    [[nodiscard]] std::uint64_t header_checksum() const { return header_checksum_; }
    // Where this file keeps a payload chunk: its number in the file, or nothing.
    [[nodiscard]] std::optional<std::uint64_t> position(Location at) const;
    [[nodiscard]] std::uint64_t stored_chunks() const { return stored_chunks_; }
    // Chunks of block b as they were kept, before any XOR is undone: checked, unpacked. to:
    // block_chunks(b) chunks.
    [[nodiscard]] std::uint64_t block_chunks(std::size_t b) const;
    Result<> read_block(std::size_t b, Compressor& compressor, BlockScratch& scratch,
                        std::span<std::byte> to) const;
    // Parts of them XORed with what is in the pieces (`mix_sparse`), of a block whose form is
    // sparse: only its items are touched. bytes: of all its chunks.
    Result<> mix_block(std::size_t b, Compressor& compressor, BlockScratch& scratch, std::size_t bytes,
                       std::span<const SparsePiece> pieces) const;
    [[nodiscard]] bool sparse(std::size_t b) const {
        return difference_.blocks[b].width != 1 && difference_.blocks[b].form == BlockForm::sparse;
    }

   private:
    DifferenceFile() = default;
    Result<> read_bytes(std::size_t b, std::span<std::byte> to) const;
    // The bytes of a block, in the scratch.
    Result<std::span<const std::byte>> packed(std::size_t b, BlockScratch& scratch) const;
    Result<> unpack(std::size_t b, Compressor& compressor, BlockScratch& scratch,
                    std::span<std::byte> to) const;
    std::shared_ptr<InputFile> file_;
    Difference difference_;
    std::uint64_t header_checksum_ = 0;
    std::uint64_t stored_chunks_ = 0;
    std::vector<std::uint64_t> kept_at_;  // first chunk in the file of each of kept
};

// What open() says of a file that is not the one at this place.
Error another_difference(const std::string& path);
// Whether the first bytes of a file are the header of the difference with this checksum.
bool is_header_of(std::span<const std::byte> bytes, std::uint64_t checksum);

}  // namespace twinrun
