// Speed of the device library's kernels beside the device's own limits, all measured in one run, the lines that are compared
// taking turns. Prints one JSON object a line.
//
//   bench_device [--bytes N] [--rounds N] [--only TEXT] [--device N]
//
// bytes: of one array (default 4 GiB). rate: bytes read (and written, where it says so) a second, median; spread: from the
// 10th to the 90th percentile, as a share of the median.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "device/gpu.hpp"
#include "difference/difference_device.hpp"
#include "digest/digest_device.hpp"
#include "sketch/build.hpp"
#include "sketch/device_sums.hpp"
#include "tree/tree_device.hpp"

namespace {

using namespace twinrun;

[[noreturn]] void stop(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);
}
void check(const DeviceStatus& status) {
    if (status.failed) stop(status.text);
}
void check(cudaError_t error) {
    if (error != cudaSuccess) stop(cudaGetErrorString(error));
}
void check(const Result<>& result) {
    if (!result.ok()) stop(result.error().message);
}

// ---- ceilings ----

template <int Loads>
__global__ void read_only(const uint4* data, std::size_t n, std::uint32_t* sink) {
    std::uint32_t all = 0;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + (Loads - 1) * stride < n; i += Loads * stride) {
        uint4 v[Loads];
#pragma unroll
        for (int k = 0; k < Loads; ++k)
            v[k] = __ldcs(data + i + k * stride);
#pragma unroll
        for (int k = 0; k < Loads; ++k)
            all |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += stride)
        all |= data[i].x;
    if (all == 0x12345) *sink = all;
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::size_t n) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
        __stcs(to + i, __ldcs(from + i));
}

// Approximately normal values, the same for the same seed.
__device__ double normal(std::uint64_t i, std::uint64_t seed) {
    const std::uint64_t a = splitmix64(i * 2 + seed * 0x9E3779B97F4A7C15ULL);
    double sum = 0;
    for (int k = 0; k < 4; ++k)
        sum += static_cast<double>(a >> (16 * k) & 0xFFFF);
    return (sum / 65536 - 2) * 1.7320508;
}
template <class T>
struct Steps {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    static __device__ T up(T x, unsigned steps) {
        Bits bits;
        memcpy(&bits, &x, sizeof bits);
        bits += steps;  // away from 0
        memcpy(&x, &bits, sizeof bits);
        return x;
    }
    static __device__ void put(void* to, std::size_t i, double x, unsigned steps) {
        static_cast<T*>(to)[i] = up(static_cast<T>(x), steps);
    }
};
struct Half {};
template <>
struct Steps<Half> {
    static __device__ void put(void* to, std::size_t i, double x, unsigned) {
        const auto value = static_cast<float>(x);
        std::uint16_t bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        static_cast<std::uint16_t*>(to)[i] = bits;
    }
};
struct Bf16 {};
template <>
struct Steps<Bf16> {
    static __device__ void put(void* to, std::size_t i, double x, unsigned steps) {
        static_cast<std::uint16_t*>(to)[i] =
            static_cast<std::uint16_t>((__float_as_uint(static_cast<float>(x)) >> 16) + steps);
    }
};
// kind 0: as a; 1: all within noise; 2: all differ by 2 tolerances; 3: one scalar in 1000 differs by 2 tolerances.
template <class T>
__global__ void make(void* to, std::size_t n, int kind, double noise) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
        double x = normal(i, 1);
        if (kind == 1) x += noise * (static_cast<double>(splitmix64(i + 77) >> 11) * 0x1p-52 - 1);
        if (kind == 2 || (kind == 3 && splitmix64(i + 78) % 1000 == 0)) x += noise;
        Steps<T>::put(to, i, x, 0);
    }
}

// Normal values of a 16-bit type, rounded towards zero.
__global__ void make_halves(std::uint16_t* to, std::size_t n, bool brain) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
        const std::uint32_t bits = __float_as_uint(static_cast<float>(normal(i, 1)));
        const std::uint32_t exponent = bits >> 23 & 0xFF;
        const std::uint32_t half =
            (bits >> 16 & 0x8000) | (exponent < 113 ? 0 : (exponent - 112) << 10) | (bits >> 13 & 0x3FF);
        to[i] = static_cast<std::uint16_t>(brain ? bits >> 16 : half);
    }
}

// One run of 16,384 scalars in `of` becomes this value.
template <class Raw>
__global__ void mask_runs(void* to, std::size_t n, std::uint64_t value, std::uint64_t of) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
        if (splitmix64(i >> 14) % of == 0) static_cast<Raw*>(to)[i] = static_cast<Raw>(value);
}

// For units in the last place and periods: `a` on a circle of length kAround, and b, by kind, beside it.
constexpr double kAround = 10;
enum class Beside : int {
    same,
    some_steps,
    few_many_steps,
    many_steps,
    few_around,
    some_around,
    anywhere,
    powers,
    powers_apart
};
// Integers from 0 to 99; of the second run 0 to 2 above those of the first.
template <class T>
__global__ void make_integers(void* to, std::size_t n, bool second) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
        static_cast<T*>(to)[i] =
            static_cast<T>(splitmix64(2 * i) % 100 + (second ? splitmix64(2 * i + 1) % 3 : 0));
}

template <class T>
__global__ void make_beside(void* to, std::size_t n, Beside kind) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
        const auto share = [&](std::uint64_t seed) {
            return static_cast<double>(splitmix64(i * 8 + seed) >> 11) * 0x1p-53;
        };
        double x = share(0) * kAround;
        unsigned steps = 0;
        const double turn = share(2) < 0.5 ? kAround : -kAround;
        const double noise = (share(3) * 2 - 1) * 0.4e-3;
        switch (kind) {
            case Beside::same: break;
            case Beside::some_steps: steps = static_cast<unsigned>(share(1) * 4.999); break;
            case Beside::few_many_steps: steps = share(1) < 1e-3 ? 100 : share(1) < 0.5 ? 1 : 0; break;
            case Beside::many_steps: steps = 100; break;
            case Beside::few_around: x += noise + (share(1) < 1e-4 ? turn : 0); break;
            case Beside::some_around: x += noise + (share(1) < 0.1 ? turn : 0); break;
            case Beside::anywhere: x = share(4) * kAround; break;
            case Beside::powers:  // by themselves; the next one lies beside them
            case Beside::powers_apart:
                x = exp2(-60 * share(0)) * (kind == Beside::powers ? 1 : 1 + share(1));
                break;
        }
        Steps<T>::put(to, i, x, steps);
    }
}

// ---- measuring ----

struct Line {
    std::string name;
    double bytes;  // that count
    std::function<void(cudaStream_t)> work;
    std::map<std::string, std::string> facts;
    std::vector<double> seconds;
};

class Bench {
   public:
    Bench(int rounds, std::string only) : rounds_(rounds), only_(std::move(only)) {
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        check(cudaEventCreate(&begin_));
        check(cudaEventCreate(&end_));
    }
    void add(Line line) {
        if (only_.empty() || line.name.find(only_) != std::string::npos || line.facts.count("ceiling") != 0)
            lines_.push_back(std::move(line));
    }
    void run() {
        for (Line& line : lines_) {
            line.work(stream_);
            check(cudaStreamSynchronize(stream_));
        }
        for (int round = 0; round < rounds_; ++round) {
            for (Line& line : lines_) {
                check(cudaEventRecord(begin_, stream_));
                line.work(stream_);
                check(cudaEventRecord(end_, stream_));
                check(cudaEventSynchronize(end_));
                float ms = 0;
                check(cudaEventElapsedTime(&ms, begin_, end_));
                line.seconds.push_back(ms / 1000.0);
            }
        }
        for (Line& line : lines_) {
            std::sort(line.seconds.begin(), line.seconds.end());
            const auto at = [&](double share) {
                return line
                    .seconds[static_cast<std::size_t>(share * static_cast<double>(line.seconds.size() - 1))];
            };
            const double median = at(0.5);
            std::printf("{\"line\": \"%s\"", line.name.c_str());
            for (const auto& [key, value] : line.facts)
                std::printf(", \"%s\": \"%s\"", key.c_str(), value.c_str());
            std::printf(", \"GBps\": %.1f, \"spread\": %.3f, \"ms\": %.4f}\n", line.bytes / median / 1e9,
                        (at(0.9) - at(0.1)) / median, median * 1e3);
            std::fflush(stdout);
        }
        lines_.clear();
    }

   private:
    int rounds_;
    std::string only_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    std::vector<Line> lines_;
};

std::string text(std::size_t n) { return std::to_string(n); }

DigestSettings settings_of(double atol, unsigned bits, std::uint32_t chunk,
                           DigestKind kind = DigestKind::linear) {
    DigestSettings s;
    s.kind = kind;
    s.tolerance = {atol, 0};
    if (kind == DigestKind::linear) s.rule = *cell_rule(s.tolerance, bits);
    s.chunk_bytes = chunk;
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    std::size_t bytes = 4ULL << 30;
    int rounds = 15;
    int device = 0;
    std::string only;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::strcmp(argv[i], "--bytes") == 0)
            bytes = std::strtoull(argv[i + 1], nullptr, 0) / 4096 * 4096;
        if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::atoi(argv[i + 1]);
        if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
        if (std::strcmp(argv[i], "--device") == 0) device = std::atoi(argv[i + 1]);
    }
    if (probe_devices().usable().empty()) stop(probe_devices().reason);
    check(cudaSetDevice(device));
    const DeviceDigestKernels& digests = *device_digest_kernels();
    const DeviceDifferenceKernels* differences = device_difference_kernels();
    const DeviceTreeKernels* trees = device_tree_kernels();
    const DeviceSumsKernels* sums = device_sums_kernels();
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device));
    const DeviceFacts& facts = probe_devices().devices[static_cast<std::size_t>(device)];
    std::printf("{\"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"bytes\": %zu, \"rounds\": %d}\n",
                facts.name, probe_devices().driver_version, probe_devices().runtime_version, bytes, rounds);

    DeviceMemory a, b, out, scratch, host, residues;
    check(a.reserve(device, bytes));
    check(b.reserve(device, bytes));
    check(out.reserve(device, bytes / 4096 * 16 + (64 << 20)));
    check(residues.reserve(device, bytes / 4));
    check(scratch.reserve(device, 256 << 20));
    check(host.reserve(kHostMemory, 256 << 20));
    std::uint32_t* sink = out.as<std::uint32_t>();
    const int wide = properties.multiProcessorCount * 16;

    Bench bench(rounds, only);
    const auto ceilings = [&] {
        bench.add(
            {"read-only, 4 loads",
             static_cast<double>(bytes),
             [&](cudaStream_t s) { read_only<4><<<wide, 256, 0, s>>>(a.as<uint4>(), bytes / 16, sink); },
             {{"ceiling", "read"}}});
        bench.add(
            {"read-only, 8 loads",
             static_cast<double>(bytes),
             [&](cudaStream_t s) { read_only<8><<<wide / 2, 256, 0, s>>>(a.as<uint4>(), bytes / 16, sink); },
             {{"ceiling", "read"}}});
        bench.add({"copy, kernel (read + written)",
                   2.0 * static_cast<double>(bytes),
                   [&](cudaStream_t s) {
                       copy_kernel<<<wide, 256, 0, s>>>(a.as<uint4>(), b.as<uint4>(), bytes / 16);
                   },
                   {{"ceiling", "copy"}}});
        bench.add({"copy, cudaMemcpy (read + written)",
                   2.0 * static_cast<double>(bytes),
                   [&](cudaStream_t s) {
                       check(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, s));
                   },
                   {{"ceiling", "copy"}}});
    };
    const auto digest_line = [&](DType scalar, std::uint32_t chunk, unsigned bits, double atol,
                                 DigestKind kind, const std::string& name) {
        const std::size_t chunks = bytes / chunk;
        DeviceDigestItem item;
        item.data = a.data();
        item.scalars = bytes / item_bytes(scalar);
        item.scalar = scalar;
        item.settings = settings_of(atol, bits, chunk, kind);
        item.leaves = out.as<std::uint64_t>();
        item.fine = out.as<std::uint64_t>() + chunks;
        item.residues = bits == 0 ? nullptr : residues.data();
        const double counted = static_cast<double>(bytes) +
                               (bits == 0 ? 0.0 : static_cast<double>(bytes / item_bytes(scalar) * bits / 8));
        bench.add(
            {name,
             counted,
             [&, item](cudaStream_t s) {
                 check(digests.digest(device, &item, 1, scratch.data(), host.data(), s));
             },
             {{"dtype", std::string(dtype_name(scalar))}, {"chunk", text(chunk)}, {"bits", text(bits)}}});
    };

    for (const DType scalar : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        if (scalar == DType::f32) {
            make<float><<<wide, 256>>>(a.data(), bytes / 4, 0, 0.0);
        } else if (scalar == DType::f64) {
            make<double><<<wide, 256>>>(a.data(), bytes / 8, 0, 0.0);
        } else {
            make_halves<<<wide, 256>>>(a.as<std::uint16_t>(), bytes / 2, scalar == DType::bf16);
        }
        check(cudaDeviceSynchronize());
        ceilings();
        for (std::uint32_t chunk = 4096; chunk <= 1 << 20; chunk *= 4) {
            digest_line(scalar, chunk, 0, 1e-3, DigestKind::linear, "digest, fine + coarse");
            digest_line(scalar, chunk, 4, 1e-3, DigestKind::linear,
                        "digest, fine + coarse + residues (read + written)");
        }
        digest_line(scalar, 4096, 2, 1e-3, DigestKind::linear,
                    "digest, fine + coarse + residues (read + written)");
        for (const std::uint32_t chunk : {4096U, 65536U, 524288U})
            digest_line(scalar, chunk, 0, 1e-3, DigestKind::published, "published Murmur3F");
        // What is not made for speed.
        DigestSettings exact = settings_of(0, 0, 4096);
        DeviceDigestItem item;
        item.data = a.data();
        item.scalars = bytes / item_bytes(scalar);
        item.scalar = scalar;
        item.settings = exact;
        item.leaves = out.as<std::uint64_t>();
        bench.add({"digest, exact (tokens)",
                   static_cast<double>(bytes),
                   [&, item](cudaStream_t s) {
                       check(digests.digest(device, &item, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        DeviceDigestItem by_bits = item;
        by_bits.settings.rule = *cell_rule({0, 0}, 0, scalar);
        bench.add({"digest, exact (bits)",
                   static_cast<double>(bytes),
                   [&, by_bits](cudaStream_t s) {
                       check(digests.digest(device, &by_bits, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        // Integers, whose bits are those of the numbers.
        for (const DType integer :
             {DType::i64, DType::u32, DType::i32, DType::u16, DType::u8, DType::boolean}) {
            if (scalar != DType::f32) break;
            DeviceDigestItem of_integers = item;
            of_integers.scalar = integer;
            of_integers.scalars = bytes / item_bytes(integer);
            for (const bool tokens : {true, false}) {
                of_integers.settings.rule = tokens ? *cell_rule({0, 0}, 0) : *cell_rule({0, 0}, 0, integer);
                bench.add({tokens ? "digest, exact (tokens)" : "digest, exact (bits)",
                           static_cast<double>(bytes),
                           [&, of_integers](cudaStream_t s) {
                               check(digests.digest(device, &of_integers, 1, scratch.data(), host.data(), s));
                           },
                           {{"dtype", std::string(dtype_name(integer))}}});
            }
        }
        DeviceDigestItem words = item;
        words.scalar = item_bytes(scalar) == 2 ? DType::i16 : DType::i32;
        words.scalars = bytes / item_bytes(words.scalar);
        words.settings.tolerance = {1, 0};
        words.settings.rule = *cell_rule(words.settings.tolerance, 0);
        bench.add({"digest, exact, of words",
                   static_cast<double>(bytes),
                   [&, words](cudaStream_t s) {
                       check(digests.digest(device, &words, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(words.scalar))}}});
        item.settings.tolerance = {1e-6, 1e-6};
        item.settings.rule = *cell_rule(item.settings.tolerance, 0);
        bench.add({"digest, relative tolerance",
                   static_cast<double>(bytes),
                   [&, item](cudaStream_t s) {
                       check(digests.digest(device, &item, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        item.settings.tolerance = {1e-300, 0};
        item.settings.rule = *cell_rule(item.settings.tolerance, 0);
        bench.add({"digest, every value far from its cells",
                   static_cast<double>(bytes),
                   [&, item](cudaStream_t s) {
                       check(digests.digest(device, &item, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        bench.run();

        // Many tensors of mixed sizes, one call, against one array.
        std::vector<DeviceDigestItem> many;
        std::size_t at = 0;
        for (std::uint64_t k = 0; k < 1000; ++k) {
            const double share = static_cast<double>(splitmix64(k) >> 11) * 0x1p-53;
            std::size_t size = static_cast<std::size_t>(std::exp(share * 9.2) * 4096.0) / 4 * 4;
            if (k % 100 == 0) size = bytes / 40;
            size = std::min(size, bytes - at);
            if (size == 0) break;
            DeviceDigestItem one;
            one.data = a.data() + at;
            one.scalars = size / item_bytes(scalar);
            one.scalar = scalar;
            one.settings = settings_of(1e-3, 0, 4096);
            one.leaves = out.as<std::uint64_t>() + at / 4096 + k;
            one.fine = one.leaves + bytes / 4096 + 4096;
            many.push_back(one);
            at = (at + size + 511) / 512 * 512;
            at = std::min(at, bytes);
        }
        ceilings();
        DeviceDigestItem whole = many.front();
        whole.data = a.data();
        whole.scalars = at / item_bytes(scalar);
        bench.add({"digest, one array",
                   static_cast<double>(at),
                   [&, whole](cudaStream_t s) {
                       check(digests.digest(device, &whole, 1, scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        bench.add({"digest, " + text(many.size()) + " tensors",
                   static_cast<double>(at),
                   [&](cudaStream_t s) {
                       check(
                           digests.digest(device, many.data(), many.size(), scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        bench.run();

        // Sums by place of parts of global arrays, beside the digest that they come with.
        if (sums != nullptr) {
            ceilings();
            digest_line(scalar, 4096, 0, 1e-3, DigestKind::linear, "sums: digest alone, fine + coarse");
            const std::uint64_t scalars = bytes / item_bytes(scalar);
            struct Placed {
                const char* name;
                std::uint64_t row;  // scalars of the part; 0: whole planes
                std::uint64_t of;   // of the global array
            };
            const Placed placed[] = {
                {"whole planes, not at a chunk", 0, 0}, {"rows of 1024 of 2048", 1024, 2048},
                {"rows of 1000 of 2001", 1000, 2001},   {"rows of 256 of 1024", 256, 1024},
                {"rows of 64 of 128", 64, 128},         {"rows of 64 of 1024", 64, 1024},
                {"rows of 63 of 127", 63, 127},         {"rows of 16 of 32", 16, 32}};
            const auto sums_line = [&](const std::string& name, const FieldMetadata& field) {
                const auto plan = plan_device_sums(field);
                if (plan == nullptr) stop(name + ": no sums");
                const DeviceSumsItem item =
                    sums_item(*plan, field, 0, field.scalars(), a.data(), out.as<std::uint64_t>());
                std::size_t device_bytes = 0;
                std::size_t host_bytes = 0;
                sums->scratch(&item, 1, &device_bytes, &host_bytes);
                check(scratch.reserve(device, device_bytes));
                check(host.reserve(kHostMemory, host_bytes));
                check(out.reserve(device, plan->sums.count() * kSumsWords * 8));
                bench.add({"sums: " + name,
                           static_cast<double>(field.data_bytes()),
                           [&, plan, field](cudaStream_t s) {
                               const DeviceSumsItem now = sums_item(*plan, field, 0, field.scalars(),
                                                                    a.data(), out.as<std::uint64_t>());
                               check(sums->add(device, &now, 1, scratch.data(), host.data(), s));
                           },
                           {{"dtype", std::string(dtype_name(scalar))},
                            {"height", text(plan->sums.height())},
                            {"buckets", text(plan->sums.count())}}});
            };
            for (const Placed& p : placed) {
                for (const Tolerance tolerance :
                     {Tolerance{1e-3, 0}, Tolerance{1e-6, 1e-6}, Tolerance{0, 0}}) {
                    if (tolerance.rtol != 0 || tolerance.atol == 0) {
                        if (p.row != 0 && p.row != 64) continue;
                    }
                    FieldPlan plan;
                    plan.name = p.name;
                    plan.dtype = scalar;
                    plan.shape = {p.row == 0 ? scalars : scalars / p.row / 64, 64, p.row};
                    plan.global_shape = {plan.shape[0] + 1, 64, p.of};
                    plan.global_offset = {1, 0, 0};
                    if (p.row == 0) {
                        plan.shape = {scalars};
                        plan.global_shape = {scalars + 1000};
                        plan.global_offset = {777};
                    }
                    plan.tolerance = tolerance;
                    const std::string kind = tolerance.rtol != 0   ? ", relative tolerance"
                                             : tolerance.atol == 0 ? ", exact (tokens)"
                                                                   : "";
                    sums_line(p.name + kind, plan_field(std::move(plan)).value());
                }
            }
            bench.run();
        }

        // Masks: NaN, a fill value (1e20; of float16 infinity), or either everywhere.
        const bool narrow = item_bytes(scalar) == 2;
        const std::uint64_t nan = scalar == DType::f64    ? 0x7FF8000000000000U
                                  : scalar == DType::f32  ? 0x7FC00000U
                                  : scalar == DType::bf16 ? 0x7FC0U
                                                          : 0x7E00U;
        const std::uint64_t large = scalar == DType::f64    ? 0x4415AF1D78B58C40U
                                    : scalar == DType::f32  ? 0x60AD78ECU
                                    : scalar == DType::bf16 ? 0x60ADU
                                                            : 0x7C00U;  // infinity: others have cells
        for (const auto& [name, value, of] :
             {std::tuple("a third NaN", nan, 3U), std::tuple("all NaN", nan, 1U),
              std::tuple("all one fill value", large, 1U), std::tuple("a third a fill value", large, 3U)}) {
            const std::size_t n = bytes / item_bytes(scalar);
            if (of == 3) {
                if (scalar == DType::f32) make<float><<<wide, 256>>>(a.data(), n, 0, 0.0);
                if (scalar == DType::f64) make<double><<<wide, 256>>>(a.data(), n, 0, 0.0);
                if (narrow) make_halves<<<wide, 256>>>(a.as<std::uint16_t>(), n, scalar == DType::bf16);
            }
            if (scalar == DType::f32) mask_runs<std::uint32_t><<<wide, 256>>>(a.data(), n, value, of);
            if (scalar == DType::f64) mask_runs<std::uint64_t><<<wide, 256>>>(a.data(), n, value, of);
            if (narrow) mask_runs<std::uint16_t><<<wide, 256>>>(a.data(), n, value, of);
            check(cudaDeviceSynchronize());
            digest_line(scalar, 4096, 0, 1e-3, DigestKind::linear, std::string("digest, masked: ") + name);
            digest_line(scalar, 4096, 4, 1e-3, DigestKind::linear,
                        std::string("digest, masked (read + written): ") + name);
            bench.run();
        }

        if (trees != nullptr) {
            const std::size_t leaves = bytes / 4096;
            std::vector<DeviceTreeItem> tree(1);
            tree[0] = {out.as<std::uint64_t>(), leaves, DigestKind::linear, 1};
            bench.add({"tree, one",
                       static_cast<double>(leaves * 8),
                       [&, tree](cudaStream_t s) {
                           check(trees->build(device, tree.data(), 1, scratch.data(), host.data(), s));
                       },
                       {}});
            bench.run();
        }
        if (differences == nullptr || differences->compare == nullptr) continue;
        const char* const names[] = {"identical", "all within the tolerance", "all differ", "0.1% differ"};
        for (int kind = 0; kind < 4; ++kind) {
            // Of 16-bit types so that rounding does not hide what is added.
            const double unit = item_bytes(scalar) == 2 ? 16e-3 : 1e-3;
            const double noise = kind == 1 ? 0.4 * unit : 2 * unit;
            const auto fill = [&](DeviceMemory& to, int by) {
                const std::size_t n = bytes / item_bytes(scalar);
                if (scalar == DType::f32) make<float><<<wide, 256>>>(to.data(), n, by, noise);
                if (scalar == DType::f64) make<double><<<wide, 256>>>(to.data(), n, by, noise);
                if (scalar == DType::f16) make<Half><<<wide, 256>>>(to.data(), n, by, noise);
                if (scalar == DType::bf16) make<Bf16><<<wide, 256>>>(to.data(), n, by, noise);
            };
            fill(a, 0);
            fill(b, kind);
            check(cudaDeviceSynchronize());
            DeviceDifference what;
            what.scalar = scalar;
            what.rule.tolerance = {1e-3, 0};
            what.chunk_scalars = 4096 / item_bytes(scalar);
            const DevicePart part{a.data(), b.data(), bytes / item_bytes(scalar), 0};
            std::size_t device_bytes = 0;
            std::size_t host_bytes = 0;
            differences->scratch(device, what, &part, 1, &device_bytes, &host_bytes);
            check(scratch.reserve(device, device_bytes));
            bench.add(
                {"read-only, 4 loads",
                 static_cast<double>(bytes),
                 [&](cudaStream_t s) { read_only<4><<<wide, 256, 0, s>>>(a.as<uint4>(), bytes / 16, sink); },
                 {{"ceiling", "read"}}});
            for (const Tolerance tolerance : {Tolerance{unit, 0}, Tolerance{unit / 10, unit}}) {
                what.rule.tolerance = tolerance;
                bench.add({std::string("elements, ") + names[kind],
                           2.0 * static_cast<double>(bytes),
                           [&, what, part](cudaStream_t s) {
                               check(
                                   differences->compare(device, what, &part, 1,
                                                        reinterpret_cast<DeviceDifferenceResult*>(out.data()),
                                                        scratch.data(), host.data(), s));
                           },
                           {{"dtype", std::string(dtype_name(scalar))},
                            {"tolerance", tolerance.rtol == 0 ? "absolute" : "combined"}}});
            }
            bench.run();
        }
    }

    // Units in the last place and periods, beside the plain rule on the same data and reading both arrays.
    if (differences == nullptr || differences->compare == nullptr) return 0;
    const auto fill_beside = [&](DType scalar, std::byte* to, Beside kind) {
        const std::size_t n = bytes / item_bytes(scalar);
        if (scalar == DType::f32) make_beside<float><<<wide, 256>>>(to, n, kind);
        if (scalar == DType::f64) make_beside<double><<<wide, 256>>>(to, n, kind);
        if (scalar == DType::bf16) make_beside<Bf16><<<wide, 256>>>(to, n, kind);
        check(cudaDeviceSynchronize());
    };
    const std::pair<Beside, const char*> besides[] = {
        {Beside::same, "identical"},
        {Beside::some_steps, "all within 4 ULPs"},
        {Beside::few_many_steps, "0.1% 100 ULPs apart"},
        {Beside::many_steps, "all 100 ULPs apart"},
        {Beside::few_around, "noise, 0.01% once around"},
        {Beside::some_around, "noise, 10% once around"},
        {Beside::anywhere, "anywhere"},
    };
    for (const DType scalar : {DType::f32, DType::f64, DType::bf16}) {
        for (const auto& [kind, name] : besides) {
            const bool around = kind == Beside::same || kind >= Beside::few_around;
            const bool ulps = kind <= Beside::many_steps;
            if (scalar == DType::bf16 && !ulps) continue;
            fill_beside(scalar, a.data(), Beside::same);
            fill_beside(scalar, b.data(), kind);
            DeviceDifference what;
            what.scalar = scalar;
            what.chunk_scalars = 4096 / item_bytes(scalar);
            const DevicePart part{a.data(), b.data(), bytes / item_bytes(scalar), 0};
            std::size_t device_bytes = 0;
            std::size_t host_bytes = 0;
            differences->scratch(device, what, &part, 1, &device_bytes, &host_bytes);
            check(scratch.reserve(device, device_bytes));
            bench.add({"measures: read-only, 4 loads",
                       2.0 * static_cast<double>(bytes),
                       [&](cudaStream_t s) {
                           read_only<4><<<wide, 256, 0, s>>>(a.as<uint4>(), bytes / 16, sink);
                           read_only<4><<<wide, 256, 0, s>>>(b.as<uint4>(), bytes / 16, sink);
                       },
                       {}});
            const auto measured = [&](const char* rule, const DifferenceRule& by) {
                what.rule = by;
                bench.add({std::string("measures: ") + name,
                           2.0 * static_cast<double>(bytes),
                           [&, what, part](cudaStream_t s) {
                               check(
                                   differences->compare(device, what, &part, 1,
                                                        reinterpret_cast<DeviceDifferenceResult*>(out.data()),
                                                        scratch.data(), host.data(), s));
                           },
                           {{"dtype", std::string(dtype_name(scalar))}, {"rule", rule}}});
            };
            measured("plain, 1e-3", {{1e-3, 0}});
            if (ulps) {
                measured("ulps 4", {{0, 0}, true, {.ulps = 4}});
                measured("ulps 4 or 1e-6", {{1e-6, 0}, true, {.ulps = 4}});
            }
            if (around) {
                measured("period", {{1e-3, 0}, true, {.period = {kAround}}});
                measured("3 periods in turn",
                         {{1e-3, 0}, true, {.period = {kAround, kAround, kAround}, .components = 3}});
                measured("period, ulps 4", {{1e-3, 0}, true, {.ulps = 4, .period = {kAround}}});
            }
            bench.run();
        }
    }

    // Elements of integers, some of them as far apart as is allowed, and of arrays that begin beside a multiple of 16.
    const auto others = [&](std::string name, DType scalar, std::size_t past, double atol) {
        DeviceDifference what;
        what.scalar = scalar;
        what.rule.tolerance = {atol, 0};
        what.chunk_scalars = 4096 / item_bytes(scalar);
        const std::size_t skip = past * item_bytes(scalar);
        const DevicePart part{a.data() + skip, b.data() + skip, bytes / item_bytes(scalar) - past, 0};
        std::size_t device_bytes = 0;
        std::size_t host_bytes = 0;
        differences->scratch(device, what, &part, 1, &device_bytes, &host_bytes);
        check(scratch.reserve(device, device_bytes));
        bench.add({"others: " + std::move(name),
                   2.0 * static_cast<double>(bytes),
                   [&, what, part](cudaStream_t s) {
                       check(differences->compare(device, what, &part, 1,
                                                  reinterpret_cast<DeviceDifferenceResult*>(out.data()),
                                                  scratch.data(), host.data(), s));
                   },
                   {{"dtype", std::string(dtype_name(scalar))}}});
        bench.run();
    };
    const auto integers = [&]<class T>(DType scalar, T) {
        make_integers<T><<<wide, 256>>>(a.data(), bytes / sizeof(T), false);
        make_integers<T><<<wide, 256>>>(b.data(), bytes / sizeof(T), true);
        check(cudaDeviceSynchronize());
        others("up to 2 apart, exact", scalar, 0, 0);
        others("up to 2 apart, a tolerance of 1", scalar, 0, 1);
    };
    integers(DType::u8, std::uint8_t{});
    integers(DType::i16, std::int16_t{});
    integers(DType::i32, std::int32_t{});
    integers(DType::i64, std::int64_t{});
    for (const DType scalar : {DType::f32, DType::bf16}) {
        fill_beside(scalar, a.data(), Beside::same);
        for (const Beside kind : {Beside::same, Beside::many_steps}) {
            fill_beside(scalar, b.data(), kind);
            others(
                kind == Beside::same ? "identical, one scalar past" : "all 100 ULPs apart, one scalar past",
                scalar, 1, 0);
        }
    }
    // Differences of more decades than there are counters.
    fill_beside(DType::f32, a.data(), Beside::powers);
    fill_beside(DType::f32, b.data(), Beside::powers_apart);
    others("numbers of 60 powers of two, all differ", DType::f32, 0, 0);
    return 0;
}
