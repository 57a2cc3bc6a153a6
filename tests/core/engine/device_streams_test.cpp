// Arrays whose elements are still being made: work on them waits for what is in their streams, and is done with them when the
// call returns. The fake device library does nothing before somebody waits for it, so that with it nothing here is by chance.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/compare.hpp"
#include "sketch/build.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/started_sketches.hpp"
#include "source/device_array.hpp"
#include "support/device.hpp"
#include "support/fields.hpp"

namespace twinrun {
namespace {

class DeviceStreams : public ::testing::Test {
   protected:
    void SetUp() override {
        if (probe_devices().usable().empty()) GTEST_SKIP() << probe_devices().reason;
        const std::vector<int> devices = probe_devices().usable();
        std::mt19937_64 random(3);
        for (std::size_t s = 0; s < 2; ++s) {
            Side& side = sides_[s];
            side.device = s == 0 ? devices.front() : devices.back();
            side.values.resize(600'001);
            for (std::size_t i = 0; i < side.values.size(); ++i)
                side.values[i] = static_cast<float>(i) + (s == 1 && i % 1000 == 0 ? 1.0F : 0.0F);
            side.memory = std::make_unique<OnDevice>(side.device, side.values.size() * sizeof(float));
            ASSERT_TRUE(side.locked.reserve(kHostMemory, side.values.size() * sizeof(float)));
            std::memcpy(side.locked.data(), side.values.data(), side.values.size() * sizeof(float));
            auto stream = DeviceStream::create(side.device);
            ASSERT_TRUE(stream) << stream.error().message;
            side.stream = std::make_unique<DeviceStream>(std::move(stream).value());
        }
    }

    // Each side holds rubbish, and its stream what makes the elements.
    void make_elements() {
        const DeviceRuntime* runtime = device_runtime();
        for (Side& side : sides_) {
            const std::size_t bytes = side.values.size() * sizeof(float);
            ASSERT_FALSE(
                runtime->fill(side.device, side.memory->data(), 0x3F, bytes, side.stream->get()).failed);
            ASSERT_TRUE(side.stream->wait());
            ASSERT_FALSE(
                runtime->copy(side.device, side.memory->data(), side.locked.data(), bytes, side.stream->get())
                    .failed);
        }
    }
    // What the caller may do as soon as the call has returned.
    void overwrite_elements() {
        for (Side& side : sides_) {
            ASSERT_FALSE(device_runtime()
                             ->fill(side.device, side.memory->data(), 0x5A,
                                    side.values.size() * sizeof(float), side.stream->get())
                             .failed);
        }
    }
    [[nodiscard]] DeviceArray array(std::size_t s, bool strided) const {
        DeviceArray made;
        made.device = sides_[s].device;
        made.dtype = DType::f32;
        made.data = sides_[s].memory->data();
        made.shape = {strided ? sides_[s].values.size() / 2 : sides_[s].values.size()};
        if (strided) made.strides = {8};
        made.stream = sides_[s].stream->get();
        return made;
    }
    [[nodiscard]] MemorySource host(std::size_t s, bool strided) const {
        const auto& values = sides_[s].values;
        return {DType::f32, strided ? values.size() / 2 : values.size(), values.data(),
                static_cast<std::uint64_t>(strided ? 8 : 4), false};
    }
    static FieldMetadata plan(std::uint64_t items) {
        return plan_field(testing::plan_of(DType::f32, items)).value();
    }
    static void expect_same(const BuiltField& x, const BuiltField& y) {
        EXPECT_TRUE(x.tree == y.tree);
        EXPECT_TRUE(x.fine == y.fine);
        EXPECT_TRUE(x.residues == y.residues);
        EXPECT_EQ(x.largest, y.largest);
    }

    struct Side {
        int device = 0;
        std::vector<float> values;
        DeviceMemory locked;
        std::unique_ptr<OnDevice> memory;
        std::unique_ptr<DeviceStream> stream;
    };
    std::array<Side, 2> sides_;
};

TEST_F(DeviceStreams, ComparisonsFollowTheArrays) {
    for (const bool strided_a : {false, true}) {
        for (const bool b_on_device : {false, true}) {
            for (const DeviceUse use : {DeviceUse::automatic, DeviceUse::cpu}) {
                CompareOptions options;
                options.rule.tolerance = {1e-3, 0};
                options.stream.memory_bytes = 4 << 20;
                options.stream.threads = 2;
                options.device.use = DeviceUse::cpu;
                MemorySource host_a = host(0, strided_a);
                MemorySource host_b = host(1, strided_a);
                const auto expected = compare_field({&host_a, nullptr, 0}, {&host_b, nullptr, 0}, options);
                ASSERT_TRUE(expected);
                options.device.use = use;
                DeviceSource a(array(0, strided_a));
                DeviceSource b(array(1, strided_a));
                make_elements();
                const auto found = compare_field(
                    {&a, nullptr, 0}, {b_on_device ? static_cast<ElementSource*>(&b) : &host_b, nullptr, 0},
                    options);
                overwrite_elements();
                ASSERT_TRUE(found) << found.error().message;
                EXPECT_EQ(found->read.different, expected->read.different);
                EXPECT_EQ(found->read.max_abs, expected->read.max_abs);
                EXPECT_EQ(found->read.all, expected->read.all);
                EXPECT_EQ(found->first_bits_a, expected->first_bits_a);
                EXPECT_EQ(found->first_bits_b, expected->first_bits_b);
            }
        }
    }
}

TEST_F(DeviceStreams, BuildsFollowTheArrays) {
    for (const bool strided : {false, true}) {
        const FieldMetadata field = plan(array(0, strided).items());
        std::array<BuiltField, 2> expected;
        for (std::size_t s = 0; s < 2; ++s) {
            MemorySource source = host(s, strided);
            ASSERT_TRUE(build_in_memory(field, source, {}, expected[s]));
        }
        const std::array<DeviceArray, 2> arrays = {array(0, strided), array(1, strided)};
        const FieldMetadata* const fields[] = {&field, &field};
        const DeviceArray* const there[] = {arrays.data(), &arrays[1]};
        for (const std::uint64_t memory_bytes : {std::uint64_t{0}, std::uint64_t{1}}) {
            DeviceBuildOptions options;
            options.memory_bytes = memory_bytes;
            std::vector<BuiltField> built;
            make_elements();
            const auto done = build_on_device(fields, there, built, options);
            overwrite_elements();
            ASSERT_TRUE(done) << done.error().message;
            expect_same(built[0], expected[0]);
            expect_same(built[1], expected[1]);
        }
        make_elements();
        const auto sketches = DeviceSketch::build({fields, 1}, {there, 1});
        overwrite_elements();
        ASSERT_TRUE(sketches) << sketches.error().message;
        BuiltField back;
        ASSERT_TRUE(sketches->front().download(back));
        expect_same(back, expected[0]);

        make_elements();
        const auto owner = std::make_shared<int>(1);
        DeviceArray owned = arrays[0];
        owned.owner = owner;
        auto started = StartedSketches::start({&field}, {std::move(owned)});
        overwrite_elements();
        ASSERT_TRUE(sides_[0].stream->wait());  // before anybody waits for the sketches
        ASSERT_TRUE(started) << started.error().message;
        std::vector<BuiltField> brought;
        ASSERT_TRUE((*started)->bring(brought));
        expect_same(brought[0], expected[0]);
        EXPECT_EQ(owner.use_count(), 2);
        started->reset();
        EXPECT_EQ(owner.use_count(), 1);
    }
}

TEST_F(DeviceStreams, CopiesFollowTheArrays) {
    for (const bool strided : {false, true}) {
        const DeviceArray from = array(0, strided);
        std::vector<float> copied(from.items());
        make_elements();
        const auto done =
            copy_out(from, 100'000, [&](std::uint64_t first, std::span<const std::byte> bytes) -> Result<> {
                std::memcpy(copied.data() + first, bytes.data(), bytes.size());
                return success();
            });
        overwrite_elements();
        ASSERT_TRUE(done) << done.error().message;
        for (std::size_t i = 0; i < copied.size(); ++i)
            ASSERT_EQ(copied[i], sides_[0].values[strided ? 2 * i : i]) << i;
    }
}

}  // namespace
}  // namespace twinrun
