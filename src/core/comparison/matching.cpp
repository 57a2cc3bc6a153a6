#include "comparison/matching.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>

#include "comparison/words.hpp"
#include "element/dtype.hpp"

namespace twinrun {

namespace {

std::string step_text(Step step) { return step ? std::to_string(*step) : "None"; }

Error incomparable(const std::string& what, const char* fix) {
    return error_at(ErrorCode::mismatch, {}, what, fix);
}

using ByName = std::unordered_map<std::string_view, const RunField*>;
ByName by_name(const OpenPlace& place) {
    ByName all;
    all.reserve(place.fields.size());
    for (const RunField& field : place.fields)
        all.emplace(field.name, &field);
    return all;
}

bool has_place(const RunField& field) { return !field.global_shape.empty(); }

// Parts of one global array that are different parts of it.
bool cut_differently(const RunField& x, const RunField& y) {
    if (!has_place(x) || !has_place(y)) return false;
    if (x.user_order(x.global_offset) == y.user_order(y.global_offset) && x.user_shape() == y.user_shape())
        return false;
    return x.dtype == y.dtype;
}

Result<> check_alike(const ComparedRun& a, const ComparedRun& b, const RunField& x, const RunField& y,
                     const std::string& what) {
    const auto differ = [&](const std::string& in_a, const std::string& in_b, const char* fix) {
        return incomparable(what + ": " + in_a + " in " + a.label() + ", " + in_b + " in " + b.label(), fix);
    };
    if (x.dtype != y.dtype) {
        return differ(std::string(dtype_name(x.dtype)), std::string(dtype_name(y.dtype)), "types must agree");
    }
    if (x.kind != y.kind)
        return differ(x.kind.value_or("numbers"), y.kind.value_or("numbers"), "types must agree");
    if (x.unit != y.unit) {
        return differ(x.unit.value_or("plain numbers"), y.unit.value_or("plain numbers"),
                      "units of time must agree");
    }
    if (x.user_shape() != y.user_shape()) {
        return differ("shape " + shape_text(x.user_shape()), shape_text(y.user_shape()), "shapes must agree");
    }
    return success();
}

}  // namespace

Result<StepMatches> match_steps(const ComparedRun& a, const ComparedRun& b) {
    if (a.places().empty() && b.places().empty()) {
        return error_at(ErrorCode::mismatch, a.label() + ", " + b.label(), "no steps were committed",
                        "nothing was compared");
    }
    StepMatches found;
    for (const auto& [step, ranks] : a.places()) {
        if (const auto other = b.places().find(step); other != b.places().end())
            found.matches.push_back({step, ranks, other->second});
    }
    for (const auto& [here, there] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
        std::vector<std::string> alone;
        for (const auto& [step, ranks] : here->places()) {
            if (!there->places().contains(step)) alone.push_back(step_text(step));
        }
        if (alone.empty()) continue;
        found.problems.push_back(
            {error_at(ErrorCode::mismatch, there->label(),
                      named("step", alone) + " of " + here->label() + ": not there",
                      found.matches.empty()
                          ? "the runs count their steps otherwise: 'twinrun compare --align time' "
                            "matches them by time"
                          : "compare the common ones, or name runs of the same steps"),
             true});
    }
    return found;
}

Result<std::pair<RunField, RunField>> pair_of(const ComparedRun& a, const ComparedRun& b, const RunField& x,
                                              const RunField& y, const std::string& what) {
    // Its bytes may agree though it says that something was not traced: spec/trace.md.
    if (x.name == "trace.events") return incomparable(what + " is that of a trace", kElsewhere);
    if (has_place(x) && has_place(y)) {
        const auto whole_x = x.user_order(x.global_shape);
        const auto whole_y = y.user_order(y.global_shape);
        if (whole_x != whole_y) {
            return incomparable(what + " is a part of " + shape_text(whole_x) + " in " + a.label() + ", of " +
                                    shape_text(whole_y) + " in " + b.label(),
                                "the shapes must be the same");
        }
        if (cut_differently(x, y)) {
            return incomparable(what +
                                    ": the ranks of the runs hold different parts of the array, and this "
                                    "interface does not join parts",
                                kElsewhere);
        }
    }
    TWR_CHECK(check_alike(a, b, x, y, what));
    if (x.order != y.order && x.ordered() && (x.array == nullptr || y.array == nullptr)) {
        const ComparedRun& by_column = x.order == ArrayOrder::column_major ? a : b;
        return incomparable(what + ": only " + by_column.label() +
                                " stores it column by column, and this interface does not transpose",
                            kElsewhere);
    }
    return std::pair(x, y);
}

bool compared_by_row(const RunField& x, const RunField& y) {
    if (x.array == nullptr || y.array == nullptr || !x.ordered()) return false;
    // Kernels read strided arrays at no cost, and then report places row by row.
    const bool on_device = x.array->device && y.array->device;
    return x.order != y.order || (on_device && x.order == ArrayOrder::column_major);
}

bool has_ranks(const ComparedRun& run) {
    return std::any_of(run.places().begin(), run.places().end(),
                       [](const auto& step) { return !step.second.empty() && step.second.back() != 0; });
}

std::string at_place(Step step, std::uint32_t rank, bool ranked) {
    std::string text = step ? "step " + std::to_string(*step) : "";
    if (rank != 0 || ranked) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return text.empty() ? text : text + ": ";
}

FieldMatches match_fields(const ComparedRun& a, const ComparedRun& b, const OpenPlace& in_a,
                          const OpenPlace& in_b, Step step, std::uint32_t rank, bool ranked) {
    FieldMatches found;
    const std::string at = at_place(step, rank, ranked);
    const ByName of_a = by_name(in_a);
    const ByName of_b = by_name(in_b);
    // Elements without a value hold some number: against a field that has all values they say
    // nothing.
    std::set<std::string> masked;
    const auto alone = [&](const ComparedRun& here, const OpenPlace& mine, const ComparedRun& there,
                           const ByName& theirs) {
        std::vector<std::string> names;
        for (const RunField& field : mine.fields) {
            if (theirs.contains(field.name)) continue;
            std::string of(masked_name(field.name));
            // Texts have digests.
            if (!of.empty() && !theirs.contains(of)) of += kTextLabel;
            if (of.empty() || !theirs.contains(of)) {
                names.push_back(in_quotes(field.name));
                continue;
            }
            masked.insert(of);
            const std::array both{in_quotes(of), in_quotes(field.name)};
            found.problems.push_back({error_at(ErrorCode::mismatch, there.label(),
                                               at + named("field", both) + ": only " + here.label() +
                                                   " lacks values, and this interface does not tell which",
                                               kElsewhere)});
        }
        if (names.empty()) return;
        found.problems.push_back({error_at(ErrorCode::mismatch, there.label(),
                                           at + named("field", names) + " of " + here.label() + ": not there",
                                           "compare the common ones, or name runs of the same fields"),
                                  true});
    };
    alone(a, in_a, b, of_b);
    alone(b, in_b, a, of_a);
    for (const RunField& x : in_a.fields) {
        const auto y = of_b.find(x.name);
        if (y == of_b.end() || masked.contains(x.name)) continue;
        auto pair = pair_of(a, b, x, *y->second, at + "field " + in_quotes(x.name));
        if (pair) {
            found.pairs.push_back(std::move(pair).value());
        } else {
            found.problems.push_back({std::move(pair).error()});
        }
    }
    return found;
}

std::vector<std::string> missing_ranks(const ComparedRun& a, const ComparedRun& b, const StepMatch& match) {
    std::vector<std::string> found;
    const auto add = [&](const ComparedRun& here, const std::vector<std::uint32_t>& mine,
                         const ComparedRun& there, const std::vector<std::uint32_t>& theirs) {
        std::vector<std::string> alone;
        for (const std::uint32_t rank : mine) {
            if (std::find(theirs.begin(), theirs.end(), rank) == theirs.end())
                alone.push_back(place_text(match.step, rank));
        }
        if (!alone.empty())
            found.push_back(there.label() + ": " + listed(alone) + " of " + here.label() + ": not there");
    };
    add(a, match.ranks_a, b, match.ranks_b);
    add(b, match.ranks_b, a, match.ranks_a);
    return found;
}

}  // namespace twinrun
