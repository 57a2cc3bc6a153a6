#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "comparison/result.hpp"
#include "comparison/words.hpp"

namespace twinrun {

namespace {

std::string element_text(const ElementValue& value) {
    if (is_floating(value.scalar)) return rounded(value.real, 3);
    return value.scalar == DType::u64 ? std::to_string(value.unsigned_integer)
                                      : std::to_string(value.integer);
}

bool is_text(const FieldFacts& field) { return field.kind && field.name.ends_with(kTextLabel); }

// "step 500, rank 3, x[1234, 2]". Rank 0 alone is what runs without ranks have: it is left out.
std::string place_of(const FieldFacts& field, bool with_rank) {
    std::string text = with_rank    ? place_text(field.step, field.rank) + ", "
                       : field.step ? "step " + std::to_string(*field.step) + ", "
                                    : "";
    text += field.name;
    std::vector<std::uint64_t> index = field.first_index;
    if (is_text(field) && !index.empty()) index.pop_back();  // that of a digest's word
    return index.empty() ? text : text + shape_text(index);
}

double real(const ElementValue& value) {
    if (is_floating(value.scalar)) return value.real;
    return value.scalar == DType::u64 ? static_cast<double>(value.unsigned_integer)
                                      : static_cast<double>(value.integer);
}

std::string allowed_text(const FieldFacts& f) {
    return tolerance_text(f.decision.tolerance, f.decision.ulps);
}

std::string counted(std::uint64_t count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// What is known where only digests are: "x[0] to x[1023]: exact digests differ".
std::string chunks_text(const FieldFacts& f, bool with_rank) {
    std::vector<std::uint64_t> begin = f.chunk_begin;
    std::vector<std::uint64_t> end = f.chunk_end;
    if (is_text(f)) {  // that of a digest's word
        begin.pop_back();
        end.pop_back();
    }
    std::string text = place_of(f, with_rank);
    if (!begin.empty()) text += shape_text(begin);
    if (begin != end) text += " to " + shape_text(end);
    return text + ": exact digests of " + std::to_string(f.different) + " of " + counted(f.chunks, "chunk") +
           " differ; which elements, only the data could say";
}

std::string difference_text(const FieldFacts& f, bool with_rank) {
    if (!f.different_is_exact) return chunks_text(f, with_rank);
    const std::string place = place_of(f, with_rank) + ": ";
    if (is_text(f)) return place + "another text";
    if (f.unit && f.first_a->scalar == DType::i64) {
        const std::int64_t a = f.first_a->integer;
        const std::int64_t b = f.first_b->integer;
        constexpr std::int64_t kNotATime = std::numeric_limits<std::int64_t>::min();
        const std::string times = place + time_text(a, *f.unit) + " against " + time_text(b, *f.unit);
        if (a == kNotATime || b == kNotATime) return times;
        const auto [low, high] = std::minmax(a, b);
        const std::uint64_t apart = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
        return times + ", " + span_text(apart, *f.unit) + " apart";
    }
    if (f.kind || (f.first_abs_diff && std::isinf(*f.first_abs_diff)))
        return place + element_text(*f.first_a) + " against " + element_text(*f.first_b);
    const double difference =
        f.first_whole_diff ? static_cast<double>(*f.first_whole_diff) : *f.first_abs_diff;
    const std::string allowed = exceeded_text(f.decision.tolerance, f.decision.ulps, difference);
    const std::string shown =
        f.first_whole_diff ? std::to_string(*f.first_whole_diff) : distance_text(difference, allowed);
    const std::string values = is_floating(f.first_a->scalar)
                                   ? values_text(f.first_a->real, f.first_b->real, difference)
                                   : element_text(*f.first_a) + " against " + element_text(*f.first_b);
    const std::string steps =
        f.decision.ulps ? ulps_text(f.first_a->scalar, f.first_a->real, f.first_b->real) : "";
    return place + values + ", |a-b| = " + shown + steps + " > " + allowed +
           percent_text(real(*f.first_a), difference);
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
        if (const std::string text = allowed_text(f); text != "0") tolerances.insert(text);
    }
    std::string within;
    if (!tolerances.empty())
        within = tolerances.size() == 1 ? " within " + *tolerances.begin() : " within tolerance";
    return counted(names.size(), "field") + ", " + counted(steps.size(), "step") + ", " +
           counted(elements, "element") + " (" + size_text(static_cast<double>(result.bytes_compared)) +
           " a run) agree" + within + proof_text(read, elements);
}

}  // namespace

std::string verdict_line(const RunsResult& result) {
    const FieldFacts* first = result.first ? &result.fields[*result.first] : nullptr;
    const bool with_rank =
        std::ranges::any_of(result.fields, [](const FieldFacts& f) { return f.rank != 0; });
    if (!result.problems.empty()) {
        const std::string rest =
            first != nullptr ? "what was compared differs, first at " + difference_text(*first, with_rank)
            : result.fields.empty() ? "nothing was compared"
                                    : "what was compared agrees";
        return one_line("incomparable: " + counted(result.problems.size(), "thing") +
                        " could not be compared: " + result.problems.front() + "; " + rest);
    }
    if (first != nullptr) return one_line("different: first at " + difference_text(*first, with_rank));
    return one_line("same: " + agreement_text(result));
}

}  // namespace twinrun
