// A whole file against its checksums, and compact files.
#include "metadata/verify.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/checked.hpp"
#include "metadata/compact.hpp"
#include "sketch/build.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

class WholeFile : public testing::FolderTest {
   protected:
    // Fields of every kind of section: with residues, of many pages, parts of something larger (sums), published, empty.
    [[nodiscard]] std::string write(const std::string& file,
                                    const std::string& data_file = "data.bin") const {
        std::vector<float> x(600'000);
        std::mt19937_64 random(test_seed(1));
        for (float& v : x)
            v = static_cast<float>(random() % 100'000) * 1e-3F;
        Directory directory;
        directory.data_files.push_back({data_file, {}});
        const auto add = [&](const std::string& name, std::uint64_t items, auto change) {
            FieldPlan plan;
            plan.name = name;
            plan.shape = {items};
            plan.tolerance.atol = 1e-3;
            change(plan);
            directory.fields.push_back(plan_field(std::move(plan)).value());
        };
        add("x", x.size(), [](FieldPlan&) {});
        add("part", 3000, [](FieldPlan& plan) {
            plan.global_shape = {7000};
            plan.global_offset = {77};
        });
        add("published", 5000, [](FieldPlan& plan) { plan.kind = DigestKind::published; });
        add("none", 0, [](FieldPlan&) {});
        std::vector<std::uint64_t> items;
        for (const FieldMetadata& field : directory.fields)
            items.push_back(field.items());
        const std::string path = (fs::path(folder_) / file).string();
        auto writer = MetadataWriter::create(posix_file_system(), path, std::move(directory)).value();
        for (std::size_t i = 0; i < items.size(); ++i) {
            MemorySource source(DType::f32, items[i], x.data(), sizeof(float), false);
            EXPECT_TRUE(build_field(*writer, i, source, {}).ok());
        }
        EXPECT_TRUE(writer->commit().ok());
        return path;
    }

    static Result<> check(const std::string& path) {
        TWR_TRY(const auto file, MetadataFile::open(path));
        return verify(*file);
    }

    // What checking says with one bit of the byte flipped.
    static Result<> flipped(const std::string& path, std::uint64_t at) {
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        const auto place = static_cast<std::streamoff>(at);
        const auto good = static_cast<char>(file.seekg(place).get());
        file.seekp(place).put(static_cast<char>(good ^ (1 << at % 8))).flush();
        Result<> result = check(path);
        file.seekp(place).put(good).flush();
        EXPECT_TRUE(file.good());
        return result;
    }
};

TEST_F(WholeFile, FlippedBytesAreFound) {
    const std::string path = write("x.twm");
    ASSERT_TRUE(check(path).ok());
    const auto file = MetadataFile::open(path).value();
    const std::vector<FieldMetadata>& fields = file->directory().fields;
    std::vector<bool> used(file->file().size());
    const auto use = [&](std::uint64_t begin, std::uint64_t bytes) {
        std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(begin), bytes, true);
    };
    use(0, encode_directory(file->directory(), 0).size());
    std::array<int, kSections> of_kind{};
    const auto refused = [&](std::uint64_t at, const std::string& why) {
        const auto result = flipped(path, at);
        ASSERT_FALSE(result.ok()) << at;
        EXPECT_EQ(result.error().code, ErrorCode::damaged);
        EXPECT_NE(result.error().message.find(path), std::string::npos) << result.error().message;
        EXPECT_NE(result.error().message.find(why), std::string::npos) << result.error().message;
    };
    for (const FieldMetadata& field : fields) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const SectionPlace& place = field.sections[s];
            const std::uint64_t sums = divide_up(place.length, kPageBytes) * 8;
            use(place.offset, place.length);
            use(place.sums_offset, sums);
            if (place.length == 0) continue;
            ++of_kind[s];
            for (const std::uint64_t at : {std::uint64_t{0}, place.length / 2, place.length - 1})
                refused(place.offset + at, "of field '" + field.name + "'");
            for (const std::uint64_t at : {std::uint64_t{0}, sums - 1})
                refused(place.sums_offset + at, "checksum of checksums");
        }
    }
    for (std::size_t s = 0; s < kSections; ++s)
        EXPECT_GT(of_kind[s], 0) << "no field has section " << s;
    // The first, the middle and the last byte of every stretch of padding.
    std::size_t stretches = 0;
    for (std::size_t begin = 0; begin < used.size(); ++begin) {
        if (used[begin]) continue;
        std::size_t end = begin;
        while (end < used.size() && !used[end])
            ++end;
        for (const std::size_t at : {begin, (begin + end) / 2, end - 1})
            refused(at, "its padding is not zero");
        ++stretches;
        begin = end;
    }
    EXPECT_GE(stretches, 2U);
    EXPECT_TRUE(check(path).ok()) << "it is as it was";
}

TEST_F(WholeFile, PaddingBehindTheLastSectionCounts) {
    const std::string path = write("x.twm");
    const auto grown = [&](char last) {
        std::ofstream(path, std::ios::binary | std::ios::app).put(last);
        return check(path);
    };
    // A file of another size than its header says is not opened at all.
    EXPECT_EQ(grown('\0').error().code, ErrorCode::damaged);
}

TEST_F(WholeFile, CompactIsWholeAndDependsOnTheDataAlone) {
    const std::string path = write("x.twm", "a.bin");
    const auto file = MetadataFile::open(path).value();
    const Bytes bytes = compact_metadata(*file).value();
    EXPECT_LT(bytes.size(), file->file().size());
    EXPECT_EQ(bytes,
              compact_metadata(*MetadataFile::open(write("y.twm", "elsewhere/b.bin")).value()).value());
    const std::string small = (fs::path(folder_) / "small.twm").string();
    std::ofstream(small, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(check(small).ok()) << check(small).error().message;
    const auto opened = MetadataFile::open(small).value();
    EXPECT_TRUE(opened->directory().data_files.empty());
    for (std::size_t f = 0; f < file->directory().fields.size(); ++f) {
        for (const Section section : {Section::tree, Section::fine, Section::residues}) {
            Bytes was(file->directory().fields[f].place(section).length);
            Bytes is(opened->directory().fields[f].place(section).length);
            ASSERT_TRUE(file->read(f, section, 0, was).ok());
            ASSERT_TRUE(opened->read(f, section, 0, is).ok());
            EXPECT_EQ(was, is);
        }
        for (const Section section : {Section::data_sums, Section::sums})
            EXPECT_EQ(opened->directory().fields[f].place(section).length, 0U);
    }
}

}  // namespace
}  // namespace twinrun
