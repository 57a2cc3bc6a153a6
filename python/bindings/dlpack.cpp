#include "dlpack.hpp"

#include <cstdint>

namespace nb = nanobind;

namespace twinrun {

namespace {

using dlpack::Tensor;

struct Managed {
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};
struct ManagedVersioned {
    std::uint32_t major;
    std::uint32_t minor;
    void* context;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};
constexpr std::uint64_t kReadOnly = 1;

}  // namespace

DlpackFacts dlpack_facts(nb::handle capsule) {
    const Tensor* tensor = nullptr;
    bool read_only = false;
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        const auto* managed =
            static_cast<const ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        if (managed->major != 1) throw nb::buffer_error("DLPack of another version than 1");
        tensor = &managed->tensor;
        read_only = (managed->flags & kReadOnly) != 0;
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
        tensor = &static_cast<const Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
    } else {
        throw nb::buffer_error("__dlpack__ gave no capsule of DLPack");
    }
    if (tensor->dimensions < 0 || (tensor->dimensions > 0 && tensor->shape == nullptr)) {
        throw nb::buffer_error("a DLPack array without a shape");
    }
    DlpackFacts facts;
    facts.device_type = tensor->device_type;
    facts.device = tensor->device;
    facts.code = tensor->code;
    facts.bits = tensor->bits;
    facts.lanes = tensor->lanes;
    for (std::int32_t i = 0; i < tensor->dimensions; ++i) {
        if (tensor->shape[i] < 0) throw nb::buffer_error("a negative size in a DLPack array");
        facts.shape.push_back(tensor->shape[i]);
    }
    if (tensor->strides != nullptr)
        facts.strides.emplace(tensor->strides, tensor->strides + facts.shape.size());
    if (tensor->data != nullptr)
        facts.address = reinterpret_cast<std::uintptr_t>(tensor->data) + tensor->byte_offset;
    facts.read_only = read_only;
    return facts;
}

const dlpack::Exchange* dlpack_exchange(nb::handle type) {
    constexpr const char* kName = "dlpack_exchange_api";
    const nb::object capsule = nb::steal(PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__"));
    PyErr_Clear();
    if (!capsule.is_valid() || PyCapsule_IsValid(capsule.ptr(), kName) == 0) return nullptr;
    const auto* offered = static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), kName));
    while (offered != nullptr && offered->major != 1)
        offered = offered->previous;
    return offered == nullptr || offered->tensor_of == nullptr ? nullptr : offered;
}

}  // namespace twinrun
