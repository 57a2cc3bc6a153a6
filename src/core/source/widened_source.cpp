#include "source/widened_source.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "platform/float_environment.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kPiece = 1024;  // scalars: 8 KiB of 64-bit types, on the stack

template <class From, class To>
void convert(const void* from, std::size_t count, std::byte* to) {
    for (std::size_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof(From), sizeof(From));
        const auto wider = static_cast<To>(value);
        std::memcpy(to + i * sizeof(To), &wider, sizeof(To));
    }
}

// Never inlined beside the guard that it relies on.
template <class To>
[[gnu::noinline]] void widen(const ElementView& view, std::uint64_t count, std::byte* to) {
    alignas(64) std::array<std::byte, kPiece * 8> staging;
    for (std::uint64_t done = 0; done < count; done += kPiece) {
        const auto n = static_cast<std::size_t>(std::min(kPiece, count - done));
        const void* values = load(view, done, n, staging.data());
        std::byte* const into = to + done * sizeof(To);
        switch (compute_type(view.scalar)) {
            case ComputeType::f32: convert<float, To>(values, n, into); break;
            case ComputeType::f64: convert<double, To>(values, n, into); break;
            case ComputeType::i64: convert<std::int64_t, To>(values, n, into); break;
            case ComputeType::u64: convert<std::uint64_t, To>(values, n, into); break;
        }
    }
}

bool is_signed_integer(DType dtype) {
    return dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 || dtype == DType::i64;
}

}  // namespace

bool holds_exactly(DType to, DType from) {
    if (to == from) return true;
    if (is_complex(to) || is_complex(from)) return to == DType::c128 && is_complex(from);
    switch (to) {
        case DType::f64: return from != DType::i64 && from != DType::u64;
        case DType::i64: return !is_floating(from) && from != DType::u64;
        case DType::u64: return !is_floating(from) && !is_signed_integer(from);
        default: return false;
    }
}

Result<std::unique_ptr<WidenedSource>> WidenedSource::create(DType to, std::shared_ptr<ElementSource> below) {
    const DType from = below->dtype();
    if (item_bytes(scalar_type(to)) != 8 || !holds_exactly(to, from)) {
        return Error{
            ErrorCode::invalid_argument,
            std::string(dtype_name(to)) + " does not hold all values of " + std::string(dtype_name(from))};
    }
    return std::unique_ptr<WidenedSource>(new WidenedSource(to, std::move(below)));
}

std::size_t WidenedSource::buffer_bytes(std::uint64_t count) const {
    return round_up(below_->buffer_bytes(count), kDirectAlignment) + count * item_bytes(dtype());
}

ElementView WidenedSource::view(std::uint64_t first, std::uint64_t count, std::byte* buffer) {
    const ElementView narrow = below_->view(first, count, buffer);
    std::byte* const to = buffer + round_up(below_->buffer_bytes(count), kDirectAlignment);
    const std::uint64_t scalars = count * scalars_per_item(dtype());
    const FloatEnvironment guard(Rounding::to_nearest);  // denormals are values like others
    switch (scalar_type(dtype())) {
        case DType::i64: widen<std::int64_t>(narrow, scalars, to); break;
        case DType::u64: widen<std::uint64_t>(narrow, scalars, to); break;
        default: widen<double>(narrow, scalars, to); break;
    }
    return dense_view(dtype(), to);
}

}  // namespace twinrun
