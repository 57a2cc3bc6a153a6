// Elements of a source as they are, and the places where two sources differ.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "engine/listing.hpp"
#include "owned_array.hpp"
#include "shared.hpp"
#include "source/source.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// period: at most 4 lengths, of components in turn.
DifferenceRule difference_rule(double atol, double rtol, bool nan_equal, std::optional<std::uint64_t> ulps,
                               const std::vector<double>& period, std::uint64_t component_stride) {
    DifferenceRule rule{{atol, rtol}, nan_equal};
    Measure& measure = rule.measure;
    if (ulps) measure.ulps = *ulps;
    if (period.size() > measure.period.size()) raise({ErrorCode::invalid_argument, "at most 4 periods"});
    std::copy(period.begin(), period.end(), measure.period.begin());
    measure.components = std::max<std::uint32_t>(static_cast<std::uint32_t>(period.size()), 1);
    measure.component_stride = std::max<std::uint64_t>(component_stride, 1);
    return rule;
}

nb::object read_source(Source& source, std::uint64_t first, std::uint64_t count) {
    const std::size_t item = item_bytes(source.elements->dtype());
    if (count > source.elements->items())
        raise({ErrorCode::invalid_argument, "elements behind the end of the field were asked for"});
    std::vector<std::uint8_t> bytes(count * item);
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return read_items(*source.elements, first, count, reinterpret_cast<std::byte*>(bytes.data()));
    };
    take(run());
    return owned_array(std::move(bytes));
}

nb::object list_differences(Source& a, Source& b, std::uint64_t first, std::uint64_t count,
                            const DifferenceRule& rule) {
    if (count > a.elements->items())
        raise({ErrorCode::invalid_argument, "elements behind the end of the field were asked for"});
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return differing_scalars(*a.elements, *b.elements, first, count, rule);
    };
    return owned_array(take(run()));
}

}  // namespace

void define_elements(nb::module_& m) {
    // Items [first, first + count) as bytes, dense and in native byte order.
    m.def("read_source", &read_source, "source"_a, "first"_a, "count"_a);
    nb::class_<Tolerance>(m, "Tolerance", "a and b agree where |a - b| <= atol + rtol |a|.")
        .def(nb::init<double, double>(), "atol"_a = 0.0, "rtol"_a = 0.0)
        .def_ro("atol", &Tolerance::atol)
        .def_ro("rtol", &Tolerance::rtol);
    nb::class_<DifferenceRule>(m, "Rule", "What counts as different.")
        .def(
            "__init__",
            [](DifferenceRule* self, double atol, double rtol, bool nan_equal,
               std::optional<std::uint64_t> ulps, const std::vector<double>& period,
               std::uint64_t component_stride) {
                new (self)
                    DifferenceRule(difference_rule(atol, rtol, nan_equal, ulps, period, component_stride));
            },
            nb::kw_only(), "atol"_a = 0.0, "rtol"_a = 0.0, "nan_equal"_a = true, "ulps"_a = nb::none(),
            "period"_a = std::vector<double>(), "component_stride"_a = std::uint64_t{1});
    // Scalar indices, ascending, that differ among items [first, first + count).
    m.def("list_differences", &list_differences, "a"_a, "b"_a, "first"_a, "count"_a, "rule"_a);
}

}  // namespace twinrun
