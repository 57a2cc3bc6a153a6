// Fields by the thousand, taken with no work of Python for each: the list, of arrays of the caller, of metadata or of files.
#include "field_lists.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <unordered_set>
#include <utility>

#include "source/device_array.hpp"
#include "source/plain_files.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Dictionaries that are nested deeper are walked in Python, which has its own limit.
constexpr int kDeepest = 64;

// An object that the core may release in any thread, when its work is done.
std::shared_ptr<const void> held_by_work(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* held) {
                const nb::gil_scoped_acquire locked;
                delete held;
            }};
}

bool is_dictionary(nb::handle value) {
    if (PyDict_CheckExact(value.ptr())) return true;
    if (!PyDict_Check(value.ptr())) return false;
    const nb::object collections = nb::steal(PyImport_GetModule(nb::str("collections").ptr()));
    if (!collections.is_valid()) return false;
    return reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) == collections.attr("OrderedDict").ptr();
}

// Of a str, as long as that lives.
std::optional<std::string_view> utf8(nb::handle text) {
    Py_ssize_t length = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
    if (bytes == nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    return std::string_view(bytes, static_cast<std::size_t>(length));
}

// A key's part of a name; invalid where Python has to look at it: labels, empty names, other types.
nb::object name_of(nb::handle key) {
    nb::object name;
    if (PyUnicode_CheckExact(key.ptr())) {
        name = nb::borrow(key);
    } else if (PyLong_CheckExact(key.ptr())) {
        name = nb::steal(PyObject_Str(key.ptr()));
    } else {
        return {};
    }
    const Py_ssize_t length = PyUnicode_GetLength(name.ptr());
    if (length <= 0) return {};
    const Py_ssize_t label = PyUnicode_FindChar(name.ptr(), '@', 0, length, 1);
    if (label != -1) return {};
    return name;
}

}  // namespace

nb::object HeldArrays::there() const {
    nb::dict all;
    for (const auto& [name, reference] : arrays) {
        const nb::object array = reference();
        if (array.is_none()) return nb::none();
        all[name] = array;
    }
    return all;
}

std::optional<FieldList> FieldList::of_arrays(nb::handle container, const nb::object& flatten,
                                              bool on_devices) {
    if (!is_dictionary(container)) return std::nullopt;
    FieldList list;
    Walk walk{ArrayTaker(on_devices), flatten};
    if (!walk.taker.knows_any() || !list.walk(walk, container, nb::object(), 0)) return std::nullopt;
    std::unordered_set<std::string_view> names;
    names.reserve(list.fields_.size() + list.rest_.size());
    for (const TakenField& field : list.fields_) {
        if (!names.insert(field.text).second) return std::nullopt;
    }
    for (const Other& other : list.rest_) {
        if (!names.insert(other.text).second) return std::nullopt;
    }
    if (list.fields_.empty()) return std::nullopt;
    return list;
}

void FieldList::take(std::vector<ListedField> fields) {
    fields_.reserve(fields.size());
    for (ListedField& field : fields)
        fields_.push_back({std::move(field), {}, {}});
}

std::optional<FieldList> FieldList::of_metadata(const PyMetadata& metadata, bool has_data) {
    auto fields = fields_of(metadata.file->directory(), has_data);
    if (!fields) return std::nullopt;
    FieldList list;
    list.take(std::move(*fields));
    list.file_ = metadata.file;
    list.has_data_ = has_data;
    for (std::uint32_t at = 0; at < metadata.file->directory().data_files.size(); ++at)
        list.paths_.push_back(metadata.file->data_path(at));
    return list;
}

std::optional<FieldList> FieldList::of_files(const std::vector<std::string>& paths,
                                             const std::vector<std::string>& names, const std::string& format,
                                             bool without_metadata, bool unique, int threads) {
    const bool npy = format == "npy";
    if (!npy && format != "safetensors")
        raise({ErrorCode::invalid_argument, "format must be npy or safetensors"});
    if (names.size() != paths.size()) raise({ErrorCode::invalid_argument, "a name for each path"});
    std::optional<FieldsOfFiles> found;
    {
        const nb::gil_scoped_release unlocked;
        for (const std::string& path : paths) {
            if (without_metadata && is_there(path + kMetadataSuffix)) return std::nullopt;
        }
        StreamOptions stream;
        stream.threads = threads;
        found = fields_of(
            read_plain_files(paths, npy ? PlainFormat::npy : PlainFormat::safetensors, worker_count(stream)),
            names, unique);
    }
    if (!found) return std::nullopt;
    FieldList list;
    list.take(std::move(found->fields));
    list.names_ = std::move(found->names);
    list.texts_ = std::move(found->texts);
    list.paths_ = paths;
    list.in_order_ = !unique;
    return list;
}

nb::list FieldList::texts() const {
    nb::list all;
    for (const auto& [has_texts, texts] : texts_) {
        if (!has_texts) {
            all.append(nb::none());
            continue;
        }
        nb::dict own;
        for (const auto& [word, text] : texts)
            own[nb::str(word.data(), word.size())] = nb::str(text.data(), text.size());
        all.append(own);
    }
    return all;
}

CapturedFields FieldList::captured(const std::map<std::string, Tolerance>& tolerances,
                                   const std::shared_ptr<const void>& owner) const {
    CapturedFields all;
    all.fields.reserve(fields_.size());
    for (const TakenField& field : fields_) {
        CapturedField f;
        f.name = field.text;
        f.dtype = field.dtype;
        f.shape = field.shape;
        f.order = field.fortran_order ? ArrayOrder::column_major : ArrayOrder::row_major;
        if (field.fortran_order) std::reverse(f.shape.begin(), f.shape.end());  // as the caller indexes them
        if (field.device == kHostMemory) {
            f.data = field.data;
        } else {
            f.device = array_of(field);
            f.device->ordered = true;
            f.device->owner = owner;
        }
        if (const auto own = tolerances.find(f.name); own != tolerances.end()) {
            f.own_tolerance = true;
            f.tolerance = own->second;
        }
        all.fields.push_back(std::move(f));
    }
    return all;
}

std::optional<HeldArrays> FieldList::held() const {
    if (made_) return std::nullopt;
    HeldArrays held;
    held.arrays.reserve(fields_.size());
    for (const TakenField& field : fields_) {
        PyObject* reference = PyWeakref_NewRef(field.owner.ptr(), nullptr);
        if (reference == nullptr) throw nb::python_error();
        held.arrays.emplace_back(field.name, nb::steal(reference));
    }
    return held;
}

nb::dict FieldList::arrays() const {
    nb::dict all;
    auto other = rest_.begin();
    for (std::size_t at = 0; at <= fields_.size(); ++at) {
        for (; other != rest_.end() && PyDict_Size(all.ptr()) == static_cast<Py_ssize_t>(other->place);
             ++other)
            all[other->name] = other->value;
        if (at < fields_.size()) all[fields_[at].name] = fields_[at].owner;
    }
    return all;
}

// Python's own walk says what is wrong where this one gives up.
bool FieldList::walk(Walk& with, nb::handle dict, const nb::object& prefix, int depth) {
    if (depth > kDeepest) return false;
    // In the order of an OrderedDict, which a plain walk does not know.
    const nb::object items = nb::steal(PyMapping_Items(dict.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    for (const nb::handle item : nb::borrow<nb::list>(items)) {
        const nb::handle value = PyTuple_GetItem(item.ptr(), 1);
        nb::object name = name_of(PyTuple_GetItem(item.ptr(), 0));
        if (!name.is_valid()) return false;
        if (prefix.is_valid()) {
            name = nb::steal(PyUnicode_FromFormat("%U.%U", prefix.ptr(), name.ptr()));
            if (!name.is_valid()) throw nb::python_error();
        }
        if (is_dictionary(value) && PyObject_Size(value.ptr()) > 0) {
            if (!walk(with, value, name, depth + 1)) return false;
        } else if (!add(with, name, value) && !add_parts(with, name, value)) {
            return false;
        }
    }
    return true;
}

// A number or an array, if the core can take it.
bool FieldList::add(Walk& with, const nb::object& name, nb::handle value) {
    auto field = number(value);
    if (!field) field = with.taker.take(value);
    if (!field) return false;
    const auto text = utf8(name);
    if (!text) return false;
    field->name = name;
    field->text = *text;
    fields_.push_back(std::move(*field));
    return true;
}

// What Python makes of any other value.
bool FieldList::add_parts(Walk& with, const nb::object& name, nb::handle value) {
    const nb::object parts =
        nb::steal(PyObject_CallFunctionObjArgs(with.flatten.ptr(), name.ptr(), value.ptr(), nullptr));
    if (!parts.is_valid()) {
        if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // an interrupt
        PyErr_Clear();
        return false;
    }
    made_ = true;
    const nb::dict all = nb::borrow<nb::dict>(parts);
    bool has_labels = false;  // labels stay beside their arrays
    for (const auto [key, part] : all) {
        const auto text = utf8(key);
        if (!text) return false;
        has_labels = has_labels || text->find('@') != std::string_view::npos;
    }
    for (const auto [key, part] : all) {
        const nb::object own = nb::borrow(key);
        if (!has_labels && add(with, own, part)) continue;
        rest_.push_back({fields_.size() + rest_.size(), own, nb::borrow(part), *utf8(key)});
    }
    return true;
}

// A number of Python's, as numpy converts it.
std::optional<TakenField> FieldList::number(nb::handle value) {
    TakenField field;
    field.items = 1;
    std::uint64_t bits = 0;
    if (PyFloat_CheckExact(value.ptr())) {
        const double own = PyFloat_AsDouble(value.ptr());
        std::memcpy(&bits, &own, sizeof own);
        field.dtype = DType::f64;
    } else if (PyBool_Check(value.ptr())) {
        const unsigned char own = value.ptr() == Py_True ? 1 : 0;
        std::memcpy(&bits, &own, sizeof own);
        field.dtype = DType::boolean;
    } else if (PyLong_CheckExact(value.ptr())) {
        int beyond = 0;
        const long long own = PyLong_AsLongLongAndOverflow(value.ptr(), &beyond);
        if (beyond != 0) return std::nullopt;
        std::memcpy(&bits, &own, sizeof own);
        field.dtype = DType::i64;
    } else {
        return std::nullopt;
    }
    numbers_.push_back(bits);
    field.data = &numbers_.back();
    field.owner = nb::borrow(value);
    made_ = true;  // no weak reference leads to it
    return field;
}

void define_field_lists(nb::module_& m) {
    nb::class_<FieldList>(m, "FieldList", "All fields of a place, taken at once.")
        .def_static(
            "of_arrays", &FieldList::of_arrays, "container"_a.none(), "flatten"_a, "on_devices"_a,
            nb::sig("def of_arrays(container: object, flatten: Callable[[str, object], dict[str, object]], "
                    "on_devices: bool) -> FieldList | None"),
            "The arrays and numbers of a dictionary, nested or not. flatten(name, value) gives the arrays of "
            "any other value by name. on_devices: those on GPUs, too, with PyTorch's current stream. None "
            "where the container is not for a list: see runs.containers.")
        .def_static("of_metadata", &FieldList::of_metadata, "metadata"_a, "has_data"_a,
                    "The fields of metadata, and their data. None where Python has to look at one of them.")
        .def_static(
            "of_files", &FieldList::of_files, "paths"_a, "names"_a, "format"_a, "without_metadata"_a = true,
            "unique"_a = true, "threads"_a = 0,
            "The arrays of .npy or .safetensors files as they lie there. names: of the array of each "
            ".npy file, what stands before the names of a .safetensors file. None where Python has to "
            "look at one of them, or, without_metadata, where there is metadata beside it. "
            "unique: where a name is there twice; else fields belong to those at the same place.")
        .def_prop_ro("texts", &FieldList::texts,
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
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.")
        .def(
            "__deepcopy__", [](nb::object self, nb::handle) { return self; },
            nb::sig("def __deepcopy__(self, memo: object) -> HeldArrays"));
}

}  // namespace twinrun
