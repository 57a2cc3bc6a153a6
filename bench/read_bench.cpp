// Reads files and does nothing with them, through the queues and in the slices that comparisons read with: what storage gives
// a comparison, at most. bench/device_stream_bench.py runs it beside comparisons.
//
//   bench_read [--buffered] [--slice BYTES] FILE...
//
// All files at once, slice by slice in turn, around the page cache unless --buffered. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

class ReadJob final : public SliceJob {
   public:
    ReadJob(std::vector<std::unique_ptr<FileSource>>& files, std::uint64_t slice_bytes)
        : files_(files), slice_bytes_(slice_bytes) {
        for (const auto& file : files_)
            largest_ = std::max(largest_, file->items());
        for (const auto& file : files_)
            room_.push_back(round_up(file->buffer_bytes(slice_bytes_), kDirectAlignment));
    }
    [[nodiscard]] std::uint64_t slices() const override {
        return (largest_ + slice_bytes_ - 1) / slice_bytes_;
    }
    [[nodiscard]] std::size_t buffer_bytes() const override {
        std::size_t all = 0;
        for (const std::size_t room : room_)
            all += room;
        return all;
    }
    [[nodiscard]] std::uint64_t total_bytes() const override { return largest_ * files_.size(); }
    [[nodiscard]] bool on_storage() const override { return files_.front()->on_storage(); }
    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        const std::uint64_t first = slice * slice_bytes_;
        for (std::size_t f = 0; f < files_.size(); ++f) {
            const std::uint64_t items = files_[f]->items();
            if (first < items) {
                TWR_CHECK(files_[f]->plan(first, std::min(slice_bytes_, items - first), buffer, requests));
            }
            buffer += room_[f];
        }
        return success();
    }
    Result<> process(std::uint64_t, std::byte*, int) override { return success(); }

   private:
    std::vector<std::unique_ptr<FileSource>>& files_;
    std::uint64_t slice_bytes_;
    std::uint64_t largest_ = 0;
    std::vector<std::size_t> room_;
};

Result<> read_all(const std::vector<std::string>& paths, std::uint64_t slice_bytes, CacheUse cache) {
    std::vector<std::unique_ptr<FileSource>> files;
    std::uint64_t bytes = 0;
    for (const std::string& path : paths) {
        std::error_code failed;
        const std::uint64_t size = std::filesystem::file_size(path, failed);
        if (failed || size == 0) return Error{ErrorCode::not_found, path + ": not there, or empty"};
        TWR_TRY(auto file,
                FileSource::create(DType::u8, ByteOrder::little, size, {{path, 0, 1, size}}, cache));
        files.push_back(std::move(file));
        bytes += size;
    }
    const auto start = std::chrono::steady_clock::now();
    for (const auto& file : files)
        TWR_CHECK(file->prepare());
    ReadJob job(files, slice_bytes);
    TWR_TRY(const StreamStats stats, run_slices(job, {}));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf(
        "{\"bytes\": %llu, \"bytes_read\": %llu, \"seconds\": %.6f, \"io\": \"%s\", \"direct\": %s}\n",
        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(stats.bytes_read), seconds,
        stats.io, files.front()->on_storage() ? "true" : "false");
    return success();
}

}  // namespace

}  // namespace twinrun

int main(int argc, char** argv) {
    std::vector<std::string> paths;
    std::uint64_t slice = twinrun::kSliceBytes;
    auto cache = twinrun::CacheUse::direct;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--buffered") == 0) {
            cache = twinrun::CacheUse::buffered;
        } else if (std::strcmp(argv[i], "--slice") == 0 && i + 1 < argc) {
            slice = std::max<std::uint64_t>(4096, std::strtoull(argv[++i], nullptr, 10));
        } else if (std::strncmp(argv[i], "--benchmark_", 12) !=
                   0) {  // as all programs here are started in tests
            paths.emplace_back(argv[i]);
        }
    }
    if (paths.empty()) {
        std::puts("bench_read: no files were named");
        return 0;
    }
    const auto done = twinrun::read_all(paths, slice, cache);
    if (!done) std::fprintf(stderr, "bench_read: %s\n", done.error().message.c_str());
    return done ? 0 : 1;
}
