#include "listed_arrays.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "base/checked.hpp"
#include "shared.hpp"

namespace nb = nanobind;

namespace twinrun {

namespace {

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

// What is not there, or raises, is an invalid object: Python then looks at the array itself.
nb::object found(PyObject* what) {
    if (what == nullptr) PyErr_Clear();
    return nb::steal(what);
}
nb::object attribute(nb::handle of, const char* name) {
    return found(PyObject_GetAttrString(of.ptr(), name));
}
nb::object attribute(nb::handle of, const nb::object& name) {
    return found(PyObject_GetAttr(of.ptr(), name.ptr()));
}
// Of a method without arguments, without an object for the bound method.
nb::object called(nb::handle of, const nb::object& method) {
    PyObject* arguments[] = {nullptr, of.ptr()};
    return found(
        PyObject_VectorcallMethod(method.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
// The same of a method as its type has it, which needs no look-up.
nb::object called_by(const nb::object& method, nb::handle of) {
    if (!method.is_valid()) return {};
    PyObject* arguments[] = {nullptr, of.ptr()};
    return found(
        PyObject_Vectorcall(method.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
bool is_true(const nb::object& value) { return value.ptr() == Py_True; }

// A tuple of integers that are not negative.
std::optional<std::vector<std::uint64_t>> integers(const nb::object& tuple) {
    if (!tuple.is_valid() || PyTuple_Check(tuple.ptr()) == 0) return std::nullopt;
    std::vector<std::uint64_t> all(static_cast<std::size_t>(PyTuple_Size(tuple.ptr())));
    for (std::size_t i = 0; i < all.size(); ++i) {
        const long long number = PyLong_AsLongLong(PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(i)));
        if (number < 0) {
            PyErr_Clear();
            return std::nullopt;
        }
        all[i] = static_cast<std::uint64_t>(number);
    }
    return all;
}

// Whether these strides, in items, are those of a row-major array without gaps.
template <typename Stride>
bool is_contiguous(const Sizes& shape, const Stride* strides) {
    std::uint64_t expected = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        if (shape[i] != 1 && static_cast<std::uint64_t>(strides[i]) != expected) return false;
        expected *= shape[i];
    }
    return true;
}

// Of an array that is not row-major without gaps: column by column without gaps, or strides in
// bytes.
bool take_strides(const std::vector<std::uint64_t>& strides, TakenField& field) {
    Sizes backwards = field.shape;
    std::reverse(backwards.begin(), backwards.end());
    const std::vector<std::uint64_t> strides_backwards(strides.rbegin(), strides.rend());
    if (field.shape.size() > 1 && is_contiguous(backwards, strides_backwards.data())) {
        field.shape = backwards;
        field.fortran_order = true;
        return true;
    }
    for (const std::uint64_t stride : strides) {
        const auto bytes = checked_multiply(stride, item_bytes(field.dtype));
        if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max()) return false;
        field.strides.push_back(static_cast<std::int64_t>(*bytes));
    }
    return true;
}

// The core's type of a tensor of DLPack (dlpack.h: DLDataTypeCode).
std::optional<DType> dtype_of_dlpack(const dlpack::Tensor& tensor) {
    if (tensor.lanes != 1) return std::nullopt;
    switch (tensor.code << 8 | tensor.bits) {
        case 0 << 8 | 8: return DType::i8;
        case 0 << 8 | 16: return DType::i16;
        case 0 << 8 | 32: return DType::i32;
        case 0 << 8 | 64: return DType::i64;
        case 1 << 8 | 8: return DType::u8;
        case 1 << 8 | 16: return DType::u16;
        case 1 << 8 | 32: return DType::u32;
        case 1 << 8 | 64: return DType::u64;
        case 2 << 8 | 16: return DType::f16;
        case 2 << 8 | 32: return DType::f32;
        case 2 << 8 | 64: return DType::f64;
        case 4 << 8 | 16: return DType::bf16;
        case 5 << 8 | 64: return DType::c64;
        case 5 << 8 | 128: return DType::c128;
        case 6 << 8 | 8: return DType::boolean;
        default: return std::nullopt;
    }
}

// The beginning of an object of PyTorch.
struct TensorObject {
    PyObject of_python;
    const char* words[2];
};

std::size_t bytes_of_instance(const nb::object& type) {
    const nb::object bytes = attribute(type, "__basicsize__");
    const std::size_t number = bytes.is_valid() ? PyLong_AsSize_t(bytes.ptr()) : 0;
    if (PyErr_Occurred() == nullptr) return number;
    PyErr_Clear();
    return 0;
}

constexpr std::pair<const char*, DType> kTensorTypes[] = {
    {"float32", DType::f32},  {"bfloat16", DType::bf16}, {"float16", DType::f16},    {"float64", DType::f64},
    {"int64", DType::i64},    {"int32", DType::i32},     {"int16", DType::i16},      {"int8", DType::i8},
    {"uint8", DType::u8},     {"uint16", DType::u16},    {"uint32", DType::u32},     {"uint64", DType::u64},
    {"bool", DType::boolean}, {"complex64", DType::c64}, {"complex128", DType::c128}};

}  // namespace

struct ArrayTaker::Libraries {
    // Of attributes and methods of tensors.
    struct Names {
        nb::object dtype, layout, shape, is_contiguous, stride, is_cuda, is_cpu, get_device, data_ptr;
    };
    Names names;
    nb::object numpy, torch;  // modules; invalid: not imported
    nb::object ndarray, tensor, parameter, strided;
    const dlpack::Exchange* exchange = nullptr;  // of tensors
    // Methods of tensors; invalid: there is none.
    nb::object is_neg, is_conj, has_names;
    std::vector<std::pair<nb::object, DType>> dtypes;  // of PyTorch
    bool has_words = false;                            // whether tensors are TensorObjects

    Libraries(nb::object own_numpy, nb::object own_torch)
        : numpy(std::move(own_numpy)), torch(std::move(own_torch)) {
        if (numpy.is_valid()) ndarray = attribute(numpy, "ndarray");
        if (!torch.is_valid()) return;
        strided = attribute(torch, "strided");
        tensor = attribute(torch, "Tensor");
        if (const nb::object nn = attribute(torch, "nn"); nn.is_valid())
            parameter = attribute(nn, "Parameter");
        for (const auto& [name, dtype] : kTensorTypes) {
            if (nb::object type = attribute(torch, name); type.is_valid()) dtypes.emplace_back(type, dtype);
        }
        if (!strided.is_valid() || !tensor.is_valid()) {
            tensor = {};
            return;
        }
        exchange = dlpack_exchange(tensor);
        has_words = bytes_of_instance(tensor) >= sizeof(TensorObject);
        has_names = attribute(tensor, "has_names");
        is_neg = attribute(tensor, "is_neg");
        is_conj = attribute(tensor, "is_conj");
        for (const auto& [name, text] : {std::pair{&Names::dtype, "dtype"},
                                         {&Names::layout, "layout"},
                                         {&Names::shape, "shape"},
                                         {&Names::is_contiguous, "is_contiguous"},
                                         {&Names::stride, "stride"},
                                         {&Names::is_cuda, "is_cuda"},
                                         {&Names::is_cpu, "is_cpu"},
                                         {&Names::get_device, "get_device"},
                                         {&Names::data_ptr, "data_ptr"}})
            names.*name = nb::steal(PyUnicode_InternFromString(text));
    }
    // Whether all was there: a module that is being imported may lack some of it.
    [[nodiscard]] bool is_whole() const {
        return (!numpy.is_valid() || ndarray.is_valid()) &&
               (!torch.is_valid() || (tensor.is_valid() && parameter.is_valid()));
    }
};

// Looking all of it up takes 3 to 8 us, as long as everything else that one small array costs: it
// is kept as long as the modules are the same. Callers hold the GIL.
std::shared_ptr<const ArrayTaker::Libraries> ArrayTaker::libraries() {
    const auto imported = [](const nb::str& name) {
        nb::object module = nb::steal(PyImport_GetModule(name.ptr()));
        PyErr_Clear();
        return module;
    };
    // Never destroyed: Python may be gone before.
    static const auto& of_numpy = *new nb::str("numpy");
    static const auto& of_torch = *new nb::str("torch");
    static auto& kept = *new std::shared_ptr<const Libraries>;
    nb::object numpy = imported(of_numpy);
    nb::object torch = imported(of_torch);
    if (kept != nullptr && kept->numpy.ptr() == numpy.ptr() && kept->torch.ptr() == torch.ptr()) return kept;
    auto made = std::make_shared<const Libraries>(std::move(numpy), std::move(torch));
    if (made->is_whole()) kept = made;
    return made;
}

ArrayTaker::ArrayTaker(bool on_devices) : of_(libraries()), on_devices_(on_devices) {}

bool ArrayTaker::knows_any() const { return of_->ndarray.is_valid() || of_->tensor.is_valid(); }

bool ArrayTaker::take(nb::handle value, TakenField& field) {
    return take_unasked(value, field) && is_plain(value, field.dtype);
}

bool ArrayTaker::is_array(nb::handle value) const {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value.ptr()));
    return is_tensor(value) || (of_->ndarray.is_valid() && type == of_->ndarray.ptr());
}

bool ArrayTaker::take_unasked(nb::handle value, TakenField& field) {
    if (is_tensor(value)) return tensor(value, field);
    return is_array(value) && numpy_array(value, field);
}

bool ArrayTaker::is_tensor(nb::handle value) const {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value.ptr()));
    return of_->tensor.is_valid() && (type == of_->tensor.ptr() || type == of_->parameter.ptr());
}

// An object of PyTorch begins with the address of its C++ object, in the first words behind those
// of Python. Other words may be anything: to prefetch an address that is none does nothing.
void ArrayTaker::prefetch(nb::handle value) const {
    if (!of_->has_words || !is_tensor(value)) return;
    const auto* object = reinterpret_cast<const TensorObject*>(value.ptr());
    constexpr std::size_t kLine = 64;
    for (const char* word : object->words) {
        for (std::size_t line = 0; line < 3; ++line)
            __builtin_prefetch(word + line * kLine);
    }
}

bool ArrayTaker::numpy_array(nb::handle value, TakenField& array) const {
    Py_buffer view;
    if (PyObject_GetBuffer(value.ptr(), &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        return false;
    }
    struct Release {
        Py_buffer* view;
        ~Release() { PyBuffer_Release(view); }
    } const release{&view};
    const auto dtype = dtype_of_format(view.format, view.itemsize);
    if (!dtype || item_bytes(*dtype) != static_cast<std::size_t>(view.itemsize)) return false;
    if (PyBuffer_IsContiguous(&view, 'C') == 0) {
        if (view.ndim < 2 || PyBuffer_IsContiguous(&view, 'F') == 0) return false;
        array.fortran_order = true;
    }
    array.shape.assign(view.shape, view.shape + view.ndim);
    if (array.fortran_order) std::reverse(array.shape.begin(), array.shape.end());
    array.data = view.buf;
    array.dtype = *dtype;
    array.items = static_cast<std::uint64_t>(view.len) / static_cast<std::uint64_t>(view.itemsize);
    return true;
}

bool ArrayTaker::tensor(nb::handle value, TakenField& field) {
    const bool taken =
        of_->exchange == nullptr ? tensor_by_attributes(value, field) : tensor_by_exchange(value, field);
    return taken && !is_conjugated(value, field.dtype);
}

bool ArrayTaker::is_conjugated(nb::handle value, DType dtype) const {
    return scalars_per_item(dtype) == 2 && is_true(called_by(of_->is_conj, value));
}

bool ArrayTaker::is_plain(nb::handle value, DType dtype) const {
    if (!is_tensor(value)) return true;
    return !is_true(called_by(of_->is_neg, value)) && !is_conjugated(value, dtype) &&
           !(of_->has_names.is_valid() && is_true(called_by(of_->has_names, value)));
}

bool ArrayTaker::tensor_by_attributes(nb::handle value, TakenField& field) {
    const nb::object dtype = attribute(value, of_->names.dtype);
    const auto known = std::find_if(of_->dtypes.begin(), of_->dtypes.end(),
                                    [&](const auto& one) { return one.first.ptr() == dtype.ptr(); });
    if (known == of_->dtypes.end()) return false;
    field.dtype = known->second;
    // A nested tensor has no shape.
    if (attribute(value, of_->names.layout).ptr() != of_->strided.ptr()) return false;
    return tensor_layout(value, field) && tensor_memory(value, field);
}

// Shape, order and strides.
bool ArrayTaker::tensor_layout(nb::handle value, TakenField& field) const {
    auto shape = integers(attribute(value, of_->names.shape));
    if (!shape) return false;
    const auto items = checked_product(*shape);
    if (!items) return false;
    field.items = *items;
    field.shape = *shape;
    if (field.items == 0 || is_true(called(value, of_->names.is_contiguous))) return true;
    const auto strides = integers(called(value, of_->names.stride));
    return strides && strides->size() == field.shape.size() && take_strides(*strides, field);
}

// Address, and where that is.
bool ArrayTaker::tensor_memory(nb::handle value, TakenField& field) {
    if (is_true(attribute(value, of_->names.is_cuda))) {
        const nb::object number = called(value, of_->names.get_device);
        if (!number.is_valid()) return false;
        const auto device = static_cast<int>(PyLong_AsLong(number.ptr()));
        PyErr_Clear();
        if (!on_device(device, field)) return false;
    } else if (!is_true(attribute(value, of_->names.is_cpu)) || !field.strides.empty()) {
        return false;
    }
    const nb::object address = called(value, of_->names.data_ptr);
    if (!address.is_valid()) return false;
    field.data = PyLong_AsVoidPtr(address.ptr());
    PyErr_Clear();
    return field.data != nullptr || field.items == 0;
}

bool ArrayTaker::on_device(int device, TakenField& field) {
    if (!on_devices_ || device < 0) return false;
    const auto stream = stream_of(device);
    if (!stream) return false;
    field.device = device;
    field.stream = *stream;
    return true;
}

bool ArrayTaker::tensor_by_exchange(nb::handle value, TakenField& field) {
    dlpack::Tensor tensor;
    if (of_->exchange->tensor_of(value.ptr(), &tensor) != 0) {  // such as a sparse one
        PyErr_Clear();
        return false;
    }
    const auto dtype = dtype_of_dlpack(tensor);
    if (!dtype || tensor.dimensions < 0) return false;
    field.dtype = *dtype;
    field.items = 1;
    const auto dimensions = static_cast<std::size_t>(tensor.dimensions);
    field.shape.resize(dimensions);
    for (std::size_t i = 0; i < dimensions; ++i) {
        if (tensor.shape[i] < 0) return false;
        field.shape[i] = static_cast<std::uint64_t>(tensor.shape[i]);
    }
    const auto items = checked_product(field.shape);
    if (!items) return false;
    field.items = *items;
    if (field.items != 0 && tensor.strides != nullptr && !is_contiguous(field.shape, tensor.strides)) {
        std::vector<std::uint64_t> strides(dimensions);
        for (std::size_t i = 0; i < dimensions; ++i) {
            if (tensor.strides[i] < 0) return false;
            strides[i] = static_cast<std::uint64_t>(tensor.strides[i]);
        }
        if (!take_strides(strides, field)) return false;
    }
    if (tensor.device_type == dlpack::kCuda) {
        if (!on_device(tensor.device, field)) return false;
    } else if (tensor.device_type != dlpack::kCpu || !field.strides.empty()) {
        return false;
    }
    if (field.items == 0) return true;
    if (tensor.data == nullptr) return false;
    field.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
    return true;
}

// PyTorch's current stream of a device; nothing where the device cannot be used.
std::optional<StreamHandle> ArrayTaker::stream_of(int device) {
    const auto [known, is_new] = streams_.try_emplace(device);
    if (!is_new || !device_problem(device).empty()) return known->second;
    if (of_->exchange != nullptr && of_->exchange->current_stream != nullptr) {
        void* stream = nullptr;
        if (of_->exchange->current_stream(dlpack::kCuda, device, &stream) == 0) {
            known->second = given_stream(device, reinterpret_cast<std::uintptr_t>(stream));
            return known->second;
        }
        PyErr_Clear();
    }
    const nb::object cuda = attribute(of_->torch, "cuda");
    if (!cuda.is_valid()) return std::nullopt;
    const nb::object current = attribute(cuda, "current_stream");
    if (!current.is_valid()) return std::nullopt;
    const nb::object stream =
        nb::steal(PyObject_CallFunctionObjArgs(current.ptr(), nb::int_(device).ptr(), nullptr));
    const nb::object handle = stream.is_valid() ? attribute(stream, "cuda_stream") : nb::object();
    PyErr_Clear();
    if (!handle.is_valid()) return std::nullopt;
    const auto number = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLong(handle.ptr()));
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    known->second = given_stream(device, number);
    return known->second;
}

}  // namespace twinrun
