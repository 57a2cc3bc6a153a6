// Sums of digests: read, added up, and checked against residues.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "digest/sums.hpp"
#include "owned_array.hpp"
#include "shared.hpp"
#include "sketch/proof.hpp"

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

// Sums of one height, by bucket.
struct BucketSums {
    std::vector<PartialSum> sums;
    unsigned height = 0;
};

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

ChunkShape shape_from(const std::string& dtype, std::uint32_t chunk_bytes, unsigned bits, unsigned height) {
    const bool power =
        std::has_single_bit(chunk_bytes) && chunk_bytes >= kSmallestChunk && chunk_bytes <= kLargestChunk;
    if (!power || height > 8 || (std::uint64_t{chunk_bytes} << height) > kLargestChunk ||
        (bits != 0 && bits != 2 && bits != 4)) {
        raise({ErrorCode::invalid_argument, "impossible chunks, buckets or residues"});
    }
    return chunk_shape(scalar_type(parse_dtype(dtype)), chunk_bytes, bits);
}

// The field's own sums; of a field that is a whole array, those of its chunks.
BucketSums read_sums(const PyMetadata& metadata, std::size_t field, bool whole) {
    const FieldMetadata& f = field_of(metadata, field);
    const auto run = [&]() -> Result<std::vector<PartialSum>> {
        const nb::gil_scoped_release unlocked;
        if (!whole) return metadata.file->sums(field);
        const auto words = [&](Section section, std::uint64_t offset,
                               std::uint64_t count) -> Result<std::vector<std::uint64_t>> {
            std::vector<std::uint64_t> read(count);
            TWR_CHECK(metadata.file->read(field, section, offset, std::as_writable_bytes(std::span(read))));
            if constexpr (std::endian::native == std::endian::big) {
                for (auto& word : read)
                    word = __builtin_bswap64(word);
            }
            return read;
        };
        if (f.settings.kind != DigestKind::linear)
            return Error{ErrorCode::unsupported, "published digests do not add up"};
        const TreeLayout tree = f.tree();
        TWR_TRY(const auto coarse, words(Section::tree, f.chunks() == 0 ? 0 : tree.first(0) * 8, f.chunks()));
        TWR_TRY(const auto fine, words(Section::fine, 0, f.section_bytes(Section::fine) / 8));
        return sums_of_whole(coarse, fine, f.scalars(), f.chunking());
    };
    return {take(run()), whole ? 0U : f.sums.height};
}

BucketSums add_up(const std::vector<const BucketSums*>& parts, unsigned height, const std::string& dtype,
                  std::uint32_t chunk_bytes) {
    const ChunkShape shape = shape_from(dtype, chunk_bytes, 0, height);
    std::vector<SumsOfPart> views;
    for (const BucketSums* part : parts) {
        if (part->height > height) raise({ErrorCode::invalid_argument, "sums of a higher level"});
        views.push_back({part->sums, part->height});
    }
    std::vector<PartialSum> added;
    {
        const nb::gil_scoped_release unlocked;
        added = add_sums(views, height, shape.blocks_per_chunk);
    }
    return {std::move(added), height};
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

// What the residues of both runs say, by bucket.
struct ComparedResidues {
    std::vector<BucketResidues> buckets;
};

ComparedResidues residues_of_buckets(const Words& starts, std::uint64_t row_scalars, const Bytes& a,
                                     const Bytes& b, unsigned bits, const std::string& dtype,
                                     std::uint32_t chunk_bytes, unsigned height) {
    const ChunkShape shape = shape_from(dtype, chunk_bytes, bits, height);
    if (bits == 0 || row_scalars == 0 || a.size() != b.size() || a.size() % row_scalars != 0 ||
        a.size() / row_scalars != starts.size()) {
        raise({ErrorCode::invalid_argument, "residues that do not fit their rows"});
    }
    std::vector<BucketResidues> found;
    {
        const nb::gil_scoped_release unlocked;
        found =
            compare_residues(words_of(starts), row_scalars, bytes_of(a), bytes_of(b), bits, shape, height);
    }
    return {std::move(found)};
}

// What the sums of rows with these IDs are, for rows in memory; none where they would not be kept.
std::optional<BucketSums> sums_of_rows(const std::string& dtype, const Words& ids, std::uintptr_t address,
                                       std::uint64_t row_scalars, double atol, double rtol,
                                       std::uint32_t chunk_bytes) {
    const DType type = parse_dtype(dtype);
    static_cast<void>(shape_from(dtype, chunk_bytes, 0, 0));
    DigestSettings settings;
    settings.tolerance = {atol, rtol};
    settings.rule = take(cell_rule(settings.tolerance, 0));
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

// What a field's metadata proves under a tolerance (sketch/proof.hpp).
struct PyProof {
    PyProof(const PyMetadata& metadata, std::size_t field, double atol, double rtol)
        : wanted{atol, rtol}, proof(field_of(metadata, field), wanted) {}
    Tolerance wanted;
    ChunkProof proof;
};

using Counts = std::array<std::uint64_t, 8>;

// Of each bucket, 1 if its residues and the fine sums of both runs prove it.
nb::object buckets_proven(const PyProof& self, const ComparedResidues& residues, const Words& fine_a,
                          const Words& fine_b) {
    const std::size_t n = residues.buckets.size();
    if (fine_a.size() != n || fine_b.size() != n)
        raise({ErrorCode::invalid_argument, "sums that do not fit the residues of their buckets"});
    std::vector<std::uint8_t> proven(n);
    for (std::size_t i = 0; i < n; ++i) {
        proven[i] = self.proof.residues_say(residues.buckets[i], fine_a.data()[i], fine_b.data()[i]).proven;
    }
    return owned_array(std::move(proven));
}

ComparedResidues residues_from(const Words& buckets, const Words& corrections, const Words& without_estimate,
                               const std::vector<Counts>& counts) {
    const std::size_t n = buckets.size();
    if (corrections.size() != n || without_estimate.size() != n || counts.size() != n)
        raise({ErrorCode::invalid_argument, "facts of each bucket"});
    ComparedResidues made;
    for (std::size_t i = 0; i < n; ++i) {
        made.buckets.push_back(
            {buckets.data()[i], corrections.data()[i], without_estimate.data()[i], counts[i]});
    }
    return made;
}

// Of the chosen buckets together: how many scalars have |c| = 0 to 7.
Counts counts_of(const ComparedResidues& self, const Bytes& chosen) {
    if (chosen.size() != self.buckets.size())
        raise({ErrorCode::invalid_argument, "a choice for each bucket"});
    Counts counts{};
    for (std::size_t i = 0; i < self.buckets.size(); ++i) {
        if (chosen.data()[i] == 0) continue;
        for (std::size_t c = 0; c < counts.size(); ++c)
            counts[c] += self.buckets[i].counts[c];
    }
    return counts;
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
    nb::class_<ComparedResidues>(m, "ComparedResidues",
                                 "What the residues of both runs say, by bucket in ascending order.")
        .def(
            "__init__",
            [](ComparedResidues* self, const Words& buckets, const Words& corrections,
               const Words& without_estimate, const std::vector<Counts>& counts) {
                new (self) ComparedResidues(residues_from(buckets, corrections, without_estimate, counts));
            },
            "buckets"_a, "corrections"_a, "without_estimate"_a, "counts"_a,
            "corrections: what the fine sums must differ by. without_estimate: scalars whose residues do not "
            "say by how many cells they differ. counts: of each bucket, how many scalars differ by 0 to 7.")
        .def_prop_ro(
            "buckets",
            [](const ComparedResidues& self) { return column(self.buckets, &BucketResidues::bucket); })
        .def("counts_of", &counts_of, "chosen"_a,
             "Of the buckets whose byte is not 0, together: how many scalars differ by 0 to 7 cells.");
}

ProvenDrift drift_of(std::uint64_t by_tree, const Counts& by_cells, double cell, double coarse_cell) {
    return {by_tree, by_cells, cell, coarse_cell};
}

void define_proof(nb::module_& m) {
    nb::class_<PyProof>(m, "Proof")
        .def(nb::init<const PyMetadata&, std::size_t, double, double>(), "metadata"_a, "field"_a, "atol"_a,
             "rtol"_a)
        .def_prop_ro("by_tree", [](const PyProof& self) { return self.proof.by_tree(); })
        .def_prop_ro("widest", [](const PyProof& self) { return self.proof.widest(); })
        .def_prop_ro("cell", [](const PyProof& self) { return self.proof.drift().cell; })
        .def_prop_ro("coarse_cell", [](const PyProof& self) { return self.proof.drift().coarse_cell; })
        .def("buckets_proven", &buckets_proven, "residues"_a, "fine_a"_a, "fine_b"_a)
        .def(
            "largest_unread",
            [](const PyProof& self, std::uint64_t by_tree, const Counts& by_cells) {
                ProvenDrift proven = self.proof.drift();
                proven.by_tree = by_tree;
                proven.by_cells = by_cells;
                return largest_unread(proven, self.wanted);
            },
            "by_tree"_a, "by_cells"_a);
    m.def("largest_of_all", [](double read, double unread) {
        const LargestOfAll largest = largest_of_all(read, unread);
        return std::pair{largest.value, largest.is_bound};
    });
    m.def("least_unread",
          [](const Counts& by_cells, double cell) { return least_unread(drift_of(0, by_cells, cell, 0)); });
    m.def(
        "sum_squares_of_all",
        [](double read, std::uint64_t by_tree, const Counts& by_cells, double cell, double coarse_cell,
           double atol, double rtol) {
            return sum_squares_of_all(read, drift_of(by_tree, by_cells, cell, coarse_cell), {atol, rtol});
        },
        "read"_a, "by_tree"_a, "by_cells"_a, "cell"_a, "coarse_cell"_a, "atol"_a, "rtol"_a);
}

}  // namespace

void define_sums(nb::module_& m) {
    define_buckets(m);
    m.def("read_sums", &read_sums, "metadata"_a, "field"_a, "whole"_a);
    m.def("add_sums", &add_up, "parts"_a, "height"_a, "dtype"_a, "chunk_bytes"_a);
    m.def("read_residues", &read_residues, "metadata"_a, "field"_a, "first"_a, "count"_a);
    m.def("residues_of_buckets", &residues_of_buckets, "starts"_a, "row_scalars"_a, "a"_a, "b"_a, "bits"_a,
          "dtype"_a, "chunk_bytes"_a, "height"_a);
    m.def("sums_of_rows", &sums_of_rows, "dtype"_a, "ids"_a, "address"_a, "row_scalars"_a, "atol"_a, "rtol"_a,
          "chunk_bytes"_a);
    m.def("put_rows", &put_rows, "to"_a, "rows"_a, "starts"_a, "item_bytes"_a);
    define_proof(m);
    m.def("id_stride", &id_stride, "row_scalars"_a);
}

}  // namespace twinrun
