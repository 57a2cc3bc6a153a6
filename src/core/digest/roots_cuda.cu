// Roots of arrays of words, from the data to the root in one launch, whose arguments are all it
// takes from the host: for calls of a few arrays, where every further call of the driver takes
// longer than the work.
//
// A word is the sum of its bytes times powers of 256, but for the sign. So a block's digest is a
// sum over its bytes, each with a coefficient of its own, and digests of the 16 blocks of a chunk
// are a product of byte matrices (byte_products.cuh): 16 x bytes by bytes x 8, a column for each
// byte of the coefficients. The sign takes one instruction for 4 bytes: turning it round adds
// 2^(bits - 1) to a word, and the product of that is taken away again.
//
// A root is linear in its blocks: each has a power of RHO as its weight, that of its place in its
// chunk and of the chunk's way up the tree (TreeJoin). So parts of an array may be added in any
// order: halves of 32 bits, which cannot overflow, and who comes last hands the sum out. That makes
// the same bits as leaves that are joined.
//
// What a call costs beside its reading counts: most arrays take 5 to 20 us. A thread block takes 16
// blocks at a time wherever it begins, so that no step has fewer rows than the others; the two
// halves of a root do not wait for each other; and a thread block begins while the kernel before it
// ends, up to its first look at the array (programmatic dependent launch).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "device/gpu.hpp"
#include "device/warp.cuh"
#include "digest/byte_products.cuh"
#include "digest/digest.hpp"
#include "digest/digest_device.hpp"
#include "digest/field61.hpp"

namespace twinrun::gpu {

namespace {

constexpr unsigned kVector = 16;  // bytes that a thread reads at once
constexpr unsigned kWarps = 8;
constexpr unsigned kThreads = kWarps * 32;
constexpr unsigned kWarpBytes = kBlockBytes / kWarps;  // of each block: those that a warp takes
constexpr unsigned kStepBytes = 4 * kVector;           // of a row, in one step
constexpr unsigned kSteps = kWarpBytes / kStepBytes;
// Of a thread block, where there are enough: each reads 32 KiB of tables.
constexpr unsigned kLeastBlocks = 4;
constexpr unsigned kChunkBlocks = kRootChunkBytes / kBlockBytes;
static_assert(kChunkBlocks == 16, "the rows of a product");

struct RootField {
    const std::byte* data;
    std::uint64_t bytes;
    DeviceRootSums* root;
    DeviceRootSums* sums;
    std::uint32_t first_block;  // among all of the launch; of spread runs: first part
    std::uint32_t shares;       // thread blocks that take some of it
};

// Quotients by a number, of numbers below 2^31.
class Divisor {
   public:
    Divisor() = default;
    __host__ explicit Divisor(std::uint32_t by) : by_(by) {
        while ((std::uint64_t{1} << shift_) < by)
            ++shift_;
        factor_ = (std::uint64_t{1} << (31 + shift_)) / by + 1;
    }
    [[nodiscard]] __device__ std::uint32_t quotient(std::uint32_t x) const {
        return static_cast<std::uint32_t>(x * factor_ >> (31 + shift_));
    }
    [[nodiscard]] __device__ std::uint32_t by() const { return by_; }

   private:
    // The quotient is x factor / 2^(31 + shift), as 2^shift >= by. The factor is at most 2^32, so
    // that the product has room.
    std::uint64_t factor_ = 0;
    std::uint32_t by_ = 1;
    std::uint32_t shift_ = 0;
};

// An array in runs.
struct RunsField : RootField {
    Divisor run;  // in vectors
    std::int32_t dimensions;
    Divisor shape[kMostRunDimensions];
    std::int64_t strides[kMostRunDimensions];
};
static_assert(kRootRunUnit == kVector);

// An array in spread runs. Runs are in words here, and sizes of dimensions as above.
struct SpreadField : RunsField {
    std::int64_t step;
    bool by_runs;  // neighbouring runs lie closer than neighbouring words of a run
};

// All that a launch takes. Arguments have room for 4096 bytes; copying them takes time, too.
template <class Field, unsigned Most>
struct RootLaunch {
    std::uint32_t count;
    std::uint32_t blocks;       // of spread runs: parts
    std::uint32_t part_blocks;  // of spread runs
    Field fields[Most];
};
constexpr unsigned kFewRoots = 8;
constexpr unsigned kMostRoots = 96;
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 31;  // of a launch
static_assert(sizeof(RootLaunch<RootField, kMostRoots>) <= 4096);
static_assert(sizeof(RootLaunch<SpreadField, kFewRoots>) <= 4096);
static_assert(kMostRootBytes / kBlockBytes <= kMostBlocks);

// x 2^k mod p for x below 2^61 and k below 61.
__host__ __device__ constexpr std::uint64_t rotate61(std::uint64_t x, unsigned k) {
    return reduce61(((x << k) & kPrime) | (k == 0 ? 0 : x >> (61 - k)));
}

// Powers of RHO: of a block in its chunk, times what the two columns of a lane count; of the blocks
// that a last chunk lacks; of each level of the tree.
struct RhoPowers {
    std::uint64_t of_row[2][32];
    std::uint64_t of_lacking[kChunkBlocks];
    std::uint64_t of_level[32];
};
constexpr RhoPowers rho_powers() {
    RhoPowers all{};
    const std::uint64_t inverse = power61(kRho, kPrime - 2);
    for (unsigned i = 0; i < kChunkBlocks; ++i) {
        all.of_lacking[i] = power61(inverse, i);
        const std::uint64_t of_block = power61(kRho, kChunkBlocks - 1 - i);
        for (unsigned pair = 0; pair < 4; ++pair)
            all.of_row[i / 8][i % 8 * 4 + pair] = rotate61(of_block, pair * 16);
    }
    std::uint64_t power = power61(kRho, kChunkBlocks);
    for (std::uint64_t& one : all.of_level) {
        one = power;
        power = multiply61(power, power);
    }
    return all;
}
// All tables are in global memory: a warp's lanes take different places.
__device__ constexpr RhoPowers kRhoPowers = rho_powers();

// What the bytes of a block are multiplied by, as a lane of a warp needs it for a step: for two
// products, 8 bytes of a row each. And what words of the value 0 give, by columns: the sums to
// begin with.
struct ByteCoefficients {
    uint4 of[kWarps][kSteps][32];
    std::uint32_t begin[kWarps][8];
};
// The signs of 4 bytes of words.
template <class Word>
constexpr std::uint32_t kSigns = sizeof(Word) == 1   ? 0x80808080U
                                 : sizeof(Word) == 2 ? 0x80008000U
                                                     : 0x80000000U;

template <class Word>
constexpr ByteCoefficients byte_coefficients() {
    ByteCoefficients all{};
    for (unsigned position = 0; position < kBlockBytes; ++position) {
        const std::uint64_t r = rotate61(coefficient(position / sizeof(Word)), position % sizeof(Word) * 8);
        uint4* const lanes = all.of[position / kWarpBytes][position % kWarpBytes / kStepBytes];
        const unsigned of_row = position % kStepBytes / kVector;
        const unsigned word = position % kVector / 4;
        for (unsigned column = 0; column < 8; ++column) {
            const auto byte = static_cast<std::uint32_t>(r >> (8 * column) & 0xFF);
            uint4& of = lanes[4 * column + of_row];
            (word == 0 ? of.x : word == 1 ? of.y : word == 2 ? of.z : of.w) |= byte << (position % 4 * 8);
            all.begin[position / kWarpBytes][column] -= byte * (kSigns<Word> >> (position % 4 * 8) & 0xFF);
        }
    }
    return all;
}
__device__ constexpr ByteCoefficients kCoefficients8 = byte_coefficients<std::int8_t>();
__device__ constexpr ByteCoefficients kCoefficients16 = byte_coefficients<std::int16_t>();
__device__ constexpr ByteCoefficients kCoefficients32 = byte_coefficients<std::int32_t>();
template <class Word>
__device__ const ByteCoefficients& coefficients_of() {
    if constexpr (sizeof(Word) == 1) return kCoefficients8;
    if constexpr (sizeof(Word) == 2) return kCoefficients16;
    if constexpr (sizeof(Word) == 4) return kCoefficients32;
}
// The last vector of an array. Few are: it is no part of the loop.
template <class Word>
__device__ __noinline__ uint4 load_words(const std::byte* at, std::int64_t left) {
    constexpr int kBytes = static_cast<int>(sizeof(Word));
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(kVector) / kBytes; ++i) {
        if (i * kBytes >= left) break;
        const auto word = static_cast<std::make_unsigned_t<Word>>(reinterpret_cast<const Word*>(at)[i]);
        words[i * kBytes / 4] |= static_cast<std::uint32_t>(word) << (i * kBytes % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
}
// A vector at an address that is aligned to its words alone, out of the two aligned ones that hold
// it.
__device__ inline uint4 load_across(const std::byte* at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    const auto* const two = reinterpret_cast<const uint4*>(address / kVector * kVector);
    const uint4 a = two[0];
    const uint4 b = two[1];
    const auto shift = static_cast<unsigned>(address % 4 * 8);
    std::uint32_t w[5] = {a.x, a.y, a.z, a.w, b.x};
    switch (address % kVector / 4) {
        case 0: break;
        case 1: w[0] = a.y, w[1] = a.z, w[2] = a.w, w[3] = b.x, w[4] = b.y; break;
        case 2: w[0] = a.z, w[1] = a.w, w[2] = b.x, w[3] = b.y, w[4] = b.z; break;
        default: w[0] = a.w, w[1] = b.x, w[2] = b.y, w[3] = b.z, w[4] = b.w;
    }
    return {__funnelshift_r(w[0], w[1], shift), __funnelshift_r(w[1], w[2], shift),
            __funnelshift_r(w[2], w[3], shift), __funnelshift_r(w[3], w[4], shift)};
}

// Consecutive blocks, of one chunk or of two.
struct Part {
    std::uint32_t field;
    std::uint32_t blocks;       // 1 to kChunkBlocks
    std::uint32_t first_block;  // of the field
};

__device__ std::uint32_t blocks_of(const RootField& of) {
    return static_cast<std::uint32_t>((of.bytes + kBlockBytes - 1) / kBlockBytes);
}

// The part that begins at a block of the launch, in this field or behind it, and ends before `end`.
template <class Field, unsigned Most>
__device__ Part part_at(const RootLaunch<Field, Most>& launch, std::uint32_t number, std::uint32_t end,
                        std::uint32_t field) {
    while (field + 1 < launch.count && launch.fields[field + 1].first_block <= number)
        ++field;
    const RootField& of = launch.fields[field];
    const std::uint32_t first = number - of.first_block;
    const std::uint32_t blocks = min(kChunkBlocks, blocks_of(of) - first);
    return {field, min(blocks, end - number), first};
}
template <class Field, unsigned Most>
__device__ std::uint32_t field_of(const RootLaunch<Field, Most>& launch, std::uint32_t number) {
    std::uint32_t field = 0;
    std::uint32_t end = launch.count;
    while (end - field > 1) {
        const std::uint32_t middle = (field + end) / 2;
        (launch.fields[middle].first_block <= number ? field : end) = middle;
    }
    return field;
}

constexpr unsigned kHalf = kSteps / 2;  // steps that are read together

// The blocks that a lane reads of a part. A row of a product has the block with its place in its
// chunk: rows before that of the part's first block have blocks of the next chunk.
struct Rows {
    std::uint32_t block[2];
    bool there[2];

    __device__ explicit Rows(const Part& part) {
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            const std::uint32_t place = (threadIdx.x % 32 / 4 + row * 8 - part.first_block) % kChunkBlocks;
            block[row] = part.first_block + place;
            there[row] = place < part.blocks;
        }
    }
};
// Bytes from the beginning of a block to the first vector that a lane reads of it.
__device__ inline unsigned lane_begin() { return threadIdx.x / 32 * kWarpBytes + threadIdx.x % 4 * kVector; }

// What a lane reads of a part of a dense array.
struct Reader {
    const std::byte* from;   // its first vector of its first row
    std::int64_t to_second;  // bytes from there to its second row
    std::int64_t left[2];    // bytes of the array there and behind it, by rows; 0 for a row that is not there
    bool aligned;            // to 16 bytes
    bool begins;             // the array begins there

    __device__ Reader(const RootField& of, const Part& part) {
        const Rows rows(part);
        to_second = (rows.block[1] > rows.block[0] ? 8 : -8) * static_cast<std::int64_t>(kBlockBytes);
        from = of.data + std::uint64_t{rows.block[0]} * kBlockBytes + lane_begin();
        aligned = reinterpret_cast<std::uintptr_t>(of.data) % kVector == 0;
        begins = from == of.data;
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            left[row] = rows.there[row] ? of.data + of.bytes - at(0, row) : 0;
        }
    }
    [[nodiscard]] __device__ const std::byte* at(unsigned step, unsigned row) const {
        return from + row * to_second + step * kStepBytes;
    }

    // The vectors of some steps; zeros where there is nothing.
    template <class Word>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
        if (!aligned) return read_across<Word>(first_step, vectors);
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            const std::int64_t here = left[row] - first_step * kStepBytes;
            // Steps with a whole vector.
            const auto whole = static_cast<int>(
                min(max(here + static_cast<std::int64_t>(kStepBytes - kVector), std::int64_t{0}) / kStepBytes,
                    std::int64_t{kHalf}));
#pragma unroll
            for (unsigned i = 0; i < kHalf; ++i) {
                vectors[i][row] = {0, 0, 0, 0};
                if (static_cast<int>(i) < whole)
                    vectors[i][row] = __ldcs(reinterpret_cast<const uint4*>(at(first_step + i, row)));
            }
            const std::int64_t rest = here - whole * static_cast<std::int64_t>(kStepBytes);
            if (whole == static_cast<int>(kHalf) || rest <= 0) continue;
            const uint4 last =
                load_words<Word>(at(first_step, row) + whole * static_cast<int>(kStepBytes), rest);
#pragma unroll
            for (unsigned i = 0; i < kHalf; ++i) {
                if (static_cast<int>(i) == whole) vectors[i][row] = last;
            }
        }
    }
    template <class Word>
    __device__ void read_across(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i) {
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
                vectors[i][row] = {0, 0, 0, 0};
                const std::int64_t here =
                    left[row] - (first_step + i) * static_cast<std::int64_t>(kStepBytes);
                const std::byte* const vector = at(first_step + i, row);
                // The first one has bytes of others before it.
                const bool first = row == 0 && first_step + i == 0 && begins;
                if (here >= static_cast<std::int64_t>(2 * kVector) && !first)
                    vectors[i][row] = load_across(vector);
                else if (here > 0)
                    vectors[i][row] = load_words<Word>(vector, here);
            }
        }
    }
};

// The same of an array in runs: whole vectors, each somewhere else.
struct RunsReader {
    const RunsField& of;
    std::uint32_t first[2];  // its first vector of each row, among those of the array
    std::uint32_t end[2];    // vectors of the array; 0 for a row that is not there

    __device__ RunsReader(const RunsField& field, const Part& part) : of(field) {
        const Rows rows(part);
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            first[row] = rows.block[row] * (kBlockBytes / kVector) + lane_begin() / kVector;
            end[row] = rows.there[row] ? static_cast<std::uint32_t>(of.bytes / kVector) : 0;
        }
    }
    [[nodiscard]] __device__ const std::byte* at(std::uint32_t vector) const {
        std::uint32_t rest = of.run.quotient(vector);
        const std::byte* place = of.data + std::uint64_t{vector - rest * of.run.by()} * kVector;
#pragma unroll
        for (int d = kMostRunDimensions - 1; d >= 0; --d) {
            if (d >= of.dimensions) continue;
            const std::uint32_t outer = of.shape[d].quotient(rest);
            place += static_cast<std::int64_t>(rest - outer * of.shape[d].by()) * of.strides[d];
            rest = outer;
        }
        return place;
    }
    template <class Word>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i) {
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
                const std::uint32_t vector = first[row] + (first_step + i) * (kStepBytes / kVector);
                vectors[i][row] = {0, 0, 0, 0};
                if (vector < end[row]) vectors[i][row] = __ldcs(reinterpret_cast<const uint4*>(at(vector)));
            }
        }
    }
};
// Of an array in spread runs: a part is brought into shared memory, in the order of its words, and
// read there. Threads are dealt out so that neighbours read what lies side by side, which is along
// the runs or across them: 20 columns of a matrix of 1,600 rows are a part of its transposed one.
class SpreadReader {
   public:
    static constexpr unsigned kBytes = kChunkBlocks * kBlockBytes;  // of a part, in shared memory
    static constexpr std::uint32_t kAhead = 16;                     // words that a thread reads at once

    __device__ SpreadReader(const std::byte* brought, const RootField& of, const Part& part)
        : brought_(brought) {
        const Rows rows(part);
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            first_[row] =
                (rows.block[row] - part.first_block) * (kBlockBytes / kVector) + lane_begin() / kVector;
            end_[row] = rows.there[row] ? vectors_of(of) - part.first_block * (kBlockBytes / kVector) : 0;
        }
    }
    template <class Word>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i) {
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
                const std::uint32_t vector = first_[row] + (first_step + i) * (kStepBytes / kVector);
                vectors[i][row] = {0, 0, 0, 0};
                if (vector < end_[row])
                    vectors[i][row] = *reinterpret_cast<const uint4*>(brought_ + place(vector) * kVector);
            }
        }
    }
    // By all threads of a block, which meet before and afterwards.
    template <class Word>
    __device__ static void bring(std::byte* to, const SpreadField& of, const Part& part) {
        constexpr std::uint32_t kWord = sizeof(Word);
        constexpr std::uint32_t kBlockWords = kBlockBytes / kWord;
        const std::uint32_t first = part.first_block * kBlockWords;
        const std::uint32_t words = static_cast<std::uint32_t>(of.bytes / kWord);
        const std::uint32_t end = first + min(part.blocks * kBlockWords, words - first);
        const std::uint32_t length = of.run.by();
        const std::uint32_t first_run = of.run.quotient(first);
        const std::uint32_t runs = of.run.quotient(end - 1) - first_run + 1;
        // Of a run, so many threads take one word each at a time; so many runs at a time.
        const std::uint32_t deep =
            of.by_runs ? max(kThreads / runs, 1U) : min(min(length, end - first), kThreads);
        const std::uint32_t wide = of.by_runs ? min(runs, kThreads) : kThreads / deep;
        const std::uint32_t in_run = of.by_runs ? threadIdx.x / wide : threadIdx.x % deep;
        const std::uint32_t of_run = of.by_runs ? threadIdx.x % wide : threadIdx.x / deep;
        if (in_run < deep && of_run < wide) {
            for (std::uint32_t run = of_run; run < runs; run += wide) {
                const std::uint32_t begin = (first_run + run) * length;
                const std::uint32_t from = begin < first ? first - begin : 0;
                const std::uint32_t to_word = min(end - begin, length);
                const std::byte* const at = run_at(of, first_run + run);
                for (std::uint32_t word = from + in_run; word < to_word; word += kAhead * deep) {
                    // All are read before the first is stored: else each would wait for its own.
                    Word values[kAhead];
#pragma unroll
                    for (std::uint32_t i = 0; i < kAhead; ++i) {
                        const std::uint32_t one = word + i * deep;
                        if (one < to_word)
                            values[i] = *reinterpret_cast<const Word*>(at + std::int64_t{one} * of.step);
                    }
#pragma unroll
                    for (std::uint32_t i = 0; i < kAhead; ++i) {
                        const std::uint32_t one = word + i * deep;
                        if (one < to_word) store(to, begin + one - first, values[i]);
                    }
                }
            }
        }
        // The rest of the last vector.
        const std::uint32_t rest = end + threadIdx.x;
        if (threadIdx.x < kVector / kWord && rest / (kVector / kWord) < vectors_of(of) && end == words)
            store(to, rest - first, Word{0});
    }

   private:
    [[nodiscard]] __device__ static std::uint32_t vectors_of(const RootField& of) {
        return static_cast<std::uint32_t>((of.bytes + kVector - 1) / kVector);
    }
    // Words that threads store together may lie a run apart: without this they would meet in one
    // bank of the memory.
    [[nodiscard]] __device__ static std::uint32_t place(std::uint32_t vector) {
        return vector ^ ((vector >> 3 ^ vector >> 6 ^ vector >> 9) & 7);
    }
    template <class Word>
    __device__ static void store(std::byte* to, std::uint32_t word, Word value) {
        constexpr std::uint32_t kWords = kVector / sizeof(Word);
        reinterpret_cast<Word*>(to)[place(word / kWords) * kWords + word % kWords] = value;
    }
    [[nodiscard]] __device__ static const std::byte* run_at(const SpreadField& of, std::uint32_t run) {
        const std::byte* at = of.data;
#pragma unroll
        for (int d = kMostRunDimensions - 1; d >= 0; --d) {
            if (d >= of.dimensions) continue;
            const std::uint32_t outer = of.shape[d].quotient(run);
            at += static_cast<std::int64_t>(run - outer * of.shape[d].by()) * of.strides[d];
            run = outer;
        }
        return at;
    }

    const std::byte* brought_;
    std::uint32_t first_[2];  // its first vector of each row, among those of the part
    std::uint32_t end_[2];    // vectors from there to the array's end; 0 for a row that is not there
};
template <class Field>
constexpr bool kIsSpread = std::is_same_v<Field, SpreadField>;
template <class Field>
using ReaderOf = std::conditional_t<std::is_same_v<Field, RunsField>, RunsReader, Reader>;

struct SharedTables {
    std::uint64_t powers[2][32];
    std::uint32_t begin[kWarps][8];
};

// What a thread has for all parts.
template <class Word>
class Products {
   public:
    __device__ explicit Products(SharedTables& shared) : shared_(shared) {
        const ByteCoefficients& all = coefficients_of<Word>();
#pragma unroll
        for (unsigned i = 0; i < kSteps; ++i)
            coefficients_[i] = all.of[threadIdx.x / 32][i][threadIdx.x % 32];
        if (threadIdx.x < 64)
            (&shared.powers[0][0])[threadIdx.x] = (&kRhoPowers.of_row[0][0])[threadIdx.x];
        else if (threadIdx.x < 64 + kWarps * 8)
            (&shared.begin[0][0])[threadIdx.x - 64] = (&all.begin[0][0])[threadIdx.x - 64];
    }
    // After the thread block has met.
    __device__ void begin() {
        const std::uint32_t* const from = &shared_.begin[threadIdx.x / 32][threadIdx.x % 4 * 2];
        sums_[0] = sums_[2] = from[0];
        sums_[1] = sums_[3] = from[1];
    }
    __device__ void add(unsigned half, const uint4 (&vectors)[kHalf][2]) {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i)
            add_step(sums_, vectors[i][0], vectors[i][1], coefficients_[half * kHalf + i]);
    }
    // The sum over the thread's rows and columns. weights: of the part's chunks, of which there may
    // be one only.
    [[nodiscard]] __device__ std::uint64_t sum(const Part& part, const std::uint64_t* weights) const {
        const unsigned row = threadIdx.x % 32 / 4;
        const unsigned first = part.first_block % kChunkBlocks;
        return add61(weighted(0, weights[row < first]), weighted(1, weights[row + 8 < first]));
    }

   private:
    __device__ static void add_step(std::uint32_t (&sums)[4], const uint4& low, const uint4& high,
                                    const uint4& coefficients) {
        constexpr std::uint32_t s = kSigns<Word>;
        multiply_bytes(sums, low.x ^ s, high.x ^ s, low.y ^ s, high.y ^ s, coefficients.x, coefficients.y);
        multiply_bytes(sums, low.z ^ s, high.z ^ s, low.w ^ s, high.w ^ s, coefficients.z, coefficients.w);
    }
    [[nodiscard]] __device__ std::uint64_t weighted(unsigned row, std::uint64_t weight) const {
        return multiply61(multiply61(of_row(row), shared_.powers[row][threadIdx.x % 32]), weight);
    }
    // Two columns: below 2^34.
    [[nodiscard]] __device__ std::uint64_t of_row(unsigned row) const {
        const std::int64_t both = static_cast<std::int32_t>(sums_[row * 2]) +
                                  std::int64_t{static_cast<std::int32_t>(sums_[row * 2 + 1])} * 256;
        return static_cast<std::uint64_t>(both < 0 ? both + static_cast<std::int64_t>(kPrime) : both);
    }

    SharedTables& shared_;
    uint4 coefficients_[kSteps];
    std::uint32_t sums_[4];
};

// What the sum of a chunk's rows, as if it had all of its blocks, counts in its field's root. All
// lanes of a warp call it, and all have it.
__device__ std::uint64_t chunk_weight(std::uint32_t chunk, std::uint32_t blocks) {
    const std::uint32_t chunks = (blocks + kChunkBlocks - 1) / kChunkBlocks;
    const unsigned lane = threadIdx.x % 32;
    std::uint64_t weight = 1;
    if (lane == 0 && chunk + 1 == chunks && blocks % kChunkBlocks != 0)
        weight = kRhoPowers.of_lacking[chunks * kChunkBlocks - blocks];
    // A node with a right neighbour is a left child, and counts by the level's power.
    const std::uint32_t node = chunk >> lane;
    if (node % 2 == 0 && node < (chunks - 1) >> lane) weight = multiply61(weight, kRhoPowers.of_level[lane]);
    // No higher level has two nodes.
    for (unsigned distance = 1; distance < 32 && (chunks - 1) >> distance != 0; distance *= 2)
        weight = multiply61(weight, warp::across(weight, static_cast<int>(distance)));
    return warp::from(weight, 0);
}

// Adds a half of the sum of a thread block; who adds the last one hands it out, and leaves zero.
// Who sees it may give the sums to another launch.
constexpr unsigned long long kOneShare = 1ULL << 48;  // thread blocks are counted above the sums
struct AddedHalf {
    unsigned long long* sum;
    unsigned long long all;  // with this share
    bool last;

    __device__ AddedHalf(std::uint64_t* of, std::uint64_t half, std::uint32_t shares)
        : sum(reinterpret_cast<unsigned long long*>(of)) {
        const unsigned long long before = atomicAdd(sum, half + kOneShare);
        all = before % kOneShare + half;
        last = before / kOneShare == shares - 1;
    }
    __device__ void clear() const {
        if (last) *static_cast<volatile unsigned long long*>(sum) = 0;
    }
    __device__ void hand_out(std::uint64_t* to) const {
        if (last) *static_cast<volatile std::uint64_t*>(to) = all;
    }
};
__device__ void add_share(const RootField& of, std::uint64_t sum) {
    const std::uint64_t half_low = sum & 0xFFFFFFFFU;
    const std::uint64_t half_high = sum >> 32;
    if (of.shares == 1) {
        *static_cast<volatile std::uint64_t*>(&of.root->low) = half_low;
        *static_cast<volatile std::uint64_t*>(&of.root->high) = half_high;
        return;
    }
    const AddedHalf low(&of.sums->low, half_low, of.shares);
    const AddedHalf high(&of.sums->high, half_high, of.shares);
    if (!low.last && !high.last) return;
    low.clear();
    high.clear();
    __threadfence_system();
    low.hand_out(&of.root->low);
    high.hand_out(&of.root->high);
}

// Whatever was put into the stream before has been done, and its writes are seen. Without effect in
// a launch that did not begin early.
__device__ inline void wait_for_work_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

// Adds what the threads of a block have of a field. warps: room for it.
__device__ void add_total(const RootField& of, std::uint64_t total, std::uint64_t (&warps)[kWarps]) {
#pragma unroll
    for (int distance = 16; distance != 0; distance /= 2)
        total = add61(total, warp::across(total, distance));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    std::uint64_t all = 0;
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w)
        all = add61(all, warps[w]);
    add_share(of, all);
}

// Each thread block takes as many consecutive blocks of the launch as any other, give or take one.
// A thread keeps its sum of all chunks of a field, so that threads meet once a field, and once in
// about kWarps chunks for their weights.
template <class Word, class Field, unsigned Most>
__global__ void __launch_bounds__(kThreads, 2)
    make_roots(const __grid_constant__ RootLaunch<Field, Most> launch) {
    __shared__ SharedTables tables;
    // Of chunks from `first_weight` on. The last place is looked at for parts of one chunk alone,
    // and not used.
    __shared__ std::uint64_t weights[kWarps + 1];
    // Sums of the warps. Two: those of the last field are read while this one's are made.
    __shared__ std::uint64_t warps[2][kWarps];
    auto number = static_cast<std::uint32_t>(std::uint64_t{launch.blocks} * blockIdx.x / gridDim.x);
    const auto end = static_cast<std::uint32_t>(std::uint64_t{launch.blocks} * (blockIdx.x + 1) / gridDim.x);
    if (number >= end) return;
    Products<Word> products(tables);
    wait_for_work_before();
    Part next = part_at(launch, number, end, field_of(launch, number));
    uint4 first_half[kHalf][2];
    uint4 second_half[kHalf][2];
    {
        const ReaderOf<Field> reader(launch.fields[next.field], next);
        reader.template read<Word>(0, first_half);
        reader.template read<Word>(kHalf, second_half);
    }
    std::uint32_t first_weight = 0;
    std::uint32_t weights_end = 0;
    std::uint64_t total = 0;
    for (unsigned side = 0;;) {
        const Part part = next;
        const Field& of = launch.fields[part.field];
        number += part.blocks;
        const bool more = number < end;
        if (more) next = part_at(launch, number, end, part.field);
        const std::uint32_t chunk = part.first_block / kChunkBlocks;
        if ((part.first_block + part.blocks - 1) / kChunkBlocks >= weights_end) {
            first_weight = chunk;
            weights_end = chunk + kWarps;
            __syncthreads();
            const std::uint64_t weight = chunk_weight(chunk + threadIdx.x / 32, blocks_of(of));
            if (threadIdx.x % 32 == 0) weights[threadIdx.x / 32] = weight;
            __syncthreads();
        }
        products.begin();
        // What comes next is read where what was read before has been used.
        const ReaderOf<Field> reader(launch.fields[next.field], next);
        products.add(0, first_half);
        if (more) reader.template read<Word>(0, first_half);
        products.add(1, second_half);
        if (more) reader.template read<Word>(kHalf, second_half);
        total = add61(total, products.sum(part, &weights[chunk - first_weight]));
        if (more && next.field == part.field) continue;
        add_total(of, total, warps[side]);
        if (!more) return;
        side ^= 1;
        total = 0;
        weights_end = 0;
    }
}

// Of spread runs: thread blocks take parts in turn, as neighbouring parts lie side by side in lines
// of memory. Else each line would come several times.
template <class Word, unsigned Most>
__global__ void __launch_bounds__(kThreads, 2)
    make_spread_roots(const __grid_constant__ RootLaunch<SpreadField, Most> launch) {
    extern __shared__ uint4 brought[];
    __shared__ SharedTables tables;
    __shared__ std::uint64_t weights[2];  // of the part's only chunk
    __shared__ std::uint64_t warps[2][kWarps];
    auto* const memory = reinterpret_cast<std::byte*>(brought);
    std::uint32_t number = blockIdx.x;
    if (number >= launch.blocks) return;
    Products<Word> products(tables);
    wait_for_work_before();
    std::uint32_t field = 0;
    const auto ends_before = [&](std::uint32_t part) {
        return field + 1 < launch.count && launch.fields[field + 1].first_block <= part;
    };
    std::uint64_t total = 0;
    for (unsigned side = 0; number < launch.blocks;) {
        while (ends_before(number))
            ++field;
        const SpreadField& of = launch.fields[field];
        const std::uint32_t first = (number - of.first_block) * launch.part_blocks;
        const Part part{field, min(launch.part_blocks, blocks_of(of) - first), first};
        __syncthreads();  // what was brought before has been read
        if (threadIdx.x < 32) {
            const std::uint64_t weight = chunk_weight(first / kChunkBlocks, blocks_of(of));
            if (threadIdx.x < 2) weights[threadIdx.x] = weight;
        }
        SpreadReader::bring<Word>(memory, of, part);
        __syncthreads();
        const SpreadReader reader(memory, of, part);
        products.begin();
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            uint4 vectors[kHalf][2];
            reader.template read<Word>(half * kHalf, vectors);
            products.add(half, vectors);
        }
        total = add61(total, products.sum(part, weights));
        number += gridDim.x;
        if (number < launch.blocks && !ends_before(number)) continue;
        add_total(of, total, warps[side]);
        side ^= 1;
        total = 0;
    }
}

// The kernel for arrays of a kind.
template <class Word, class Field, unsigned Most>
constexpr auto kernel_of() {
    if constexpr (kIsSpread<Field>)
        return make_spread_roots<Word, Most>;
    else
        return make_roots<Word, Field, Most>;
}

// What is asked for once a device.
struct Abilities {
    unsigned most_blocks;  // of a launch: two for each multiprocessor are at work together
    bool begins_early;     // a launch may begin while the kernel before it ends
};
template <class Word, class Field, unsigned Most>
DeviceStatus abilities(int device, Abilities* of) {
    constexpr int kMostDevices = 64;
    static std::atomic<unsigned> known[kMostDevices];  // twice the blocks, and 1 for the other
    unsigned packed = device < kMostDevices ? known[device].load(std::memory_order_relaxed) : 0;
    if (packed == 0) {
        int multiprocessors = 0;
        TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
        // The code must be one that waits: an older device's, translated by the driver, does not.
        constexpr auto kKernel = kernel_of<Word, Field, Most>();
        if (kIsSpread<Field>) {
            TWR_GPU(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SpreadReader::kBytes));
        }
        cudaFuncAttributes compiled{};
        TWR_GPU(cudaFuncGetAttributes(&compiled, kKernel));
        const bool waits = compiled.ptxVersion >= 90 && compiled.binaryVersion >= 90;
        packed = static_cast<unsigned>(std::max(multiprocessors, 1)) * 4 + (waits ? 1 : 0);
        if (device < kMostDevices) known[device].store(packed, std::memory_order_relaxed);
    }
    *of = {packed / 2, packed % 2 != 0};
    return {};
}

// The layout of an item.
void fill_in(const DeviceRootItem&, RootField*) {}
void fill_in_dimensions(const DeviceRootItem& item, RunsField* field) {
    field->dimensions = item.runs.dimensions;
    for (int d = 0; d < item.runs.dimensions; ++d) {
        field->shape[d] = Divisor(item.runs.shape[d]);
        field->strides[d] = item.runs.strides[d];
    }
}
void fill_in(const DeviceRootItem& item, RunsField* field) {
    field->run = Divisor(item.runs.run_bytes / kVector);
    fill_in_dimensions(item, field);
}
void fill_in(const DeviceRootItem& item, SpreadField* field) {
    field->run = Divisor(static_cast<std::uint32_t>(item.runs.run_bytes / item_bytes(item.word)));
    fill_in_dimensions(item, field);
    field->step = item.runs.step;
    const int inner = item.runs.dimensions - 1;
    field->by_runs = inner >= 0 && std::abs(item.runs.strides[inner]) < std::abs(item.runs.step);
}

// Blocks of a part of spread runs: all of a chunk, where that gives work to all thread blocks.
constexpr std::uint32_t part_blocks(std::uint64_t blocks, std::uint32_t thread_blocks) {
    std::uint32_t each = kChunkBlocks;
    while (each > kLeastBlocks && blocks < std::uint64_t{each} * thread_blocks)
        each /= 2;
    return each;
}

// The thread blocks of a launch, and how many of them take some of each field.
template <class Field, unsigned Most>
std::uint32_t share_out(std::uint32_t most, RootLaunch<Field, Most>* all) {
    const std::uint32_t n = all->count;
    const auto end_of = [&](std::uint32_t i) {
        return i + 1 < n ? all->fields[i + 1].first_block : all->blocks;
    };
    if constexpr (kIsSpread<Field>) {
        const std::uint32_t grid = std::min(most, all->blocks);
        for (std::uint32_t i = 0; i < n; ++i)
            all->fields[i].shares = std::min(grid, end_of(i) - all->fields[i].first_block);
        return grid;
    }
    // Where there are many small arrays, one for each of them.
    const std::uint32_t grid = std::min(most, std::max(n, (all->blocks + kLeastBlocks - 1) / kLeastBlocks));
    // Thread block b begins at block floor(blocks b / grid), so block i belongs to the last b with
    // blocks b / grid < i + 1.
    const auto owner = [&](std::uint32_t i) { return ((std::uint64_t{i} + 1) * grid - 1) / all->blocks; };
    for (std::uint32_t i = 0; i < n; ++i) {
        all->fields[i].shares =
            static_cast<std::uint32_t>(owner(end_of(i) - 1) - owner(all->fields[i].first_block) + 1);
    }
    return grid;
}

template <class Word, class Field, unsigned Most>
DeviceStatus launch(int device, const DeviceRootItem* const* items, unsigned n, StreamHandle stream) {
    Abilities able{};
    if (const DeviceStatus status = abilities<Word, Field, Most>(device, &able); status.failed) return status;
    const auto blocks_in = [](const DeviceRootItem& item) {
        return (item.words * sizeof(Word) + kBlockBytes - 1) / kBlockBytes;
    };
    RootLaunch<Field, Most> all;
    all.count = n;
    all.part_blocks = 1;
    if (kIsSpread<Field>) {
        std::uint64_t blocks = 0;
        for (unsigned i = 0; i < n; ++i)
            blocks += blocks_in(*items[i]);
        all.part_blocks = part_blocks(blocks, able.most_blocks);
    }
    all.blocks = 0;
    for (unsigned i = 0; i < n; ++i) {
        const DeviceRootItem& item = *items[i];
        static_cast<RootField&>(all.fields[i]) = {static_cast<const std::byte*>(item.data),
                                                  item.words * sizeof(Word),
                                                  item.root,
                                                  item.sums,
                                                  all.blocks,
                                                  0};
        fill_in(item, &all.fields[i]);
        all.blocks += static_cast<std::uint32_t>((blocks_in(item) + all.part_blocks - 1) / all.part_blocks);
    }
    const std::uint32_t grid = share_out(able.most_blocks, &all);
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = kThreads;
    config.dynamicSmemBytes = kIsSpread<Field> ? SpreadReader::kBytes : 0;
    config.stream = gpu_stream(stream);
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = able.begins_early ? 1 : 0;
    TWR_GPU(cudaLaunchKernelEx(&config, kernel_of<Word, Field, Most>(), all));
    return {};
}

// Whether it is an array of this kind.
template <class Field>
bool is_field(const DeviceRuns& runs) {
    if (std::is_same_v<Field, RootField>) return runs.run_bytes == 0;
    return runs.run_bytes != 0 && runs.spread == kIsSpread<Field>;
}

// Those of one type among the items, dense ones or others: as many of them in a launch as go in.
template <class Word, class Field>
DeviceStatus launch_all(int device, DType word, const DeviceRootItem* items, std::size_t n,
                        StreamHandle stream) {
    constexpr unsigned kMost = std::is_same_v<Field, RootField> ? kMostRoots : kFewRoots;
    const DeviceRootItem* some[kMost];
    unsigned count = 0;
    std::uint64_t blocks = 0;
    const auto start = [&]() -> DeviceStatus {
        const unsigned all = std::exchange(count, 0);
        blocks = 0;
        if (all == 0) return {};
        return all <= kFewRoots ? launch<Word, Field, kFewRoots>(device, some, all, stream)
                                : launch<Word, Field, kMost>(device, some, all, stream);
    };
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].word != word || !is_field<Field>(items[i].runs)) continue;
        const std::uint64_t more = (items[i].words * sizeof(Word) + kBlockBytes - 1) / kBlockBytes;
        if (count == kMost || blocks + more > kMostBlocks) {
            if (const DeviceStatus status = start(); status.failed) return status;
        }
        some[count++] = &items[i];
        blocks += more;
    }
    return start();
}

template <class Word>
DeviceStatus launch_all(int device, DType word, const DeviceRootItem* items, std::size_t n,
                        StreamHandle stream) {
    DeviceStatus status = launch_all<Word, RootField>(device, word, items, n, stream);
    if (!status.failed) status = launch_all<Word, RunsField>(device, word, items, n, stream);
    return status.failed ? status : launch_all<Word, SpreadField>(device, word, items, n, stream);
}

// Whether the layout is one that the kernel takes, and has as many words.
bool is_possible(const DeviceRootItem& item) {
    const DeviceRuns& runs = item.runs;
    if (item.words == 0 || item.words > kMostRootBytes / item_bytes(item.word)) return false;
    if (runs.run_bytes == 0) return true;
    const std::uint64_t word = item_bytes(item.word);
    const std::uint64_t bytes = item.words * word;
    const std::uint64_t unit = runs.spread ? word : kRootRunUnit;
    const auto signed_unit = static_cast<std::int64_t>(unit);
    if (bytes > kMostRunsBytes || runs.dimensions < 0 || runs.dimensions > kMostRunDimensions ||
        runs.run_bytes % unit != 0 || reinterpret_cast<std::uintptr_t>(item.data) % unit != 0 ||
        (runs.spread && runs.step % signed_unit != 0))
        return false;
    std::uint64_t all = runs.run_bytes;
    for (int d = 0; d < runs.dimensions; ++d) {
        if (runs.strides[d] % signed_unit != 0 || runs.shape[d] == 0 || runs.shape[d] > bytes / all)
            return false;
        all *= runs.shape[d];
    }
    return all == bytes;
}

}  // namespace

DeviceStatus roots(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream) {
    TWR_GPU_CURRENT(device);
    for (std::size_t i = 0; i < n; ++i) {
        if (!is_possible(items[i]))
            return gpu_failure(ErrorCode::internal, device,
                               "roots of arrays of an impossible size or layout");
    }
    DeviceStatus status = launch_all<std::int8_t>(device, DType::i8, items, n, stream);
    if (!status.failed) status = launch_all<std::int16_t>(device, DType::i16, items, n, stream);
    if (!status.failed) status = launch_all<std::int32_t>(device, DType::i32, items, n, stream);
    return status;
}

}  // namespace twinrun::gpu
