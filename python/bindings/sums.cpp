// Sums of digests: read, and those of two runs held against each other.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "digest/sums.hpp"
#include "owned_array.hpp"
#include "shared.hpp"
#include "sketch/two_sums.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

using Words = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::uint64_t> words_of(const Words& array) { return {array.data(), array.size()}; }
std::span<const std::uint8_t> bytes_of(const Bytes& array) { return {array.data(), array.size()}; }

const FieldMetadata& field_of(const PyMetadata& metadata, std::size_t field) {
    const auto& fields = metadata.file->directory().fields;
    if (field >= fields.size()) raise({ErrorCode::invalid_argument, "no such field in the metadata"});
    return fields[field];
}

// A member of each element, as an array.
template <class T>
nb::object column(const std::vector<T>& elements, std::uint64_t T::*member) {
    std::vector<std::uint64_t> words;
    words.reserve(elements.size());
    for (const T& element : elements)
        words.push_back(element.*member);
    return owned_array(std::move(words));
}

BucketSums sums_from(const Words& buckets, const Words& coarse, const Words& fine, unsigned height) {
    if (coarse.size() != buckets.size() || fine.size() != buckets.size())
        raise({ErrorCode::invalid_argument, "a coarse and a fine sum for each bucket"});
    BucketSums made{std::vector<PartialSum>(buckets.size()), height};
    for (std::size_t i = 0; i < made.sums.size(); ++i)
        made.sums[i] = {buckets.data()[i], coarse.data()[i], fine.data()[i]};
    return made;
}

void check_buckets(std::uint32_t chunk_bytes, unsigned height) {
    const bool power =
        std::has_single_bit(chunk_bytes) && chunk_bytes >= kSmallestChunk && chunk_bytes <= kLargestChunk;
    if (!power || height > 8 || (std::uint64_t{chunk_bytes} << height) > kLargestChunk)
        raise({ErrorCode::invalid_argument, "impossible chunks or buckets"});
}

BucketSums sums_of(const PyMetadata& metadata, std::size_t field, bool whole) {
    field_of(metadata, field);
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return read_sums(*metadata.file, field, whole);
    };
    return take(run());
}

nb::object read_residues(const PyMetadata& metadata, std::size_t field, std::uint64_t first,
                         std::uint64_t count) {
    if (count > field_of(metadata, field).scalars())
        raise({ErrorCode::invalid_argument, "residues behind the end of the field"});
    std::vector<std::uint8_t> residues(count);
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        return metadata.file->residues(field, first, residues);
    };
    take(run());
    return owned_array(std::move(residues));
}

// What the sums of rows with these IDs are, for rows in memory; none where they would not be kept.
std::optional<BucketSums> sums_of_rows(const std::string& dtype, const Words& ids, std::uintptr_t address,
                                       std::uint64_t row_scalars, const Tolerance& tolerance,
                                       std::uint32_t chunk_bytes, bool tokens) {
    const DType type = parse_dtype(dtype);
    check_buckets(chunk_bytes, 0);
    DigestSettings settings;
    settings.tolerance = tolerance;
    settings.rule =
        take(tokens ? cell_rule(settings.tolerance, 0) : cell_rule(settings.tolerance, 0, scalar_type(type)));
    settings.chunk_bytes = chunk_bytes;
    auto placement = RowPlacement::of_ids({ids.data(), ids.data() + ids.size()}, row_scalars);
    if (!placement) return std::nullopt;
    std::optional<PartialSums> sums;
    {
        const nb::gil_scoped_release unlocked;
        sums = PartialSums::plan(settings, scalar_type(type),
                                 std::make_shared<const RowPlacement>(std::move(*placement)));
        if (sums) {
            sums->add(dense_view(type, reinterpret_cast<const void*>(address)), 0, row_scalars * ids.size());
        }
    }
    if (!sums) return std::nullopt;
    return BucketSums{sums->finish(), sums->height()};
}

// Rows of bytes into an array: starts in items of item_bytes, which a row has a whole number of.
void put_rows(const nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& to,
              const Bytes& rows, const Words& starts, std::uint64_t item_bytes) {
    const std::uint64_t count = starts.size();
    if (count == 0) return;
    const std::uint64_t row = rows.size() / count;
    bool fits = item_bytes != 0 && rows.size() % count == 0 && row % item_bytes == 0 && row <= to.size();
    for (std::uint64_t i = 0; fits && i < count; ++i)
        fits = starts.data()[i] <= (to.size() - row) / item_bytes;
    if (!fits) raise({ErrorCode::invalid_argument, "rows that do not fit the array"});
    const nb::gil_scoped_release unlocked;
    scatter_rows(std::as_bytes(bytes_of(rows)), words_of(starts), row, item_bytes,
                 reinterpret_cast<std::byte*>(to.data()));
}

std::vector<SumsOfPart> views_of(const std::vector<const BucketSums*>& parts, const FieldMetadata& field) {
    std::vector<SumsOfPart> views;
    for (const BucketSums* part : parts) {
        check_buckets(field.settings.chunk_bytes, part->height);
        views.push_back({part->sums, part->height});
    }
    return views;
}

// (first scalar, count)
using Stretches = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

void keep(TwoSums& self, const Stretches& scalars) {
    std::vector<Range> ranges;
    for (const auto& [first, count] : scalars)
        ranges.push_back({first, checked_add(first, count).value_or(~std::uint64_t{0})});
    self.keep(ranges);
}

Stretches open_scalars(const TwoSums& self, std::uint64_t scalars) {
    Stretches found;
    for (const Range& range : self.open_scalars(scalars))
        found.emplace_back(range.begin, range.size());
    return found;
}

nb::object places_of(const TwoSums& self, const Words& buckets) {
    auto found = self.at(words_of(buckets));
    return found ? owned_array(std::move(*found)) : nb::none();
}

bool settle(TwoSums& self, const Words& starts, std::uint64_t row_scalars, const Bytes& a, const Bytes& b) {
    if (!self.residues_help() || row_scalars == 0 || a.size() != b.size() || a.size() % row_scalars != 0 ||
        a.size() / row_scalars != starts.size()) {
        raise({ErrorCode::invalid_argument, "residues that do not fit their rows"});
    }
    const nb::gil_scoped_release unlocked;
    return self.settle(words_of(starts), row_scalars, bytes_of(a), bytes_of(b));
}

void define_buckets(nb::module_& m) {
    nb::class_<BucketSums>(m, "BucketSums", "Sums of digests, by bucket in ascending order.")
        .def(
            "__init__",
            [](BucketSums* self, const Words& buckets, const Words& coarse, const Words& fine,
               unsigned height) { new (self) BucketSums(sums_from(buckets, coarse, fine, height)); },
            "buckets"_a, "coarse"_a, "fine"_a, "height"_a)
        .def_ro("height", &BucketSums::height, "A bucket has 2^height chunks.")
        .def_prop_ro("buckets", [](const BucketSums& self) { return column(self.sums, &PartialSum::bucket); })
        .def_prop_ro("coarse", [](const BucketSums& self) { return column(self.sums, &PartialSum::coarse); })
        .def_prop_ro("fine", [](const BucketSums& self) { return column(self.sums, &PartialSum::fine); });
}

void define_two_sums(nb::module_& m) {
    nb::class_<TwoSums>(m, "TwoSums", "The sums of one field of two runs, and which buckets they prove.")
        .def(
            "__init__",
            [](TwoSums* self, const PyMetadata& metadata, std::size_t field, const Tolerance& wanted,
               const std::vector<const BucketSums*>& of_a, const std::vector<const BucketSums*>& of_b) {
                const FieldMetadata& own = field_of(metadata, field);
                const auto a = views_of(of_a, own);
                const auto b = views_of(of_b, own);
                const nb::gil_scoped_release unlocked;
                new (self) TwoSums(own, wanted, a, b);
            },
            "metadata"_a, "field"_a, "wanted"_a, "of_a"_a, "of_b"_a,
            "metadata, field: of either run. of_a, of_b: of all parts of each run.")
        .def_prop_ro("height", &TwoSums::height, "A bucket has 2^height chunks.")
        .def_prop_ro("bucket_scalars", &TwoSums::bucket_scalars)
        .def_prop_ro(
            "buckets",
            [](const TwoSums& self) {
                return owned_array(std::vector<std::uint64_t>(self.buckets().begin(), self.buckets().end()));
            })
        .def_prop_ro(
            "open",
            [](const TwoSums& self) {
                return owned_array(std::vector<std::uint8_t>(self.open().begin(), self.open().end()));
            })
        .def_prop_ro("count", &TwoSums::count, "Buckets that are compared.")
        .def_prop_ro("count_open", &TwoSums::count_open)
        .def("open_scalars", &open_scalars, "scalars"_a,
             "(first, count) of each stretch of scalars in open buckets, of an array of so many.")
        .def("keep", &keep, "scalars"_a,
             "Compares only the buckets that hold these stretches of scalars: (first, count).")
        .def("at", &places_of, "buckets"_a,
             "Their positions in `buckets`. None where a run has no sums of one of them.")
        .def_prop_ro("residues_help", &TwoSums::residues_help, "Whether residues can prove open buckets.")
        .def("settle", &settle, "starts"_a, "row_scalars"_a, "a"_a, "b"_a,
             "Takes the residues of all rows of some buckets, one a byte, and closes the buckets that they "
             "prove. starts: of each row the index of its first scalar. False: a run has no sums of one.")
        .def_prop_ro("held_by_both", &TwoSums::held_by_both, "Both runs have sums of every bucket.")
        .def_prop_ro("identical", &TwoSums::identical, "Both runs have the same sums of every bucket.")
        .def(
            "is_sum_of",
            [](const TwoSums& self, const std::vector<const BucketSums*>& parts) {
                std::vector<SumsOfPart> views;
                for (const BucketSums* part : parts)
                    views.push_back({part->sums, part->height});
                return self.is_sum_of(views);
            },
            "parts"_a, "Whether these add up to the fine sums of the first run.");
}

}  // namespace

void define_sums(nb::module_& m) {
    define_buckets(m);
    m.def("read_sums", &sums_of, "metadata"_a, "field"_a, "whole"_a);
    m.def("read_residues", &read_residues, "metadata"_a, "field"_a, "first"_a, "count"_a);
    m.def("sums_of_rows", &sums_of_rows, "dtype"_a, "ids"_a, "address"_a, "row_scalars"_a, "tolerance"_a,
          "chunk_bytes"_a, "tokens"_a = false);
    m.def("put_rows", &put_rows, "to"_a, "rows"_a, "starts"_a, "item_bytes"_a);
    define_two_sums(m);
    m.def("id_stride", &id_stride, "row_scalars"_a);
}

}  // namespace twinrun
