// Fields by the thousand, of arrays of the caller or of metadata: taken and compared with no work
// of Python for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <vector>

#include "field_list.hpp"
#include "list_comparison.hpp"
#include "list_results.hpp"
#include "list_rules.hpp"
#include "shared.hpp"
#include "source/plain_files.hpp"
#include "started_pairs.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

void define_making_of_lists(nb::class_<FieldList>& list) {
    list.def_static(
            "of_arrays", &FieldList::of_arrays, "container"_a.none(), "flatten"_a, "on_devices"_a,
            nb::sig("def of_arrays(container: object, flatten: Callable[[str, object], dict[str, object]], "
                    "on_devices: bool) -> FieldList | None"),
            "The arrays and numbers of a dictionary, nested or not. flatten(name, value) gives the arrays of "
            "any other value by name. on_devices: those on GPUs, too, with PyTorch's current stream. None "
            "where the container is not for a list: see runs.containers.")
        .def_static("of_metadata", &FieldList::of_metadata, "metadata"_a, "has_data"_a,
                    "The fields of metadata, and their data. None where Python has to look at one of them.")
        .def_static("of_history", &FieldList::of_history, "history"_a, "folders"_a, "files"_a,
                    "threads"_a = 0,
                    "The fields of metadata of many places of a history, place after place, and their data. "
                    "They belong to "
                    "those at the same place of another list. None where Python has to look at one of them.")
        .def_prop_ro("counts", &FieldList::counts, "How many fields each place of a history has.")
        .def_prop_ro("bytes_read", &FieldList::bytes_read, "Of each place: what opening its metadata read.")
        .def_static(
            "of_files", &FieldList::of_files, "paths"_a, "names"_a, "format"_a, "without_metadata"_a = true,
            "unique"_a = true, "at_hand"_a.none() = nb::none(), "threads"_a = 0,
            "The arrays of .npy or .safetensors files as they lie there. names: of the array of each "
            ".npy file, what stands before the names of a .safetensors file. None where Python has to "
            "look at one of them, or, without_metadata, where there is metadata beside it. "
            "unique: where a name is there twice; else fields belong to those at the same place. at_hand: "
            "files that need not be opened again.");
}

void define_uses_of_lists(nb::class_<FieldList>& list) {
    list.def_prop_ro("texts", &FieldList::texts,
                     nb::for_getter(nb::sig("def texts(self, /) -> list[dict[str, str] | None]")),
                     "Of each file its texts beside the arrays, None where it has none.")
        .def("arrays", &FieldList::arrays, nb::sig("def arrays(self) -> dict[str, object]"),
             "The arrays by name.")
        .def_prop_ro(
            "rest",
            [](const FieldList& self) {
                nb::dict all;
                for (const auto& other : self.rest())
                    all[other.name] = other.value;
                return all;
            },
            nb::sig("def rest(self) -> dict[str, object]"),
            "The arrays by name that are not in the list, as Python has to look at them.")
        .def_prop_ro(
            "rest_places",
            [](const FieldList& self) {
                std::vector<std::size_t> places;
                for (const auto& other : self.rest())
                    places.push_back(other.place);
                return places;
            },
            "Their numbers among all fields.")
        .def(
            "captured",
            [](nb::object self, const std::map<std::string, Tolerance>& tolerances) {
                return nb::cast<const FieldList&>(self).captured(tolerances, held_by_work(self));
            },
            "tolerances"_a,
            "The fields of the list, as they are captured and sketched; they are valid as long as it is. "
            "tolerances: of fields that have one of their own.")
        .def_prop_ro("any_on_device", &FieldList::any_on_device)
        .def_prop_ro(
            "floating",
            [](const FieldList& self) {
                std::vector<bool> found;
                for (const TakenField& field : self.fields())
                    found.push_back(is_floating(scalar_type(field.dtype)));
                return found;
            },
            "Whether each holds floating-point numbers.")
        .def_prop_ro("names",
                     [](const FieldList& self) {
                         nb::list found;
                         for (const TakenField& field : self.fields()) {
                             if (field.name.is_valid()) {
                                 found.append(field.name);
                             } else if (field.in_file) {
                                 found.append(nb::str(field.text.data(), field.text.size()));
                             } else {
                                 found.append(file_text(std::string(field.text)));
                             }
                         }
                         return nb::typed<nb::list, nb::str>(found);
                     })
        .def("held", &FieldList::held,
             "Where the arrays are, without keeping them alive. None where some are not the caller's own.")
        .def("__len__", [](const FieldList& self) { return self.fields().size(); });
}

void define_field_list(nb::module_& m) {
    nb::class_<FieldList> list(m, "FieldList", "All fields of a place, taken at once.");
    define_making_of_lists(list);
    define_uses_of_lists(list);
}

void define_held_arrays(nb::module_& m) {
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.")
        .def(
            "__deepcopy__", [](nb::object self, nb::handle) { return self; },
            nb::sig("def __deepcopy__(self, memo: object) -> HeldArrays"));
}

void define_are_npy(nb::module_& m) {
    nb::class_<FilesAtHand>(m, "FilesAtHand",
                            "Small files that were read as a whole when their first bytes were looked at.")
        .def(nb::init<>());
    m.def(
        "are_npy",
        [](const std::vector<nb::bytes>& paths, FilesAtHand* at_hand) {
            std::vector<std::string> names;
            names.reserve(paths.size());
            for (const nb::bytes& path : paths)
                names.emplace_back(path.c_str(), path.size());
            const StreamOptions every_core;
            std::vector<char> found;
            {
                const nb::gil_scoped_release unlocked;
                found = are_npy(names, worker_count(every_core), at_hand);
            }
            return std::vector<bool>(found.begin(), found.end());
        },
        "paths"_a, "at_hand"_a.none() = nb::none(),
        "Whether each of these files begins as .npy files do. at_hand: where small ones are kept, read as a "
        "whole.");
}

}  // namespace

void define_field_lists(nb::module_& m) {
    define_field_list(m);
    define_held_arrays(m);
    define_list_results(m);
    define_list_rules(m);
    define_are_npy(m);
    define_compare_lists(m);
    define_started_pairs(m);
    define_pair_list(m);
}

}  // namespace twinrun
