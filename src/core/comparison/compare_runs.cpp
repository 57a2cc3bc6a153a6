#include "comparison/compare_runs.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comparison/matching.hpp"
#include "comparison/words.hpp"
#include "engine/batch.hpp"

namespace twinrun {

namespace {

Result<> check(const RunsOptions& options) {
    const auto refused = [](const std::string& what) { return Error{ErrorCode::invalid_argument, what}; };
    for (const auto& [name, value] : {std::pair{"atol", options.atol}, std::pair{"rtol", options.rtol}}) {
        if (value && !(std::isfinite(*value) && *value >= 0))
            return refused(std::string(name) + " must be a finite number that is not negative");
    }
    if (options.ulps && *options.ulps >= Measure::kNoUlps)
        return refused("ulps must be a number of representable values");
    if (options.method != Method::automatic && options.method != Method::direct)
        return refused("method must be automatic or direct");
    if (options.stream.threads < 0) return refused("threads must be 0 (all cores) or more");
    return success();
}

// A field of both runs, and how it is compared; or why it cannot be.
struct Pair {
    RunField a, b;
    Decision decision;
    Step step;
    std::uint32_t rank = 0;
    std::optional<Problem> problem = std::nullopt;
};

class Comparison {
   public:
    Comparison(ComparedRun& a, ComparedRun& b, const RunsOptions& options)
        : a_(a), b_(b), ranked_(has_ranks(a) || has_ranks(b)), options_(options) {
        engine_.method = options.method;
        engine_.stream = options.stream;
        engine_.cache = options.cache;
        engine_.device = options.device;
    }

    Result<RunsResult> run() {
        const auto start = std::chrono::steady_clock::now();
        TWR_CHECK(check(options_));
        // Else the first field of any other problem would hide that there is no such device.
        if (options_.device.use == DeviceUse::gpu) TWR_CHECK(choose_place(options_.device, {}));
        TWR_TRY(StepMatches steps, match_steps(a_, b_));
        for (Problem& problem : steps.problems)
            add(std::move(problem));
        for (const StepMatch& match : steps.matches) {
            if (match.same_ranks()) {
                for (const std::uint32_t rank : match.ranks_a)
                    TWR_CHECK(compare_place(match.step, rank));
            } else {
                TWR_CHECK(compare_step(match));
            }
        }
        TWR_CHECK(conclude());
        result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return std::move(result_);
    }

   private:
    // ---- problems ----

    void add(Problem problem) {
        problem.error.message = one_line(problem.error.message);
        problems_.push_back(std::move(problem));
    }

    // An error that was met with a field of both runs: a run may have removed the step meanwhile.
    void add(Error error, Step step) {
        for (ComparedRun* run : {&a_, &b_}) {
            Problem why = run->explained(error, step);
            if (why.error.message != error.message) return add(std::move(why));
        }
        add(Problem{std::move(error)});
    }

    // ---- one rank of a step ----

    Result<OpenPlace> opened(ComparedRun& run, Step step, std::uint32_t rank) {
        return run.open(step, rank, options_.stream, options_.cache);
    }

    Result<> compare_place(Step step, std::uint32_t rank) {
        auto in_a = opened(a_, step, rank);
        if (!in_a) return refused(a_, std::move(in_a).error(), step);
        notes_a_.insert(notes_a_.end(), in_a->notes.begin(), in_a->notes.end());
        auto in_b = opened(b_, step, rank);
        if (!in_b) return refused(b_, std::move(in_b).error(), step);
        notes_b_.insert(notes_b_.end(), in_b->notes.begin(), in_b->notes.end());
        FieldMatches fields = match_fields(a_, b_, *in_a, *in_b, step, rank, ranked_);
        const bool nothing = fields.pairs.empty() && fields.problems.empty();
        for (Problem& problem : fields.problems)
            add(std::move(problem));
        if (nothing) {
            add(Problem{error_at(ErrorCode::mismatch, a_.label(),
                                 at_place(step, rank, ranked_) + "no field to compare",
                                 "nothing was compared")});
        }
        if (!fields.pairs.empty()) result_.bytes_read += in_a->bytes_read + in_b->bytes_read;
        std::vector<Pair> pairs;
        for (auto& [x, y] : fields.pairs) {
            if (compared_by_row(x, y)) {
                TWR_CHECK(read_by_row(x, *in_a));
                TWR_CHECK(read_by_row(y, *in_b));
            }
            pairs.push_back({std::move(x), std::move(y), {}, step, rank});
        }
        return compare_pairs(std::move(pairs));
    }

    // Errors of a place are problems of the comparison. Lack of memory and a stop by the caller end
    // it.
    Result<> refused(ComparedRun& run, Error error, Step step) {
        if (ends(error)) return error;
        add(run.explained(std::move(error), step));
        return success();
    }
    static bool ends(const Error& error) {
        return error.code == ErrorCode::out_of_memory || error.code == ErrorCode::interrupted ||
               error.code == ErrorCode::internal;
    }

    // ---- a step with different ranks in the two runs ----

    struct Held {
        const RunField* field;
        std::uint32_t rank;
    };
    using ByName = std::unordered_map<std::string, std::vector<Held>>;

    Result<std::vector<OpenPlace>> opened(ComparedRun& run, const StepMatch& match,
                                          const std::vector<std::uint32_t>& ranks,
                                          std::vector<std::string>& notes) {
        std::vector<OpenPlace> places;
        places.reserve(ranks.size());  // fields do not move
        for (const std::uint32_t rank : ranks) {
            TWR_TRY(OpenPlace place, opened(run, match.step, rank));
            notes.insert(notes.end(), place.notes.begin(), place.notes.end());
            places.push_back(std::move(place));
        }
        return places;
    }

    static void gather(const std::vector<OpenPlace>& places, const std::vector<std::uint32_t>& ranks,
                       ByName& held, std::vector<std::string>& names,
                       std::unordered_set<std::string>& known) {
        for (std::size_t i = 0; i < places.size(); ++i) {
            for (const RunField& field : places[i].fields) {
                if (known.insert(field.name).second) names.push_back(field.name);
                held[field.name].push_back({&field, ranks[i]});
            }
        }
    }

    // Fields that the same ranks of both runs have are compared rank by rank.
    Result<> compare_step(const StepMatch& match) {
        auto in_a = opened(a_, match, match.ranks_a, notes_a_);
        if (!in_a) return refused(a_, std::move(in_a).error(), match.step);
        auto in_b = opened(b_, match, match.ranks_b, notes_b_);
        if (!in_b) return refused(b_, std::move(in_b).error(), match.step);
        ByName of_a;
        ByName of_b;
        std::vector<std::string> names;
        std::unordered_set<std::string> known;
        gather(*in_a, match.ranks_a, of_a, names, known);
        gather(*in_b, match.ranks_b, of_b, names, known);
        std::vector<std::string> scattered;
        std::vector<Pair> pairs;
        for (const std::string& name : names)
            compare_on_other_ranks(match, name, of_a[name], of_b[name], pairs, scattered);
        TWR_CHECK(compare_pairs(std::move(pairs)));
        if (!scattered.empty()) {
            std::string text;
            for (const std::string& lacking : missing_ranks(a_, b_, match))
                text += (text.empty() ? "" : "; ") + lacking;
            add(Problem{error_at(ErrorCode::mismatch, {}, named("field", scattered) + ": " + text,
                                 "runs of other numbers of ranks need fields with a place in a global array, "
                                 "and 'twinrun compare'")});
        }
        return success();
    }

    void compare_on_other_ranks(const StepMatch& match, const std::string& name,
                                const std::vector<Held>& in_a, const std::vector<Held>& in_b,
                                std::vector<Pair>& pairs, std::vector<std::string>& scattered) {
        const auto ranks_of = [](const std::vector<Held>& parts) {
            std::vector<std::uint32_t> ranks;
            for (const Held& part : parts)
                ranks.push_back(part.rank);
            return ranks;
        };
        const auto has = [](const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
            return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
        };
        // In the order of names, between what is compared.
        const auto refuse = [&](Problem problem) {
            pairs.push_back({{}, {}, {}, match.step, 0, std::move(problem)});
        };
        const bool everywhere = !in_a.empty() && !in_b.empty();
        if (!everywhere) {
            // Of ranks that the other run has, or it lost one with what only that rank has.
            const auto& parts = in_a.empty() ? in_b : in_a;
            const auto& theirs = in_a.empty() ? match.ranks_a : match.ranks_b;
            const auto is_there = [&](const Held& p) { return has(theirs, p.rank); };
            const auto is_alone = [&](const Held& p) {
                return p.field->global_shape.empty() && !is_there(p);
            };
            if (std::none_of(parts.begin(), parts.end(), is_there) ||
                std::any_of(parts.begin(), parts.end(), is_alone)) {
                scattered.push_back(in_quotes(name));
                return;
            }
            refuse(Problem{
                error_at(ErrorCode::mismatch, (in_a.empty() ? a_ : b_).label(),
                         at_place(match.step, 0, ranked_) + "field " + in_quotes(name) + ": not there"),
                true});
            return;
        }
        const auto whole = [](const Held& part) { return part.field->global_shape.empty(); };
        if (std::any_of(in_a.begin(), in_a.end(), whole) || std::any_of(in_b.begin(), in_b.end(), whole)) {
            if (ranks_of(in_a) != ranks_of(in_b)) {
                scattered.push_back(in_quotes(name));
                return;
            }
            for (std::size_t i = 0; i < in_a.size(); ++i) {
                const std::string what =
                    at_place(match.step, in_a[i].rank, ranked_) + "field " + in_quotes(name);
                auto pair = pair_of(a_, b_, *in_a[i].field, *in_b[i].field, what);
                if (!pair) {
                    refuse(Problem{std::move(pair).error()});
                    continue;
                }
                pairs.push_back(
                    {std::move(pair->first), std::move(pair->second), {}, match.step, in_a[i].rank});
            }
            return;
        }
        refuse(Problem{error_at(ErrorCode::mismatch, {},
                                at_place(match.step, 0, ranked_) + "field " + in_quotes(name) +
                                    ": the runs cut it over " + std::to_string(in_a.size()) + " and " +
                                    std::to_string(in_b.size()) +
                                    " ranks, and this interface does not join parts",
                                kElsewhere)});
    }

    // ---- fields ----

    Result<Decision> decide(const RunField& x, const RunField& y) const {
        // No numbers: they are equal or different. A date that is none (NaT) is far from no other.
        if (x.kind || y.kind || x.unit || y.unit) return Decision{};
        Decision decision;
        decision.equal_nan = options_.equal_nan;
        if (!is_floating(x.dtype) && (!options_.tolerate_integers || never_tolerated(x.name)))
            return decision;
        if (options_.atol || options_.rtol || options_.ulps) {
            decision.tolerance = {options_.atol.value_or(0), options_.rtol.value_or(0)};
            if (is_floating(x.dtype)) decision.ulps = options_.ulps;
            return decision;
        }
        if (x.tolerance && y.tolerance &&
            (x.tolerance->atol != y.tolerance->atol || x.tolerance->rtol != y.tolerance->rtol)) {
            return error_at(
                ErrorCode::mismatch, {},
                "field " + in_quotes(x.name) + ": the runs were captured for different tolerances",
                "say which with atol and rtol");
        }
        if (x.tolerance || y.tolerance) decision.tolerance = x.tolerance ? *x.tolerance : *y.tolerance;
        return decision;
    }

    // Whether the data of a field is there, where it is needed in any case.
    Result<> check_data(const Pair& pair) const {
        if (options_.method != Method::direct) return success();
        for (const RunField* field : {&pair.a, &pair.b}) {
            if (field->side.elements != nullptr) continue;
            return error_at(ErrorCode::mismatch, field->side.metadata->path(),
                            place_text(pair.step, pair.rank) + ": field " + in_quotes(field->name) + ": " +
                                std::string(kNoData),
                            "choose the automatic method, or compare with the data at hand");
        }
        return success();
    }

    Result<> compare_pairs(std::vector<Pair> pairs) {
        std::vector<FieldPair> asked;
        std::vector<std::optional<Error>> failed(pairs.size());
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs[i].problem) continue;
            auto decision = decide(pairs[i].a, pairs[i].b);
            if (!decision) {
                failed[i] = std::move(decision).error();
                continue;
            }
            pairs[i].decision = std::move(decision).value();
            if (auto data = check_data(pairs[i]); !data) {
                failed[i] = std::move(data).error();
                continue;
            }
            FieldPair pair;
            pair.a = pairs[i].a.side;
            pair.b = pairs[i].b.side;
            pair.rule.tolerance = pairs[i].decision.tolerance;
            pair.rule.nan_equal = pairs[i].decision.equal_nan;
            if (pairs[i].decision.ulps) pair.rule.measure.ulps = *pairs[i].decision.ulps;
            if (pairs[i].a.order == ArrayOrder::column_major && pairs[i].a.ordered())
                pair.columns = pairs[i].a.shape;
            asked.push_back(std::move(pair));
        }
        std::vector<Result<FieldResult>> found = compare_fields(asked, engine_);
        // Fields of which the runs lack different values: some number is in the place of each, and
        // a distance to it means nothing.
        std::set<std::tuple<Step, std::uint32_t, std::string_view>> lacking;
        auto next = found.begin();
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs[i].problem || failed[i]) continue;
            const Result<FieldResult>& result = *next++;
            const std::string_view of = masked_name(pairs[i].a.name);
            if (!of.empty() && result && result->different() != 0)
                lacking.insert({pairs[i].step, pairs[i].rank, of});
        }
        next = found.begin();
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            if (pairs[i].problem) {
                add(std::move(*pairs[i].problem));
                continue;
            }
            if (failed[i]) {
                add(std::move(*failed[i]), pairs[i].step);
                continue;
            }
            Result<FieldResult>& result = *next++;
            if (!result) {
                if (ends(result.error())) return std::move(result).error();
                Error error = std::move(result).error();
                error.message = place_text(pairs[i].step, pairs[i].rank) + ": field " +
                                in_quotes(pairs[i].a.name) + ": " + error.message;
                add(std::move(error), pairs[i].step);
                continue;
            }
            if (result->different() != 0 &&
                lacking.contains({pairs[i].step, pairs[i].rank, pairs[i].a.name})) {
                add(error_at(ErrorCode::mismatch, {},
                             at_place(pairs[i].step, pairs[i].rank, ranked_) + "field " +
                                 in_quotes(pairs[i].a.name) +
                                 ": the runs lack different values, and this interface does not tell which",
                             kElsewhere),
                    pairs[i].step);
                continue;
            }
            if (pairs[i].a.array != nullptr && options_.method == Method::automatic)
                result->reason = kNoMetadata;
            result_.fields.push_back(
                facts_of(*result, pairs[i].a, pairs[i].step, pairs[i].rank, pairs[i].decision));
        }
        return success();
    }

    // ---- the verdict ----

    // A note where one run was named twice, by whatever name: agreement then says nothing.
    [[nodiscard]] std::vector<std::string> twice() const {
        std::error_code not_there;  // of arrays
        if (!std::filesystem::equivalent(a_.label(), b_.label(), not_there)) return {};
        return {"both runs are the same path: " + a_.label() + "; name two different runs"};
    }

    Result<> conclude() {
        std::vector<std::string> notes = twice();
        notes.insert(notes.end(), a_.notes().begin(), a_.notes().end());
        using Notes = const std::vector<std::string>*;
        for (const Notes more : {Notes{&notes_a_}, &b_.notes(), Notes{&notes_b_}})
            notes.insert(notes.end(), more->begin(), more->end());
        if (options_.common) {
            const bool all = std::all_of(problems_.begin(), problems_.end(),
                                         [](const Problem& problem) { return problem.unmatched; });
            if (!problems_.empty() && result_.fields.empty() && all) {
                return error_at(ErrorCode::mismatch, a_.label() + ", " + b_.label(),
                                "nothing was compared: the runs have no field in common",
                                "name runs that share fields and steps");
            }
            for (const Problem& problem : problems_) {
                if (problem.unmatched) notes.push_back(problem.error.message);
            }
            std::erase_if(problems_, [](const Problem& problem) { return problem.unmatched; });
        }
        if (result_.fields.empty()) {
            if (!problems_.empty()) return problems_.front().error;
            return error_at(ErrorCode::mismatch, a_.label() + ", " + b_.label(), "nothing was compared",
                            "do the runs have fields?");
        }
        std::unordered_set<std::string> known;
        for (std::string& note : notes) {
            if (known.insert(note).second) result_.notes.push_back(one_line(note));
        }
        for (Problem& problem : problems_)
            result_.problems.push_back(std::move(problem.error.message));
        for (std::size_t i = 0; i < result_.fields.size(); ++i) {
            const FieldFacts& field = result_.fields[i];
            result_.bytes_compared += field.bytes;
            result_.bytes_read += field.bytes_read();
            result_.different += field.different;
            if (field.same()) continue;
            ++result_.different_fields;
            if (!result_.first) result_.first = i;
        }
        result_.a = a_.label();
        result_.b = b_.label();
        result_.verdict = !result_.problems.empty() ? Verdict::incomparable
                          : result_.first           ? Verdict::different
                                                    : Verdict::same;
        return success();
    }

    ComparedRun& a_;
    ComparedRun& b_;
    bool ranked_;
    const RunsOptions& options_;
    CompareOptions engine_;
    std::vector<Problem> problems_;
    std::vector<std::string> notes_a_, notes_b_;
    RunsResult result_;
};

}  // namespace

Result<RunsResult> compare_runs(ComparedRun& a, ComparedRun& b, const RunsOptions& options) try {
    return Comparison(a, b, options).run();
} catch (const std::bad_alloc&) {
    return Error{
        ErrorCode::out_of_memory,
        a.label() + ", " + b.label() + ": not enough memory for the comparison: give a smaller memory"};
}

}  // namespace twinrun
