// What records cost and save, method by method: ratio and throughput by size of chunks and by number of checkpoints, as Figures 4
// and 5 of Tan et al. (ICPP'23) have them, beside compression alone, and restore beside copying. The methods take each
// checkpoint in turns, in one run. Differences stay in memory: storage is not measured.
//
//   bench_record [--data NAME=FOLDER]... [--chunks 32,64,...] [--counts 5,10,20] [--methods runs,tree,...] [--threads N]
//                [--device N] [--no-codecs] [--no-restore] [--pack-block BYTES] [--table BYTES] [--limit BYTES] [--json FILE]
//
// FOLDER: step-*/FILE, each step's files being one checkpoint (what oranges --out and minihacc --out write). Without --data:
// 1% of 4 KiB pages, of 64 B lines, a copied region, counters.
//
// Ratio: bytes of all checkpoints but the first, over the bytes of their difference files, index and checksums included.
// Throughput: bytes of a checkpoint over the time until its runs and its new chunks are in host memory; with a codec, until
// the packed file is.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dedup/deduplicator.hpp"
#include "device/device.hpp"
#include "platform/team.hpp"
#include "record/compression.hpp"
#include "record/delta_writer.hpp"
#include "record/pack_device.hpp"
#include "restore/chain.hpp"

namespace {

namespace fs = std::filesystem;
using namespace twinrun;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "bench_record: %s\n", why.c_str());
    std::exit(2);
}
template <class T>
T must(Result<T> result) {
    if (!result) fail(result.error().message);
    return std::move(result).value();
}
void must(const Result<>& result) {
    if (!result) fail(result.error().message);
}
double seconds(const std::function<void()>& work) {
    const auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}
double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Arguments {
    std::vector<std::pair<std::string, std::string>> data;
    std::vector<std::uint32_t> chunks = {32, 64, 128, 256, 512};
    std::vector<std::uint32_t> counts = {5, 10, 20};
    std::vector<std::string> methods = {"runs", "tree", "list", "basic", "full"};
    int threads = static_cast<int>(std::thread::hardware_concurrency());
    int device = kHostMemory;
    std::uint32_t pack_block = kDevicePackedBlockBytes;  // of blocks that are packed on the device
    bool codecs = true;
    bool restore = true;
    std::uint64_t table = 0;
    std::uint64_t limit = 0;  // bytes of a checkpoint that are taken; 0: all
    std::string json;
};

// A checkpoint when it is needed.
struct Workload {
    std::string name;
    std::size_t steps = 0;
    std::function<Bytes(std::size_t)> load;
};

Workload folder_workload(const std::string& name, const std::string& folder, std::uint64_t limit) {
    std::vector<fs::path> steps;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_directory() && entry.path().filename().string().starts_with("step-"))
            steps.push_back(entry.path());
    }
    std::sort(steps.begin(), steps.end());
    if (steps.empty()) fail(folder + ": no step-* in it");
    return {name, steps.size(), [steps, limit](std::size_t i) {
                std::vector<fs::path> files;
                for (const auto& entry : fs::recursive_directory_iterator(steps[i])) {
                    if (entry.is_regular_file()) files.push_back(entry.path());
                }
                std::sort(files.begin(), files.end());
                Bytes all;
                for (const auto& file : files) {
                    const Bytes bytes = must(read_whole_file(file.string(), std::uint64_t{1} << 40));
                    all.insert(all.end(), bytes.begin(), bytes.end());
                }
                if (limit != 0 && all.size() > limit) all.resize(limit);
                return all;
            }};
}

std::vector<Workload> made_workloads(std::uint64_t bytes) {
    struct State {
        Bytes image;
        std::mt19937_64 random{7};
        std::size_t next = 0;
    };
    const auto make = [&](const char* name, std::function<void(State&)> change, bool counters) {
        auto state = std::make_shared<State>();
        return Workload{name, 10, [=](std::size_t i) {
                            if (i == 0) {
                                *state = {};
                                state->image.resize(bytes);
                                if (!counters) {
                                    for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
                                        const std::uint64_t word = state->random();
                                        std::memcpy(state->image.data() + at, &word, 8);
                                    }
                                }
                            } else {
                                change(*state);
                            }
                            return state->image;
                        }};
    };
    const auto scribble = [](State& s, std::size_t at, std::size_t count) {
        for (std::size_t i = 0; i < count; i += 8) {
            const std::uint64_t word = s.random();
            std::memcpy(s.image.data() + at + i, &word, 8);
        }
    };
    std::vector<Workload> all;
    all.push_back(make(
        "nothing changed", [](State&) {}, false));
    all.push_back(make(
        "1% of 4 KiB pages",
        [=](State& s) {
            for (std::size_t i = 0; i < s.image.size() / 4096 / 100; ++i)
                scribble(s, s.random() % (s.image.size() / 4096) * 4096, 4096);
        },
        false));
    all.push_back(make(
        "1% of 256 B chunks",
        [=](State& s) {
            for (std::size_t i = 0; i < s.image.size() / 256 / 100; ++i)
                scribble(s, s.random() % (s.image.size() / 256) * 256, 256);
        },
        false));
    all.push_back(make(
        "0.1% of 64 B lines",
        [=](State& s) {
            for (std::size_t i = 0; i < s.image.size() / 64 / 1000; ++i)
                scribble(s, s.random() % (s.image.size() / 64) * 64, 64);
        },
        false));
    all.push_back(make(
        "copied region, 4 KiB-aligned",
        [](State& s) {
            const std::size_t pages = s.image.size() / 4096;
            const std::size_t count = std::max<std::size_t>(1, pages / 16);
            const std::size_t from = s.random() % (pages - count);
            const std::size_t to = s.random() % (pages - count);
            std::memmove(s.image.data() + to * 4096, s.image.data() + from * 4096, count * 4096);
        },
        false));
    all.push_back(make(
        "counters",
        [](State& s) {
            for (std::size_t i = 0; i < s.image.size() / 4 / 100; ++i) {
                const std::size_t at = s.random() % (s.image.size() / 4) * 4;
                std::uint32_t word = 0;
                std::memcpy(&word, s.image.data() + at, 4);
                ++word;
                std::memcpy(s.image.data() + at, &word, 4);
            }
        },
        true));
    all.push_back(make(
        "all changed", [=](State& s) { scribble(s, 0, s.image.size() / 8 * 8); }, false));
    return all;
}

// Files that are bytes in memory.
class MemoryFiles final : public FileSystem {
   public:
    class File final : public OutputFile {
       public:
        explicit File(Bytes& bytes) : bytes_(bytes) {}
        Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
            if (bytes_.size() < offset + bytes.size()) bytes_.resize(offset + bytes.size());
            std::memcpy(bytes_.data() + offset, bytes.data(), bytes.size());
            return success();
        }
        Result<> sync() override { return success(); }
        void set_time(std::int64_t /*mtime_ns*/) override {}
        Result<> close() override { return success(); }

       private:
        Bytes& bytes_;
    };
    Result<std::unique_ptr<OutputFile>> create(const std::string& path, std::uint64_t) override {
        return std::unique_ptr<OutputFile>(std::make_unique<File>(files_[path]));
    }
    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t&) override {
        return create(path, 0);
    }
    Result<> rename(const std::string& from, const std::string& to) override {
        files_[to] = std::move(files_[from]);
        files_.erase(from);
        return success();
    }
    Result<> sync_folder(const std::string&) override { return success(); }
    Result<> make_folders(const std::string&) override { return success(); }
    Result<> remove(const std::string&) override { return success(); }
    Result<> replace(const std::string& from, const std::string& to) override { return rename(from, to); }
    Result<bool> make_marked_folder(const std::string&, const std::string&) override { return true; }
    Result<> remove_empty_folder(const std::string&) override { return success(); }
    Result<> truncate(const std::string&, std::uint64_t) override { return success(); }
    Bytes take(const std::string& path) {
        Bytes bytes = std::move(files_[path]);
        files_.erase(path);
        return bytes;
    }

   private:
    std::map<std::string, Bytes> files_;
};

// The time until the last chunk has come.
class Arrival final : public PayloadSink {
   public:
    Result<> take(const Chunks& chunks) override {
        if (keep != nullptr) must(keep->add(chunks.bytes, chunks.base, chunks.base_at));
        bytes += chunks.bytes.size();
        return success();
    }
    Result<> take_packed(std::span<const PackedBlock> blocks) override {
        must(keep->add_packed(blocks));
        return success();
    }
    DifferenceWriter* keep = nullptr;
    std::uint64_t bytes = 0;
};

struct Line {
    std::string workload;
    std::size_t checkpoints = 0;
    std::uint32_t chunk = 0;
    std::string method;
    std::uint64_t full = 0;
    std::uint64_t kept = 0;
    std::vector<double> rates;  // GB/s
    [[nodiscard]] double ratio() const {
        return kept == 0 ? 0 : static_cast<double>(full) / static_cast<double>(kept);
    }
};

// A method at work on the checkpoints of a workload.
struct Contender {
    Line line;
    std::unique_ptr<Deduplicator> dedup;
    PayloadCodec codec = PayloadCodec::stored;
    std::uint32_t block_bytes = 0;
    std::uint32_t ordinal = 0;
};

Contender contender(const Arguments& arguments, const std::string& name, std::uint32_t chunk) {
    Contender made;
    DedupOptions options;
    const std::size_t plus = name.find('+');
    options.method = *method_of(name.substr(0, plus));
    options.chunk_bytes = chunk;
    options.threads = arguments.threads;
    options.table_bytes = arguments.table;
    if (plus != std::string::npos) {
        made.codec = PayloadCodec::zstd;
        if (name.find("device") != std::string::npos)
            options.pack_block_bytes = made.block_bytes = arguments.pack_block;
        options.keep_base = options.give_base = name.find("xor") != std::string::npos;
    }
    made.line.method = name;
    made.line.chunk = chunk;
    made.dedup = must(arguments.device == kHostMemory ? make_host_deduplicator(options)
                                                      : make_device_deduplicator(arguments.device, options));
    return made;
}

void take(Contender& c, const ImageSegment& segment, std::uint64_t bytes, bool first, int threads) {
    MemoryFiles files;
    PayloadSettings payload;
    payload.codec = c.codec;
    payload.block_bytes = c.block_bytes;
    payload.threads = threads;
    // Packing is a part of what is timed where there is a codec; else only the time until the difference is there.
    auto writer = must(DifferenceWriter::create(files, "d", c.line.chunk, payload));
    Arrival arrival;
    arrival.keep = writer.get();
    StepOutcome outcome;
    Difference difference;
    const auto finish = [&] {
        difference.method = outcome.method;
        difference.ordinal = c.ordinal;
        difference.base = outcome.base;
        difference.directory.files = {{"image", bytes}};
        difference.directory.segments = {{"image", 0, 0, bytes, outcome.content[0]}};
        difference.runs = std::move(outcome.runs);
        const std::uint64_t size = must(writer->finish(std::move(difference))).bytes;
        c.dedup->reuse(std::move(difference.runs));
        return size;
    };
    std::uint64_t kept = 0;
    double time = 0;
    if (c.codec != PayloadCodec::stored) {
        time = seconds([&] {
            outcome = must(c.dedup->step(c.ordinal, {&segment, 1}, arrival));
            kept = finish();
        });
    } else {
        // What the writer does with it is not timed: chunks are handed to it as they come, in the time of a copy.
        struct Timed final : PayloadSink {
            Result<> take(const Chunks& chunks) override {
                const auto start = Clock::now();
                must(writer->add(chunks.bytes, {}, {}));
                away += std::chrono::duration<double>(Clock::now() - start).count();
                return success();
            }
            DifferenceWriter* writer = nullptr;
            double away = 0;
        } sink;
        sink.writer = writer.get();
        time = seconds([&] { outcome = must(c.dedup->step(c.ordinal, {&segment, 1}, sink)); }) - sink.away;
        kept = finish();
    }
    ++c.ordinal;
    if (first) return;
    c.line.full += bytes;
    c.line.kept += kept;
    c.line.rates.push_back(static_cast<double>(bytes) / time * 1e-9);
}

void print(const Line& line) {
    std::vector<double> sorted = line.rates;
    std::sort(sorted.begin(), sorted.end());
    std::printf("%-30s %3zu %5u  %-14s %10.4g %9.3f  %.3f to %.3f\n", line.workload.c_str(), line.checkpoints,
                line.chunk, line.method.c_str(), line.ratio(), median(line.rates),
                sorted.empty() ? 0 : sorted.front(), sorted.empty() ? 0 : sorted.back());
    std::fflush(stdout);
}

// The checkpoints that `count` evenly spread ones are; the last one always.
std::vector<std::size_t> chosen(std::size_t steps, std::size_t count) {
    std::vector<std::size_t> all;
    count = std::min(steps, count);
    for (std::size_t i = 1; i <= count; ++i)
        all.push_back(steps * i / count - 1);
    return all;
}

std::vector<Contender> contenders_of(const Arguments& arguments, const std::vector<std::uint32_t>& chunks) {
    std::vector<Contender> contenders;
    for (const std::uint32_t chunk : chunks) {
        for (const std::string& method : arguments.methods)
            contenders.push_back(contender(arguments, method, chunk));
        if (!arguments.codecs || chunk < 64 || chunk > 256) continue;
        contenders.push_back(contender(arguments, "runs+zstd", chunk));
        contenders.push_back(contender(arguments, "runs+zstd+xor", chunk));
        const char* packing = nullptr;  // nvCOMP, where it is found
        if (arguments.device != kHostMemory && device_pack_kernels() != nullptr &&
            !device_pack_kernels()->library(&packing).failed) {
            contenders.push_back(contender(arguments, "runs+zstd on the device", chunk));
        }
    }
    return contenders;
}

// The image where it is de-duplicated: in `memory`, if that is on a device.
ImageSegment place_image(const Arguments& arguments, const Bytes& image, DeviceMemory& memory) {
    ImageSegment segment{"image", image.data(), image.size(), std::nullopt, DType::u8};
    if (arguments.device == kHostMemory) return segment;
    must(memory.reserve(arguments.device, image.size()));
    must(to_result(
        device_runtime()->copy(arguments.device, memory.data(), image.data(), image.size(), nullptr)));
    must(to_result(device_runtime()->wait_stream(arguments.device, nullptr)));
    segment.data = memory.data();
    return segment;
}

// Packs a whole checkpoint, in blocks of 1 MiB. previous: it is XORed with that; null: it is not.
void pack_whole(Team& team, const Bytes& image, const Bytes* previous, Line& line) {
    std::vector<Compressor> compressors(static_cast<std::size_t>(team.size()));
    std::atomic<std::uint64_t> kept{0};
    const double time = seconds([&] {
        std::atomic<std::size_t> next{0};
        team.run([&](int worker) {
            constexpr std::size_t kBlock = 1 << 20;
            Bytes out(kBlock + (kBlock >> 6));
            Bytes mixed(kBlock);
            for (std::size_t at = next.fetch_add(kBlock); at < image.size(); at = next.fetch_add(kBlock)) {
                const std::size_t size = std::min(kBlock, image.size() - at);
                std::span<const std::byte> from(image.data() + at, size);
                if (previous != nullptr && previous->size() == image.size()) {
                    for (std::size_t b = 0; b < size; ++b)
                        mixed[b] = image[at + b] ^ (*previous)[at + b];
                    from = {mixed.data(), size};
                }
                const std::size_t packed = compressors[static_cast<std::size_t>(worker)].pack(from, out, 1);
                kept += packed == 0 ? size : packed;
            }
        });
    });
    line.full += image.size();
    line.kept += kept;
    line.rates.push_back(static_cast<double>(image.size()) / time * 1e-9);
}

void read_once(Team& team, const Bytes& image, Line& line) {
    std::atomic<std::uint64_t> sum{0};
    const double time = seconds([&] {
        team.run([&](int worker) {
            const std::size_t share = image.size() / static_cast<std::size_t>(team.size());
            std::uint64_t own = 0;
            for (std::size_t b = 0; b + 8 <= share; b += 8) {
                std::uint64_t word = 0;
                std::memcpy(&word, image.data() + static_cast<std::size_t>(worker) * share + b, 8);
                own += word;
            }
            sum += own;
        });
    });
    line.full += image.size();
    line.rates.push_back(static_cast<double>(image.size()) / time * 1e-9);
}

void run_workload(const Arguments& arguments, const Workload& workload, std::size_t count,
                  const std::vector<std::uint32_t>& chunks, std::vector<Line>& lines) {
    std::vector<Contender> contenders = contenders_of(arguments, chunks);
    Line zstd{workload.name, 0, 0, "zstd-1", 0, 0, {}};
    Line xored{workload.name, 0, 0, "xor, zstd-1", 0, 0, {}};
    Line read{workload.name, 0, 0, "reading once", 0, 0, {}};
    const bool packs = arguments.codecs && chunks.size() > 1 && codec_available(PayloadCodec::zstd);
    Bytes previous;
    DeviceMemory memory;
    Team team(arguments.threads);
    const auto steps = chosen(workload.steps, count);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        Bytes image = workload.load(steps[i]);
        const ImageSegment segment = place_image(arguments, image, memory);
        // In another order each time.
        for (std::size_t k = 0; k < contenders.size(); ++k)
            take(contenders[(k + i) % contenders.size()], segment, image.size(), i == 0, arguments.threads);
        if (i != 0 && packs) {
            pack_whole(team, image, nullptr, zstd);
            pack_whole(team, image, &previous, xored);
        }
        if (i != 0 && arguments.device == kHostMemory) read_once(team, image, read);
        previous = std::move(image);
    }
    const auto report = [&](Line& line) {
        line.workload = workload.name;
        line.checkpoints = steps.size();
        print(line);
        lines.push_back(line);
    };
    for (Contender& c : contenders)
        report(c.line);
    for (Line* line : {&zstd, &xored, &read}) {
        if (!line->rates.empty()) report(*line);
    }
}

// Restore of the last of a workload's checkpoints, from files in the page cache, beside a copy of as many bytes.
void run_restore(const Arguments& arguments, const Workload& workload, std::vector<Line>& lines) {
    const fs::path folder =
        fs::temp_directory_path() / ("twinrun-bench-record-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    for (const std::string& name :
         {std::string("runs"), std::string("runs+zstd"), std::string("runs+zstd+xor")}) {
        if (name != "runs" && !codec_available(PayloadCodec::zstd)) continue;
        DedupOptions options;
        options.threads = arguments.threads;
        options.keep_base = options.give_base = name.find("xor") != std::string::npos;
        auto dedup = must(make_host_deduplicator(options));
        std::uint64_t bytes = 0;
        const auto steps = chosen(workload.steps, 20);
        for (std::uint32_t i = 0; i < steps.size(); ++i) {
            const Bytes image = workload.load(steps[i]);
            bytes = image.size();
            const ImageSegment segment{"image", image.data(), image.size(), std::nullopt, DType::u8};
            PayloadSettings payload;
            payload.codec = name == "runs" ? PayloadCodec::stored : PayloadCodec::zstd;
            payload.threads = arguments.threads;
            fs::remove(folder / std::to_string(i));  // of an earlier round
            auto writer = must(DifferenceWriter::create(posix_file_system(),
                                                        (folder / std::to_string(i)).string(), 256, payload));
            Arrival arrival;
            arrival.keep = writer.get();
            StepOutcome outcome = must(dedup->step(i, {&segment, 1}, arrival));
            Difference difference;
            difference.method = outcome.method;
            difference.ordinal = i;
            difference.base = outcome.base;
            difference.directory.files = {{"image", bytes}};
            difference.directory.segments = {{"image", 0, 0, bytes, outcome.content[0]}};
            difference.runs = std::move(outcome.runs);
            must(writer->finish(std::move(difference)));
        }
        RecordChain chain(
            [&](std::uint32_t i) -> Result<DifferencePlace> {
                return DifferencePlace{(folder / std::to_string(i)).string()};
            },
            arguments.threads);
        Bytes to(bytes);
        Bytes from(bytes, std::byte{1});
        Team team(arguments.threads);
        Line restore{workload.name, steps.size(), 256, "restore " + name, 0, 0, {}};
        Line unchecked{workload.name, steps.size(), 256, "  read only " + name, 0, 0, {}};
        Line copy{workload.name, steps.size(), 0, "copy", 0, 0, {}};
        for (int round = 0; round < 7; ++round) {
            const auto last = static_cast<std::uint32_t>(steps.size() - 1);
            restore.rates.push_back(static_cast<double>(bytes) / seconds([&] {
                                        const StepMap map = must(chain.map(last));
                                        must(chain.read_segment(map, 0, to));
                                    }) *
                                    1e-9);
            unchecked.rates.push_back(static_cast<double>(bytes) / seconds([&] {
                                          const StepMap map = must(chain.map(last));
                                          must(chain.read(map, 0, 0, to));
                                      }) *
                                      1e-9);
            copy.rates.push_back(
                static_cast<double>(bytes) / seconds([&] {
                    team.run([&](int worker) {
                        const std::size_t share = bytes / static_cast<std::size_t>(team.size());
                        std::memcpy(from.data() + static_cast<std::size_t>(worker) * share,
                                    to.data() + static_cast<std::size_t>(worker) * share, share);
                    });
                }) *
                1e-9);
        }
        for (const Line* line : {&restore, &unchecked, &copy}) {
            print(*line);
            lines.push_back(*line);
        }
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
}

void write_json(const std::string& path, const std::vector<Line>& lines) {
    std::ofstream out(path);
    for (const Line& line : lines) {
        out << "{\"workload\":\"" << line.workload << "\",\"checkpoints\":" << line.checkpoints
            << ",\"chunk\":" << line.chunk << ",\"method\":\"" << line.method
            << "\",\"ratio\":" << line.ratio() << ",\"GBps\":[";
        for (std::size_t i = 0; i < line.rates.size(); ++i)
            out << (i == 0 ? "" : ",") << line.rates[i];
        out << "]}\n";
    }
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

}  // namespace

int main(int count, char** values) {
    Arguments arguments;
    const bool smoke = std::getenv("BENCHMARK_SMOKE") != nullptr;
    std::uint64_t made_bytes = smoke ? 1 << 20 : 256 << 20;
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        const auto next = [&]() -> std::string {
            if (++i == count) fail(name + " needs a value");
            return values[i];
        };
        if (name == "--data") {
            const std::string value = next();
            const std::size_t equals = value.find('=');
            if (equals == std::string::npos) fail("--data NAME=FOLDER");
            arguments.data.emplace_back(value.substr(0, equals), value.substr(equals + 1));
        } else if (name == "--chunks" || name == "--counts") {
            auto& list = name == "--chunks" ? arguments.chunks : arguments.counts;
            list.clear();
            for (const std::string& part : split(next()))
                list.push_back(static_cast<std::uint32_t>(std::stoul(part)));
        } else if (name == "--methods") {
            arguments.methods = split(next());
        } else if (name == "--threads") {
            arguments.threads = std::stoi(next());
        } else if (name == "--device") {
            arguments.device = std::stoi(next());
        } else if (name == "--no-codecs") {
            arguments.codecs = false;
        } else if (name == "--no-restore") {
            arguments.restore = false;
        } else if (name == "--pack-block") {
            arguments.pack_block = static_cast<std::uint32_t>(std::stoul(next()));
        } else if (name == "--table") {
            arguments.table = std::stoull(next());
        } else if (name == "--limit") {
            arguments.limit = std::stoull(next());
        } else if (name == "--bytes") {
            made_bytes = std::stoull(next());
        } else if (name == "--json") {
            arguments.json = next();
        } else if (!name.starts_with("--benchmark")) {
            fail("no option " + name);
        }
    }
    std::vector<Workload> workloads;
    for (const auto& [name, folder] : arguments.data)
        workloads.push_back(folder_workload(name, folder, arguments.limit));
    const bool made = workloads.empty();
    if (made) workloads = made_workloads(made_bytes);
    std::printf("%-30s %3s %5s  %-14s %10s %9s  %s\n", "workload", "N", "chunk", "method", "ratio", "GB/s",
                "spread");
    std::vector<Line> lines;
    for (const Workload& workload : workloads) {
        const std::size_t most = std::min<std::size_t>(workload.steps, 10);
        if (made) {
            run_workload(arguments, workload, most, arguments.chunks, lines);
        } else {
            for (const std::uint32_t n : arguments.counts) {
                // By size of chunks at one number of checkpoints, by number of checkpoints at one size.
                run_workload(arguments, workload, n,
                             n == 10 ? arguments.chunks : std::vector<std::uint32_t>{128}, lines);
            }
        }
        if (arguments.restore && arguments.device == kHostMemory) run_restore(arguments, workload, lines);
    }
    if (!arguments.json.empty()) write_json(arguments.json, lines);
    return 0;
}
