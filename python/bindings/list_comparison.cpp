// Compares two lists of fields, or pairs of fields that Python matched.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch.hpp"
#include "engine/listed_fields.hpp"
#include "field_list.hpp"
#include "list_comparison.hpp"
#include "list_results.hpp"
#include "list_rules.hpp"
#include "shared.hpp"
#include "started_pairs.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Returns the exception that came meanwhile; invalid: none did. numbers: of the pairs among the
// results. results_lock: of the results, where others add to them too.
nb::object run_list(std::span<const FieldPair> pairs, const CompareOptions& options, ListResults& results,
                    std::span<const std::size_t> numbers, std::mutex& results_lock) {
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        compare_fields(pairs, options, [&](std::size_t at, const Result<FieldResult>& result) {
            const std::lock_guard lock(results_lock);
            results.take(numbers[at], result);
        });
    };
    run();
    // An interrupt may come when all is done: nobody was stopped by it then.
    if (PyErr_Occurred() != nullptr) return nb::borrow(nb::python_error().value());
    return {};
}

std::optional<ListResults> compare_lists(const FieldList& a, const FieldList& b,
                                         const std::vector<ListRule>& rules, const ChosenRules::Given& given,
                                         const PyCompareOptions& how, StartedPairs* started) {
    if (a.in_order() != b.in_order()) return std::nullopt;
    const auto of_b = matched(std::span<const TakenField>(a.fields()), std::span(b.fields()), a.in_order());
    if (!of_b) return std::nullopt;
    const CompareOptions& options = how.options;
    const ChosenRules chosen(given, a);
    if (started != nullptr && !started->fits(a, b, rules, chosen)) {
        if (started->is_left()) raise({ErrorCode::internal, "other arrays were left to the devices"});
        started = nullptr;
    }
    const std::size_t count = chosen.count();
    ListResults own(0);
    std::mutex own_lock;
    ListResults& results = started == nullptr ? own : started->results();
    std::mutex& results_lock = started == nullptr ? own_lock : started->results_lock();
    {
        const std::lock_guard lock(results_lock);
        results.expect(count);
    }
    ListSources sources(count * 2, options.cache);
    sources.take_from(a.in_memory());
    sources.take_from(b.in_memory());
    std::vector<FieldPair> pairs;
    std::vector<std::size_t> numbers;  // of pairs
    const auto add = [&](std::size_t i, std::size_t at) {
        const ListRule& rule = rules.at(static_cast<std::size_t>(chosen[i]));
        const TakenField& field = a.fields()[i];
        FieldPair& pair = pairs.emplace_back();
        const TakenField& other = b.fields()[(*of_b)[i]];
        pair.a = sources.side(a.files(field), field);
        pair.b = sources.side(b.files(other), other);
        pair.rule = rule.rule;
        if (field.metadata != nullptr && rule.own_tolerance)
            pair.rule.tolerance = field.metadata->settings.tolerance;
        if (in_columns(field)) pair.columns = field.shape;
        numbers.push_back(at);
    };
    if (started == nullptr) {
        pairs.reserve(count);
        numbers.reserve(count);
    }
    for (std::size_t i = 0, at = 0; i < a.fields().size(); ++i) {
        if (chosen[i] == kLeftOut) continue;
        const auto number = static_cast<std::size_t>(chosen[i]);
        const ListRule& rule = rules.at(number);
        const TakenField& field = a.fields()[i];
        Tolerance tolerance = rule.rule.tolerance;
        if (field.metadata != nullptr && rule.own_tolerance) {
            tolerance = field.metadata->settings.tolerance;
            const Tolerance& theirs = b.fields()[(*of_b)[i]].metadata->settings.tolerance;
            if (tolerance.atol != theirs.atol || tolerance.rtol != theirs.rtol) return std::nullopt;
        }
        PartPlace place;
        if (field.metadata != nullptr && field.metadata->global_shape != field.metadata->shape)
            place = {field.metadata->global_shape, field.metadata->global_offset};
        results.describe({field.text, field.dtype, field.fortran_order, field.shape, number, tolerance},
                         field.metadata != nullptr, std::move(place));
        if (started == nullptr || !started->has_started(i)) add(i, at);
        ++at;
    }
    nb::object interrupt = run_list(pairs, options, results, numbers, results_lock);
    if (started != nullptr) {
        if (interrupt.is_valid()) {
            PyErr_SetObject(interrupt.type().ptr(), interrupt.ptr());
            throw nb::python_error();
        }
        started->finish();
        pairs.clear();
        numbers.clear();
        for (std::size_t i = 0; i < a.fields().size(); ++i) {
            if (started->has_started(i) && !results.has(i)) add(i, i);
        }
        results.check();
        started->check(count);
        interrupt = run_list(pairs, options, results, numbers, results_lock);
    }
    results.finish(std::move(interrupt));
    return std::move(results);
}

// Pairs of fields that Python opened and matched.
class PairList {
   public:
    void add(nb::str name, const std::string& dtype, std::vector<std::uint64_t> shape, bool fortran_order,
             const Source* a, const PyMetadata* a_metadata, std::size_t a_field, const Source* b,
             const PyMetadata* b_metadata, std::size_t b_field, std::size_t rule) {
        FieldPair pair;
        pair.a = side(a, a_metadata, a_field);
        pair.b = side(b, b_metadata, b_field);
        if (fortran_order && order_matters(shape)) pair.columns = shape;
        pairs_.push_back(std::move(pair));
        fields_.push_back({std::move(name), parse_dtype(dtype), fortran_order, std::move(shape), rule});
    }

    ListResults compare(const std::vector<ListRule>& rules, const PyCompareOptions& how) {
        ListResults results(pairs_.size());
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            const Field& field = fields_[at];
            pairs_[at].rule = rules.at(field.rule).rule;
            Py_ssize_t length = 0;
            const char* name = PyUnicode_AsUTF8AndSize(field.name.ptr(), &length);
            if (name == nullptr) throw nb::python_error();
            results.describe({{name, static_cast<std::size_t>(length)},
                              field.dtype,
                              field.fortran_order,
                              field.shape,
                              field.rule,
                              pairs_[at].rule.tolerance},
                             false);
        }
        std::vector<std::size_t> numbers(pairs_.size());
        std::iota(numbers.begin(), numbers.end(), std::size_t{0});
        std::mutex lock;
        results.finish(run_list(pairs_, how.options, results, numbers, lock));
        return results;
    }
    [[nodiscard]] std::size_t size() const { return pairs_.size(); }

   private:
    struct Field {
        nb::str name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
        std::size_t rule;
    };

    FieldSide side(const Source* source, const PyMetadata* metadata, std::size_t field) {
        FieldSide made;
        if (source != nullptr) {
            made.elements = source->elements.get();
            held_.push_back(*source);
        }
        if (metadata != nullptr) {
            if (field >= metadata->file->directory().fields.size())
                raise({ErrorCode::invalid_argument, "no such field in the metadata"});
            made.metadata = metadata->file.get();
            if (metadata_.empty() || metadata_.back() != metadata->file) metadata_.push_back(metadata->file);
        }
        made.field = field;
        return made;
    }

    std::vector<FieldPair> pairs_;
    std::vector<Field> fields_;
    std::vector<Source> held_;
    std::vector<std::shared_ptr<MetadataFile>> metadata_;
};

}  // namespace

void define_compare_lists(nb::module_& m) {
    m.def("compare_lists", &compare_lists, "a"_a, "b"_a, "rules"_a, "chosen"_a, "options"_a,
          "started"_a.none() = nb::none(),
          "chosen: of each field of a the number of its rule, -1: it is left out; or by kind. started: what "
          "start_lists began, maybe of these lists. None where the lists do not match in names, types and "
          "shapes: Python "
          "then says why.");
}

void define_pair_list(nb::module_& m) {
    nb::class_<PairList>(m, "PairList", "Pairs of fields, which the core compares at once.")
        .def(nb::init<>())
        .def("add", &PairList::add, "name"_a, "dtype"_a, "shape"_a, "fortran_order"_a, "a"_a.none(),
             "a_metadata"_a.none(), "a_field"_a, "b"_a.none(), "b_metadata"_a.none(), "b_field"_a, "rule"_a,
             "The sources are this pair's alone. rule: its number.")
        .def("__len__", &PairList::size)
        .def("compare", &PairList::compare, "rules"_a, "options"_a);
}

}  // namespace twinrun
