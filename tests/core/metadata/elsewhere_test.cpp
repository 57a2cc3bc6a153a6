// Metadata whose residues are not in its file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "metadata/metadata.hpp"
#include "metadata/verify.hpp"
#include "support/faulty_file_system.hpp"
#include "support/metadata_content.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using Folder = testing::FreshFolder;
using testing::Bytes;
using testing::expect_same;
using testing::make_field;
using testing::random_items;
using testing::read_everything;
using testing::sections_of;
using testing::slurp;
using testing::small_content;
using testing::spill;
using testing::write_file;
using testing::write_sections;
using testing::Written;

// Small fields beside a large one, in any order; some without residues, with sums and without.
Written random_content(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Written content = random() % 2 == 0 ? small_content() : Written();
    if (content.directory.data_files.empty()) content.directory.data_files.push_back({"x.data", {4096, 1}});
    const std::size_t fields = 1 + random() % 40;
    for (std::size_t f = 0; f < fields; ++f) {
        const unsigned bits = std::array{0U, 2U, 4U}[random() % 3];
        const std::uint64_t items = random() % 8 == 0 ? random() % 400'000 : random() % 3000;
        const std::string name = "more" + std::to_string(f);
        content.directory.fields.push_back(make_field(name, DType::f32, {items}, {1e-3, 0}, bits));
        FieldMetadata& field = content.directory.fields.back();
        content.sections.push_back(sections_of(field, random_items(field, seed + f)));
    }
    return content;
}

struct Parts {
    std::string path;
    Bytes rest;
};

Parts write_parts(const Folder& folder, const Written& content) {
    Parts parts{folder / "parts.twm", {}};
    auto writer =
        MetadataWriter::create(posix_file_system(), parts.path, content.directory, ResiduePlace::elsewhere);
    EXPECT_TRUE(writer.ok());
    (*writer)->may_replace();
    EXPECT_TRUE(write_sections(**writer, content).ok());
    EXPECT_TRUE((*writer)->commit().ok());
    const MetadataRest rest = (*writer)->take_residues();
    parts.rest.assign(rest.bytes.data(), rest.bytes.data() + rest.size);
    return parts;
}

std::shared_ptr<InputFile> file_of(const Bytes& bytes) {
    return InputFile::elsewhere("rest", bytes.size(),
                                [&bytes](const std::string&, std::uint64_t offset, std::span<std::byte> to) {
                                    std::memcpy(to.data(), bytes.data() + offset, to.size());
                                    return success();
                                });
}

bool has_residues(const Written& content) {
    return std::any_of(content.sections.begin(), content.sections.end(),
                       [](const auto& sections) { return !sections[2].empty(); });
}

void expect_sections(MetadataFile& file, const Written& content) {
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            Bytes all(content.sections[f][s].size());
            ASSERT_TRUE(file.read(f, static_cast<Section>(s), 0, all).ok());
            ASSERT_EQ(all, content.sections[f][s]) << f << ", " << s;
        }
    }
}

TEST(MetadataElsewhere, BothPartsAreTheWhole) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(seed);
        const Folder folder;
        const Written content = random_content(seed);
        const Parts parts = write_parts(folder, content);
        const Bytes head = slurp(parts.path);
        EXPECT_EQ(parts.rest.empty(), !has_residues(content));
        // With what lies elsewhere at hand.
        auto file = MetadataFile::open(parts.path);
        ASSERT_TRUE(file.ok()) << file.error().message;
        EXPECT_EQ((*file)->elsewhere().size(), parts.rest.size());
        EXPECT_EQ((*file)->has_residues(), parts.rest.empty());
        EXPECT_TRUE(verify(**file).ok());
        (*file)->take_residues_from(file_of(parts.rest));
        EXPECT_TRUE((*file)->has_residues());
        expect_sections(**file, content);
        EXPECT_TRUE(verify(**file).ok());
        expect_same((*file)->directory(), content.read_back());
        // In its place: the file that has its residues itself.
        Bytes whole = head;
        const auto at = static_cast<std::ptrdiff_t>((*file)->elsewhere().begin);
        whole.insert(whole.begin() + at, parts.rest.begin(), parts.rest.end());
        EXPECT_EQ(whole.size(), (*file)->whole_bytes());
        const std::string path = folder / "whole.twm";
        ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
        EXPECT_TRUE(slurp(path) == whole);
        auto joined = MetadataFile::open(path);
        ASSERT_TRUE(joined.ok()) << joined.error().message;
        EXPECT_EQ((*joined)->elsewhere().size(), 0U);
        EXPECT_EQ(residues_apart((*joined)->directory(), whole.size()), (*file)->elsewhere());
        EXPECT_EQ((*joined)->header_checksum(), (*file)->header_checksum());
        expect_sections(**joined, content);
        EXPECT_TRUE(verify(**joined).ok());
    }
}

// Residues that the caller keeps: their checksums alone give the same file.
TEST(MetadataElsewhere, ChecksumsStandForResidues) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(seed);
        const Folder folder;
        Written content = random_content(seed);
        content.directory.fields.push_back(make_field("large", DType::f32, {100'000}, {1e-3, 0}, 4));
        content.sections.push_back(sections_of(content.directory.fields.back(),
                                               random_items(content.directory.fields.back(), seed)));
        const Parts parts = write_parts(folder, content);
        const std::string path = folder / "kept.twm";
        auto writer =
            MetadataWriter::create(posix_file_system(), path, content.directory, ResiduePlace::elsewhere);
        ASSERT_TRUE(writer.ok());
        constexpr auto kResidues = static_cast<std::size_t>(Section::residues);
        ResidueLayout layout;
        Written others = content;
        for (std::size_t f = 0; f < content.sections.size(); ++f) {
            const Bytes residues = std::exchange(others.sections[f][kResidues], {});
            const std::uint64_t at = layout.add(residues.size());
            std::vector<std::uint64_t> sums;
            for (std::size_t from = 0; from < residues.size(); from += kPageBytes)
                sums.push_back(
                    xxh3(std::span(residues).subspan(from, std::min(kPageBytes, residues.size() - from))));
            if (!residues.empty()) {
                EXPECT_FALSE((*writer)->write_residue_checksums(f, at + 64, sums).ok());
                std::vector<std::uint64_t> more = sums;
                more.push_back(1);
                EXPECT_FALSE((*writer)->write_residue_checksums(f, at, more).ok());
                EXPECT_TRUE(std::equal(residues.begin(), residues.end(),
                                       parts.rest.begin() + static_cast<std::ptrdiff_t>(at)));
            }
            ASSERT_TRUE((*writer)->write_residue_checksums(f, at, sums).ok());
        }
        EXPECT_EQ(layout.size(), parts.rest.size());
        ASSERT_TRUE(write_sections(**writer, others).ok());
        ASSERT_TRUE((*writer)->commit().ok());
        const MetadataRest rest = (*writer)->take_residues();
        EXPECT_EQ(rest.size, parts.rest.size());
        EXPECT_EQ(rest.bytes.data(), nullptr);
        EXPECT_TRUE(slurp(path) == slurp(parts.path));
    }
}

// The same fields always lie at the same places: a record finds equal residues again.
TEST(MetadataElsewhere, EqualFieldsHaveEqualPlaces) {
    const Folder folder;
    Written content = random_content(1);
    const Parts first = write_parts(folder, content);
    ASSERT_FALSE(first.rest.empty());
    for (FieldMetadata& field : content.directory.fields) {
        if (field.name != "more0") continue;
        field.counts.nans += 1;  // any other number in the directory
    }
    EXPECT_EQ(write_parts(folder, content).rest, first.rest);
}

TEST(MetadataElsewhere, ResiduesThatAreNotAtHandAreAnError) {
    const Folder folder;
    const Written content = random_content(2);
    const Parts parts = write_parts(folder, content);
    auto file = MetadataFile::open(parts.path);
    ASSERT_TRUE(file.ok());
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            Bytes all(content.sections[f][s].size());
            const bool is_there = static_cast<Section>(s) != Section::residues || all.empty();
            const auto read = (*file)->read(f, static_cast<Section>(s), 0, all);
            ASSERT_EQ(read.ok(), is_there);
            if (is_there) {
                EXPECT_EQ(all, content.sections[f][s]);
            } else {
                EXPECT_EQ(read.error().code, ErrorCode::not_found);
            }
        }
    }
}

TEST(MetadataElsewhere, OtherResiduesAreDamage) {
    const Folder folder;
    const Written content = small_content();
    Parts parts = write_parts(folder, content);
    std::size_t found = 0;
    for (std::size_t at = 0; at < parts.rest.size(); at += 61) {
        parts.rest[at] ^= std::byte{1};
        auto file = MetadataFile::open(parts.path);
        ASSERT_TRUE(file.ok());
        (*file)->take_residues_from(file_of(parts.rest));
        const auto checked = verify(**file);
        found += !checked ? 1 : 0;
        if (!checked) {
            EXPECT_EQ(checked.error().code, ErrorCode::damaged);
        }
        parts.rest[at] ^= std::byte{1};
    }
    EXPECT_GT(found, 10U);
}

// A file that lost its end is damaged, but for one case: all that is lost are the residues, and it is
// a captured step's. A journal, which knows the size, says then whether they are in a record.
TEST(MetadataElsewhere, TruncatedFilesStayDamage) {
    std::size_t exceptions = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE(seed);
        const Folder folder;
        const Written content = random_content(seed);
        const std::string path = folder / "x.twm";
        ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
        const Bytes whole = slurp(path);
        const Parts parts = write_parts(folder, content);
        Bytes head = slurp(parts.path);
        std::vector<std::size_t> sizes{head.size() - 1, head.size(), head.size() + 1, whole.size() - 1};
        for (std::size_t size = 0; size < whole.size(); size += kPageBytes)
            sizes.push_back(size);
        for (const std::size_t size : sizes) {
            if (size >= whole.size()) continue;
            const bool same = size == head.size() && std::equal(head.begin(), head.end(), whole.begin());
            const auto part = std::span(whole).first(size);
            spill(path, part);
            const auto opened = MetadataFile::open(path);
            exceptions += same ? 1 : 0;
            if (same) {
                ASSERT_TRUE(opened.ok());
                EXPECT_FALSE((*opened)->has_residues());
                continue;
            }
            // Sections that lie elsewhere than it seems have other checksums.
            ASSERT_FALSE(opened.ok() && verify(**opened).ok()) << size << " of " << whole.size();
            if (!opened) {
                EXPECT_EQ(opened.error().code, ErrorCode::damaged);
            }
        }
        if (parts.rest.empty()) continue;
        for (std::size_t less = 0; less < head.size(); less += kPageBytes) {
            spill(path, std::span(head).first(less));
            const auto opened = MetadataFile::open(path);
            EXPECT_FALSE(opened.ok() && verify(**opened).ok()) << less << " of " << head.size();
        }
        head.resize(head.size() + kPageBytes);
        spill(path, head);
        const auto longer = MetadataFile::open(path);
        EXPECT_FALSE(longer.ok() && verify(**longer).ok());
    }
    EXPECT_GT(exceptions, 0U);
}

// Metadata beside files of other programs has no record.
TEST(MetadataElsewhere, IsOfCapturedStepsOnly) {
    for (const bool captured : {true, false}) {
        const Folder folder;
        Written content = testing::one_field(100'000, 1);
        content.directory.data_files.push_back({"x.data", {4096, 1}});
        if (!captured) content.directory.fields[0].format = "npy";
        const auto opened = MetadataFile::open(write_parts(folder, content).path);
        ASSERT_EQ(opened.ok(), captured);
        if (!captured) {
            EXPECT_EQ(opened.error().code, ErrorCode::damaged);
        }
    }
}

}  // namespace
}  // namespace twinrun
