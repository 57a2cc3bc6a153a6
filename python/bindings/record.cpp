// Records: packing, giving back, checking, compacting, and fields' elements out of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
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

RecordSettings record_settings(const std::string& method, std::uint32_t chunk_bytes, const std::string& codec,
                               int level, bool xored, bool bounded) {
    RecordSettings settings;
    const auto known = method_of(method);
    if (!known) {
        raise(
            {ErrorCode::invalid_argument, "'" + method + "' is no method: full, basic, list, tree or runs"});
    }
    if (codec != "none" && codec != "zstd")
        raise({ErrorCode::invalid_argument, "'" + codec + "' is no codec: none or zstd"});
    settings.method = *known;
    settings.chunk_bytes = chunk_bytes;
    settings.codec = codec == "zstd" ? PayloadCodec::zstd : PayloadCodec::stored;
    settings.level = level;
    settings.xored = xored;
    settings.bounded = bounded;
    return settings;
}

RecordFileKind parse_file_kind(const std::string& name) {
    if (name == "file") return RecordFileKind::file;
    if (name == "link") return RecordFileKind::link;
    if (name == "folder") return RecordFileKind::folder;
    raise({ErrorCode::invalid_argument, "kind must be file, link or folder"});
}

// Steps as they are done, to Python; signals are handled between them.
using Visit = nb::typed<nb::callable, void(PackedStep)>;
PackProgress progress_of(const Visit& visit) {
    return [function = visit.ptr()](const PackedStep& step) {
        return handle_signals_and([&] {
            const nb::handle call(function);
            call(nb::cast(step));
        });
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

void define_settings_of_records(nb::module_& m) {
    nb::class_<RecordSettings>(m, "RecordSettings", "How a record is made.")
        .def(
            "__init__",
            [](RecordSettings* self, const std::string& method, std::uint32_t chunk_bytes,
               const std::string& codec, int level, bool xored, bool bounded) {
                new (self) RecordSettings(record_settings(method, chunk_bytes, codec, level, xored, bounded));
            },
            nb::kw_only(), "method"_a, "chunk_bytes"_a, "codec"_a, "level"_a, "xor"_a, "bounded"_a)
        .def_prop_ro("method",
                     [](const RecordSettings& self) { return std::string(method_name(self.method)); })
        .def_ro("chunk_bytes", &RecordSettings::chunk_bytes)
        .def_prop_ro(
            "codec",
            [](const RecordSettings& self) { return self.codec == PayloadCodec::zstd ? "zstd" : "none"; })
        .def_ro("level", &RecordSettings::level)
        .def_ro("xor", &RecordSettings::xored)
        .def_ro("bounded", &RecordSettings::bounded)
        .def_prop_ro(
            "against", [](const RecordSettings& self) { return file_text(self.against); },
            "The other record, which has what this one does not keep again; '': none.");
    nb::class_<PackOptions>(m, "PackOptions", "What to pack, and how.")
        .def(
            "__init__",
            [](PackOptions* self, const RecordSettings& settings, std::uint64_t table_bytes, bool verify,
               int threads, bool append, bool update, const Path& against) {
                PackOptions options;
                options.settings = settings;
                options.table_bytes = table_bytes;
                options.verify = verify;
                options.threads = threads;
                options.append = append;
                options.update = update;
                options.against = against.native();
                new (self) PackOptions(std::move(options));
            },
            nb::kw_only(), "settings"_a, "table_bytes"_a, "verify"_a, "threads"_a, "append"_a, "update"_a,
            "against"_a, "against: another record, or ''.");
}

void define_packing(nb::module_& m) {
    using P = PackedStep;
    nb::class_<P>(m, "PackedStep", "What one step of one rank took in a record.")
        .def_ro("step", &P::step)
        .def_ro("rank", &P::rank)
        .def_ro("full_bytes", &P::full_bytes)
        .def_ro("new_version", &P::new_version)
        .def_prop_ro("bytes", [](const P& self) { return self.recorded.bytes; })
        .def_prop_ro("entry_bytes", [](const P& self) { return self.recorded.entry_bytes; })
        .def_prop_ro("payload_bytes", [](const P& self) { return self.recorded.payload_bytes; })
        .def_prop_ro("chunks", [](const P& self) { return self.recorded.chunks; })
        .def_prop_ro("changed_chunks", [](const P& self) { return self.recorded.changed_chunks; })
        .def_prop_ro("payload_chunks", [](const P& self) { return self.recorded.payload_chunks; })
        .def_prop_ro("collisions", [](const P& self) { return self.recorded.collisions; });
    nb::class_<PackedFile>(m, "PackedFile", "A file, a link or an empty folder of another program, to pack.")
        .def(
            "__init__",
            [](PackedFile* self, const Path& name, const Path& path, const Path& key, const std::string& kind,
               const Path& to) {
                new (self) PackedFile{name.native(), path.native(), key.native(), parse_file_kind(kind),
                                      to.native()};
            },
            nb::kw_only(), "name"_a, "path"_a, "key"_a, "kind"_a, "to"_a,
            "name: in the record. path: on storage. key: the same for the same file of other steps. kind: "
            "file, link or folder. to: a link's text.");
    nb::class_<FilesOfStep>(m, "FilesOfStep")
        .def(
            "__init__",
            [](FilesOfStep* self, std::int64_t step, std::vector<PackedFile> files) {
                new (self) FilesOfStep{step, std::move(files)};
            },
            "step"_a, "files"_a);
    m.def(
        "pack_history",
        [](const Path& source, const Path& target, const PackOptions& options, const Visit& visit) {
            const PackProgress progress = progress_of(visit);
            finish(unlocked([&] {
                return pack_history(posix_file_system(), source.native(), target.native(), options, progress);
            }));
        },
        "source"_a, "target"_a, "options"_a, "visit"_a);
    m.def(
        "pack_files",
        [](const std::vector<FilesOfStep>& steps, const Path& target, const PackOptions& options,
           const Visit& visit) {
            const PackProgress progress = progress_of(visit);
            finish(unlocked(
                [&] { return pack_files(posix_file_system(), steps, target.native(), options, progress); }));
        },
        "steps"_a, "target"_a, "options"_a, "visit"_a);
}

void define_parts_of_records(nb::module_& m) {
    nb::class_<RecordProblem>(m, "RecordProblem", "Why steps of a record cannot be restored.")
        .def_ro("steps", &RecordProblem::steps, "Those that need what is damaged; may be empty.")
        .def_prop_ro("what", [](const RecordProblem& self) { return readable_text(self.what); });
    nb::class_<CompactReport>(m, "CompactReport")
        .def_ro("dropped_steps", &CompactReport::dropped_steps)
        .def_ro("bytes_before", &CompactReport::bytes_before)
        .def_ro("bytes_after", &CompactReport::bytes_after);
    nb::class_<RecordFile>(m, "RecordFile", "A file of a step in a record.")
        .def_prop_ro("name", [](const RecordFile& self) { return file_text(self.name); })
        .def_ro("bytes", &RecordFile::bytes);
    nb::class_<RecordSegment>(m, "RecordSegment", "A part of such a file: a field.")
        .def_prop_ro("name", [](const RecordSegment& self) { return file_text(self.name); })
        .def_ro("file", &RecordSegment::file, "Its number among the step's files.")
        .def_ro("offset", &RecordSegment::offset, "In the file.")
        .def_ro("bytes", &RecordSegment::bytes);
}

void define_work_on_records(nb::module_& m) {
    m.def(
        "unpack_steps",
        [](const Path& record, const std::vector<std::int64_t>& steps, const Path& target, bool flat,
           int threads, std::uint64_t memory) {
            nb::typed<nb::list, nb::str> made;
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
            return take(unlocked([&] { return check_record(path.native(), rank, threads, memory); }));
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
            return take(
                unlocked([&] { return compact_record(posix_file_system(), path.native(), options); }));
        },
        "path"_a, "drop"_a, "keep_last"_a, "threads"_a, "forget_missing"_a = false);
}

void define_record_store(nb::module_& m) {
    nb::class_<RecordStore>(m, "RecordStore")
        .def(
            "files",
            [](RecordStore& self, std::int64_t step) {
                return take(unlocked([&] { return self.directory(step); })).files;
            },
            "step"_a)
        .def(
            "segments",
            [](RecordStore& self, std::int64_t step) {
                return take(unlocked([&] { return self.directory(step); })).segments;
            },
            "step"_a)
        .def(
            "read",
            [](RecordStore& self, std::int64_t step, const Path& segment, std::uint64_t offset,
               std::uint64_t bytes, std::uint64_t memory) {
                const StepMap map = take(unlocked([&] { return self.map_of(step, segment.native()); }));
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
            "step"_a, "segment"_a, "dtype"_a, "items"_a)
        .def(
            "changed_file",
            [](const RecordStore& self) { return unlocked([&] { return self.changed_file(); }); },
            "A file of differences that was changed after the journal that names it, or is not the one that "
            "it names; None: none.");
    m.def(
        "open_record",
        [](const Path& path, std::uint32_t rank, int threads) {
            return take(unlocked([&] { return RecordStore::open(path.native(), rank, threads); }));
        },
        "path"_a, "rank"_a, "threads"_a = 1);
}

}  // namespace

void define_records(nb::module_& m) {
    m.def("has_codec", [](const std::string& name) {
        return name == "none" || (name == "zstd" && codec_available(PayloadCodec::zstd));
    });
    define_settings_of_records(m);
    define_packing(m);
    define_parts_of_records(m);
    define_work_on_records(m);
    define_record_store(m);
}

}  // namespace twinrun
