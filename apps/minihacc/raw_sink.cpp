// SPDX-License-Identifier: Apache-2.0
#include "minihacc/raw_sink.hpp"

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

namespace minihacc {

namespace fs = std::filesystem;

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
    throw std::runtime_error(path.string() + ": " + what);
}

void write_file(const fs::path& path, std::span<const float> values) {
    std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
    if (!file) fail(path, std::strerror(errno));
    if (std::fwrite(values.data(), sizeof(float), values.size(), file.get()) != values.size())
        fail(path, std::strerror(errno));
    if (std::fclose(file.release()) != 0) fail(path, std::strerror(errno));
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

void RawSink::capture(std::uint64_t step, std::span<const Field> fields) {
    char name[32];
    std::snprintf(name, sizeof(name), "step-%010llu", static_cast<unsigned long long>(step));
    const fs::path partial = folder_ / (std::string(".partial-") + name);
    std::error_code error;
    fs::remove_all(partial, error);
    if (!error) fs::create_directory(partial, error);
    if (error) fail(partial, error.message());
    for (const Field& field : fields)
        write_file(partial / (std::string(field.name) + ".f32"), field.values);
    fs::rename(partial, folder_ / name, error);
    if (error) fail(folder_ / name, error.message());
}

}  // namespace minihacc
