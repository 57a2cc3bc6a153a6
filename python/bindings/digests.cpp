// Digests of arrays: roots of their words, made in the background on devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "listed_arrays.hpp"
#include "shared.hpp"
#include "sketch/host_sketch.hpp"
#include "sketch/root_queue.hpp"
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
        std::uint64_t bytes = 0;
        for (const Entry& entry : entries_) {
            if (entry.array.device == kHostMemory)
                bytes += entry.array.items() * item_bytes(entry.array.dtype);
        }
        const StreamOptions options = stream_options(bytes < few_bytes ? 1 : 0, 1 << 28, "auto", nb::none());
        const auto work = [&]() -> Result<> {
            std::map<int, std::pair<std::vector<FieldMetadata>, std::vector<DeviceArray>>> on_devices;
            for (std::size_t i = 0; i < entries_.size(); ++i) {
                Entry& entry = entries_[i];
                TWR_TRY(FieldMetadata field, plan_words(entry.array.dtype, entry.array.shape));
                if (entry.array.device == kHostMemory) {
                    MemorySource source(entry.array.dtype, field.items(), entry.array.data,
                                        item_bytes(entry.array.dtype), false);
                    TWR_TRY(const HostSketch sketch, HostSketch::build(field, source, options));
                    entry.root = sketch.built().tree.empty() ? 0 : sketch.built().tree[0];
                    continue;
                }
                auto& [fields, arrays] = on_devices[entry.array.device];
                entry.number = fields.size();
                fields.push_back(std::move(field));
                arrays.push_back(entry.array);
            }
            for (auto& [device, both] : on_devices) {
                TWR_TRY(queued_[device], queue_roots(std::move(both.first), std::move(both.second)));
            }
            return success();
        };
        Result<> done = success();
        {
            const nb::gil_scoped_release unlocked;
            done = work();
        }
        take(done);
    }

    // Waits for devices. One an array.
    std::vector<std::uint64_t> roots() {
        const auto work = [&]() -> Result<> {
            for (const auto& [device, queued] : queued_) {
                TWR_TRY(const std::vector<std::uint64_t> made, queued->roots());
                for (Entry& entry : entries_) {
                    if (entry.array.device == device) entry.root = made[entry.number];
                }
            }
            queued_.clear();
            return success();
        };
        Result<> done = success();
        {
            const nb::gil_scoped_release unlocked;
            done = work();
        }
        take(done);
        std::vector<std::uint64_t> all;
        for (const Entry& entry : entries_)
            all.push_back(entry.root);
        return all;
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
        DeviceArray array;       // of words; on the host: dense
        std::size_t number = 0;  // among those of its device
        std::uint64_t root = 0;
    };
    std::vector<Entry> entries_;
    std::map<int, std::shared_ptr<QueuedRoots>> queued_;
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
        .def("roots", &WordDigests::roots, "Waits. One an array; 0 where it has no element.")
        .def_prop_ro("facts", &WordDigests::facts, "(type, shape) of each array.");
}
