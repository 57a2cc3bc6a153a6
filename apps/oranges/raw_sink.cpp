// SPDX-License-Identifier: Apache-2.0
#include "oranges/raw_sink.hpp"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

namespace oranges {

namespace fs = std::filesystem;

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
    throw std::runtime_error(path.string() + ": " + what);
}

}  // namespace

RawSink::RawSink(fs::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail(folder_, "cannot create the folder: " + error.message());
    fs::directory_iterator entry(folder_, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error))
        if (entry->path().filename().string().starts_with("step-"))
            fail(folder_, "already holds steps of an earlier run; name another folder, or remove it");
    if (error) fail(folder_, error.message());
}

void RawSink::capture(std::uint64_t step, std::span<const std::uint32_t> counts) {
    char name[32];
    std::snprintf(name, sizeof(name), "step-%010llu", static_cast<unsigned long long>(step));
    const fs::path partial = folder_ / (std::string(".partial-") + name);
    std::error_code error;
    fs::remove_all(partial, error);
    if (!error) fs::create_directory(partial, error);
    if (error) fail(partial, error.message());
    const fs::path path = partial / "rank-00000.gdv";
    std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
    if (!file) fail(path, std::strerror(errno));
    if (std::fwrite(counts.data(), sizeof(std::uint32_t), counts.size(), file.get()) != counts.size())
        fail(path, std::strerror(errno));
    if (std::fclose(file.release()) != 0) fail(path, std::strerror(errno));
    fs::rename(partial, folder_ / name, error);
    if (error) fail(folder_ / name, error.message());
}

}  // namespace oranges
