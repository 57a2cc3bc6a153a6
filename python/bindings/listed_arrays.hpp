// Arrays of the caller as fields of a list: taken from what their packages say of them, without a
// call of Python's code.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "dlpack.hpp"
#include "element/dtype.hpp"
#include "engine/listed_fields.hpp"

namespace twinrun {

// A field of a list, with what Python has of it.
struct TakenField : ListedField {
    nanobind::object name;   // str; of metadata made when it is asked for
    nanobind::object owner;  // the array, or the number; of metadata none
    std::size_t place = 0;   // in a list of many places
};

// Takes arrays of numpy and tensors of PyTorch. Made for one container: what is imported, and the
// current streams, are asked once.
class ArrayTaker {
   public:
    // on_devices: whether tensors on devices are taken, with PyTorch's current stream.
    explicit ArrayTaker(bool on_devices);
    [[nodiscard]] bool knows_any() const;

    // Whether take() may take it, by its type.
    [[nodiscard]] bool is_array(nanobind::handle value) const;
    // The array, without its name and owner. False for other types, and for arrays that Python has
    // to look at: strided ones on the host, other than native numbers, tensors with names, in other
    // layouts, or with a pending operation.
    bool take(nanobind::handle value, TakenField& field);
    // The same without is_plain(), which takes half of the time: it may be asked when work has
    // begun.
    bool take_unasked(nanobind::handle value, TakenField& field);
    // Whether the elements are those that lie there, and have no names. value: an array that was
    // taken.
    [[nodiscard]] bool is_plain(nanobind::handle value, DType dtype) const;
    // take() follows soon.
    void prefetch(nanobind::handle value) const;

   private:
    [[nodiscard]] bool numpy_array(nanobind::handle value, TakenField& array) const;
    bool tensor(nanobind::handle value, TakenField& field);
    [[nodiscard]] bool is_conjugated(nanobind::handle value, DType dtype) const;
    [[nodiscard]] bool is_tensor(nanobind::handle value) const;
    // Of any release of PyTorch, by its attributes.
    bool tensor_by_attributes(nanobind::handle value, TakenField& field);
    bool tensor_layout(nanobind::handle value, TakenField& field) const;
    bool tensor_memory(nanobind::handle value, TakenField& field);
    // Of releases that offer it to C, at a third of the time.
    bool tensor_by_exchange(nanobind::handle value, TakenField& field);
    bool on_device(int device, TakenField& field);
    std::optional<StreamHandle> stream_of(int device);

    // What NumPy and PyTorch have, as far as they are imported.
    struct Libraries;
    static std::shared_ptr<const Libraries> libraries();

    std::shared_ptr<const Libraries> of_;
    bool on_devices_;
    std::map<int, std::optional<StreamHandle>> streams_;  // nothing: the device cannot be used
};

}  // namespace twinrun
