// How payload is packed and read: ratio, and GB/s of one thread by its own processor time, so that other work on the machine
// matters less. Each step's file is packed alone, and XORed with the one before, as a record does that finds no equal chunk.
//
//   bench_payload --data NAME=FOLDER... [--level N] [--rounds N]
//
// FOLDER: step-*/FILE (what weights_states.py and optimizer_states.py write).

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "platform/file_io.hpp"
#include "record/delta_file.hpp"
#include "record/delta_writer.hpp"

namespace {

namespace fs = std::filesystem;
using namespace twinrun;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kChunk = 256;
constexpr std::size_t kPiece = std::size_t{4} << 20;  // what a deduplicator hands over at once

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "bench_payload: %s\n", why.c_str());
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
double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<Bytes> steps_of(const std::string& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::vector<Bytes> steps;
    for (const fs::path& file : files) {
        steps.push_back(must(read_whole_file(file.string(), std::uint64_t{1} << 40)));
        steps.back().resize(steps.back().size() / kChunk * kChunk);
    }
    return steps;
}

// bf16 of normal numbers; in each step 3% of the elements, at random places, take another one's value.
std::vector<Bytes> made_steps() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0, 0.02F);
    std::vector<std::uint16_t> weights(std::size_t{1} << 20);
    for (std::uint16_t& weight : weights)
        weight = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    std::vector<Bytes> steps;
    for (int step = 0; step < 3; ++step) {
        const auto bytes = std::as_bytes(std::span(weights));
        steps.emplace_back(bytes.begin(), bytes.end());
        for (std::size_t i = 0; i < weights.size() * 3 / 100; ++i)
            weights[random() % weights.size()] = weights[random() % weights.size()];
    }
    return steps;
}

struct Rates {
    double share = 0;
    std::vector<double> packing;
    std::vector<double> reading;
};

// Packs a step, reads it, and compares.
void round_of(const Bytes& step, const Bytes* before, const PayloadSettings& settings,
              const std::string& path, Rates& rates) {
    const double size = static_cast<double>(step.size()) * 1e-9;
    std::vector<Location> at;
    if (before != nullptr) {
        for (std::uint64_t c = 0; c < step.size() / kChunk; ++c)
            at.push_back(location(0, c));
    }
    fs::remove(path);
    double begin = processor_seconds();
    auto writer = must(DifferenceWriter::create(posix_file_system(), path, kChunk, settings));
    for (std::size_t from = 0; from < step.size(); from += kPiece) {
        const std::size_t bytes = std::min(kPiece, step.size() - from);
        const std::size_t chunk = from / kChunk;
        const auto base =
            before == nullptr ? std::span<const std::byte>{} : std::span(*before).subspan(from, bytes);
        const auto places =
            before == nullptr ? std::span<const Location>{} : std::span(at).subspan(chunk, bytes / kChunk);
        must(writer->add(std::span(step).subspan(from, bytes), base, places));
    }
    Difference difference;
    difference.chunk_bytes = kChunk;
    difference.ordinal = 1;
    difference.directory.files = {{"f", step.size()}};
    difference.directory.segments = {{"f", 0, 0, step.size(), 0}};
    difference.runs = {{0, step.size() / kChunk, location(1, 0), false}};
    const auto written = must(writer->finish(std::move(difference)));
    rates.packing.push_back(size / (processor_seconds() - begin));
    rates.share += static_cast<double>(written.bytes) * 1e-9 / size;

    const auto file = must(DifferenceFile::open(path));
    Compressor compressor;
    BlockScratch scratch;
    Bytes back(step.size());
    for (int twice = 0; twice < 2; ++twice) {  // at first the memory is new
        if (before != nullptr) back = *before;
        Bytes block(kPackedBlockBytes);
        begin = processor_seconds();
        std::size_t to = 0;
        for (std::size_t b = 0; b < file->difference().blocks.size(); ++b) {
            const std::size_t bytes = file->block_chunks(b) * kChunk;
            const auto into = std::span(back).subspan(to, bytes);
            if (!file->difference().blocks[b].xored) {
                must(file->read_block(b, compressor, scratch, into));
            } else if (file->sparse(b)) {
                const SparsePiece whole{0, into};
                must(file->mix_block(b, compressor, scratch, bytes, {&whole, 1}));
            } else {
                must(file->read_block(b, compressor, scratch, std::span(block).first(bytes)));
                for (std::size_t i = 0; i < bytes; ++i)
                    into[i] ^= block[i];
            }
            to += bytes;
        }
        if (twice == 1) rates.reading.push_back(size / (processor_seconds() - begin));
        if (back != step) fail("a step that came back as another one");
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::pair<std::string, std::string>> data;
    PayloadSettings settings;
    settings.codec = PayloadCodec::zstd;
    int rounds = 3;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        const std::string value = i + 1 < argc ? argv[i + 1] : "";
        if (name.starts_with("--benchmark")) continue;
        ++i;
        if (name == "--data" && value.find('=') != std::string::npos) {
            data.emplace_back(value.substr(0, value.find('=')), value.substr(value.find('=') + 1));
        } else if (name == "--level") {
            settings.level = std::atoi(value.c_str());
        } else if (name == "--rounds") {
            rounds = std::atoi(value.c_str());
        } else {
            fail("--data NAME=FOLDER, --level N, --rounds N");
        }
    }
    const fs::path folder =
        fs::temp_directory_path() / ("twinrun-bench-payload-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    std::printf("%-16s %-6s %8s %10s %10s\n", "workload", "", "size", "pack GB/s", "read GB/s");
    if (data.empty()) data.emplace_back("3% of bf16", "");
    for (const auto& [name, from] : data) {
        const std::vector<Bytes> steps = from.empty() ? made_steps() : steps_of(from);
        for (const bool mixed : {false, true}) {
            Rates rates;
            std::size_t count = 0;
            for (int round = 0; round < rounds; ++round) {
                for (std::size_t s = 1; s < steps.size(); ++s) {
                    if (steps[s].size() != steps[s - 1].size()) continue;
                    round_of(steps[s], mixed ? &steps[s - 1] : nullptr, settings, (folder / "d").string(),
                             rates);
                    ++count;
                }
            }
            std::printf("%-16s %-6s %8.4f %10.2f %10.2f\n", name.c_str(), mixed ? "xor" : "alone",
                        rates.share / static_cast<double>(std::max<std::size_t>(1, count)),
                        median(rates.packing), median(rates.reading));
        }
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return 0;
}
