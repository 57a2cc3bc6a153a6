// Metadata files: read, checked, and written for data that lie elsewhere.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/checksum.hpp"
#include "base/utf8.hpp"
#include "history/record_residues.hpp"
#include "metadata/verify.hpp"
#include "shared.hpp"
#include "sketch/build.hpp"
#include "sketch/changed_parts.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

const char* cells_name(const CellRule& rule) {
    switch (rule.kind) {
        case CellKind::tokens: return "tokens";
        case CellKind::absolute: return "absolute";
        case CellKind::relative: return "relative";
        case CellKind::binary32: return "binary32";
        case CellKind::words: return "words";
        case CellKind::integers: return "integers";
    }
    return "";
}

// A data file of metadata. path: relative to the metadata file where it is given, and as it is
// opened where it is read.
struct PyDataFile {
    std::string path;
    FileStamp stamp;
};

void define_data_files(nb::module_& m) {
    nb::class_<PyDataFile>(m, "DataFile", "A data file as it was when its metadata was made.")
        .def(
            "__init__",
            [](PyDataFile* self, std::string path, std::uint64_t bytes, std::int64_t mtime_ns) {
                new (self) PyDataFile{std::move(path), {bytes, mtime_ns}};
            },
            nb::kw_only(), "path"_a, "bytes"_a, "mtime_ns"_a, "path: relative to the metadata file.")
        .def_ro("path", &PyDataFile::path)
        .def_prop_ro("bytes", [](const PyDataFile& self) { return self.stamp.size; })
        .def_prop_ro("mtime_ns", [](const PyDataFile& self) { return self.stamp.mtime_ns; });
    nb::class_<Extent>(m, "Extent", "Items of a field in one of the data files of its metadata.")
        .def(
            "__init__",
            [](Extent* self, std::uint32_t file, std::uint64_t offset, std::uint64_t stride,
               std::uint64_t count) {
                new (self) Extent{file, offset, stride, count};
            },
            nb::kw_only(), "file"_a, "offset"_a, "stride"_a, "count"_a)
        .def_ro("file", &Extent::file, "Its number among the data files.")
        .def_ro("offset", &Extent::offset, "Of the first item, in bytes.")
        .def_ro("stride", &Extent::stride, "Bytes from one item to the next.")
        .def_ro("count", &Extent::count, "Items.");
}

void define_field_facts(nb::module_& m) {
    nb::class_<SumsFacts>(m, "SumsFacts", "What a field that is a part adds to the digests of the whole.")
        .def_prop_ro("kind",
                     [](const SumsFacts& self) { return self.kind == SumsKind::place ? "place" : "ids"; })
        .def_ro("height", &SumsFacts::height)
        .def_ro("buckets", &SumsFacts::buckets)
        .def_ro("smallest_id", &SumsFacts::smallest_id)
        .def_ro("largest_id", &SumsFacts::largest_id);
    nb::class_<PyFieldFacts> facts(m, "FieldFacts", "What metadata says of a field.");
    const auto add = [&](const char* name, auto get) {
        facts.def_prop_ro(name, [get](const PyFieldFacts& self) { return get(*self.field); });
    };
    using F = FieldMetadata;
    add("name", [](const F& f) { return f.name; });
    add("dtype", [](const F& f) { return std::string(dtype_name(f.dtype)); });
    add("byte_order", [](const F& f) { return f.byte_order == ByteOrder::big ? "big" : "little"; });
    add("fortran_order", [](const F& f) { return f.order == ArrayOrder::column_major; });
    add("shape", [](const F& f) { return shape_tuple(f.shape); });
    add("items", [](const F& f) { return f.items(); });
    add("data_bytes", [](const F& f) { return f.data_bytes(); });
    add("digest", [](const F& f) { return digest_name(f.settings.kind); });
    add("atol", [](const F& f) { return f.settings.tolerance.atol; });
    add("rtol", [](const F& f) { return f.settings.tolerance.rtol; });
    add("residue_bits", [](const F& f) { return f.settings.rule.residue_bits; });
    add("cells", [](const F& f) { return cells_name(f.settings.rule); });
    add("exact",
        [](const F& f) { return f.settings.kind == DigestKind::linear && is_exact(f.settings.rule.kind); });
    // Exact digests that are made in another way since versions 3 and 4 of the file.
    add("outdated", [](const F& f) {
        return f.settings.kind == DigestKind::linear && f.settings.rule.kind == CellKind::tokens;
    });
    add("fine_exponent", [](const F& f) { return f.settings.rule.fine_exponent; });
    add("coarse_exponent", [](const F& f) { return f.settings.rule.coarse_exponent(); });
    add("chunk_bytes", [](const F& f) { return f.settings.chunk_bytes; });
    add("chunks", [](const F& f) { return f.chunks(); });
    add("nans", [](const F& f) { return f.counts.nans; });
    add("tokens", [](const F& f) { return f.counts.tokens; });
    add("largest_sampled", [](const F& f) { return f.largest_sampled; });
    add("format", [](const F& f) { return f.format; });
    add("extents", [](const F& f) { return f.extents; });
    add("global_shape", [](const F& f) { return shape_tuple(f.global_shape); });
    add("global_offset", [](const F& f) { return shape_tuple(f.global_offset); });
    add("key", [](const F& f) { return f.key; });
    add("sums",
        [](const F& f) { return f.sums.kind == SumsKind::none ? std::nullopt : std::optional(f.sums); });
    add("metadata_bytes", [](const F& f) {
        std::uint64_t bytes = 0;
        for (const SectionPlace& s : f.sections)
            bytes += s.length;
        return bytes;
    });
}

}  // namespace

void PyMetadata::verify() const {
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = twinrun::verify(*file);
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

namespace {

// A field to index: what plan_field takes, and the IDs of its rows.
struct PyFieldPlan {
    FieldPlan plan;
    std::shared_ptr<const std::vector<std::uint64_t>> ids;
};
using Ids = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void define_field_plan(nb::module_& m) {
    nb::class_<PyFieldPlan>(m, "FieldPlan", "A field to index, before its data is seen.")
        .def(
            "__init__",
            [](PyFieldPlan* self, std::string name, const std::string& dtype, const std::string& byte_order,
               bool fortran_order, std::vector<std::uint64_t> shape, double atol, double rtol,
               unsigned residue_bits, std::uint32_t chunk_bytes, const std::string& digest,
               std::string format, std::vector<Extent> extents, std::vector<std::uint64_t> global_shape,
               std::vector<std::uint64_t> global_offset, std::string key, const std::optional<Ids>& ids,
               bool tokens) {
                FieldPlan plan;
                plan.name = std::move(name);
                plan.dtype = parse_dtype(dtype);
                plan.byte_order = byte_order == "big" ? ByteOrder::big : ByteOrder::little;
                plan.order = fortran_order ? ArrayOrder::column_major : ArrayOrder::row_major;
                plan.shape = std::move(shape);
                plan.tolerance = {atol, rtol};
                plan.residue_bits = residue_bits;
                plan.chunk_bytes = chunk_bytes;
                plan.kind = parse_digest(digest);
                plan.format = std::move(format);
                plan.extents = std::move(extents);
                plan.global_shape = std::move(global_shape);
                plan.global_offset = std::move(global_offset);
                plan.key = std::move(key);
                plan.tokens = tokens;
                using Words = std::vector<std::uint64_t>;
                new (self) PyFieldPlan{
                    std::move(plan),
                    ids ? std::make_shared<const Words>(ids->data(), ids->data() + ids->size()) : nullptr};
            },
            nb::kw_only(), "name"_a, "dtype"_a, "byte_order"_a, "fortran_order"_a, "shape"_a, "atol"_a,
            "rtol"_a, "residue_bits"_a, "chunk_bytes"_a, "digest"_a, "format"_a = "",
            "extents"_a = std::vector<Extent>(), "global_shape"_a = std::vector<std::uint64_t>(),
            "global_offset"_a = std::vector<std::uint64_t>(), "key"_a = "", "ids"_a = nb::none(),
            "tokens"_a = false,
            "shape, global_shape, global_offset: slowest dimension first. key, ids: of particles, the field "
            "of their IDs, and these. tokens: exact digests as earlier versions of the file had them.");
}

// Bytes of data that were read, and of the metadata file that was written.
struct WrittenMetadata {
    std::uint64_t bytes_read = 0;
    std::uint64_t metadata_bytes = 0;
};

// The name of a file by its folder as it is: the user may have named it by a link.
std::string with_real_folder(const std::string& path) {
    const std::filesystem::path whole(path);
    const std::string folder = whole.has_parent_path() ? whole.parent_path().string() : ".";
    return (std::filesystem::path(real_path(folder)) / whole.filename()).string();
}

WrittenMetadata written(const std::string& path, std::int64_t step, std::uint32_t rank,
                        const std::vector<PyDataFile>& data_files, const std::vector<PyFieldPlan*>& fields,
                        const std::vector<Source*>& elements, int threads, std::uint64_t memory,
                        const std::string& io, nb::object progress, bool durable, std::uint64_t status) {
    const StreamOptions options = stream_options(threads, memory, io, progress);
    Directory facts;
    facts.status = status;
    facts.step = step;
    facts.rank = rank;
    for (const PyDataFile& file : data_files)
        facts.data_files.push_back({file.path, file.stamp});
    if (fields.size() != elements.size()) raise({ErrorCode::invalid_argument, "a source for each field"});
    std::vector<FieldToWrite> asked;
    for (std::size_t i = 0; i < fields.size(); ++i)
        asked.push_back({fields[i]->plan, elements[i]->elements.get(), fields[i]->ids});
    const auto run = [&]() -> Result<std::uint64_t> {
        const nb::gil_scoped_release unlocked;
        return write_metadata(posix_file_system(), with_real_folder(path), std::move(facts), std::move(asked),
                              options, durable);
    };
    const std::uint64_t bytes_read = take(run());
    return {bytes_read, take(stamp_of(path)).size};
}

std::vector<std::uint64_t> changed(PyMetadata& metadata, std::size_t field, Source& source, int threads) {
    const StreamOptions options = stream_options(threads, 1 << 28, "auto", nb::none());
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return changed_parts(*metadata.file, field, *source.elements, options);
    };
    return take(run());
}

}  // namespace

void define_metadata(nb::module_& m) {
    m.def("xxh3", [](const nb::bytes& b) {
        return xxh3({reinterpret_cast<const std::byte*>(b.c_str()), b.size()});
    });
    define_data_files(m);
    define_field_facts(m);
    define_field_plan(m);
    nb::class_<WrittenMetadata>(m, "WrittenMetadata")
        .def_ro("bytes_read", &WrittenMetadata::bytes_read)
        .def_ro("metadata_bytes", &WrittenMetadata::metadata_bytes);
    nb::class_<PyMetadata>(m, "Metadata")
        .def("__init__",
             [](PyMetadata* self, const std::string& path) {
                 auto file = take(MetadataFile::open(path));
                 // Python's text cannot hold any other: histories from before names were checked
                 // have some.
                 for (const FieldMetadata& field : file->directory().fields) {
                     if (is_utf8(field.name)) continue;
                     take(Result<>(Error{ErrorCode::damaged,
                                         path + ": the name of field '" + readable(field.name) +
                                             "' is not UTF-8: capture it again under another name"}));
                 }
                 for (const DataFile& data : file->directory().data_files) {
                     if (is_utf8(data.path)) continue;
                     take(Result<>(Error{ErrorCode::damaged, path + ": the path of data file '" +
                                                                 readable(data.path) +
                                                                 "' is not UTF-8: index the data again"}));
                 }
                 new (self) PyMetadata{std::move(file)};
             })
        .def_prop_ro("path", [](const PyMetadata& self) { return self.file->path(); })
        .def_prop_ro("bytes_elsewhere", [](const PyMetadata& self) { return self.file->elsewhere().size(); })
        .def(
            "read_residues_from",
            [](PyMetadata& self, std::shared_ptr<RecordStore> record, std::uint32_t difference) {
                read_residues_from(std::move(record), difference, *self.file);
            },
            "record"_a, "difference"_a)
        .def_prop_ro("step", [](const PyMetadata& self) { return self.file->directory().step; })
        .def_prop_ro("rank", [](const PyMetadata& self) { return self.file->directory().rank; })
        .def_prop_ro("status", [](const PyMetadata& self) { return self.file->directory().status; })
        .def_prop_ro("bytes", [](const PyMetadata& self) { return self.file->file().size(); })
        .def_prop_ro("bytes_read", [](const PyMetadata& self) { return self.file->bytes_read(); })
        .def_prop_ro("fields",
                     [](const PyMetadata& self) {
                         std::vector<PyFieldFacts> list;
                         list.reserve(self.file->directory().fields.size());
                         for (const FieldMetadata& f : self.file->directory().fields)
                             list.push_back({{self.file, &f}});
                         return list;
                     })
        .def(
            "has_field",
            [](const PyMetadata& self, std::string_view name) {
                const auto& fields = self.file->directory().fields;
                return std::any_of(fields.begin(), fields.end(),
                                   [&](const FieldMetadata& field) { return field.name == name; });
            },
            "name"_a)
        .def_prop_ro("data_files",
                     [](const PyMetadata& self) {
                         const auto& files = self.file->directory().data_files;
                         std::vector<PyDataFile> list;
                         for (std::uint32_t i = 0; i < files.size(); ++i)
                             list.push_back({self.file->data_path(i), files[i].stamp});
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
    m.def("changed_parts", &changed, "metadata"_a, "field"_a, "source"_a, "threads"_a = 0);
    m.def("write_metadata", &written, "path"_a, "step"_a, "rank"_a, "data_files"_a, "fields"_a, "sources"_a,
          "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto", "progress"_a = nb::none(),
          "durable"_a = true, "status"_a = std::uint64_t{0});
}

}  // namespace twinrun
