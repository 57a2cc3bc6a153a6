// Items of 2, 4 or 8 bytes as numbers, little-endian: byte j is that of significance j.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/codec.hpp"

namespace twinrun {

template <unsigned Width>
using ItemOf = std::conditional_t<Width == 2, std::uint16_t,
                                  std::conditional_t<Width == 4, std::uint32_t, std::uint64_t>>;

template <unsigned Width>
[[nodiscard]] inline ItemOf<Width> item_at(const std::byte* from) {
    ItemOf<Width> item;
    std::memcpy(&item, from, Width);
    if constexpr (std::endian::native == std::endian::big) item = byte_swap(item);
    return item;
}

template <unsigned Width>
inline void put_item(std::byte* to, ItemOf<Width> item) {
    if constexpr (std::endian::native == std::endian::big) item = byte_swap(item);
    std::memcpy(to, &item, Width);
}

}  // namespace twinrun
