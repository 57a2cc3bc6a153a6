// Arrays of the caller by the thousand: taken, compared and held with no work of Python for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/batch.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

constexpr int kDeepest =
    64;  // of nested dictionaries; deeper ones are walked in Python, which has its own limit

// A dense array in memory of the host, of a type of the core, in native byte order.
struct PlainArray {
    nb::object name;   // str
    nb::object owner;  // numpy.ndarray
    std::string_view text;
    const void* data = nullptr;
    DType dtype = DType::f32;
    bool fortran_order = false;
    std::uint64_t items = 0;
    std::vector<std::uint64_t> shape;  // as the core takes it: reversed where fortran_order
};

// The core's type of a buffer's format, where it is a native number.
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t itemsize) {
    if (format == nullptr) return std::nullopt;
    const auto integer = [&](bool is_signed) -> std::optional<DType> {
        switch (itemsize) {
            case 1: return is_signed ? DType::i8 : DType::u8;
            case 2: return is_signed ? DType::i16 : DType::u16;
            case 4: return is_signed ? DType::i32 : DType::u32;
            case 8: return is_signed ? DType::i64 : DType::u64;
            default: return std::nullopt;
        }
    };
    const std::string_view text(format);
    if (text == "Zf") return DType::c64;
    if (text == "Zd") return DType::c128;
    if (text.size() != 1) return std::nullopt;
    switch (text[0]) {
        case 'e': return DType::f16;
        case 'f': return DType::f32;
        case 'd': return DType::f64;
        case '?': return DType::boolean;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q': return integer(true);
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q': return integer(false);
        default: return std::nullopt;
    }
}

// A numpy array, if it is plain. May have set no Python error.
std::optional<PlainArray> plain_array(nb::handle value) {
    Py_buffer view;
    if (PyObject_GetBuffer(value.ptr(), &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        return std::nullopt;
    }
    struct Release {
        Py_buffer* view;
        ~Release() { PyBuffer_Release(view); }
    } const release{&view};
    const auto dtype = dtype_of_format(view.format, view.itemsize);
    if (!dtype || item_bytes(*dtype) != static_cast<std::size_t>(view.itemsize)) return std::nullopt;
    PlainArray array;
    if (PyBuffer_IsContiguous(&view, 'C') == 0) {
        if (view.ndim < 2 || PyBuffer_IsContiguous(&view, 'F') == 0) return std::nullopt;
        array.fortran_order = true;
    }
    array.shape.assign(view.shape, view.shape + view.ndim);
    if (array.fortran_order) std::reverse(array.shape.begin(), array.shape.end());
    array.owner = nb::borrow(value);
    array.data = view.buf;
    array.dtype = *dtype;
    array.items = static_cast<std::uint64_t>(view.len) / static_cast<std::uint64_t>(view.itemsize);
    return array;
}

// Where the arrays were, without keeping them alive.
struct HeldArrays {
    std::vector<std::pair<nb::object, nb::object>> arrays;  // name, weak reference

    // None where one is gone.
    [[nodiscard]] nb::object there() const {
        nb::dict all;
        for (const auto& [name, reference] : arrays) {
            const nb::object array = reference();
            if (array.is_none()) return nb::none();
            all[name] = array;
        }
        return all;
    }
};

class ArrayList {
   public:
    // The arrays of a dictionary, nested or not; nothing where it holds anything else than plain arrays.
    static std::optional<ArrayList> of(nb::handle container) {
        if (!PyDict_CheckExact(container.ptr())) return std::nullopt;
        const nb::object numpy = nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
        if (!numpy.is_valid()) return std::nullopt;
        ArrayList list;
        const nb::object ndarray = numpy.attr("ndarray");
        if (!list.walk(container, nb::object(), ndarray.ptr(), 0)) return std::nullopt;
        std::unordered_set<std::string_view> names;
        names.reserve(list.arrays_.size());
        for (const PlainArray& array : list.arrays_) {
            if (!names.insert(array.text).second) return std::nullopt;
        }
        if (list.arrays_.empty()) return std::nullopt;
        return list;
    }

    [[nodiscard]] const std::vector<PlainArray>& arrays() const { return arrays_; }

    [[nodiscard]] HeldArrays held() const {
        HeldArrays held;
        held.arrays.reserve(arrays_.size());
        for (const PlainArray& array : arrays_) {
            PyObject* reference = PyWeakref_NewRef(array.owner.ptr(), nullptr);
            if (reference == nullptr) throw nb::python_error();
            held.arrays.emplace_back(array.name, nb::steal(reference));
        }
        return held;
    }

    [[nodiscard]] nb::dict entries() const {
        nb::dict all;
        for (const PlainArray& array : arrays_)
            all[array.name] = array.owner;
        return all;
    }

   private:
    bool walk(nb::handle dict, const nb::object& prefix, PyObject* ndarray, int depth) {
        if (depth > kDeepest || PyDict_Size(dict.ptr()) == 0) return false;
        for (const auto [key, value] : nb::borrow<nb::dict>(dict)) {
            nb::object name = name_of(key);
            if (!name.is_valid()) return false;
            if (prefix.is_valid()) {
                name = nb::steal(PyUnicode_FromFormat("%U.%U", prefix.ptr(), name.ptr()));
                if (!name.is_valid()) throw nb::python_error();
            }
            if (PyDict_CheckExact(value.ptr())) {
                if (!walk(value, name, ndarray, depth + 1)) return false;
                continue;
            }
            if (reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) != ndarray) return false;
            auto array = plain_array(value);
            if (!array) return false;
            Py_ssize_t length = 0;
            const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
            if (text == nullptr) {
                PyErr_Clear();
                return false;
            }
            array->text = {text, static_cast<std::size_t>(length)};
            array->name = std::move(name);
            arrays_.push_back(std::move(*array));
        }
        return true;
    }

    // A key's part of a name; invalid where Python has to look at it: labels, empty names, other types.
    static nb::object name_of(nb::handle key) {
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

    std::vector<PlainArray> arrays_;
};

// The results of all arrays, in the order of the first run.
class ArrayResults {
   public:
    // Nothing where there are errors: who asked finds them again, one array after another.
    static std::optional<ArrayResults> of(std::vector<Result<FieldResult>> results,
                                          const std::vector<PlainArray>& arrays) {
        ArrayResults all;
        for (const auto& result : results) {
            if (result) continue;
            if (result.error().code == ErrorCode::interrupted) raise(result.error());
            return std::nullopt;
        }
        for (std::size_t at = 0; at < results.size(); ++at) {
            const FieldResult& r = *results[at];
            all.layouts_.push_back(
                {arrays[at].name, arrays[at].dtype, arrays[at].fortran_order, arrays[at].shape});
            all.bytes_ += arrays[at].items * item_bytes(arrays[at].dtype);
            all.bytes_read_ += r.tree.bytes_read + r.sketch.bytes_read + r.elements.bytes_read;
            if (!r.same()) all.different_.push_back(at);
        }
        all.results_ = std::move(results);
        return all;
    }
    [[nodiscard]] std::size_t size() const { return results_.size(); }
    [[nodiscard]] const std::vector<std::size_t>& different() const { return different_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
    [[nodiscard]] PyFieldResult at(std::size_t at) const { return {*results_[at], layout(at).dtype}; }
    struct Layout {
        nb::object name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
    };
    [[nodiscard]] const Layout& layout(std::size_t at) const {
        if (at >= layouts_.size()) throw nb::index_error();
        return layouts_[at];
    }

   private:
    std::vector<Result<FieldResult>> results_;
    std::vector<Layout> layouts_;
    std::vector<std::size_t> different_;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_read_ = 0;
};

// Which array of b has the name of each of a, and its type and layout; nothing where one has none.
std::optional<std::vector<std::size_t>> matched(const std::vector<PlainArray>& a,
                                                const std::vector<PlainArray>& b) {
    if (a.size() != b.size()) return std::nullopt;
    std::vector<std::size_t> found(a.size());
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t j = i;
        if (a[i].text != b[i].text) {
            if (by_name.empty()) {
                for (std::size_t k = 0; k < b.size(); ++k)
                    by_name.emplace(b[k].text, k);
            }
            const auto there = by_name.find(a[i].text);
            if (there == by_name.end()) return std::nullopt;
            j = there->second;
        }
        if (a[i].dtype != b[j].dtype || a[i].shape != b[j].shape || a[i].fortran_order != b[j].fortran_order)
            return std::nullopt;
        found[i] = j;
    }
    return found;
}

std::optional<ArrayResults> compare_arrays(const ArrayList& list_a, const ArrayList& list_b,
                                           const DifferenceRule& floating, const DifferenceRule& others,
                                           int threads, std::uint64_t memory, const std::string& io,
                                           const std::string& cache, const std::string& device,
                                           std::vector<int> devices, const std::string& method) {
    const std::vector<PlainArray>& a = list_a.arrays();
    const std::vector<PlainArray>& b = list_b.arrays();
    const auto of_b = matched(a, b);
    if (!of_b) return std::nullopt;
    const bool direct_storage = io == "gds";
    CompareOptions options;
    options.method = parse_method(method);
    options.stream = stream_options(threads, memory, direct_storage ? "auto" : io, nb::none());
    options.cache = parse_cache(cache);
    options.device = parse_device(device, std::move(devices), direct_storage);
    std::vector<MemorySource> sources;
    std::vector<FieldPair> pairs(a.size());
    sources.reserve(a.size() * 2);
    const auto side = [&](const PlainArray& array) {
        sources.emplace_back(array.dtype, array.items, array.data, item_bytes(array.dtype), false);
        return FieldSide{&sources.back(), nullptr, 0};
    };
    for (std::size_t i = 0; i < a.size(); ++i) {
        pairs[i].a = side(a[i]);
        pairs[i].b = side(b[(*of_b)[i]]);
        pairs[i].rule = is_floating(scalar_type(a[i].dtype)) ? floating : others;
        if (a[i].fortran_order) pairs[i].columns = a[i].shape;
    }
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return compare_fields(pairs, options);
    };
    return ArrayResults::of(run(), a);
}

}  // namespace

void define_arrays(nb::module_& m) {
    nb::class_<ArrayList>(m, "ArrayList", "Dense numpy arrays of native numbers, by name.")
        .def_static("of", &ArrayList::of, "container"_a.none(),
                    "The arrays of a dictionary, nested or not. None where it holds anything else: see "
                    "runs.containers.")
        .def("entries", &ArrayList::entries, nb::sig("def entries(self) -> dict[str, object]"),
             "The arrays by name.")
        .def("held", &ArrayList::held, "Where the arrays are, without keeping them alive.")
        .def("__len__", [](const ArrayList& self) { return self.arrays().size(); });
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.");
    nb::class_<ArrayResults>(m, "ArrayResults", "What comparing two lists of arrays found, array by array.")
        .def("__len__", &ArrayResults::size)
        .def("result", &ArrayResults::at, "at"_a)
        .def(
            "name", [](const ArrayResults& self, std::size_t at) { return self.layout(at).name; }, "at"_a,
            nb::sig("def name(self, at: int) -> str"))
        .def(
            "dtype",
            [](const ArrayResults& self, std::size_t at) {
                return std::string(dtype_name(self.layout(at).dtype));
            },
            "at"_a)
        .def(
            "shape",
            [](const ArrayResults& self, std::size_t at) { return shape_tuple(self.layout(at).shape); },
            "at"_a, "As the core takes it: reversed where the array is column-major.")
        .def(
            "fortran_order",
            [](const ArrayResults& self, std::size_t at) { return self.layout(at).fortran_order; }, "at"_a)
        .def_prop_ro("different", &ArrayResults::different, "Numbers of the arrays that differ, ascending.")
        .def_prop_ro("bytes", &ArrayResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ArrayResults::bytes_read);
    nb::class_<DifferenceRule>(m, "Rule", "What counts as different.")
        .def(
            "__init__",
            [](DifferenceRule* self, double atol, double rtol, bool nan_equal,
               std::optional<std::uint64_t> ulps, const std::vector<double>& period,
               std::uint64_t component_stride) {
                new (self)
                    DifferenceRule(difference_rule(atol, rtol, nan_equal, ulps, period, component_stride));
            },
            "atol"_a, "rtol"_a, "nan_equal"_a = true, "ulps"_a = nb::none(),
            "period"_a = std::vector<double>(), "component_stride"_a = std::uint64_t{1});
    m.def("compare_arrays", &compare_arrays, "a"_a, "b"_a, "floating"_a, "others"_a, "threads"_a = 0,
          "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto", "cache"_a = "auto", "device"_a = "auto",
          "devices"_a = std::vector<int>(), "method"_a = "auto",
          "None where the lists do not match in names, types and shapes, or an array cannot be compared.");
}

}  // namespace twinrun
