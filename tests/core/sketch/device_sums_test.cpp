// Sums of digests of parts that live on devices: as the host makes them, and together the digests of the whole.
#include "sketch/device_sums.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "support/device.hpp"
#include "support/numbers.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;
using Shape = std::vector<std::uint64_t>;

using testing::kEveryDType;

std::uint64_t product(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

struct Box {
    Shape shape;
    Shape offset;
};

FieldMetadata part_of(DType dtype, const Shape& whole, const Box& box, Tolerance tolerance,
                      std::uint32_t chunk_bytes) {
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = dtype;
    plan.shape = box.shape;
    plan.global_shape = whole;
    plan.global_offset = box.offset;
    plan.tolerance = tolerance;
    plan.chunk_bytes = chunk_bytes;
    return plan_field(std::move(plan)).value();
}

// Bytes of items; `odd`: one scalar in so many is any bits, or a special value.
std::vector<std::byte> some_bytes(DType dtype, std::size_t items, unsigned odd, Random& random) {
    std::vector<std::byte> bytes(items * item_bytes(dtype));
    const DType scalar = scalar_type(dtype);
    const std::size_t size = item_bytes(scalar);
    for (std::size_t at = 0; at < bytes.size(); at += size) {
        std::uint64_t raw = random();
        const double x = std::ldexp(static_cast<double>(raw >> 40), -22) - 2;
        const bool special = odd != 0 && random() % odd == 0;
        if (scalar == DType::f64) {
            const double specials[] = {std::numeric_limits<double>::quiet_NaN(),
                                       -std::numeric_limits<double>::infinity(), -0.0, 1e300,
                                       std::bit_cast<double>(raw)};
            raw = std::bit_cast<std::uint64_t>(special ? specials[random() % 5] : x);
        } else if (scalar == DType::f32) {
            const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                                      std::numeric_limits<float>::infinity(), -0.0F, -1e38F,
                                      std::bit_cast<float>(static_cast<std::uint32_t>(raw))};
            raw = std::bit_cast<std::uint32_t>(special ? specials[random() % 5] : static_cast<float>(x));
        } else if (scalar == DType::bf16 && !special) {
            raw = std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16;
        } else if (scalar == DType::f16 && !special) {
            raw = (raw & 0x83FF) | (10 + raw % 6) << 10;  // of the same magnitudes
        } else if (size == 8 && !special) {
            raw >>= 30;
        }
        std::memcpy(bytes.data() + at, &raw, size);
    }
    return bytes;
}

BuiltField on_host(const FieldMetadata& field, const std::vector<std::byte>& items) {
    BuiltField built;
    MemorySource source(field.dtype, field.items(), items.data(), item_bytes(field.dtype), false);
    StreamOptions options;
    options.threads = 1;
    EXPECT_TRUE(build_in_memory(field, source, options, built));
    return built;
}

std::string name_of(const FieldMetadata& field) {
    std::string text(dtype_name(field.dtype));
    const auto add = [&](const char* what, const Shape& shape) {
        text += what;
        for (const std::uint64_t n : shape)
            text += " " + std::to_string(n);
    };
    add(":", field.shape);
    add(" of", field.global_shape);
    add(" at", field.global_offset);
    return text + ", chunks of " + std::to_string(field.settings.chunk_bytes);
}

Tolerance some_tolerance(Random& random) {
    const double atol = std::ldexp(1.3, -static_cast<int>(random() % 30));
    switch (random() % 6) {
        case 0: return {0, 0};
        case 1: return {atol, 1e-3};
        case 2: return {0, 1e-5};
        case 3: return {1e-300, 0};
        default: return {atol, 0};
    }
}

// A box with rows of many lengths, anywhere in something larger.
FieldMetadata some_part(Random& random) {
    const DType dtype = kEveryDType[random() % std::size(kEveryDType)];
    Box box;
    std::uint64_t most = 60'000;
    for (std::uint64_t d = 1 + random() % 4; d > 0; --d) {
        constexpr std::uint64_t kRows[] = {1, 2, 3, 16, 17, 64, 100, 511, 512, 1000, 5000, 40'000};
        const std::uint64_t n = std::min<std::uint64_t>(most, kRows[random() % std::size(kRows)]);
        box.shape.push_back(n);
        most = std::max<std::uint64_t>(1, most / n);
    }
    std::shuffle(box.shape.begin(), box.shape.end(), random);
    if (random() % 20 == 0) box.shape[random() % box.shape.size()] = 0;
    Shape whole;
    const std::uint64_t more = random() % 10 == 0 ? 200'000 : 200;  // then buckets are far apart
    for (const std::uint64_t n : box.shape) {
        const bool cut = random() % 3 != 0;
        box.offset.push_back(cut ? random() % 5 * (random() % 300) : 0);
        whole.push_back(box.offset.back() + n + (cut ? random() % more : 0));
    }
    return part_of(dtype, whole, box, some_tolerance(random), kSmallestChunk << random() % 9);
}

// ---- without a device ----

TEST(DeviceSumsPlans, SlotsAreThoseOfTheScalars) {
    Random random(1);
    std::size_t listed = 0;
    std::size_t with_bits = 0;
    for (int round = 0; round < 400; ++round) {
        const FieldMetadata field = some_part(random);
        const auto plan = plan_device_sums(field);
        if (plan == nullptr || field.scalars() == 0) continue;
        const RowPlacement& rows = plan->sums.placement();
        const std::uint64_t first = random() % field.scalars();
        const std::uint64_t count = 1 + random() % std::min<std::uint64_t>(field.scalars() - first, 5000);
        const SumsSlots slots = sums_slots(*plan, first, count);
        const DeviceSumsItem item = sums_item(*plan, field, first, count, nullptr, nullptr);
        ASSERT_EQ(item.bucket_count, slots.count);
        listed += item.buckets != nullptr;
        with_bits += item.bits != nullptr;
        std::size_t last = slots.first;
        for (std::uint64_t i = first; i < first + count; ++i) {
            const std::uint64_t index = rows.start(i / rows.row_scalars()) + i % rows.row_scalars();
            // What the kernel makes of the item.
            std::uint64_t row = i / item.row_scalars;
            std::uint64_t at = item.base + i % item.row_scalars;
            for (std::uint32_t k = 0; k < item.axis_count; ++k) {
                at += row % item.axes[k].extent * item.axes[k].stride;
                row /= item.axes[k].extent;
            }
            ASSERT_EQ(at, index) << name_of(field);
            ASSERT_EQ(row, 0U);
            const std::uint64_t bucket = index / item.bucket_scalars;
            while (last < slots.first + slots.count && plan->sums.buckets()[last] < bucket)
                ++last;
            ASSERT_LT(last, slots.first + slots.count) << name_of(field);
            ASSERT_EQ(plan->sums.buckets()[last], bucket) << name_of(field);
            std::uint64_t slot = bucket - item.first_bucket;
            if (item.bits != nullptr) {
                const std::uint64_t word = slot / 64;
                ASSERT_LT(word, item.words);
                ASSERT_TRUE((item.bits[word] >> slot % 64 & 1) != 0);
                const std::uint64_t lower = item.bits[word] & ((std::uint64_t{1} << slot % 64) - 1);
                slot = item.before[word] + static_cast<unsigned>(std::popcount(lower)) - item.first_slot;
            } else if (item.buckets != nullptr) {
                slot = last - slots.first;
                ASSERT_EQ(item.buckets[slot], bucket);
            }
            ASSERT_EQ(slot, last - slots.first);
        }
        ASSERT_EQ(last + 1, slots.first + slots.count);
    }
    EXPECT_GT(listed, 0U);
    EXPECT_GT(with_bits, 0U);
}

TEST(DeviceSumsPlans, NeighboursThatLieAsOneAreOne) {
    const auto field =
        part_of(DType::f64, {4, 5, 6, 1, 100}, {{2, 5, 6, 1, 50}, {1, 0, 0, 0, 50}}, {1e-3, 0}, 4096);
    const auto plan = plan_device_sums(field);
    ASSERT_NE(plan, nullptr);
    const DeviceSumsItem item = sums_item(*plan, field, 0, field.scalars(), nullptr, nullptr);
    EXPECT_EQ(item.axis_count, 1U);
    EXPECT_EQ(item.axes[0].extent, 60U);
    EXPECT_EQ(item.axes[0].stride, 100U);
    EXPECT_EQ(item.row_scalars, 50U);
    EXPECT_EQ(item.base, 3050U);
}

TEST(DeviceSumsPlans, PlansAreKept) {
    const Box box{{40, 64}, {3, 5}};
    const auto field = part_of(DType::f64, {50, 128}, box, {1e-3, 0}, 4096);
    const auto plan = plan_device_sums(field);
    ASSERT_NE(plan, nullptr);
    // Whatever the tolerance.
    EXPECT_EQ(plan_device_sums(part_of(DType::f64, {50, 128}, box, {1e-5, 1e-3}, 4096)), plan);
    EXPECT_NE(plan_device_sums(part_of(DType::f32, {50, 128}, box, {1e-3, 0}, 4096)), plan);
    EXPECT_NE(plan_device_sums(part_of(DType::f64, {50, 128}, box, {1e-3, 0}, 8192)), plan);
    EXPECT_NE(plan_device_sums(part_of(DType::f64, {51, 128}, box, {1e-3, 0}, 4096)), nullptr);
    EXPECT_NE(plan_device_sums(part_of(DType::f64, {50, 129}, box, {1e-3, 0}, 4096)), plan);
    EXPECT_EQ(device_sums_bytes(field), plan->sums.count() * 32);
    // Not without end.
    for (std::uint64_t n = 0; n < 200; ++n)
        plan_device_sums(part_of(DType::f64, {50, 1000 + n}, box, {1e-3, 0}, 4096));
    const auto again = plan_device_sums(field);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->sums.count(), plan->sums.count());
}

TEST(DeviceSumsPlans, WhatHasNoneHasNone) {
    const Box all{{64, 64}, {0, 0}};
    EXPECT_EQ(plan_device_sums(part_of(DType::f64, {64, 64}, all, {1e-3, 0}, 4096)), nullptr);
    // Its chunks are those of the whole.
    const Box slab{{8, 64}, {16, 0}};
    const auto own = part_of(DType::f64, {64, 64}, slab, {1e-3, 0}, 4096);
    EXPECT_EQ(plan_device_sums(own), nullptr);
    EXPECT_EQ(own_chunks(own), 2U);
    EXPECT_FALSE(own_chunks(part_of(DType::f64, {64, 64}, {{8, 64}, {17, 0}}, {1e-3, 0}, 4096)));
    EXPECT_FALSE(own_chunks(part_of(DType::f64, {64, 64}, {{8, 63}, {16, 0}}, {1e-3, 0}, 4096)));
    auto keyed = part_of(DType::f64, {64, 64}, {{8, 63}, {16, 0}}, {1e-3, 0}, 4096);
    EXPECT_NE(plan_device_sums(keyed), nullptr);
    keyed.key = "id";
    EXPECT_EQ(plan_device_sums(keyed), nullptr);
    auto published = part_of(DType::f64, {64, 64}, {{8, 63}, {16, 0}}, {1e-3, 0}, 4096);
    published.settings.kind = DigestKind::published;
    EXPECT_EQ(plan_device_sums(published), nullptr);
    // A column of a wide array: a bucket would hold one scalar.
    EXPECT_EQ(plan_device_sums(part_of(DType::f64, {4096, 1 << 20}, {{4096, 1}, {0, 5}}, {1e-3, 0}, 4096)),
              nullptr);
}

std::vector<PartialSum> written_sums(const FieldMetadata& field, ElementSource& source, SumsFacts& facts) {
    const auto folder = std::filesystem::temp_directory_path() / ("twinrun_sums_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    Directory directory;
    directory.fields.push_back(field);
    const std::string path = (folder / "x.twm").string();
    auto writer = MetadataWriter::create(posix_file_system(), path, std::move(directory)).value();
    writer->may_replace();
    EXPECT_TRUE(build_field(*writer, 0, source, {}));
    EXPECT_TRUE(writer->commit());
    auto file = MetadataFile::open(path).value();
    facts = file->directory().fields[0].sums;
    auto sums = file->sums(0);
    EXPECT_TRUE(sums) << sums.error().message;
    std::filesystem::remove_all(folder);
    return sums ? *sums : std::vector<PartialSum>();
}

// Where a part's chunks are chunks of the whole, its digests are its sums: what PartialSums would have added up.
TEST(DeviceSumsPlans, DigestsOfOwnChunksAreTheSums) {
    Random random(2);
    for (int round = 0; round < 40; ++round) {
        const DType dtype = kEveryDType[random() % std::size(kEveryDType)];
        const std::uint32_t chunk = kSmallestChunk << random() % 5;
        const std::uint64_t items = chunk / item_bytes(dtype);
        const Box box{{1 + random() % (3 * items)}, {random() % 4 * items}};
        const Shape whole{box.offset[0] + box.shape[0] + 1};
        const FieldMetadata field = part_of(dtype, whole, box, some_tolerance(random), chunk);
        ASSERT_EQ(own_chunks(field), box.offset[0] / items);
        const std::vector<std::byte> bytes = some_bytes(dtype, field.items(), 20, random);
        MemorySource source(dtype, field.items(), bytes.data(), item_bytes(dtype), false);
        SumsFacts facts;
        const auto sums = written_sums(field, source, facts);
        auto placement = RowPlacement::of_box(box.shape, whole, box.offset, scalars_per_item(dtype));
        auto expected = PartialSums::plan(field.settings, scalar_type(dtype),
                                          std::make_shared<const RowPlacement>(std::move(*placement)));
        ASSERT_TRUE(expected);
        expected->add(dense_view(dtype, bytes.data()), 0, field.scalars());
        EXPECT_EQ(facts.height, expected->height());
        EXPECT_EQ(sums, expected->finish()) << name_of(field);
    }
}

// ---- with one ----

void expect_same_sums(const BuiltField& built, const BuiltField& expected, const std::string& what) {
    ASSERT_EQ(built.sums.has_value(), expected.sums.has_value()) << what;
    if (!expected.sums) return;
    ASSERT_EQ(built.sums->height, expected.sums->height) << what;
    ASSERT_EQ(built.sums->sums.size(), expected.sums->sums.size()) << what;
    for (std::size_t i = 0; i < expected.sums->sums.size(); ++i) {
        const PartialSum& x = built.sums->sums[i];
        const PartialSum& y = expected.sums->sums[i];
        ASSERT_EQ(x.bucket, y.bucket) << what << ", sum " << i;
        ASSERT_EQ(x.fine, y.fine) << what << ", sum " << i;
        ASSERT_EQ(x.coarse, y.coarse) << what << ", sum " << i;
    }
}

struct There {
    FieldMetadata field;
    std::vector<std::byte> bytes;
    std::unique_ptr<OnDevice> memory;
    DeviceArray array;
    There(int device, FieldMetadata of, std::vector<std::byte> items, std::size_t skew)
        : field(std::move(of)),
          bytes(std::move(items)),
          memory(std::make_unique<OnDevice>(device, std::span<const std::byte>(bytes), skew)) {
        array.device = device;
        array.data = memory->data();
        array.dtype = field.dtype;
        array.shape = field.shape;
    }
};

TEST(DeviceSums, EqualTheHosts) {
    TWR_TEST_DEVICE(device);
    Random random(3);
    std::size_t made = 0;
    for (int round = 0; round < test_rounds(60); ++round) {
        std::vector<There> parts;
        for (std::uint64_t n = 1 + random() % 6; n > 0; --n) {
            FieldMetadata field = some_part(random);
            const unsigned odd = random() % 3 == 0 ? 0 : 1U << random() % 10;
            auto bytes = some_bytes(field.dtype, field.items(), odd, random);
            const std::size_t skew = random() % 4 * item_bytes(scalar_type(field.dtype));
            parts.emplace_back(device, std::move(field), std::move(bytes), skew);
        }
        std::vector<const FieldMetadata*> fields;
        std::vector<const DeviceArray*> arrays;
        for (const There& part : parts) {
            fields.push_back(&part.field);
            arrays.push_back(&part.array);
        }
        DeviceBuildOptions options;
        options.memory_bytes = round % 4 == 0 ? 1 : 0;  // slice by slice
        std::vector<BuiltField> built;
        const auto stats = build_on_device(fields, arrays, built, options);
        ASSERT_TRUE(stats) << stats.error().message;
        auto sketches = DeviceSketch::build(fields, arrays);
        ASSERT_TRUE(sketches) << sketches.error().message;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const BuiltField expected = on_host(parts[i].field, parts[i].bytes);
            made += expected.sums.has_value();
            expect_same_sums(built[i], expected, name_of(parts[i].field));
            BuiltField back;
            ASSERT_TRUE((*sketches)[i].download(back));
            expect_same_sums(back, expected, name_of(parts[i].field) + ", sketch");
            auto uploaded = DeviceSketch::upload(parts[i].field, expected, device);
            ASSERT_TRUE(uploaded);
            ASSERT_TRUE(uploaded->download(back));
            expect_same_sums(back, expected, name_of(parts[i].field) + ", uploaded");
        }
    }
    EXPECT_GT(made, 0U);
}

// Large enough for many tasks, slices and thread blocks.
TEST(DeviceSums, OfLargePartsToo) {
    TWR_TEST_DEVICE(device);
    Random random(4);
    struct Case {
        DType dtype;
        Shape whole;
        Box box;
        std::uint32_t chunk_bytes;
    };
    const Case cases[] = {
        {DType::f64, {70, 90, 512}, {{70, 80, 64}, {0, 3, 129}}, 4096},
        {DType::f64, {90, 101, 103}, {{40, 101, 103}, {7, 0, 0}}, 4096},
        {DType::f32, {300, 3000}, {{299, 2001}, {1, 5}}, 16384},
        {DType::u8, {999, 4001}, {{400, 4000}, {500, 1}}, 4096},
        {DType::c128, {60, 50, 300}, {{60, 49, 100}, {0, 1, 100}}, 8192},
        {DType::f16, {3'000'001}, {{2'000'000}, {999}}, 4096},
    };
    for (const Case& c : cases) {
        const FieldMetadata field = part_of(c.dtype, c.whole, c.box, {1e-3, 0}, c.chunk_bytes);
        There part(device, field, some_bytes(c.dtype, field.items(), 1000, random), 0);
        const FieldMetadata* const fields[] = {&part.field};
        const DeviceArray* const arrays[] = {&part.array};
        const BuiltField expected = on_host(part.field, part.bytes);
        ASSERT_TRUE(expected.sums) << name_of(field);
        for (const std::uint64_t memory_bytes : {std::uint64_t{0}, std::uint64_t{8} << 20}) {
            DeviceBuildOptions options;
            options.memory_bytes = memory_bytes;
            std::vector<BuiltField> built;
            const auto stats = build_on_device(fields, arrays, built, options);
            ASSERT_TRUE(stats) << stats.error().message;
            expect_same_sums(built[0], expected, name_of(field));
        }
    }
}

// All parts of an array together: the digests of the array.
TEST(DeviceSums, PartsAddUpToTheWhole) {
    TWR_TEST_DEVICE(device);
    Random random(5);
    for (int round = 0; round < test_rounds(10); ++round) {
        const DType dtype = round % 2 == 0 ? DType::f64 : DType::f32;
        const Shape whole{8 + random() % 20, 8 + random() % 40, 100 + random() % 200};
        const std::uint32_t chunk = kSmallestChunk << random() % 3;
        const Tolerance tolerance = some_tolerance(random);
        const std::size_t size = item_bytes(dtype);
        const std::vector<std::byte> all = some_bytes(dtype, product(whole), 100, random);
        const FieldMetadata field = part_of(dtype, whole, {whole, {0, 0, 0}}, tolerance, chunk);
        const BuiltField expected = on_host(field, all);
        // Two by two by two.
        Shape cut;
        for (const std::uint64_t n : whole)
            cut.push_back(n / 4 + random() % (n / 2));
        std::vector<BuiltSums> parts;
        for (unsigned corner = 0; corner < 8; ++corner) {
            Box box;
            for (unsigned d = 0; d < 3; ++d) {
                const bool second = (corner >> d & 1) != 0;
                box.offset.push_back(second ? cut[d] : 0);
                box.shape.push_back(second ? whole[d] - cut[d] : cut[d]);
            }
            // Where it lies, within the whole array on the device.
            There part(device, part_of(dtype, whole, box, tolerance, chunk), all, 0);
            const auto step = static_cast<std::int64_t>(size);
            const auto columns = static_cast<std::int64_t>(whole[2]);
            const auto rows = static_cast<std::int64_t>(whole[1]);
            part.array.strides = {rows * columns * step, columns * step, step};
            part.array.data = part.memory->data() +
                              ((box.offset[0] * whole[1] + box.offset[1]) * whole[2] + box.offset[2]) * size;
            const FieldMetadata* const fields[] = {&part.field};
            const DeviceArray* const arrays[] = {&part.array};
            std::vector<BuiltField> built;
            ASSERT_TRUE(build_on_device(fields, arrays, built));
            ASSERT_TRUE(built[0].sums || own_chunks(part.field)) << name_of(part.field);
            if (built[0].sums) parts.push_back(std::move(*built[0].sums));
        }
        if (parts.size() != 8) continue;
        unsigned height = 0;
        std::vector<SumsOfPart> of;
        for (const BuiltSums& part : parts) {
            of.push_back({part.sums, part.height});
            height = std::max(height, part.height);
        }
        const ChunkShape shape = field.chunking();
        const auto leaves = std::span(expected.tree).subspan(field.tree().first(0));
        const auto of_whole = sums_of_whole(leaves, expected.fine, field.scalars(), shape);
        const SumsOfPart one[] = {{of_whole, 0}};
        EXPECT_EQ(add_sums(of, height, shape.blocks_per_chunk),
                  add_sums(one, height, shape.blocks_per_chunk));
    }
}

TEST(DeviceSums, AreWritten) {
    TWR_TEST_DEVICE(device);
    Random random(6);
    for (int round = 0; round < test_rounds(10); ++round) {
        FieldMetadata field = some_part(random);
        auto bytes = some_bytes(field.dtype, field.items(), 50, random);
        MemorySource host(field.dtype, field.items(), bytes.data(), item_bytes(field.dtype), false);
        SumsFacts expected_facts;
        const auto expected = written_sums(field, host, expected_facts);
        There part(device, std::move(field), std::move(bytes), 0);
        DeviceSource source(part.array);
        SumsFacts facts;
        EXPECT_EQ(written_sums(part.field, source, facts), expected) << name_of(part.field);
        EXPECT_EQ(facts, expected_facts) << name_of(part.field);
    }
}

}  // namespace
}  // namespace twinrun
