// Packs blocks of payload the way that is smallest: as they are, in planes, or sparse. Which one it
// is is measured on a sample, and kept for the blocks behind it that pack about as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "record/compression.hpp"
#include "record/delta.hpp"
#include "record/plane_coder.hpp"
#include "record/sparse.hpp"

namespace twinrun {

// A share is of so many.
inline constexpr std::uint32_t kCodingShare = 1024;

// How blocks near each other are packed.
struct BlockCoding {
    std::uint8_t width = 1;  // PayloadBlock
    BlockForm form = BlockForm::planes;
    PlaneCoders coders{};
    // Bytes of the measured block for each kCodingShare of it; 0: not measured.
    std::uint32_t share = 0;
    std::array<std::uint32_t, 8> plane_shares{};  // the same of each plane
    bool operator==(const BlockCoding&) const = default;
};

// Not thread-safe; one a thread.
class BlockPacker {
   public:
    explicit BlockPacker(int level) : level_(level) {}

    // Packs as the block that was measured. Where none was, or where this one packs much worse or
    // better than that one, `coding` becomes that of the smallest. Returns the bytes that packed()
    // begins with; 0: no way takes less bytes than `raw`.
    std::size_t pack(std::span<const std::byte> raw, BlockCoding& coding);
    [[nodiscard]] std::vector<std::byte>& packed() { return packed_; }

   private:
    void choose(std::span<const std::byte> raw, BlockCoding& coding);
    std::size_t pack_as(std::span<const std::byte> raw, BlockCoding& coding, std::span<std::byte> to);
    [[nodiscard]] BlockCoding measured(BlockCoding coding, std::size_t size, std::size_t raw) const;
    int level_;
    Compressor compressor_;
    SparseScratch sparse_;
    std::vector<std::byte> planes_;
    std::vector<std::byte> packed_;
    std::vector<std::byte> sample_;
};

}  // namespace twinrun
