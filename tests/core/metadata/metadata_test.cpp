// Whole files of metadata: read back, cut, damaged, and gone stale.
#include "metadata/metadata.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "digest/field61.hpp"
#include "support/metadata_content.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Folder = testing::FreshFolder;
using testing::Bytes;
using testing::expect_same;
using testing::give_sums;
using testing::make_field;
using testing::one_field;
using testing::random_items;
using testing::read_everything;
using testing::sections_of;
using testing::slurp;
using testing::small_content;
using testing::spill;
using testing::write_file;
using testing::Written;

// ---- whole files ----

TEST(MetadataFile, RoundTrip) {
    const Folder folder;
    const Written content = small_content();
    const std::string path = folder / "x.twm";
    const auto written = write_file(posix_file_system(), path, content);
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_EQ(folder.names().size(), 1U);
    auto opened = MetadataFile::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    MetadataFile& file = **opened;
    expect_same(content.read_back(), file.directory());
    EXPECT_EQ(file.find("time"), 2U);
    EXPECT_EQ(file.find("no such field"), std::nullopt);
    EXPECT_EQ(file.data_path(0), folder / "data.bin");
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const Bytes& expected = content.sections[f][s];
            ASSERT_EQ(file.directory().fields[f].place(section).length, expected.size());
            // For direct reads; shorter ones share pages.
            const std::size_t alignment = expected.size() >= kPageBytes ? kPageBytes : 8;
            EXPECT_EQ(file.directory().fields[f].place(section).offset % alignment, 0U);
            Bytes all(expected.size());
            ASSERT_TRUE(file.read(f, section, 0, all).ok());
            EXPECT_EQ(all, expected) << f << ", " << s;
            // Any part.
            for (std::size_t at = 0; at < expected.size(); at += 1 + expected.size() / 7) {
                Bytes part(std::min<std::size_t>(expected.size() - at, 1 + expected.size() / 3));
                ASSERT_TRUE(file.read(f, section, at, part).ok());
                EXPECT_TRUE(
                    std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(at)));
            }
            Bytes beyond(expected.size() + 1);
            EXPECT_FALSE(file.read(f, section, 0, beyond).ok());
        }
        const auto sums = file.sums(f);
        ASSERT_TRUE(sums.ok()) << sums.error().message;
        EXPECT_EQ(*sums.operator->(),
                  content.sums.contains(f) ? content.sums.at(f).sums : std::vector<PartialSum>());
        // Nodes by their positions.
        const TreeLayout layout = file.directory().fields[f].tree();
        if (layout.nodes() == 0) continue;
        MetadataNodes nodes(file, f);
        std::vector<std::uint64_t> words;
        const std::vector<Range> ranges{{0, 1}, {layout.nodes() - 1, layout.nodes()}};
        ASSERT_TRUE(nodes.read(std::span(ranges).first(layout.nodes() > 1 ? 2 : 1), words).ok());
        const std::size_t node = node_words(file.directory().fields[f].settings.kind) * 8;
        EXPECT_EQ(std::memcmp(words.data(), content.sections[f][0].data(), node), 0);
        EXPECT_EQ(std::memcmp(words.data() + words.size() - node / 8,
                              content.sections[f][0].data() + content.sections[f][0].size() - node, node),
                  0);
    }
    EXPECT_GT(file.bytes_read(), 0U);
}

TEST(MetadataFile, OfNoFieldsAndOfEmptyFieldsIsReadable) {
    const Folder folder;
    Written content;
    ASSERT_TRUE(write_file(posix_file_system(), folder / "none.twm", content).ok());
    EXPECT_TRUE(read_everything(folder / "none.twm").ok());
    content.directory.fields.push_back(make_field("empty", DType::f32, {0}, {1e-3, 0}, 4));
    content.directory.fields.push_back(make_field("scalar", DType::f16, {}, {1e-3, 0}, 4));
    for (auto& field : content.directory.fields)
        content.sections.push_back(sections_of(field, random_items(field, 1)));
    ASSERT_TRUE(write_file(posix_file_system(), folder / "some.twm", content).ok());
    auto opened = MetadataFile::open(folder / "some.twm");
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ((*opened)->directory().fields[0].chunks(), 0U);
    EXPECT_EQ((*opened)->directory().fields[1].chunks(), 1U);
    EXPECT_TRUE(read_everything(folder / "some.twm").ok());
}

class MetadataFileOf : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Version, MetadataFileOf, ::testing::Values(1U, 2U),
                         ::testing::PrintToStringParamName());

TEST_P(MetadataFileOf, TruncatedAtEveryLengthIsRefused) {
    const Folder folder;
    const Written content = one_field(3, GetParam());
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    ASSERT_TRUE(read_everything(path).ok());
    EXPECT_EQ(MetadataFile::open(path).value()->directory().version, GetParam());
    const auto size = fs::file_size(path);
    for (std::uintmax_t length = size; length-- > 0;) {
        fs::resize_file(path, length);
        const auto result = MetadataFile::open(path);
        ASSERT_FALSE(result.ok()) << length;
        ASSERT_EQ(result.error().code, ErrorCode::damaged) << length;
        ASSERT_NE(result.error().message.find(path), std::string::npos);
    }
}

// Every byte of the file is either covered by a checksum that is checked before use, or is padding (spec/metadata.md).
TEST_P(MetadataFileOf, EveryFlippedBitIsSeenOrIsInPadding) {
    const Folder folder;
    const Written content = one_field(1100, GetParam());
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used;
    {
        auto file = MetadataFile::open(path);
        ASSERT_TRUE(file.ok());
        used.emplace_back(0, encode_directory((*file)->directory(), 0).size());
        for (const SectionPlace& place : (*file)->directory().fields[0].sections) {
            used.emplace_back(place.offset, place.offset + place.length);
            used.emplace_back(place.sums_offset, place.sums_offset + divide_up(place.length, kPageBytes) * 8);
        }
    }
    const Bytes good = slurp(path);
    std::size_t covered = 0;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (std::size_t at = 0; at < good.size(); ++at) {
        const bool is_used =
            std::any_of(used.begin(), used.end(), [&](auto r) { return r.first <= at && at < r.second; });
        if (!is_used) {
            ASSERT_EQ(good[at], std::byte{0}) << "padding is zero";
            if (at % 97 != 0) continue;
        }
        covered += is_used;
        for (unsigned bit = 0; bit < 8; ++bit) {
            if (is_used && at > 2000 && bit != at % 8)
                continue;  // inside sections one bit a byte says enough
            const char flipped = static_cast<char>(good[at] ^ static_cast<std::byte>(1U << bit));
            file.seekp(static_cast<std::streamoff>(at));
            file.write(&flipped, 1).flush();
            const auto result = read_everything(path);
            ASSERT_EQ(result.ok(), !is_used) << "byte " << at << ", bit " << bit;
            if (is_used) {
                ASSERT_EQ(result.error().code, ErrorCode::damaged) << result.error().message;
            }
        }
        const char original = static_cast<char>(good[at]);
        file.seekp(static_cast<std::streamoff>(at));
        file.write(&original, 1).flush();
    }
    EXPECT_GT(covered, GetParam() == 1 ? 900U : 900U + 180 * kPartialSumBytes);
}

TEST(MetadataFile, SaysWhetherItsDataChanged) {
    const Folder folder;
    Written content;
    content.directory.data_files.push_back({"data.bin", {}});
    content.directory.fields.push_back(make_field("x", DType::u8, {100}, {}, 0));
    content.directory.fields[0].extents.push_back({0, 0, 1, 100});
    content.directory.fields[0].format = "raw";
    const Bytes items = random_items(content.directory.fields[0], 1);
    spill(folder / "data.bin", items);
    content.sections.push_back(sections_of(content.directory.fields[0], items));
    content.directory.data_files[0].stamp = *stamp_of(folder / "data.bin").operator->();
    const std::string path = folder / "data.bin.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    const auto check = [&]() -> Result<> {
        TWR_TRY(const auto file, MetadataFile::open(path));
        return file->check_data_files();
    };
    EXPECT_TRUE(check().ok());

    const auto written = fs::last_write_time(path);
    fs::last_write_time(folder / "data.bin", written - std::chrono::hours(1));
    EXPECT_TRUE(check().ok()) << "a copy with another, older time";
    fs::last_write_time(folder / "data.bin", written + std::chrono::hours(1));
    EXPECT_EQ(check().error().code, ErrorCode::stale);

    fs::resize_file(folder / "data.bin", 99);
    const auto truncated = check();
    EXPECT_EQ(truncated.error().code, ErrorCode::damaged);
    EXPECT_NE(truncated.error().message.find("truncated"), std::string::npos) << truncated.error().message;
    fs::resize_file(folder / "data.bin", 101);
    EXPECT_EQ(check().error().code, ErrorCode::stale);
    EXPECT_NE(check().error().message.find("index it again"), std::string::npos);

    // Data of a history has no format. To index it again would take damage for its data.
    content.directory.fields[0].format.clear();
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    const auto grown = check();
    EXPECT_EQ(grown.error().code, ErrorCode::damaged);
    EXPECT_NE(grown.error().message.find("restore the history"), std::string::npos) << grown.error().message;
    fs::resize_file(folder / "data.bin", 99);
    EXPECT_NE(check().error().message.find("restore the history"), std::string::npos);
    fs::remove(folder / "data.bin");
    EXPECT_EQ(check().error().code, ErrorCode::not_found);
}

TEST(MetadataFile, DataOfAHistoryIsTouchedUnlessItHasTheRecordedTime) {
    const Folder folder;
    Written content;
    content.directory.data_files.push_back({"group.data", {}});
    content.directory.fields.push_back(make_field("x", DType::u8, {100}, {}, 0));
    content.directory.fields[0].extents.push_back({0, 0, 1, 100});
    const Bytes items = random_items(content.directory.fields[0], 1);
    spill(folder / "group.data", items);
    content.sections.push_back(sections_of(content.directory.fields[0], items));
    const auto now = stamp_of(folder / "group.data");
    ASSERT_TRUE(now.ok());
    const std::string path = folder / "rank-00000.twm";
    const auto touched = [&](std::int64_t recorded) {
        content.directory.data_files[0].stamp = {now->size, recorded};
        EXPECT_TRUE(write_file(posix_file_system(), path, content).ok());
        const auto file = MetadataFile::open(path);
        EXPECT_TRUE(file.ok());
        const auto found = (*file)->touched_data_file();
        EXPECT_TRUE(found.ok());
        fs::remove(path);
        return found->has_value();
    };
    EXPECT_FALSE(touched(now->mtime_ns));
    EXPECT_TRUE(touched(now->mtime_ns - 1)) << "later, but before its metadata";
    EXPECT_TRUE(touched(now->mtime_ns + 1'000'000)) << "earlier";
    EXPECT_TRUE(touched(0)) << "no time was recorded";
}

TEST(MetadataFile, MissingIsNotFound) {
    const Folder folder;
    EXPECT_EQ(MetadataFile::open(folder / "none.twm").error().code, ErrorCode::not_found);
}

// Right checksums, wrong numbers: what would go wrong when they are added up is refused.
TEST(MetadataFile, ImpossibleSumsAreDamaged) {
    const Folder folder;
    const std::uint64_t most = kIndexLimit / 1024 / 2;  // 1024 scalars a chunk, two chunks a bucket
    const auto reads = [&](std::vector<PartialSum> sums) {
        Written content = one_field(100, 2);
        give_sums(content, 0, {SumsKind::ids, 1, 0, 3, 999}, std::move(sums));
        EXPECT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
        const auto file = MetadataFile::open(folder / "x.twm").value();
        const auto read = file->sums(0);
        if (read.ok()) return true;
        EXPECT_EQ(read.error().code, ErrorCode::damaged);
        EXPECT_NE(read.error().message.find(folder / "x.twm"), std::string::npos);
        EXPECT_NE(read.error().message.find("impossible sums of field 'x'"), std::string::npos);
        return false;
    };
    EXPECT_TRUE(reads({}));
    EXPECT_TRUE(reads({{0, 0, 0}, {1, kPrime - 1, kPrime - 1}, {most - 1, 1, 2}}));
    EXPECT_FALSE(reads({{0, 0, 0}, {most, 1, 2}}));
    EXPECT_FALSE(reads({{std::numeric_limits<std::uint64_t>::max(), 1, 2}}));
    EXPECT_FALSE(reads({{3, 0, 0}, {3, 1, 2}}));
    EXPECT_FALSE(reads({{4, 0, 0}, {3, 1, 2}}));
    EXPECT_FALSE(reads({{4, kPrime, 0}}));
    EXPECT_FALSE(reads({{4, 0, kPrime}}));
    EXPECT_FALSE(reads({{4, 0, 1}, {5, std::numeric_limits<std::uint64_t>::max(), 0}}));
}

// One by one, by the definition of spec/digest.md, section 7.
std::uint8_t residue_at(const Bytes& section, std::size_t scalar, unsigned bits, std::size_t block) {
    const std::size_t per_line = 512 / bits;
    const std::size_t lines = divide_up(block, per_line);
    const std::size_t j = scalar % block % per_line;
    const std::size_t line = scalar / block * lines + scalar % block / per_line;
    std::uint64_t word = 0;
    for (std::size_t k = 8; k-- > 0;)
        word = word << 8 | static_cast<std::uint64_t>(section[line * 64 + j % 8 * 8 + k]);
    return static_cast<std::uint8_t>(word >> (bits * (j / 8)) & ((1U << bits) - 1));
}

TEST(MetadataFile, ResiduesOneByOne) {
    std::mt19937_64 random(test_seed(6));
    for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::c64, DType::f64}) {
        const std::size_t block = 4096 / item_bytes(scalar_type(dtype));
        const std::size_t pair = scalars_per_item(dtype);
        for (const unsigned bits : {2U, 4U}) {
            for (const std::size_t scalars :
                 {pair, block - pair, block, 2 * block + 2 * pair, 5 * block + 130}) {
                const Folder folder;
                Written content;
                content.directory.fields.push_back(
                    make_field("x", dtype, {scalars / pair}, {0.5, 0}, bits, DigestKind::linear, 8192));
                FieldMetadata& field = content.directory.fields[0];
                content.sections.push_back(sections_of(field, random_items(field, scalars)));
                ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
                const auto file = MetadataFile::open(folder / "x.twm").value();
                for (int round = 0; round < 12; ++round) {
                    const std::uint64_t first = round == 0 ? 0 : random() % scalars;
                    const std::uint64_t count =
                        round < 2 ? scalars - first : random() % (scalars - first + 1);
                    std::vector<std::uint8_t> found(count, 0xFF);
                    ASSERT_TRUE(file->residues(0, first, found).ok());
                    for (std::uint64_t i = 0; i < count; ++i)
                        ASSERT_EQ(found[i], residue_at(content.sections[0][2], first + i, bits, block)) << i;
                }
                std::vector<std::uint8_t> two(2);
                EXPECT_FALSE(file->residues(0, scalars - 1, two).ok());
                EXPECT_FALSE(file->residues(0, std::numeric_limits<std::uint64_t>::max(), two).ok());
            }
        }
    }
    const Folder folder;
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {10}, {0.5, 0}, 0));
    content.sections.push_back(
        sections_of(content.directory.fields[0], random_items(content.directory.fields[0], 1)));
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    std::vector<std::uint8_t> one(1);
    EXPECT_FALSE(MetadataFile::open(folder / "x.twm").value()->residues(0, 0, one).ok()) << "it has none";
}

}  // namespace
}  // namespace twinrun
