// twinrun._core: the C++ core for Python. Private to the package: python/twinrun wraps all of it.
//
// Every call that works on data releases the interpreter lock. Errors become the exceptions of twinrun.errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "capture/session.hpp"
#include "device/device.hpp"
#include "device/device_workspace.hpp"
#include "device/gpu_direct_storage.hpp"
#include "dlpack.hpp"
#include "engine/compare.hpp"
#include "history/flush.hpp"
#include "history/history.hpp"
#include "platform/backend.hpp"
#include "shared.hpp"
#include "sketch/build.hpp"
#include "source/device_array.hpp"
#include "source/tuning.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace twinrun {

nb::object readable_text(const std::string& bytes) {
    return nb::steal(
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

nb::object file_text(const std::string& bytes) {
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

void raise(const Error& error) {
    if (PyErr_Occurred() != nullptr)
        throw nb::python_error();  // KeyboardInterrupt, or what a callback raised
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
    const nb::object exception = type(readable_text(error.message));
    PyErr_SetObject(type.ptr(), exception.ptr());
    throw nb::python_error();
}

DType parse_dtype(const std::string& name) {
    const auto dtype = dtype_from_name(name);
    if (!dtype) raise({ErrorCode::invalid_argument, "no element type is called '" + name + "'"});
    return *dtype;
}

DigestKind parse_digest(const std::string& name) {
    return name == "published" ? DigestKind::published : DigestKind::linear;
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
        const nb::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() != 0) return false;
        if (callback == nullptr) return true;
        try {
            const nb::handle call(callback);
            call(done, total);
            return true;
        } catch (nb::python_error& e) {
            e.restore();
            return false;
        }
    };
    return options;
}

namespace {
nb::list shape_list(const std::vector<std::uint64_t>& shape) {
    nb::list list;
    for (const std::uint64_t n : shape)
        list.append(n);
    return list;
}
}  // namespace

nb::dict field_dict(const FieldMetadata& f) {
    nb::dict d;
    d["name"] = f.name;
    d["dtype"] = std::string(dtype_name(f.dtype));
    d["byte_order"] = f.byte_order == ByteOrder::big ? "big" : "little";
    d["fortran_order"] = f.order == ArrayOrder::column_major;
    d["shape"] = nb::tuple(shape_list(f.shape));
    d["items"] = f.items();
    d["data_bytes"] = f.data_bytes();
    d["digest"] = f.settings.kind == DigestKind::linear ? "linear" : "published";
    d["atol"] = f.settings.tolerance.atol;
    d["rtol"] = f.settings.tolerance.rtol;
    d["residue_bits"] = f.settings.rule.residue_bits;
    d["cells"] = f.settings.rule.kind == CellKind::tokens     ? "tokens"
                 : f.settings.rule.kind == CellKind::absolute ? "absolute"
                                                              : "relative";
    d["fine_exponent"] = f.settings.rule.fine_exponent;
    d["coarse_exponent"] = f.settings.rule.coarse_exponent();
    d["chunk_bytes"] = f.settings.chunk_bytes;
    d["chunks"] = f.chunks();
    d["nans"] = f.counts.nans;
    d["tokens"] = f.counts.tokens;
    d["largest_sampled"] = f.largest_sampled;
    d["format"] = f.format;
    nb::list extents;
    for (const Extent& e : f.extents)
        extents.append(nb::make_tuple(e.file, e.offset, e.stride, e.count));
    d["extents"] = extents;
    d["global_shape"] = nb::tuple(shape_list(f.global_shape));
    d["global_offset"] = nb::tuple(shape_list(f.global_offset));
    d["key"] = f.key;
    if (f.sums.kind == SumsKind::none) {
        d["sums"] = nb::none();
    } else {
        nb::dict sums;
        sums["kind"] = f.sums.kind == SumsKind::place ? "place" : "ids";
        sums["height"] = f.sums.height;
        sums["buckets"] = f.sums.buckets;
        sums["smallest_id"] = f.sums.smallest_id;
        sums["largest_id"] = f.sums.largest_id;
        d["sums"] = sums;
    }
    std::uint64_t bytes = 0;
    for (const SectionPlace& s : f.sections)
        bytes += s.length;
    d["metadata_bytes"] = bytes;
    return d;
}

namespace {
// What lies between header, directory, sections and their checksums is zero, or it is not as it was written.
Result<> verify_padding(MetadataFile& file) {
    const Directory& directory = file.directory();
    std::vector<Range> used{{0, encode_directory(directory, 0).size()}};
    for (const FieldMetadata& field : directory.fields) {
        for (const SectionPlace& place : field.sections) {
            used.push_back({place.offset, place.offset + place.length});
            used.push_back({place.sums_offset, place.sums_offset + divide_up(place.length, kPageBytes) * 8});
        }
    }
    used.push_back({file.file().size(), file.file().size()});
    std::sort(used.begin(), used.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<std::byte> part(1 << 20);
    std::uint64_t at = 0;
    for (const Range& range : used) {
        while (at < range.begin) {
            const auto bytes = std::span(part).first(std::min<std::uint64_t>(part.size(), range.begin - at));
            TWR_CHECK(file.file().read_at(at, bytes));
            if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
                return Error{ErrorCode::damaged, file.path() + ": damaged metadata: its padding is not zero"};
            }
            at += bytes.size();
        }
        at = std::max(at, range.end);
    }
    return success();
}

Result<> verify_all(MetadataFile& file) {
    std::vector<std::byte> part(1 << 20);
    const Directory& directory = file.directory();
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const std::uint64_t length = directory.fields[f].place(section).length;
            for (std::uint64_t at = 0; at < length; at += part.size()) {
                const auto bytes = std::span(part).first(std::min<std::uint64_t>(part.size(), length - at));
                TWR_CHECK(file.read(f, section, at, bytes));
            }
        }
    }
    return verify_padding(file);
}
}  // namespace

void PyMetadata::verify() const {
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = verify_all(*file);
    }
    take(result);
}

nb::bytes PyMetadata::section(std::size_t field, const std::string& name) const {
    const std::array<const char*, kSections> names = {"tree", "fine", "residues", "data_sums", "sums"};
    for (std::size_t s = 0; s < kSections; ++s) {
        if (name != names[s]) continue;
        std::vector<std::byte> bytes(file->directory().fields.at(field).sections[s].length);
        take(file->read(field, static_cast<Section>(s), 0, bytes));
        return nb::bytes(bytes.data(), bytes.size());
    }
    raise({ErrorCode::invalid_argument, "no such section"});
}

}  // namespace twinrun

namespace {

// ---- devices ----

const DeviceProbe& probed() {
    const nb::gil_scoped_release unlocked;  // the first call takes a while
    return probe_devices();
}

// Why no work can be done on a device; empty: it can.
std::string device_problem(int device) {
    const DeviceProbe& found = probed();
    if (!found.reason.empty()) return found.reason;
    if (device < 0 || static_cast<std::size_t>(device) >= found.devices.size()) {
        return "there is no device of that number";
    }
    return found.devices[static_cast<std::size_t>(device)].reason;
}

}  // namespace

void twinrun::check_device(int device) {
    if (const std::string problem = device_problem(device); !problem.empty()) {
        raise({ErrorCode::unsupported, "cuda:" + std::to_string(device) + " cannot be used: " + problem});
    }
}

namespace {

// The stream as the core takes it. The default stream of a thread means another one in each thread: it is waited for here, in
// the thread that gave it.
StreamHandle given_stream(int device, std::uintptr_t stream) {
    constexpr std::uintptr_t kLegacyDefault = 1;
    constexpr std::uintptr_t kPerThreadDefault = 2;
    if (stream == kLegacyDefault) return nullptr;
    const auto handle = reinterpret_cast<StreamHandle>(stream);
    if (stream != kPerThreadDefault) return handle;
    DeviceStatus status;
    {
        const nb::gil_scoped_release unlocked;
        status = device_runtime()->wait_stream(device, handle);
    }
    take(to_result(status));
    return nullptr;
}

DeviceArray device_array(DType dtype, std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides,
                         std::uintptr_t address, int device, std::uintptr_t stream, bool swap) {
    check_device(device);
    DeviceArray array;
    array.device = device;
    array.data = reinterpret_cast<const void*>(address);
    array.dtype = dtype;
    array.shape = std::move(shape);
    array.strides = std::move(strides);
    array.swap = swap;
    take(check_array(array));
    array.stream = given_stream(device, stream);
    return array;
}

}  // namespace

std::vector<CapturedField> twinrun::captured_fields(const nb::list& fields) {
    std::vector<CapturedField> captured;
    for (nb::handle entry : fields) {
        const nb::tuple t = nb::cast<nb::tuple>(entry);
        CapturedField f;
        f.name = nb::cast<std::string>(t[0]);
        f.dtype = parse_dtype(nb::cast<std::string>(t[1]));
        f.shape = nb::cast<std::vector<std::uint64_t>>(t[2]);
        f.data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(t[3]));
        f.stride = nb::cast<std::uint64_t>(t[4]);
        f.order = nb::cast<bool>(t[5]) ? ArrayOrder::column_major : ArrayOrder::row_major;
        f.own_tolerance = !t[6].is_none();
        if (f.own_tolerance) f.tolerance = {nb::cast<double>(t[6]), nb::cast<double>(t[7])};
        if (!t[8].is_none()) {
            const auto [device, strides, stream, swap] =
                nb::cast<std::tuple<int, std::vector<std::int64_t>, std::uintptr_t, bool>>(t[8]);
            f.device =
                device_array(f.dtype, f.shape, strides, nb::cast<std::uintptr_t>(t[3]), device, stream, swap);
            f.data = nullptr;
            f.stride = 0;
        }
        f.ids = nb::cast<std::string>(t[9]);
        f.global_shape = nb::cast<std::vector<std::uint64_t>>(t[10]);
        f.global_offset = nb::cast<std::vector<std::uint64_t>>(t[11]);
        if (f.order == ArrayOrder::column_major) {  // here as the caller indexes them
            for (auto* numbers : {&f.shape, &f.global_shape, &f.global_offset})
                std::reverse(numbers->begin(), numbers->end());
        }
        captured.push_back(std::move(f));
    }
    return captured;
}

namespace {

// The device that memory lies on, -1 for the host's; None where nobody can say.
nb::object device_of(std::uintptr_t address) {
    const DeviceRuntime* runtime = nullptr;
    int device = kHostMemory;
    DeviceStatus status;
    {
        const nb::gil_scoped_release unlocked;
        if (!probe_devices().usable().empty()) runtime = device_runtime();
        if (runtime != nullptr) status = runtime->place_of(reinterpret_cast<const void*>(address), &device);
    }
    if (runtime == nullptr || status.failed) return nb::none();
    return nb::int_(device);
}

// What was found, and why something is not used.
nb::dict devices() {
    const DeviceProbe& found = probed();
    nb::dict d;
    d["library"] = found.library;
    d["reason"] = found.reason;
    d["runtime_version"] = found.runtime_version;
    d["driver_version"] = found.driver_version;
    nb::list list;
    for (const DeviceFacts& f : found.devices) {
        nb::dict one;
        one["name"] = std::string(f.name);
        one["bus"] = std::string(f.bus);
        one["compute"] = nb::make_tuple(f.compute_major, f.compute_minor);
        one["multiprocessors"] = f.multiprocessors;
        one["memory_bytes"] = f.memory_bytes;
        one["free_bytes"] = f.free_bytes;
        one["usable"] = f.usable;
        one["reason"] = std::string(f.reason);
        list.append(one);
    }
    d["devices"] = list;
    nb::dict storage;
    const auto& direct = []() -> const DirectStorageFacts& {
        const nb::gil_scoped_release unlocked;
        return probe_direct_storage();
    }();
    storage["available"] = direct.available;
    storage["library"] = direct.library;
    storage["reason"] = direct.reason;
    d["direct_storage"] = storage;
    return d;
}

DeviceChoice parse_device(const std::string& use, std::vector<int> devices, bool direct_storage) {
    DeviceChoice choice;
    if (use == "cpu") {
        choice.use = DeviceUse::cpu;
    } else if (use == "cuda") {
        choice.use = DeviceUse::gpu;
    } else if (use != "auto") {
        raise({ErrorCode::invalid_argument, "device must be auto, cpu or cuda"});
    }
    choice.devices = std::move(devices);
    choice.direct_storage = direct_storage;
    return choice;
}

CacheUse parse_cache(const std::string& name) {
    if (name == "auto") return CacheUse::automatic;
    if (name == "buffered") return CacheUse::buffered;
    if (name == "direct") return CacheUse::direct;
    raise({ErrorCode::invalid_argument, "cache must be auto, buffered or direct"});
}

Method parse_method(const std::string& name) {
    if (name == "auto") return Method::automatic;
    if (name == "staged") return Method::staged;
    if (name == "direct") return Method::direct;
    if (name == "published") return Method::published;
    raise({ErrorCode::invalid_argument, "method must be auto, staged, direct or published"});
}

const char* method_name(Method method) {
    switch (method) {
        case Method::automatic: return "auto";
        case Method::staged: return "staged";
        case Method::direct: return "direct";
        case Method::published: return "published";
    }
    return "";
}

nb::object scalar_value(DType dtype, std::uint64_t bits) {
    const ElementView view = dense_view(scalar_type(dtype), &bits);
    alignas(8) std::array<std::byte, 8> staging;
    const void* value = load(view, 0, 1, staging.data());
    switch (compute_type(view.scalar)) {
        case ComputeType::f32: {
            float x = 0;
            std::memcpy(&x, value, 4);
            if (!is_floating(dtype)) return nb::int_(static_cast<long>(x));
            return nb::float_(static_cast<double>(x));
        }
        case ComputeType::f64: {
            double x = 0;
            std::memcpy(&x, value, 8);
            if (!is_floating(dtype)) return nb::int_(static_cast<long long>(x));
            return nb::float_(x);
        }
        case ComputeType::i64: return nb::int_(static_cast<long long>(bits));
        case ComputeType::u64: return nb::int_(static_cast<unsigned long long>(bits));
    }
    return nb::none();
}

nb::object index_or_none(std::uint64_t index) {
    return index == kNowhere ? nb::object(nb::none()) : nb::object(nb::int_(index));
}

nb::dict stage_dict(const StageFacts& stage) {
    nb::dict d;
    d["ran"] = stage.ran;
    d["chunks_in"] = stage.chunks_in;
    d["chunks_out"] = stage.chunks_out;
    d["bytes_read"] = stage.bytes_read;
    d["seconds"] = stage.seconds;
    return d;
}

nb::list histogram_list(const Histogram& histogram) {
    nb::list list;
    for (const std::uint64_t n : histogram)
        list.append(n);
    return list;
}

nb::dict result_dict(const FieldResult& r, DType dtype) {
    nb::dict d;
    d["method"] = method_name(r.method);
    d["reason"] = r.reason;
    d["io"] = r.io;
    d["device"] = r.device;
    d["device_reason"] = r.device_reason;
    d["device_seconds"] = r.device_seconds;
    d["scalars"] = r.scalars;
    d["chunks"] = r.chunks;
    d["different"] = r.read.different;
    d["infinite"] = r.read.infinite;
    d["scalars_read"] = r.read.scalars;
    d["first"] = index_or_none(r.read.first);
    d["first_a"] = r.read.first == kNowhere ? nb::object(nb::none()) : scalar_value(dtype, r.first_bits_a);
    d["first_b"] = r.read.first == kNowhere ? nb::object(nb::none()) : scalar_value(dtype, r.first_bits_b);
    d["max_abs"] = r.max_abs;
    d["max_abs_is_bound"] = r.max_abs_is_bound;
    d["max_abs_unread"] = r.max_abs_unread;
    d["max_abs_read"] = r.read.max_abs;
    d["max_abs_at"] = index_or_none(r.read.max_abs_at);
    d["max_abs_a"] =
        r.read.max_abs_at == kNowhere ? nb::object(nb::none()) : scalar_value(dtype, r.max_bits_a);
    d["max_abs_b"] =
        r.read.max_abs_at == kNowhere ? nb::object(nb::none()) : scalar_value(dtype, r.max_bits_b);
    d["max_rel_read"] = r.read.max_rel;
    d["max_rel_at"] = index_or_none(r.read.max_rel_at);
    d["max_rel_different"] = r.read.max_rel_different;
    d["max_rel_different_at"] = index_or_none(r.read.max_rel_different_at);
    d["sum_squares"] = r.read.sum_squares;
    d["sum_squares_different"] = r.read.sum_squares_different;
    d["largest"] = r.read.largest;
    d["histogram"] = histogram_list(r.read.all);
    d["histogram_different"] = histogram_list(r.read.over);
    nb::list cells;
    for (const std::uint64_t n : r.proven.by_cells)
        cells.append(n);
    d["proven_by_tree"] = r.proven.by_tree;
    d["proven_by_cells"] = cells;
    d["cell"] = r.proven.cell;
    d["coarse_cell"] = r.proven.coarse_cell;
    nb::dict stages;
    stages["tree"] = stage_dict(r.tree);
    stages["sketch"] = stage_dict(r.sketch);
    stages["elements"] = stage_dict(r.elements);
    d["stages"] = stages;
    nb::list warnings;
    for (const std::string& w : r.warnings)
        warnings.append(w);
    d["warnings"] = warnings;
    return d;
}

// A field to index: what plan_field takes, and where its elements come from.
struct PyField {
    FieldPlan plan;
    Source* source;
};

FieldPlan plan_from(const nb::dict& d) {
    FieldPlan plan;
    plan.name = nb::cast<std::string>(d["name"]);
    plan.dtype = parse_dtype(nb::cast<std::string>(d["dtype"]));
    plan.byte_order = nb::cast<std::string>(d["byte_order"]) == "big" ? ByteOrder::big : ByteOrder::little;
    plan.order = nb::cast<bool>(d["fortran_order"]) ? ArrayOrder::column_major : ArrayOrder::row_major;
    plan.shape = nb::cast<std::vector<std::uint64_t>>(d["shape"]);
    plan.tolerance = {nb::cast<double>(d["atol"]), nb::cast<double>(d["rtol"])};
    plan.residue_bits = nb::cast<unsigned>(d["residue_bits"]);
    plan.chunk_bytes = nb::cast<std::uint32_t>(d["chunk_bytes"]);
    plan.kind = parse_digest(nb::cast<std::string>(d["digest"]));
    plan.format = nb::cast<std::string>(d["format"]);
    for (nb::handle e : nb::cast<nb::list>(d["extents"])) {
        const auto [file, offset, stride, count] =
            nb::cast<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>>(e);
        plan.extents.push_back({file, offset, stride, count});
    }
    plan.key = nb::cast<std::string>(d["key"]);
    plan.global_shape = nb::cast<std::vector<std::uint64_t>>(d["global_shape"]);
    plan.global_offset = nb::cast<std::vector<std::uint64_t>>(d["global_offset"]);
    return plan;
}

// Writes a metadata file for fields whose data lie elsewhere. data_files: (path relative to the metadata file, size, mtime).
nb::dict write_metadata(const std::string& path, std::int64_t step, std::uint32_t rank,
                        const std::vector<std::tuple<std::string, std::uint64_t, std::int64_t>>& data_files,
                        const nb::list& fields, int threads, std::uint64_t memory, const std::string& io,
                        nb::object progress, bool durable, std::uint64_t status) {
    const StreamOptions options = stream_options(threads, memory, io, progress);
    Directory directory;
    directory.status = status;
    directory.step = step;
    directory.rank = rank;
    for (const auto& [name, size, mtime] : data_files)
        directory.data_files.push_back({name, {size, mtime}});
    std::vector<std::shared_ptr<ElementSource>> sources;
    using Ids = std::shared_ptr<const std::vector<std::uint64_t>>;
    std::vector<Ids> ids;
    for (nb::handle entry : fields) {
        const nb::tuple pair = nb::cast<nb::tuple>(entry);
        const auto plan = nb::cast<nb::dict>(pair[0]);
        directory.fields.push_back(take(plan_field(plan_from(plan))));
        ids.push_back(nullptr);
        if (nb::object given = plan["ids"]; !given.is_none()) {
            const auto words =
                nb::cast<nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(given);
            ids.back() =
                std::make_shared<const std::vector<std::uint64_t>>(words.data(), words.data() + words.size());
        }
        sources.push_back(nb::cast<Source&>(pair[1]).elements);
    }
    std::uint64_t bytes_read = 0;
    const auto work = [&]() -> Result<> {
        // The user may have named a folder by a link.
        const std::filesystem::path whole(path);
        const std::string name =
            (std::filesystem::path(real_path(whole.has_parent_path() ? whole.parent_path().string() : ".")) /
             whole.filename())
                .string();
        TWR_TRY(auto writer, MetadataWriter::create(posix_file_system(), name, std::move(directory)));
        writer->may_replace();
        for (std::size_t i = 0; i < sources.size(); ++i) {
            TWR_TRY(const StreamStats stats, build_field(*writer, i, *sources[i], options, ids[i]));
            bytes_read += stats.bytes_read;
        }
        return durable ? writer->commit() : writer->finish_temporary();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    nb::dict d;
    d["bytes_read"] = bytes_read;
    d["metadata_bytes"] = take(stamp_of(path)).size;
    return d;
}

nb::dict compare(Source* a_source, PyMetadata* a_metadata, std::size_t a_field, Source* b_source,
                 PyMetadata* b_metadata, std::size_t b_field, double atol, double rtol, bool nan_equal,
                 const std::string& method, int threads, std::uint64_t memory, const std::string& io,
                 const std::string& cache, nb::object progress, const std::string& device,
                 std::vector<int> devices, std::optional<std::uint64_t> ulps,
                 const std::vector<double>& period, std::uint64_t component_stride,
                 const std::optional<std::vector<std::pair<std::uint64_t, std::uint64_t>>>& ranges,
                 std::vector<std::uint64_t> columns) {
    CompareOptions options;
    options.columns = std::move(columns);
    if (ranges) {
        options.ranges.emplace();
        for (const auto& [first, count] : *ranges)
            options.ranges->push_back(
                {first, checked_add(first, count).value_or(std::numeric_limits<std::uint64_t>::max())});
    }
    const bool direct_storage = io == "gds";
    options.rule = difference_rule(atol, rtol, nan_equal, ulps, period, component_stride);
    options.method = parse_method(method);
    options.stream = stream_options(threads, memory, direct_storage ? "auto" : io, progress);
    options.cache = parse_cache(cache);
    options.device = parse_device(device, std::move(devices), direct_storage);
    const auto side = [](Source* source, PyMetadata* metadata, std::size_t field) {
        FieldSide s;
        s.elements = source == nullptr ? nullptr : source->elements.get();
        s.metadata = metadata == nullptr ? nullptr : metadata->file.get();
        s.field = field;
        if (s.metadata != nullptr && field >= s.metadata->directory().fields.size()) {
            raise({ErrorCode::invalid_argument, "no such field in the metadata"});
        }
        return s;
    };
    const FieldSide a = side(a_source, a_metadata, a_field);
    const FieldSide b = side(b_source, b_metadata, b_field);
    const DType dtype = a.metadata != nullptr   ? a.metadata->directory().fields[a_field].dtype
                        : a.elements != nullptr ? a.elements->dtype()
                                                : DType::f32;
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return compare_field(a, b, options);
    };
    return result_dict(take(run()), dtype);
}

// Compares the data sums of a field with its data: the indices of the 1 MiB parts that changed.
std::vector<std::uint64_t> changed_parts(PyMetadata& metadata, std::size_t field, Source& source,
                                         int threads) {
    const FieldMetadata& f = metadata.file->directory().fields.at(field);
    StreamOptions options = stream_options(threads, 1 << 28, "auto", nb::none());
    std::vector<std::uint64_t> changed;
    const auto work = [&]() -> Result<> {
        std::vector<std::uint64_t> stored(f.place(Section::data_sums).length / 8);
        if (stored.empty() && f.items() != 0) {
            return Error{ErrorCode::stale,
                         metadata.file->path() + ": holds no checksums of its data: index it again"};
        }
        TWR_CHECK(
            metadata.file->read(field, Section::data_sums, 0, std::as_writable_bytes(std::span(stored))));
        TWR_TRY(const std::vector<std::uint64_t> now, sum_data(f, *source.elements, options));
        for (std::size_t i = 0; i < stored.size(); ++i) {
            if (i >= now.size() || stored[i] != now[i]) changed.push_back(i);
        }
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return changed;
}

// A history, or a rank's part of one on a node-local tier.
Result<History> open_part(const std::string& path, std::optional<LocalHistory>& local) {
    auto part = LocalHistory::read(path);
    if (!part) return History::open(path);
    History history;
    history.path = path;
    history.settings = part->settings;
    history.ranks = part->ranks;
    history.torn = part->journal.torn;
    for (const auto& [step, files] : part->journal.steps)
        history.steps.push_back({step, files.folder, {files.files}});
    for (const Provenance& facts : part->journal.provenance)
        history.provenance.push_back({part->rank, facts});
    local = std::move(part).value();
    return history;
}

nb::dict history_dict(const std::filesystem::path& path) {
    std::optional<LocalHistory> local;
    const History h = take(open_part(path.native(), local));
    nb::dict d;
    d["path"] = file_text(h.path);
    d["atol"] = h.settings.tolerance.atol;
    d["rtol"] = h.settings.tolerance.rtol;
    d["residue_bits"] = h.settings.residue_bits;
    d["chunk_bytes"] = h.settings.chunk_bytes;
    d["digest"] = h.settings.kind == DigestKind::linear ? "linear" : "published";
    d["keep_data"] = h.settings.keep_data;
    d["record"] = h.settings.record ? nb::object(record_dict(*h.settings.record)) : nb::object(nb::none());
    d["torn"] = h.torn;
    d["ranks"] = h.ranks;
    d["local_part"] = local ? nb::object(nb::int_(local->rank)) : nb::none();  // whose
    d["to"] = local ? file_text(local->history) : nb::none();
    d["incomplete"] = h.incomplete;
    nb::list provenance;
    for (const RankProvenance& p : h.provenance) {
        nb::dict one;
        one["rank"] = p.rank;
        one["json"] = provenance_to_json(p.facts);
        provenance.append(one);
    }
    d["provenance"] = provenance;
    nb::list steps;
    for (const HistoryStep& s : h.steps) {
        nb::dict step;
        step["step"] = s.step;
        step["folder"] = s.folder;
        nb::list ranks;
        for (const RankFiles& r : s.ranks) {
            nb::dict rank;
            rank["rank"] = r.rank;
            rank["data"] = r.data;
            rank["data_bytes"] = r.data_bytes;
            rank["metadata"] = r.metadata;
            rank["metadata_bytes"] = r.metadata_bytes;
            rank["header_xxh3"] = r.header_checksum;
            rank["blocked_seconds"] = r.blocked_seconds;
            rank["difference"] =
                r.difference == kNoBase ? nb::object(nb::none()) : nb::object(nb::int_(r.difference));
            rank["full_bytes"] = r.difference == kNoBase ? r.data_bytes : r.full_bytes;
            rank["divergence"] = r.divergence;
            // Of the data file: this rank's part of one that others share begins there.
            rank["offset"] = r.offset;
            rank["file_bytes"] = r.shared ? r.file_bytes : r.data_bytes;
            ranks.append(rank);
        }
        step["ranks"] = ranks;
        steps.append(step);
    }
    d["steps"] = steps;
    return d;
}

nb::dict divergence_dict(const Divergence& d) {
    nb::dict out;
    out["step"] = d.step;
    out["rank"] = d.rank;
    out["field"] = d.field;
    out["first_item"] = d.first_item;
    out["chunks"] = d.chunks;
    out["chunks_in_all"] = d.chunks_in_all;
    out["fields"] = d.fields;
    out["reason"] = d.reason;
    out["text"] = describe(d);
    return out;
}

nb::list lost_list(const std::vector<LostStep>& lost) {
    nb::list list;
    for (const LostStep& step : lost)
        list.append(nb::make_tuple(step.step, step.error.message));
    return list;
}

// A run's session. Settings are text by name, as the C interface has them.
struct PySession {
    SelfComm comm;
    std::unique_ptr<Session> session;

    PySession(const std::string& path, const std::map<std::string, std::string>& settings,
              const std::map<std::string, std::map<std::string, std::string>>& facts) {
        SessionSettings chosen;
        for (const auto& [name, value] : settings)
            take(chosen.set(name, value));
        chosen.provenance = collect_provenance();
        for (const auto& [group, own] : facts) {
            for (const auto& [name, value] : own)
                chosen.provenance.groups[group][name] = value;
        }
        auto open = [&] {
            const nb::gil_scoped_release unlocked;
            return Session::open(posix_file_system(), comm, path, std::move(chosen));
        };
        session = take(open());
    }
    // Its threads may be waiting for Python's lock, to tell of a divergence.
    ~PySession() {
        const nb::gil_scoped_release unlocked;
        session.reset();
    }
    PySession(const PySession&) = delete;
    PySession& operator=(const PySession&) = delete;
    nb::dict capture(std::int64_t step, const nb::list& fields) {
        std::vector<CapturedField> captured = captured_fields(fields);
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->capture_fields(step, std::move(captured));
        };
        const CaptureReport report = take(run());
        nb::dict d;
        d["step"] = report.step;
        d["seconds"] = report.seconds;
        d["waited_seconds"] = report.waited_seconds;
        d["data_bytes"] = report.data_bytes;
        d["metadata_bytes"] = report.metadata_bytes;
        d["staged_bytes"] = report.staged_bytes;
        d["divergence"] = report.divergence ? nb::object(divergence_dict(*report.divergence)) : nb::none();
        d["lost"] = lost_list(report.lost);
        return d;
    }
    nb::list wait() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->wait();
        };
        return lost_list(take(run()));
    }
    nb::list close() {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->close();
        };
        return lost_list(take(run()));
    }
    std::optional<std::int64_t> latest(std::int64_t not_after) {
        const auto run = [&] {
            const nb::gil_scoped_release unlocked;
            return session->latest(not_after);
        };
        return take(run());
    }
    void restore(std::int64_t step, const nb::list& fields) {
        std::vector<CapturedField> into = captured_fields(fields);
        const auto run = [&]() -> Result<> {
            const nb::gil_scoped_release unlocked;
            return session->restore_fields(step, into);
        };
        take(run());
    }
    // {name: {dtype, shape, fortran_order}} of a step's fields: all, in the order of capture, or those named.
    nb::dict stored_fields(std::int64_t step, const std::optional<std::vector<std::string>>& names) {
        const auto stored = take(session->stored(step));
        nb::dict fields;
        const auto add = [&](const FieldMetadata& field) {
            nb::dict d;
            d["dtype"] = std::string(dtype_name(field.dtype));
            d["shape"] = nb::tuple(shape_list(field.shape));
            d["fortran_order"] = field.order == ArrayOrder::column_major;
            fields[nb::str(field.name.data(), field.name.size())] = d;
        };
        if (!names) {
            for (const FieldMetadata& field : stored->directory().fields)
                add(field);
            return fields;
        }
        for (const std::string& name : *names) {
            const auto number = stored->find(name);
            if (!number) {
                raise({ErrorCode::not_found, session->path() + ": step " + std::to_string(step) +
                                                 ": no field of the name '" + name + "'"});
            }
            add(stored->directory().fields[*number]);
        }
        return fields;
    }
    void on_divergence(nb::object call) {
        // Called from threads of the session's, which do not hold Python's lock.
        auto shared = std::shared_ptr<nb::object>(new nb::object(std::move(call)), [](nb::object* o) {
            const nb::gil_scoped_acquire locked;
            delete o;
        });
        session->on_divergence([shared](const Divergence& d) {
            const nb::gil_scoped_acquire locked;
            try {
                (*shared)(divergence_dict(d));
            } catch (nb::python_error& e) {
                e.discard_as_unraisable("twinrun: on_divergence");
            }
        });
    }
};

}  // namespace

NB_MODULE(_core, m) {
    m.attr("__version__") = TWINRUN_VERSION;
    m.def("backend", [] { return std::string(backend_name(active_backend())); });
    m.def("backends", [] {
        std::vector<std::string> names;
        for (const Backend b : {Backend::portable, Backend::avx2, Backend::avx512}) {
            if (backend_available(b)) names.emplace_back(backend_name(b));
        }
        return names;
    });
    m.def("backend_override_ignored", [] { return std::string(backend_override_ignored()); });
    m.def("uring_available", &uring_available);
    m.def(
        "release_device_memory",
        [] {
            const nb::gil_scoped_release unlocked;
            DeviceWorkspaces::release_all_idle();
        },
        "Releases memory of GPUs, and page-locked memory, that twinrun keeps between calls and does not "
        "use.\n"
        "\n"
        ">>> twinrun.release_device_memory()\n"
        "\n"
        "Notes\n"
        "-----\n"
        "Thread-safe. Without a GPU it does nothing. The next call that needs the memory allocates it "
        "again.\n");
    m.def("devices", &devices);
    m.def("device_problem", &device_problem, "device"_a);
    m.def("device_of", &device_of, "address"_a);
    m.def("dlpack_facts", &dlpack_facts, "capsule"_a);
    m.def("worker_count", [] { return worker_count({}); });
    m.def("xxh3", [](const nb::bytes& b) {
        return xxh3({reinterpret_cast<const std::byte*>(b.c_str()), b.size()});
    });
    m.def("histogram_edges", [] {
        const auto& edges = histogram_tables().edges;
        return std::vector<double>(edges.begin(), edges.end());
    });
    m.def("check_tolerance", [](double atol, double rtol) { take(cell_rule({atol, rtol}, 0)); });

    nb::class_<Source>(m, "Source");
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
           const std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t>>& extents,
           const std::string& cache) {
            std::vector<PathExtent> list;
            for (const auto& [path, offset, stride, count] : extents)
                list.push_back({path, offset, stride, count});
            return Source{take(FileSource::create(parse_dtype(dtype),
                                                  byte_order == "big" ? ByteOrder::big : ByteOrder::little,
                                                  items, std::move(list), parse_cache(cache))),
                          nb::none()};
        },
        "dtype"_a, "byte_order"_a, "items"_a, "extents"_a, "cache"_a = "auto");
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
                            // Python interrupts its main thread only: then this is the caller's own.
                            if (e.matches(PyExc_KeyboardInterrupt)) {
                                e.restore();
                                return Error{ErrorCode::interrupted, "interrupted"};
                            }
                            // Only the message travels: this may be another thread than the caller's.
                            return Error{ErrorCode::damaged, nb::cast<std::string>(nb::str(e.value()))};
                        }
                    }),
                std::move(fetch)};
        },
        "dtype"_a, "items"_a, "fetch"_a);

    nb::class_<PyMetadata>(m, "Metadata")
        .def("__init__",
             [](PyMetadata* self, const std::string& path) {
                 new (self) PyMetadata{take(MetadataFile::open(path))};
             })
        .def_prop_ro("path", [](const PyMetadata& self) { return self.file->path(); })
        .def_prop_ro("step", [](const PyMetadata& self) { return self.file->directory().step; })
        .def_prop_ro("rank", [](const PyMetadata& self) { return self.file->directory().rank; })
        .def_prop_ro("status", [](const PyMetadata& self) { return self.file->directory().status; })
        .def_prop_ro("bytes", [](const PyMetadata& self) { return self.file->file().size(); })
        .def_prop_ro("bytes_read", [](const PyMetadata& self) { return self.file->bytes_read(); })
        .def_prop_ro("fields",
                     [](const PyMetadata& self) {
                         nb::list list;
                         for (const FieldMetadata& f : self.file->directory().fields)
                             list.append(field_dict(f));
                         return list;
                     })
        .def_prop_ro("data_files",
                     [](const PyMetadata& self) {
                         nb::list list;
                         for (std::uint32_t i = 0; i < self.file->directory().data_files.size(); ++i) {
                             const FileStamp& stamp = self.file->directory().data_files[i].stamp;
                             list.append(nb::make_tuple(self.file->data_path(i), stamp.size, stamp.mtime_ns));
                         }
                         return list;
                     })
        .def("check_data_files", [](const PyMetadata& self) { take(self.file->check_data_files()); })
        .def("header_xxh3",
             [](const PyMetadata& self) {
                 std::vector<std::byte> header(kHeaderBytes);
                 take(self.file->file().read_at(0, header));
                 return xxh3(header);
             })
        .def("verify", &PyMetadata::verify)
        .def("section", &PyMetadata::section);
    m.def("changed_parts", &changed_parts, "metadata"_a, "field"_a, "source"_a, "threads"_a = 0);
    m.def("why_not_staged", [](const PyMetadata& a, std::size_t fa, const PyMetadata& b, std::size_t fb,
                               double atol, double rtol, bool nan_equal) {
        return why_not_staged(a.file->directory().fields.at(fa), b.file->directory().fields.at(fb),
                              Method::automatic, {{atol, rtol}, nan_equal});
    });
    m.def("write_metadata", &write_metadata, "path"_a, "step"_a, "rank"_a, "data_files"_a, "fields"_a,
          "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto", "progress"_a = nb::none(),
          "durable"_a = true, "status"_a = std::uint64_t{0});
    m.def("compare", &compare, "a_source"_a.none(), "a_metadata"_a.none(), "a_field"_a, "b_source"_a.none(),
          "b_metadata"_a.none(), "b_field"_a, "atol"_a, "rtol"_a, "nan_equal"_a = true, "method"_a = "auto",
          "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto", "cache"_a = "auto",
          "progress"_a = nb::none(), "device"_a = "auto", "devices"_a = std::vector<int>(),
          "ulps"_a = nb::none(), "period"_a = std::vector<double>(), "component_stride"_a = std::uint64_t{1},
          "ranges"_a = nb::none(), "columns"_a = std::vector<std::uint64_t>());

    m.def(
        "range_unit",
        [](const std::string& dtype, const PyMetadata* metadata, std::size_t field) {
            return range_unit(parse_dtype(dtype),
                              metadata == nullptr ? nullptr : &metadata->file->directory().fields.at(field));
        },
        "dtype"_a, "metadata"_a.none() = nb::none(), "field"_a = 0);
    m.attr("RANGE_BYTES") = kRangeBytes;

    m.def("history_exists", &History::exists);
    m.def("open_history", &history_dict, "path"_a);
    m.def(
        "flush",
        [](const std::string& local, const std::string& history) {
            std::vector<LostStep> lost;
            const auto run = [&] {
                const nb::gil_scoped_release unlocked;
                return flush_folder(posix_file_system(), local, history,
                                    [&](std::int64_t step, const Error& error) {
                                        lost.push_back({step, error});
                                    });
            };
            const FlushFacts facts = take(run());
            return nb::make_tuple(facts.steps, facts.bytes, lost_list(lost));
        },
        "local"_a, "history"_a);
    define_records(m);
    define_elements(m);
    define_aggregation(m);
    m.def("local_history", [](const std::string& path) {
        const LocalHistory local = take(LocalHistory::read(path));
        return nb::make_tuple(local.rank, local.ranks, local.history);
    });
    nb::class_<PySession>(m, "Session")
        .def(nb::init<const std::string&, const std::map<std::string, std::string>&,
                      const std::map<std::string, std::map<std::string, std::string>>&>(),
             "path"_a, "settings"_a, "facts"_a)
        .def("capture", &PySession::capture, "step"_a, "fields"_a)
        .def("wait", &PySession::wait)
        .def("close", &PySession::close)
        .def("latest", &PySession::latest, "not_after"_a)
        .def("restore", &PySession::restore, "step"_a, "fields"_a)
        .def("stored_fields", &PySession::stored_fields, "step"_a, "names"_a.none())
        .def("on_divergence", &PySession::on_divergence, "call"_a)
        .def_prop_ro("committed", [](const PySession& self) { return self.session->committed(); })
        .def_prop_ro("local_only", [](const PySession& self) { return self.session->local_only(); })
        .def_prop_ro("facts", [](const PySession& self) {
            const SessionFacts facts = self.session->facts();
            nb::dict d;
            d["captured"] = facts.captured;
            d["committed"] = facts.committed;
            d["lost"] = facts.lost;
            d["most_staged_bytes"] = facts.most_staged_bytes;
            d["flushed_bytes"] = facts.flushed_bytes;
            return d;
        });
    define_sketches(m);
    define_golden(m);
    define_sums(m);
    define_noise(m);
    define_environment(m);
}
