// Comparison of one field, and the rules that it follows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>

#include "base/checked.hpp"
#include "comparison/result.hpp"
#include "engine/compare.hpp"
#include "engine/merge.hpp"
#include "engine/packed_results.hpp"
#include "shared.hpp"
#include "source/tuning.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

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

Method parse_method(const std::string& name) {
    if (name == "auto") return Method::automatic;
    if (name == "staged") return Method::staged;
    if (name == "direct") return Method::direct;
    if (name == "published") return Method::published;
    raise({ErrorCode::invalid_argument, "method must be auto, staged, direct or published"});
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

std::optional<std::uint64_t> index_or_none(std::uint64_t index) {
    return index == kNowhere ? std::nullopt : std::optional(index);
}

void define_stage(nb::module_& m) {
    using State = std::tuple<bool, std::uint64_t, std::uint64_t, std::uint64_t, double>;
    nb::class_<StageFacts>(m, "StageFacts", "What a stage of a comparison did.")
        .def(
            "__init__",
            [](StageFacts* self, bool ran, std::uint64_t chunks_in, std::uint64_t chunks_out,
               std::uint64_t bytes_read, double seconds) {
                new (self) StageFacts{ran, chunks_in, chunks_out, bytes_read, seconds};
            },
            nb::kw_only(), "ran"_a = true, "chunks_in"_a = std::uint64_t{0},
            "chunks_out"_a = std::uint64_t{0}, "bytes_read"_a = std::uint64_t{0}, "seconds"_a = 0.0)
        .def_ro("ran", &StageFacts::ran)
        .def_ro("chunks_in", &StageFacts::chunks_in)
        .def_ro("chunks_out", &StageFacts::chunks_out, "Left open; of elements: those with a difference.")
        .def_ro("bytes_read", &StageFacts::bytes_read, "Of both runs.")
        .def_ro("seconds", &StageFacts::seconds)
        .def(
            "__add__", [](const StageFacts& self, const StageFacts& other) { return self + other; },
            "other"_a)
        .def("__getstate__",
             [](const StageFacts& self) -> State {
                 return {self.ran, self.chunks_in, self.chunks_out, self.bytes_read, self.seconds};
             })
        .def("__setstate__", [](StageFacts& self, const State& state) {
            const auto& [ran, chunks_in, chunks_out, bytes_read, seconds] = state;
            new (&self) StageFacts{ran, chunks_in, chunks_out, bytes_read, seconds};
        });
}

// For another process of the same build.
using ResultState = std::tuple<nb::bytes, std::string, std::optional<std::string>>;

ResultState state_of(const PyFieldResult& self) {
    PackedResults packed(1);
    packed.put(0, self.result);
    const std::vector<std::byte> bytes = packed.bytes();
    std::optional<std::string> second;
    if (self.dtype_b) second = std::string(dtype_name(*self.dtype_b));
    return {nb::bytes(bytes.data(), bytes.size()), std::string(dtype_name(self.dtype)), second};
}

PyFieldResult result_of(const ResultState& state) {
    const auto& [bytes, dtype, second] = state;
    const PackedResults packed =
        take(PackedResults::from({static_cast<const std::byte*>(bytes.data()), bytes.size()}));
    if (packed.size() != 1 || !packed.has(0))
        raise({ErrorCode::damaged, "this is not the result of a comparison"});
    PyFieldResult result{packed.get(0), parse_dtype(dtype)};
    if (second) result.dtype_b = parse_dtype(*second);
    return result;
}

void define_what_was_found(nb::class_<PyFieldResult>& result) {
    using R = FieldResult;
    const auto add = [&](const char* name, auto get) {
        result.def_prop_ro(name, [get](const PyFieldResult& self) { return get(self.result); });
    };
    // An element's value, at a place that may be nowhere.
    const auto value = [&](const char* name, auto place, auto bits, bool of_b) {
        const std::string signature = "def " + std::string(name) + "(self, /) -> int | float | None";
        result.def_prop_ro(
            name,
            [place, bits, of_b](const PyFieldResult& self) {
                return place(self.result) == kNowhere
                           ? nb::object(nb::none())
                           : scalar_value(of_b ? self.second() : self.dtype, bits(self.result));
            },
            nb::for_getter(nb::sig(signature.c_str())));
    };
    const auto first = [](const R& r) { return r.read.first; };
    const auto largest = [](const R& r) { return r.read.max_abs_at; };
    add("method", [](const R& r) { return method_name(r.method); });
    add("reason", [](const R& r) { return r.reason; });
    add("io", [](const R& r) { return r.io; });
    add("device", [](const R& r) { return r.device; });
    add("device_reason", [](const R& r) { return r.device_reason; });
    add("device_seconds", [](const R& r) { return r.device_seconds; });
    add("scalars", [](const R& r) { return r.scalars; });
    add("chunks", [](const R& r) { return r.chunks; });
    add("different", [](const R& r) { return r.different(); });
    add("unread_different", [](const R& r) { return r.unread_different; });
    add("unread_begin", [](const R& r) { return index_or_none(r.unread_begin); });
    add("unread_end", [](const R& r) { return index_or_none(r.unread_end); });
    add("infinite", [](const R& r) { return r.read.infinite; });
    add("scalars_read", [](const R& r) { return r.read.scalars; });
    add("first", [](const R& r) { return index_or_none(r.read.first); });
    value(
        "first_a", first, [](const R& r) { return r.first_bits_a; }, false);
    value(
        "first_b", first, [](const R& r) { return r.first_bits_b; }, true);
    add("max_abs", [](const R& r) { return r.max_abs; });
    add("max_abs_is_bound", [](const R& r) { return r.max_abs_is_bound; });
    add("max_abs_unread", [](const R& r) { return r.max_abs_unread; });
    add("max_abs_read", [](const R& r) { return r.read.max_abs; });
    add("max_abs_at", [](const R& r) { return index_or_none(r.read.max_abs_at); });
    value(
        "max_abs_a", largest, [](const R& r) { return r.max_bits_a; }, false);
    value(
        "max_abs_b", largest, [](const R& r) { return r.max_bits_b; }, true);
    add("max_rel_read", [](const R& r) { return r.read.max_rel; });
    add("max_rel_at", [](const R& r) { return index_or_none(r.read.max_rel_at); });
    add("max_rel_different", [](const R& r) { return r.read.max_rel_different; });
    add("max_rel_different_at", [](const R& r) { return index_or_none(r.read.max_rel_different_at); });
    add("sum_squares", [](const R& r) { return r.read.sum_squares; });
    add("sum_squares_different", [](const R& r) { return r.read.sum_squares_different; });
    add("largest", [](const R& r) { return r.read.largest; });
    add("histogram", [](const R& r) { return std::vector(r.read.all.begin(), r.read.all.end()); });
    add("histogram_different",
        [](const R& r) { return std::vector(r.read.over.begin(), r.read.over.end()); });
    add("proven_by_tree", [](const R& r) { return r.proven.by_tree; });
    add("proven_by_cells",
        [](const R& r) { return std::vector(r.proven.by_cells.begin(), r.proven.by_cells.end()); });
    add("cell", [](const R& r) { return r.proven.cell; });
    add("coarse_cell", [](const R& r) { return r.proven.coarse_cell; });
    add("tree", [](const R& r) { return r.tree; });
    add("sketch", [](const R& r) { return r.sketch; });
    add("elements", [](const R& r) { return r.elements; });
    add("warnings", [](const R& r) { return r.warnings; });
}

void define_uses_of_results(nb::class_<PyFieldResult>& result) {
    result
        .def_prop_ro(
            "max_abs_at_least",
            [](const PyFieldResult& self) {
                return std::max(self.result.read.max_abs, least_unread(self.result.proven));
            },
            "A lower bound of the largest |a - b|.")
        .def(
            "sum_squares_of_all",
            [](const PyFieldResult& self, const Tolerance& tolerance) {
                if (self.result.unread_different != 0) return std::numeric_limits<double>::quiet_NaN();
                return sum_squares_of_all(self.result.read.sum_squares, self.result.proven, tolerance);
            },
            "tolerance"_a,
            "Of all scalars: exact where all were read, else what it does not exceed; NaN: no bound is "
            "known.")
        .def(
            "with_bytes_of_elements",
            [](PyFieldResult self, std::uint64_t bytes_read) {
                self.result.elements.bytes_read = bytes_read;
                return self;
            },
            "bytes_read"_a, "The same; reading the elements took so many bytes.")
        .def(
            "renumbered",
            [](PyFieldResult self, const std::map<std::uint64_t, std::uint64_t>& numbers) {
                const auto number_of = [&](std::uint64_t at) {
                    const auto known = numbers.find(at);
                    if (known == numbers.end()) throw nb::key_error("a place without a number");
                    return known->second;
                };
                self.result = renumbered(std::move(self.result), number_of);
                return self;
            },
            "numbers"_a, "The same with other places.")
        .def("__getstate__", &state_of)
        .def("__setstate__", [](PyFieldResult& self, const ResultState& state) {
            new (&self) PyFieldResult(result_of(state));
        });
}

void define_result(nb::module_& m) {
    nb::class_<PyFieldResult> result(m, "FieldResult", "What comparing a field found.");
    define_what_was_found(result);
    define_uses_of_results(result);
}

PyFieldResult merge_results(const std::vector<const PyFieldResult*>& parts,
                            const std::vector<std::uint64_t>& columns) {
    std::vector<const FieldResult*> results;
    for (const PyFieldResult* part : parts)
        results.push_back(&part->result);
    const PyFieldResult types = parts.empty()
                                    ? PyFieldResult{{}, DType::f32}
                                    : PyFieldResult{{}, parts.front()->dtype, parts.front()->dtype_b};
    auto whole = merged(results, ColumnOrder(columns, scalars_per_item(types.dtype)));
    if (!whole) throw nb::value_error(whole.error().message.c_str());  // a defect of twinrun
    return {std::move(whole).value(), types.dtype, types.dtype_b};
}

void define_merging(nb::module_& m) {
    m.def("merge_results", &merge_results, "parts"_a, "columns"_a = std::vector<std::uint64_t>(),
          "The result of disjoint parts of one field together. columns: the shape of a column-major array.");
    m.def(
        "with_sums",
        [](PyFieldResult read, const TwoSums& sums, std::uint64_t scalars, std::uint64_t by_tree,
           const StageFacts& tree, const StageFacts& sketch) {
            read.result = with_sums(std::move(read.result), sums, scalars, by_tree, tree, sketch);
            return read;
        },
        "read"_a, "sums"_a, "scalars"_a, "by_tree"_a, "tree"_a, "sketch"_a,
        "The result for all scalars, where sums left open those that were read. by_tree: scalars in buckets "
        "of equal sums. tree, sketch: what reading sums and residues took.");
    m.def(
        "result_of_keys",
        [](std::uint64_t same, std::uint64_t different) {
            return PyFieldResult{result_of_keys(same, different), DType::u64};
        },
        "same"_a, "different"_a,
        "The result for keys that rows were matched by. different: how many have no partner.");
}

PyCompareOptions compare_options(const std::string& method, int threads, std::uint64_t memory,
                                 const std::string& io, const std::string& cache, nb::object progress,
                                 const std::string& device, std::vector<int> devices) {
    const bool direct_storage = io == "gds";
    CompareOptions options;
    options.method = parse_method(method);
    options.stream = stream_options(threads, memory, direct_storage ? "auto" : io, progress);
    options.cache = parse_cache(cache);
    options.device = parse_device(device, std::move(devices), direct_storage);
    return {std::move(options), std::move(progress)};
}

// One run's side of a field: its elements, its metadata, or both.
struct PyFieldSide {
    Source* source;
    PyMetadata* metadata;
    std::size_t field;

    [[nodiscard]] FieldSide side() const {
        return {source == nullptr ? nullptr : source->elements.get(),
                metadata == nullptr ? nullptr : metadata->file.get(), field};
    }
    [[nodiscard]] DType dtype() const {
        if (metadata != nullptr) return metadata->file->directory().fields[field].dtype;
        return source != nullptr ? source->elements->dtype() : DType::f32;
    }
};

PyFieldSide field_side(Source* source, PyMetadata* metadata, std::size_t field) {
    if (metadata != nullptr && field >= metadata->file->directory().fields.size())
        raise({ErrorCode::invalid_argument, "no such field in the metadata"});
    return {source, metadata, field};
}

// ranges: (first, count)
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

PyFieldResult compare(const PyFieldSide& a, const PyFieldSide& b, const DifferenceRule& rule,
                      const PyCompareOptions& how, const std::optional<Ranges>& ranges,
                      std::vector<std::uint64_t> columns) {
    CompareOptions options = how.options;
    options.rule = rule;
    options.columns = std::move(columns);
    if (ranges) {
        options.ranges.emplace();
        for (const auto& [first, count] : *ranges)
            options.ranges->push_back(
                {first, checked_add(first, count).value_or(std::numeric_limits<std::uint64_t>::max())});
    }
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return compare_field(a.side(), b.side(), options);
    };
    PyFieldResult result{take(run()), a.dtype()};
    if (b.dtype() != a.dtype()) result.dtype_b = b.dtype();
    return result;
}

void define_options(nb::module_& m) {
    nb::class_<PyCompareOptions>(m, "CompareOptions", "How fields are compared, whatever their rules.")
        .def(
            "__init__",
            [](PyCompareOptions* self, const std::string& method, int threads, std::uint64_t memory,
               const std::string& io, const std::string& cache, nb::object progress,
               const std::string& device, std::vector<int> devices) {
                new (self) PyCompareOptions(compare_options(method, threads, memory, io, cache,
                                                            std::move(progress), device, std::move(devices)));
            },
            nb::kw_only(), "method"_a = "auto", "threads"_a = 0, "memory"_a = std::uint64_t{1} << 30,
            "io"_a = "auto", "cache"_a = "auto", "progress"_a = nb::none(), "device"_a = "auto",
            "devices"_a = std::vector<int>(),
            "progress(done, all): called now and then, by the thread that compares.");
    nb::class_<PyFieldSide>(m, "FieldSide", "One run's side of a field: its elements, its metadata, or both.")
        .def(
            "__init__",
            [](PyFieldSide* self, Source* source, PyMetadata* metadata, std::size_t field) {
                new (self) PyFieldSide(field_side(source, metadata, field));
            },
            "source"_a.none(), "metadata"_a.none() = nb::none(), "field"_a = 0, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>(), "field: its number in the metadata.");
}

}  // namespace

void define_comparison(nb::module_& m) {
    m.def("histogram_edges", [] {
        const auto& edges = histogram_tables().edges;
        return std::vector<double>(edges.begin(), edges.end());
    });
    m.def("check_tolerance", [](double atol, double rtol) { take(cell_rule({atol, rtol}, 0)); });
    m.def(
        "why_not_staged",
        [](const PyMetadata& a, std::size_t a_field, const PyMetadata& b, std::size_t b_field,
           const DifferenceRule& rule) {
            return why_not_staged(a.file->directory().fields.at(a_field),
                                  b.file->directory().fields.at(b_field), Method::automatic, rule);
        },
        "a"_a, "a_field"_a, "b"_a, "b_field"_a, "rule"_a);
    define_stage(m);
    define_result(m);
    define_merging(m);
    define_options(m);
    m.def("compare", &compare, "a"_a, "b"_a, "rule"_a, "options"_a, "ranges"_a = nb::none(),
          "columns"_a = std::vector<std::uint64_t>(),
          "ranges: (first scalar, count), ascending; None for the whole field. columns: the shape of a "
          "column-major array.");
    m.def(
        "range_unit",
        [](const std::string& dtype, const PyMetadata* metadata, std::size_t field) {
            return range_unit(parse_dtype(dtype),
                              metadata == nullptr ? nullptr : &metadata->file->directory().fields.at(field));
        },
        "dtype"_a, "metadata"_a.none() = nb::none(), "field"_a = 0);
    m.attr("RANGE_BYTES") = kRangeBytes;
}

}  // namespace twinrun
