// Types of scalars and numbers that tests of several rooms go through.
#pragma once

#include <limits>

#include "element/dtype.hpp"

namespace twinrun::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kTiny = std::numeric_limits<double>::denorm_min();

inline constexpr DType kEveryDType[] = {DType::f16, DType::bf16, DType::f32,     DType::f64, DType::i8,
                                        DType::i16, DType::i32,  DType::i64,     DType::u8,  DType::u16,
                                        DType::u32, DType::u64,  DType::boolean, DType::c64, DType::c128};

}  // namespace twinrun::testing
