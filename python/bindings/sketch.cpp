// Sketches: digests of arrays that stay where the arrays are, on a device or the host, and what two of them say.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <map>
#include <optional>
#include <variant>

#include "shared.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/host_sketch.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace twinrun;

namespace {

constexpr int kHost = -1;  // as a device's number

struct PySketch {
    std::variant<HostSketch, DeviceSketch> sketch;

    [[nodiscard]] const DeviceSketch* on_device() const { return std::get_if<DeviceSketch>(&sketch); }
    [[nodiscard]] int device() const { return on_device() == nullptr ? kHost : on_device()->device(); }
    [[nodiscard]] const FieldMetadata& field() const {
        return std::visit([](const auto& s) -> const FieldMetadata& { return s.field(); }, sketch);
    }
    [[nodiscard]] std::uint64_t bytes() const {
        return std::visit([](const auto& s) { return s.bytes(); }, sketch);
    }
};

using Sketches = nb::typed<nb::list, PySketch>;

Sketches as_list(std::vector<std::optional<PySketch>>& sketches) {
    nb::list list;
    for (std::optional<PySketch>& s : sketches)
        list.append(nb::cast(std::move(*s)));
    return Sketches(list);
}

// One batch a device, and one of the host.
Sketches sketch_fields(const CapturedFields& fields, double atol, double rtol, unsigned residue_bits,
                       std::uint32_t chunk_bytes, const std::string& digest, int threads) {
    const std::vector<CapturedField>& captured = fields.fields;
    HistorySettings settings;
    settings.tolerance = {atol, rtol};
    settings.residue_bits = residue_bits;
    settings.chunk_bytes = chunk_bytes;
    settings.kind = parse_digest(digest);
    const StreamOptions options = stream_options(threads, 1 << 28, "auto", nb::none());
    std::vector<std::optional<PySketch>> made(captured.size());
    const auto work = [&]() -> Result<> {
        std::vector<FieldMetadata> planned;
        planned.reserve(captured.size());
        std::map<int, std::vector<std::size_t>> of_device;
        for (std::size_t i = 0; i < captured.size(); ++i) {
            TWR_TRY(FieldMetadata field, plan_captured(captured[i], settings));
            planned.push_back(std::move(field));
            of_device[captured[i].device ? captured[i].device->device : kHost].push_back(i);
        }
        for (const auto& [device, numbers] : of_device) {
            if (device == kHost) {
                std::vector<MemorySource> sources;
                std::vector<const FieldMetadata*> mine;
                std::vector<ElementSource*> elements;
                sources.reserve(numbers.size());  // pointers to these are kept
                for (const std::size_t i : numbers) {
                    const CapturedField& f = captured[i];
                    const std::uint64_t stride = f.stride == 0 ? item_bytes(f.dtype) : f.stride;
                    sources.emplace_back(f.dtype, planned[i].items(), f.data, stride, false);
                    mine.push_back(&planned[i]);
                    elements.push_back(&sources.back());
                }
                TWR_TRY(auto sketches, HostSketch::build(mine, elements, options));
                for (std::size_t k = 0; k < numbers.size(); ++k)
                    made[numbers[k]].emplace(PySketch{std::move(sketches[k])});
                continue;
            }
            std::vector<const FieldMetadata*> mine;
            std::vector<const DeviceArray*> arrays;
            for (const std::size_t i : numbers) {
                mine.push_back(&planned[i]);
                arrays.push_back(&*captured[i].device);
            }
            TWR_TRY(auto sketches, DeviceSketch::build(mine, arrays));
            for (std::size_t k = 0; k < numbers.size(); ++k)
                made[numbers[k]].emplace(PySketch{std::move(sketches[k])});
        }
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return as_list(made);
}

// Sketches in host memory, brought to a device in one block.
Result<> upload(std::span<const HostSketch* const> from, int device,
                std::span<std::optional<PySketch>* const> into) {
    std::vector<const FieldMetadata*> fields;
    std::vector<const BuiltField*> built;
    for (const HostSketch* s : from) {
        fields.push_back(&s->field());
        built.push_back(&s->built());
    }
    TWR_TRY(auto sketches, DeviceSketch::upload(fields, built, device));
    for (std::size_t i = 0; i < into.size(); ++i)
        into[i]->emplace(PySketch{std::move(sketches[i])});
    return success();
}

// Those of fields of a metadata file, as it was captured or indexed. device: kHost for host memory.
Sketches load_sketches(const PyMetadata& metadata, const std::vector<std::size_t>& fields, int device) {
    if (device != kHost) check_device(device);
    std::vector<std::optional<PySketch>> made(fields.size());
    const auto work = [&]() -> Result<> {
        std::vector<HostSketch> loaded;
        loaded.reserve(fields.size());
        for (const std::size_t f : fields) {
            if (f >= metadata.file->directory().fields.size()) {
                return Error{ErrorCode::invalid_argument, "no such field in the metadata"};
            }
            TWR_TRY(HostSketch sketch, HostSketch::load(*metadata.file, f));
            loaded.push_back(std::move(sketch));
        }
        std::vector<const HostSketch*> from;
        std::vector<std::optional<PySketch>*> into;
        for (std::size_t i = 0; i < loaded.size(); ++i) {
            if (device == kHost) made[i].emplace(PySketch{std::move(loaded[i])});
            from.push_back(&loaded[i]);
            into.push_back(&made[i]);
        }
        return device == kHost ? success() : upload(from, device, into);
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return as_list(made);
}

// Copies of sketches on another device, or the host.
Sketches move_sketches(const std::vector<PySketch*>& sketches, int device) {
    if (device != kHost) check_device(device);
    std::vector<std::optional<PySketch>> made(sketches.size());
    const auto work = [&]() -> Result<> {
        std::vector<HostSketch> downloaded;
        downloaded.reserve(sketches.size());  // pointers to these are kept
        std::vector<const HostSketch*> from;
        std::vector<std::optional<PySketch>*> into;
        for (std::size_t i = 0; i < sketches.size(); ++i) {
            const HostSketch* host = std::get_if<HostSketch>(&sketches[i]->sketch);
            if (host == nullptr) {
                TWR_TRY(HostSketch copy, HostSketch::download(*sketches[i]->on_device()));
                host = &downloaded.emplace_back(std::move(copy));
            }
            if (device == kHost) {
                made[i].emplace(PySketch{HostSketch(*host)});
            } else {
                from.push_back(host);
                into.push_back(&made[i]);
            }
        }
        return device == kHost ? success() : upload(from, device, into);
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return as_list(made);
}

// The root of each tree: one number for all coarse digests of a field; 0 where it has no element. A sketch on a device is read
// here, and not before.
std::vector<std::uint64_t> sketch_roots(const std::vector<PySketch*>& sketches) {
    std::vector<std::uint64_t> roots;
    roots.reserve(sketches.size());
    const auto work = [&]() -> Result<> {
        for (const PySketch* one : sketches) {
            if (one->field().settings.kind != DigestKind::linear) {
                return Error{ErrorCode::invalid_argument, "the root of a sketch is that of linear digests"};
            }
            const auto root = [](const BuiltField& built) { return built.tree.empty() ? 0 : built.tree[0]; };
            if (const HostSketch* host = std::get_if<HostSketch>(&one->sketch)) {
                roots.push_back(root(host->built()));
                continue;
            }
            BuiltField built;
            TWR_CHECK(one->on_device()->download(built));
            roots.push_back(root(built));
        }
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    return roots;
}

// What two sketches of a field say. Widths in x, where cells have one.
struct PySketchComparison {
    SketchComparison found;
    std::uint64_t elements;
    std::uint64_t chunk_elements;
    double cell;
    double coarse_cell;
};

PySketchComparison compared(SketchComparison found, const FieldMetadata& field) {
    const CellRule& rule = field.settings.rule;
    const bool wide = rule.kind == CellKind::absolute && field.settings.kind == DigestKind::linear;
    return {std::move(found), field.scalars(), field.chunking().chunk_scalars,
            wide ? std::ldexp(1.0, rule.fine_exponent) : 0.0,
            wide ? std::ldexp(1.0, rule.coarse_exponent()) : 0.0};
}

void define_comparison_of_sketches(nb::module_& m) {
    using C = PySketchComparison;
    nb::class_<C>(m, "SketchComparison", "What two sketches of a field say.")
        .def_ro("elements", &C::elements)
        .def_prop_ro("chunks", [](const C& self) { return self.found.chunks; })
        .def_prop_ro("chunks_flagged", [](const C& self) { return self.found.flagged.size(); })
        .def_prop_ro(
            "open",
            [](const C& self) {
                return nb::bytes(self.found.open.data(), self.found.open.size() * sizeof(std::uint32_t));
            },
            "Numbers of chunks that are not proven equal, as 32-bit words of this machine.")
        .def_prop_ro("proven_by_tree", [](const C& self) { return self.found.by_tree; })
        .def_prop_ro(
            "proven_by_cells",
            [](const C& self) { return std::vector(self.found.by_cells.begin(), self.found.by_cells.end()); })
        .def_ro("cell", &C::cell)
        .def_ro("coarse_cell", &C::coarse_cell)
        .def_ro("chunk_elements", &C::chunk_elements);
}

// pairs: (sketch, sketch, atol, rtol), each of both on one device or both on the host.
std::vector<PySketchComparison> compare_sketches(
    const std::vector<std::tuple<PySketch*, PySketch*, double, double>>& pairs, bool nan_equal) {
    std::vector<SketchComparison> found;
    const auto work = [&]() -> Result<> {
        found.reserve(pairs.size());
        for (const auto& [a, b, atol, rtol] : pairs) {
            const DifferenceRule rule{{atol, rtol}, nan_equal};
            auto one = [&, a = a, b = b]() -> Result<SketchComparison> {
                if (a->device() != b->device()) {
                    return Error{ErrorCode::mismatch, "the sketches lie on different devices"};
                }
                if (const DeviceSketch* device = a->on_device(); device != nullptr) {
                    return device->compare(*b->on_device(), rule);
                }
                return std::get<HostSketch>(a->sketch).compare(std::get<HostSketch>(b->sketch), rule);
            }();
            if (!one) return std::move(one).error().at("field '" + a->field().name + "'");
            found.push_back(std::move(*one));
        }
        return success();
    };
    Result<> result = success();
    {
        const nb::gil_scoped_release unlocked;
        result = work();
    }
    take(result);
    std::vector<PySketchComparison> list;
    for (std::size_t i = 0; i < found.size(); ++i)
        list.push_back(compared(std::move(found[i]), std::get<0>(pairs[i])->field()));
    return list;
}

}  // namespace

void twinrun::define_sketches(nb::module_& m) {
    nb::class_<PySketch>(m, "FieldSketch")
        .def_prop_ro("facts",
                     [](const PySketch& self) {
                         return FieldFacts{std::make_shared<const FieldMetadata>(self.field())};
                     })
        .def_prop_ro("device", &PySketch::device)
        .def_prop_ro("bytes", &PySketch::bytes);
    m.def("sketch_fields", &sketch_fields, "fields"_a, "atol"_a, "rtol"_a, "residue_bits"_a, "chunk_bytes"_a,
          "digest"_a, "threads"_a = 0);
    m.def("load_sketches", &load_sketches, "metadata"_a, "fields"_a, "device"_a);
    m.def("move_sketches", &move_sketches, "sketches"_a, "device"_a);
    m.def("sketch_roots", &sketch_roots, "sketches"_a,
          "The root of each sketch's tree, which is 0 where there is no element.");
    define_comparison_of_sketches(m);
    m.def("compare_sketches", &compare_sketches, "pairs"_a, "nan_equal"_a = true);
}
