// Files of metadata of several kinds of fields: their content, how it is written, and how it is read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "digest/field61.hpp"
#include "metadata/metadata.hpp"
#include "support/faulty_file_system.hpp"
#include "support/seed.hpp"
#include "tree/build.hpp"

namespace twinrun::testing {

using Bytes = std::vector<std::byte>;

inline Bytes slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    const std::string text(std::istreambuf_iterator<char>(file), {});
    Bytes bytes(text.size());
    std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
    return bytes;
}

inline void spill(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good()) << path;
}

inline FieldMetadata make_field(const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
                                Tolerance tolerance, unsigned bits, DigestKind kind = DigestKind::linear,
                                std::uint32_t chunk = kSmallestChunk) {
    FieldMetadata field;
    field.name = name;
    field.dtype = dtype;
    field.shape = std::move(shape);
    field.settings.tolerance = tolerance;
    field.settings.kind = kind;
    field.settings.chunk_bytes = chunk;
    if (kind == DigestKind::linear)
        field.settings.rule = *cell_rule(tolerance, bits, scalar_type(dtype)).operator->();
    return field;
}

// Sections of a field from its items, dense and native.
inline std::array<Bytes, kSections> sections_of(FieldMetadata& field, std::span<const std::byte> items) {
    std::array<Bytes, kSections> sections;
    const auto words = [](const std::vector<std::uint64_t>& from) {
        const auto raw = std::as_bytes(std::span(from));
        return Bytes(raw.begin(), raw.end());
    };
    std::vector<ChunkDigest> digests(field.chunks());
    sections[2].resize(field.section_bytes(Section::residues));
    Digester digester(field.settings, scalar_type(field.dtype));
    ElementView view = dense_view(field.dtype, items.data());
    view.swap = field.byte_order == ByteOrder::big;
    field.counts = {};
    digester.chunks(view, 0, field.scalars(), digests.data(), sections[2].data(), &field.counts);
    std::vector<std::uint64_t> leaves, fine, sums;
    for (const ChunkDigest& d : digests) {
        if (field.settings.kind == DigestKind::published) leaves.push_back(d.fine);
        leaves.push_back(d.coarse);
        if (field.section_bytes(Section::fine) != 0) fine.push_back(d.fine);
    }
    for (std::size_t at = 0; at < items.size(); at += kDataSumBytes) {
        sums.push_back(xxh3(items.subspan(at, std::min(kDataSumBytes, items.size() - at))));
    }
    sections[0] = words(build_tree(field.settings.kind, field.chunking().blocks_per_chunk, leaves));
    sections[1] = words(fine);
    sections[3] = words(sums);
    return sections;
}

inline Bytes random_items(const FieldMetadata& field, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Bytes items(field.data_bytes());
    for (auto& b : items)
        b = static_cast<std::byte>(random());
    return items;
}

struct Written {
    Directory directory;
    std::vector<std::array<Bytes, kSections>> sections;
    struct Sums {
        SumsFacts facts;
        std::vector<PartialSum> sums;
    };
    std::map<std::size_t, Sums> sums;  // by field: what write_sums() is told

    // The directory that a reader finds.
    [[nodiscard]] Directory read_back() const {
        Directory d = directory;
        d.version = required_version(d.fields);
        for (const auto& [f, s] : sums)
            d.fields[f].sums = s.facts;
        return d;
    }
};

inline Bytes bytes_of(std::span<const PartialSum> sums) {
    Encoder out;
    for (const PartialSum& sum : sums) {
        out.put(sum.bucket);
        out.put(sum.coarse);
        out.put(sum.fine);
    }
    return out.bytes();
}

inline void give_sums(Written& content, std::size_t field, SumsFacts facts, std::vector<PartialSum> sums) {
    facts.buckets = sums.size();
    content.sections[field][4] = bytes_of(sums);
    content.sums[field] = {facts, std::move(sums)};
}

inline std::vector<PartialSum> random_sums(std::size_t count, std::uint64_t most, std::mt19937_64& random) {
    std::vector<PartialSum> sums(count);
    const std::uint64_t step = most / (count + 1);
    for (std::size_t i = 0; i < count; ++i)
        sums[i] = {i * step + random() % step, random() % kPrime, random() % kPrime};
    return sums;
}

// Fields with data, a 0-d one, and an empty one; parts of something larger, with sums and without.
inline Written small_content() {
    Written content;
    Directory& d = content.directory;
    d.step = -7;
    d.rank = 4000000000U;
    d.data_files.push_back({"data.bin", {123, 456}});
    d.fields.push_back(make_field("pressure", DType::f32, {3, 700}, {1e-3, 0}, 4));
    d.fields.back().extents = {{0, 10, 4, 2000}, {0, 9000, 12, 100}};
    d.fields.push_back(make_field("ids", DType::i64, {1500}, {}, 0, DigestKind::linear, 8192));
    d.fields.push_back(make_field("time", DType::f64, {}, {1e-9, 1e-9}, 2));
    d.fields.push_back(make_field("nothing", DType::c128, {5, 0}, {1e-9, 0}, 4));
    d.fields.push_back(make_field("hash", DType::bf16, {9000}, {0.5, 0}, 0, DigestKind::published));
    d.fields.back().global_shape = {27000};
    d.fields.back().global_offset = {18000};
    d.fields.back().format = "zarr";
    d.fields.back().order = ArrayOrder::column_major;
    d.fields.back().byte_order = ByteOrder::big;
    d.fields.push_back(make_field("part", DType::f32, {40, 25}, {1e-3, 0}, 2));
    d.fields.back().global_shape = {80, 50};
    d.fields.back().global_offset = {3, 7};
    d.fields.push_back(make_field("rows", DType::f64, {900, 3}, {1e-6, 0}, 4));
    d.fields.back().key = "ids";
    d.fields.push_back(make_field("hollow", DType::u16, {0, 4}, {1, 0}, 4));
    d.fields.back().global_shape = {8, 8};
    d.fields.back().global_offset = {8, 4};
    for (FieldMetadata& field : d.fields) {
        content.sections.push_back(sections_of(field, random_items(field, content.sections.size() + 1)));
        field.largest_sampled = 2.5;
    }
    std::mt19937_64 random(test_seed(3));
    give_sums(content, 5, {SumsKind::place, 2, 0, 0, 0}, random_sums(3, 1ULL << 50, random));
    give_sums(content, 6, {SumsKind::ids, 0, 0, 5, 1ULL << 40},
              random_sums(500, 1ULL << 50, random));  // three pages
    give_sums(content, 7, {SumsKind::place, 0, 0, 0, 0}, {});
    return content;
}

// One field; in version 2 with sums.
inline Written one_field(std::uint64_t items, std::uint32_t version) {
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {items}, {1e-3, 0}, 4));
    FieldMetadata& field = content.directory.fields[0];
    if (version == 2) field.key = "id";
    content.sections.push_back(sections_of(field, random_items(field, 1)));
    std::mt19937_64 random(test_seed(5));
    if (version == 2) {
        give_sums(content, 0, {SumsKind::ids, 1, 0, 3, 999},
                  random_sums(std::min<std::size_t>(items, 180), 1ULL << 40, random));
    }
    return content;
}

inline Result<> write_sections(MetadataWriter& writer, const Written& content) {
    for (std::size_t f = content.sections.size(); f-- > 0;) {  // any order
        for (std::size_t s = 0; s < 4; ++s) {
            TWR_CHECK(writer.write(f, static_cast<Section>(s), 0, content.sections[f][s]));
        }
    }
    for (const auto& [f, s] : content.sums)
        TWR_CHECK(writer.write_sums(f, s.facts, s.sums));
    return success();
}

inline Result<> write_file(FileSystem& system, const std::string& path, const Written& content) {
    TWR_TRY(auto writer, MetadataWriter::create(system, path, content.directory));
    writer->may_replace();
    TWR_CHECK(write_sections(*writer, content));
    return writer->commit();
}

// Opens a file and reads all of it. The error, if there is one.
inline Result<> read_everything(const std::string& path) {
    TWR_TRY(const auto file, MetadataFile::open(path));
    for (std::size_t f = 0; f < file->directory().fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            Bytes content(file->directory().fields[f].place(section).length);
            TWR_CHECK(file->read(f, section, 0, content));
            TWR_TRY(const auto sums, file->page_sums(f, section));
            static_cast<void>(sums);
        }
        TWR_TRY(const auto sums, file->sums(f));
        static_cast<void>(sums);
    }
    return success();
}

inline void expect_same(const Directory& a, const Directory& b) {
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.rank, b.rank);
    ASSERT_EQ(a.data_files.size(), b.data_files.size());
    for (std::size_t i = 0; i < a.data_files.size(); ++i) {
        EXPECT_EQ(a.data_files[i].path, b.data_files[i].path);
        EXPECT_EQ(a.data_files[i].stamp, b.data_files[i].stamp);
    }
    ASSERT_EQ(a.fields.size(), b.fields.size());
    for (std::size_t i = 0; i < a.fields.size(); ++i) {
        const FieldMetadata& x = a.fields[i];
        const FieldMetadata& y = b.fields[i];
        EXPECT_EQ(x.name, y.name);
        EXPECT_EQ(x.dtype, y.dtype);
        EXPECT_EQ(x.byte_order, y.byte_order);
        EXPECT_EQ(x.order, y.order);
        EXPECT_EQ(x.shape, y.shape);
        EXPECT_EQ(x.global_shape, y.global_shape);
        EXPECT_EQ(x.global_offset, y.global_offset);
        EXPECT_EQ(x.settings.tolerance, y.settings.tolerance);
        EXPECT_EQ(x.settings.rule, y.settings.rule);
        EXPECT_EQ(x.settings.kind, y.settings.kind);
        EXPECT_EQ(x.settings.chunk_bytes, y.settings.chunk_bytes);
        EXPECT_EQ(x.counts.nans, y.counts.nans);
        EXPECT_EQ(x.counts.tokens, y.counts.tokens);
        EXPECT_EQ(x.largest_sampled, y.largest_sampled);
        EXPECT_EQ(x.extents, y.extents);
        EXPECT_EQ(x.format, y.format);
        EXPECT_EQ(x.key, y.key);
        EXPECT_EQ(x.sums, y.sums);
    }
}

}  // namespace twinrun::testing
