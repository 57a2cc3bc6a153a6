// Digests of words of bits: integers that are their own cells.
//
// Many of them take digest_blocks(), with a warp a tile. Few would leave most of the chip idle, and
// a tile would take one latency after the other: so a thread block takes each of signed words, with
// plain multiplications. Thread t has the 16 bytes at 16 t of each block of the tile, and so the
// same few coefficients for all of them, which stay in its registers. It joins its sums of the
// blocks of a piece by Horner's rule; the threads' sums are added once a piece. H200, from the call
// to the root: 16 us instead of 110 for 3 KB, 40 instead of 45 for 26 MB, but 600 instead of 300
// for 1 GB.
#include "digest/digest_kernel.cuh"
#include "digest/word_multiplier.cuh"

namespace twinrun::gpu {

namespace {

constexpr unsigned kAhead = 4;  // blocks whose bytes are read before the first is multiplied

template <class Word>
__global__ void __launch_bounds__(kWordThreads) digest_words(Launch launch, unsigned /*item_shift*/) {
    // Sums of the warps, by piece. Two: those of the last tile are read while this one's are made.
    __shared__ std::uint64_t warps[2][kRows][kWordWarps];
    const Multiplier<Word> multiplier(threadIdx.x * (kVector / static_cast<unsigned>(sizeof(Word))));
    std::uint32_t of_field = 0;
    unsigned side = 0;
    for (std::uint64_t number = blockIdx.x; number < launch.tiles; number += gridDim.x, side ^= 1) {
        std::uint32_t end = launch.count;
        while (end - of_field > 1) {
            const std::uint32_t middle = (of_field + end) / 2;
            (launch.fields[middle].first_tile <= number ? of_field : end) = middle;
        }
        const Field& field = launch.fields[of_field];
        const std::uint64_t first_block = (number - field.first_tile) * kRows;
        const std::uint64_t bytes = field.scalars * sizeof(Word) - first_block * kBlockBytes;
        const unsigned rows = bytes >= kRows * kBlockBytes
                                  ? kRows
                                  : static_cast<unsigned>((bytes + kBlockBytes - 1) / kBlockBytes);
        const unsigned piece_blocks = field.piece_blocks;
        const std::byte* at = field.data + first_block * kBlockBytes + threadIdx.x * kVector;
        std::int64_t left =
            static_cast<std::int64_t>(bytes) - static_cast<std::int64_t>(threadIdx.x * kVector);
        std::uint64_t sum = 0;
#pragma unroll 1
        for (unsigned row = 0; row < rows; row += kAhead) {
            uint4 vectors[kAhead];
#pragma unroll
            for (unsigned i = 0; i < kAhead; ++i) {
                vectors[i] = load(at, left);
                at += kBlockBytes;
                left -= static_cast<std::int64_t>(kBlockBytes);
            }
#pragma unroll
            for (unsigned i = 0; i < kAhead; ++i) {
                if (row + i >= rows) break;
                sum = append(sum, multiplier.sum(vectors[i]));
                if ((row + i + 1) % piece_blocks != 0 && row + i + 1 != rows) continue;
                sum = reduce61(sum);
#pragma unroll
                for (int distance = 16; distance != 0; distance /= 2)
                    sum = add61(sum, warp::across(sum, distance));
                if (threadIdx.x % 32 == 0) warps[side][(row + i) / piece_blocks][threadIdx.x / 32] = sum;
                sum = 0;
            }
        }
        __syncthreads();
        if (threadIdx.x < (rows + piece_blocks - 1) / piece_blocks) {
            std::uint64_t digest = 0;
#pragma unroll
            for (unsigned w = 0; w < kWordWarps; ++w)
                digest = add61(digest, warps[side][threadIdx.x][w]);
            const std::uint64_t piece = first_block / piece_blocks + threadIdx.x;
            if (field.leaves != nullptr) field.leaves[piece] = digest;
            if (field.fine != nullptr) field.fine[piece] = digest;
        }
    }
}

template <class Source>
KernelChoice by_warps() {
    constexpr std::size_t kShared = shared_bytes<Source>(Source::kItemShift);
    return {digest_blocks<Source, CellKind::absolute, 0>, kShared, kShared};
}
KernelChoice by_blocks(Kernel kernel) { return {kernel, 0, 0, kWordThreads, 1}; }

}  // namespace

KernelChoice words_kernel(DType scalar) {
    switch (scalar) {
        case DType::boolean: return by_warps<Word8<DType::boolean>>();
        case DType::u8: return by_warps<Word8<DType::u8>>();
        case DType::u16: return by_warps<Word16<DType::u16>>();
        case DType::u32: return by_warps<Word32<DType::u32>>();
        case DType::i8: return by_warps<Word8<DType::i8>>();
        case DType::i16: return by_warps<Word16<DType::i16>>();
        default: return by_warps<Word32<DType::i32>>();
    }
}
KernelChoice few_words_kernel(unsigned item_shift) {
    switch (item_shift) {
        case 0: return by_blocks(digest_words<std::int8_t>);
        case 1: return by_blocks(digest_words<std::int16_t>);
        default: return by_blocks(digest_words<std::int32_t>);
    }
}

}  // namespace twinrun::gpu
