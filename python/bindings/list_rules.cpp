#include "list_rules.hpp"

#include <algorithm>

#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

std::size_t ChosenRules::count() const {
    if (by_kind_) return size();
    return static_cast<std::size_t>(
        std::count_if(each_.begin(), each_.end(), [](int rule) { return rule != kLeftOut; }));
}

bool order_matters(std::span<const std::uint64_t> shape) {
    return std::count_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n > 1; }) > 1;
}

bool in_columns(const TakenField& field) { return field.fortran_order && order_matters(field.shape); }

void define_list_rules(nb::module_& m) {
    nb::class_<ListRule>(m, "ListRule", "The rule of fields of a list.")
        .def(nb::init<DifferenceRule, bool>(), "rule"_a, "own_tolerance"_a = false,
             "own_tolerance: that of the metadata counts.");
    nb::class_<RulesByKind>(m, "RulesByKind",
                            "The numbers of the rules of floating-point fields, and of all others.")
        .def(nb::init<int, int>(), "of_floating"_a, "of_others"_a);
}

}  // namespace twinrun
