// What the files of the bindings share, by the file that defines it. Each registers its part of the
// module in define_…().
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "difference/difference.hpp"
#include "engine/compare.hpp"
#include "history/field.hpp"
#include "history/history.hpp"
#include "metadata/metadata.hpp"
#include "source/device_array.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"

namespace twinrun {

// The arrays of a step: one object for Python, however many they are.
struct CapturedFields {
    std::vector<CapturedField> fields;
};

// ---- shared.cpp ----

// Text for people: bytes that are not UTF-8 as \xNN. And a file's name or path, as Python has it
// (os.fsencode gives the bytes).
nanobind::str readable_text(const std::string& bytes);
nanobind::str file_text(const std::string& bytes);

// Thrown with the lock held; nanobind sets the exception of twinrun.errors.
[[noreturn]] void raise(const Error& error);

// What a call from the core raised, as the core's error. With the lock held. An interrupt becomes
// the thread's exception again, for `raise`; of any other only the message goes on: this may be
// another thread than the caller's.
Error error_of(nanobind::python_error& raised);

// Between slices of long work without the lock: handles signals, then calls. False: an exception is
// set, and the work ends.
template <class Call>
bool handle_signals_and(const Call& call) {
    const nanobind::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() != 0) return false;
    try {
        call();
        return true;
    } catch (nanobind::python_error& e) {
        e.restore();
        return false;
    }
}

template <class T>
T take(Result<T> result) {
    if (!result) raise(result.error());
    return std::move(result).value();
}
inline void take(const Result<>& result) {
    if (!result) raise(result.error());
}

DType parse_dtype(const std::string& name);
DigestKind parse_digest(const std::string& name);
const char* digest_name(DigestKind kind);
CacheUse parse_cache(const std::string& name);

// Runs long work without the lock; between slices the calling thread takes it to handle signals and
// report progress.
StreamOptions stream_options(int threads, std::uint64_t memory, const std::string& io,
                             nanobind::object progress);

using Shape = nanobind::typed<nanobind::tuple, std::uint64_t, nanobind::ellipsis>;
Shape shape_tuple(const std::vector<std::uint64_t>& shape);

// ---- devices.cpp ----

// Raises Unsupported where no work can be done on a device.
void check_device(int device);
std::string device_problem(int device);  // why it cannot be used; empty: it can
// The stream as the core takes it, of the thread that calls.
StreamHandle given_stream(int device, std::uintptr_t stream);
DeviceArray device_array(DType dtype, std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides,
                         std::uintptr_t address, int device, std::uintptr_t stream, bool swap);
void define_devices(nanobind::module_& m);

// ---- sources.cpp ----

// An element source and the Python object whose memory or function it uses.
struct Source {
    std::shared_ptr<ElementSource> elements;
    nanobind::object owner;
};

void define_sources(nanobind::module_& m);
void define_remote_files(nanobind::module_& m);

// ---- metadata.cpp ----

// What metadata says of a field.
struct PyFieldFacts {
    std::shared_ptr<const FieldMetadata> field;
};

struct PyMetadata {
    std::shared_ptr<MetadataFile> file;

    // Every section of every field against its checksums, and padding. Raises DamagedFile at the
    // first page that is wrong.
    void verify() const;
    [[nodiscard]] nanobind::bytes section(std::size_t field, const std::string& name) const;
};

void define_metadata(nanobind::module_& m);

// ---- elements.cpp ----

void define_elements(nanobind::module_& m);

// ---- compare.cpp ----

// What comparing a field found. dtype, dtype_b: of the values of elements, the second where it is
// another one in the second run.
struct PyFieldResult {
    FieldResult result;
    DType dtype;
    std::optional<DType> dtype_b = std::nullopt;

    [[nodiscard]] DType second() const { return dtype_b.value_or(dtype); }
};

// How fields are compared, whatever their rules.
struct PyCompareOptions {
    CompareOptions options;
    nanobind::object progress;  // which options.stream calls
};

void define_comparison(nanobind::module_& m);

// ---- record.cpp ----

void define_records(nanobind::module_& m);

// ---- session.cpp ----

void define_sessions(nanobind::module_& m);

// ---- what only registers ----

void define_aggregation(nanobind::module_& m);
void define_field_lists(nanobind::module_& m);
void define_environment(nanobind::module_& m);
void define_golden(nanobind::module_& m);
void define_histories(nanobind::module_& m);
void define_noise(nanobind::module_& m);
void define_digests(nanobind::module_& m);
void define_sketches(nanobind::module_& m);
void define_sums(nanobind::module_& m);
void define_words(nanobind::module_& m);

}  // namespace twinrun
