// Records: packing, giving back, checking, compacting, and fields' elements out of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>

#include "history/check_record.hpp"
#include "history/compact.hpp"
#include "history/pack.hpp"
#include "history/record_source.hpp"
#include "history/record_store.hpp"
#include "history/unpack.hpp"
#include "shared.hpp"
#include "source/source.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Names and paths are bytes: str and bytes of Python come as os.fsencode gives them.
using Path = std::filesystem::path;

RecordSettings record_settings(const nb::dict& d) {
    RecordSettings settings;
    const auto name = nb::cast<std::string>(d["method"]);
    const auto method = method_of(name);
    if (!method)
        raise({ErrorCode::invalid_argument, "'" + name + "' is no method: full, basic, list, tree or runs"});
    settings.method = *method;
    settings.chunk_bytes = nb::cast<std::uint32_t>(d["chunk_bytes"]);
    const auto codec = nb::cast<std::string>(d["codec"]);
    if (codec != "none" && codec != "zstd")
        raise({ErrorCode::invalid_argument, "'" + codec + "' is no codec: none or zstd"});
    settings.codec = codec == "zstd" ? PayloadCodec::zstd : PayloadCodec::stored;
    settings.level = nb::cast<int>(d["level"]);
    settings.xored = nb::cast<bool>(d["xor"]);
    settings.bounded = nb::cast<bool>(d["bounded"]);
    return settings;
}

PackOptions pack_options(const nb::dict& d) {
    PackOptions options;
    options.settings = record_settings(d);
    options.table_bytes = nb::cast<std::uint64_t>(d["table_bytes"]);
    options.verify = nb::cast<bool>(d["verify"]);
    options.threads = nb::cast<int>(d["threads"]);
    options.append = nb::cast<bool>(d["append"]);
    options.update = nb::cast<bool>(d["update"]);
    options.against = nb::cast<Path>(d["against"]).native();
    return options;
}

// Steps as they are done, to Python; signals are handled between them.
PackProgress progress_of(const nb::object& visit) {
    return [function = visit.ptr()](const PackedStep& step) {
        const nb::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() != 0) return false;
        const Recorder::Recorded& r = step.recorded;
        nb::dict d;
        d["step"] = step.step;
        d["rank"] = step.rank;
        d["full_bytes"] = step.full_bytes;
        d["new_version"] = step.new_version;
        d["bytes"] = r.bytes;
        d["entry_bytes"] = r.entry_bytes;
        d["payload_bytes"] = r.payload_bytes;
        d["chunks"] = r.chunks;
        d["changed_chunks"] = r.changed_chunks;
        d["payload_chunks"] = r.payload_chunks;
        d["collisions"] = r.collisions;
        try {
            const nb::handle call(function);
            call(d);
        } catch (nb::python_error& e) {
            e.restore();
            return false;
        }
        return true;
    };
}

template <class Work>
auto unlocked(Work work) {
    const nb::gil_scoped_release released;
    return work();
}

// An error that Python itself set comes first.
void finish(const Result<>& result) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    take(result);
}

// Number of a segment that has these bytes.
std::size_t segment_of(const RecordStore& store, const StepMap& map, std::int64_t step,
                       const std::string& name, std::uint64_t offset, std::uint64_t bytes) {
    const RecordSegment* found = map.find(name);
    if (found == nullptr) {
        raise({ErrorCode::not_found,
               store.path() + ": step " + std::to_string(step) + " has no segment '" + name + "'"});
    }
    if (offset > found->bytes || bytes > found->bytes - offset) {
        raise({ErrorCode::invalid_argument,
               store.path() + ": segment '" + name + "' has " + std::to_string(found->bytes) + " bytes"});
    }
    return static_cast<std::size_t>(found - map.directory.segments.data());
}

}  // namespace

nb::dict record_dict(const RecordSettings& settings) {
    nb::dict d;
    d["method"] = nb::str(std::string(method_name(settings.method)).c_str());
    d["chunk_bytes"] = settings.chunk_bytes;
    d["codec"] = settings.codec == PayloadCodec::zstd ? "zstd" : "none";
    d["level"] = settings.level;
    d["xor"] = settings.xored;
    d["bounded"] = settings.bounded;
    d["against"] = file_text(settings.against);
    return d;
}

void define_records(nb::module_& m) {
    m.def("has_codec", [](const std::string& name) {
        return name == "none" || (name == "zstd" && codec_available(PayloadCodec::zstd));
    });
    m.def(
        "pack_history",
        [](const Path& source, const Path& target, const nb::dict& options, const nb::object& visit) {
            const PackOptions chosen = pack_options(options);
            const PackProgress progress = progress_of(visit);
            finish(unlocked([&] {
                return pack_history(posix_file_system(), source.native(), target.native(), chosen, progress);
            }));
        },
        "source"_a, "target"_a, "options"_a, "visit"_a);
    m.def(
        "pack_files",
        // Files: (name, path, key, kind, a link's text).
        [](const std::vector<
               std::pair<std::int64_t, std::vector<std::tuple<Path, Path, Path, std::string, Path>>>>& steps,
           const Path& target, const nb::dict& options, const nb::object& visit) {
            const PackOptions chosen = pack_options(options);
            const PackProgress progress = progress_of(visit);
            std::vector<FilesOfStep> all;
            for (const auto& [step, files] : steps) {
                FilesOfStep one{step, {}};
                for (const auto& [name, path, key, kind, to] : files) {
                    const auto is = kind == "link"     ? RecordFileKind::link
                                    : kind == "folder" ? RecordFileKind::folder
                                                       : RecordFileKind::file;
                    one.files.push_back({name.native(), path.native(), key.native(), is, to.native()});
                }
                all.push_back(std::move(one));
            }
            finish(unlocked(
                [&] { return pack_files(posix_file_system(), all, target.native(), chosen, progress); }));
        },
        "steps"_a, "target"_a, "options"_a, "visit"_a);
    m.def(
        "unpack_steps",
        [](const Path& record, const std::vector<std::int64_t>& steps, const Path& target, bool flat,
           int threads, std::uint64_t memory) {
            nb::list made;
            for (const std::string& path : take(unlocked([&] {
                     return unpack_steps(posix_file_system(), record.native(), steps, target.native(), flat,
                                         threads, memory);
                 })))
                made.append(file_text(path));
            return made;
        },
        "record"_a, "steps"_a, "target"_a, "flat"_a, "threads"_a, "memory"_a);
    m.def(
        "check_record",
        [](const Path& path, std::uint32_t rank, int threads, std::uint64_t memory) {
            nb::list list;
            for (const RecordProblem& problem :
                 take(unlocked([&] { return check_record(path.native(), rank, threads, memory); })))
                list.append(nb::make_tuple(problem.steps, readable_text(problem.what)));
            return list;
        },
        "path"_a, "rank"_a, "threads"_a, "memory"_a);
    m.def(
        "compact_record",
        [](const Path& path, const std::vector<std::int64_t>& drop, std::uint64_t keep_last, int threads,
           bool forget_missing) {
            CompactOptions options;
            options.drop = drop;
            options.keep_last = keep_last;
            options.threads = threads;
            options.forget_missing = forget_missing;
            const CompactReport report =
                take(unlocked([&] { return compact_record(posix_file_system(), path.native(), options); }));
            nb::dict d;
            d["dropped_steps"] = report.dropped_steps;
            d["bytes_before"] = report.bytes_before;
            d["bytes_after"] = report.bytes_after;
            return d;
        },
        "path"_a, "drop"_a, "keep_last"_a, "threads"_a, "forget_missing"_a = false);

    nb::class_<RecordStore>(m, "RecordStore")
        .def(
            "files",
            [](RecordStore& self, std::int64_t step) {
                const StepMap map = take(unlocked([&] { return self.map(step); }));
                nb::list list;
                for (const RecordFile& file : map.directory.files)
                    list.append(nb::make_tuple(file_text(file.name), file.bytes));
                return list;
            },
            "step"_a)
        .def(
            "segments",
            [](RecordStore& self, std::int64_t step) {
                const StepMap map = take(unlocked([&] { return self.map(step); }));
                nb::list list;
                for (const RecordSegment& segment : map.directory.segments)
                    list.append(
                        nb::make_tuple(file_text(segment.name), segment.file, segment.offset, segment.bytes));
                return list;
            },
            "step"_a)
        .def(
            "read",
            [](RecordStore& self, std::int64_t step, const Path& segment, std::uint64_t offset,
               std::uint64_t bytes, std::uint64_t memory) {
                const StepMap map = take(unlocked([&] { return self.map(step); }));
                const std::size_t number = segment_of(self, map, step, segment.native(), offset, bytes);
                const nb::object out =
                    nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
                if (!out.is_valid()) throw nb::python_error();
                char* to = PyBytes_AsString(out.ptr());
                take(unlocked([&] {
                    return self.stream(map, number, offset, bytes, memory,
                                       [&](std::uint64_t at, std::span<const std::byte> part) {
                                           std::memcpy(to + (at - offset), part.data(), part.size());
                                           return success();
                                       });
                }));
                return out;
            },
            "step"_a, "segment"_a, "offset"_a, "bytes"_a, "memory"_a)
        .def(
            "write",
            // The same, into a new file.
            [](RecordStore& self, std::int64_t step, const Path& segment, std::uint64_t offset,
               std::uint64_t bytes, const Path& path, std::uint64_t memory) {
                take(unlocked([&] {
                    return write_part(posix_file_system(), self, step, segment.native(), offset, bytes,
                                      path.native(), memory);
                }));
            },
            "step"_a, "segment"_a, "offset"_a, "bytes"_a, "path"_a, "memory"_a)
        .def(
            "source",
            // The elements of a segment, read from the record when they are asked for.
            [](std::shared_ptr<RecordStore> self, std::int64_t step, const std::string& segment,
               const std::string& dtype, std::uint64_t items) {
                const DType type = parse_dtype(dtype);
                auto source = take(
                    unlocked([&] { return record_source(std::move(self), step, segment, type, items); }));
                return Source{std::move(source), nb::none()};
            },
            "step"_a, "segment"_a, "dtype"_a, "items"_a);
    m.def(
        "open_record",
        [](const Path& path, std::uint32_t rank, int threads) {
            return take(unlocked([&] { return RecordStore::open(path.native(), rank, threads); }));
        },
        "path"_a, "rank"_a, "threads"_a = 1);
}

}  // namespace twinrun
