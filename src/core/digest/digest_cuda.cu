// The table "digest" of the device library: what digest_kernel.cuh leaves to do, and the launches.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "digest/digest_device.hpp"
#include "digest/digest_kernel.cuh"
#include "digest/published.hpp"

namespace twinrun {

namespace gpu {

namespace {

constexpr unsigned kSimpleThreads = 256;

// ---- chunks of more than 16 blocks: their pieces, joined by Horner's rule ----

struct Join {
    const std::uint64_t* coarse_pieces;
    const std::uint64_t* fine_pieces;
    std::uint64_t* coarse;
    std::uint64_t* fine;
    std::uint64_t chunks;
    std::uint64_t first_chunk;  // among all of the launch
    std::uint64_t blocks;
    std::uint32_t pieces_per_chunk;
};

__global__ void join_pieces(const Join* joins, std::uint32_t count, std::uint64_t chunks) {
    const std::uint64_t number = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
    if (number >= chunks) return;
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (joins[middle].first_chunk <= number ? low : high) = middle;
    }
    const Join& join = joins[low];
    const std::uint64_t chunk = number - join.first_chunk;
    const std::uint64_t pieces = (join.blocks + kRows - 1) / kRows;
    const std::uint64_t begin = chunk * join.pieces_per_chunk;
    const std::uint64_t end = begin + join.pieces_per_chunk < pieces ? begin + join.pieces_per_chunk : pieces;
    const std::uint64_t whole = power61(kRho, kRows);
    std::uint64_t coarse = 0;
    std::uint64_t fine = 0;
    for (std::uint64_t p = begin; p < end; ++p) {
        const std::uint64_t left = join.blocks - p * kRows;
        const std::uint64_t power = left >= kRows ? whole : power61(kRho, left);
        coarse = add61(multiply61(coarse, power), join.coarse_pieces[p]);
        fine = add61(multiply61(fine, power), join.fine_pieces[p]);
    }
    if (join.coarse != nullptr) join.coarse[chunk] = coarse;
    if (join.fine != nullptr) join.fine[chunk] = fine;
}

// ---- the sample of magnitudes, for warnings ----

// bytes: the sample starts anew in each, as on the host
constexpr std::uint64_t kSampleSlice = 1 << 20;
constexpr std::uint64_t kSampleStride = 1021;

struct Sample {
    const std::byte* data;
    std::uint64_t scalars;
    std::uint64_t first_slice;  // among all of the launch
    unsigned long long* largest;
    DType scalar;
    std::uint8_t item_shift;
};

// A warp a slice.
__global__ void sample_largest(const Sample* samples, std::uint32_t count, std::uint64_t slices) {
    const std::uint64_t number = (blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x) / 32;
    if (number >= slices) return;
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (samples[middle].first_slice <= number ? low : high) = middle;
    }
    const Sample& sample = samples[low];
    const std::uint64_t in_slice = kSampleSlice >> sample.item_shift;
    const std::uint64_t begin = (number - sample.first_slice) * in_slice;
    const std::uint64_t end = begin + in_slice < sample.scalars ? begin + in_slice : sample.scalars;
    std::uint64_t largest = 0;  // bits: they are in the order of magnitudes
    for (std::uint64_t i = begin + threadIdx.x % 32 * kSampleStride; i < end; i += 32 * kSampleStride) {
        // 64-bit integers have no part in it, as on the host.
        if (sample.scalar == DType::i64 || sample.scalar == DType::u64) break;
        const double x =
            value_of(raw_scalar(sample.data + (i << sample.item_shift), sample.item_shift), sample.scalar);
        const std::uint64_t bits = bits_of(x) & ~(1ULL << 63);
        if (bits < 0x7FF0000000000000ULL && bits > largest) largest = bits;
    }
    for (int lanes = 16; lanes != 0; lanes /= 2) {
        const std::uint64_t other = warp::across(largest, lanes);
        if (other > largest) largest = other;
    }
    if (threadIdx.x % 32 == 0 && largest != 0)
        atomicMax(sample.largest, static_cast<unsigned long long>(largest));
}

// ---- published digests: a thread a chunk, for each hash is the seed of the next ----

struct Published {
    const std::byte* data;
    std::uint64_t scalars;
    std::uint64_t first_chunk;  // among all of the launch
    std::uint64_t* leaves;
    double atol;
    std::uint32_t chunk_scalars;
    DType scalar;
    std::uint8_t item_shift;
    ComputeType type;
    bool vectors;  // 16-byte loads
};

__device__ void hash_floats(const float* x, unsigned n, double inverse, std::uint64_t& h1,
                            std::uint64_t& h2) {
    std::uint32_t number[4] = {};
    std::uint64_t marks = 0;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
        if (j >= n) break;
        bool is_own = false;
        number[j] = published_number(x[j], __float_as_uint(x[j]), inverse, is_own);
        marks |= static_cast<std::uint64_t>(is_own) << j;
    }
    murmur3f(number[0] | static_cast<std::uint64_t>(number[1]) << 32,
             number[2] | static_cast<std::uint64_t>(number[3]) << 32, h1, h2);
    h1 ^= marks;
}

__device__ void hash_words(const std::uint64_t* own, unsigned n, ComputeType type, double inverse,
                           std::uint64_t& h1, std::uint64_t& h2) {
    std::uint64_t number[2] = {};
    std::uint64_t marks = 0;
#pragma unroll
    for (unsigned j = 0; j < 2; ++j) {
        if (j >= n) break;
        bool is_own = false;
        const double x =
            type == ComputeType::f64 ? __longlong_as_double(static_cast<long long>(own[j])) : 0.0;
        number[j] = published_number(x, own[j], type, inverse, is_own);
        marks |= static_cast<std::uint64_t>(is_own) << j;
    }
    murmur3f(number[0], number[1], h1, h2);
    h1 ^= marks;
}

__global__ void published_chunks(const Published* fields, std::uint32_t count, std::uint64_t chunks) {
    const std::uint64_t chunk_number = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
    if (chunk_number >= chunks) return;
    std::uint32_t low = 0;
    std::uint32_t high = count;
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (fields[middle].first_chunk <= chunk_number ? low : high) = middle;
    }
    const Published field = fields[low];
    const std::uint64_t chunk = chunk_number - field.first_chunk;
    const std::uint64_t first = chunk * field.chunk_scalars;
    const std::uint64_t left = field.scalars - first;
    const unsigned n = left < field.chunk_scalars ? static_cast<unsigned>(left) : field.chunk_scalars;
    const double inverse = published_inverse(field.atol);
    const std::byte* at = field.data + (first << field.item_shift);
    std::uint64_t h1 = 0;
    std::uint64_t h2 = 0;
    unsigned i = 0;
    if (field.vectors && field.scalar == DType::f32) {
        for (; i + 4 <= n; i += 4) {
            const float4 x = *reinterpret_cast<const float4*>(at + i * 4);
            const float values[4] = {x.x, x.y, x.z, x.w};
            hash_floats(values, 4, inverse, h1, h2);
        }
    } else if (field.vectors && field.item_shift == 3) {
        for (; i + 2 <= n; i += 2) {
            const ulonglong2 x = *reinterpret_cast<const ulonglong2*>(at + i * 8);
            const std::uint64_t own[2] = {x.x, x.y};
            hash_words(own, 2, field.type, inverse, h1, h2);
        }
    }
    const unsigned group = field.type == ComputeType::f32 ? 4 : 2;
    for (; i < n; i += group) {
        const unsigned here = n - i < group ? n - i : group;
        if (field.type == ComputeType::f32) {
            float x[4] = {};
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                if (j < here) {
                    x[j] = static_cast<float>(
                        value_of(raw_scalar(at + (std::size_t{i + j} << field.item_shift), field.item_shift),
                                 field.scalar));
                }
            }
            hash_floats(x, here, inverse, h1, h2);
        } else {
            std::uint64_t own[2] = {};
#pragma unroll
            for (unsigned j = 0; j < 2; ++j) {
                if (j < here) {
                    const std::uint64_t raw =
                        raw_scalar(at + (std::size_t{i + j} << field.item_shift), field.item_shift);
                    own[j] = field.type == ComputeType::f64 ? bits_of(value_of(raw, field.scalar)) : raw;
                }
            }
            hash_words(own, here, field.type, inverse, h1, h2);
        }
    }
    field.leaves[chunk_number * 2 - field.first_chunk * 2] = h1;
    field.leaves[chunk_number * 2 - field.first_chunk * 2 + 1] = h2;
}

// ---- sketches: a warp a chunk ----

struct Sketch {
    DeviceSketchItem item;
    std::uint64_t block_scalars;
    std::uint64_t chunk_scalars;
    std::uint64_t block_bytes;  // of residues
};

__global__ void __launch_bounds__(kSimpleThreads) check_sketches(Sketch sketch) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    auto* r = reinterpret_cast<std::uint64_t*>(shared_memory);
    for (std::uint64_t i = threadIdx.x; i < sketch.block_scalars; i += kSimpleThreads)
        r[i] = coefficient(i);
    __syncthreads();
    const DeviceSketchItem& item = sketch.item;
    const unsigned bits = item.residue_bits;
    const unsigned per_line = 512 / bits;
    const unsigned per_word = 64 / bits;
    const unsigned half = 1U << (bits - 1);
    const unsigned mask = (1U << bits) - 1;
    const unsigned lane = threadIdx.x % 32;
    const std::uint64_t warps = std::uint64_t{gridDim.x} * (kSimpleThreads / 32);
    for (std::uint64_t at = blockIdx.x * std::uint64_t{kSimpleThreads / 32} + threadIdx.x / 32;
         at < item.count; at += warps) {
        const std::uint64_t chunk = item.chunks == nullptr ? at : item.chunks[at];
        const std::uint64_t first = chunk * sketch.chunk_scalars;
        const std::uint64_t left = item.scalars - first;
        const std::uint64_t n = left < sketch.chunk_scalars ? left : sketch.chunk_scalars;
        std::uint64_t residues = first / sketch.block_scalars * sketch.block_bytes;
        std::uint64_t correction = 0;
        // Counts of |c| = 0 to 7 of this chunk, 16 bits each: a block has at most 4096 scalars.
        std::uint64_t narrow[2] = {};
        unsigned long long counts[8] = {};
        bool beyond = false;
        bool wide = false;
        for (std::uint64_t done = 0; done < n; done += sketch.block_scalars) {
            const auto in_block =
                static_cast<unsigned>(n - done < sketch.block_scalars ? n - done : sketch.block_scalars);
            const unsigned words = (in_block + per_line - 1) / per_line * 8;
            const auto* a = reinterpret_cast<const std::uint64_t*>(item.residues_a + residues);
            const auto* b = reinterpret_cast<const std::uint64_t*>(item.residues_b + residues);
            std::int64_t low = 0;
            std::int64_t high = 0;
            for (unsigned w = lane; w < words; w += 32) {
                const std::uint64_t x = a[w];
                const std::uint64_t y = b[w];
                unsigned position = w / 8 * per_line + w % 8;
                for (unsigned i = 0; i < per_word && position < in_block; ++i, position += 8) {
                    const unsigned wrapped =
                        (static_cast<unsigned>(x >> (i * bits)) - static_cast<unsigned>(y >> (i * bits))) &
                        mask;
                    const int c =
                        static_cast<int>(wrapped) - (wrapped >= half ? static_cast<int>(mask) + 1 : 0);
                    const auto size = static_cast<unsigned>(c < 0 ? -c : c);
                    if (size >= half) {
                        beyond = true;
                    } else {
                        narrow[size / 4] += 1ULL << (size % 4 * 16);
                    }
                    wide = wide || static_cast<int>(size) > item.widest;
                    low += static_cast<std::int64_t>(r[position] & 0x3FFFFFFF) * c;
                    high += static_cast<std::int64_t>(r[position] >> 30) * c;
                }
            }
            std::uint64_t block = add61(signed61(low), multiply61(signed61(high), 1ULL << 30));
            for (int lanes = 16; lanes != 0; lanes /= 2)
                block = add61(block, warp::across(block, lanes));
            correction = add61(multiply61(correction, kRho), block);
            for (unsigned i = 0; i < 8; ++i)
                counts[i] += narrow[i / 4] >> (i % 4 * 16) & 0xFFFF;
            narrow[0] = narrow[1] = 0;
            residues += (in_block + per_line - 1) / per_line * std::uint64_t{kResidueLine};
        }
        const bool proven =
            !warp::any(beyond || wide) && subtract61(item.fine_a[chunk], item.fine_b[chunk]) == correction;
        if (proven) {
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
                std::uint64_t sum = counts[i];
                for (int lanes = 16; lanes != 0; lanes /= 2)
                    sum += warp::across(sum, lanes);
                if (lane == 0 && sum != 0) {
                    atomicAdd(reinterpret_cast<unsigned long long*>(item.counts) + i,
                              static_cast<unsigned long long>(sum));
                }
            }
        }
        if (lane == 0) item.proven[at] = proven ? 1 : 0;
    }
}

// ---- launches ----

unsigned item_shift(DType scalar) {
    switch (item_bytes(scalar)) {
        case 1: return 0;
        case 2: return 1;
        case 4: return 2;
        default: return 3;
    }
}

// Which instance of the kernel a field takes: fields of one key share a launch.
struct Key {
    bool fixed;  // a floating-point type, or 64-bit integers under words: through shared memory
    bool words;  // integers that are their own cells, through shared memory
    DType scalar;
    CellKind kind;
    std::uint8_t bits;
    KeyBits left;  // of cells of a fixed type
    bool operator==(const Key&) const = default;
};
Key key_of(const DeviceDigestItem& item) {
    const bool aligned16 = reinterpret_cast<std::uintptr_t>(item.data) % 16 == 0;
    const CellRule& rule = item.settings.rule;
    const bool integers64 = item.scalar == DType::i64 || item.scalar == DType::u64;
    const bool floats = item.scalar == DType::f16 || item.scalar == DType::bf16 ||
                        item.scalar == DType::f32 || item.scalar == DType::f64;
    const bool fixed = aligned16 && (floats || (integers64 && rule.kind == CellKind::words));
    // An integer is its own cell under the absolute rule with a spacing of 1.
    const CellKind kind = rule.kind == CellKind::integers ? CellKind::absolute : rule.kind;
    const bool words = aligned16 && !floats && !integers64 && kind == CellKind::absolute &&
                       rule.fine_exponent == 0 && rule.coarse_shift == 0 && item.residues == nullptr;
    const std::uint8_t bits = item.residues == nullptr ? std::uint8_t{0} : rule.residue_bits;
    // Others share an instance by the scalar's size, for the coefficients of a block.
    DType scalar = item.scalar;
    if (!fixed && !words) {
        constexpr DType of_size[] = {DType::u8, DType::u16, DType::u32, DType::u64};
        scalar = of_size[item_shift(item.scalar)];
    }
    return {fixed,
            words,
            scalar,
            kind,
            is_exact(rule.kind) ? std::uint8_t{0} : bits,
            fixed ? bits_left(rule, scalar) : KeyBits::all};
}
bool is_signed(DType scalar) {
    return scalar == DType::i8 || scalar == DType::i16 || scalar == DType::i32 || scalar == DType::i64;
}
KernelChoice kernel_for(const Key& key) {
    if (key.words) return words_kernel(key.scalar);
    if (!key.fixed) return any_kernel(key.kind, key.bits, item_shift(key.scalar));
    switch (key.scalar) {
        case DType::f16: return f16_kernel(key.kind, key.bits, key.left);
        case DType::bf16: return bf16_kernel(key.kind, key.bits, key.left);
        case DType::f32: return f32_kernel(key.kind, key.bits, key.left);
        case DType::i64:
        case DType::u64: return integers64_kernel();
        default: return f64_kernel(key.kind, key.bits, key.left);
    }
}

// As compute_type(), which belongs to the core.
ComputeType compute_type_of(DType scalar) {
    switch (scalar) {
        case DType::f64:
        case DType::i32:
        case DType::u32: return ComputeType::f64;
        case DType::i64: return ComputeType::i64;
        case DType::u64: return ComputeType::u64;
        default: return ComputeType::f32;
    }
}

std::uint64_t blocks_of(const DeviceDigestItem& item) {
    const std::uint64_t per_block = kBlockBytes / item_bytes(item.scalar);
    return (item.scalars + per_block - 1) / per_block;
}
std::uint64_t chunks_of(const DeviceDigestItem& item) {
    const std::uint64_t per_chunk = item.settings.chunk_bytes / item_bytes(item.scalar);
    return (item.scalars + per_chunk - 1) / per_chunk;
}
bool has_pieces(const DeviceDigestItem& item) {
    return item.settings.kind == DigestKind::linear && item.settings.chunk_bytes > kRows * kBlockBytes;
}

constexpr std::size_t kMostGroups = 128;  // kinds of fields: there are fewer instances and sizes

// Where things lie in the scratch areas. The first part is made on the host and copied; pieces are
// on the device only.
struct Places {
    std::size_t fields = 0;
    std::size_t joins = 0;
    std::size_t samples = 0;
    std::size_t published = 0;
    std::size_t copied = 0;  // end of what is copied
    std::size_t counters = 0;
    std::size_t pieces = 0;
    std::size_t end = 0;
};
Places places_of(const DeviceDigestItem* items, std::size_t n) {
    std::uint64_t pieces = 0;
    std::size_t joins = 0;
    std::size_t samples = 0;
    std::size_t published = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (items[i].largest != nullptr) ++samples;
        if (items[i].settings.kind == DigestKind::published) ++published;
        if (!has_pieces(items[i])) continue;
        ++joins;
        pieces += (blocks_of(items[i]) + kRows - 1) / kRows;
    }
    Places at;
    at.joins = device_aligned(n * sizeof(Field));
    at.samples = at.joins + device_aligned(joins * sizeof(Join));
    at.published = at.samples + device_aligned(samples * sizeof(Sample));
    at.counters = at.published + device_aligned(published * sizeof(Published));
    at.copied = at.counters + device_aligned(std::min(n, kMostGroups) * sizeof(unsigned long long));
    at.pieces = at.copied;
    at.end = at.pieces + pieces * 2 * sizeof(std::uint64_t);
    return at;
}

// The kernel's part of the chip: asked for once a device and kernel.
struct Fit {
    std::atomic<int> blocks{0};
};
DeviceStatus fit_of(int device, const KernelChoice& choice, const void* kernel, unsigned threads,
                    int* blocks) {
    // Few kernels and devices: a small table, found by its kernel.
    struct Entry {
        std::atomic<const void*> kernel{nullptr};
        std::atomic<std::size_t> shared{0};
        Fit fits[kMostDevices];
    };
    static Entry entries[128];
    Entry* entry = nullptr;
    for (Entry& e : entries) {
        const void* expected = nullptr;
        if (e.kernel.compare_exchange_strong(expected, kernel)) e.shared = choice.shared;
        if (e.kernel.load() == kernel && e.shared.load() == choice.shared) {
            entry = &e;
            break;
        }
    }
    const bool cached = entry != nullptr && device < kMostDevices;
    if (cached && (*blocks = entry->fits[device].blocks.load()) != 0) return {};
    int multiprocessors = 0;
    int each = 0;
    TWR_GPU(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    TWR_GPU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(choice.most_shared)));
    TWR_GPU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, static_cast<int>(threads),
                                                          choice.shared));
    if (each == 0)
        return gpu_failure(ErrorCode::unsupported, device,
                           "the device has too little shared memory for digests");
    *blocks = each * multiprocessors;
    if (cached) entry->fits[device].blocks = *blocks;
    return {};
}

// The kernel for so many tiles of fields with this key, and how many of its blocks fit on the chip.
DeviceStatus choose_kernel(int device, const Key& key, std::uint64_t tiles, KernelChoice* choice,
                           int* blocks) {
    const auto fit = [&] {
        return fit_of(device, *choice, reinterpret_cast<const void*>(choice->kernel), choice->threads,
                      blocks);
    };
    if (key.words && is_signed(key.scalar)) {
        // Few tiles take a block each, if all of them fit at once.
        *choice = few_words_kernel(item_shift(key.scalar));
        const DeviceStatus status = fit();
        if (status.failed || tiles <= static_cast<std::uint64_t>(*blocks)) return status;
    }
    *choice = kernel_for(key);
    return fit();
}

std::uint64_t bias_sum(std::uint64_t bias, std::uint64_t block_scalars) {
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < block_scalars; ++i)
        sum = add61(sum, reduce61(coefficient(i)));
    return multiply61(sum, reduce61(bias));
}
// For blocks of 512 to 4096 scalars.
std::uint64_t bias_sum_of(const Key& key, DType scalar) {
    struct Sums {
        std::uint64_t of[5][4];
    };
    static const Sums once = [] {
        Sums sums{};
        for (unsigned shift = 0; shift < 4; ++shift) {
            sums.of[0][shift] = bias_sum(Cells<CellKind::absolute>::kBias, kBlockBytes >> shift);
            sums.of[1][shift] = bias_sum(Cells<CellKind::relative>::kBias, kBlockBytes >> shift);
            // The highest bit of a signed word.
            sums.of[2][shift] = bias_sum(1ULL << ((8 << shift) - 1), kBlockBytes >> shift);
            using Absolute = Cells<CellKind::absolute>;
            sums.of[4][shift] = bias_sum(Absolute::kBias + Absolute::kSmallBias, kBlockBytes >> shift);
            static_assert(Cells<CellKind::relative>::kShortBias == 31);
            sums.of[3][shift] = bias_sum(1ULL << 31, kBlockBytes >> shift);
        }
        return sums;
    }();
    if (key.kind == CellKind::tokens || key.kind == CellKind::words) return 0;
    if (key.words) return is_signed(scalar) ? once.of[2][item_shift(scalar)] : 0;
    if (key.left != KeyBits::all || (key.fixed && key.kind == CellKind::binary32))
        return once.of[3][item_shift(scalar)];
    if (key.fixed && key.kind == CellKind::absolute && item_shift(scalar) == 1) return once.of[4][1];
    return once.of[key.kind == CellKind::relative ? 1 : 0][item_shift(scalar)];
}

double inverse_of(const CellRule& rule) {
    // Where the scale is no float64, every value leaves the loop.
    const int exponent = -rule.fine_exponent;
    if (exponent > 1023 || exponent < -1074) return __builtin_nan("");
    return std::ldexp(1.0, exponent);
}

void scratch(const DeviceDigestItem* items, std::size_t n, std::size_t* device_bytes,
             std::size_t* host_bytes) {
    const Places at = places_of(items, n);
    *device_bytes = at.end;
    *host_bytes = at.copied;
}

unsigned grid_for(std::uint64_t work, unsigned each) {
    return static_cast<unsigned>(std::min<std::uint64_t>((work + each - 1) / each, 0x7FFFFFFF));
}

// The fields that one kernel takes: they lie together.
struct FieldGroup {
    Key key;
    std::uint32_t first;
    std::uint32_t count;
    std::uint64_t tiles;
};

// What a call asks of the kernels, in the caller's memory of the host. It is copied to the same
// places on the device.
class DigestTables {
   public:
    DigestTables(const Places& at, std::byte* on_host, std::byte* on_device)
        : fields_(reinterpret_cast<Field*>(on_host + at.fields)),
          joins_(reinterpret_cast<Join*>(on_host + at.joins)),
          samples_(reinterpret_cast<Sample*>(on_host + at.samples)),
          published_(reinterpret_cast<Published*>(on_host + at.published)),
          pieces_(reinterpret_cast<std::uint64_t*>(on_device + at.pieces)) {}

    // False: there are too many kinds of fields.
    bool fill(const DeviceDigestItem* items, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            const DeviceDigestItem& item = items[i];
            if (item.scalars == 0) continue;
            if (item.largest != nullptr) add_sample(item);
            if (item.settings.kind == DigestKind::published) {
                add_published(item);
            } else if (!add_group(key_of(item))) {
                return false;
            }
        }
        // Keys are few: each pass over the items takes those of one.
        for (std::size_t g = 0; g < group_count; ++g) {
            FieldGroup& group = groups[g];
            group.first = field_count_;
            for (std::size_t i = 0; i < n; ++i) {
                const DeviceDigestItem& item = items[i];
                const bool has_field = item.scalars != 0 && item.settings.kind != DigestKind::published;
                if (has_field && key_of(item) == group.key) add_field(item, group);
            }
        }
        return true;
    }

    FieldGroup groups[kMostGroups];
    std::size_t group_count = 0;
    std::uint32_t join_count = 0;
    std::uint32_t sample_count = 0;
    std::uint32_t published_count = 0;
    std::uint64_t join_chunks = 0;
    std::uint64_t sample_slices = 0;
    std::uint64_t published_chunk_count = 0;

   private:
    void add_sample(const DeviceDigestItem& item) {
        const std::uint64_t bytes = item.scalars * item_bytes(item.scalar);
        samples_[sample_count++] = {static_cast<const std::byte*>(item.data),
                                    item.scalars,
                                    sample_slices,
                                    reinterpret_cast<unsigned long long*>(item.largest),
                                    item.scalar,
                                    static_cast<std::uint8_t>(item_shift(item.scalar))};
        sample_slices += (bytes + kSampleSlice - 1) / kSampleSlice;
    }
    void add_published(const DeviceDigestItem& item) {
        published_[published_count++] = {
            static_cast<const std::byte*>(item.data),
            item.scalars,
            published_chunk_count,
            item.leaves,
            item.settings.tolerance.atol,
            static_cast<std::uint32_t>(item.settings.chunk_bytes / item_bytes(item.scalar)),
            item.scalar,
            static_cast<std::uint8_t>(item_shift(item.scalar)),
            compute_type_of(item.scalar),
            reinterpret_cast<std::uintptr_t>(item.data) % 16 == 0};
        published_chunk_count += chunks_of(item);
    }
    bool add_group(const Key& key) {
        const bool known =
            std::any_of(groups, groups + group_count, [&](const FieldGroup& g) { return g.key == key; });
        if (known) return true;
        if (group_count == kMostGroups) return false;
        groups[group_count++] = {key, 0, 0, 0};
        return true;
    }
    void add_field(const DeviceDigestItem& item, FieldGroup& group) {
        const CellRule& rule = item.settings.rule;
        const std::uint64_t blocks = blocks_of(item);
        const std::uint64_t tiles = (blocks + kRows - 1) / kRows;
        Field& field = fields_[field_count_++];
        field = {};
        field.data = static_cast<const std::byte*>(item.data);
        field.scalars = item.scalars;
        field.first_tile = group.tiles;
        field.leaves = item.leaves;
        field.fine = item.fine;
        field.residues = group.key.bits == 0 ? nullptr : item.residues;
        field.counts = reinterpret_cast<unsigned long long*>(item.counts);
        field.inverse = group.key.kind == CellKind::absolute ? inverse_of(rule) : 0;
        field.bias_sum = bias_sum_of(group.key, item.scalar);
        field.rule = rule;
        field.scalar = item.scalar;
        field.item_shift = static_cast<std::uint8_t>(item_shift(item.scalar));
        field.aligned = reinterpret_cast<std::uintptr_t>(item.data) % 16 == 0;
        field.piece_blocks =
            static_cast<std::uint32_t>(std::min<std::size_t>(item.settings.chunk_bytes / kBlockBytes, kRows));
        if (has_pieces(item)) add_join(item, field, blocks, tiles);
        group.tiles += tiles;
        ++group.count;
    }
    // The kernel digests pieces of chunks, which are joined afterwards.
    void add_join(const DeviceDigestItem& item, Field& field, std::uint64_t blocks, std::uint64_t tiles) {
        field.leaves = pieces_;
        field.fine = pieces_ + tiles;
        joins_[join_count++] = {
            pieces_,         pieces_ + tiles,
            item.leaves,     item.fine,
            chunks_of(item), join_chunks,
            blocks,          static_cast<std::uint32_t>(item.settings.chunk_bytes / kBlockBytes / kRows)};
        join_chunks += chunks_of(item);
        pieces_ += 2 * tiles;
    }

    Field* fields_;
    Join* joins_;
    Sample* samples_;
    Published* published_;
    std::uint64_t* pieces_;  // on the device: those that no field has yet
    std::uint32_t field_count_ = 0;
};

// Starts the kernel of group `g`.
DeviceStatus launch_group(int device, const DigestTables& tables, std::size_t g, const Places& at,
                          std::byte* on_device, cudaStream_t stream) {
    const FieldGroup& group = tables.groups[g];
    KernelChoice choice;
    int blocks = 0;
    if (const DeviceStatus status = choose_kernel(device, group.key, group.tiles, &choice, &blocks);
        status.failed) {
        return status;
    }
    const Launch launch{reinterpret_cast<const Field*>(on_device + at.fields) + group.first, group.count,
                        group.tiles, reinterpret_cast<unsigned long long*>(on_device + at.counters) + g};
    const unsigned grid = std::min(grid_for(group.tiles, choice.tiles), static_cast<unsigned>(blocks));
    choice.kernel<<<grid, choice.threads, choice.shared, stream>>>(launch, item_shift(group.key.scalar));
    TWR_GPU_LAUNCHED("digests of blocks");
    return {};
}

// Starts the kernels behind those of groups.
DeviceStatus launch_rest(int device, const DigestTables& tables, const Places& at, const std::byte* on_device,
                         cudaStream_t stream) {
    if (tables.join_count != 0) {
        join_pieces<<<grid_for(tables.join_chunks, kSimpleThreads), kSimpleThreads, 0, stream>>>(
            reinterpret_cast<const Join*>(on_device + at.joins), tables.join_count, tables.join_chunks);
        TWR_GPU_LAUNCHED("digests of chunks");
    }
    if (tables.sample_count != 0) {
        sample_largest<<<grid_for(tables.sample_slices * 32, kSimpleThreads), kSimpleThreads, 0, stream>>>(
            reinterpret_cast<const Sample*>(on_device + at.samples), tables.sample_count,
            tables.sample_slices);
        TWR_GPU_LAUNCHED("sample of magnitudes");
    }
    if (tables.published_count != 0) {
        constexpr unsigned kPublishedThreads = 64;
        published_chunks<<<grid_for(tables.published_chunk_count, kPublishedThreads), kPublishedThreads, 0,
                           stream>>>(reinterpret_cast<const Published*>(on_device + at.published),
                                     tables.published_count, tables.published_chunk_count);
        TWR_GPU_LAUNCHED("published digests");
    }
    return {};
}

DeviceStatus digest(int device, const DeviceDigestItem* items, std::size_t n, void* scratch_memory,
                    void* host_scratch, StreamHandle stream_handle) {
    if (n == 0) return {};
    TWR_GPU_CURRENT(device);
    const cudaStream_t stream = gpu_stream(stream_handle);
    const Places at = places_of(items, n);
    auto* on_host = static_cast<std::byte*>(host_scratch);
    auto* on_device = static_cast<std::byte*>(scratch_memory);
    DigestTables tables(at, on_host, on_device);
    if (!tables.fill(items, n)) return gpu_failure(ErrorCode::internal, device, "too many kinds of fields");
    // Copied, as clearing them on the device would be one more call of the driver.
    std::memset(on_host + at.counters, 0, tables.group_count * sizeof(unsigned long long));
    TWR_GPU(cudaMemcpyAsync(on_device, on_host, at.copied, cudaMemcpyHostToDevice, stream));
    for (std::size_t g = 0; g < tables.group_count; ++g) {
        const DeviceStatus status = launch_group(device, tables, g, at, on_device, stream);
        if (status.failed) return status;
    }
    return launch_rest(device, tables, at, on_device, stream);
}

DeviceStatus sketch(int device, const DeviceSketchItem& item, StreamHandle stream_handle) {
    if (item.count == 0) return {};
    TWR_GPU_CURRENT(device);
    Sketch sketch{};
    sketch.item = item;
    sketch.block_scalars = kBlockBytes / item_bytes(item.scalar);
    sketch.chunk_scalars = item.chunk_bytes / item_bytes(item.scalar);
    sketch.block_bytes = residue_bytes(sketch.block_scalars, item.residue_bits);
    const KernelChoice choice{nullptr, sketch.block_scalars * sizeof(std::uint64_t),
                              (kBlockBytes / item_bytes(DType::u8)) * sizeof(std::uint64_t)};
    int blocks = 0;
    if (const DeviceStatus status =
            fit_of(device, choice, reinterpret_cast<const void*>(&check_sketches), kSimpleThreads, &blocks);
        status.failed) {
        return status;
    }
    const unsigned grid = std::min(grid_for(item.count, kSimpleThreads / 32), static_cast<unsigned>(blocks));
    check_sketches<<<grid, kSimpleThreads, choice.shared, gpu_stream(stream_handle)>>>(sketch);
    TWR_GPU_LAUNCHED("check of sketches");
    return {};
}

}  // namespace

// roots_cuda.cu
DeviceStatus roots(int device, const DeviceRootItem* items, std::size_t n, StreamHandle stream);

}  // namespace gpu

extern const DeviceDigestKernels kDeviceDigestTable;
const DeviceDigestKernels kDeviceDigestTable = {gpu::scratch, gpu::digest, gpu::sketch, gpu::roots};

}  // namespace twinrun
