// Sketches on the host, and that devices which hold the same say the same.
#include "sketch/host_sketch.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"

namespace twinrun {
namespace {

FieldMetadata field_of(std::uint64_t items, double atol, unsigned residue_bits, DigestKind kind) {
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = DType::f32;
    plan.shape = {items};
    plan.tolerance.atol = atol;
    plan.residue_bits = residue_bits;
    plan.kind = kind;
    return plan_field(std::move(plan)).value();
}

HostSketch sketch_of(const FieldMetadata& field, const std::vector<float>& x) {
    MemorySource source(DType::f32, x.size(), x.data(), sizeof(float), false);
    return HostSketch::build(field, source).value();
}

std::vector<float> normal(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution;
    std::vector<float> x(n);
    for (float& v : x)
        v = distribution(random);
    return x;
}

struct SketchPair {
    FieldMetadata field;
    HostSketch a, b;
};

// Within the tolerance everywhere, but for one element of every chunk in `changed`.
SketchPair pair_of(std::size_t n, unsigned residue_bits, DigestKind kind,
                   const std::vector<std::size_t>& changed) {
    const std::vector<float> x = normal(n, 7);
    std::vector<float> y = x;
    for (float& v : y)
        v += 3e-4F;
    for (const std::size_t chunk : changed)
        y[chunk * 1024] += 1;
    const FieldMetadata field = field_of(n, 1e-3, residue_bits, kind);
    return {field, sketch_of(field, x), sketch_of(field, y)};
}

TEST(HostSketches, ManyAreThoseOfOneAfterAnother) {
    std::vector<std::vector<float>> values;
    std::vector<FieldMetadata> fields;
    for (unsigned at = 0; at < 120; ++at) {
        values.push_back(normal(at == 50 ? 2'000'000 : at * 37, at));
        fields.push_back(
            field_of(values.back().size(), at % 3 == 0 ? 0 : 1e-3, at % 2 == 0 ? 4 : 0, DigestKind::linear));
    }
    std::vector<MemorySource> sources;
    sources.reserve(values.size());
    std::vector<const FieldMetadata*> all;
    std::vector<ElementSource*> elements;
    for (std::size_t at = 0; at < values.size(); ++at) {
        sources.emplace_back(DType::f32, values[at].size(), values[at].data(), sizeof(float), false);
        all.push_back(&fields[at]);
        elements.push_back(&sources.back());
    }
    for (const int threads : {1, 2, 5}) {
        StreamOptions options;
        options.threads = threads;
        const auto made = HostSketch::build(all, elements, options).value();
        ASSERT_EQ(made.size(), values.size());
        for (std::size_t at = 0; at < values.size(); ++at) {
            const HostSketch one = sketch_of(fields[at], values[at]);
            EXPECT_EQ(made[at].built().tree, one.built().tree);
            EXPECT_EQ(made[at].built().fine, one.built().fine);
            EXPECT_EQ(made[at].built().residues, one.built().residues);
            EXPECT_EQ(made[at].field().counts.nans, one.field().counts.nans);
            EXPECT_EQ(made[at].field().largest_sampled, one.field().largest_sampled);
        }
    }
}

// Small and large fields, some of them parts of global arrays, whose sums lie in the file in the
// order in which they were made.
TEST(HostSketches, AMetadataFileOfManyFieldsIsThatOfOneAfterAnother) {
    const std::string folder = std::filesystem::temp_directory_path() / ("twinrun_fields_" + random_hex(8));
    std::filesystem::create_directories(folder);
    std::vector<std::vector<float>> values;
    std::vector<MemorySource> sources;
    std::vector<ElementSource*> elements;
    sources.reserve(80);
    for (unsigned at = 0; at < 80; ++at) {
        values.push_back(normal(at == 30 ? 1'500'000 : 50 + at * 41, at));
        sources.emplace_back(DType::f32, values[at].size(), values[at].data(), sizeof(float), false);
        elements.push_back(&sources.back());
    }
    const auto written = [&](const std::function<Result<>(MetadataWriter&)>& fill) {
        Directory directory;
        for (unsigned at = 0; at < values.size(); ++at) {
            FieldPlan plan;
            plan.name = "x" + std::to_string(at);
            plan.shape = {values[at].size()};
            if (at % 7 == 3) {
                plan.global_shape = {values[at].size() + 5000};
                plan.global_offset = {at % 2 == 0 ? 0U : 1234U};
            }
            plan.tolerance.atol = 1e-3;
            directory.fields.push_back(plan_field(std::move(plan)).value());
        }
        auto writer =
            MetadataWriter::create(posix_file_system(), folder + "/x.twm", std::move(directory)).value();
        writer->may_replace();
        EXPECT_TRUE(fill(*writer));
        EXPECT_TRUE(writer->finish_temporary());
        return read_whole_file(folder + "/x.twm", 1 << 30).value();
    };
    const auto serial = written([&](MetadataWriter& writer) -> Result<> {
        for (std::size_t at = 0; at < elements.size(); ++at)
            TWR_CHECK(build_field(writer, at, *elements[at], {}));
        return success();
    });
    const std::vector<std::shared_ptr<const std::vector<std::uint64_t>>> no_ids(values.size());
    for (const int threads : {1, 2, 4}) {
        const auto together = written([&](MetadataWriter& writer) -> Result<> {
            StreamOptions options;
            options.threads = threads;
            TWR_CHECK(build_fields(writer, elements, options, no_ids));
            return success();
        });
        EXPECT_EQ(together, serial);
    }
    std::filesystem::remove_all(folder);
}

TEST(HostSketches, WhatIsProvenAndWhatIsOpen) {
    const std::size_t n = 10 * 1024 + 5;
    const SketchPair pair = pair_of(n, 4, DigestKind::linear, {2, 10});
    const auto found = pair.a.compare(pair.b, {{1e-3, 0}, true}).value();
    EXPECT_EQ(found.chunks, 11U);
    EXPECT_EQ(found.open, (std::vector<std::uint32_t>{2, 10}));
    std::uint64_t proven = found.by_tree;
    for (const std::uint64_t count : found.by_cells)
        proven += count;
    EXPECT_EQ(proven, n - 1024 - 5);
    EXPECT_FALSE(found.same());
    EXPECT_TRUE(pair.a.compare(pair.a, {{1e-3, 0}, true})->same());
    EXPECT_EQ(pair.a.bytes(), pair.field.section_bytes(Section::tree) +
                                  pair.field.section_bytes(Section::fine) +
                                  pair.field.section_bytes(Section::residues));
}

TEST(HostSketches, WhatCannotBeComparedIsRefused) {
    const SketchPair pair = pair_of(5000, 4, DigestKind::linear, {});
    const SketchPair other = pair_of(5001, 4, DigestKind::linear, {});
    const SketchPair fewer = pair_of(5000, 2, DigestKind::linear, {});
    const DifferenceRule rule{{1e-3, 0}, true};
    for (const HostSketch* b : {&other.a, &fewer.a}) {
        const auto refused = pair.a.compare(*b, rule);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::mismatch);
    }
    EXPECT_FALSE(pair.a.compare(pair.b, {{1e-6, 0}, true}));
}

TEST(DeviceHostSketches, DevicesSayTheSameOfWhatIsBroughtThere) {
    const std::vector<int> usable = probe_devices().usable();
    if (usable.empty()) GTEST_SKIP() << probe_devices().reason;
    const DifferenceRule rule{{1e-3, 0}, true};
    std::vector<SketchPair> pairs;
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1024}, std::size_t{300'001}}) {
        for (const unsigned bits : {0U, 2U, 4U}) {
            std::vector<std::size_t> changed;
            if (n > 100'000) changed = {0, 3, 250};
            pairs.push_back(pair_of(n, bits, DigestKind::linear, changed));
        }
        pairs.push_back(pair_of(n, 0, DigestKind::published, {}));
    }
    std::vector<const FieldMetadata*> fields;
    std::vector<const BuiltField*> built;
    for (const SketchPair& p : pairs) {
        for (const HostSketch* s : {&p.a, &p.b}) {
            fields.push_back(&s->field());
            built.push_back(&s->built());
        }
    }
    auto there = DeviceSketch::upload(fields, built, usable.front());
    ASSERT_TRUE(there) << there.error().message;
    ASSERT_EQ(there->size(), fields.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const auto on_host = pairs[i].a.compare(pairs[i].b, rule).value();
        const auto on_device = (*there)[2 * i].compare((*there)[2 * i + 1], rule).value();
        EXPECT_EQ(on_device.chunks, on_host.chunks);
        EXPECT_EQ(on_device.by_tree, on_host.by_tree);
        EXPECT_EQ(on_device.flagged, on_host.flagged);
        EXPECT_EQ(on_device.open, on_host.open);
        EXPECT_EQ(on_device.by_cells, on_host.by_cells);
        const HostSketch back = HostSketch::download((*there)[2 * i]).value();
        EXPECT_EQ(back.built().tree, pairs[i].a.built().tree);
        EXPECT_EQ(back.built().fine, pairs[i].a.built().fine);
        EXPECT_EQ(back.built().residues, pairs[i].a.built().residues);
    }
    // All at once, and some of them with themselves.
    std::vector<const DeviceSketch*> all_a;
    std::vector<const DeviceSketch*> all_b;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        for (const std::size_t with : {2 * i, 2 * i + 1}) {
            all_a.push_back(&(*there)[2 * i]);
            all_b.push_back(&(*there)[with]);
        }
    }
    const std::vector<DifferenceRule> rules(all_a.size(), rule);
    const auto together = DeviceSketch::compare(all_a, all_b, rules);
    ASSERT_TRUE(together) << together.error().message;
    ASSERT_EQ(together->size(), all_a.size());
    for (std::size_t i = 0; i < all_a.size(); ++i) {
        const SketchComparison& found = (*together)[i];
        const auto& pair = pairs[i / 2];
        const auto expected = pair.a.compare(i % 2 == 0 ? pair.a : pair.b, rule).value();
        EXPECT_EQ(found.chunks, expected.chunks);
        EXPECT_EQ(found.by_tree, expected.by_tree);
        EXPECT_EQ(found.flagged, expected.flagged);
        EXPECT_EQ(found.open, expected.open);
        EXPECT_EQ(found.by_cells, expected.by_cells);
        EXPECT_EQ(found.decided, expected.decided);
    }
    const auto none = DeviceSketch::compare(std::span(all_a).first(0), {}, {});
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->empty());
    EXPECT_EQ(DeviceSketch::compare(all_a, std::span(all_b).first(1), rules).error().code,
              ErrorCode::invalid_argument);
    const auto refused =
        DeviceSketch::compare(all_a, all_b, std::vector<DifferenceRule>(rules.size(), {{1e-9, 0}, true}));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::mismatch);
    EXPECT_NE(refused.error().message.find("field '" + all_a[0]->field().name + "'"), std::string::npos);
    // More than wait for the device at once.
    std::vector<const DeviceSketch*> many_a;
    std::vector<const DeviceSketch*> many_b;
    while (many_a.size() < 20'000) {
        many_a.insert(many_a.end(), all_a.begin(), all_a.end());
        many_b.insert(many_b.end(), all_b.begin(), all_b.end());
    }
    const auto many = DeviceSketch::compare(many_a, many_b, std::vector<DifferenceRule>(many_a.size(), rule));
    ASSERT_TRUE(many) << many.error().message;
    for (std::size_t i = 0; i < many->size(); ++i) {
        ASSERT_EQ((*many)[i].open, (*together)[i % all_a.size()].open) << i;
        ASSERT_EQ((*many)[i].by_tree, (*together)[i % all_a.size()].by_tree) << i;
    }
    built.pop_back();
    EXPECT_FALSE(DeviceSketch::upload(fields, built, usable.front()));
    fields.pop_back();
    std::swap(built.front(), built.back());
    EXPECT_FALSE(DeviceSketch::upload(fields, built, usable.front()));
}

}  // namespace
}  // namespace twinrun
