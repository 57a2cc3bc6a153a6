// The writer of metadata: whole files or none, whatever fails.
#include "metadata/metadata.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "base/checked.hpp"
#include "support/faulty_file_system.hpp"
#include "support/metadata_content.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Folder = testing::FreshFolder;
using testing::Bytes;
using testing::expect_same;
using testing::make_field;
using testing::one_field;
using testing::random_items;
using testing::read_everything;
using testing::sections_of;
using testing::slurp;
using testing::small_content;
using testing::write_file;
using testing::write_sections;
using testing::Written;

// ---- the writer ----

TEST(MetadataWriter, LeavesNothingWithoutACommit) {
    const Folder folder;
    const Written content = small_content();
    {
        auto writer = MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(write_sections(**writer, content).ok());
    }
    EXPECT_EQ(folder.names().size(), 0U);
}

TEST(MetadataWriter, KeepsTheOldFileUntilTheNewOneIsWhole) {
    const Folder folder;
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, {}).ok());
    const Bytes before = slurp(path);
    {
        const Written content = small_content();
        auto writer = MetadataWriter::create(posix_file_system(), path, content.directory);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(write_sections(**writer, content).ok());
        EXPECT_EQ(slurp(path), before);
    }
    EXPECT_EQ(slurp(path), before);
    EXPECT_EQ(folder.names().size(), 1U);
    ASSERT_TRUE(write_file(posix_file_system(), path, small_content()).ok());
    EXPECT_TRUE(read_everything(path).ok());
    EXPECT_EQ(folder.names().size(), 1U);
}

// Beyond the size of files that are written by one call.
Written large_content() {
    Written content = small_content();
    content.directory.fields.push_back(make_field("large", DType::f32, {1 << 22}, {1e-3, 0}, 4));
    content.sections.push_back(
        sections_of(content.directory.fields.back(), random_items(content.directory.fields.back(), 9)));
    return content;
}

// Many small fields, whose sections are written together, on both sides of a large one.
Written many_content() {
    Written content = small_content();
    for (std::uint64_t f = 0; f < 900; ++f) {
        const bool large = f == 400;
        content.directory.fields.push_back(make_field("field" + std::to_string(f), DType::f32,
                                                      {large ? 1 << 20 : f * 37 % 9000}, {1e-3, 0}, 4));
        content.sections.push_back(
            sections_of(content.directory.fields.back(), random_items(content.directory.fields.back(), f)));
    }
    return content;
}

class MetadataWriterSizes : public ::testing::TestWithParam<Written (*)()> {};
INSTANTIATE_TEST_SUITE_P(MetadataWriter, MetadataWriterSizes,
                         ::testing::Values(&small_content, &large_content, &many_content),
                         [](const auto& each) {
                             return each.index == 0 ? "small" : each.index == 1 ? "large" : "many";
                         });

void expect_sections(const std::string& path, const Written& content) {
    auto file = MetadataFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            Bytes all(content.sections[f][s].size());
            ASSERT_TRUE((*file)->read(f, static_cast<Section>(s), 0, all).ok());
            ASSERT_EQ(all, content.sections[f][s]) << f << ", " << s;
        }
    }
}

TEST_P(MetadataWriterSizes, RoundTrip) {
    const Folder folder;
    const Written content = GetParam()();
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    EXPECT_EQ(fs::file_size(folder / "x.twm") > (1 << 20), GetParam() != &small_content);
    expect_sections(folder / "x.twm", content);
}

// More than the memory that is taken for small fields: the last ones are written one by one.
TEST(MetadataWriter, OfSmallFieldsThatAreMuchInAll) {
    const Folder folder;
    Written content;
    for (std::uint64_t f = 0; f < 620; ++f) {
        content.directory.fields.push_back(
            make_field("field" + std::to_string(f), DType::f32, {110'000}, {1e-3, 0}, 4));
        if (f == 0 || f > 560) {
            content.sections.push_back(sections_of(content.directory.fields.back(),
                                                   random_items(content.directory.fields.back(), f)));
        } else {
            content.sections.push_back(content.sections.front());
        }
    }
    testing::FaultyFileSystem system;
    ASSERT_TRUE(write_file(system, folder / "x.twm", content).ok());
    EXPECT_LE(system.operations(), 1000U);
    EXPECT_GE(system.operations(), 30U);
    expect_sections(folder / "x.twm", content);
}

TEST_P(MetadataWriterSizes, LeavesNothingAfterAnErrorAtAnyOperation) {
    const Written content = GetParam()();
    std::size_t operations = 0;
    {
        const Folder folder;
        testing::FaultyFileSystem system;
        ASSERT_TRUE(write_file(system, folder / "x.twm", content).ok());
        operations = system.operations();
    }
    // create, write, sync, close, rename, sync_folder; of a large file more writes: of a large field, and of all small ones
    // between two such fields.
    ASSERT_GE(operations, GetParam() == &small_content ? 6U : 12U);
    ASSERT_LE(operations, 30U);
    for (std::size_t at = 1; at <= operations; ++at) {
        const Folder folder;
        testing::FaultyFileSystem system;
        testing::Fault fault;
        fault.at = at;
        fault.error = {ErrorCode::no_space, "full"};
        fault.written_first = 5;
        system.inject(fault);
        const auto result = write_file(system, folder / "x.twm", content);
        ASSERT_FALSE(result.ok()) << at;
        EXPECT_EQ(result.error().code, ErrorCode::no_space);
        if (system.log().back().starts_with("sync_folder")) {  // it is whole by then, if perhaps not for long
            EXPECT_TRUE(read_everything(folder / "x.twm").ok());
        } else {
            EXPECT_EQ(folder.names().size(), 0U) << at << ": " << system.log().back();
        }
    }
}

TEST_P(MetadataWriterSizes, SurvivesAPowerCutAtAnyOperation) {
    const Written content = GetParam()();
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        for (std::size_t at = 1;; ++at) {
            const Folder folder;
            testing::FaultyFileSystem system;
            ASSERT_TRUE(write_file(system, folder / "x.twm", {}).ok());
            const Bytes before = slurp(folder / "x.twm");
            testing::Fault fault;
            fault.at = at;
            fault.dead_after = true;
            system.inject(fault);
            const bool committed = write_file(system, folder / "x.twm", content).ok();
            system.power_cut(seed);
            ASSERT_TRUE(read_everything(folder / "x.twm").ok()) << at;
            if (committed) {
                ASSERT_NE(slurp(folder / "x.twm"), before);
                break;
            }
        }
    }
}

TEST_P(MetadataWriterSizes, SumsComeBehindEverythingElse) {
    const Folder folder;
    const Written content = GetParam()();
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    const auto file = MetadataFile::open(folder / "x.twm").value();
    std::uint64_t end = 0;
    for (const FieldMetadata& field : file->directory().fields) {
        for (std::size_t s = 0; s < 4; ++s)
            end = std::max(
                {end, field.sections[s].offset + field.sections[s].length,
                 field.sections[s].sums_offset + divide_up(field.sections[s].length, kPageBytes) * 8});
    }
    for (const auto& [f, sums] : content.sums) {
        const SectionPlace& place = file->directory().fields[f].place(Section::sums);
        EXPECT_EQ(place.offset, round_up(end, kPageBytes));
        EXPECT_EQ(place.length, sums.sums.size() * kPartialSumBytes);
        EXPECT_EQ(place.sums_offset, place.offset + place.length);
        end = place.sums_offset + divide_up(place.length, kPageBytes) * 8;
    }
    EXPECT_EQ(fs::file_size(folder / "x.twm"), round_up(end, kPageBytes));
}

// As for a copy of metadata: how many buckets there are is known from the start.
TEST_P(MetadataWriterSizes, SumsMayBeLaidOutBeforehand) {
    const Folder folder;
    const Written content = GetParam()();
    {
        const auto writer =
            MetadataWriter::create(posix_file_system(), folder / "x.twm", content.read_back()).value();
        for (std::size_t f = 0; f < content.sections.size(); ++f) {
            for (std::size_t s = 0; s < kSections; ++s)
                ASSERT_TRUE(writer->write(f, static_cast<Section>(s), 0, content.sections[f][s]).ok());
        }
        EXPECT_FALSE(writer->write_sums(6, content.sums.at(6).facts, content.sums.at(6).sums).ok());
        ASSERT_TRUE(writer->commit().ok());
    }
    ASSERT_TRUE(read_everything(folder / "x.twm").ok());
    const auto file = MetadataFile::open(folder / "x.twm").value();
    expect_same(content.read_back(), file->directory());
    for (const auto& [f, sums] : content.sums)
        EXPECT_EQ(file->sums(f).value(), sums.sums);
}

TEST(MetadataWriter, RefusesSumsThatHaveNoPlace) {
    const Folder folder;
    Written content = one_field(100, 2);
    const auto [facts, sums] = content.sums.at(0);
    {
        const auto writer =
            MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory).value();
        EXPECT_FALSE(writer->write_sums(0, facts, std::span(sums).first(7)).ok());
        EXPECT_TRUE(writer->write_sums(0, facts, sums).ok());
        EXPECT_FALSE(writer->write_sums(0, facts, sums).ok()) << "twice";
    }
    content.directory.fields[0].key.clear();  // a whole array: a file of version 1
    const auto writer =
        MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory).value();
    EXPECT_FALSE(writer->write_sums(0, facts, sums).ok());
}

TEST(MetadataWriter, TakesTheLowestVersionThatHoldsItsFields) {
    const Folder folder;
    const auto version = [&](const std::function<void(FieldMetadata&)>& change) {
        Written content = one_field(100, 1);
        change(content.directory.fields[0]);
        EXPECT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
        return MetadataFile::open(folder / "x.twm").value()->directory().version;
    };
    EXPECT_EQ(version([](FieldMetadata&) {}), 1U);
    const auto place = [](FieldMetadata& f, std::uint64_t all) {
        f.global_shape = {all};
        f.global_offset = {0};
    };
    EXPECT_EQ(version([&](FieldMetadata& f) { place(f, 100); }), 1U) << "all of an array";
    EXPECT_EQ(version([&](FieldMetadata& f) { place(f, 101); }), 2U);
    EXPECT_EQ(version([](FieldMetadata& f) { f.key = "id"; }), 2U);
    EXPECT_EQ(required_version({}), 1U);
    const FieldMetadata whole = make_field("x", DType::f32, {50}, {0, 0}, 0);
    EXPECT_EQ(required_version(std::span(&whole, 1)), 3U);
    for (const DType dtype : {DType::f64, DType::i64, DType::u8}) {
        const FieldMetadata of_version_4 = make_field("x", dtype, {50}, {0, 0}, 0);
        EXPECT_EQ(required_version(std::span(&of_version_4, 1)), 4U);
        const std::array<FieldMetadata, 2> both = {of_version_4, whole};
        EXPECT_EQ(required_version(both), 4U);
    }
}

TEST(MetadataWriter, RefusesPartsThatDoNotFit) {
    const Folder folder;
    Written content = small_content();
    auto writer = MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory);
    ASSERT_TRUE(writer.ok());
    const Bytes& residues = content.sections[0][2];
    const std::span all(residues);
    EXPECT_FALSE((*writer)->write(0, Section::residues, 8, all.subspan(8)).ok());  // not at a page
    EXPECT_FALSE((*writer)->write(0, Section::residues, 0, all.first(100)).ok());  // half a page
    EXPECT_FALSE((*writer)->write(0, Section::residues, 4096, all).ok());          // past the end
    EXPECT_FALSE((*writer)->write(0, Section::residues, 0ULL - 4096, all.first(4096 % all.size())).ok());
    EXPECT_TRUE((*writer)->write(0, Section::residues, 0, all).ok());
}

// A directory that its own reader would refuse is found before the file takes the place of an older one.
TEST(MetadataWriter, DecodesWhatItIsAboutToWrite) {
    const Folder folder;
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {0}, {1, 0}, 4));
    content.directory.fields[0].settings.rule.widest += 1;
    content.sections.emplace_back();
    const auto result = write_file(posix_file_system(), folder / "x.twm", content);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::internal);
    EXPECT_EQ(folder.names().size(), 0U);

    // A name that grew after the layout would run into the first section.
    Written grown = small_content();
    auto writer = MetadataWriter::create(posix_file_system(), folder / "y.twm", grown.directory);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(write_sections(**writer, grown).ok());
    (*writer)->directory().fields[0].name = std::string(5000, 'x');
    EXPECT_FALSE((*writer)->commit().ok());
    (*writer).reset();
    EXPECT_EQ(folder.names().size(), 0U);
}

}  // namespace
}  // namespace twinrun
