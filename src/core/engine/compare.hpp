// The comparison of one field of two runs in three stages: tree, sketch, elements. Each stage looks
// only at what the stage before left open. With every method the verdict, the count, the first
// place and the statistics of elements that differ equal those of comparing every element.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "difference/difference.hpp"
#include "difference/difference_device.hpp"
#include "engine/device_compare.hpp"
#include "engine/device_place.hpp"
#include "metadata/metadata.hpp"
#include "sketch/proof.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"

namespace twinrun {

struct CompareOptions {
    DifferenceRule rule;
    Method method = Method::automatic;
    StreamOptions stream;
    CacheUse cache = CacheUse::automatic;
    DeviceChoice device;
    // Only these scalars of the field: ascending, disjoint, none empty, each from a multiple of the
    // method's unit (range_unit) to one or to the field's end. Counts are then theirs; places
    // remain those in the field.
    std::optional<std::vector<Range>> ranges;
    // Shape of column-major arrays, in items, the slowest dimension first: the place that is
    // reported is then the first one in row-major order. Empty: the first one in memory order.
    std::vector<std::uint64_t> columns;
};

// One run's side of a field. elements may be null if the data are not available: then only metadata
// can answer.
struct FieldSide {
    ElementSource* elements = nullptr;
    MetadataFile* metadata = nullptr;
    std::size_t field = 0;  // of metadata
};

struct StageFacts {
    bool ran = false;
    std::uint64_t chunks_in = 0;
    // Left open by this stage; elements: chunks that hold a difference.
    std::uint64_t chunks_out = 0;
    std::uint64_t bytes_read = 0;  // of both runs
    double seconds = 0;
};

struct FieldResult {
    Method method = Method::direct;
    std::string reason;  // why this method, if it was not asked for
    std::string io;
    // Where elements and sketches were compared: "cpu", "cuda:0", "cuda:0-3".
    std::string device = "cpu";
    std::string device_reason;  // why there
    double device_seconds = 0;  // that copies to devices and their kernels took, of all devices
    std::uint64_t scalars = 0;
    std::uint64_t chunks = 0;
    DifferenceStats read;  // of the scalars whose elements were read
    ProvenDrift proven;    // of the others
    // Chunks whose exact digests differ, so that a scalar of each does, and whose elements are not
    // at hand. The first of them holds the scalars [unread_begin, unread_end); kNowhere: none.
    std::uint64_t unread_different = 0;
    std::uint64_t unread_begin = kNowhere, unread_end = kNowhere;
    bool max_abs_is_bound = false;
    // largest |a - b|, or, if it is a bound, what none exceeds; NaN: no bound is known
    double max_abs = 0;
    // What none exceeds of those that were not read; NaN: no bound is known.
    double max_abs_unread = 0;
    StageFacts tree, sketch, elements;
    std::uint64_t first_bits_a = 0, first_bits_b = 0;  // raw bits of the scalars at read.first
    std::uint64_t max_bits_a = 0, max_bits_b = 0;      // and at read.max_abs_at
    std::vector<std::string> warnings;

    // Scalars that differ; of chunks that were not read one each, so that there may be more.
    [[nodiscard]] std::uint64_t different() const { return read.different + unread_different; }
    [[nodiscard]] bool same() const { return different() == 0; }
};

// What comparing all elements of two arrays found, where that was done together with other arrays.
// What it points to stays.
struct ComparedElements {
    const DevicePairResult& found;  // its chunks are of range_unit() scalars
    const std::string* device;      // as in FieldResult
    const std::string* device_reason;
    double seconds = 0;
};

// Elements of two types of f64, i64 and u64 are compared as the real numbers that they are, where
// no side has metadata.
// compared: for sides without metadata and options without ranges, what a direct comparison would
// find; else null.
Result<FieldResult> compare_field(const FieldSide& a, const FieldSide& b, const CompareOptions& options,
                                  const ComparedElements* compared = nullptr);

// The result of comparing another pair of that many items, in the same way, under `rule`: of a
// result of compare_field() for compared elements only what depends on the pair is replaced.
void take_compared(DType dtype, std::uint64_t items, const DifferenceRule& rule,
                   const ComparedElements& compared, FieldResult& result);

// Scalars that ranges of a comparison must be multiples of: a chunk of the metadata, or 4096 bytes
// where it is not used. Of a field whose metadata may or may not come to be used the chunk serves
// both.
[[nodiscard]] std::uint64_t range_unit(DType dtype, const FieldMetadata* metadata);

}  // namespace twinrun
