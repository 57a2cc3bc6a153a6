#include "element/dtype.hpp"

#include <array>

namespace twinrun {

namespace {
constexpr std::array<std::string_view, 16> kNames = {"",    "f16",  "bf16", "f32", "f64", "i8",
                                                     "i16", "i32",  "i64",  "u8",  "u16", "u32",
                                                     "u64", "bool", "c64",  "c128"};
}

std::string_view dtype_name(DType dtype) { return kNames[static_cast<std::size_t>(dtype) & 15]; }

std::optional<DType> dtype_from_name(std::string_view name) {
    for (std::size_t i = 1; i < kNames.size(); ++i) {
        if (kNames[i] == name) return static_cast<DType>(i);
    }
    return std::nullopt;
}

std::optional<DType> dtype_from_number(std::uint8_t number) {
    if (number == 0 || number >= kNames.size()) return std::nullopt;
    return static_cast<DType>(number);
}

}  // namespace twinrun
