// Fields by the thousand, of arrays of the caller or of metadata: taken and compared with no work of Python for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/batch.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Dictionaries that are nested deeper are walked in Python, which has its own limit.
constexpr int kDeepest = 64;

// A field of a list: a dense array in memory of the host, of native byte order, or a field of metadata.
struct ListedField {
    nb::object name;   // str; of metadata made when it is asked for
    nb::object owner;  // numpy.ndarray; of metadata none
    std::string_view text;
    const void* data = nullptr;
    DType dtype = DType::f32;
    bool fortran_order = false;
    std::uint64_t items = 0;
    std::vector<std::uint64_t> shape;  // as the core takes it: reversed where fortran_order
    const FieldMetadata* metadata = nullptr;
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

// A numpy array, if it is plain.
std::optional<ListedField> plain_array(nb::handle value) {
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
    ListedField array;
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

// All fields of a place, taken at once.
class FieldList {
   public:
    // The arrays of a dictionary, nested or not; nothing where it holds anything else than plain arrays.
    static std::optional<FieldList> of_arrays(nb::handle container) {
        if (!PyDict_CheckExact(container.ptr())) return std::nullopt;
        const nb::object numpy = nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
        if (!numpy.is_valid()) return std::nullopt;
        FieldList list;
        const nb::object ndarray = numpy.attr("ndarray");
        if (!list.walk(container, nb::object(), ndarray.ptr(), 0)) return std::nullopt;
        std::unordered_set<std::string_view> names;
        names.reserve(list.fields_.size());
        for (const ListedField& field : list.fields_) {
            if (!names.insert(field.text).second) return std::nullopt;
        }
        if (list.fields_.empty()) return std::nullopt;
        return list;
    }

    // The fields of metadata, with their data where it was kept; nothing where Python has to look at one: labels, particles, and
    // elements that must be decoded.
    static std::optional<FieldList> of_metadata(const PyMetadata& metadata, bool has_data) {
        FieldList list;
        list.file_ = metadata.file;
        list.has_data_ = has_data;
        for (std::uint32_t at = 0; at < metadata.file->directory().data_files.size(); ++at)
            list.paths_.push_back(metadata.file->data_path(at));
        const Directory& directory = metadata.file->directory();
        if (directory.fields.empty()) return std::nullopt;
        list.fields_.reserve(directory.fields.size());
        for (const FieldMetadata& own : directory.fields) {
            if (own.name.find('@') != std::string::npos || !own.key.empty()) return std::nullopt;
            if (own.extents.empty() && own.items() != 0 && has_data) return std::nullopt;
            ListedField field;
            field.text = own.name;
            field.dtype = own.dtype;
            field.fortran_order = own.order == ArrayOrder::column_major;
            field.items = own.items();
            field.shape = own.shape;
            field.metadata = &own;
            list.fields_.push_back(std::move(field));
        }
        return list;
    }

    [[nodiscard]] const std::vector<ListedField>& fields() const { return fields_; }
    [[nodiscard]] const std::shared_ptr<MetadataFile>& file() const { return file_; }
    [[nodiscard]] bool has_data() const { return has_data_; }
    [[nodiscard]] const std::string& path(std::uint32_t file) const { return paths_[file]; }  // of data

    [[nodiscard]] HeldArrays held() const {
        HeldArrays held;
        held.arrays.reserve(fields_.size());
        for (const ListedField& field : fields_) {
            PyObject* reference = PyWeakref_NewRef(field.owner.ptr(), nullptr);
            if (reference == nullptr) throw nb::python_error();
            held.arrays.emplace_back(field.name, nb::steal(reference));
        }
        return held;
    }

    [[nodiscard]] nb::dict arrays() const {
        nb::dict all;
        for (const ListedField& field : fields_)
            all[field.name] = field.owner;
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
            fields_.push_back(std::move(*array));
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

    std::vector<ListedField> fields_;
    std::shared_ptr<MetadataFile> file_;
    bool has_data_ = true;
    std::vector<std::string> paths_;
};

// The results of all fields, in the order of the first run.
class ListResults {
   public:
    struct Layout {
        nb::object name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
        Tolerance tolerance;  // that was used
    };

    // Nothing where there are errors: who asked finds them again, one field after another.
    static std::optional<ListResults> of(std::vector<Result<FieldResult>> results,
                                         const std::vector<ListedField>& fields,
                                         std::span<const FieldPair> pairs) {
        ListResults all;
        for (const auto& result : results) {
            if (result) continue;
            if (result.error().code == ErrorCode::interrupted) raise(result.error());
            return std::nullopt;
        }
        all.layouts_.reserve(results.size());
        for (std::size_t at = 0; at < results.size(); ++at) {
            const FieldResult& r = *results[at];
            const ListedField& field = fields[at];
            nb::object name =
                field.name.is_valid() ? field.name : nb::object(file_text(std::string(field.text)));
            all.layouts_.push_back(
                {std::move(name), field.dtype, field.fortran_order, field.shape, pairs[at].rule.tolerance});
            all.bytes_ += field.items * item_bytes(field.dtype);
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

// Whether two fields are compared as they lie: of one type, shape and order, the same part of the same array.
bool are_alike(const ListedField& a, const ListedField& b) {
    if (a.dtype != b.dtype || a.shape != b.shape || a.fortran_order != b.fortran_order) return false;
    if ((a.metadata == nullptr) != (b.metadata == nullptr)) return false;
    return a.metadata == nullptr || (a.metadata->global_shape == b.metadata->global_shape &&
                                     a.metadata->global_offset == b.metadata->global_offset);
}

// Which field of b has the name of each of a, and is like it; nothing where one has none.
std::optional<std::vector<std::size_t>> matched(const std::vector<ListedField>& a,
                                                const std::vector<ListedField>& b) {
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
        if (!are_alike(a[i], b[j])) return std::nullopt;
        found[i] = j;
    }
    return found;
}

// The sources of both lists' elements, as long as the comparison needs them.
class Sources {
   public:
    Sources(std::size_t fields, CacheUse cache) : cache_(cache) { memory_.reserve(fields); }

    // Nothing where the extents are not those of the field.
    std::optional<FieldSide> side(const FieldList& list, std::size_t at) {
        const ListedField& field = list.fields()[at];
        if (field.metadata == nullptr) {
            memory_.emplace_back(field.dtype, field.items, field.data, item_bytes(field.dtype), false);
            return FieldSide{&memory_.back(), nullptr, 0};
        }
        FieldSide side{nullptr, list.file().get(), at};
        if (field.items != 0 && !list.has_data()) return side;
        std::vector<PathExtent> extents;
        for (const Extent& extent : field.metadata->extents)
            extents.push_back({list.path(extent.file), extent.offset, extent.stride, extent.count});
        auto source = FileSource::create(field.dtype, field.metadata->byte_order, field.items,
                                         std::move(extents), cache_);
        if (!source) return std::nullopt;
        files_.push_back(std::move(source).value());
        side.elements = files_.back().get();
        return side;
    }

   private:
    CacheUse cache_;
    std::vector<MemorySource> memory_;  // reserved: addresses stay
    std::vector<std::unique_ptr<FileSource>> files_;
};

std::optional<ListResults> compare_lists(const FieldList& a, const FieldList& b,
                                         const DifferenceRule& floating, const DifferenceRule& others,
                                         bool own_tolerance, bool own_tolerance_of_others, int threads,
                                         std::uint64_t memory, const std::string& io,
                                         const std::string& cache, const std::string& device,
                                         std::vector<int> devices, const std::string& method,
                                         nb::object progress) {
    const auto of_b = matched(a.fields(), b.fields());
    if (!of_b) return std::nullopt;
    const bool direct_storage = io == "gds";
    CompareOptions options;
    options.method = parse_method(method);
    options.stream = stream_options(threads, memory, direct_storage ? "auto" : io, std::move(progress));
    options.cache = parse_cache(cache);
    options.device = parse_device(device, std::move(devices), direct_storage);
    const std::size_t count = a.fields().size();
    Sources sources(count * 2, options.cache);
    std::vector<FieldPair> pairs(count);
    for (std::size_t i = 0; i < count; ++i) {
        const ListedField& field = a.fields()[i];
        const bool is_other = !is_floating(scalar_type(field.dtype));
        const auto side_a = sources.side(a, i);
        const auto side_b = sources.side(b, (*of_b)[i]);
        if (!side_a || !side_b) return std::nullopt;
        pairs[i].a = *side_a;
        pairs[i].b = *side_b;
        pairs[i].rule = is_other ? others : floating;
        if (field.metadata != nullptr && (is_other ? own_tolerance_of_others : own_tolerance)) {
            const Tolerance& own = field.metadata->settings.tolerance;
            const Tolerance& theirs = b.fields()[(*of_b)[i]].metadata->settings.tolerance;
            if (own.atol != theirs.atol || own.rtol != theirs.rtol) return std::nullopt;
            pairs[i].rule.tolerance = own;
        }
        if (field.fortran_order &&
            std::count_if(field.shape.begin(), field.shape.end(), [](std::uint64_t n) { return n > 1; }) > 1)
            pairs[i].columns = field.shape;
    }
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return compare_fields(pairs, options);
    };
    std::vector<Result<FieldResult>> results = run();
    // An interrupt may come when all is done: nobody was stopped by it then.
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return ListResults::of(std::move(results), a.fields(), pairs);
}

}  // namespace

void define_field_lists(nb::module_& m) {
    nb::class_<FieldList>(m, "FieldList", "All fields of a place, taken at once.")
        .def_static("of_arrays", &FieldList::of_arrays, "container"_a.none(),
                    "The dense arrays of native numbers of a dictionary, nested or not. None where it holds "
                    "anything else: see "
                    "runs.containers.")
        .def_static("of_metadata", &FieldList::of_metadata, "metadata"_a, "has_data"_a,
                    "The fields of metadata, and their data. None where Python has to look at one of them.")
        .def("arrays", &FieldList::arrays, nb::sig("def arrays(self) -> dict[str, object]"),
             "The arrays by name.")
        .def("held", &FieldList::held, "Where the arrays are, without keeping them alive.")
        .def("__len__", [](const FieldList& self) { return self.fields().size(); });
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.")
        .def(
            "__deepcopy__", [](nb::object self, nb::handle) { return self; },
            nb::sig("def __deepcopy__(self, memo: object) -> HeldArrays"));
    nb::class_<ListResults> results(m, "ListResults", "What comparing two lists found, field by field.");
    const auto add = [&](const char* name, auto get) {
        results.def(
            name, [get](const ListResults& self, std::size_t at) { return get(self.layout(at)); }, "at"_a);
    };
    using L = ListResults::Layout;
    results.def("__len__", &ListResults::size)
        .def("result", &ListResults::at, "at"_a)
        .def(
            "name", [](const ListResults& self, std::size_t at) { return self.layout(at).name; }, "at"_a,
            nb::sig("def name(self, at: int) -> str"));
    add("dtype", [](const L& l) { return std::string(dtype_name(l.dtype)); });
    add("shape", [](const L& l) { return shape_tuple(l.shape); });
    add("fortran_order", [](const L& l) { return l.fortran_order; });
    add("atol", [](const L& l) { return l.tolerance.atol; });
    add("rtol", [](const L& l) { return l.tolerance.rtol; });
    results.def_prop_ro("different", &ListResults::different, "Numbers of the fields that differ, ascending.")
        .def_prop_ro("bytes", &ListResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ListResults::bytes_read);
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
    m.def("compare_lists", &compare_lists, "a"_a, "b"_a, "floating"_a, "others"_a, "own_tolerance"_a,
          "own_tolerance_of_others"_a, "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto",
          "cache"_a = "auto", "device"_a = "auto", "devices"_a = std::vector<int>(), "method"_a = "auto",
          "progress"_a = nb::none(),
          "own_tolerance: that of the metadata counts, for floating-point numbers and for others. None where "
          "the lists do not "
          "match in names, types and shapes, or a field cannot be compared: Python then says why.");
}

}  // namespace twinrun
