#include "dlpack.hpp"

#include <cstdint>

namespace nb = nanobind;

namespace twinrun {

namespace {

// The layout of DLPack 1.x (dlpack.h): an ABI, which new versions of the same major number only add to.
struct Tensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device;
    std::int32_t dimensions;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;  // may be null: dense
    std::uint64_t byte_offset;
};
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

nb::dict dlpack_facts(nb::handle capsule) {
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
    nb::list shape;
    nb::list strides;
    for (std::int32_t i = 0; i < tensor->dimensions; ++i) {
        if (tensor->shape[i] < 0) throw nb::buffer_error("a negative size in a DLPack array");
        shape.append(tensor->shape[i]);
        if (tensor->strides != nullptr) strides.append(tensor->strides[i]);
    }
    nb::dict d;
    d["device_type"] = tensor->device_type;
    d["device"] = tensor->device;
    d["code"] = tensor->code;
    d["bits"] = tensor->bits;
    d["lanes"] = tensor->lanes;
    d["shape"] = shape;
    d["strides"] = tensor->strides == nullptr ? nb::object(nb::none()) : nb::object(strides);
    d["address"] = tensor->data == nullptr
                       ? std::uintptr_t{0}
                       : reinterpret_cast<std::uintptr_t>(tensor->data) + tensor->byte_offset;
    d["read_only"] = read_only;
    return d;
}

}  // namespace twinrun
