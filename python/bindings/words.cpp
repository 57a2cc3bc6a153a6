// The words of a comparison that C and Python say alike.
#include "comparison/words.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void twinrun::define_words(nb::module_& m) {
    const auto text = [](std::string_view words) { return nb::str(words.data(), words.size()); };
    m.attr("NO_METADATA") = text(kNoMetadata);
    m.attr("NO_DATA") = text(kNoData);
    m.attr("TEXT_LABEL") = text(kTextLabel);
    m.attr("MASK_LABEL") = text(kMaskLabel);
    m.attr("SHAPE_LABEL") = text(kShapeLabel);
    m.def("never_tolerated", &never_tolerated, "name"_a);
    m.def("tolerance_text", &tolerance_text, "tolerance"_a, "ulps"_a.none() = nb::none());
    m.def("values_text", &values_text, "a"_a, "b"_a, "difference"_a);
    m.def("distance_text", &distance_text, "difference"_a, "allowed"_a);
    m.def(
        "ulps_text",
        [](const std::string& dtype, double a, double b) {
            return ulps_text(scalar_type(parse_dtype(dtype)), a, b);
        },
        "dtype"_a, "a"_a, "b"_a);
    m.def("time_text", &time_text, "value"_a, "unit"_a);
    m.def("span_text", &span_text, "steps"_a, "unit"_a);
    m.def("percent_text", &percent_text, "a"_a, "difference"_a);
    m.def("proof_text", &proof_text, "read"_a, "elements"_a);
}
