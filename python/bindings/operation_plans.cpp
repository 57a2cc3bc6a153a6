#include "operation_plans.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace twinrun {

namespace {

// Types of PyTorch that operations take. Those in `single` have one object for each value.
struct TypesOfTorch {
    nb::object module, tensor, parameter, device;
    std::vector<nb::object> single;

    explicit TypesOfTorch(nb::object own) : module(std::move(own)) {
        tensor = named("Tensor");
        device = named("device");
        for (const char* name : {"dtype", "layout", "memory_format"})
            single.push_back(named(name));
        if (const nb::object nn = named("nn"); nn.is_valid()) {
            parameter = nb::steal(PyObject_GetAttrString(nn.ptr(), "Parameter"));
            PyErr_Clear();
        }
    }
    [[nodiscard]] nb::object named(const char* name) const {
        nb::object found = nb::steal(PyObject_GetAttrString(module.ptr(), name));
        PyErr_Clear();
        return found;
    }
};

// Null where PyTorch is not imported. Callers hold the GIL.
const TypesOfTorch* types_of_torch() {
    // Never destroyed: Python may be gone before.
    static const TypesOfTorch* known = nullptr;
    if (known == nullptr) {
        nb::object module = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
        PyErr_Clear();
        if (!module.is_valid()) return nullptr;
        known = new TypesOfTorch(std::move(module));
    }
    return known;
}

// Writes the key of a call, and gathers its tensors.
class CallReader {
   public:
    static constexpr std::size_t kUsualKey = 64;
    static constexpr std::size_t kUsualTensors = 8;

    CallReader(const TypesOfTorch& types, std::string& key, std::vector<nb::object>& named)
        : types_(types), key_(key), named_(named) {
        key_.reserve(kUsualKey);
        tensors_.reserve(kUsualTensors);
    }

    // An argument: a value, or a list of values. False: a type that a key cannot tell.
    bool argument(nb::handle value) {
        return is_list(value) ? each_of(value, [this](nb::handle one) { return taken(one); }) : taken(value);
    }
    // What came out: a tensor, None, or a list of these.
    bool result(nb::handle value) {
        return is_list(value) ? each_of(value, [this](nb::handle one) { return given(one); }) : given(value);
    }
    bool name(nb::handle text) { return PyUnicode_CheckExact(text.ptr()) != 0 && add_text('k', text); }
    void mark(char mark) { key_.push_back(mark); }
    [[nodiscard]] const std::vector<nb::handle>& tensors() const { return tensors_; }

   private:
    static bool is_list(nb::handle value) {
        return PyTuple_CheckExact(value.ptr()) != 0 || PyList_CheckExact(value.ptr()) != 0;
    }
    template <typename Take>
    bool each_of(nb::handle list, Take take) {
        const bool is_tuple = PyTuple_CheckExact(list.ptr()) != 0;
        const Py_ssize_t count = is_tuple ? PyTuple_Size(list.ptr()) : PyList_Size(list.ptr());
        add(is_tuple ? '(' : '[', count);
        for (Py_ssize_t at = 0; at < count; ++at) {
            PyObject* const one = is_tuple ? PyTuple_GetItem(list.ptr(), at) : PyList_GetItem(list.ptr(), at);
            if (!take(nb::handle(one))) return false;
        }
        return true;
    }
    bool given(nb::handle value) {
        if (value.is_none()) return add('n');
        return is_of(value, types_.tensor) && take_tensor('T', value);
    }
    bool taken(nb::handle value) {
        PyObject* const object = value.ptr();
        if (is_of(value, types_.tensor)) return take_tensor('T', value);
        if (is_of(value, types_.parameter)) return take_tensor('P', value);
        if (value.is_none()) return add('n');
        if (object == Py_True) return add('t');
        if (object == Py_False) return add('f');
        if (PyLong_CheckExact(object) != 0) {
            int overflow = 0;
            const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
            return overflow == 0 && add('i', number);
        }
        if (PyFloat_CheckExact(object) != 0) return add('d', PyFloat_AsDouble(object));
        if (PyComplex_CheckExact(object) != 0)
            return add('c', PyComplex_RealAsDouble(object)) && add('c', PyComplex_ImagAsDouble(object));
        if (PyUnicode_CheckExact(object) != 0) return add_text('s', value);
        for (const nb::object& type : types_.single) {
            if (!is_of(value, type)) continue;
            named_.push_back(nb::borrow(value));  // so that no other one gets its address
            return add('o', object);
        }
        if (!is_of(value, types_.device)) return false;
        const nb::object text = nb::steal(PyObject_Str(object));
        if (text.is_valid()) return add_text('v', text);
        PyErr_Clear();
        return false;
    }
    static bool is_of(nb::handle value, const nb::object& type) {
        return type.is_valid() && reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) == type.ptr();
    }
    bool take_tensor(char mark, nb::handle tensor) {
        tensors_.push_back(tensor);
        return add(mark);
    }
    bool add(char mark) {
        key_.push_back(mark);
        return true;
    }
    template <typename Value>
    bool add(char mark, Value value) {
        char bytes[sizeof value];
        std::memcpy(bytes, &value, sizeof value);
        key_.push_back(mark);
        key_.append(bytes, sizeof value);
        return true;
    }
    bool add_text(char mark, nb::handle text) {
        Py_ssize_t length = 0;
        const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
        if (bytes == nullptr) {
            PyErr_Clear();
            return false;
        }
        add(mark, length);
        key_.append(bytes, static_cast<std::size_t>(length));
        return true;
    }

    const TypesOfTorch& types_;
    std::string& key_;
    std::vector<nb::object>& named_;
    std::vector<nb::handle> tensors_;
};

}  // namespace

std::unique_ptr<OperationCall> OperationPlans::call(const nb::tuple& args, const nb::dict& named,
                                                    nb::handle result) const {
    const TypesOfTorch* const types = types_of_torch();
    if (types == nullptr) return nullptr;
    auto made = std::make_unique<OperationCall>();
    CallReader reader(*types, made->key_, made->named_);
    for (const nb::handle value : args) {
        if (!reader.argument(value)) return nullptr;
    }
    if (named.size() != 0) {
        for (const auto& [name, value] : named) {
            if (!reader.name(name) || !reader.argument(value)) return nullptr;
        }
    }
    reader.mark('>');
    if (!reader.result(result)) return nullptr;
    ArrayTaker taker(true);
    made->reserve(reader.tensors().size());
    for (const nb::handle tensor : reader.tensors())
        made->add(taker, tensor);
    if (const auto known = plans_.find(made->key_); known != plans_.end()) {
        made->known_ = known->second.known;
        made->key_ = std::string();  // thousands of calls wait for the end of a step
        made->named_.clear();
    }
    return made;
}

void OperationPlans::keep(OperationCall& call, nb::object known) {
    call.known_ = known;
    if (plans_.size() >= kMost) {
        const auto old = std::exchange(plans_, {});  // what it releases may run code of Python
    }
    plans_.insert_or_assign(std::exchange(call.key_, {}),
                            Plan{std::move(known), std::exchange(call.named_, {})});
}

}  // namespace twinrun
