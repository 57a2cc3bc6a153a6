// The files in tests/golden, which were written from the specification without twinrun.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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

class Good : public testing::TestWithParam<const char*> {};
class Shared : public Good {};  // laid out as twinrun does: short sections share pages

TEST_P(Good, HoldsWhatItsDataGives) {
    auto opened = MetadataFile::open((kGolden / "v1" / GetParam()).string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    MetadataFile& file = **opened;
    for (std::size_t f = 0; f < file.directory().fields.size(); ++f) {
        const FieldMetadata& field = file.directory().fields[f];
        SCOPED_TRACE(field.name);
        const std::size_t item = item_bytes(field.dtype);
        Bytes items;
        for (const Extent& e : field.extents) {
            const Bytes data = slurp(file.data_path(e.file));
            ASSERT_EQ(data.size(), file.directory().data_files[e.file].stamp.size);
            for (std::uint64_t i = 0; i < e.count; ++i) {
                const auto from = data.begin() + static_cast<std::ptrdiff_t>(e.offset + i * e.stride);
                items.insert(items.end(), from, from + static_cast<std::ptrdiff_t>(item));
            }
        }
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

TEST_P(Shared, IsWrittenAgainByteForByte) {
    auto opened = MetadataFile::open((kGolden / "v1" / GetParam()).string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    std::string name = (fs::temp_directory_path() / "twinrun-golden-XXXXXX").string();
    const fs::path folder = ::mkdtemp(name.data());
    {
        auto writer =
            MetadataWriter::create(posix_file_system(), (folder / "x.twm").string(), (*opened)->directory());
        ASSERT_TRUE(writer.ok()) << writer.error().message;
        for (std::size_t f = 0; f < (*opened)->directory().fields.size(); ++f) {
            for (std::size_t s = 0; s < kSections; ++s) {
                const auto section = static_cast<Section>(s);
                Bytes content((*opened)->directory().fields[f].place(section).length);
                ASSERT_TRUE((*opened)->read(f, section, 0, content).ok());
                ASSERT_TRUE((*writer)->write(f, section, 0, content).ok());
            }
        }
        const auto committed = (*writer)->commit();
        ASSERT_TRUE(committed.ok()) << committed.error().message;
    }
    EXPECT_EQ(slurp(folder / "x.twm"), slurp(kGolden / "v1" / GetParam()));
    fs::remove_all(folder);
}

constexpr auto kStem = [](const auto& each) { return fs::path(each.param).stem().string(); };
INSTANTIATE_TEST_SUITE_P(Version1, Good,
                         testing::Values("empty.twm", "mixed.twm", "mixed_shared.twm", "packed.twm",
                                         "small.twm", "small_shared.twm"),
                         kStem);
INSTANTIATE_TEST_SUITE_P(Version1, Shared,
                         testing::Values("empty.twm", "mixed_shared.twm", "small_shared.twm"), kStem);

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
    ASSERT_GT(manifest.size(), 20U);
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
