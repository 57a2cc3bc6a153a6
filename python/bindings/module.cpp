// twinrun._core: the C++ core for Python. Private to the package: python/twinrun wraps all of it.
//
// Every call that works on data releases the interpreter lock. Errors become the exceptions of
// twinrun.errors.
#include <nanobind/nanobind.h>

#include "shared.hpp"

namespace nb = nanobind;
using namespace twinrun;

NB_MODULE(_core, m) {
    // An error that a program keeps to its end holds objects of ours: that is no mistake to report
    // on its standard error.
    nb::set_leak_warnings(false);
    m.attr("__version__") = TWINRUN_VERSION;
    define_devices(m);
    define_sources(m);
    define_remote_files(m);
    define_metadata(m);
    define_elements(m);
    define_comparison(m);
    define_field_lists(m);
    define_records(m);
    define_sessions(m);
    define_histories(m);
    define_aggregation(m);
    define_sketches(m);
    define_digests(m);
    define_golden(m);
    define_sums(m);
    define_noise(m);
    define_environment(m);
    define_words(m);
}
