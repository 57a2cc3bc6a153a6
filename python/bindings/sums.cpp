// Sums of digests: read, added up, and checked against residues.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <bit>
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

// Sums as an array of words: bucket, coarse, fine.
nb::object sums_array(const std::vector<PartialSum>& sums) {
    std::vector<std::uint64_t> words;
    words.reserve(sums.size() * 3);
    for (const PartialSum& s : sums)
        words.insert(words.end(), {s.bucket, s.coarse, s.fine});
    return owned_array(std::move(words));
}

std::vector<PartialSum> sums_from(std::span<const std::uint64_t> words) {
    if (words.size() % 3 != 0) raise({ErrorCode::invalid_argument, "sums are three words each"});
    std::vector<PartialSum> sums(words.size() / 3);
    for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = {words[3 * i], words[3 * i + 1], words[3 * i + 2]};
    return sums;
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
nb::object read_sums(const PyMetadata& metadata, std::size_t field, bool whole) {
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
    return sums_array(take(run()));
}

nb::object add_up(const std::vector<std::pair<Words, unsigned>>& parts, unsigned height,
                  const std::string& dtype, std::uint32_t chunk_bytes) {
    const ChunkShape shape = shape_from(dtype, chunk_bytes, 0, height);
    std::vector<std::vector<PartialSum>> kept;
    std::vector<SumsOfPart> views;
    kept.reserve(parts.size());
    for (const auto& [words, own] : parts) {
        if (own > height) raise({ErrorCode::invalid_argument, "sums of a higher level"});
        kept.push_back(sums_from(words_of(words)));
        views.push_back({kept.back(), own});
    }
    std::vector<PartialSum> added;
    {
        const nb::gil_scoped_release unlocked;
        added = add_sums(views, height, shape.blocks_per_chunk);
    }
    return sums_array(added);
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

constexpr std::size_t kBucketWords = 11;

// As many words a bucket: bucket, correction, scalars without an estimate, and how many have |c| = 0 to 7.
nb::object residues_of_buckets(const Words& starts, std::uint64_t row_scalars, const Bytes& a, const Bytes& b,
                               unsigned bits, const std::string& dtype, std::uint32_t chunk_bytes,
                               unsigned height) {
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
    std::vector<std::uint64_t> words;
    words.reserve(found.size() * kBucketWords);
    for (const BucketResidues& r : found) {
        words.insert(words.end(), {r.bucket, r.correction, r.beyond});
        words.insert(words.end(), r.counts.begin(), r.counts.end());
    }
    return owned_array(std::move(words));
}

// What the sums of rows with these IDs are, for rows in memory: (sums, height), or None where they would not be kept.
nb::object sums_of_rows(const std::string& dtype, const Words& ids, std::uintptr_t address,
                        std::uint64_t row_scalars, double atol, double rtol, std::uint32_t chunk_bytes) {
    const DType type = parse_dtype(dtype);
    static_cast<void>(shape_from(dtype, chunk_bytes, 0, 0));
    DigestSettings settings;
    settings.tolerance = {atol, rtol};
    settings.rule = take(cell_rule(settings.tolerance, 0));
    settings.chunk_bytes = chunk_bytes;
    auto placement = RowPlacement::of_ids({ids.data(), ids.data() + ids.size()}, row_scalars);
    if (!placement) return nb::none();
    std::optional<PartialSums> sums;
    {
        const nb::gil_scoped_release unlocked;
        sums = PartialSums::plan(settings, scalar_type(type),
                                 std::make_shared<const RowPlacement>(std::move(*placement)));
        if (sums) {
            sums->add(dense_view(type, reinterpret_cast<const void*>(address)), 0, row_scalars * ids.size());
        }
    }
    if (!sums) return nb::none();
    return nb::make_tuple(sums_array(sums->finish()), sums->height());
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

// Of each bucket, 1 if it is proven: its words as residues_of_buckets returns them, and the fine sums of both runs.
nb::object buckets_proven(const PyProof& self, const Words& words, const Words& fine_a, const Words& fine_b) {
    const std::size_t n = fine_a.size();
    if (words.size() != n * kBucketWords || fine_b.size() != n)
        raise({ErrorCode::invalid_argument, "sums that do not fit the residues of their buckets"});
    std::vector<std::uint8_t> proven(n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t* const of = words.data() + i * kBucketWords;
        BucketResidues residues{of[0], of[1], of[2], {}};
        std::copy_n(of + 3, residues.counts.size(), residues.counts.begin());
        proven[i] = self.proof.residues_say(residues, fine_a.data()[i], fine_b.data()[i]).proven;
    }
    return owned_array(std::move(proven));
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
        .def("buckets_proven", &buckets_proven, "words"_a, "fine_a"_a, "fine_b"_a)
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
