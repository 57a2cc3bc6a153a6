#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comparison/result.hpp"
#include "comparison/words.hpp"
#include "element/convert.hpp"
#include "sketch/proof.hpp"

namespace twinrun {

namespace {

ElementValue value_of(DType dtype, std::uint64_t bits) {
    const DType scalar = scalar_type(dtype);
    ElementValue value;
    value.scalar = scalar;
    const ElementView view = dense_view(scalar, &bits);
    alignas(8) std::array<std::byte, 8> staging{};
    const void* loaded = load(view, 0, 1, staging.data());
    switch (compute_type(scalar)) {
        case ComputeType::f32: {
            float x = 0;
            std::memcpy(&x, loaded, sizeof x);
            value.real = static_cast<double>(x);
            break;
        }
        case ComputeType::f64: std::memcpy(&value.real, loaded, sizeof value.real); break;
        case ComputeType::i64: {
            std::memcpy(&value.integer, &bits, sizeof bits);
            value.real = static_cast<double>(value.integer);
            return value;
        }
        case ComputeType::u64:
            value.unsigned_integer = bits;
            value.integer = static_cast<std::int64_t>(bits);
            value.real = static_cast<double>(bits);
            return value;
    }
    if (!is_floating(scalar)) {
        value.integer = static_cast<std::int64_t>(value.real);
        value.unsigned_integer = static_cast<std::uint64_t>(value.integer);
    }
    return value;
}

std::uint64_t whole_distance(const ElementValue& a, const ElementValue& b) {
    if (a.scalar == DType::u64) {
        return a.unsigned_integer < b.unsigned_integer ? b.unsigned_integer - a.unsigned_integer
                                                       : a.unsigned_integer - b.unsigned_integer;
    }
    const auto x = static_cast<std::uint64_t>(a.integer);
    const auto y = static_cast<std::uint64_t>(b.integer);
    return a.integer < b.integer ? y - x : x - y;
}

double distance(double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
    return std::fabs(a - b);
}

// Index of a scalar in the array as the application knows it; of a complex number with 0 or 1
// behind it.
std::vector<std::uint64_t> index_of(const RunField& field, std::uint64_t scalar) {
    std::uint64_t item = scalar;
    if (is_complex(field.dtype)) item /= 2;
    std::vector<std::uint64_t> index(field.shape.size());
    for (std::size_t d = field.shape.size(); d-- > 0;) {
        index[d] = item % field.shape[d];
        item /= field.shape[d];
    }
    index = field.user_order(std::move(index));
    if (is_complex(field.dtype)) index.push_back(scalar % 2);
    return index;
}

std::vector<std::uint64_t> counts_of(const Histogram& histogram) {
    const bool any = std::any_of(histogram.begin(), histogram.end(), [](std::uint64_t n) { return n != 0; });
    return any ? std::vector(histogram.begin(), histogram.end()) : std::vector<std::uint64_t>();
}

}  // namespace

const char* verdict_name(Verdict verdict) {
    switch (verdict) {
        case Verdict::same: return "same";
        case Verdict::different: return "different";
        case Verdict::incomparable: return "incomparable";
    }
    return "";
}

const char* method_name(Method method) {
    switch (method) {
        case Method::automatic: return "auto";
        case Method::staged: return "staged";
        case Method::direct: return "direct";
        case Method::published: return "published";
    }
    return "";
}

FieldFacts facts_of(const FieldResult& found, const RunField& a, Step step, std::uint32_t rank,
                    const Decision& decision) {
    const DifferenceStats& read = found.read;
    // The distance of codes and of digests of texts means nothing.
    std::optional<std::string> kind = a.kind;
    if (!kind && a.name.ends_with(kTextLabel)) kind = "text";
    if (!kind && a.unit) kind = a.unit->starts_with('M') ? "date" : "time span";
    const bool numbers = !kind;
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    FieldFacts f;
    f.step = step;
    f.rank = rank;
    f.name = a.name;
    f.dtype = a.dtype;
    f.shape = a.user_shape();
    f.decision = decision;
    f.kind = kind;
    f.unit = a.unit;
    f.elements = found.scalars;
    f.bytes = a.items() * item_bytes(a.dtype);
    f.different = found.different();
    f.different_is_exact = found.unread_different == 0;
    if (!f.different_is_exact) {
        f.chunk_begin = index_of(a, found.unread_begin);
        f.chunk_end = index_of(a, found.unread_end - 1);
    }
    f.infinite = read.infinite;
    if (read.first != kNowhere) {
        f.first_index = index_of(a, read.first);
        f.first_a = value_of(a.dtype, found.first_bits_a);
        f.first_b = value_of(a.dtype, found.first_bits_b);
        if (numbers && is_floating(a.dtype)) f.first_abs_diff = distance(f.first_a->real, f.first_b->real);
        if (numbers && !is_floating(a.dtype)) f.first_whole_diff = whole_distance(*f.first_a, *f.first_b);
    }
    f.elements_read = read.scalars;
    f.proven_by_tree = found.proven.by_tree;
    f.proven_by_cells = found.proven.by_cells;
    f.cell = std::max(found.proven.cell, 0.0);
    f.coarse_cell = found.proven.coarse_cell;
    f.chunks = found.chunks;
    f.rms_diff_all_is_bound = found.scalars != read.scalars && found.proven.cell >= 0;
    f.max_abs_diff_is_bound = numbers && found.max_abs_is_bound;
    if (numbers) {
        if (!std::isnan(found.max_abs)) f.max_abs_diff = found.max_abs;
        f.max_abs_diff_at_least = std::max(read.max_abs, least_unread(found.proven));
        if (read.max_abs_at != kNowhere) {
            f.max_abs_index = index_of(a, read.max_abs_at);
            f.max_abs_a = value_of(a.dtype, found.max_bits_a);
            f.max_abs_b = value_of(a.dtype, found.max_bits_b);
        }
        f.max_rel_diff = f.different_is_exact ? read.max_rel_different : kUnknown;
        f.has_max_rel_index = read.max_rel_different_at != kNowhere;
        if (f.has_max_rel_index) f.max_rel_index = index_of(a, read.max_rel_different_at);
        const std::uint64_t finite = read.different - read.infinite;
        if (finite != 0) f.rms_diff = std::sqrt(read.sum_squares_different / static_cast<double>(finite));
        if (!f.different_is_exact) f.rms_diff = kUnknown;
        const double squares = sum_squares_of_all(read.sum_squares, found.proven, decision.tolerance);
        // Squares are of finite differences. A tolerance may allow an infinite one: its bin counts.
        const std::uint64_t total = found.scalars - read.all.back();
        if (!std::isnan(squares) && f.different_is_exact)
            f.rms_diff_all = total != 0 ? std::sqrt(squares / static_cast<double>(total)) : 0.0;
        f.histogram = counts_of(read.all);
        f.histogram_different = counts_of(read.over);
    } else if (found.same()) {
        f.max_abs_diff = 0.0;
        f.rms_diff_all = 0.0;
    } else if (!f.different_is_exact) {
        f.max_rel_diff = f.rms_diff = kUnknown;
    }
    f.tree = found.tree;
    f.sketch = found.sketch;
    f.element_stage = found.elements;
    f.method = found.method;
    f.reason = found.reason;
    f.io = found.io;
    f.device = found.device;
    f.device_reason = found.device_reason;
    f.device_seconds = found.device_seconds;
    f.seconds = found.tree.seconds + found.sketch.seconds + found.elements.seconds;
    f.warnings = found.warnings;
    return f;
}

}  // namespace twinrun
