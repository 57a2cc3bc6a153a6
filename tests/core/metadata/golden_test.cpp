// The files in tests/golden, which were written from the specification without twinrun.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "metadata/metadata.hpp"
#include "tree/build.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

const fs::path kGolden = fs::path(TWINRUN_SOURCE_DIR) / "tests" / "golden";

Bytes slurp(const fs::path& path) {
    auto bytes = read_whole_file(path.string(), 1 << 24);
    EXPECT_TRUE(bytes.ok()) << path;
    return bytes.ok() ? std::move(bytes).value() : Bytes{};
}

// The items of a field, as they are stored.
Bytes items_of(const MetadataFile& file, const FieldMetadata& field) {
    const std::size_t item = item_bytes(field.dtype);
    Bytes items;
    for (const Extent& e : field.extents) {
        const Bytes data = slurp(file.data_path(e.file));
        EXPECT_EQ(data.size(), file.directory().data_files[e.file].stamp.size);
        for (std::uint64_t i = 0; i < e.count; ++i) {
            const auto from = data.begin() + static_cast<std::ptrdiff_t>(e.offset + i * e.stride);
            items.insert(items.end(), from, from + static_cast<std::ptrdiff_t>(item));
        }
    }
    EXPECT_EQ(items.size(), field.data_bytes());
    return items;
}

// Of an integer field in a file of ours.
std::vector<std::uint64_t> ids_of(const MetadataFile& file, const std::string& name) {
    const auto number = file.find(name);
    EXPECT_TRUE(number) << name;
    if (!number) return {};
    const FieldMetadata& field = file.directory().fields[*number];
    const Bytes items = items_of(file, field);
    const std::size_t item = item_bytes(field.dtype);
    std::vector<std::uint64_t> ids;
    for (std::size_t at = 0; at < items.size(); at += item) {
        std::uint64_t id = 0;
        for (std::size_t k = 0; k < item; ++k) {
            const std::size_t byte = field.byte_order == ByteOrder::big ? k : item - 1 - k;
            id = id << 8 | static_cast<std::uint64_t>(items[at + byte]);
        }
        const bool is_signed = field.dtype == DType::i16 || field.dtype == DType::i32;
        if (is_signed && id >> (item * 8 - 1) != 0) id |= ~std::uint64_t{0} << (item * 8);
        ids.push_back(id);
    }
    return ids;
}

class Good : public ::testing::TestWithParam<const char*> {};
class Apart : public Good {};  // laid out as twinrun does: short sections share pages, sums come last

TEST_P(Good, HoldsWhatItsDataGives) {
    auto opened = MetadataFile::open((kGolden / GetParam()).string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    MetadataFile& file = **opened;
    for (std::size_t f = 0; f < file.directory().fields.size(); ++f) {
        const FieldMetadata& field = file.directory().fields[f];
        SCOPED_TRACE(field.name);
        const Bytes items = items_of(file, field);
        ASSERT_EQ(items.size(), field.data_bytes());
        ElementView view = dense_view(field.dtype, items.data());
        view.swap = field.byte_order == ByteOrder::big;
        std::vector<ChunkDigest> digests(field.chunks());
        Bytes residues(field.section_bytes(Section::residues));
        ElementCounts counts;
        Digester(field.settings, scalar_type(field.dtype))
            .chunks(view, 0, field.scalars(), digests.data(), residues.data(), &counts);
        std::vector<std::uint64_t> leaves, fine, sums;
        for (const ChunkDigest& d : digests) {
            if (field.settings.kind == DigestKind::published) leaves.push_back(d.fine);
            leaves.push_back(d.coarse);
            fine.push_back(d.fine);
        }
        if (field.section_bytes(Section::fine) == 0) fine.clear();
        if (!items.empty()) sums.push_back(xxh3(items));
        const auto expect = [&](Section section, std::span<const std::byte> wanted) {
            Bytes stored(field.place(section).length);
            const auto read = file.read(f, section, 0, stored);
            ASSERT_TRUE(read.ok()) << read.error().message;
            ASSERT_EQ(stored.size(), wanted.size());
            EXPECT_TRUE(std::equal(stored.begin(), stored.end(), wanted.begin()));
        };
        expect(Section::tree, std::as_bytes(std::span<const std::uint64_t>(build_tree(
                                  field.settings.kind, field.chunking().blocks_per_chunk, leaves))));
        expect(Section::fine, std::as_bytes(std::span<const std::uint64_t>(fine)));
        expect(Section::residues, residues);
        expect(Section::data_sums, std::as_bytes(std::span<const std::uint64_t>(sums)));
        EXPECT_EQ(counts.nans, field.counts.nans);
        EXPECT_EQ(counts.tokens, field.counts.tokens);
    }
}

class Sums : public Good {};

TEST_P(Sums, AreThoseOfTheElements) {
    auto opened = MetadataFile::open((kGolden / GetParam()).string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    MetadataFile& file = **opened;
    ASSERT_GE(file.directory().version, 2U);
    std::size_t checked = 0;
    for (std::size_t f = 0; f < file.directory().fields.size(); ++f) {
        const FieldMetadata& field = file.directory().fields[f];
        SCOPED_TRACE(field.name);
        std::optional<RowPlacement> placement;
        SumsKind kind = SumsKind::none;
        if (!field.key.empty()) {
            const auto ids = ids_of(file, field.key);
            ASSERT_EQ(ids.size(), field.shape[0]);
            kind = SumsKind::ids;
            placement = RowPlacement::of_ids(ids, field.scalars() / ids.size());
            const auto [smallest, largest] = std::minmax_element(ids.begin(), ids.end());
            if (field.sums.kind == kind) {
                EXPECT_EQ(field.sums.smallest_id, *smallest);
                EXPECT_EQ(field.sums.largest_id, *largest);
            }
        } else if (field.partial()) {
            kind = SumsKind::place;
            placement = RowPlacement::of_box(field.shape, field.global_shape, field.global_offset,
                                             scalars_per_item(field.dtype));
        }
        const auto stored = file.sums(f);
        ASSERT_TRUE(stored.ok()) << stored.error().message;
        if (!placement) {
            EXPECT_EQ(field.sums, SumsFacts());
            EXPECT_TRUE(stored->empty());
            continue;
        }
        EXPECT_EQ(field.sums.kind, kind);
        auto sums = PartialSums::plan(field.settings, scalar_type(field.dtype),
                                      std::make_shared<const RowPlacement>(std::move(*placement)));
        ASSERT_TRUE(sums);
        ASSERT_LE(sums->height(), field.sums.height);
        const Bytes items = items_of(file, field);
        ElementView view = dense_view(field.dtype, items.data());
        view.swap = field.byte_order == ByteOrder::big;
        sums->add(view, 0, field.scalars());
        const auto made = sums->finish();
        const SumsOfPart part{made, sums->height()};
        EXPECT_EQ(add_sums({&part, 1}, field.sums.height, field.chunking().blocks_per_chunk),
                  *stored.operator->());
        // Two fields of these files have larger buckets than twinrun would take.
        EXPECT_EQ(sums->height() == field.sums.height, field.name != "energy" && field.name != "key");
        ++checked;
    }
    EXPECT_GE(checked, 2U);
}

TEST_P(Apart, IsWrittenAgainByteForByte) {
    auto opened = MetadataFile::open((kGolden / GetParam()).string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Directory directory = (*opened)->directory();
    for (FieldMetadata& field : directory.fields)
        field.sums = {};  // said last
    std::string name = (fs::temp_directory_path() / "twinrun-golden-XXXXXX").string();
    const fs::path folder = ::mkdtemp(name.data());
    {
        auto writer = MetadataWriter::create(posix_file_system(), (folder / "x.twm").string(), directory);
        ASSERT_TRUE(writer.ok()) << writer.error().message;
        for (std::size_t f = 0; f < directory.fields.size(); ++f) {
            for (const Section section :
                 {Section::tree, Section::fine, Section::residues, Section::data_sums}) {
                Bytes content((*opened)->directory().fields[f].place(section).length);
                ASSERT_TRUE((*opened)->read(f, section, 0, content).ok());
                ASSERT_TRUE((*writer)->write(f, section, 0, content).ok());
            }
            const SumsFacts& facts = (*opened)->directory().fields[f].sums;
            if (facts.kind == SumsKind::none) continue;
            const auto sums = (*opened)->sums(f);
            ASSERT_TRUE(sums.ok()) << sums.error().message;
            const auto written = (*writer)->write_sums(f, facts, *sums.operator->());
            ASSERT_TRUE(written.ok()) << written.error().message;
        }
        const auto committed = (*writer)->commit();
        ASSERT_TRUE(committed.ok()) << committed.error().message;
    }
    EXPECT_EQ(slurp(folder / "x.twm"), slurp(kGolden / GetParam()));
    fs::remove_all(folder);
}

constexpr auto kStem = [](const auto& each) { return fs::path(each.param).stem().string(); };
INSTANTIATE_TEST_SUITE_P(Version1, Good,
                         ::testing::Values("v1/empty.twm", "v1/mixed.twm", "v1/mixed_shared.twm",
                                           "v1/packed.twm", "v1/small.twm", "v1/small_shared.twm",
                                           "v1/small_apart.twm"),
                         kStem);
INSTANTIATE_TEST_SUITE_P(Version1, Apart, ::testing::Values("v1/empty.twm", "v1/small_apart.twm"), kStem);
const auto kVersion2 =
    ::testing::Values("v2/particles.twm", "v2/particles_shared.twm", "v2/placed.twm", "v2/placed_shared.twm",
                      "v2/placed_apart.twm", "v2/small.twm", "v2/small_shared.twm");
INSTANTIATE_TEST_SUITE_P(Version2, Good, kVersion2, kStem);
INSTANTIATE_TEST_SUITE_P(Version2, Sums, kVersion2, kStem);
INSTANTIATE_TEST_SUITE_P(Version2, Apart, ::testing::Values("v2/placed_apart.twm"), kStem);

const auto kVersion3 = ::testing::Values("v3/exact.twm", "v3/exact_shared.twm", "v3/exact_apart.twm",
                                         "v3/parted.twm", "v3/parted_shared.twm");
INSTANTIATE_TEST_SUITE_P(Version3, Good, kVersion3, kStem);
INSTANTIATE_TEST_SUITE_P(Version3, Sums, ::testing::Values("v3/parted.twm", "v3/parted_shared.twm"), kStem);
INSTANTIATE_TEST_SUITE_P(Version3, Apart, ::testing::Values("v3/exact_apart.twm"), kStem);

const auto kVersion4 = ::testing::Values("v4/words.twm", "v4/words_shared.twm", "v4/words_apart.twm",
                                         "v4/parted.twm", "v4/parted_shared.twm");
INSTANTIATE_TEST_SUITE_P(Version4, Good, kVersion4, kStem);
INSTANTIATE_TEST_SUITE_P(Version4, Sums, ::testing::Values("v4/parted.twm", "v4/parted_shared.twm"), kStem);
INSTANTIATE_TEST_SUITE_P(Version4, Apart, ::testing::Values("v4/words_apart.twm"), kStem);

// The error that reading all of a file gives, or "".
std::string complaint(const std::string& path) {
    const auto all = [&]() -> Result<> {
        TWR_TRY(const auto file, MetadataFile::open(path));
        for (std::size_t f = 0; f < file->directory().fields.size(); ++f) {
            for (std::size_t s = 0; s < kSections; ++s) {
                const auto section = static_cast<Section>(s);
                Bytes content(file->directory().fields[f].place(section).length);
                TWR_CHECK(file->read(f, section, 0, content));
            }
            TWR_TRY(const auto sums, file->sums(f));
            static_cast<void>(sums);
        }
        return success();
    };
    const auto result = all();
    return result.ok() ? "" : result.error().message;
}

TEST(Bad, FilesAreRefusedWithTheirOwnMessage) {
    std::ifstream stream(kGolden / "bad" / "manifest.json");
    const auto manifest = nlohmann::json::parse(stream, nullptr, false);
    ASSERT_TRUE(manifest.is_object());
    ASSERT_GT(manifest.size(), 50U);
    for (const auto& [name, expected] : manifest.items()) {
        const std::string path = (kGolden / "bad" / name).string();
        const std::string message = complaint(path);
        if (expected["twinrun"].is_null()) {
            EXPECT_EQ(message, "") << name;
        } else {
            EXPECT_NE(message.find(expected["twinrun"].get<std::string>()), std::string::npos)
                << name << ": " << message;
            EXPECT_TRUE(message.starts_with(path)) << message;
        }
    }
}

}  // namespace
}  // namespace twinrun
