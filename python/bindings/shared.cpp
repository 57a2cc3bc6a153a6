// Text, errors, options and lists as all files of the bindings take and give them.
#include "shared.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

nb::str readable_text(const std::string& bytes) {
    return nb::steal<nb::str>(
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

nb::str file_text(const std::string& bytes) {
    return nb::steal<nb::str>(
        PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

void raise(const Error& error) {
    // KeyboardInterrupt, or what a callback raised
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    const char* name = "TwinrunError";
    switch (error.code) {
        case ErrorCode::not_found: name = "MissingFile"; break;
        case ErrorCode::damaged: name = "DamagedFile"; break;
        case ErrorCode::unsupported: name = "Unsupported"; break;
        case ErrorCode::stale: name = "Stale"; break;
        case ErrorCode::mismatch: name = "Incomparable"; break;
        default: break;
    }
    const nb::object type = nb::module_::import_("twinrun.errors").attr(name);
    // Where memory ends, the core has none for what to do.
    const bool bare = error.code == ErrorCode::out_of_memory && error.message.ends_with("out of memory");
    const nb::object exception =
        type(readable_text(error.message + (bare ? "; free some memory, or ask for less at once" : "")));
    PyErr_SetObject(type.ptr(), exception.ptr());
    throw nb::python_error();
}

Error error_of(nb::python_error& raised) {
    // Python interrupts its main thread only: then this is the caller's own.
    if (raised.matches(PyExc_KeyboardInterrupt)) {
        raised.restore();
        return {ErrorCode::interrupted, "interrupted"};
    }
    return {ErrorCode::damaged, nb::cast<std::string>(nb::str(raised.value()))};
}

DType parse_dtype(const std::string& name) {
    const auto dtype = dtype_from_name(name);
    if (!dtype) raise({ErrorCode::invalid_argument, "no element type is called '" + name + "'"});
    return *dtype;
}

DigestKind parse_digest(const std::string& name) {
    return name == "published" ? DigestKind::published : DigestKind::linear;
}

const char* digest_name(DigestKind kind) { return kind == DigestKind::linear ? "linear" : "published"; }

CacheUse parse_cache(const std::string& name) {
    if (name == "auto") return CacheUse::automatic;
    if (name == "buffered") return CacheUse::buffered;
    if (name == "direct") return CacheUse::direct;
    raise({ErrorCode::invalid_argument, "cache must be auto, buffered or direct"});
}

StreamOptions stream_options(int threads, std::uint64_t memory, const std::string& io, nb::object progress) {
    StreamOptions options;
    options.threads = threads;
    options.memory_bytes = memory;
    if (io == "uring") {
        options.io = ReadBackend::uring;
    } else if (io == "pread") {
        options.io = ReadBackend::pread;
    } else if (io != "auto") {
        raise({ErrorCode::invalid_argument, "io must be auto, uring or pread"});
    }
    PyObject* callback = progress.is_none() ? nullptr : progress.ptr();
    options.poll = [callback](std::uint64_t done, std::uint64_t total) {
        return handle_signals_and([&] {
            const nb::handle call(callback);
            if (call.is_valid()) call(done, total);
        });
    };
    return options;
}

Shape shape_tuple(const std::vector<std::uint64_t>& shape) {
    nb::list list;
    for (const std::uint64_t n : shape)
        list.append(n);
    return Shape(nb::tuple(list));
}

}  // namespace twinrun
