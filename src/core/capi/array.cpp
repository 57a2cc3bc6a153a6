#include "capi/array.hpp"

#include <algorithm>
#include <cstddef>

#include "base/checked.hpp"
#include "base/sized.hpp"
#include "capi/place.hpp"
#include "capi/status.hpp"

namespace twinrun::capi {

namespace {

static_assert(TWR_F16 == static_cast<int>(DType::f16));
static_assert(TWR_BF16 == static_cast<int>(DType::bf16));
static_assert(TWR_F32 == static_cast<int>(DType::f32));
static_assert(TWR_F64 == static_cast<int>(DType::f64));
static_assert(TWR_I8 == static_cast<int>(DType::i8));
static_assert(TWR_I16 == static_cast<int>(DType::i16));
static_assert(TWR_I32 == static_cast<int>(DType::i32));
static_assert(TWR_I64 == static_cast<int>(DType::i64));
static_assert(TWR_U8 == static_cast<int>(DType::u8));
static_assert(TWR_U16 == static_cast<int>(DType::u16));
static_assert(TWR_U32 == static_cast<int>(DType::u32));
static_assert(TWR_U64 == static_cast<int>(DType::u64));
static_assert(TWR_BOOL == static_cast<int>(DType::boolean));
static_assert(TWR_C64 == static_cast<int>(DType::c64));
static_assert(TWR_C128 == static_cast<int>(DType::c128));
static_assert(TWR_ROW_MAJOR == static_cast<int>(ArrayOrder::row_major));
static_assert(TWR_COLUMN_MAJOR == static_cast<int>(ArrayOrder::column_major));
static_assert(TWR_HOST == kHostMemory);

Error bad_array(std::string message) { return Error{ErrorCode::invalid_argument, std::move(message)}; }

template <class T>
std::vector<T> copied(const T* values, std::size_t count) {
    return values == nullptr ? std::vector<T>() : std::vector<T>(values, values + count);
}

// Bytes from item to item of a dense array of this order.
std::vector<std::int64_t> dense_strides(const CapturedField& field) {
    std::vector<std::int64_t> strides(field.shape.size());
    std::uint64_t next = item_bytes(field.dtype);
    for (std::size_t i = 0; i < strides.size(); ++i) {
        const std::size_t d = field.order == ArrayOrder::column_major ? i : strides.size() - 1 - i;
        strides[d] = static_cast<std::int64_t>(next);
        next *= field.shape[d];
    }
    return strides;
}

Result<int> device_of(const twr_array& array, std::uint64_t items) {
    if (array.device < TWR_DETECT_DEVICE) {
        return bad_array("device " + std::to_string(array.device) +
                         " is neither a device's number nor TWR_HOST, TWR_DETECT or TWR_DETECT_DEVICE");
    }
    if (array.device == TWR_HOST || items == 0) return kHostMemory;
    if (array.device == TWR_DETECT) return place_of(array.data);
    // The caller says that it lies on a device: then there must be one.
    if (device_runtime() == nullptr) {
        return Error{ErrorCode::unsupported,
                     "it lies on a device, which cannot be used: " + probe_devices().reason};
    }
    if (array.device >= 0) return array.device;
    int device = kHostMemory;
    TWR_CHECK(to_result(device_runtime()->place_of(array.data, &device)));
    if (device == kHostMemory) return bad_array("it does not lie on a device, as TWR_DETECT_DEVICE says");
    return device;
}

Result<CapturedField> field_of(const twr_array& array) {
    const auto dtype = array.dtype < 0 || array.dtype > 255
                           ? std::nullopt
                           : dtype_from_number(static_cast<std::uint8_t>(array.dtype));
    if (!dtype) return bad_array("dtype " + std::to_string(array.dtype) + " is not a twr_dtype");
    if (array.order != TWR_ROW_MAJOR && array.order != TWR_COLUMN_MAJOR) {
        return bad_array("order " + std::to_string(array.order) + " is not a twr_order");
    }
    if (array.dimensions < 0 || static_cast<std::size_t>(array.dimensions) > kMostDimensions) {
        return bad_array(std::to_string(array.dimensions) + " dimensions: 0 to " +
                         std::to_string(kMostDimensions) + " can be");
    }
    const auto dimensions = static_cast<std::size_t>(array.dimensions);
    if (dimensions > 0 && array.shape == nullptr) return bad_array("shape is NULL");
    if ((array.global_shape == nullptr) != (array.global_offset == nullptr)) {
        return bad_array(std::string(array.global_shape == nullptr ? "global_shape" : "global_offset") +
                         " is NULL: give both or neither");
    }
    if (array.atol < 0 && array.rtol != 0)
        return bad_array("rtol without atol: set atol to 0 for rtol alone");

    CapturedField field;
    field.name = array.name;
    field.dtype = *dtype;
    // One dimension has one order: C's and Fortran's vectors are to compare.
    if (array.dimensions > 1) field.order = static_cast<ArrayOrder>(array.order);
    field.shape = copied(array.shape, dimensions);
    const auto items = checked_product(field.shape);
    if (!items || !checked_multiply(*items, item_bytes(*dtype)))
        return bad_array("its shape has more items than can be");
    if (*items > 0 && array.data == nullptr) return bad_array("data is NULL");
    field.data = array.data;
    field.strides = copied(array.strides, dimensions);
    if (field.strides == dense_strides(field)) field.strides.clear();  // no copy item by item
    // a NaN is refused with the tolerance
    field.own_tolerance = !(array.atol < 0);
    if (field.own_tolerance) field.tolerance = {array.atol, array.rtol};
    field.global_shape = copied(array.global_shape, dimensions);
    field.global_offset = copied(array.global_offset, dimensions);
    for (std::size_t d = 0; d < field.global_shape.size(); ++d) {
        if (field.global_offset[d] > field.global_shape[d] ||
            field.shape[d] > field.global_shape[d] - field.global_offset[d]) {
            return bad_array("it reaches beyond global_shape in dimension " + std::to_string(d));
        }
    }
    if (array.ids != nullptr) field.ids = array.ids;

    TWR_TRY(const int device, device_of(array, *items));
    if (device == kHostMemory) return field;
    DeviceArray on_device;
    on_device.device = device;
    on_device.data = array.data;
    on_device.dtype = *dtype;
    on_device.shape = field.shape;
    on_device.strides = field.strides;
    on_device.stream = array.stream;
    if (field.order == ArrayOrder::column_major) {
        // Device arrays are read in row-major order: that of the transposed array.
        std::reverse(on_device.shape.begin(), on_device.shape.end());
        std::reverse(on_device.strides.begin(), on_device.strides.end());
    }
    field.device = std::move(on_device);
    return field;
}

}  // namespace

Result<CapturedField> captured_field(const twr_array* array) {
    TWR_CHECK(given(array, "array"));
    constexpr twr_array defaults = TWR_ARRAY_INIT;
    TWR_TRY(const twr_array known, known_part(array, defaults, offsetof(twr_array, strides), "twr_array"));
    TWR_CHECK(given(known.name, "name"));
    if (*known.name == '\0') return bad_array("name is empty");
    Result<CapturedField> field = field_of(known);
    if (!field) return std::move(field).error().at(std::string("array '") + known.name + "'");
    return field;
}

}  // namespace twinrun::capi
