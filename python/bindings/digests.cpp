// Digests of arrays: roots of their words, made in the background on devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "listed_arrays.hpp"
#include "operation_plans.hpp"
#include "shared.hpp"
#include "word_digests.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace {

// Keys are parts of forms that stay as long as the digests.
struct FormBefore {
    using Key = std::pair<std::string_view, std::span<const std::uint64_t>>;
    bool operator()(const Key& a, const Key& b) const {
        if (a.first != b.first) return a.first < b.first;
        return std::ranges::lexicographical_compare(a.second, b.second);
    }
};

nb::list told_forms(const WordDigests& digests) {
    nb::list all;
    for (const WordDigests::Form& form : digests.forms())
        all.append(nb::make_tuple(form.kind, shape_tuple(form.shape)));
    return all;
}

// Roots of many arrays, which number of form each has, and the forms, each once.
nb::tuple read_roots(const std::vector<WordDigests*>& all) {
    nb::list roots;
    nb::list numbers;
    nb::list forms;
    std::map<std::pair<std::string_view, std::span<const std::uint64_t>>, std::size_t, FormBefore> known;
    for (WordDigests* const digests : all) {
        const std::vector<std::uint64_t> made = digests->roots();
        for (std::size_t at = 0; at < made.size(); ++at) {
            const WordDigests::Form& form = digests->forms()[at];
            const auto [one, is_new] = known.try_emplace({form.kind, form.shape}, known.size());
            if (is_new) forms.append(nb::make_tuple(form.kind, shape_tuple(form.shape)));
            roots.append(made[at]);
            numbers.append(one->second);
        }
    }
    return nb::make_tuple(roots, numbers, forms);
}

}  // namespace

void twinrun::define_digests(nb::module_& m) {
    nb::class_<WordDigests>(m, "WordDigests",
                            "Digests of the words of many arrays: start(), and later roots().")
        .def(
            "__init__",
            [](WordDigests* self, const nb::sequence& arrays) {
                new (self) WordDigests();
                ArrayTaker taker(true);
                for (const nb::handle array : arrays)
                    self->add(taker, array);
            },
            "arrays"_a)
        .def_prop_ro("missing", &WordDigests::missing, "Numbers of arrays that put() has to bring.")
        .def_prop_ro("is_usual", &WordDigests::is_usual,
                     "Whether none is missing, and each is row-major without gaps.")
        .def_prop_ro("arrays", &WordDigests::arrays, "The arrays, until they were started.")
        .def("put", &WordDigests::put, "at"_a, "words"_a, "kind"_a, "shape"_a,
             "words: dense in host memory, or on a device. kind, shape: of the array.")
        .def("start", &WordDigests::start, "few_bytes"_a,
             "The arrays may change afterwards: devices work in the order of the arrays' streams.")
        .def_prop_ro("on_devices", &WordDigests::on_devices, "Whether roots() may wait for devices.")
        .def("roots", &WordDigests::roots, "Waits. One an array; 0 where it has no element.")
        .def_prop_ro("facts", &told_forms, "(type, shape) of each array.");
    m.def("read_roots", &read_roots, "digests"_a,
          nb::sig("def read_roots(digests: Sequence[WordDigests]) -> "
                  "tuple[list[int], list[int], list[tuple[str, tuple[int, ...]]]]"),
          "Waits. The roots of all arrays, the number of each one's form, and the forms.");
    nb::class_<OperationCall, WordDigests>(m, "OperationCall",
                                           "An operation of PyTorch that ran: digests of its tensors.")
        .def_prop_ro(
            "known",
            [](const OperationCall& call) { return call.known().is_valid() ? call.known() : nb::none(); },
            "What keep() was given for a call like it, or None.");
    nb::class_<OperationPlans>(m, "OperationPlans",
                               "What is known of calls of one operation, by the types of all values and by "
                               "those values that are no tensors.")
        .def(nb::init<>())
        .def("call", &OperationPlans::call, "args"_a, "named"_a, "result"_a.none(),
             nb::sig("def call(self, args: tuple, named: dict, result: object) -> OperationCall | None"),
             "A call that ran; None where a value is of a type that is not told.")
        .def("keep", &OperationPlans::keep, "call"_a, "known"_a, "known: of this call and of those like it.");
}
