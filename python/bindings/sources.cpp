// Where elements come from: memory, devices, files, decoders.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "shared.hpp"
#include "source/device_array.hpp"
#include "source/widened_source.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

void define_sources(nb::module_& m) {
    nb::class_<Source>(m, "Source");
    nb::class_<OpenFiles>(m, "OpenFiles", "Files that are open for several sources.")
        .def("__init__", [](OpenFiles* self) { new (self) OpenFiles(); });
    nb::class_<PathExtent>(m, "PathExtent", "Items of a field in a file.")
        .def(
            "__init__",
            [](PathExtent* self, std::string path, std::uint64_t offset, std::uint64_t stride,
               std::uint64_t count) {
                new (self) PathExtent{std::move(path), offset, stride, count};
            },
            "path"_a, nb::kw_only(), "offset"_a, "stride"_a, "count"_a)
        .def_ro("path", &PathExtent::path)
        .def_ro("offset", &PathExtent::offset, "Of the first item, in bytes.")
        .def_ro("stride", &PathExtent::stride, "Bytes from one item to the next.")
        .def_ro("count", &PathExtent::count, "Items.");
    m.def(
        "memory_source",
        [](const std::string& dtype, std::uint64_t items, std::uintptr_t address, std::uint64_t stride,
           bool swap, nb::object owner) {
            return Source{
                std::make_shared<MemorySource>(parse_dtype(dtype), items,
                                               reinterpret_cast<const void*>(address), stride, swap),
                std::move(owner)};
        },
        "dtype"_a, "items"_a, "address"_a, "stride"_a, "swap"_a, "owner"_a);
    m.def(
        "device_source",
        [](const std::string& dtype, std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides,
           std::uintptr_t address, int device, std::uintptr_t stream, bool swap, nb::object owner) {
            return Source{
                std::make_shared<DeviceSource>(device_array(
                    parse_dtype(dtype), std::move(shape), std::move(strides), address, device, stream, swap)),
                std::move(owner)};
        },
        "dtype"_a, "shape"_a, "strides"_a, "address"_a, "device"_a, "stream"_a, "swap"_a, "owner"_a);
    m.def(
        "file_source",
        [](const std::string& dtype, const std::string& byte_order, std::uint64_t items,
           std::vector<PathExtent> extents, const std::string& cache, std::shared_ptr<OpenFiles> files) {
            return Source{take(FileSource::create(
                              parse_dtype(dtype), byte_order == "big" ? ByteOrder::big : ByteOrder::little,
                              items, std::move(extents), parse_cache(cache), std::move(files))),
                          nb::none()};
        },
        "dtype"_a, "byte_order"_a, "items"_a, "extents"_a, "cache"_a = "auto", "files"_a = nb::none(),
        "files: that are open for other sources too.");
    m.def(
        "decoded_source",
        [](const std::string& dtype, std::uint64_t items, nb::object fetch) {
            // fetch(first, count, address) fills `count` items; it is called with the lock held.
            PyObject* function = fetch.ptr();
            return Source{
                std::make_shared<DecodedSource>(
                    parse_dtype(dtype), items,
                    [function](std::uint64_t first, std::uint64_t count, std::byte* to) -> Result<> {
                        const nb::gil_scoped_acquire lock;
                        try {
                            const nb::handle call(function);
                            call(first, count, reinterpret_cast<std::uintptr_t>(to));
                            return success();
                        } catch (nb::python_error& e) {
                            return error_of(e);
                        }
                    }),
                std::move(fetch)};
        },
        "dtype"_a, "items"_a, "fetch"_a);
    m.def(
        "holds_exactly",
        [](const std::string& to, const std::string& from) {
            return holds_exactly(parse_dtype(to), parse_dtype(from));
        },
        "wider"_a, "narrower"_a, "Whether a type holds every value of another one.");
    m.def(
        "widened_source",
        [](const std::string& dtype, const Source& below) {
            return Source{take(WidenedSource::create(parse_dtype(dtype), below.elements)), below.owner};
        },
        "dtype"_a, "below"_a, "The elements of a source in a wider type: f64, i64, u64 or c128.");
}

}  // namespace twinrun
