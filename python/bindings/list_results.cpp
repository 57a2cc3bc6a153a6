#include "list_results.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

void ListResults::take(std::size_t at, const Result<FieldResult>& result) {
    if (!result) {
        failed_[at] = true;
        if (result.error().code == ErrorCode::interrupted) interrupted_ = true;
        return;
    }
    put(at, *result, layouts_.get(at).dtype);
}

void ListResults::put(std::size_t at, const FieldResult& r, DType dtype) {
    results_.put(at, r);
    bytes_read_ += r.tree.bytes_read + r.sketch.bytes_read + r.elements.bytes_read;
    bytes_ += r.scalars / scalars_per_item(dtype) * item_bytes(dtype);
    if (!r.same()) different_.push_back(at);
}

void ListResults::finish(nb::object interrupt) {
    if (!interrupt.is_valid()) check();
    interrupt_ = std::move(interrupt);
    std::sort(different_.begin(), different_.end());
}

nb::object ListResults::take_interrupt() {
    return interrupt_.is_valid() ? std::exchange(interrupt_, nb::object()) : nb::none();
}

ListResults ListResults::part(std::size_t first, std::size_t last) const {
    if (first > last || last > size()) throw nb::index_error();
    ListResults some(last - first);
    for (std::size_t at = first; at < last; ++at) {
        if (!results_.has(at)) throw nb::index_error();
        const auto known = places_.find(at);
        some.describe(layouts_.get(at), names_of_files_,
                      known == places_.end() ? PartPlace{} : known->second);
    }
    for (std::size_t at = first; at < last; ++at)
        some.take(at - first, results_.get(at));
    return some;
}

std::vector<std::size_t> ListResults::failed() const {
    std::vector<std::size_t> found;
    for (std::size_t at = 0; at < failed_.size(); ++at) {
        if (failed_[at]) found.push_back(at);
    }
    return found;
}

PyFieldResult ListResults::at(std::size_t at) const {
    const DType dtype = layout(at).dtype;
    if (!results_.has(at)) throw nb::index_error();
    return {results_.get(at), dtype};
}

NamedLayout ListResults::layout(std::size_t at) const {
    if (at >= layouts_.size()) throw nb::index_error();
    return layouts_.get(at);
}

nb::object ListResults::name(std::size_t at) const {
    const std::string_view text = layout(at).name;
    if (names_of_files_) return file_text(std::string(text));
    return nb::str(text.data(), text.size());
}

nb::object ListResults::place(std::size_t at) const {
    const auto known = places_.find(at);
    if (known == places_.end()) return nb::none();
    return nb::make_tuple(shape_tuple(known->second.shape), shape_tuple(known->second.offset));
}

ListResults::State ListResults::state() const {
    const auto results = results_.bytes();
    const auto layouts = layouts_.bytes();
    std::vector<Place> places;
    for (const auto& [at, place] : places_)
        places.emplace_back(at, place.shape, place.offset);
    return {nb::bytes(results.data(), results.size()),
            nb::bytes(layouts.data(), layouts.size()),
            different_,
            failed(),
            bytes_,
            bytes_read_,
            names_of_files_,
            std::move(places)};
}

ListResults ListResults::of(const State& state) {
    const auto bytes = [](const nb::bytes& b) {
        return std::span(static_cast<const std::byte*>(b.data()), b.size());
    };
    const auto& [results, layouts, different, failed, all_bytes, bytes_read, names_of_files, places] = state;
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
    for (const auto& [at, shape, offset] : places) {
        if (!known(at) || shape.size() != offset.size() || shape.size() != made.layout(at).shape.size())
            raise({ErrorCode::damaged, "these are not the places of parts"});
        made.places_.emplace(at, PartPlace{shape, offset});
    }
    return made;
}

void define_list_results(nb::module_& m) {
    nb::class_<ListResults> results(m, "ListResults", "What comparing two lists found, field by field.");
    const auto add = [&](const char* name, auto get) {
        results.def(
            name, [get](const ListResults& self, std::size_t at) { return get(self.layout(at)); }, "at"_a);
    };
    using L = NamedLayout;
    results.def("__len__", &ListResults::size)
        .def("result", &ListResults::at, "at"_a)
        .def("name", &ListResults::name, "at"_a, nb::sig("def name(self, at: int) -> str"))
        .def(
            "place", &ListResults::place, "at"_a,
            nb::sig("def place(self, at: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None"),
            "Shape of the global array and offset in it, in the order of the stored elements; None where the "
            "field is no part of one.");
    add("dtype", [](const L& l) { return std::string(dtype_name(l.dtype)); });
    add("shape", [](const L& l) { return shape_tuple({l.shape.begin(), l.shape.end()}); });
    add("fortran_order", [](const L& l) { return l.fortran_order; });
    add("rule", [](const L& l) { return l.rule; });
    add("atol", [](const L& l) { return l.tolerance.atol; });
    add("rtol", [](const L& l) { return l.tolerance.rtol; });
    results.def_prop_ro("different", &ListResults::different, "Numbers of the fields that differ, ascending.")
        .def_prop_ro("failed", &ListResults::failed,
                     "Numbers of the fields that could not be compared: comparing each alone says why.")
        .def("take_interrupt", &ListResults::take_interrupt,
             nb::sig("def take_interrupt(self) -> BaseException | None"),
             "The exception that ended the work, to be raised. The fields that were not reached failed.")
        .def("part", &ListResults::part, "first"_a, "last"_a, "Those of the fields [first, last).")
        .def_prop_ro("bytes", &ListResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ListResults::bytes_read)
        .def("__getstate__", &ListResults::state)
        .def("__setstate__", [](ListResults& self, const ListResults::State& state) {
            new (&self) ListResults(ListResults::of(state));
        });
}

}  // namespace twinrun
