// Lists of fields, and pairs of fields that Python matched, compared by one call; and what that found, field by field.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/batch.hpp"
#include "engine/packed_layouts.hpp"
#include "engine/packed_results.hpp"
#include "field_lists.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// The results of all fields, in the order of the first run.
class ListResults {
   public:
    explicit ListResults(std::size_t count) : results_(count), failed_(count) {}

    // In the order of fields. names_of_files: names are bytes of files, not texts of Python.
    void describe(const NamedLayout& layout, bool names_of_files) {
        layouts_.add(layout);
        names_of_files_ = names_of_files;
    }
    // Called as compare_fields() calls it.
    void take(std::size_t at, const Result<FieldResult>& result) {
        if (!result) {
            failed_[at] = true;
            if (result.error().code == ErrorCode::interrupted) interrupted_ = true;
            return;
        }
        const FieldResult& r = *result;
        results_.put(at, r);
        bytes_read_ += r.tree.bytes_read + r.sketch.bytes_read + r.elements.bytes_read;
        bytes_ += r.scalars / scalars_per_item(layouts_.get(at).dtype) * item_bytes(layouts_.get(at).dtype);
        if (!r.same()) different_.push_back(at);
    }
    // When all were taken. Raises where somebody interrupted it.
    void finish() {
        if (interrupted_) raise({ErrorCode::interrupted, "interrupted"});
        std::sort(different_.begin(), different_.end());
    }

    [[nodiscard]] std::size_t size() const { return results_.size(); }
    [[nodiscard]] const std::vector<std::size_t>& different() const { return different_; }
    [[nodiscard]] std::vector<std::size_t> failed() const {
        std::vector<std::size_t> found;
        for (std::size_t at = 0; at < failed_.size(); ++at) {
            if (failed_[at]) found.push_back(at);
        }
        return found;
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
    [[nodiscard]] PyFieldResult at(std::size_t at) const {
        const DType dtype = layout(at).dtype;
        if (!results_.has(at)) throw nb::index_error();
        return {results_.get(at), dtype};
    }
    [[nodiscard]] NamedLayout layout(std::size_t at) const {
        if (at >= layouts_.size()) throw nb::index_error();
        return layouts_.get(at);
    }
    [[nodiscard]] nb::object name(std::size_t at) const {
        const std::string_view text = layout(at).name;
        if (names_of_files_) return file_text(std::string(text));
        return nb::str(text.data(), text.size());
    }

    using State = std::tuple<nb::bytes, nb::bytes, std::vector<std::size_t>, std::vector<std::size_t>,
                             std::uint64_t, std::uint64_t, bool>;
    [[nodiscard]] State state() const {
        const auto results = results_.bytes();
        const auto layouts = layouts_.bytes();
        return {nb::bytes(results.data(), results.size()),
                nb::bytes(layouts.data(), layouts.size()),
                different_,
                failed(),
                bytes_,
                bytes_read_,
                names_of_files_};
    }
    static ListResults of(const State& state) {
        const auto bytes = [](const nb::bytes& b) {
            return std::span(static_cast<const std::byte*>(b.data()), b.size());
        };
        const auto& [results, layouts, different, failed, all_bytes, bytes_read, names_of_files] = state;
        ListResults made(0);
        made.results_ = twinrun::take(PackedResults::from(bytes(results)));
        made.layouts_ = twinrun::take(PackedLayouts::from(bytes(layouts)));
        made.failed_.resize(made.results_.size());
        const auto known = [&](std::size_t at) { return at < made.size(); };
        if (made.layouts_.size() != made.size() || !std::ranges::all_of(different, known) ||
            !std::ranges::all_of(failed, known))
            raise({ErrorCode::damaged, "these are not the results of a comparison"});
        for (const std::size_t at : failed)
            made.failed_[at] = true;
        made.different_ = different;
        made.bytes_ = all_bytes;
        made.bytes_read_ = bytes_read;
        made.names_of_files_ = names_of_files;
        return made;
    }

   private:
    PackedResults results_;
    PackedLayouts layouts_;
    std::vector<bool> failed_;
    std::vector<std::size_t> different_;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_read_ = 0;
    bool names_of_files_ = false;
    bool interrupted_ = false;
};

// How fields are compared that a rule is for.
struct ListRule {
    DifferenceRule rule;
    bool own_tolerance = false;  // that of the metadata counts
};

bool order_matters(const std::vector<std::uint64_t>& shape) {
    return std::count_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n > 1; }) > 1;
}

void run_list(std::span<const FieldPair> pairs, const CompareOptions& options, ListResults& results) {
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        compare_fields(pairs, options,
                       [&](std::size_t at, const Result<FieldResult>& result) { results.take(at, result); });
    };
    run();
    // An interrupt may come when all is done: nobody was stopped by it then.
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    results.finish();
}

// chosen: of each field of a the number of its rule, kLeftOut for none.
constexpr int kLeftOut = -1;

std::optional<ListResults> compare_lists(const FieldList& a, const FieldList& b,
                                         const std::vector<ListRule>& rules, const std::vector<int>& chosen,
                                         const PyCompareOptions& how) {
    if (a.in_order() != b.in_order()) return std::nullopt;
    const auto of_b = matched(std::span<const TakenField>(a.fields()), std::span(b.fields()), a.in_order());
    if (!of_b) return std::nullopt;
    const CompareOptions& options = how.options;
    if (chosen.size() != a.fields().size())
        raise({ErrorCode::invalid_argument, "a rule or none for each field"});
    const auto count = static_cast<std::size_t>(
        std::count_if(chosen.begin(), chosen.end(), [](int rule) { return rule != kLeftOut; }));
    ListSources sources(count * 2, options.cache);
    std::vector<FieldPair> pairs(count);
    ListResults results(count);
    for (std::size_t i = 0, at = 0; i < a.fields().size(); ++i) {
        if (chosen[i] == kLeftOut) continue;
        const ListRule& rule = rules.at(static_cast<std::size_t>(chosen[i]));
        const TakenField& field = a.fields()[i];
        FieldPair& pair = pairs[at++];
        pair.a = sources.side(a.files(), field);
        pair.b = sources.side(b.files(), b.fields()[(*of_b)[i]]);
        pair.rule = rule.rule;
        if (field.metadata != nullptr && rule.own_tolerance) {
            const Tolerance& own = field.metadata->settings.tolerance;
            const Tolerance& theirs = b.fields()[(*of_b)[i]].metadata->settings.tolerance;
            if (own.atol != theirs.atol || own.rtol != theirs.rtol) return std::nullopt;
            pair.rule.tolerance = own;
        }
        if (field.fortran_order && order_matters(field.shape)) pair.columns = field.shape;
        results.describe({field.text, field.dtype, field.fortran_order, field.shape,
                          static_cast<std::uint64_t>(chosen[i]), pair.rule.tolerance},
                         field.metadata != nullptr);
    }
    run_list(pairs, options, results);
    return results;
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
        run_list(pairs_, how.options, results);
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

void define_results(nb::module_& m) {
    nb::class_<ListResults> results(m, "ListResults", "What comparing two lists found, field by field.");
    const auto add = [&](const char* name, auto get) {
        results.def(
            name, [get](const ListResults& self, std::size_t at) { return get(self.layout(at)); }, "at"_a);
    };
    using L = NamedLayout;
    results.def("__len__", &ListResults::size)
        .def("result", &ListResults::at, "at"_a)
        .def("name", &ListResults::name, "at"_a, nb::sig("def name(self, at: int) -> str"));
    add("dtype", [](const L& l) { return std::string(dtype_name(l.dtype)); });
    add("shape", [](const L& l) { return shape_tuple({l.shape.begin(), l.shape.end()}); });
    add("fortran_order", [](const L& l) { return l.fortran_order; });
    add("rule", [](const L& l) { return l.rule; });
    add("atol", [](const L& l) { return l.tolerance.atol; });
    add("rtol", [](const L& l) { return l.tolerance.rtol; });
    results.def_prop_ro("different", &ListResults::different, "Numbers of the fields that differ, ascending.")
        .def_prop_ro("failed", &ListResults::failed,
                     "Numbers of the fields that could not be compared: comparing each alone says why.")
        .def_prop_ro("bytes", &ListResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ListResults::bytes_read)
        .def("__getstate__", &ListResults::state)
        .def("__setstate__", [](ListResults& self, const ListResults::State& state) {
            new (&self) ListResults(ListResults::of(state));
        });
}

}  // namespace

void define_list_comparison(nb::module_& m) {
    define_results(m);
    nb::class_<ListRule>(m, "ListRule", "The rule of fields of a list.")
        .def(nb::init<DifferenceRule, bool>(), "rule"_a, "own_tolerance"_a = false,
             "own_tolerance: that of the metadata counts.");
    m.def(
        "compare_lists", &compare_lists, "a"_a, "b"_a, "rules"_a, "chosen"_a, "options"_a,
        "chosen: of each field of a the number of its rule, -1: it is left out. None where the lists do not "
        "match in names, types and shapes: Python then says why.");
    nb::class_<PairList>(m, "PairList", "Pairs of fields, which the core compares at once.")
        .def(nb::init<>())
        .def("add", &PairList::add, "name"_a, "dtype"_a, "shape"_a, "fortran_order"_a, "a"_a.none(),
             "a_metadata"_a.none(), "a_field"_a, "b"_a.none(), "b_metadata"_a.none(), "b_field"_a, "rule"_a,
             "The sources are this pair's alone. rule: its number.")
        .def("__len__", &PairList::size)
        .def("compare", &PairList::compare, "rules"_a, "options"_a);
}

}  // namespace twinrun
