// The result of a comparison of two runs. Names and values are those of Python's `twinrun.compare`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comparison/run.hpp"
#include "engine/compare.hpp"

namespace twinrun {

enum class Verdict : std::uint8_t { same, different, incomparable };
[[nodiscard]] const char* verdict_name(Verdict verdict);

// An element, exact for every type.
struct ElementValue {
    DType scalar = DType::f64;
    double real = 0;                     // rounded for 64-bit integers
    std::int64_t integer = 0;            // of i64 and shorter integers
    std::uint64_t unsigned_integer = 0;  // of u64
};

// The rule for differences in a field.
struct Decision {
    Tolerance tolerance;
    std::optional<std::uint64_t> ulps;
    bool equal_nan = true;
};

// A field at one step and rank. Elements are scalars: a complex number counts twice.
struct FieldFacts {
    Step step;
    std::uint32_t rank = 0;
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;  // as the application knows it
    Decision decision;
    std::optional<std::string> kind;  // of elements that are no numbers
    std::optional<std::string> unit;  // of dates and time spans
    std::uint64_t elements = 0;
    std::uint64_t bytes = 0;
    std::uint64_t different = 0;
    // false: exact digests differ and the data is not at hand. `different` then counts a scalar of
    // each chunk that differs, and the first of these reaches from one index to the other.
    bool different_is_exact = true;
    std::vector<std::uint64_t> chunk_begin, chunk_end;
    std::uint64_t infinite = 0;
    // Empty, and no values: nothing differs. An item of an array without dimensions has an empty
    // index too.
    std::vector<std::uint64_t> first_index;
    std::optional<ElementValue> first_a, first_b;
    std::optional<double> first_abs_diff;
    // Set in place of first_abs_diff for integers.
    std::optional<std::uint64_t> first_whole_diff;
    std::optional<double> max_abs_diff;  // nullopt: not even a bound is known
    bool max_abs_diff_is_bound = false;
    double max_abs_diff_at_least = 0;
    std::vector<std::uint64_t> max_abs_index;
    std::optional<ElementValue> max_abs_a, max_abs_b;
    double max_rel_diff = 0;  // NaN, as rms_diff: not known
    bool has_max_rel_index = false;
    std::vector<std::uint64_t> max_rel_index;
    double rms_diff = 0;
    std::optional<double> rms_diff_all;
    bool rms_diff_all_is_bound = false;
    // Of |a - b|; empty: zeros.
    std::vector<std::uint64_t> histogram, histogram_different;
    std::uint64_t elements_read = 0;
    std::uint64_t proven_by_tree = 0;
    std::array<std::uint64_t, 8> proven_by_cells{};
    double cell = 0;
    double coarse_cell = 0;
    std::uint64_t chunks = 0;
    StageFacts tree, sketch, element_stage;
    Method method = Method::direct;
    std::string reason, io, device, device_reason;
    double seconds = 0;
    double device_seconds = 0;
    std::vector<std::string> warnings;

    [[nodiscard]] bool same() const { return different == 0; }
    [[nodiscard]] std::uint64_t bytes_read() const {
        return tree.bytes_read + sketch.bytes_read + element_stage.bytes_read;
    }
};

struct RunsResult {
    std::string a, b;  // how messages name the runs
    Verdict verdict = Verdict::incomparable;
    std::vector<FieldFacts> fields;  // by step and rank, then in the order of the first run
    std::vector<std::string> problems;
    std::vector<std::string> notes;
    std::optional<std::size_t> first;  // the first field that differs
    std::uint64_t different_fields = 0;
    std::uint64_t different = 0;  // elements
    std::uint64_t bytes_compared = 0;
    std::uint64_t bytes_read = 0;
    double seconds = 0;
};

[[nodiscard]] const char* method_name(Method method);
// The facts of a field that was compared.
FieldFacts facts_of(const FieldResult& found, const RunField& a, Step step, std::uint32_t rank,
                    const Decision& decision);

// The verdict in a line, as `twinrun compare` ends with it.
std::string verdict_line(const RunsResult& result);

}  // namespace twinrun
