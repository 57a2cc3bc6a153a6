// Objects elsewhere, which Python reads by ranges.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>

#include "platform/remote_files.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// The function that reads lives as long as the process: threads of the core may call it to its end.
RangeReader range_reader(nb::handle read) {
    return [read](const std::string& name, std::uint64_t offset, std::span<std::byte> to) -> Result<> {
        const nb::gil_scoped_acquire lock;
        try {
            const nb::object got = read(name, offset, to.size());
            const auto bytes = nb::cast<nb::bytes>(got);
            if (bytes.size() != to.size())
                return Error{ErrorCode::damaged, name + ": a read gave " + std::to_string(bytes.size()) +
                                                     " of " + std::to_string(to.size()) +
                                                     " bytes: try again"};
            std::memcpy(to.data(), bytes.c_str(), to.size());
            return success();
        } catch (nb::python_error& e) {
            return error_of(e);
        } catch (const nb::cast_error&) {
            return Error{ErrorCode::internal, name + ": a read gave something else than bytes"};
        }
    };
}

}  // namespace

void define_remote_files(nb::module_& m) {
    m.def(
        "set_range_reader", [](nb::object read) { set_range_reader(range_reader(read.release())); }, "read"_a,
        "read(name, offset, count) gives the bytes of an object elsewhere. Called from several threads.");
    m.def("add_remote_file", &add_remote_file, "name"_a, "size"_a,
          "From now on files of this name are that object.");
    m.def("remove_remote_file", &remove_remote_file, "name"_a);
}

}  // namespace twinrun
