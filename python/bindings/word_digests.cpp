#include "word_digests.hpp"

#include <algorithm>
#include <utility>

#include "shared.hpp"
#include "sketch/words.hpp"

namespace nb = nanobind;

namespace twinrun {

namespace {

// As PyTorch and NumPy write the names of types.
const char* long_name(DType dtype) {
    switch (dtype) {
        case DType::f16: return "float16";
        case DType::bf16: return "bfloat16";
        case DType::f32: return "float32";
        case DType::f64: return "float64";
        case DType::i8: return "int8";
        case DType::i16: return "int16";
        case DType::i32: return "int32";
        case DType::i64: return "int64";
        case DType::u8: return "uint8";
        case DType::u16: return "uint16";
        case DType::u32: return "uint32";
        case DType::u64: return "uint64";
        case DType::boolean: return "bool";
        case DType::c64: return "complex64";
        case DType::c128: return "complex128";
    }
    return "";
}

// The elements in row-major order: by strides, where the array lies column by column.
void take_column_major(TakenField& field) {
    std::reverse(field.shape.begin(), field.shape.end());
    std::int64_t stride = static_cast<std::int64_t>(item_bytes(field.dtype));
    for (const std::uint64_t size : field.shape) {
        field.strides.push_back(stride);
        stride *= static_cast<std::int64_t>(size);
    }
    field.fortran_order = false;
}

}  // namespace

void WordDigests::reserve(std::size_t count) {
    forms_.reserve(count);
    words_.reserve(count);
    owners_.reserve(count);
    there_.reserve(count);
}

void WordDigests::add(ArrayTaker& taker, nb::handle array) {
    Form& form = forms_.emplace_back();
    DeviceArray& words = words_.emplace_back();
    owners_.push_back(nb::borrow(array));
    there_.push_back(false);
    TakenField field;
    const bool is_number =
        PyFloat_Check(array.ptr()) || PyLong_Check(array.ptr()) || PyComplex_Check(array.ptr());
    const bool taken = !is_number && taker.take(array, field);
    is_usual_ = is_usual_ && taken && field.strides.empty() && !field.fortran_order;
    if (!taken) return;
    if (field.fortran_order) {
        if (field.device == kHostMemory) return;
        take_column_major(field);
    }
    form.kind = long_name(field.dtype);
    form.shape = field.shape;
    words.device = field.device;
    words.data = field.data;
    words.dtype = field.dtype;
    words.shape = field.shape;
    words.strides = std::move(field.strides);
    words.stream = field.stream;
    words = as_words(std::move(words));
    there_.back() = true;
}

std::vector<std::size_t> WordDigests::missing() const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < there_.size(); ++i) {
        if (!there_[i]) all.push_back(i);
    }
    return all;
}

void WordDigests::put(std::size_t at, const CapturedField& words, const std::string& kind,
                      const std::vector<std::uint64_t>& shape) {
    forms_.at(at) = {kind, shape};
    DeviceArray& to = words_.at(at);
    if (words.device) {
        to = *words.device;
    } else {
        to = {};
        to.device = kHostMemory;
        to.data = words.data;
        to.dtype = words.dtype;
        to.shape = words.shape;
    }
    there_[at] = true;
}

void WordDigests::start(std::uint64_t few_bytes) {
    const bool host = std::any_of(words_.begin(), words_.end(),
                                  [](const DeviceArray& words) { return words.device == kHostMemory; });
    const StreamOptions options = host ? stream_options(0, 1 << 28, "auto", nb::none()) : StreamOptions();
    Result<WordRoots> started = [&] {
        const nb::gil_scoped_release unlocked;
        return WordRoots::start(words_, few_bytes, options);
    }();
    started_ = twinrun::take(std::move(started));
    words_ = {};
    owners_ = {};
    there_ = {};
}

std::vector<std::uint64_t> WordDigests::roots() {
    if (!started_) return std::vector<std::uint64_t>(forms_.size());
    Result<std::vector<std::uint64_t>> all = [&] {
        const nb::gil_scoped_release unlocked;
        return started_->roots();
    }();
    return twinrun::take(std::move(all));
}

nb::list WordDigests::arrays() const {
    nb::list all;
    for (const nb::object& owner : owners_)
        all.append(owner);
    return all;
}

}  // namespace twinrun
