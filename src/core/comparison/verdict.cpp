#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "comparison/result.hpp"
#include "comparison/words.hpp"

namespace twinrun {

namespace {

// As printf's %.<digits>g, independent of the application's locale.
std::string rounded(double value, int digits) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char text[40];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
    return {text, end.ptr};
}

std::string element_text(const ElementValue& value) {
    if (is_floating(value.scalar)) return rounded(value.real, 3);
    return value.scalar == DType::u64 ? std::to_string(value.unsigned_integer)
                                      : std::to_string(value.integer);
}

// "1e-09 + 0.5 |a|", "4 ulp or 1e-09"
std::string tolerance_text(const Decision& decision) {
    std::string text;
    if (decision.tolerance.atol != 0) text = rounded(decision.tolerance.atol, 6);
    if (decision.tolerance.rtol != 0)
        text += (text.empty() ? "" : " + ") + rounded(decision.tolerance.rtol, 6) + " |a|";
    if (decision.ulps && *decision.ulps != 0)
        return std::to_string(*decision.ulps) + " ulp" + (text.empty() ? "" : " or " + text);
    return text.empty() ? "0" : text;
}

// "step 500, rank 3, x[1234, 2]". Rank 0 alone is what runs without ranks have: it is left out.
std::string place_of(const FieldFacts& field, bool with_rank) {
    std::string text = with_rank    ? place_text(field.step, field.rank) + ", "
                       : field.step ? "step " + std::to_string(*field.step) + ", "
                                    : "";
    text += field.name;
    return field.first_index.empty() ? text : text + shape_text(field.first_index);
}

// "0.4667538 against 0.4667436": with the digits in which they differ, and two more.
std::string values_text(const ElementValue& a, const ElementValue& b, double difference) {
    if (!is_floating(a.scalar)) return element_text(a) + " against " + element_text(b);
    int digits = 3;
    const double larger = std::max(std::abs(a.real), std::abs(b.real));
    if (difference > 0 && larger > 0 && std::isfinite(larger))
        digits =
            std::clamp(static_cast<int>(std::ceil(std::log10(larger) - std::log10(difference))) + 2, 3, 17);
    return rounded(a.real, digits) + " against " + rounded(b.real, digits);
}

// " (0.0022%)": how large a difference is beside the value of the reference.
std::string percent_text(const ElementValue& a, double difference) {
    constexpr double kMost = 1000;  // a share of more says nothing: b is simply larger
    const double value = a.scalar == DType::u64  ? static_cast<double>(a.unsigned_integer)
                         : is_floating(a.scalar) ? a.real
                                                 : static_cast<double>(a.integer);
    const double share = 100 * difference / std::abs(value);
    return share > 0 && share < kMost ? " (" + rounded(share, share < 100 ? 2 : 3) + "%)" : "";
}

std::string difference_text(const FieldFacts& f, bool with_rank) {
    const std::string place = place_of(f, with_rank) + ": ";
    if (f.kind || (f.first_abs_diff && std::isinf(*f.first_abs_diff)))
        return place + element_text(*f.first_a) + " against " + element_text(*f.first_b);
    const std::string allowed = tolerance_text(f.decision);
    std::string shown;
    if (f.first_whole_diff) {
        shown = std::to_string(*f.first_whole_diff);
    } else {
        // As many digits as it takes to see which is larger.
        int digits = 3;
        do
            shown = rounded(*f.first_abs_diff, digits++);
        while (shown == allowed && digits < 18);
    }
    const double difference =
        f.first_whole_diff ? static_cast<double>(*f.first_whole_diff) : *f.first_abs_diff;
    return place + values_text(*f.first_a, *f.first_b, difference) + ", |a-b| = " + shown + " > " + allowed +
           percent_text(*f.first_a, difference);
}

std::string counted(std::uint64_t count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string size_text(double bytes) {
    for (const char* unit : {"B", "kB", "MB", "GB"}) {
        if (bytes < 1000) return rounded(bytes, 3) + " " + unit;
        bytes /= 1000;
    }
    return rounded(bytes, 3) + " TB";
}

std::string agreement_text(const RunsResult& result) {
    std::set<std::string_view> names;
    std::set<Step> steps;
    std::set<std::string> tolerances;
    std::uint64_t elements = 0;
    std::uint64_t read = 0;
    for (const FieldFacts& f : result.fields) {
        read += std::min(f.elements_read, f.elements);
        names.insert(f.name);
        steps.insert(f.step);
        elements += f.elements;
        if (const std::string text = tolerance_text(f.decision); text != "0") tolerances.insert(text);
    }
    std::string within;
    if (!tolerances.empty())
        within = tolerances.size() == 1 ? " within " + *tolerances.begin() : " within tolerance";
    std::string proven;
    if (read == 0 && elements != 0) {
        proven = "; metadata proves it, no element was read";
    } else if (read != elements) {
        proven = "; " + rounded(100 * static_cast<double>(read) / static_cast<double>(elements), 3) +
                 "% of them were read, metadata proves the rest";
    }
    return counted(names.size(), "field") + ", " + counted(steps.size(), "step") + ", " +
           counted(elements, "element") + " (" + size_text(static_cast<double>(result.bytes_compared)) +
           " a run) agree" + within + proven;
}

}  // namespace

std::string verdict_line(const RunsResult& result) {
    const FieldFacts* first = result.first ? &result.fields[*result.first] : nullptr;
    const bool with_rank =
        std::ranges::any_of(result.fields, [](const FieldFacts& f) { return f.rank != 0; });
    if (!result.problems.empty()) {
        return one_line("incomparable: " + counted(result.problems.size(), "thing") +
                        " could not be compared: " + result.problems.front() + "; " +
                        (first != nullptr ? "all else differs, first at " + difference_text(*first, with_rank)
                                          : std::string("all else agrees")));
    }
    if (first != nullptr) return one_line("different: first at " + difference_text(*first, with_rank));
    return one_line("same: " + agreement_text(result));
}

}  // namespace twinrun
