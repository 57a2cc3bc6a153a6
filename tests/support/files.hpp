// What tests of files share: contents, memory for direct reads, and what a message must be.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "platform/file_io.hpp"

namespace twinrun::testing {

inline std::vector<std::byte> noise(std::size_t bytes, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> result(bytes);
    for (auto& byte : result)
        byte = static_cast<std::byte>(random() >> 56);
    return result;
}

inline void put(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(stream.good());
}

struct AlignedFree {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Aligned = std::unique_ptr<std::byte, AlignedFree>;
inline Aligned aligned(std::size_t bytes) {
    return Aligned(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes)));
}

inline std::uint64_t rounded_up(std::uint64_t bytes) {
    return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

inline bool one_line(const std::string& message) {
    return !message.empty() && message.find('\n') == std::string::npos;
}

}  // namespace twinrun::testing
