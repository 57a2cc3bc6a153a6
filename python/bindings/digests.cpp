// Digests of arrays: roots of their words, made in the background on devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "listed_arrays.hpp"
#include "shared.hpp"
#include "sketch/word_roots.hpp"
#include "sketch/words.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

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

// Digests of words of many arrays. Arrays that the core does not take by itself are put in by
// Python.
class WordDigests {
   public:
    explicit WordDigests(const nb::sequence& arrays) {
        ArrayTaker taker(true);
        for (const nb::handle array : arrays) {
            entries_.emplace_back();
            Entry& entry = entries_.back();
            if (PyFloat_Check(array.ptr()) || PyLong_Check(array.ptr()) || PyComplex_Check(array.ptr()))
                continue;
            TakenField field;
            if (!taker.take(array, field)) continue;
            if (field.fortran_order) {
                if (field.device == kHostMemory) continue;
                take_column_major(field);
            }
            entry.kind = long_name(field.dtype);
            entry.shape = field.shape;
            entry.array.device = field.device;
            entry.array.data = field.data;
            entry.array.dtype = field.dtype;
            entry.array.shape = field.shape;
            entry.array.strides = field.strides;
            entry.array.stream = field.stream;
            entry.array = as_words(std::move(entry.array));
            entry.there = true;
        }
    }

    [[nodiscard]] std::vector<std::size_t> missing() const {
        std::vector<std::size_t> all;
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            if (!entries_[i].there) all.push_back(i);
        }
        return all;
    }

    void put(std::size_t at, const CapturedField& words, const std::string& kind,
             const std::vector<std::uint64_t>& shape) {
        Entry& entry = entries_.at(at);
        entry.kind = kind;
        entry.shape = shape;
        if (words.device) {
            entry.array = *words.device;
        } else {
            entry.array = {};
            entry.array.device = kHostMemory;
            entry.array.data = words.data;
            entry.array.dtype = words.dtype;
            entry.array.shape = words.shape;
        }
        entry.there = true;
    }

    // Arrays in host memory are digested now, by one thread if they have fewer bytes; others in the
    // background.
    void start(std::uint64_t few_bytes) {
        std::vector<DeviceArray> words;
        words.reserve(entries_.size());
        bool host = false;
        for (const Entry& entry : entries_) {
            words.push_back(entry.array);
            host = host || entry.array.device == kHostMemory;
        }
        const StreamOptions options = host ? stream_options(0, 1 << 28, "auto", nb::none()) : StreamOptions();
        Result<WordRoots> started = [&] {
            const nb::gil_scoped_release unlocked;
            return WordRoots::start(words, few_bytes, options);
        }();
        started_ = take(std::move(started));
    }

    [[nodiscard]] bool on_devices() const { return started_ && started_->on_devices(); }

    // Waits for devices. One an array.
    std::vector<std::uint64_t> roots() {
        if (!started_) return std::vector<std::uint64_t>(entries_.size());
        Result<std::vector<std::uint64_t>> all = [&] {
            const nb::gil_scoped_release unlocked;
            return started_->roots();
        }();
        return take(std::move(all));
    }

    [[nodiscard]] nb::list facts() const {
        nb::list all;
        for (const Entry& entry : entries_)
            all.append(nb::make_tuple(entry.kind, shape_tuple(entry.shape)));
        return all;
    }

   private:
    struct Entry {
        bool there = false;
        std::string kind;
        // Of the array. No object: Python's garbage collector would look at it again and again.
        std::vector<std::uint64_t> shape;
        DeviceArray array;  // of words; on the host: dense
    };
    std::vector<Entry> entries_;
    std::optional<WordRoots> started_;
};

}  // namespace

void twinrun::define_digests(nb::module_& m) {
    nb::class_<WordDigests>(m, "WordDigests",
                            "Digests of the words of many arrays: start(), and later roots().")
        .def(nb::init<const nb::sequence&>(), "arrays"_a)
        .def_prop_ro("missing", &WordDigests::missing, "Numbers of arrays that put() has to bring.")
        .def("put", &WordDigests::put, "at"_a, "words"_a, "kind"_a, "shape"_a,
             "words: dense in host memory, or on a device. kind, shape: of the array.")
        .def("start", &WordDigests::start, "few_bytes"_a,
             "The arrays may change afterwards: devices work in the order of the arrays' streams.")
        .def_prop_ro("on_devices", &WordDigests::on_devices, "Whether roots() may wait for devices.")
        .def("roots", &WordDigests::roots, "Waits. One an array; 0 where it has no element.")
        .def_prop_ro("facts", &WordDigests::facts, "(type, shape) of each array.");
}
