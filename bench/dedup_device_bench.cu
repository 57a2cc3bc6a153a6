// Speed of de-duplication on a device: methods, sizes of chunks and kinds of changes, beside the device's own limits, all in one
// run, the lines that are compared taking turns. Prints one JSON object a line.
//
//   bench_dedup_device [--bytes N] [--rounds N] [--chunks 32,64,…] [--patterns one,pages,…] [--slice BYTES] [--table BYTES]
//                      [--device N] [--devices N] [--copy 1]
//
// bytes: of the image (default 4 GiB). A step is timed from the call until all of its difference is in host memory and the
// outcome is there; GBps: bytes of the image over the median of these times; spread: from the 10th to the 90th percentile,
// as a share of the median. The sink looks at what it is given and keeps nothing; with --copy 1 it copies it to ordinary
// memory, as a writer would. of_read: share of what a kernel that only reads the image reaches.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "device/gpu.hpp"

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

// ---- ceilings and images ----

__global__ void read_only(const uint4* data, std::size_t n, std::uint32_t* sink) {
    std::uint32_t all = 0;
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            v[k] = __ldcs(data + i + k * stride);
#pragma unroll
        for (int k = 0; k < 4; ++k)
            all |= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += stride)
        all |= data[i].x;
    if (all == 0x12345) *sink = all;
}

__device__ std::uint64_t mixed(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}
// New contents for one unit in `every`, chosen anew by the seed.
__global__ void change(std::uint64_t* words, std::size_t n, std::uint64_t unit_words, std::uint64_t every,
                       std::uint64_t seed) {
    const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (every == 1 || mixed(i / unit_words ^ seed << 40) % every == 0) words[i] = mixed(i ^ seed << 44);
    }
}

// ---- measuring ----

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Sink final : PayloadSink {
    bool copies = false;
    std::vector<std::byte> kept;
    std::uint64_t bytes = 0;
    Result<> take(const Chunks& chunks) override {
        if (copies) {
            if (kept.size() < chunks.bytes.size()) kept.resize(chunks.bytes.size());
            std::memcpy(kept.data(), chunks.bytes.data(), chunks.bytes.size());
        }
        bytes += chunks.bytes.size();
        return success();
    }
};

struct Samples {
    std::vector<double> seconds;
    [[nodiscard]] double at(double share) {
        std::sort(seconds.begin(), seconds.end());
        return seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1))];
    }
    [[nodiscard]] double median() { return at(0.5); }
    [[nodiscard]] double spread() { return (at(0.9) - at(0.1)) / at(0.5); }
};

// Work on one stream, by events.
class Timer {
   public:
    Timer() {
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        check(cudaEventCreate(&begin_));
        check(cudaEventCreate(&end_));
    }
    double operator()(const std::function<void(cudaStream_t)>& work) {
        check(cudaEventRecord(begin_, stream_));
        work(stream_);
        check(cudaEventRecord(end_, stream_));
        check(cudaEventSynchronize(end_));
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin_, end_));
        return ms / 1000.0;
    }
    [[nodiscard]] cudaStream_t stream() const { return stream_; }

   private:
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

// Lines of kernels that take turns.
class Kernels {
   public:
    Kernels(Timer& timer, int rounds) : timer_(timer), rounds_(rounds) {}
    void add(std::string name, double bytes, std::function<void(cudaStream_t)> work,
             std::function<void()> before = {}) {
        lines_.push_back({std::move(name), bytes, std::move(work), std::move(before), {}});
    }
    void run(std::uint32_t chunk) {
        for (int round = -1; round < rounds_; ++round) {
            for (Line& line : lines_) {
                if (line.before) line.before();
                const double seconds = timer_(line.work);
                if (round >= 0) line.samples.seconds.push_back(seconds);
            }
        }
        for (Line& line : lines_) {
            std::printf("{\"line\": \"%s\", \"chunk\": %u, \"GBps\": %.1f, \"spread\": %.3f, \"ms\": %.4f}\n",
                        line.name.c_str(), chunk, line.bytes / line.samples.median() / 1e9,
                        line.samples.spread(), line.samples.median() * 1e3);
        }
        std::fflush(stdout);
        lines_.clear();
    }

   private:
    struct Line {
        std::string name;
        double bytes;
        std::function<void(cudaStream_t)> work;
        std::function<void()> before;
        Samples samples;
    };
    Timer& timer_;
    int rounds_;
    std::vector<Line> lines_;
};

std::vector<std::string> list_of(const std::string& text) {
    std::vector<std::string> all;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        all.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return all;
}

// As captures have it.
int host_threads() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

constexpr RecordMethod kMethods[] = {RecordMethod::full, RecordMethod::basic, RecordMethod::list,
                                     RecordMethod::tree, RecordMethod::runs};

}  // namespace

// Strong scaling: the same bytes over 1, 2, 4, … devices of the host, a thread each, 1% of 4 KiB pages changed. Time is that of
// the slowest.
static void scaling(int devices, std::size_t bytes, std::size_t slice, int rounds) {
    double one = 0;
    for (int n = 1; n <= devices; n *= 2) {
        const std::size_t part = bytes / static_cast<std::size_t>(n) / (1 << 20) * (1 << 20);
        std::vector<std::vector<double>> seconds(static_cast<std::size_t>(n));
        std::barrier all(n);
        std::vector<std::thread> threads;
        for (int d = 0; d < n; ++d) {
            threads.emplace_back([&, d] {
                check(cudaSetDevice(d));
                DeviceMemory image;
                check(image.reserve(d, part));
                const auto fill = [&](std::uint64_t every, std::uint64_t seed) {
                    change<<<2048, 256>>>(image.as<std::uint64_t>(), part / 8, 512, every, seed);
                    check(cudaDeviceSynchronize());
                };
                DedupOptions options;
                options.chunk_bytes = 256;
                options.threads = host_threads();
                options.slice_chunks = slice / options.chunk_bytes;
                auto made = make_device_deduplicator(d, options);
                if (!made.ok()) stop(made.error().message);
                Sink sink;
                const ImageSegment segment{"image", image.data(), part, {}, DType::u8};
                StepOutcome last;
                for (std::uint32_t step = 0; step < static_cast<std::uint32_t>(rounds) + 3; ++step) {
                    fill(step == 0 ? 1 : 100, step + 1 + 1000U * static_cast<unsigned>(d));
                    (*made)->reuse(std::move(last.runs));
                    all.arrive_and_wait();
                    const double begin = now();
                    auto taken = (*made)->step(step, {&segment, 1}, sink);
                    if (!taken.ok()) stop(taken.error().message);
                    if (step > 2) seconds[static_cast<std::size_t>(d)].push_back(now() - begin);
                    last = std::move(*taken);
                    all.arrive_and_wait();
                }
            });
        }
        for (auto& thread : threads)
            thread.join();
        Samples slowest;
        for (std::size_t r = 0; r < seconds[0].size(); ++r) {
            double most = 0;
            for (const auto& own : seconds)
                most = std::max(most, own[r]);
            slowest.seconds.push_back(most);
        }
        const double rate = static_cast<double>(part) * n / slowest.median();
        if (n == 1) one = rate;
        std::printf(
            "{\"line\": \"scaling\", \"devices\": %d, \"bytes\": %zu, \"GBps\": %.1f, \"spread\": %.3f, "
            "\"efficiency\": %.3f}\n",
            n, part * static_cast<std::size_t>(n), rate / 1e9, slowest.spread(), rate / one / n);
        std::fflush(stdout);
    }
}

int main(int argc, char** argv) {
    std::size_t bytes = 4ULL << 30;
    int rounds = 7;
    int device = 0;
    int devices = 1;
    std::uint64_t slice = 0;
    std::uint64_t table = 0;
    bool copies = false;
    std::vector<std::string> chunks = {"32", "64", "128", "256", "512"};
    std::vector<std::string> patterns = {"nothing", "one", "pages", "region", "known", "all"};
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--bytes") bytes = std::strtoull(argv[i + 1], nullptr, 0) / (1 << 20) * (1 << 20);
        if (name == "--rounds") rounds = std::atoi(argv[i + 1]);
        if (name == "--device") device = std::atoi(argv[i + 1]);
        if (name == "--devices") devices = std::atoi(argv[i + 1]);
        if (name == "--slice") slice = std::strtoull(argv[i + 1], nullptr, 0);
        if (name == "--table") table = std::strtoull(argv[i + 1], nullptr, 0);
        if (name == "--copy") copies = std::atoi(argv[i + 1]) != 0;
        if (name == "--chunks") chunks = list_of(argv[i + 1]);
        if (name == "--patterns") patterns = list_of(argv[i + 1]);
    }
    if (probe_devices().usable().empty()) stop(probe_devices().reason);
    check(cudaSetDevice(device));
    const DeviceDedupKernels& kernels = *device_dedup_kernels();
    const DeviceFacts& facts = probe_devices().devices[static_cast<std::size_t>(device)];
    if (table == 0) table = facts.memory_bytes / 5;
    std::printf(
        "{\"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"bytes\": %zu, \"rounds\": %d, \"slice\": "
        "%llu, "
        "\"table\": %llu, \"copy\": %d}\n",
        facts.name, probe_devices().driver_version, probe_devices().runtime_version, bytes, rounds,
        static_cast<unsigned long long>(slice), static_cast<unsigned long long>(table), copies ? 1 : 0);

    DeviceMemory image, sink_word;
    check(image.reserve(device, bytes));
    check(sink_word.reserve(device, 256));
    const auto wide = static_cast<unsigned>(facts.multiprocessors) * 8;
    std::uint64_t seed = 1;
    Timer timer;
    const auto make = [&](std::uint64_t unit, std::uint64_t every, std::uint64_t with) {
        change<<<wide, 256>>>(image.as<std::uint64_t>(), bytes / 8, std::max<std::uint64_t>(unit / 8, 1),
                              every, with);
        check(cudaDeviceSynchronize());
    };
    make(8, 1, seed);

    // ---- ceilings, and kernels by themselves ----

    const std::size_t half = bytes / 2 / (1 << 20) * (1 << 20);
    const std::size_t sent = std::min<std::size_t>(bytes, 256 << 20);
    double read_rate = 0;
    {
        DeviceMemory pinned;
        check(pinned.reserve(kHostMemory, sent));
        Samples read, copy, send;
        for (int round = -1; round < rounds; ++round) {
            const double r = timer([&](cudaStream_t s) {
                read_only<<<wide, 256, 0, s>>>(image.as<uint4>(), bytes / 16, sink_word.as<std::uint32_t>());
            });
            const double c = timer([&](cudaStream_t s) {
                check(cudaMemcpyAsync(image.data() + half, image.data(), half, cudaMemcpyDeviceToDevice, s));
            });
            const double d = timer([&](cudaStream_t s) {
                check(cudaMemcpyAsync(pinned.data(), image.data(), sent, cudaMemcpyDeviceToHost, s));
            });
            if (round < 0) continue;
            read.seconds.push_back(r);
            copy.seconds.push_back(c);
            send.seconds.push_back(d);
        }
        read_rate = static_cast<double>(bytes) / read.median();
        std::printf("{\"ceiling\": \"read-only kernel\", \"GBps\": %.1f, \"spread\": %.3f}\n",
                    read_rate / 1e9, read.spread());
        std::printf(
            "{\"ceiling\": \"copy on the device, read and written\", \"GBps\": %.1f, \"spread\": %.3f}\n",
            2.0 * static_cast<double>(half) / copy.median() / 1e9, copy.spread());
        std::printf("{\"ceiling\": \"copy to page-locked memory\", \"GBps\": %.1f, \"spread\": %.3f}\n",
                    static_cast<double>(sent) / send.median() / 1e9, send.spread());
        std::fflush(stdout);
    }
    const std::size_t part_bytes = std::min<std::size_t>(bytes, 1ULL << 30);
    Kernels lines(timer, rounds);
    std::vector<std::string> sizes = chunks;
    for (const char* more : {"1024", "4096", "65536"})
        sizes.emplace_back(more);
    for (const std::string& text : sizes) {
        const auto chunk = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
        if (!record_chunk_ok(chunk)) stop("--chunks " + text + ": powers of two from 32 to 65536 are wanted");
        DeviceDedupPart part;
        part.data = image.data();
        part.bytes = part_bytes;
        part.chunks = part.with_base = static_cast<std::uint32_t>(part_bytes / chunk);
        DeviceDedupSlice of;
        of.chunk_bytes = chunk;
        of.chunks = part.chunks;
        of.part_count = 1;
        of.groups = (part.chunks + dedup_group_chunks(chunk) - 1) / dedup_group_chunks(chunk);
        of.mask = {~std::uint64_t{0}, ~std::uint64_t{0}};
        DeviceMemory parts, hashes, content, marks, scratch, changed;
        check(parts.reserve(device, 2 * sizeof part));
        check(hashes.reserve(device, std::size_t{part.chunks} * sizeof(ChunkHash)));
        check(content.reserve(device, 256));
        check(marks.reserve(device, std::size_t{of.words_of()} * 4));
        check(scratch.reserve(device, kernels.scan_scratch(of.words_of())));
        check(changed.reserve(device, std::size_t{part.chunks} * 4));
        DeviceDedupPart two[2] = {part, part};
        two[1].with_base = 0;
        check(cudaMemcpy(parts.data(), two, sizeof two, cudaMemcpyHostToDevice));
        of.parts = parts.as<DeviceDedupPart>();
        of.hashes = hashes.as<ChunkHash>();
        of.content = content.as<std::uint64_t>();
        of.words = marks.as<std::uint32_t>();
        of.scratch = scratch.data();
        DeviceDedupSlice fresh = of;
        fresh.parts = parts.as<DeviceDedupPart>() + 1;
        const auto read = static_cast<double>(part_bytes);
        lines.add("kernel: find_changed, all", read,
                  [&](cudaStream_t s) { check(kernels.find_changed(device, fresh, s)); });
        lines.add("kernel: find_changed, nothing", read,
                  [&](cudaStream_t s) { check(kernels.find_changed(device, of, s)); });
        lines.add("kernel: hash_content", read,
                  [&](cudaStream_t s) { check(kernels.hash_content(device, of, s)); });
        lines.add(
            "kernel: list_changed, all", static_cast<double>(part.chunks) * 4,
            [&](cudaStream_t s) {
                check(kernels.list_changed(device, fresh, changed.as<std::uint32_t>(), s));
            },
            [&] {
                check(kernels.find_changed(device, fresh, timer.stream()));
                check(cudaStreamSynchronize(timer.stream()));
            });
        lines.run(chunk);
    }

    // ---- restore ----

    {
        const std::size_t to_bytes = std::min<std::size_t>(half, 2ULL << 30);
        for (const std::uint32_t chunk : {64U, 256U, 4096U}) {
            for (const std::uint64_t run_chunks :
                 {std::uint64_t{1}, std::uint64_t{16}, std::uint64_t{4096}}) {
                const std::uint64_t all = to_bytes / chunk;
                const std::uint64_t runs = all / run_chunks;
                if (runs == 0) continue;
                std::vector<DeviceScatterRun> of(runs);
                for (std::uint64_t r = 0; r < runs; ++r) {
                    // Sources all over the payload, each once.
                    const std::uint64_t from = (r * 0x9E3779B1ULL) % runs;
                    of[r] = {r * run_chunks, run_chunks, from * run_chunks, r * run_chunks, 0};
                }
                DeviceMemory on;
                check(on.reserve(device, runs * sizeof(DeviceScatterRun)));
                check(cudaMemcpy(on.data(), of.data(), runs * sizeof(DeviceScatterRun),
                                 cudaMemcpyHostToDevice));
                DeviceScatter what;
                what.chunk_bytes = chunk;
                what.runs = on.as<DeviceScatterRun>();
                what.run_count = runs;
                what.chunks = runs * run_chunks;
                what.payload = image.data();
                what.to = image.data() + half;
                what.bytes = what.chunks * chunk;
                DeviceScatter skewed = what;
                skewed.to += 4;
                skewed.bytes -= 4;
                const double moved = 2.0 * static_cast<double>(what.bytes);
                lines.add("copy on the device, as much as restored", moved, [=](cudaStream_t s) {
                    check(cudaMemcpyAsync(what.to, what.payload, what.bytes, cudaMemcpyDeviceToDevice, s));
                });
                lines.add("scatter, runs of " + std::to_string(run_chunks) + " chunks", moved,
                          [=, &kernels](cudaStream_t s) { check(kernels.scatter(device, what, s)); });
                lines.add(
                    "scatter, runs of " + std::to_string(run_chunks) + " chunks, to an address of 4 bytes",
                    moved, [=, &kernels](cudaStream_t s) { check(kernels.scatter(device, skewed, s)); });
                lines.run(chunk);
            }
        }
    }

    // ---- steps ----

    for (const std::string& text : chunks) {
        const auto chunk = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
        for (const std::string& pattern : patterns) {
            struct Line {
                RecordMethod method;
                std::unique_ptr<Deduplicator> deduplicator;
                Sink sink;
                Samples samples;
                StepOutcome last;
            };
            std::vector<Line> all;
            for (const RecordMethod method : kMethods) {
                DedupOptions options;
                options.method = method;
                options.chunk_bytes = chunk;
                options.threads = host_threads();
                options.slice_chunks = slice / chunk;
                options.table_bytes = table;
                auto made = make_device_deduplicator(device, options);
                if (!made.ok()) stop(made.error().message);
                all.push_back({method, std::move(*made), {}, {}, {}});
                all.back().sink.copies = copies;
            }
            const std::vector<ImageSegment> segments = {{"image", image.data(), bytes, {}, DType::u8}};
            std::uint32_t ordinal = 0;
            const auto step = [&](Line& line) {
                line.deduplicator->reuse(std::move(line.last.runs));
                const double begin = now();
                auto taken = line.deduplicator->step(ordinal, segments, line.sink);
                const double seconds = now() - begin;
                if (!taken.ok())
                    stop(std::string(method_name(line.method)) + ", " + pattern + ": " +
                         taken.error().message);
                line.last = std::move(*taken);
                return seconds;
            };
            // Contents of this seed are what is known.
            const std::uint64_t known = ++seed;
            make(8, 1, known);
            for (Line& line : all)
                step(line);
            ++ordinal;
            if (pattern == "known") {
                make(8, 1, ++seed);
                for (Line& line : all)
                    step(line);
                ++ordinal;
            }
            const std::uint64_t other = seed;
            Samples read;
            for (int round = -1; round < rounds; ++round) {
                if (pattern == "one") make(chunk, 100, ++seed);
                if (pattern == "pages") make(4096, 100, ++seed);
                if (pattern == "region") {
                    const std::size_t region = std::min<std::size_t>(bytes / 4, 16 << 20);
                    const std::size_t places = bytes / region / 2;
                    const std::size_t from = static_cast<std::size_t>(++seed * 7 % places) * region;
                    const std::size_t to = (places + static_cast<std::size_t>(seed * 5 % places)) * region;
                    check(
                        cudaMemcpy(image.data() + to, image.data() + from, region, cudaMemcpyDeviceToDevice));
                }
                if (pattern == "known") make(8, 1, round % 2 == 0 ? other : known);
                if (pattern == "all") {
                    // All of it new, after a step that was all new: no table grows without end.
                    make(8, 1, ++seed);
                    for (Line& line : all) {
                        line.deduplicator->forget();
                        step(line);
                    }
                    ++ordinal;
                    make(8, 1, ++seed);
                }
                const double r = timer([&](cudaStream_t s) {
                    read_only<<<wide, 256, 0, s>>>(image.as<uint4>(), bytes / 16,
                                                   sink_word.as<std::uint32_t>());
                });
                if (round >= 0) read.seconds.push_back(r);
                for (std::size_t i = 0; i < all.size(); ++i) {
                    Line& line = all[(i + static_cast<std::size_t>(round + 1)) % all.size()];
                    const double seconds = step(line);
                    if (round >= 0) line.samples.seconds.push_back(seconds);
                }
                ++ordinal;
            }
            const double ceiling = static_cast<double>(bytes) / read.median();
            for (Line& line : all) {
                const double rate = static_cast<double>(bytes) / line.samples.median();
                const DedupFacts held = line.deduplicator->facts();
                std::printf(
                    "{\"line\": \"step\", \"pattern\": \"%s\", \"chunk\": %u, \"method\": \"%s\", \"GBps\": "
                    "%.1f, \"spread\": %.3f, "
                    "\"ms\": %.3f, \"of_read\": %.3f, \"changed\": %llu, \"payload_bytes\": %llu, \"runs\": "
                    "%zu, \"entries\": %llu, "
                    "\"evicted\": %llu, \"memory\": %llu}\n",
                    pattern.c_str(), chunk, std::string(method_name(line.method)).c_str(), rate / 1e9,
                    line.samples.spread(), line.samples.median() * 1e3, rate / ceiling,
                    static_cast<unsigned long long>(line.last.changed),
                    static_cast<unsigned long long>(line.last.payload * chunk), line.last.runs.size(),
                    static_cast<unsigned long long>(held.entries),
                    static_cast<unsigned long long>(held.evicted),
                    static_cast<unsigned long long>(held.memory_bytes));
            }
            std::fflush(stdout);
        }
    }
    if (devices > 1) scaling(devices, bytes, slice, rounds);
    return 0;
}
