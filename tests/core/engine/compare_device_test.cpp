// Comparison with devices: the same result as on the CPU, in every field but the last bits of sums, what was used, and times.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "device/gpu_direct_storage.hpp"
#include "engine/compare.hpp"
#include "sketch/build.hpp"
#include "source/device_array.hpp"
#include "source/tuning.hpp"
#include "support/device.hpp"
#include "support/field_results.hpp"
#include "support/fields.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::memory_of;

// ---- the choice, without a device ----

TEST(DeviceChoiceRule, LittleWorkStaysOnTheCpu) {
    std::string why;
    DeviceWork work;
    work.bytes = kSmallestDeviceWork - 1;
    EXPECT_FALSE(device_pays(work, {1, 1e15, 0}, 8, &why));
    EXPECT_FALSE(why.empty());
}

TEST(DeviceChoiceRule, TheSmallerEstimateWins) {
    std::string why;
    DeviceWork work;
    work.bytes = 100'000'000'000;
    work.threads = 2;
    const DeviceRates rates{10e9, 50e9, 0.5};  // 5 s against 2.5 s
    EXPECT_TRUE(device_pays(work, rates, 1, &why));
    EXPECT_NE(why.find("5 s on the CPU"), std::string::npos) << why;
    work.threads = 16;  // 0.6 s
    EXPECT_FALSE(device_pays(work, rates, 1, &why));
    work.threads = 5;  // 2 s against 2.5 s on one device, 1 s on four
    EXPECT_FALSE(device_pays(work, rates, 1, &why));
    EXPECT_TRUE(device_pays(work, rates, 4, &why));
    work.bytes = 2'000'000'000;  // the start does not pay
    work.threads = 1;
    EXPECT_FALSE(device_pays(work, rates, 1, &why));
    EXPECT_TRUE(device_pays(work, {10e9, 50e9, 0}, 1, &why));
}

TEST(DeviceChoiceRule, NamesOfDevices) {
    EXPECT_EQ(device_names(std::vector<int>{0}), "cuda:0");
    EXPECT_EQ(device_names(std::vector<int>{1, 0}), "cuda:0,1");
    EXPECT_EQ(device_names(std::vector<int>{0, 1, 2, 3}), "cuda:0-3");
    EXPECT_EQ(device_names(std::vector<int>{5, 0, 2, 3, 4, 5}), "cuda:0,2-5");
}

TEST(DeviceChoiceRule, WhatIsAskedForIsHadOrAnError) {
    DeviceChoice choice;
    choice.use = DeviceUse::cpu;
    DeviceWork work;
    work.bytes = 1ULL << 40;
    auto place = choose_place(choice, work);
    ASSERT_TRUE(place);
    EXPECT_TRUE(place->devices.empty());
    choice.use = DeviceUse::gpu;
    place = choose_place(choice, work);
    const std::vector<int> usable = probe_devices().usable();
    EXPECT_EQ(place.ok(), !usable.empty());
    if (place) {
        EXPECT_EQ(place->devices, usable);
        work.bytes = 1000;
        EXPECT_EQ(choose_place(choice, work)->devices, std::vector<int>{usable.front()});
        work.array_b = usable.back();
        EXPECT_EQ(choose_place(choice, work)->devices, std::vector<int>{usable.back()});
        EXPECT_EQ(choose_place({}, work)->devices, std::vector<int>{usable.back()});
    } else {
        EXPECT_EQ(place.error().code, ErrorCode::unsupported);
        EXPECT_NE(place.error().message.find(probe_devices().reason), std::string::npos);
    }
    choice.devices = {1000};
    place = choose_place(choice, {});
    ASSERT_FALSE(place);
    EXPECT_EQ(place.error().code, ErrorCode::unsupported);
    // By itself nothing fails for want of a device.
    choice.use = DeviceUse::automatic;
    work = {};
    work.bytes = 1ULL << 50;
    work.array_a = 1000;
    ASSERT_TRUE(choose_place(choice, work));
    EXPECT_TRUE(choose_place(choice, work)->devices.empty());
    EXPECT_FALSE(choose_place(choice, work)->reason.empty());
}

TEST(DeviceChoiceRule, DirectStorageSaysWhyNot) {
    const DirectStorageFacts& facts = probe_direct_storage();
    EXPECT_TRUE(facts.available || !facts.reason.empty());
}

// ---- comparisons ----

class DeviceCompare : public ::testing::Test {
   protected:
    void SetUp() override {
        if (probe_devices().usable().empty()) GTEST_SKIP() << probe_devices().reason;
        device_ = probe_devices().usable().front();
    }
    [[nodiscard]] std::string write(const std::string& name, const void* data, std::size_t bytes) const {
        return folder_.write(name, data, bytes);
    }
    std::shared_ptr<MetadataFile> index(const std::string& name, ElementSource& source,
                                        const Tolerance& tolerance,
                                        DigestKind kind = DigestKind::linear) const {
        FieldPlan plan = testing::plan_of(source.dtype(), source.items(), tolerance);
        plan.kind = kind;
        return testing::index_field(folder_.path(name + ".twm"), source, std::move(plan));
    }
    [[nodiscard]] CompareOptions on_device(CompareOptions options) const {
        options.device.use = DeviceUse::gpu;
        if (options.device.devices.empty()) options.device.devices = {device_};
        return options;
    }
    static void expect_same(const FieldResult& cpu, const FieldResult& gpu) {
        testing::expect_same_result(gpu, cpu, 1e-10);
        EXPECT_EQ(cpu.device, "cpu");
        if (gpu.elements.ran || gpu.sketch.ran) {
            EXPECT_NE(gpu.device, "cpu");
        }
    }
    FieldResult check(const FieldSide& a, const FieldSide& b, CompareOptions options) const {
        options.device.use = DeviceUse::cpu;
        const auto cpu = compare_field(a, b, options);
        const auto gpu = compare_field(a, b, on_device(options));
        EXPECT_TRUE(cpu) << cpu.error().message;
        EXPECT_TRUE(gpu) << gpu.error().message;
        if (!cpu || !gpu) return {};
        expect_same(cpu.value(), gpu.value());
        return gpu.value();
    }
    // The same on the CPU from a, b, which hold what gpu_a, gpu_b hold.
    FieldResult check(ElementSource& a, ElementSource& b, ElementSource& gpu_a, ElementSource& gpu_b,
                      CompareOptions options) const {
        options.device.use = DeviceUse::cpu;
        const auto cpu = compare_field({&a, nullptr, 0}, {&b, nullptr, 0}, options);
        const auto gpu = compare_field({&gpu_a, nullptr, 0}, {&gpu_b, nullptr, 0}, on_device(options));
        EXPECT_TRUE(cpu) << cpu.error().message;
        EXPECT_TRUE(gpu) << gpu.error().message;
        if (!cpu || !gpu) return {};
        expect_same(cpu.value(), gpu.value());
        return gpu.value();
    }

    int device_ = 0;
    testing::TestFolder folder_;
};

template <class T>
std::pair<std::vector<T>, std::vector<T>> two_runs(std::size_t n, std::uint64_t seed, std::size_t every) {
    std::mt19937_64 random(seed);
    std::vector<T> a(n);
    for (auto& x : a)
        x = static_cast<T>(static_cast<double>(random() % 2'000'000) * 1e-3);
    std::vector<T> b = a;
    for (auto& x : b)
        x = static_cast<T>(x + static_cast<T>(static_cast<double>(random() % 100) * 1e-6));
    for (std::size_t i = every / 2; i < n; i += every)
        b[i] = static_cast<T>(b[i] + static_cast<T>(1 + random() % 3));
    if (n > 100) {
        if constexpr (std::is_floating_point_v<T>) {
            a[n / 3] = b[n / 3] = std::numeric_limits<T>::quiet_NaN();
            a[n / 2] = std::numeric_limits<T>::infinity();
        }
    }
    return {a, b};
}

CompareOptions with_tolerance(double atol, double rtol = 0) {
    CompareOptions options;
    options.rule.tolerance = {atol, rtol};
    return options;
}

TEST_F(DeviceCompare, MemoryOfAnySizeAndDensity) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{1023}, std::size_t{1024}, std::size_t{1025},
                                std::size_t{100'000}, std::size_t{9'000'001}}) {
        for (const std::size_t every :
             {std::size_t{1}, std::size_t{37}, std::size_t{50'000}, std::size_t{1} << 40}) {
            if (n > 1'000'000 && every == 1) continue;
            const auto [a, b] = two_runs<float>(n, n + every, every);
            auto source_a = memory_of(DType::f32, a);
            auto source_b = memory_of(DType::f32, b);
            CompareOptions options = with_tolerance(1e-3, every == 37 ? 1e-5 : 0);
            options.stream.threads = 3;
            const FieldResult result =
                check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
            EXPECT_EQ(result.device, "cuda:" + std::to_string(device_));
            EXPECT_GE(result.device_seconds, 0);
        }
    }
}

TEST_F(DeviceCompare, ColumnMajorArraysAreToldRowByRow) {
    std::mt19937_64 random(21);
    int moved = 0;
    for (const std::vector<std::uint64_t>& shape :
         {std::vector<std::uint64_t>{300, 700}, {70'000, 3}, {3, 70'000}, {20, 30, 40}}) {
        std::size_t n = 1;
        for (const std::uint64_t size : shape)
            n *= size;
        std::vector<float> a(n);
        std::vector<float> b(n);
        for (std::size_t i = 0; i < n; ++i) {
            a[i] = b[i] = static_cast<float>(random() % 3);
            if (random() % 500 == 0) b[i] += static_cast<float>(random() % 3);
        }
        auto source_a = memory_of(DType::f32, a);
        auto source_b = memory_of(DType::f32, b);
        CompareOptions options = with_tolerance(0);
        const FieldResult stored = check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        options.columns = shape;
        const FieldResult told = check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        moved += told.read.first != stored.read.first;
    }
    EXPECT_GE(moved, 2);
}

TEST_F(DeviceCompare, EveryType) {
    std::mt19937_64 random(8);
    std::vector<std::uint64_t> a(60'001);
    std::vector<std::uint64_t> b(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = random();
        b[i] = i % 11 == 0 ? random() : a[i];
    }
    for (int number = 1; number <= 15; ++number) {
        const DType dtype = dtype_from_number(static_cast<std::uint8_t>(number)).value();
        auto source_a = memory_of(dtype, a);
        auto source_b = memory_of(dtype, b);
        for (const double atol : {0.0, 2.0}) {
            SCOPED_TRACE(dtype_name(dtype));
            check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, with_tolerance(atol));
        }
    }
}

TEST_F(DeviceCompare, PageLockedMemoryIsCopiedFromDirectly) {
    const auto [a, b] = two_runs<double>(3'000'000, 9, 1000);
    DeviceMemory locked;
    ASSERT_TRUE(locked.reserve(kHostMemory, a.size() * 8));
    std::memcpy(locked.data(), a.data(), a.size() * 8);
    auto source_a = memory_of(DType::f64, a);
    auto source_b = memory_of(DType::f64, b);
    MemorySource locked_a(DType::f64, a.size(), locked.data(), 8, false);
    check(*source_a, *source_b, locked_a, *source_b, with_tolerance(1e-3));
    check(*source_a, *source_a, locked_a, locked_a, with_tolerance(1e-3));
}

TEST_F(DeviceCompare, StridedAndSwappedMemory) {
    std::mt19937_64 random(10);
    std::vector<std::byte> bytes_a(4'000'000);
    for (auto& x : bytes_a)
        x = static_cast<std::byte>(random());
    std::vector<std::byte> bytes_b = bytes_a;
    for (int i = 0; i < 1000; ++i)
        bytes_b[random() % bytes_b.size()] ^= std::byte{1};
    for (const DType dtype : {DType::i16, DType::f32, DType::f64, DType::c64, DType::c128}) {
        for (const std::uint64_t stride : {0, 1, 2, 3, 17}) {
            for (const bool swap : {false, true}) {
                // 0: a broadcast; 3: not aligned; 17: gathered on the host.
                const std::uint64_t step = stride == 3 ? item_bytes(dtype) + 3 : stride * item_bytes(dtype);
                const std::uint64_t items = step == 0 ? 5000 : 3'900'000 / step;
                const std::size_t skew = stride == 3 ? 1 : 0;
                MemorySource a(dtype, items, bytes_a.data() + skew, step, swap);
                MemorySource b(dtype, items, bytes_b.data() + skew, step, swap);
                SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(stride));
                check({&a, nullptr, 0}, {&b, nullptr, 0}, with_tolerance(1e-3));
            }
        }
    }
}

// Several extents, strides, byte orders; the page cache and O_DIRECT; tiny memory.
TEST_F(DeviceCompare, FilesOfAllKinds) {
    const auto [a, b] = two_runs<double>(700'001, 11, 4001);
    struct Record {
        char before[5];
        std::uint64_t value;
        char after[3];
    } __attribute__((packed));
    const auto swapped = [](double x) { return __builtin_bswap64(std::bit_cast<std::uint64_t>(x)); };
    const std::size_t split = 300'000;
    const auto store = [&](const std::string& name, const std::vector<double>& x) {
        std::vector<std::uint64_t> dense(split);
        for (std::size_t i = 0; i < split; ++i)
            dense[i] = swapped(x[i]);
        std::vector<Record> records(x.size() - split);
        for (std::size_t i = 0; i < records.size(); ++i)
            records[i].value = swapped(x[split + i]);
        std::vector<char> odd(13 + split * 8);
        std::memcpy(odd.data() + 13, dense.data(), split * 8);
        return std::pair{write(name + ".dense", odd.data(), odd.size()),
                         write(name + ".records", records.data(), records.size() * sizeof(Record))};
    };
    const auto files_a = store("a", a);
    const std::string plain = write("b", b.data(), b.size() * 8);
    for (const CacheUse cache : {CacheUse::buffered, CacheUse::direct}) {
        for (const std::uint64_t memory_bytes :
             {std::uint64_t{1}, std::uint64_t{8} << 20, std::uint64_t{1} << 30}) {
            for (const int threads : {1, 4}) {
                auto source_a = FileSource::create(DType::f64, ByteOrder::big, a.size(),
                                                   {{files_a.first, 13 + 8 * 1000, 8, split - 1000},
                                                    {files_a.first, 13, 8, 1000},
                                                    {files_a.second, 5, sizeof(Record), a.size() - split}},
                                                   cache)
                                    .value();
                auto source_b =
                    FileSource::create(
                        DType::f64, ByteOrder::little, b.size(),
                        {{plain, 8 * (b.size() - split), 8, split}, {plain, 0, 8, b.size() - split}}, cache)
                        .value();
                auto whole_b = FileSource::create(DType::f64, ByteOrder::little, b.size(),
                                                  {{plain, 0, 8, b.size()}}, cache)
                                   .value();
                auto memory_b = memory_of(DType::f64, b);
                CompareOptions options = with_tolerance(1e-3);
                options.stream.memory_bytes = memory_bytes;
                options.stream.threads = threads;
                check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
                check({whole_b.get(), nullptr, 0}, {memory_b.get(), nullptr, 0}, options);
                check({source_b.get(), nullptr, 0}, {whole_b.get(), nullptr, 0}, options);
                // Without cuFile, or with a file system that it refuses, the same by another way.
                options.device.direct_storage = true;
                const FieldResult direct =
                    check({whole_b.get(), nullptr, 0}, {memory_b.get(), nullptr, 0}, options);
                if (direct.io != "cufile") {
                    EXPECT_NE(direct.device_reason.find("through the host"), std::string::npos);
                }
            }
        }
    }
}

TEST_F(DeviceCompare, DecodedSources) {
    const auto [a, b] = two_runs<float>(1'500'000, 12, 999);
    const auto decoded = [](const std::vector<float>& x) {
        return DecodedSource(DType::f32, x.size(),
                             [&x](std::uint64_t first, std::uint64_t count, std::byte* to) {
                                 std::memcpy(to, x.data() + first, count * 4);
                                 return success();
                             });
    };
    DecodedSource source_a = decoded(a);
    DecodedSource source_b = decoded(b);
    check({&source_a, nullptr, 0}, {&source_b, nullptr, 0}, with_tolerance(1e-3));
    DecodedSource broken(DType::f32, a.size(),
                         [](std::uint64_t first, std::uint64_t, std::byte*) -> Result<> {
                             if (first > 1'000'000) return Error{ErrorCode::damaged, "it does not decode"};
                             return success();
                         });
    const auto result =
        compare_field({&source_a, nullptr, 0}, {&broken, nullptr, 0}, on_device(with_tolerance(1e-3)));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "it does not decode");
}

TEST_F(DeviceCompare, ArraysOnDevices) {
    const auto [a, b] = two_runs<float>(1200 * 700, 13, 777);
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    const OnDevice there_a(device_, std::span<const float>(a));
    const OnDevice there_b(device_, std::span<const float>(b));
    const auto array = [&](const OnDevice& memory_of, int device) {
        DeviceArray made;
        made.device = device;
        made.data = memory_of.data();
        made.dtype = DType::f32;
        made.shape = {1200, 700};
        return made;
    };
    DeviceSource dense_a(array(there_a, device_));
    DeviceSource dense_b(array(there_b, device_));
    const CompareOptions options = with_tolerance(1e-3);
    const FieldResult both = check(*source_a, *source_b, dense_a, dense_b, options);
    EXPECT_EQ(both.elements.bytes_read, 0U);
    EXPECT_EQ(both.io, "none");
    check(*source_a, *source_b, dense_a, *source_b, options);
    check(*source_a, *source_b, *source_a, dense_b, options);
    // By itself the work goes to where the array lies.
    const auto by_itself = compare_field({&dense_a, nullptr, 0}, {source_b.get(), nullptr, 0}, options);
    ASSERT_TRUE(by_itself) << by_itself.error().message;
    EXPECT_EQ(by_itself->device, "cuda:" + std::to_string(device_));
    // The CPU gets copies.
    CompareOptions cpu = options;
    cpu.device.use = DeviceUse::cpu;
    const auto copied = compare_field({&dense_a, nullptr, 0}, {&dense_b, nullptr, 0}, cpu);
    ASSERT_TRUE(copied) << copied.error().message;
    expect_same(*copied, both);

    // Transposed, and every second row of the other.
    DeviceArray transposed = array(there_a, device_);
    transposed.shape = {700, 600};
    transposed.strides = {4, 2 * 700 * 4};
    DeviceSource strided_a(transposed);
    transposed.data = there_b.data();
    DeviceSource strided_b(transposed);
    std::vector<float> host_a;
    std::vector<float> host_b;
    for (std::size_t i = 0; i < 700; ++i) {
        for (std::size_t j = 0; j < 600; ++j) {
            host_a.push_back(a[2 * j * 700 + i]);
            host_b.push_back(b[2 * j * 700 + i]);
        }
    }
    auto packed_a = memory_of(DType::f32, host_a);
    auto packed_b = memory_of(DType::f32, host_b);
    check(*packed_a, *packed_b, strided_a, strided_b, options);
    check(*packed_a, *packed_b, strided_a, *packed_b, options);

    const std::vector<int> usable = probe_devices().usable();
    if (usable.size() < 2) return;
    const OnDevice elsewhere(usable[1], std::span<const float>(b));
    DeviceSource far_b(array(elsewhere, usable[1]));
    check(*source_a, *source_b, dense_a, far_b, options);
    check(*source_b, *source_a, far_b, *source_a, options);  // on a device that it does not lie on
}

// Positions in a box that a few particles leave through its faces, of rows or of columns; and values some ULPs apart.
TEST_F(DeviceCompare, UlpsAndPeriods) {
    std::mt19937_64 random(23);
    const std::size_t particles = 100'001;
    const auto positions = [&]<class T>(T, DType dtype) {
        std::vector<T> a(3 * particles);
        for (auto& x : a)
            x = static_cast<T>(static_cast<double>(random() % 1'000'000) * 1e-5);
        std::vector<T> b = a;
        for (std::size_t i = 0; i < b.size(); ++i) {
            b[i] += static_cast<T>(static_cast<double>(random() % 200) * 1e-7);
            if (random() % 100 == 0) b[i] += static_cast<T>(random() % 2 == 0 ? 10 : -20);
            if (random() % 10'000 == 0) b[i] += 1;
        }
        auto source_a = memory_of(dtype, a);
        auto source_b = memory_of(dtype, b);
        const OnDevice there_a(device_, std::span<const T>(a));
        const OnDevice there_b(device_, std::span<const T>(b));
        const auto array = [&](const OnDevice& memory_of) {
            DeviceArray made;
            made.device = device_;
            made.data = memory_of.data();
            made.dtype = dtype;
            made.shape = {3 * particles};
            return made;
        };
        DeviceSource array_a(array(there_a));
        DeviceSource array_b(array(there_b));
        const std::string path = write("x", a.data(), a.size() * sizeof(T));
        auto file = FileSource::create(dtype, ByteOrder::little, a.size(), {{path, 0, sizeof(T), a.size()}},
                                       CacheUse::buffered)
                        .value();
        for (const bool by_ulps : {false, true}) {
            for (const std::uint64_t stride : {std::uint64_t{1}, std::uint64_t{particles}}) {
                CompareOptions options = with_tolerance(by_ulps ? 0 : 1e-4);
                if (by_ulps) options.rule.measure.ulps = 100;
                if (!by_ulps || stride != 1) {
                    options.rule.measure.period = {10, 20, 0};
                    options.rule.measure.components = 3;
                    options.rule.measure.component_stride = stride;
                }
                SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(stride));
                const FieldResult result = check(*source_a, *source_b, array_a, array_b, options);
                EXPECT_EQ(result.device, "cuda:" + std::to_string(device_));
                EXPECT_GT(result.read.different, 0U);
                EXPECT_LT(result.read.different, result.scalars);
                check(*source_a, *source_b, *file, array_b, options);
                check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
                // By itself it is done where the arrays are.
                options.device = {};
                const auto there = compare_field({&array_a, nullptr, 0}, {&array_b, nullptr, 0}, options);
                ASSERT_TRUE(there);
                EXPECT_EQ(there->device, result.device);
                EXPECT_EQ(there->read.different, result.read.different);
            }
        }
    };
    positions(float{}, DType::f32);
    positions(double{}, DType::f64);
    // Integers are measured on a line.
    std::vector<std::int32_t> a(100'000);
    std::vector<std::int32_t> b(a.size());
    for (std::size_t i = 0; i < b.size(); ++i)
        b[i] = static_cast<std::int32_t>(i % 11 == 0 ? 10 : 0);
    auto source_a = memory_of(DType::i32, a);
    auto source_b = memory_of(DType::i32, b);
    CompareOptions options = with_tolerance(1);
    options.rule.measure.ulps = 100;
    options.rule.measure.period = {10};
    EXPECT_EQ(check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options).read.different,
              9091U);
}

TEST_F(DeviceCompare, StagedAndPublished) {
    for (const std::size_t every : {std::size_t{100}, std::size_t{60'000}, std::size_t{1} << 40}) {
        for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
            auto [a, b] = two_runs<float>(2'000'003, 14, every);
            for (std::size_t i = 1'500'000; i < b.size(); ++i)
                b[i] = a[i];
            auto source_a = memory_of(DType::f32, a);
            auto source_b = memory_of(DType::f32, b);
            const auto metadata_a = index("a", *source_a, {1e-3, 0}, kind);
            const auto metadata_b = index("b", *source_b, {1e-3, 0}, kind);
            const FieldResult result = check({source_a.get(), metadata_a.get(), 0},
                                             {source_b.get(), metadata_b.get(), 0}, with_tolerance(1e-3));
            EXPECT_TRUE(result.elements.ran);
            EXPECT_EQ(result.sketch.ran, kind == DigestKind::linear);
            if (every < 1000) continue;
            CompareOptions small = with_tolerance(1e-3);
            small.stream.memory_bytes = 1;
            small.stream.threads = 2;
            small.cache = CacheUse::direct;
            check({source_a.get(), metadata_a.get(), 0}, {source_b.get(), metadata_b.get(), 0}, small);
        }
    }
}

// Zeros in place of the data of both runs, though their digests differ. A zero that changes its sign is no such
// contradiction, though published digests see it.
TEST_F(DeviceCompare, EqualDataBesideOtherDigestsIsAnError) {
    std::vector<float> a(2'000'000, 0.0F);
    for (std::size_t i = 0; i < a.size(); i += 3)
        a[i] = static_cast<float>(i % 1000);
    for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
        std::vector<float> b = a;
        auto source_a = memory_of(DType::f32, a);
        const auto metadata_a = index("a", *source_a, {1e-3, 0}, kind);
        b[1] = -0.0F;
        auto signs = memory_of(DType::f32, b);
        const auto metadata_of_signs = index("s", *signs, {1e-3, 0}, kind);
        EXPECT_TRUE(check({source_a.get(), metadata_a.get(), 0}, {signs.get(), metadata_of_signs.get(), 0},
                          with_tolerance(1e-3))
                        .same());
        b[777] += 1;
        const auto metadata_b = index("b", *memory_of(DType::f32, b), {1e-3, 0}, kind);
        const std::vector<float> zeros(a.size());
        auto lost = memory_of(DType::f32, zeros);
        if (kind == DigestKind::published) continue;  // of these only the CPU knows
        const auto found = compare_field({lost.get(), metadata_a.get(), 0}, {lost.get(), metadata_b.get(), 0},
                                         on_device(with_tolerance(1e-3)));
        ASSERT_FALSE(found);
        EXPECT_EQ(found.error().code, ErrorCode::damaged);
    }
}

TEST_F(DeviceCompare, RangesOfAField) {
    auto [a, b] = two_runs<float>(1200 * 700, 15, 3000);
    for (std::size_t i = 500'000; i < 700'000; ++i)
        b[i] = a[i];
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    const auto metadata_a = index("a", *source_a, {1e-3, 0});
    const auto metadata_b = index("b", *source_b, {1e-3, 0});
    const OnDevice there(device_, std::span<const float>(b));
    DeviceArray array;
    array.device = device_;
    array.data = there.data();
    array.dtype = DType::f32;
    array.shape = {1200 * 700};
    DeviceSource device_b(array);
    std::mt19937_64 random(16);
    for (int round = 0; round < 20; ++round) {
        CompareOptions options = with_tolerance(1e-3);
        options.ranges.emplace();
        std::uint64_t scalars = 0;
        for (std::uint64_t chunk = random() % 100; chunk * 1024 < a.size();) {
            const std::uint64_t end = chunk + 1 + random() % 300;
            options.ranges->push_back({chunk * 1024, std::min<std::uint64_t>(end * 1024, a.size())});
            scalars += options.ranges->back().size();
            chunk = end + random() % 300;
        }
        const FieldResult direct = check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        const FieldResult staged =
            check({source_a.get(), metadata_a.get(), 0}, {source_b.get(), metadata_b.get(), 0}, options);
        check(*source_a, *source_b, *source_a, device_b, options);
        EXPECT_EQ(direct.scalars, scalars);
        EXPECT_EQ(direct.read.scalars, scalars);
        EXPECT_EQ(staged.method, Method::staged);
        EXPECT_EQ(staged.scalars, scalars);
        EXPECT_EQ(staged.read.different, direct.read.different);
        EXPECT_EQ(staged.read.first, direct.read.first);
        EXPECT_EQ(staged.read.over, direct.read.over);
    }
}

TEST_F(DeviceCompare, DamagedSketchesAreErrors) {
    const auto [a, b] = two_runs<float>(300'000, 15, std::size_t{1} << 40);
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    const auto metadata_a = index("a", *source_a, {1e-3, 0});
    const std::string path = index("b", *source_b, {1e-3, 0})->path();
    const auto place = MetadataFile::open(path).value()->directory().fields[0].place(Section::residues);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place.offset + 100));
    file.put('x');
    file.close();
    const auto metadata_b = MetadataFile::open(path);
    ASSERT_TRUE(metadata_b);
    const auto result =
        compare_field({source_a.get(), metadata_a.get(), 0}, {source_b.get(), metadata_b->get(), 0},
                      on_device(with_tolerance(1e-3)));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::damaged);
}

TEST_F(DeviceCompare, SeveralDevicesAgreeWithOne) {
    const std::vector<int> usable = probe_devices().usable();
    if (usable.size() < 2) GTEST_SKIP() << "there is one device";
    const auto [a, b] = two_runs<float>(20'000'000, 16, 5000);
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    CompareOptions options = with_tolerance(1e-3);
    options.device.devices = usable;
    for (const int threads : {1, 8}) {
        options.stream.threads = threads;
        const FieldResult result = check({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        EXPECT_EQ(result.device, device_names(usable));
    }
}

TEST_F(DeviceCompare, SumsAreTheSameFromRunToRun) {
    const auto [a, b] = two_runs<float>(30'000'000, 17, 100);
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    double first = 0;
    for (const int threads : {1, 2, 5, 5}) {
        CompareOptions options = on_device(with_tolerance(1e-3));
        options.stream.threads = threads;
        const auto result =
            compare_field({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        ASSERT_TRUE(result) << result.error().message;
        if (first == 0) first = result->read.sum_squares;
        EXPECT_EQ(result->read.sum_squares, first);
    }
}

TEST_F(DeviceCompare, TruncatedFilesAndInterruptsAreErrors) {
    const auto [a, b] = two_runs<float>(8'000'000, 18, 100);
    const std::string path = write("a", a.data(), a.size() * 4);
    auto source_a = FileSource::create(DType::f32, ByteOrder::little, a.size(), {{path, 0, 4, a.size()}},
                                       CacheUse::buffered)
                        .value();
    auto source_b = memory_of(DType::f32, b);
    ASSERT_TRUE(source_a->prepare());
    CompareOptions options = on_device(with_tolerance(1e-3));
    options.stream.threads = 2;
    int asked = 0;
    options.stream.poll = [&](std::uint64_t, std::uint64_t) { return ++asked < 1; };
    const auto interrupted =
        compare_field({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
    if (asked > 0) {
        ASSERT_FALSE(interrupted);
        EXPECT_EQ(interrupted.error().code, ErrorCode::interrupted);
    }
    options.stream.poll = nullptr;
    std::filesystem::resize_file(path, a.size() * 3);
    for (const bool direct : {false, true}) {
        options.device.direct_storage = direct;
        const auto result =
            compare_field({source_a.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, options);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::damaged);
    }
    // And the next comparison is none the worse.
    auto again = memory_of(DType::f32, a);
    check({again.get(), nullptr, 0}, {source_b.get(), nullptr, 0}, with_tolerance(1e-3));
}

TEST_F(DeviceCompare, NothingIsLeftForADevice) {
    const std::vector<float> values(100'000, 1.0F);
    auto source = memory_of(DType::f32, values);
    const auto metadata = index("a", *source, {1e-3, 0});
    const auto result = compare_field({source.get(), metadata.get(), 0}, {source.get(), metadata.get(), 0},
                                      on_device(with_tolerance(1e-3)));
    ASSERT_TRUE(result);
    EXPECT_EQ(result->device, "cpu");
    EXPECT_NE(result->device_reason.find("nothing was left"), std::string::npos);
}

}  // namespace
}  // namespace twinrun
