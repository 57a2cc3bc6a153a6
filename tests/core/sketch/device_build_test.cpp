// What is made of arrays on devices equals what the host makes of the same elements; and how memory for it is used.
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/sketch_stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "device/device_workspace.hpp"
#include "engine/compare.hpp"
#include "support/device.hpp"
#include "support/numbers.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

using testing::kEveryDType;

// ---- without a device ----

TEST(DeviceArrays, WithoutADeviceTheReasonIsSaid) {
    if (!probe_devices().usable().empty()) GTEST_SKIP() << "there is a device";
    DeviceArray array;
    array.data = reinterpret_cast<const void*>(std::uintptr_t{4096});
    array.dtype = DType::f64;
    array.shape = {4};
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = DType::f64;
    plan.shape = {4};
    const FieldMetadata field = plan_field(std::move(plan)).value();
    const FieldMetadata* const fields[] = {&field};
    const DeviceArray* const arrays[] = {&array};
    std::vector<BuiltField> built;
    const auto made = build_on_device(fields, arrays, built);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code,
              probe_devices().library.empty() ? ErrorCode::unsupported : made.error().code);
    EXPECT_FALSE(made.error().message.empty());
}

// ---- with one ----

std::vector<std::byte> some_bytes(DType dtype, std::size_t items, Random& random) {
    std::vector<std::byte> bytes(items * item_bytes(dtype));
    const std::size_t scalar = item_bytes(scalar_type(dtype));
    const unsigned odd = random() % 3 == 0 ? 0 : 1U << (5 + random() % 8);
    for (std::size_t at = 0; at < bytes.size(); at += scalar) {
        std::uint64_t raw = random();
        const double x = std::ldexp(static_cast<double>(raw >> 40), -22) - 2;
        const bool as_it_is = odd != 0 && random() % odd == 0;
        if (scalar_type(dtype) == DType::f64 && !as_it_is) raw = std::bit_cast<std::uint64_t>(x);
        if (scalar_type(dtype) == DType::f32 && !as_it_is)
            raw = std::bit_cast<std::uint32_t>(static_cast<float>(x));
        std::memcpy(bytes.data() + at, &raw, scalar);
    }
    return bytes;
}

FieldMetadata some_field(DType dtype, std::vector<std::uint64_t> shape, Random& random) {
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = dtype;
    plan.shape = std::move(shape);
    // Now and then a part of a global array, which has sums.
    Random place(static_cast<std::uint64_t>(dtype) + 100);
    for (const std::uint64_t n : plan.shape)
        place.seed(place() + n);
    const bool part = place() % 2 == 0;
    for (std::size_t d = 0; part && d < plan.shape.size(); ++d) {
        plan.global_offset.push_back(place() % 3 * (place() % 600));
        plan.global_shape.push_back(plan.global_offset[d] + plan.shape[d] + place() % 3);
    }
    const unsigned how = static_cast<unsigned>(random() % 4);
    if (how != 0) plan.tolerance.atol = std::ldexp(1.0, -static_cast<int>(random() % 20)) * 1.3;
    if (how == 2) plan.tolerance.rtol = 1e-3;
    plan.residue_bits = static_cast<unsigned>(random() % 3) * 2;
    plan.chunk_bytes = kSmallestChunk << random() % 9;
    if (how != 2 && random() % 5 == 0) plan.kind = DigestKind::published;
    return plan_field(std::move(plan)).value();
}

// An array on a device, and the same items dense on the host.
struct Pair {
    FieldMetadata field;
    std::vector<std::byte> items;
    std::unique_ptr<OnDevice> memory;
    DeviceArray array;
};

Pair some_pair(int device, std::uint64_t most_items, Random& random) {
    Pair pair;
    const DType dtype = kEveryDType[random() % std::size(kEveryDType)];
    const std::size_t item = item_bytes(dtype);
    std::vector<std::uint64_t> shape;
    std::uint64_t items = 1;
    const std::uint64_t wanted = random() % 10 == 0 ? 0 : 1 + random() % most_items;
    const unsigned dimensions = static_cast<unsigned>(random() % 4);
    for (unsigned d = 0; d < dimensions; ++d) {
        const std::uint64_t size = d + 1 == dimensions
                                       ? wanted / items
                                       : 1 + random() % std::min<std::uint64_t>(5, wanted / items + 1);
        shape.push_back(size);
        items *= size;
        if (items == 0) {
            shape.resize(dimensions, 1);
            break;
        }
    }
    pair.field = some_field(dtype, shape, random);
    items = pair.field.items();
    pair.array.device = device;
    pair.array.dtype = dtype;
    pair.array.shape = shape;
    pair.items = some_bytes(dtype, items, random);
    std::vector<std::byte> stored = pair.items;
    std::int64_t begin = 0;
    if (random() % 2 == 0 && items != 0) {
        // Dimensions in any order, with gaps, some backwards.
        std::vector<std::size_t> order(shape.size());
        for (std::size_t d = 0; d < order.size(); ++d)
            order[d] = d;
        std::shuffle(order.begin(), order.end(), random);
        pair.array.strides.resize(shape.size());
        auto step = static_cast<std::int64_t>(item);
        if (random() % 2 == 0) step *= 2;
        for (const std::size_t d : order) {
            const auto reach = step * static_cast<std::int64_t>(shape[d]);
            const bool back = random() % 4 == 0;
            pair.array.strides[d] = back ? -step : step;
            if (back) begin += reach - step;
            step = reach + (random() % 3 == 0 ? static_cast<std::int64_t>(item) : 0);
        }
        stored.assign(static_cast<std::size_t>(step) + item, std::byte{0x77});
        for (std::uint64_t i = 0; i < items; ++i) {
            std::uint64_t rest = i;
            std::int64_t at = begin;
            for (std::size_t d = shape.size(); d-- > 0;) {
                at += static_cast<std::int64_t>(rest % shape[d]) * pair.array.strides[d];
                rest /= shape[d];
            }
            std::memcpy(stored.data() + at, pair.items.data() + i * item, item);
        }
    }
    const std::size_t scalar = item_bytes(scalar_type(dtype));
    if (random() % 4 == 0) {
        pair.array.swap = true;
        for (std::size_t at = 0; at + scalar <= stored.size(); at += scalar)
            std::reverse(stored.begin() + static_cast<std::ptrdiff_t>(at),
                         stored.begin() + static_cast<std::ptrdiff_t>(at + scalar));
    }
    pair.memory =
        std::make_unique<OnDevice>(device, std::span<const std::byte>(stored), random() % 4 * scalar);
    pair.array.data = pair.memory->data() + begin;
    return pair;
}

BuiltField on_host(const Pair& pair) {
    BuiltField built;
    MemorySource source(pair.field.dtype, pair.field.items(), pair.items.data(), item_bytes(pair.field.dtype),
                        false);
    StreamOptions options;
    options.threads = 1;
    EXPECT_TRUE(build_in_memory(pair.field, source, options, built));
    return built;
}

void expect_same(const BuiltField& x, const BuiltField& y, const std::string& what) {
    ASSERT_EQ(x.tree, y.tree) << what;
    ASSERT_EQ(x.fine, y.fine) << what;
    ASSERT_EQ(x.residues, y.residues) << what;
    ASSERT_EQ(x.counts.nans, y.counts.nans) << what;
    ASSERT_EQ(x.counts.tokens, y.counts.tokens) << what;
    ASSERT_EQ(x.largest, y.largest) << what;
    ASSERT_EQ(x.sums.has_value(), y.sums.has_value()) << what;
    if (!x.sums) return;
    ASSERT_EQ(x.sums->height, y.sums->height) << what;
    ASSERT_EQ(x.sums->sums, y.sums->sums) << what;
}

struct Set {
    std::vector<Pair> pairs;
    std::vector<const FieldMetadata*> fields;
    std::vector<const DeviceArray*> arrays;
    Set(std::vector<Pair> given) : pairs(std::move(given)) {
        for (const Pair& p : pairs) {
            fields.push_back(&p.field);
            arrays.push_back(&p.array);
        }
    }
};

Set some_set(const std::vector<int>& devices, std::size_t n, std::uint64_t most_items, Random& random) {
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < n; ++i)
        pairs.push_back(some_pair(devices[random() % devices.size()], most_items, random));
    return {std::move(pairs)};
}

std::string name_of(const Pair& p) {
    std::string text(dtype_name(p.field.dtype));
    for (const std::uint64_t s : p.field.shape)
        text += " " + std::to_string(s);
    return text + (p.array.dense() ? " dense" : " gathered") + ", chunks of " +
           std::to_string(p.field.settings.chunk_bytes);
}

TEST(DeviceBuild, EqualsTheHostForAnyFields) {
    TWR_TEST_DEVICE(device);
    Random random(3);
    for (int round = 0; round < test_rounds(12); ++round) {
        const Set set = some_set({device}, 1 + random() % 12, round % 4 == 0 ? 1'500'000 : 20'000, random);
        std::vector<BuiltField> built;
        const auto stats = build_on_device(set.fields, set.arrays, built);
        ASSERT_TRUE(stats) << stats.error().message;
        for (std::size_t f = 0; f < set.pairs.size(); ++f)
            expect_same(built[f], on_host(set.pairs[f]), name_of(set.pairs[f]));
    }
}

TEST(DeviceBuild, ManySmallFieldsInOneBatch) {
    TWR_TEST_DEVICE(device);
    Random random(4);
    const Set set = some_set({device}, 500, 3000, random);
    std::vector<BuiltField> built;
    const auto stats = build_on_device(set.fields, set.arrays, built);
    ASSERT_TRUE(stats) << stats.error().message;
    EXPECT_EQ(stats->batches, 1U);
    for (std::size_t f = 0; f < set.pairs.size(); ++f)
        expect_same(built[f], on_host(set.pairs[f]), name_of(set.pairs[f]));
}

// Plans are made once; what they make is that of the elements as they are then.
TEST(DeviceBuild, APlanServesAgain) {
    TWR_TEST_DEVICE(device);
    Random random(15);
    std::vector<Pair> pairs;
    while (pairs.size() < 200) {
        Pair pair = some_pair(device, 3000, random);
        if (pair.array.dense() || pairs.size() % 10 == 0) pairs.push_back(std::move(pair));
    }
    const auto expect_all = [&](const std::vector<DeviceSketch>& sketches,
                                const std::vector<BuiltField>& expected) {
        ASSERT_EQ(sketches.size(), expected.size());
        for (std::size_t f = 0; f < pairs.size(); ++f) {
            BuiltField back;
            ASSERT_TRUE(sketches[f].download(back));
            expect_same(back, expected[f], name_of(pairs[f]));
        }
    };
    const auto expected_now = [&] {
        std::vector<BuiltField> all;
        for (const Pair& pair : pairs)
            all.push_back(on_host(pair));
        return all;
    };
    std::vector<DeviceSketch> made(pairs.size());
    const SketchStream::TakeSketches take = [&](const std::vector<std::size_t>& numbers,
                                                const SketchGroup& sketches) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            made[numbers[i]] = sketches.at(i);
    };
    SketchStream first(take);
    for (std::size_t f = pairs.size(); f-- > 0;)
        ASSERT_TRUE(first.add(f, pairs[f].field, pairs[f].array));
    ASSERT_TRUE(first.finish());
    const std::vector<BuiltField> before = expected_now();
    expect_all(made, before);
    const std::vector<DeviceSketch> old = std::exchange(made, std::vector<DeviceSketch>(pairs.size()));

    for (Pair& pair : pairs) {
        if (!pair.array.dense() || pair.items.empty()) continue;
        pair.items = some_bytes(pair.field.dtype, pair.field.items(), random);
        pair.memory->put(pair.items.data(), pair.items.size());
    }
    const std::vector<BuiltField> after = expected_now();
    for (int round = 0; round < 3; ++round) {
        SketchStream again(take);
        for (const SketchStream::Planned& planned : first.planned())
            ASSERT_TRUE(again.repeat(planned));
        ASSERT_TRUE(again.finish());
        EXPECT_EQ(again.planned().size(), first.planned().size());
        expect_all(made, after);
    }
    expect_all(old, before);
}

TEST(DeviceBuild, SketchesOfManyFieldsEqualTheHost) {
    TWR_TEST_DEVICE(device);
    Random random(14);
    for (const bool only_dense : {true, false}) {
        std::vector<Pair> pairs;
        while (pairs.size() < 1100) {
            Pair pair = some_pair(device, 500, random);
            if (!only_dense || pair.array.dense()) pairs.push_back(std::move(pair));
        }
        const Set set(std::move(pairs));
        auto sketches = DeviceSketch::build(set.fields, set.arrays);
        ASSERT_TRUE(sketches) << sketches.error().message;
        ASSERT_EQ(sketches->size(), set.pairs.size());
        for (std::size_t f = 0; f < set.pairs.size(); ++f) {
            BuiltField back;
            ASSERT_TRUE((*sketches)[f].download(back));
            expect_same(back, on_host(set.pairs[f]), name_of(set.pairs[f]));
        }
        // Those that are left keep their memory when others go.
        sketches->erase(sketches->begin(), sketches->begin() + 1000);
        const auto others = DeviceSketch::build(set.fields, set.arrays);
        ASSERT_TRUE(others) << others.error().message;
        BuiltField back;
        ASSERT_TRUE(sketches->back().download(back));
        expect_same(back, on_host(set.pairs.back()), name_of(set.pairs.back()));
    }
}

TEST(DeviceBuild, LittleMemoryChangesNothing) {
    TWR_TEST_DEVICE(device);
    Random random(5);
    for (int round = 0; round < test_rounds(6); ++round) {
        const Set set = some_set({device}, 1 + random() % 6, 1'500'000, random);
        // The last is more than there is: where memory is short, an allocation fails, and less is tried.
        for (const std::uint64_t limit :
             {std::uint64_t{1}, std::uint64_t{1} << 20, std::uint64_t{4'000'000}, std::uint64_t{1} << 50}) {
            DeviceBuildOptions options;
            options.memory_bytes = limit;
            std::vector<BuiltField> built;
            const auto stats = build_on_device(set.fields, set.arrays, built, options);
            ASSERT_TRUE(stats) << stats.error().message;
            for (std::size_t f = 0; f < set.pairs.size(); ++f)
                expect_same(built[f], on_host(set.pairs[f]), name_of(set.pairs[f]));
        }
    }
}

TEST(DeviceBuild, ResiduesComeInOrderAndWholePages) {
    TWR_TEST_DEVICE(device);
    Random random(6);
    for (int round = 0; round < test_rounds(6); ++round) {
        const Set set = some_set({device}, 8, 400'000, random);
        std::vector<std::vector<std::byte>> taken(set.pairs.size());
        DeviceBuildOptions options;
        options.memory_bytes = round % 2 == 0 ? 0 : 2'000'000;
        std::vector<BuiltField> built;
        const auto stats = build_on_device(
            set.fields, set.arrays, built, options,
            [&](std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) -> Result<> {
                EXPECT_EQ(offset, taken[field].size());
                EXPECT_EQ(offset % kPageBytes, 0U);
                taken[field].insert(taken[field].end(), bytes.begin(), bytes.end());
                EXPECT_TRUE(bytes.size() % kPageBytes == 0 ||
                            taken[field].size() == set.fields[field]->section_bytes(Section::residues));
                return success();
            });
        ASSERT_TRUE(stats) << stats.error().message;
        for (std::size_t f = 0; f < set.pairs.size(); ++f) {
            EXPECT_TRUE(built[f].residues.empty());
            EXPECT_TRUE(std::ranges::equal(taken[f], on_host(set.pairs[f]).residues))
                << name_of(set.pairs[f]);
        }
        // What goes wrong there is what the caller hears.
        bool any = false;
        for (const FieldMetadata* field : set.fields)
            any = any || field->section_bytes(Section::residues) != 0;
        const auto failed =
            build_on_device(set.fields, set.arrays, built, options,
                            [](std::size_t, std::uint64_t, std::span<const std::byte>) -> Result<> {
                                return Error{ErrorCode::no_space, "full"};
                            });
        EXPECT_EQ(failed.ok(), !any);
    }
}

TEST(DeviceBuild, ThreadsAndDevicesAtOnceAndThenNoAllocation) {
    TWR_TEST_DEVICE(first);
    const std::vector<int> devices = probe_devices().usable();
    static_cast<void>(first);
    Random random(7);
    std::vector<Set> sets;
    std::vector<std::vector<BuiltField>> expected;
    for (int t = 0; t < 4; ++t) {
        sets.push_back(some_set(devices, 10, 200'000, random));
        expected.emplace_back();
        for (const Pair& p : sets.back().pairs)
            expected.back().push_back(on_host(p));
    }
    const auto work = [&](std::size_t t) {
        std::vector<BuiltField> built;
        const auto stats = build_on_device(sets[t].fields, sets[t].arrays, built);
        EXPECT_TRUE(stats) << stats.error().message;
        for (std::size_t f = 0; stats && f < built.size(); ++f)
            expect_same(built[f], expected[t][f], name_of(sets[t].pairs[f]));
    };
    for (int round = 0; round < 3; ++round) {
        std::vector<std::jthread> threads;
        for (std::size_t t = 0; t < sets.size(); ++t)
            threads.emplace_back([&work, t] { work(t); });
    }
    // One after the other, the largest workspace of each device does for all: soon, where memory is so little that those of the
    // threads before must go first.
    constexpr int kMostRounds = 8;
    bool settled = false;
    for (int round = 0; round < kMostRounds && !settled; ++round) {
        const std::uint64_t before = device_workspace_allocations();
        for (int again = 0; again < 3; ++again) {
            for (std::size_t t = 0; t < sets.size(); ++t)
                work(t);
        }
        settled = device_workspace_allocations() == before;
    }
    EXPECT_TRUE(settled);
}

TEST(DeviceBuild, FieldsAndArraysMustFit) {
    TWR_TEST_DEVICE(device);
    Random random(8);
    Set set = some_set({device}, 2, 1000, random);
    std::vector<BuiltField> built;
    EXPECT_FALSE(build_on_device(std::span(set.fields).first(1), set.arrays, built));
    set.pairs[0].array.shape.push_back(3);
    set.pairs[0].array.strides.clear();
    set.pairs[0].field.shape = {7};
    const auto made = build_on_device(set.fields, set.arrays, built);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find("'x'"), std::string::npos);
}

TEST(DeviceSource, LooksLikeDecodedStorage) {
    TWR_TEST_DEVICE(device);
    Random random(9);
    for (int round = 0; round < test_rounds(30); ++round) {
        const Pair pair = some_pair(device, 50'000, random);
        DeviceSource source(pair.array);
        ASSERT_EQ(source.items(), pair.field.items());
        EXPECT_EQ(source.device_array()->data, pair.array.data);
        ASSERT_TRUE(source.prepare());
        const std::uint64_t first = source.items() == 0 ? 0 : random() % source.items();
        const std::uint64_t count = source.items() == 0 ? 0 : random() % (source.items() - first + 1);
        std::vector<std::byte> buffer(source.buffer_bytes(count) + 1);
        std::vector<ReadRequest> requests;
        ASSERT_TRUE(source.plan(first, count, buffer.data(), requests));
        EXPECT_TRUE(requests.empty());
        const ElementView view = source.view(first, count, buffer.data());
        const std::size_t item = item_bytes(pair.field.dtype);
        EXPECT_TRUE(view.dense());
        EXPECT_TRUE(std::equal(view.base, view.base + count * item, pair.items.data() + first * item))
            << name_of(pair);
        std::vector<std::byte> all;
        ASSERT_TRUE(copy_out(pair.array, item * 4096,
                             [&](std::uint64_t at, std::span<const std::byte> bytes) -> Result<> {
                                 EXPECT_EQ(at * item, all.size());
                                 all.insert(all.end(), bytes.begin(), bytes.end());
                                 return success();
                             }));
        EXPECT_EQ(all, pair.items) << name_of(pair);
    }
}

// ---- sketches ----

struct Staged {
    std::vector<std::uint32_t> flagged;
    std::vector<std::uint32_t> open;
    std::array<std::uint64_t, 8> by_cells{};
};

// What compare does on the host, with what it is made of.
Staged staged(const FieldMetadata& field, const BuiltField& a, const BuiltField& b,
              const DifferenceRule& rule) {
    Staged result;
    const CellRule& cells = field.settings.rule;
    const bool published = field.settings.kind == DigestKind::published;
    const ProofReach reach = proof_reach(cells, field.settings.tolerance, rule.tolerance);
    if (published || reach.coarse_proves) {
        const std::size_t words = node_words(field.settings.kind);
        MemoryNodes nodes_a(a.tree, words);
        MemoryNodes nodes_b(b.tree, words);
        const WalkResult walked = walk_trees(field.tree(), words, nodes_a, nodes_b).value();
        for (const Range& r : walked.chunks) {
            for (std::uint64_t c = r.begin; c < r.end; ++c)
                result.flagged.push_back(static_cast<std::uint32_t>(c));
        }
    } else {
        for (std::uint64_t c = 0; c < field.chunks(); ++c)
            result.flagged.push_back(static_cast<std::uint32_t>(c));
    }
    const ChunkShape shape = field.chunking();
    for (const std::uint32_t c : result.flagged) {
        if (a.fine.empty() || cells.residue_bits == 0) {
            result.open.push_back(c);
            continue;
        }
        const auto n = static_cast<std::size_t>(
            std::min<std::uint64_t>(shape.chunk_scalars, field.scalars() - c * shape.chunk_scalars));
        const std::size_t at = c * shape.residue_bytes_per_chunk;
        const SketchVerdict verdict =
            check_sketch(kPortableDigest, shape, n, cells.residue_bits, reach.widest, a.fine[c], b.fine[c],
                         a.residues.data() + at, b.residues.data() + at);
        if (!verdict.proven) {
            result.open.push_back(c);
            continue;
        }
        for (std::size_t i = 0; i < 8; ++i)
            result.by_cells[i] += verdict.counts[i];
    }
    return result;
}

TEST(DeviceSketch, ComparesAsTheHostDoes) {
    TWR_TEST_DEVICE(device);
    Random random(10);
    std::size_t compared = 0;
    for (int round = 0; round < test_rounds(40); ++round) {
        Pair a = some_pair(device, round % 8 == 0 ? 1'000'000 : 30'000, random);
        Pair b;
        b.field = a.field;
        b.array = a.array;
        b.items = a.items;
        b.array.strides.clear();
        b.array.swap = false;
        // A little drift here, something else there.
        const std::size_t scalar = item_bytes(scalar_type(a.field.dtype));
        const std::uint64_t rare = std::uint64_t{1} << random() % 14;
        for (std::size_t at = 0; at + scalar <= b.items.size(); at += scalar) {
            if (random() % rare != 0) continue;
            if (scalar_type(a.field.dtype) == DType::f64) {
                double x = 0;
                std::memcpy(&x, b.items.data() + at, 8);
                x += a.field.settings.tolerance.atol * 0.3;
                std::memcpy(b.items.data() + at, &x, 8);
            } else if (random() % 40 == 0) {
                b.items[at] ^= std::byte{1};
            }
        }
        b.memory = std::make_unique<OnDevice>(device, std::span<const std::byte>(b.items));
        b.array.data = b.memory->data();
        const FieldMetadata* const fields[] = {&a.field, &b.field};
        const DeviceArray* const arrays[] = {&a.array, &b.array};
        DeviceBuildOptions options;
        options.memory_bytes = round % 3 == 0 ? 1 << 20 : 0;
        auto sketches = DeviceSketch::build(fields, arrays, options);
        ASSERT_TRUE(sketches) << sketches.error().message;
        const BuiltField host_a = on_host(a);
        const BuiltField host_b = on_host(b);
        BuiltField back;
        ASSERT_TRUE((*sketches)[0].download(back));
        expect_same(back, host_a, name_of(a));
        auto uploaded = DeviceSketch::upload(a.field, host_a, device);
        ASSERT_TRUE(uploaded) << uploaded.error().message;
        DifferenceRule rule;
        rule.tolerance = a.field.settings.tolerance;
        if (random() % 4 == 0) rule.tolerance.atol *= 3;
        const auto found = uploaded->compare((*sketches)[1], rule);
        const Method method =
            a.field.settings.kind == DigestKind::published ? Method::published : Method::staged;
        if (!why_not_staged(a.field, b.field, method, rule).empty()) {
            EXPECT_FALSE(found);
            continue;
        }
        ASSERT_TRUE(found) << found.error().message;
        ++compared;
        const Staged expected = staged(a.field, host_a, host_b, rule);
        EXPECT_EQ(found->flagged, expected.flagged) << name_of(a);
        EXPECT_EQ(found->open, expected.open) << name_of(a);
        EXPECT_EQ(found->by_cells, expected.by_cells) << name_of(a);
        std::uint64_t covered = found->by_tree;
        const std::uint64_t per_chunk = a.field.chunking().chunk_scalars;
        for (const std::uint32_t c : found->flagged)
            covered += std::min<std::uint64_t>(per_chunk, a.field.scalars() - c * per_chunk);
        EXPECT_EQ(covered, a.field.scalars());
        const auto itself = (*sketches)[0].compare(*uploaded, rule);
        ASSERT_TRUE(itself);
        if (a.field.settings.kind == DigestKind::published ||
            proof_reach(a.field.settings.rule, a.field.settings.tolerance, rule.tolerance).coarse_proves) {
            EXPECT_TRUE(itself->same());
            EXPECT_EQ(itself->by_tree, a.field.scalars());
        }
    }
    EXPECT_GT(compared, 0U);
}

}  // namespace
}  // namespace twinrun
