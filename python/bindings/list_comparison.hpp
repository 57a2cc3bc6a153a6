// The comparison of lists of fields, and of pairs of fields that Python matched.
#pragma once

#include <nanobind/nanobind.h>

namespace twinrun {

namespace nb = nanobind;

void define_compare_lists(nb::module_& m);
void define_pair_list(nb::module_& m);

}  // namespace twinrun
