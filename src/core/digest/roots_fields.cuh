// Private to roots_cuda.cu: arrays whose roots one launch makes, and what its threads read of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "digest/digest.hpp"
#include "digest/digest_device.hpp"

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

// Where a run begins, by its place among the array's runs.
__device__ inline const std::byte* run_at(const RunsField& of, std::uint32_t run) {
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
// What a lane reads of a part whose vectors are numbered, and each of which is somewhere else.
struct VectorRows {
    std::uint32_t first[2];  // its first vector of each row
    std::uint32_t end[2];    // vectors that there are; 0 for a row that is not there

    // The vectors of an array, numbered from the block `from` on.
    __device__ VectorRows(const Part& part, std::uint32_t from, std::uint32_t vectors) {
        constexpr std::uint32_t kVectors = kBlockBytes / kVector;
        const Rows rows(part);
#pragma unroll
        for (unsigned row = 0; row < 2; ++row) {
            first[row] = (rows.block[row] - from) * kVectors + lane_begin() / kVector;
            end[row] = rows.there[row] ? vectors - from * kVectors : 0;
        }
    }
    // The vectors of some steps; zeros where there is nothing. `load` gives the one with a number.
    template <class Load>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2], Load load) const {
#pragma unroll
        for (unsigned i = 0; i < kHalf; ++i) {
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
                const std::uint32_t vector = first[row] + (first_step + i) * (kStepBytes / kVector);
                vectors[i][row] = {0, 0, 0, 0};
                if (vector < end[row]) vectors[i][row] = load(vector);
            }
        }
    }
};
// Of an array in runs: whole vectors.
struct RunsReader {
    const RunsField& of;
    VectorRows rows;

    __device__ RunsReader(const RunsField& field, const Part& part)
        : of(field), rows(part, 0, static_cast<std::uint32_t>(of.bytes / kVector)) {}
    [[nodiscard]] __device__ const std::byte* at(std::uint32_t vector) const {
        const std::uint32_t run = of.run.quotient(vector);
        return run_at(of, run) + std::uint64_t{vector - run * of.run.by()} * kVector;
    }
    template <class Word>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
        rows.read(first_step, vectors, [this](std::uint32_t vector) {
            return __ldcs(reinterpret_cast<const uint4*>(at(vector)));
        });
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
        : brought_(brought), rows_(part, part.first_block, vectors_of(of)) {}
    template <class Word>
    __device__ void read(unsigned first_step, uint4 (&vectors)[kHalf][2]) const {
        rows_.read(first_step, vectors, [this](std::uint32_t vector) {
            return *reinterpret_cast<const uint4*>(brought_ + place(vector) * kVector);
        });
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

    const std::byte* brought_;
    VectorRows rows_;  // of the vectors from the part's first on
};
template <class Field>
constexpr bool kIsSpread = std::is_same_v<Field, SpreadField>;
template <class Field>
using ReaderOf = std::conditional_t<std::is_same_v<Field, RunsField>, RunsReader, Reader>;

}  // namespace

}  // namespace twinrun::gpu
