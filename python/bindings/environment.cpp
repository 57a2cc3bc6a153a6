#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "history/variables.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nanobind::literals;

namespace {

using namespace twinrun;

nb::dict rules() {
    const VariableRules& all = variable_rules();
    nb::dict d;
    const auto add = [&](const char* name, std::span<const char* const> words) {
        nb::list list;
        for (const char* word : words)
            list.append(word);
        d[name] = list;
    };
    add("names", all.names);
    add("prefixes", all.prefixes);
    add("bookkeeping", all.bookkeeping);
    add("of_one_job", all.of_one_job);
    add("secret_words", all.secret_words);
    add("secret_variable_words", all.secret_variable_words);
    return d;
}

}  // namespace

void twinrun::define_environment(nb::module_& m) {
    m.def("variable_rules", &rules, nb::sig("def variable_rules() -> dict[str, list[str]]"));
    m.def("keeps_variable", &keeps_variable, "name"_a);
}
