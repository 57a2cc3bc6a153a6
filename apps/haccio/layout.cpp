// SPDX-License-Identifier: Apache-2.0
#include "haccio/layout.hpp"

#include <cstring>

namespace haccio {

std::array<Place, kVariables> places(Layout layout, const Share& share) {
    std::array<Place, kVariables> result;
    for (std::size_t v = 0; v < kVariables; ++v) {
        const std::uint64_t bytes = kVariable[v].bytes, before = kVariable[v].record_offset;
        switch (layout) {
            case Layout::records: result[v] = {share.before * kParticleBytes + before, kParticleBytes}; break;
            case Layout::blocks:
                result[v] = {share.before * kParticleBytes + share.count * before, bytes};
                break;
            case Layout::variables: result[v] = {share.total * before + share.before * bytes, bytes}; break;
        }
    }
    return result;
}

namespace {

// Sizes known to the compiler: a copy of a value is then one instruction.
template <std::size_t kBytes>
void copy_values(std::byte* to, std::uint64_t to_stride, const std::byte* from, std::uint64_t from_stride,
                 std::uint64_t items) {
    for (std::uint64_t i = 0; i < items; ++i)
        std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
}

void copy_variable(std::size_t variable, std::byte* to, std::uint64_t to_stride, const std::byte* from,
                   std::uint64_t from_stride, std::uint64_t items) {
    const std::uint64_t bytes = kVariable[variable].bytes;
    if (items == 0) return;
    if (to_stride == bytes && from_stride == bytes) {
        std::memcpy(to, from, items * bytes);
        return;
    }
    switch (bytes) {
        case 2: return copy_values<2>(to, to_stride, from, from_stride, items);
        case 4: return copy_values<4>(to, to_stride, from, from_stride, items);
        default: return copy_values<8>(to, to_stride, from, from_stride, items);
    }
}

}  // namespace

void pack(const Particles& particles, Layout layout, std::byte* bytes) {
    const std::uint64_t count = particles.count();
    const std::array<Place, kVariables> to = places(layout, {0, count, count});
    for (std::size_t v = 0; v < kVariables; ++v)
        copy_variable(v, bytes + to[v].offset, to[v].stride, particles.data(v), kVariable[v].bytes, count);
}

void unpack(const std::byte* bytes, Layout layout, Particles& particles) {
    const std::uint64_t count = particles.count();
    const std::array<Place, kVariables> from = places(layout, {0, count, count});
    for (std::size_t v = 0; v < kVariables; ++v)
        copy_variable(v, particles.data(v), kVariable[v].bytes, bytes + from[v].offset, from[v].stride,
                      count);
}

}  // namespace haccio
