// Metadata files: read, checked, and written for data that lie elsewhere.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <filesystem>

#include "base/checksum.hpp"
#include "metadata/verify.hpp"
#include "shared.hpp"
#include "sketch/build.hpp"
#include "sketch/changed_parts.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

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
    m.def("changed_parts", &changed, "metadata"_a, "field"_a, "source"_a, "threads"_a = 0);
    m.def("write_metadata", &write_metadata, "path"_a, "step"_a, "rank"_a, "data_files"_a, "fields"_a,
          "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30, "io"_a = "auto", "progress"_a = nb::none(),
          "durable"_a = true, "status"_a = std::uint64_t{0});
}

}  // namespace twinrun
