#include "engine/listing.hpp"

#include <algorithm>
#include <cstddef>

namespace twinrun {

Result<std::vector<std::uint64_t>> differing_scalars(ElementSource& a, ElementSource& b, std::uint64_t first,
                                                     std::uint64_t count, const DifferenceRule& rule) {
    constexpr std::uint64_t few = 64;  // scalars; if one of them differs, each is compared alone
    if (!comparable(a.dtype(), b.dtype()) || a.items() != b.items())
        return Error{ErrorCode::mismatch, "the fields have different types or sizes"};
    if (count > a.items() || first > a.items() - count)
        return Error{ErrorCode::invalid_argument, "elements behind the end of the field were asked for"};
    const std::uint64_t pair = scalars_per_item(a.dtype());
    const std::size_t bytes = count * item_bytes(a.dtype());
    std::vector<std::byte> of_a(bytes);
    std::vector<std::byte> of_b(bytes);
    TWR_CHECK(read_items(a, first, count, of_a.data()));
    TWR_CHECK(read_items(b, first, count, of_b.data()));
    const ElementView view_a = dense_view(a.dtype(), of_a.data());
    const ElementView view_b = dense_view(b.dtype(), of_b.data());
    const DifferenceKernels& kernels = difference_kernels();
    std::vector<std::uint64_t> found;
    const auto differs = [&](std::uint64_t at, std::uint64_t n) {
        DifferenceStats stats;
        compare_elements(kernels, view_a, view_b, at, n, first * pair + at, rule, &stats);
        return stats.different;
    };
    for (std::uint64_t at = 0; at < count * pair; at += few) {
        const std::uint64_t n = std::min(few, count * pair - at);
        std::uint64_t left = differs(at, n);
        for (std::uint64_t i = 0; left != 0 && i < n; ++i) {
            if (differs(at + i, 1) == 0) continue;
            found.push_back(first * pair + at + i);
            --left;
        }
    }
    return found;
}

}  // namespace twinrun
