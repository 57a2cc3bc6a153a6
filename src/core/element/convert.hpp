// From stored elements (any dtype, byte order and stride) to dense native values that kernels take:
// float32, float64, or 64-bit integers where float64 would not be exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "element/dtype.hpp"

namespace twinrun {

// How scalars lie in a buffer. A complex array is a view of twice as many scalars; where complex
// items are strided, `pair` is 2: scalars 2i and 2i + 1 are neighbours at base + i * stride.
struct ElementView {
    const std::byte* base = nullptr;
    std::uint64_t stride = 0;   // bytes from one item to the next
    DType scalar = DType::f32;  // a scalar type, never complex
    std::uint8_t pair = 1;
    bool swap = false;  // the byte order is not this machine's

    [[nodiscard]] bool dense() const { return stride == item_bytes(scalar) * pair; }
    [[nodiscard]] const std::byte* at(std::uint64_t scalar_index) const {
        return base + (scalar_index / pair) * stride + (scalar_index % pair) * item_bytes(scalar);
    }
};

ElementView dense_view(DType dtype, const void* data);

// The type that kernels compute in. Exact for every value: f16, bf16, 8- and 16-bit integers and
// bool in f32.
enum class ComputeType : std::uint8_t { f32, f64, i64, u64 };
[[nodiscard]] ComputeType compute_type(DType scalar);
[[nodiscard]] constexpr std::size_t compute_bytes(ComputeType type) {
    return type == ComputeType::f32 ? 4 : 8;
}

// Dense native copies of scalars [first, first + count), or a pointer into the view where it is
// that already.
// staging: room for count * compute_bytes, 64-byte aligned. Bytes of a bool other than 0 count as
// 1.
const void* load(const ElementView& view, std::uint64_t first, std::size_t count, std::byte* staging);

// Scalars [0, count) as they are stored, dense and in native byte order, to `to`.
void copy_dense(const ElementView& view, std::uint64_t count, std::byte* to);

// Raw bits of one scalar, zero-extended to 64 bits, native order: for reports.
std::uint64_t raw_bits(const ElementView& view, std::uint64_t index);

}  // namespace twinrun
