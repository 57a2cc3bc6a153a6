#include "element/convert.hpp"

#include <bit>
#include <cstring>

#include "base/codec.hpp"

namespace twinrun {

namespace {

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// IEEE binary16 to binary32, exact; a NaN stays a NaN. Without branches: its loops are for vectors.
float from_f16(std::uint16_t half) {
    const std::uint32_t magnitude = half & 0x7FFF;
    const std::int32_t exponent = half & 0x7C00;
    const std::uint32_t normal = (magnitude << 13) + (112U << 23);
    const std::uint32_t special = (magnitude << 13) | 0x7F800000U;
    // A denormal one is a multiple of 2^-24, and no denormal binary32: no mode of the caller
    // changes it.
    const float steps = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
    const auto small = std::bit_cast<std::uint32_t>(steps);
    // Masks of ones or zeros: of conditions compilers make branches.
    const auto is_small = static_cast<std::uint32_t>((exponent - 1) >> 31);
    const auto is_special = static_cast<std::uint32_t>((0x7BFF - exponent) >> 31);
    const std::uint32_t bits =
        (small & is_small) | (special & is_special) | (normal & ~(is_small | is_special));
    return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000) << 16);
}

template <class Bits>
Bits read_bits(const std::byte* from, bool swap) {
    Bits bits;
    std::memcpy(&bits, from, sizeof bits);
    return swap ? byte_swap(bits) : bits;
}

template <class Bits, class To, class Convert>
void load_as(const ElementView& view, std::uint64_t first, std::size_t count, std::byte* staging,
             Convert convert) {
    // Scalars are written through memcpy: the staging buffer is bytes.
    const auto put = [&](std::size_t i, const std::byte* from) {
        const To value = convert(read_bits<Bits>(from, view.swap));
        std::memcpy(staging + i * sizeof(To), &value, sizeof(To));
    };
    if (view.dense()) {
        const std::byte* from = view.base + first * sizeof(Bits);
        if (view.swap) {
            for (std::size_t i = 0; i < count; ++i)
                put(i, from + i * sizeof(Bits));
        } else {
            for (std::size_t i = 0; i < count; ++i) {
                const To value = convert(read_bits<Bits>(from + i * sizeof(Bits), false));
                std::memcpy(staging + i * sizeof(To), &value, sizeof(To));
            }
        }
    } else if (view.pair == 1) {
        const std::byte* from = view.base + first * view.stride;
        for (std::size_t i = 0; i < count; ++i)
            put(i, from + i * view.stride);
    } else {
        for (std::size_t i = 0; i < count; ++i)
            put(i, view.at(first + i));
    }
}

}  // namespace

ElementView dense_view(DType dtype, const void* data) {
    ElementView view;
    view.base = static_cast<const std::byte*>(data);
    view.scalar = scalar_type(dtype);
    view.pair = static_cast<std::uint8_t>(scalars_per_item(dtype));
    view.stride = item_bytes(dtype);
    return view;
}

ComputeType compute_type(DType scalar) {
    switch (scalar) {
        case DType::f64:
        case DType::i32:
        case DType::u32:
        case DType::c128: return ComputeType::f64;
        case DType::i64: return ComputeType::i64;
        case DType::u64: return ComputeType::u64;
        default: return ComputeType::f32;
    }
}

const void* load(const ElementView& view, std::uint64_t first, std::size_t count, std::byte* staging) {
    using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
    const bool in_place = view.dense() && !view.swap;
    switch (view.scalar) {
        case DType::f32:
        case DType::c64:
            if (in_place) return view.base + first * 4;
            load_as<uint32_t, uint32_t>(view, first, count, staging, [](uint32_t b) { return b; });
            break;
        case DType::f64:
        case DType::i64:
        case DType::u64:
        case DType::c128:
            if (in_place) return view.base + first * 8;
            load_as<uint64_t, uint64_t>(view, first, count, staging, [](uint64_t b) { return b; });
            break;
        case DType::f16:
            load_as<uint16_t, float>(view, first, count, staging, [](uint16_t b) { return from_f16(b); });
            break;
        case DType::bf16:
            load_as<uint16_t, float>(view, first, count, staging, [](uint16_t b) { return from_bf16(b); });
            break;
        case DType::i8:
            load_as<uint8_t, float>(view, first, count, staging, [](uint8_t b) {
                return static_cast<float>(static_cast<std::int8_t>(b));
            });
            break;
        case DType::u8:
            load_as<uint8_t, float>(view, first, count, staging,
                                    [](uint8_t b) { return static_cast<float>(b); });
            break;
        case DType::boolean:
            load_as<uint8_t, float>(view, first, count, staging,
                                    [](uint8_t b) { return b != 0 ? 1.0F : 0.0F; });
            break;
        case DType::i16:
            load_as<uint16_t, float>(view, first, count, staging, [](uint16_t b) {
                return static_cast<float>(static_cast<std::int16_t>(b));
            });
            break;
        case DType::u16:
            load_as<uint16_t, float>(view, first, count, staging,
                                     [](uint16_t b) { return static_cast<float>(b); });
            break;
        case DType::i32:
            load_as<uint32_t, double>(view, first, count, staging, [](uint32_t b) {
                return static_cast<double>(static_cast<std::int32_t>(b));
            });
            break;
        case DType::u32:
            load_as<uint32_t, double>(view, first, count, staging,
                                      [](uint32_t b) { return static_cast<double>(b); });
            break;
    }
    return staging;
}

namespace {

template <class Bits>
void copy_bits(const ElementView& view, std::uint64_t count, std::byte* to) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto bits = static_cast<Bits>(read_bits<Bits>(view.at(i), view.swap));
        std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
    }
}

}  // namespace

void copy_dense(const ElementView& view, std::uint64_t count, std::byte* to) {
    const std::size_t bytes = item_bytes(view.scalar);
    if (view.dense() && (!view.swap || bytes == 1)) {
        std::memcpy(to, view.base, count * bytes);
        return;
    }
    switch (bytes) {
        case 1: return copy_bits<std::uint8_t>(view, count, to);
        case 2: return copy_bits<std::uint16_t>(view, count, to);
        case 4: return copy_bits<std::uint32_t>(view, count, to);
        default: return copy_bits<std::uint64_t>(view, count, to);
    }
}

std::uint64_t raw_bits(const ElementView& view, std::uint64_t index) {
    const std::byte* from = view.at(index);
    switch (item_bytes(view.scalar)) {
        case 1: return read_bits<std::uint8_t>(from, false);
        case 2: return read_bits<std::uint16_t>(from, view.swap);
        case 4: return read_bits<std::uint32_t>(from, view.swap);
        default: return read_bits<std::uint64_t>(from, view.swap);
    }
}

}  // namespace twinrun
