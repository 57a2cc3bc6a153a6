// Calls of the device library fail, each in its turn: what comes of it is the right result or an error that names the device,
// and nothing is left behind. With the fake device library only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/batch.hpp"
#include "engine/compare.hpp"
#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/word_roots.hpp"
#include "sketch/words.hpp"
#include "source/device_array.hpp"
#include "support/device_faults.hpp"
#include "support/field_results.hpp"
#include "support/fields.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::fail_each_call;
using testing::LessMemory;

class DeviceFaults : public ::testing::Test {
   protected:
    void SetUp() override {
        // The second run differs here and there, in the first and the last chunk too.
        std::mt19937_64 random(1);
        a_.resize(700'001);
        for (auto& x : a_)
            x = static_cast<float>(random() % 1'000'000) * 1e-3F;
        b_ = a_;
        for (std::size_t i = 0; i < b_.size(); ++i) {
            if (i % 100'000 == 0) b_[i] += 1;
            if (i < 300'000) b_[i] += 1e-4F * static_cast<float>(random() % 3);
        }
    }

    static CompareOptions options(DeviceUse use) {
        CompareOptions options;
        options.rule.tolerance = {1e-3, 0};
        options.device.use = use;
        options.stream.threads = 2;
        options.stream.memory_bytes = 4 << 20;  // so that there are several slices
        return options;
    }
    // Devices are asked for, so that little work goes there too.
    static CompareOptions on_devices() {
        CompareOptions chosen = options(DeviceUse::gpu);
        chosen.device.devices = probe_devices().usable();
        return chosen;
    }
    static void expect_same(const FieldResult& x, const FieldResult& y) {
        testing::expect_same_read(y.read, x.read, 1e-10);
        EXPECT_EQ(x.proven.by_tree, y.proven.by_tree);
        EXPECT_EQ(x.proven.by_cells, y.proven.by_cells);
        EXPECT_EQ(x.elements.chunks_in, y.elements.chunks_in);
        EXPECT_EQ(x.elements.chunks_out, y.elements.chunks_out);
        EXPECT_EQ(x.sketch.chunks_out, y.sketch.chunks_out);
    }
    // The comparison of two sides with `chosen` options equals that of the CPU, or fails as it may.
    void check(const testing::FakeDeviceControl& fake, LessMemory less, const FieldSide& a,
               const FieldSide& b, const FieldSide& host_a, const FieldSide& host_b,
               const CompareOptions& chosen) const {
        const auto expected = compare_field(host_a, host_b, options(DeviceUse::cpu));
        ASSERT_TRUE(expected) << expected.error().message;
        ASSERT_NE(expected->read.different, 0U);
        fail_each_call(fake, less, [&]() -> Result<> {
            TWR_TRY(const FieldResult found, compare_field(a, b, chosen));
            expect_same(*expected, found);
            return success();
        });
    }
    static MemorySource memory(const std::vector<float>& x) {
        return {DType::f32, x.size(), x.data(), sizeof(float), false};
    }
    std::unique_ptr<FileSource> file(const std::string& name, const std::vector<float>& x,
                                     CacheUse cache) const {
        const std::string path = folder_.write(name, x.data(), x.size() * sizeof(float));
        return FileSource::create(DType::f32, ByteOrder::little, x.size(), {{path, 0, 4, x.size()}}, cache)
            .value();
    }
    // part: of a larger array, so that it has sums.
    static FieldMetadata plan(std::uint64_t items, DigestKind kind = DigestKind::linear, bool part = false) {
        FieldPlan plan = testing::plan_of(DType::f32, items);
        if (part) {
            plan.global_shape = {items + 77};
            plan.global_offset = {7};
        }
        plan.kind = kind;
        return plan_field(std::move(plan)).value();
    }
    std::shared_ptr<MetadataFile> index(const std::string& name, const std::vector<float>& x) const {
        MemorySource source = memory(x);
        return testing::index_field(folder_.path(name + ".twm"), source,
                                    testing::plan_of(DType::f32, x.size()));
    }
    // All of x, or every second.
    static DeviceArray array(const OnDevice& on_device, int device, std::size_t n, bool strided = false) {
        DeviceArray made;
        made.device = device;
        made.dtype = DType::f32;
        made.data = on_device.data();
        made.shape = {strided ? n / 2 : n};
        if (strided) made.strides = {8};
        return made;
    }

    std::vector<float> a_, b_;
    testing::TestFolder folder_;
};

TEST_F(DeviceFaults, ComparisonOfMemory) {
    TWR_FAKE_DEVICE(fake);
    MemorySource a = memory(a_);
    MemorySource b = memory(b_);
    check(*fake, LessMemory::does, {&a, nullptr, 0}, {&b, nullptr, 0}, {&a, nullptr, 0}, {&b, nullptr, 0},
          on_devices());
}

TEST_F(DeviceFaults, ComparisonOfFiles) {
    TWR_FAKE_DEVICE(fake);
    const auto a = file("a", a_, CacheUse::direct);
    const auto b = file("b", b_, CacheUse::buffered);
    check(*fake, LessMemory::does, {a.get(), nullptr, 0}, {b.get(), nullptr, 0}, {a.get(), nullptr, 0},
          {b.get(), nullptr, 0}, on_devices());
}

TEST_F(DeviceFaults, ComparisonWithPageLockedMemory) {
    TWR_FAKE_DEVICE(fake);
    MemorySource a = memory(a_);
    MemorySource b = memory(b_);
    std::vector<float> swapped = b_;
    for (float& x : swapped)
        x = std::bit_cast<float>(__builtin_bswap32(std::bit_cast<std::uint32_t>(x)));
    DeviceMemory locked;
    ASSERT_TRUE(locked.reserve(kHostMemory, a_.size() * 4));
    std::memcpy(locked.data(), a_.data(), a_.size() * 4);
    MemorySource locked_a(DType::f32, a_.size(), locked.data(), 4, false);
    MemorySource swapped_b(DType::f32, b_.size(), swapped.data(), 4, true);
    check(*fake, LessMemory::does, {&locked_a, nullptr, 0}, {&swapped_b, nullptr, 0}, {&a, nullptr, 0},
          {&b, nullptr, 0}, on_devices());
}

TEST_F(DeviceFaults, ComparisonOfMetadata) {
    TWR_FAKE_DEVICE(fake);
    MemorySource a = memory(a_);
    MemorySource b = memory(b_);
    const auto metadata_a = index("a", a_);
    const auto metadata_b = index("b", b_);
    check(*fake, LessMemory::does, {&a, metadata_a.get(), 0}, {&b, metadata_b.get(), 0},
          {&a, metadata_a.get(), 0}, {&b, metadata_b.get(), 0}, on_devices());
}

// By itself the work goes to the device that the array lies on, and to the CPU where memory is short.
TEST_F(DeviceFaults, ComparisonOfArraysOnDevices) {
    TWR_FAKE_DEVICE(fake);
    const std::vector<int> devices = probe_devices().usable();
    const OnDevice there_a(devices.front(), std::span<const float>(a_));
    const OnDevice there_b(devices.back(), std::span<const float>(b_));
    MemorySource a = memory(a_);
    MemorySource b = memory(b_);
    DeviceSource on_a(array(there_a, devices.front(), a_.size()));
    DeviceSource on_b(array(there_b, devices.back(), b_.size()));
    // The values told of the first difference are copied to the host, for which nothing stands in.
    check(*fake, LessMemory::may_fail, {&on_a, nullptr, 0}, {&on_b, nullptr, 0}, {&a, nullptr, 0},
          {&b, nullptr, 0}, options(DeviceUse::automatic));
    MemorySource half_a(DType::f32, a_.size() / 2, a_.data(), 8, false);
    MemorySource half_b(DType::f32, b_.size() / 2, b_.data(), 8, false);
    DeviceSource strided_a(array(there_a, devices.front(), a_.size(), true));
    DeviceSource strided_b(array(there_b, devices.back(), b_.size(), true));
    check(*fake, LessMemory::may_fail, {&strided_a, nullptr, 0}, {&strided_b, nullptr, 0},
          {&half_a, nullptr, 0}, {&half_b, nullptr, 0}, options(DeviceUse::automatic));
    // Copies to the host.
    check(*fake, LessMemory::may_fail, {&strided_a, nullptr, 0}, {&strided_b, nullptr, 0},
          {&half_a, nullptr, 0}, {&half_b, nullptr, 0}, options(DeviceUse::cpu));
}

// Whatever fails, a pair has the right result or an error.
TEST_F(DeviceFaults, ComparisonOfManyArrays) {
    TWR_FAKE_DEVICE(fake);
    const int device = probe_devices().usable().front();
    const OnDevice there_a(device, std::span<const float>(a_));
    const OnDevice there_b(device, std::span<const float>(b_));
    std::vector<std::unique_ptr<DeviceSource>> sources;
    std::vector<MemorySource> on_host;
    std::vector<FieldPair> pairs;
    on_host.reserve(40);
    for (std::size_t at = 0; at < 20; ++at) {
        const std::size_t items = 1 + at * 1000;
        for (const auto* run : {&there_a, &there_b})
            sources.push_back(std::make_unique<DeviceSource>(array(*run, device, items)));
        for (const auto* run : {&a_, &b_})
            on_host.emplace_back(DType::f32, items, run->data(), sizeof(float), false);
        FieldPair pair{{sources[2 * at].get(), nullptr, 0}, {sources[2 * at + 1].get(), nullptr, 0}, {}, {}};
        if (at % 2 != 0) pair.rule.tolerance.atol = 1e-3;
        pairs.push_back(pair);
    }
    fail_each_call(*fake, LessMemory::may_fail, [&]() -> Result<> {
        auto found = compare_fields(pairs, options(DeviceUse::automatic));
        Result<> all = success();
        for (std::size_t at = 0; at < pairs.size(); ++at) {
            if (!found[at]) {
                all = std::move(found[at]).error();
                continue;
            }
            CompareOptions alone = options(DeviceUse::cpu);
            alone.rule = pairs[at].rule;
            expect_same(
                compare_field({&on_host[2 * at], nullptr, 0}, {&on_host[2 * at + 1], nullptr, 0}, alone)
                    .value(),
                *found[at]);
        }
        return all;
    });
}

TEST_F(DeviceFaults, Builds) {
    TWR_FAKE_DEVICE(fake);
    const std::vector<int> devices = probe_devices().usable();
    const OnDevice there_a(devices.front(), std::span<const float>(a_));
    const OnDevice there_b(devices.back(), std::span<const float>(b_));
    const std::array<DeviceArray, 3> arrays = {array(there_a, devices.front(), a_.size()),
                                               array(there_b, devices.back(), b_.size(), true),
                                               array(there_b, devices.back(), 5000)};
    const std::array<FieldMetadata, 3> fields = {plan(a_.size(), DigestKind::linear, true),
                                                 plan(b_.size() / 2, DigestKind::linear, true),
                                                 plan(5000, DigestKind::published)};
    const std::array<MemorySource, 3> host = {memory(a_),
                                              MemorySource(DType::f32, b_.size() / 2, b_.data(), 8, false),
                                              MemorySource(DType::f32, 5000, b_.data(), 4, false)};
    std::array<BuiltField, 3> expected;
    for (std::size_t f = 0; f < 3; ++f) {
        MemorySource source = host[f];
        ASSERT_TRUE(build_in_memory(fields[f], source, {}, expected[f]));
    }
    const FieldMetadata* const of[] = {fields.data(), &fields[1], &fields[2]};
    const DeviceArray* const there[] = {arrays.data(), &arrays[1], &arrays[2]};
    for (const std::uint64_t memory_bytes : {std::uint64_t{0}, std::uint64_t{1}}) {
        DeviceBuildOptions build;
        build.memory_bytes = memory_bytes;
        fail_each_call(*fake, LessMemory::may_fail, [&]() -> Result<> {
            std::vector<BuiltField> built;
            TWR_CHECK(build_on_device(of, there, built, build));
            for (std::size_t f = 0; f < 3; ++f) {
                EXPECT_EQ(built[f].tree, expected[f].tree);
                EXPECT_EQ(built[f].fine, expected[f].fine);
                EXPECT_EQ(built[f].residues, expected[f].residues);
                EXPECT_EQ(built[f].counts.tokens, expected[f].counts.tokens);
                EXPECT_EQ(built[f].largest, expected[f].largest);
                EXPECT_EQ(built[f].sums.has_value(), f < 2);
                if (built[f].sums) {
                    EXPECT_EQ(built[f].sums->sums, expected[f].sums->sums);
                }
            }
            return success();
        });
    }
}

TEST_F(DeviceFaults, Sketches) {
    TWR_FAKE_DEVICE(fake);
    const int device = probe_devices().usable().front();
    const OnDevice there_a(device, std::span<const float>(a_));
    const OnDevice there_b(device, std::span<const float>(b_));
    const FieldMetadata field = plan(a_.size() / 2, DigestKind::linear, true);
    const DeviceArray strided_a = array(there_a, device, a_.size(), true);
    const DeviceArray strided_b = array(there_b, device, b_.size(), true);
    MemorySource host_a(DType::f32, a_.size() / 2, a_.data(), 8, false);
    BuiltField built_a;
    ASSERT_TRUE(build_in_memory(field, host_a, {}, built_a));
    std::vector<std::uint32_t> open;
    DifferenceRule rule;
    rule.tolerance = {1e-3, 0};
    fail_each_call(*fake, LessMemory::may_fail, [&]() -> Result<> {
        const FieldMetadata* const fields[] = {&field, &field};
        const DeviceArray* const arrays[] = {&strided_a, &strided_b};
        TWR_TRY(const auto sketches, DeviceSketch::build(fields, arrays));
        TWR_TRY(const SketchComparison found, sketches[0].compare(sketches[1], rule));
        if (open.empty()) open = found.open;
        EXPECT_FALSE(found.open.empty());
        EXPECT_EQ(found.open, open);
        TWR_TRY(const auto uploaded, DeviceSketch::upload(field, built_a, device));
        TWR_TRY(const SketchComparison same, uploaded.compare(sketches[0], rule));
        EXPECT_TRUE(same.same());
        BuiltField back;
        TWR_CHECK(sketches[0].download(back));
        EXPECT_EQ(back.tree, built_a.tree);
        EXPECT_EQ(back.fine, built_a.fine);
        EXPECT_EQ(back.residues, built_a.residues);
        EXPECT_TRUE(back.sums && back.sums->sums == built_a.sums->sums);
        return success();
    });
}

TEST_F(DeviceFaults, RootsOfWords) {
    TWR_FAKE_DEVICE(fake);
    std::vector<std::unique_ptr<OnDevice>> memory;
    std::vector<DeviceArray> few, one, host;
    for (const int device : probe_devices().usable()) {
        memory.push_back(std::make_unique<OnDevice>(device, std::span<const float>(a_)));
        few.push_back(as_words(array(*memory.back(), device, a_.size())));
        few.push_back(as_words(array(*memory.back(), device, 5000)));
        one.push_back(as_words(array(*memory.back(), device, 3)));
    }
    for (const DeviceArray& array : few) {
        host.push_back(array);
        host.back().device = kHostMemory;
        host.back().data = a_.data();
    }
    const std::vector<std::uint64_t> expected = WordRoots::start(host, 0, {}).value().roots().value();
    const auto work = [&]() -> Result<> {
        TWR_TRY(WordRoots first, WordRoots::start(few, 0, {}));
        TWR_TRY(WordRoots second, WordRoots::start(one, 0, {}));
        TWR_TRY(const std::vector<std::uint64_t> roots, first.roots());
        EXPECT_EQ(roots, expected);
        TWR_TRY(const std::vector<std::uint64_t> others, second.roots());
        EXPECT_EQ(others, std::vector<std::uint64_t>(one.size(), others[0]));
        return success();
    };
    // The queues of devices stay, and their events: as many as calls were ever under way.
    std::vector<WordRoots> warm;
    for (int i = 0; i < 16; ++i)
        warm.push_back(WordRoots::start(one, 0, {}).value());
    for (WordRoots& each : warm)
        ASSERT_TRUE(each.roots());
    fail_each_call(*fake, LessMemory::may_fail, work);
}

// What earlier work keeps for the next of its kind goes to whoever needs it.
TEST_F(DeviceFaults, IdleMemoryIsGivenToOtherWork) {
    TWR_FAKE_DEVICE(fake);
    const int device = probe_devices().usable().front();
    if (probe_devices().devices.front().memory_bytes > 256 << 20)
        GTEST_SKIP() << "for small devices (TWINRUN_FAKE_DEVICE_MEMORY): it takes all memory";
    MemorySource a = memory(a_);
    MemorySource b = memory(b_);
    ASSERT_TRUE(compare_field({&a, nullptr, 0}, {&b, nullptr, 0}, on_devices()));
    std::uint64_t free = 0;
    ASSERT_FALSE(device_runtime()->free_memory(device, &free).failed);
    auto workspace = DeviceWorkspaces::builds().lease(device);
    ASSERT_TRUE(workspace) << workspace.error().message;
    // More than is free, and less than there is.
    const auto reserved = (*workspace)->reserve_device(free + (1 << 20));
    EXPECT_TRUE(reserved) << reserved.error().message;
}

}  // namespace
}  // namespace twinrun
