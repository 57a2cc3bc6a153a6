#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <vector>

#include "history/variables.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nanobind::literals;

namespace {

using namespace twinrun;

void define_rules(nb::module_& m) {
    nb::class_<VariableRules> rules(m, "VariableRules", "Which environment variables are stored.");
    const auto add = [&](const char* name, std::span<const char* const> VariableRules::*words) {
        rules.def_prop_ro(name, [words](const VariableRules& self) {
            return std::vector<std::string>((self.*words).begin(), (self.*words).end());
        });
    };
    add("names", &VariableRules::names);
    add("prefixes", &VariableRules::prefixes);
    add("bookkeeping", &VariableRules::bookkeeping);
    add("of_one_job", &VariableRules::of_one_job);
    add("secret_words", &VariableRules::secret_words);
    add("secret_variable_words", &VariableRules::secret_variable_words);
}

}  // namespace

void twinrun::define_environment(nb::module_& m) {
    define_rules(m);
    m.def("variable_rules", [] { return variable_rules(); });
    m.def("keeps_variable", &keeps_variable, "name"_a);
}
