// Digests of words of bits: integers that are their own cells.
//
// Many of them take digest_blocks(), with a warp a tile. Few would leave most of the chip idle, and
// a tile would take one latency after the other: so a thread block takes each, with plain
// multiplications. Thread t has the 16 bytes at 16 t of each block of the tile, and so the same few
// coefficients for all of them, which stay in its registers. It joins its sums of the blocks of a
// piece by Horner's rule; the threads' sums are added once a piece. H200, from the call to the
// root: 16 us instead of 110 for 3 KB, 40 instead of 45 for 26 MB, but 600 instead of 300 for 1 GB.
#include "digest/digest_kernel.cuh"

namespace twinrun::gpu {

namespace {

constexpr unsigned kVector = 16;  // bytes that a thread reads at once
constexpr unsigned kWordThreads = kBlockBytes / kVector;
constexpr unsigned kWordWarps = kWordThreads / 32;
constexpr unsigned kAhead = 4;  // blocks whose bytes are read before the first is multiplied

// A coefficient has 61 bits. It is cut into parts, so that sums of the products of a vector's words
// and one part fit 64 bits.
template <class Word>
struct Parts {
    static constexpr unsigned kWords = kVector / sizeof(Word);
    static constexpr unsigned kCount = sizeof(Word) == 4 ? 3 : 2;
    static constexpr unsigned kBits = sizeof(Word) == 4 ? 21 : 31;
    static constexpr unsigned kLastBits = 61 - (kCount - 1) * kBits;
    static constexpr std::int64_t kMask = (std::int64_t{1} << kBits) - 1;
    static constexpr std::int64_t kLastMask = (std::int64_t{1} << kLastBits) - 1;
};

// sum + a b. In one instruction: compilers extend a and b to 64 bits and multiply these.
__device__ inline std::int64_t multiply_add(std::int32_t a, std::int32_t b, std::int64_t sum) {
#if defined(__CUDA_ARCH__)
    asm("mad.wide.s32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
    return sum;
#else
    return sum + std::int64_t{a} * b;
#endif
}

template <class Word>
class Multiplier {
   public:
    // For the words at and behind `position` of a block.
    __device__ explicit Multiplier(unsigned position) {
#pragma unroll
        for (unsigned w = 0; w < P::kWords; ++w) {
            const std::uint64_t r = coefficient(position + w);
#pragma unroll
            for (unsigned i = 0; i < P::kCount; ++i)
                parts_[w][i] = static_cast<std::int32_t>(r >> (i * P::kBits) & P::kMask);
        }
    }

    // A number with the remainder of the sum of products of words and coefficients; at most
    // 2^62 + 2^36.
    [[nodiscard]] __device__ std::uint64_t sum(const uint4& vector) const {
        std::int64_t sums[P::kCount] = {};
        const std::uint32_t in[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (unsigned w = 0; w < P::kWords; ++w) {
            constexpr unsigned kEach = 4 / sizeof(Word);
            const std::int32_t word =
                static_cast<Word>(in[w / kEach] >> (w % kEach * 8 * static_cast<unsigned>(sizeof(Word))));
#pragma unroll
            for (unsigned i = 0; i < P::kCount; ++i)
                sums[i] = multiply_add(word, parts_[w][i], sums[i]);
        }
        // From the lowest part up: what a part's bits do not hold belongs to the next one.
        std::uint64_t low = 0;
#pragma unroll
        for (unsigned i = 0; i + 1 < P::kCount; ++i) {
            low += static_cast<std::uint64_t>(sums[i] & P::kMask) << (i * P::kBits);
            sums[i + 1] += sums[i] >> P::kBits;
        }
        const std::int64_t last = sums[P::kCount - 1];
        low += static_cast<std::uint64_t>(last & P::kLastMask) << (61 - P::kLastBits);
        // 2^61 = 1; what is left of the last part is small, and may be negative.
        return low + kPrime + static_cast<std::uint64_t>(last >> P::kLastBits);
    }

   private:
    using P = Parts<Word>;
    std::int32_t parts_[P::kWords][P::kCount];
};

// A number of at most 2^61 + 6 with the same remainder.
__device__ inline std::uint64_t nearly_reduced(std::uint64_t x) { return (x & kPrime) + (x >> 61); }
// The same for sum RHO + more, if sum is nearly reduced and more at most 2^63: without a comparison
// of 64 bits, which no instruction makes.
__device__ inline std::uint64_t append(std::uint64_t sum, std::uint64_t more) {
    const auto product = static_cast<unsigned __int128>(sum) * kRho;
    const std::uint64_t low = static_cast<std::uint64_t>(product) & kPrime;
    return nearly_reduced(low + static_cast<std::uint64_t>(product >> 61) + more);
}

// The bytes of a vector of which `left` are in the array; zeros take the others' place.
__device__ uint4 load(const std::byte* at, std::int64_t left) {
    if (left >= static_cast<std::int64_t>(kVector)) return __ldcs(reinterpret_cast<const uint4*>(at));
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(kVector); ++i) {
        if (i < left) words[i / 4] |= static_cast<std::uint32_t>(at[i]) << (i % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
}

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

KernelChoice words_kernel(unsigned item_shift) {
    switch (item_shift) {
        case 0: return by_warps<Word8>();
        case 1: return by_warps<Word16>();
        default: return by_warps<Word32>();
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
