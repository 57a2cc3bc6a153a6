// The words of a comparison's verdict, problems and notes. Python's comparison takes them from
// here, where both say the same.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "element/dtype.hpp"
#include "element/tolerance.hpp"

namespace twinrun {

// One line of UTF-8: control characters, and bytes that are no UTF-8, as escapes. A long text loses
// its middle.
std::string one_line(std::string_view text);
// A name of a field in quotes.
std::string in_quotes(std::string_view name);
// The first few words, and how many more there are.
std::string listed(std::span<const std::string> words);
// "step 3", "steps 3, 5": with the first few words, and how many more there are.
std::string named(std::string_view what, std::span<const std::string> words);
// As printf's %.<digits>g, whatever the application's locale.
std::string rounded(double value, int digits);
// "1e-09 + 0.5 |a|", "4 ulp or 1e-09"
std::string tolerance_text(const Tolerance& tolerance, std::optional<std::uint64_t> ulps);
// The same of a tolerance that `difference` exceeds: with as many digits as it takes to be less.
std::string exceeded_text(const Tolerance& tolerance, std::optional<std::uint64_t> ulps, double difference);
// "0.4667538 against 0.4667436": with the digits in which they differ, and two more. difference: |a
// - b|
std::string values_text(double a, double b, double difference);
// "1.02e-05": |a - b|, with as many digits as it takes to be more than what is allowed.
std::string distance_text(double difference, std::string_view allowed);
// " (2 ulp)": how many representable numbers a value of b is away from a. scalar: their type.
std::string ulps_text(DType scalar, double a, double b);
// Dates and time spans compare as integers. unit: as NumPy writes it, "M8[D]" or "m8[25ms]".
// A date in ISO 8601, a span with its unit, or "NaT".
std::string time_text(std::int64_t value, std::string_view unit);
// "3 days", "50 s": so many steps of the unit.
std::string span_text(std::uint64_t steps, std::string_view unit);
// " (0.0022%)": how large a difference is beside the value of the reference. Empty where that says
// nothing.
std::string percent_text(double a, double difference);
// "; metadata proves it, no element was read": how many of the elements were read. Empty: all.
std::string proof_text(std::uint64_t read, std::uint64_t elements);

// Why arrays without metadata are compared directly.
inline constexpr std::string_view kNoMetadata = "no metadata at hand: every element is compared";
// Of a field.
inline constexpr std::string_view kNoData = "only its metadata is available, and its data is needed";
// Labels of an array, as Python stores them: fields of a name that ends so. Digests of texts;
// masks, which say where an element of another field has no value; shapes.
inline constexpr std::string_view kTextLabel = "@text";
inline constexpr std::string_view kMaskLabel = "@mask";
inline constexpr std::string_view kShapeLabel = "@shape";
// The name of the field whose elements a mask is of; empty for other fields. A view into `name`.
[[nodiscard]] std::string_view masked_name(std::string_view name);
// Whether no tolerance applies to integers of this name: they say what the numbers of another field
// are, such as its shape, or the places of a sparse array.
[[nodiscard]] bool never_tolerated(std::string_view name);

// "step 500, rank 0", or "rank 0" without a step.
std::string place_text(std::optional<std::int64_t> step, std::uint32_t rank);
// "[3, 4]"
std::string shape_text(std::span<const std::uint64_t> shape);
// "where: what; fix", in one line. where, fix: may be empty.
Error error_at(ErrorCode code, std::string_view where, std::string_view what, std::string_view fix = {});

}  // namespace twinrun
