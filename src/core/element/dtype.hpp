// Types of elements. A complex number is a pair of scalars; digests and differences see scalars
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace twinrun {

// The numbers are part of the metadata format: never change one.
enum class DType : std::uint8_t {
    f16 = 1,
    bf16 = 2,
    f32 = 3,
    f64 = 4,
    i8 = 5,
    i16 = 6,
    i32 = 7,
    i64 = 8,
    u8 = 9,
    u16 = 10,
    u32 = 11,
    u64 = 12,
    boolean = 13,
    c64 = 14,
    c128 = 15,
};

enum class ByteOrder : std::uint8_t { little = 0, big = 1 };

[[nodiscard]] std::string_view dtype_name(DType dtype);  // "f32", "bool", "c64"
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);
[[nodiscard]] std::optional<DType> dtype_from_number(std::uint8_t number);

[[nodiscard]] constexpr std::size_t item_bytes(DType dtype) {
    switch (dtype) {
        case DType::i8:
        case DType::u8:
        case DType::boolean: return 1;
        case DType::f16:
        case DType::bf16:
        case DType::i16:
        case DType::u16: return 2;
        case DType::f32:
        case DType::i32:
        case DType::u32: return 4;
        case DType::f64:
        case DType::i64:
        case DType::u64:
        case DType::c64: return 8;
        case DType::c128: return 16;
    }
    return 0;
}

[[nodiscard]] constexpr bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }
[[nodiscard]] constexpr std::size_t scalars_per_item(DType dtype) { return is_complex(dtype) ? 2 : 1; }
[[nodiscard]] constexpr DType scalar_type(DType dtype) {
    return dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
}
[[nodiscard]] constexpr bool is_floating(DType dtype) {
    const DType s = scalar_type(dtype);
    return s == DType::f16 || s == DType::bf16 || s == DType::f32 || s == DType::f64;
}
// Bits of the significand, the hidden one included; for integers the bits of a magnitude.
[[nodiscard]] constexpr int precision_bits(DType dtype) {
    switch (scalar_type(dtype)) {
        case DType::f16: return 11;
        case DType::bf16: return 8;
        case DType::f32: return 24;
        case DType::f64: return 53;
        default: return static_cast<int>(8 * item_bytes(dtype));
    }
}

}  // namespace twinrun
