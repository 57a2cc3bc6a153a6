// DLPack: where an array of another library lies.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace twinrun {

namespace dlpack {

// The layout of DLPack 1.x (dlpack.h): an ABI, which new versions of the same major number only add
// to.
struct Tensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device;
    std::int32_t dimensions;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; may be null: dense
    std::uint64_t byte_offset;
};
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;

// What a type of arrays offers to C (DLPack 1.3: the C exchange API). It stays as long as the
// process.
struct Exchange {
    std::uint32_t major;
    std::uint32_t minor;
    const Exchange* previous;  // of an older major number; may be null
    void* allocator;
    void* from_object;
    void* to_object;
    // Where an object lies, as long as nobody changes it: 0, or -1 and an exception is set. May be
    // null.
    int (*tensor_of)(void* object, Tensor* tensor);
    // The stream that the library works in on a device: 0, or -1 and an exception is set. May be
    // null.
    int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

}  // namespace dlpack

struct DlpackFacts {
    std::int32_t device_type = 0;
    std::int32_t device = 0;
    std::uint8_t code = 0;
    std::uint8_t bits = 0;
    std::uint16_t lanes = 0;
    std::vector<std::int64_t> shape;
    std::optional<std::vector<std::int64_t>> strides;  // in elements; none: dense
    std::uintptr_t address = 0;
    bool read_only = false;
};
// The capsule is not consumed: its memory stays as long as it does. Raises BufferError for what is
// no capsule of DLPack's, or a newer one.
DlpackFacts dlpack_facts(nanobind::handle capsule);

// What a type offers, with a function tensor_of; null where it offers nothing that this version
// knows.
const dlpack::Exchange* dlpack_exchange(nanobind::handle type);

}  // namespace twinrun
