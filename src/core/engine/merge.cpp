#include "engine/merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>

namespace twinrun {

namespace {

using Parts = std::span<const FieldResult* const>;

constexpr std::string_view kBetween = ", ";  // names of devices

// The bound of what several parts did not read; NaN (no bound is known) where one is.
double largest_bound(double one, double other) {
    return std::isnan(one) || std::isnan(other) ? std::numeric_limits<double>::quiet_NaN()
                                                : std::max(one, other);
}

void set_largest(FieldResult& result) {
    const LargestOfAll largest = largest_of_all(result.read.max_abs, result.max_abs_unread);
    result.max_abs = largest.value;
    result.max_abs_is_bound = largest.is_bound && result.unread_different == 0;
}

std::string devices_of(Parts parts) {
    std::set<std::string_view> names;
    for (const FieldResult* part : parts) {
        std::string_view rest = part->device;
        for (std::size_t end = rest.find(kBetween); end != std::string_view::npos;
             end = rest.find(kBetween)) {
            names.insert(rest.substr(0, end));
            rest.remove_prefix(end + kBetween.size());
        }
        names.insert(rest);
    }
    std::string all;
    for (const std::string_view name : names)
        all.append(all.empty() ? "" : kBetween).append(name);
    return all;
}

bool read_anything(const std::string& io) { return !io.empty() && io != "none"; }

bool worked(const FieldResult& part) { return part.sketch.ran || part.elements.ran; }

// A part without work for a device has no reason for one.
const std::string& device_reason_of(Parts parts) {
    const auto on_device = [](const FieldResult* part) { return worked(*part) && part->device != "cpu"; };
    auto chosen = std::ranges::find_if(parts, on_device);
    if (chosen == parts.end())
        chosen = std::ranges::find_if(parts, [](const FieldResult* part) { return worked(*part); });
    return (chosen == parts.end() ? parts.front() : *chosen)->device_reason;
}

void add(const FieldResult& part, const ColumnOrder& order, FieldResult& whole) {
    whole.device_seconds += part.device_seconds;
    whole.scalars += part.scalars;
    whole.chunks += part.chunks;
    order.merge(part.read, whole.read);
    whole.proven.by_tree += part.proven.by_tree;
    whole.proven.add(part.proven.by_cells);
    whole.unread_different += part.unread_different;
    if (part.unread_begin < whole.unread_begin) {
        whole.unread_begin = part.unread_begin;
        whole.unread_end = part.unread_end;
    }
    whole.max_abs_unread = largest_bound(whole.max_abs_unread, part.max_abs_unread);
    whole.tree = whole.tree + part.tree;
    whole.sketch = whole.sketch + part.sketch;
    whole.elements = whole.elements + part.elements;
}

}  // namespace

StageFacts operator+(const StageFacts& one, const StageFacts& other) {
    return {one.ran || other.ran, one.chunks_in + other.chunks_in, one.chunks_out + other.chunks_out,
            one.bytes_read + other.bytes_read, one.seconds + other.seconds};
}

Result<FieldResult> merged(Parts parts, const ColumnOrder& order) {
    if (parts.empty()) return Error{ErrorCode::internal, "a field without parts"};
    const FieldResult& first = *parts.front();
    if (parts.size() == 1) return first;
    FieldResult whole;
    whole.method = first.method;
    whole.proven.cell = first.proven.cell;
    whole.proven.coarse_cell = first.proven.coarse_cell;
    whole.io = first.io;
    const FieldResult* widest = &first;
    for (const FieldResult* part : parts) {
        if (part->method != whole.method || part->proven.cell != whole.proven.cell ||
            part->proven.coarse_cell != whole.proven.coarse_cell)
            return Error{ErrorCode::internal, "parts of one field were compared by different methods"};
        add(*part, order, whole);
        if (whole.reason.empty()) whole.reason = part->reason;
        if (!read_anything(whole.io) && read_anything(part->io)) whole.io = part->io;
        if (part->read.largest > widest->read.largest) widest = part;
    }
    set_largest(whole);
    // A comparison warns about the largest value that it sees: a part with smaller values would
    // warn about those.
    whole.warnings = widest->warnings;
    whole.device = devices_of(parts);
    whole.device_reason = device_reason_of(parts);
    // No two parts have a place in common.
    for (const FieldResult* part : parts) {
        if (whole.read.first != kNowhere && part->read.first == whole.read.first) {
            whole.first_bits_a = part->first_bits_a;
            whole.first_bits_b = part->first_bits_b;
        }
        if (whole.read.max_abs_at != kNowhere && part->read.max_abs_at == whole.read.max_abs_at) {
            whole.max_bits_a = part->max_bits_a;
            whole.max_bits_b = part->max_bits_b;
        }
    }
    return whole;
}

FieldResult renumbered(FieldResult result, const std::function<std::uint64_t(std::uint64_t)>& number_of) {
    for (std::uint64_t* at : {&result.read.first, &result.read.max_abs_at, &result.read.max_rel_at,
                              &result.read.max_rel_different_at}) {
        if (*at != kNowhere) *at = number_of(*at);
    }
    return result;
}

FieldResult with_sums(FieldResult read, const TwoSums& sums, std::uint64_t scalars, std::uint64_t by_tree,
                      const StageFacts& tree, const StageFacts& sketch) {
    FieldResult whole = std::move(read);
    whole.method = Method::staged;
    whole.scalars = scalars;
    whole.chunks = sums.count();
    whole.proven = sums.proven(by_tree);
    whole.tree = tree;
    whole.sketch = sketch;
    whole.max_abs_unread = largest_unread(whole.proven, sums.wanted());
    set_largest(whole);
    return whole;
}

FieldResult result_of_keys(std::uint64_t same, std::uint64_t different) {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    FieldResult result;
    DifferenceStats& read = result.read;
    result.scalars = read.scalars = same + different;
    read.different = read.infinite = different;
    read.all.front() = same;
    read.all.back() = read.over.back() = different;
    if (different != 0) {
        read.first = read.max_abs_at = read.max_rel_at = read.max_rel_different_at = 0;
        read.max_abs = read.max_rel = read.max_rel_different = kInfinite;
    }
    result.elements.ran = true;
    set_largest(result);
    return result;
}

}  // namespace twinrun
