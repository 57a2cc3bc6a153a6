#include "difference/column_order.hpp"

#include <algorithm>

namespace twinrun {

namespace {

// A maximum and where it is.
struct Largest {
    double DifferenceStats::*value;
    std::uint64_t DifferenceStats::*at;
};
constexpr Largest kLargest[] = {
    {&DifferenceStats::max_abs, &DifferenceStats::max_abs_at},
    {&DifferenceStats::max_rel, &DifferenceStats::max_rel_at},
    {&DifferenceStats::max_rel_different, &DifferenceStats::max_rel_different_at},
};

void forget_places(DifferenceStats& stats) {
    stats.first = kNowhere;
    for (const auto& [value, at] : kLargest) {
        stats.*value = 0;
        stats.*at = kNowhere;
    }
}

}  // namespace

ColumnOrder::ColumnOrder(std::span<const std::uint64_t> shape, std::uint64_t pair) : pair_(pair) {
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
        if (*size != 1) sizes_.push_back(*size);
    }
}

std::uint64_t ColumnOrder::logical(std::uint64_t scalar) const {
    std::uint64_t item = scalar / pair_;
    std::uint64_t place = 0;
    for (const std::uint64_t size : sizes_) {
        place = place * size + item % size;
        item /= size;
    }
    return place * pair_ + scalar % pair_;
}

std::uint64_t ColumnOrder::least(std::uint64_t begin, std::uint64_t end) const {
    std::uint64_t first = begin / pair_;
    std::uint64_t last = (end + pair_ - 1) / pair_;
    std::uint64_t place = 0;
    bool open = true;  // whether more than one item is left to choose from
    for (const std::uint64_t size : sizes_) {
        const std::uint64_t row = (first + size - 1) / size;
        open = open && row < (last + size - 1) / size;
        if (open) {  // index 0 of this dimension is among them
            place *= size;
            first = row;
            last = (last + size - 1) / size;
        } else {
            place = place * size + first % size;
            first /= size;
        }
    }
    return place * pair_;
}

void ColumnOrder::take_places(const DifferenceStats& from, DifferenceStats& into) const {
    const auto sooner = [&](std::uint64_t at, std::uint64_t than) {
        return at != kNowhere && (than == kNowhere || logical(at) < logical(than));
    };
    if (sooner(from.first, into.first)) into.first = from.first;
    for (const auto& [value, at] : kLargest) {
        if (from.*value > into.*value || (from.*value == into.*value && sooner(from.*at, into.*at))) {
            into.*value = from.*value;
            into.*at = from.*at;
        }
    }
}

void ColumnOrder::merge(const DifferenceStats& from, DifferenceStats& into) const {
    if (!matters()) {
        into.merge(from);
        return;
    }
    take_places(from, into);
    DifferenceStats rest = from;
    forget_places(rest);
    into.merge(rest);
}

void compare_in_columns(const ColumnOrder& order, const DifferenceKernels& kernels, const ElementView& a,
                        const ElementView& b, std::uint64_t first, std::uint64_t count, std::uint64_t index,
                        const DifferenceRule& rule, DifferenceStats* stats) {
    DifferenceStats found;
    compare_elements(kernels, a, b, first, count, index, rule, &found);
    // Most stretches can change no place, by their maxima and by where they lie.
    const std::uint64_t least = count == 0 ? 0 : order.least(index, index + count);
    const auto before = [&](std::uint64_t at) { return at == kNowhere || least < order.logical(at); };
    bool matters = found.first != kNowhere && before(stats->first);
    for (const auto& [value, at] : kLargest) {
        matters = matters ||
                  (found.*at != kNowhere &&
                   (found.*value > stats->*value || (found.*value == stats->*value && before(stats->*at))));
    }
    if (matters) {  // run by run: in each of them both orders are one
        for (std::uint64_t at = 0; at < count;) {
            const std::uint64_t n = std::min(count - at, order.run() - (index + at) % order.run());
            DifferenceStats run;
            compare_elements(kernels, a, b, first + at, n, index + at, rule, &run);
            order.take_places(run, *stats);
            at += n;
        }
    }
    forget_places(found);
    stats->merge(found);
}

}  // namespace twinrun
