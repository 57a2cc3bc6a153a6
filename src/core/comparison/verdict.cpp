#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "comparison/result.hpp"
#include "comparison/words.hpp"

namespace twinrun {

namespace {

// As printf's %.<digits>g, whatever the application's locale.
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

// "step 500, rank 0, x[1234, 2]"
std::string place_of(const FieldFacts& field) {
    std::string text = place_text(field.step, field.rank) + ", " + field.name;
    return field.first_index.empty() ? text : text + shape_text(field.first_index);
}

std::string difference_text(const FieldFacts& f) {
    const std::string place = place_of(f) + ": ";
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
    return place + "|a-b| = " + shown + " > " + allowed;
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
    for (const FieldFacts& f : result.fields) {
        names.insert(f.name);
        steps.insert(f.step);
        elements += f.elements;
        if (const std::string text = tolerance_text(f.decision); text != "0") tolerances.insert(text);
    }
    std::string within;
    if (!tolerances.empty())
        within = tolerances.size() == 1 ? " within " + *tolerances.begin() : " within tolerance";
    const double share = result.bytes_compared == 0 ? 0
                                                    : 50 * static_cast<double>(result.bytes_read) /
                                                          static_cast<double>(result.bytes_compared);
    return counted(names.size(), "field") + ", " + counted(steps.size(), "step") + ", " +
           counted(elements, "element") + " (" + size_text(static_cast<double>(result.bytes_compared)) +
           " a run) agree" + within + "; read " + rounded(share, 3) + "% of them";
}

}  // namespace

std::string verdict_line(const RunsResult& result) {
    const FieldFacts* first = result.first ? &result.fields[*result.first] : nullptr;
    if (!result.problems.empty()) {
        return one_line("incomparable: " + counted(result.problems.size(), "thing") +
                        " could not be compared: " + result.problems.front() + "; " +
                        (first != nullptr ? "all else differs, first at " + difference_text(*first)
                                          : std::string("all else agrees")));
    }
    if (first != nullptr) return one_line("different: first at " + difference_text(*first));
    return one_line("same: " + agreement_text(result));
}

}  // namespace twinrun
