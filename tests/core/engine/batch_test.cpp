#include "engine/batch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "base/checked.hpp"
#include "engine/device_pairs.hpp"
#include "engine/pair_queue.hpp"
#include "engine/pair_stream.hpp"
#include "source/device_array.hpp"
#include "source/tuning.hpp"
#include "support/device.hpp"
#include "support/field_results.hpp"
#include "support/fields.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

// Elements that cannot be read.
class BrokenSource final : public ElementSource {
   public:
    BrokenSource(DType dtype, std::uint64_t items, bool throws)
        : ElementSource(dtype, items), throws_(throws) {}
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t) const override { return 0; }
    Result<> plan(std::uint64_t, std::uint64_t, std::byte*, std::vector<ReadRequest>&) override {
        if (throws_) throw std::runtime_error("broken");
        return Error{ErrorCode::io, "broken"};
    }
    ElementView view(std::uint64_t, std::uint64_t, std::byte*) override { return {}; }
    [[nodiscard]] bool in_memory() const override { return true; }

   private:
    bool throws_;
};

// Elements that take longer than it takes until the caller is asked.
class SlowSource final : public ElementSource {
   public:
    using ElementSource::ElementSource;
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t) const override { return 0; }
    Result<> plan(std::uint64_t, std::uint64_t, std::byte*, std::vector<ReadRequest>&) override {
        const auto begin = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(60)) {
        }
        return success();
    }
    ElementView view(std::uint64_t, std::uint64_t, std::byte*) override {
        return dense_view(DType::f32, values_.data());
    }
    [[nodiscard]] bool in_memory() const override { return true; }

   private:
    std::vector<float> values_ = std::vector<float>(100);
};

class Gate {
   public:
    void open() {
        const std::lock_guard lock(mutex_);
        is_open_ = true;
        opened_.notify_all();
    }
    void pass() {
        std::unique_lock lock(mutex_);
        opened_.wait(lock, [&] { return is_open_; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable opened_;
    bool is_open_ = false;
};

// Elements in memory that nobody reads before a gate is open.
class GatedSource final : public ElementSource {
   public:
    GatedSource(const std::vector<float>& values, Gate& gate)
        : ElementSource(DType::f32, values.size()), values_(values), gate_(gate) {}
    [[nodiscard]] std::size_t buffer_bytes(std::uint64_t) const override { return 0; }
    Result<> plan(std::uint64_t, std::uint64_t, std::byte*, std::vector<ReadRequest>&) override {
        gate_.pass();
        return success();
    }
    ElementView view(std::uint64_t first, std::uint64_t, std::byte*) override {
        return dense_view(DType::f32, values_.data() + first);
    }
    [[nodiscard]] bool in_memory() const override { return true; }

   private:
    const std::vector<float>& values_;
    Gate& gate_;
};

// Fields of both runs, of many sizes; some differ.
struct Fields {
    std::vector<std::vector<float>> a, b;
    std::vector<std::unique_ptr<ElementSource>> sources;
    std::vector<FieldPair> pairs;

    Fields(std::size_t count, std::uint64_t seed, std::uint64_t largest) {
        std::mt19937_64 random(seed);
        for (std::size_t at = 0; at < count; ++at) {
            const std::uint64_t items = random() % 8 == 0 ? random() % largest : random() % 300;
            a.emplace_back(items);
            for (float& value : a.back())
                value = static_cast<float>(random() % 1000);
            b.push_back(a.back());
            for (std::uint64_t change = random() % 3; change != 0 && items != 0; --change)
                b.back()[random() % items] += 0.25F * static_cast<float>(random() % 8);
        }
        for (std::size_t at = 0; at < count; ++at) {
            FieldPair pair;
            for (const auto* values : {&a[at], &b[at]}) {
                sources.push_back(testing::memory_of(DType::f32, *values));
                (values == &a[at] ? pair.a : pair.b).elements = sources.back().get();
            }
            pair.rule.tolerance.atol = static_cast<double>(random() % 3) / 2;
            pairs.push_back(pair);
        }
    }
};

void expect_equal(const FieldResult& x, const FieldResult& y) {
    testing::expect_same_result(x, y);
    EXPECT_EQ(x.io, y.io);
    EXPECT_EQ(x.device_reason, y.device_reason);
    EXPECT_EQ(x.elements.bytes_read, y.elements.bytes_read);
}

FieldResult one(const FieldPair& pair, CompareOptions options) {
    options.rule = pair.rule;
    options.columns = pair.columns;
    return compare_field(pair.a, pair.b, options).value();
}

TEST(Batch, FieldsAreComparedAsOneByOne) {
    for (const int threads : {0, 1, 2, 5}) {
        for (std::uint64_t round = 0; round < 8; ++round) {
            const Fields fields(round * 40, test_seed(round), 20000);
            CompareOptions options;
            options.stream.threads = threads;
            const auto results = compare_fields(fields.pairs, options);
            ASSERT_EQ(results.size(), fields.pairs.size());
            for (std::size_t at = 0; at < results.size(); ++at) {
                ASSERT_TRUE(results[at]) << results[at].error().message;
                expect_equal(*results[at], one(fields.pairs[at], options));
            }
        }
    }
}

TEST(Batch, LargeFieldsAreDividedAmongSmallOnes) {
    const Fields fields(60, test_seed(5), kInlineBytes);
    CompareOptions options;
    const auto results = compare_fields(fields.pairs, options);
    for (std::size_t at = 0; at < results.size(); ++at)
        expect_equal(results[at].value(), one(fields.pairs[at], options));
}

// Several that all threads work on follow one another, with others and with errors among them.
TEST(Batch, LargeFieldsThatFollowOneAnotherAreComparedAsOneByOne) {
    Fields fields(40, test_seed(8), 3000);
    const std::uint64_t items = kInlineBytes / sizeof(float) * 3;
    std::vector<float> a(items);
    std::mt19937_64 random(test_seed(9));
    for (float& value : a)
        value = static_cast<float>(random() % 1000);
    std::vector<float> b = a;
    for (int change = 0; change < 1000; ++change)
        b[random() % items] += 0.25F * static_cast<float>(random() % 8);
    MemorySource shorter(DType::f32, items - 1, b.data(), sizeof(float), false);
    DecodedSource decoded(DType::f32, items, [&](std::uint64_t first, std::uint64_t count, std::byte* to) {
        std::memcpy(to, b.data() + first, count * sizeof(float));
        return success();
    });
    std::vector<std::unique_ptr<ElementSource>> sources;
    std::vector<std::size_t> large;
    for (std::size_t at = 3; at < fields.pairs.size(); at += 4) {
        for (const auto* values : {&a, &b})
            sources.push_back(testing::memory_of(DType::f32, *values));
        const auto& source_a = sources[sources.size() - 2];
        fields.pairs[at].a.elements = source_a.get();
        fields.pairs[at].b.elements = at == 15 ? &shorter : sources.back().get();
        if (at == 23) fields.pairs[at].b.elements = &decoded;  // compared alone
        large.push_back(at);
    }
    for (const int threads : {1, 2, 4}) {
        CompareOptions options;
        options.stream.threads = threads;
        options.device.use = DeviceUse::cpu;
        std::uint64_t most = 0;
        options.stream.poll = [&](std::uint64_t done, std::uint64_t) {
            most = std::max(most, done);
            return true;
        };
        const auto results = compare_fields(fields.pairs, options);
        EXPECT_LE(most, results.size());
        for (std::size_t at = 0; at < results.size(); ++at) {
            if (at == 15) {
                ASSERT_FALSE(results[at]);
                EXPECT_EQ(results[at].error().code, ErrorCode::mismatch);
                continue;
            }
            expect_equal(results[at].value(), one(fields.pairs[at], options));
            EXPECT_EQ(results[at]->read.sum_squares, one(fields.pairs[at], options).read.sum_squares);
        }
    }
}

// Those that no thread has begun are not begun.
TEST(Batch, AnInterruptEndsLargeFieldsToo) {
    const std::vector<float> values(kInlineBytes / sizeof(float) * 3);
    Gate gate;
    std::vector<std::unique_ptr<ElementSource>> sources;
    std::vector<FieldPair> pairs(12);
    for (FieldPair& pair : pairs) {
        for (FieldSide* side : {&pair.a, &pair.b}) {
            sources.push_back(std::make_unique<GatedSource>(values, gate));
            side->elements = sources.back().get();
        }
    }
    CompareOptions options;
    options.stream.threads = 2;
    options.device.use = DeviceUse::cpu;
    int asked = 0;
    options.stream.poll = [&](std::uint64_t, std::uint64_t) {
        if (++asked == 2) gate.open();
        return false;
    };
    const auto results = compare_fields(pairs, options);
    for (std::size_t at = 0; at < results.size(); ++at) {
        if (results[at]) {
            EXPECT_LT(at, 2U);
            EXPECT_TRUE(results[at]->same());
        } else {
            EXPECT_EQ(results[at].error().code, ErrorCode::interrupted);
        }
    }
}

TEST(Batch, WhatIsWrongWithAFieldIsThatFieldsError) {
    for (const bool throws : {false, true}) {
        Fields fields(500, test_seed(6), 2000);
        BrokenSource broken(DType::f32, 100, throws);
        std::vector<float> values(100);
        MemorySource other(DType::f32, 100, values.data(), sizeof(float), false);
        MemorySource longer(DType::f32, 99, values.data(), sizeof(float), false);
        for (const std::size_t at : {0, 77, 499})
            fields.pairs[at] = {{&broken, nullptr, 0}, {&other, nullptr, 0}, {}, {}};
        fields.pairs[78] = {{&longer, nullptr, 0}, {&other, nullptr, 0}, {}, {}};
        fields.pairs[79] = {};
        CompareOptions options;
        options.stream.threads = 3;
        const auto results = compare_fields(fields.pairs, options);
        for (std::size_t at = 0; at < results.size(); ++at) {
            if (at == 0 || at == 77 || at == 499) {
                ASSERT_FALSE(results[at]);
                EXPECT_EQ(results[at].error().code, throws ? ErrorCode::internal : ErrorCode::io);
            } else if (at == 78 || at == 79) {
                EXPECT_FALSE(results[at]);
            } else {
                expect_equal(results[at].value(), one(fields.pairs[at], options));
            }
        }
    }
}

TEST(Batch, AnInterruptLeavesWhatWasFinished) {
    Fields fields(500, test_seed(7), 300);
    std::vector<float> values(100);
    SlowSource slow(DType::f32, 100);
    MemorySource other(DType::f32, 100, values.data(), sizeof(float), false);
    fields.pairs[3] = {{&slow, nullptr, 0}, {&other, nullptr, 0}, {}, {}};
    CompareOptions options;
    options.stream.threads = 1;
    options.stream.poll = [](std::uint64_t, std::uint64_t) { return false; };
    const auto results = compare_fields(fields.pairs, options);
    std::size_t stopped = 0;
    for (std::size_t at = 0; at < results.size(); ++at) {
        if (!results[at]) {
            EXPECT_EQ(results[at].error().code, ErrorCode::interrupted);
            ++stopped;
        } else if (at != 3) {
            EXPECT_EQ(results[at]->scalars, fields.a[at].size());
        }
    }
    EXPECT_TRUE(results[3]);
    EXPECT_GT(stopped, 0U);
    EXPECT_LT(stopped, results.size());
}

// ---- arrays on devices ----

// Sums on a device depend on how the work is divided; all else is the same.
void expect_alike(const FieldResult& x, const FieldResult& y) {
    FieldResult like = y;
    for (const auto sum : {&DifferenceStats::sum_squares, &DifferenceStats::sum_squares_different}) {
        if (x.read.*sum != y.read.*sum) {  // both may be infinite
            EXPECT_LE(std::fabs(x.read.*sum - y.read.*sum), 1e-12 * y.read.*sum);
        }
        like.read.*sum = x.read.*sum;
    }
    expect_equal(x, like);
    EXPECT_EQ(x.device, y.device);
    EXPECT_EQ(x.read.infinite, y.read.infinite);
    EXPECT_EQ(x.read.scalars, y.read.scalars);
    EXPECT_EQ(x.read.largest, y.read.largest);
    EXPECT_EQ(x.read.max_rel, y.read.max_rel);
    EXPECT_EQ(x.read.max_rel_at, y.read.max_rel_at);
    EXPECT_EQ(x.read.max_rel_different, y.read.max_rel_different);
    EXPECT_EQ(x.read.max_rel_different_at, y.read.max_rel_different_at);
    EXPECT_EQ(x.first_bits_b, y.first_bits_b);
    EXPECT_EQ(x.max_bits_a, y.max_bits_a);
    EXPECT_EQ(x.elements.chunks_in, y.elements.chunks_in);
    EXPECT_EQ(x.max_abs, y.max_abs);
    EXPECT_EQ(x.warnings, y.warnings);
}

constexpr DType kDeviceTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,     DType::i64,
                                  DType::u16, DType::u32, DType::c64, DType::c128, DType::boolean};

// Arrays of all types on devices: most dense and both on `device`; some strided, on the host, or on another device.
struct DeviceFields {
    std::vector<OnDevice> held;
    std::vector<std::vector<std::byte>> on_host;
    std::vector<std::unique_ptr<ElementSource>> sources;
    std::vector<FieldPair> pairs;

    DeviceFields(int device, std::size_t count, std::uint64_t seed, std::uint64_t largest) {
        std::mt19937_64 random(seed);
        const std::vector<int> usable = probe_devices().usable();
        for (std::size_t at = 0; at < count; ++at) {
            const DType dtype = kDeviceTypes[random() % std::size(kDeviceTypes)];
            const std::size_t item = item_bytes(dtype);
            const std::uint64_t items = random() % 8 == 0 ? random() % largest : random() % 300;
            // Small numbers of any type: few bits of a byte are set, and those of exponents are rarely all.
            std::vector<std::byte> a(items * item);
            for (std::byte& byte : a)
                byte = std::byte{static_cast<unsigned char>(dtype == DType::boolean ? random() % 2
                                                            : random() % 16 == 0    ? random()
                                                                                    : random() % 64)};
            std::vector<std::byte> b = a;
            for (std::uint64_t change = random() % 4; change != 0 && items != 0; --change)
                b[random() % b.size()] = std::byte{static_cast<unsigned char>(random() % 2)};
            FieldPair pair;
            for (const auto* values : {&a, &b}) {
                FieldSide& side = values == &a ? pair.a : pair.b;
                side.elements = source(dtype, items, *values, device, usable, random);
            }
            pair.rule.tolerance.atol = random() % 3 == 0 ? 0.5 : 0;
            if (random() % 8 == 0) pair.rule.measure.ulps = 2;
            if (random() % 16 == 0 && is_floating(scalar_type(dtype))) pair.rule.measure.period[0] = 3;
            if (random() % 4 == 0 && items % 2 == 0 && items != 0) pair.columns = {items / 2, 2};
            pairs.push_back(pair);
        }
    }

   private:
    ElementSource* source(DType dtype, std::uint64_t items, const std::vector<std::byte>& values, int device,
                          const std::vector<int>& usable, std::mt19937_64& random) {
        const std::size_t item = item_bytes(dtype);
        if (random() % 32 == 0) {
            on_host.push_back(values);
            sources.push_back(
                std::make_unique<MemorySource>(dtype, items, on_host.back().data(), item, false));
            return sources.back().get();
        }
        DeviceArray array;
        array.device = random() % 32 == 0 ? usable.back() : device;
        array.dtype = dtype;
        array.shape = {items};
        std::vector<std::byte> there = values;
        if (random() % 16 == 0) {  // every other item of twice as many
            there.assign(2 * values.size(), std::byte{1});
            for (std::uint64_t i = 0; i < items; ++i)
                std::memcpy(there.data() + 2 * i * item, values.data() + i * item, item);
            array.strides = {static_cast<std::int64_t>(2 * item)};
        }
        const std::size_t skew = random() % 4 == 0 ? item_bytes(scalar_type(dtype)) : 0;
        held.emplace_back(array.device, std::span<const std::byte>(there), skew);
        array.data = held.back().data();
        sources.push_back(std::make_unique<DeviceSource>(array));
        return sources.back().get();
    }
};

TEST(DeviceBatch, ArraysAreComparedAsOneByOne) {
    TWR_TEST_DEVICE(device);
    for (const DeviceUse use : {DeviceUse::automatic, DeviceUse::cpu, DeviceUse::gpu}) {
        for (int round = 0; round < test_rounds(8); ++round) {
            const DeviceFields fields(device, static_cast<std::size_t>(round) * 30,
                                      test_seed(static_cast<std::uint64_t>(round)), 100'000);
            CompareOptions options;
            options.device.use = use;
            const auto results = compare_fields(fields.pairs, options);
            ASSERT_EQ(results.size(), fields.pairs.size());
            for (std::size_t at = 0; at < results.size(); ++at) {
                SCOPED_TRACE(at);
                ASSERT_TRUE(results[at]) << results[at].error().message;
                expect_alike(*results[at], one(fields.pairs[at], options));
            }
        }
    }
}

TEST(DeviceBatch, SumsAreTheSameFromRunToRun) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 200, test_seed(3), 1'000'000);
    const auto first = compare_fields(fields.pairs, {});
    const auto second = compare_fields(fields.pairs, {});
    for (std::size_t at = 0; at < first.size(); ++at) {
        EXPECT_EQ(first[at]->read.sum_squares, second[at]->read.sum_squares);
        EXPECT_EQ(first[at]->read.sum_squares_different, second[at]->read.sum_squares_different);
    }
}

TEST(DeviceBatch, InTheSteadyStateNothingIsAllocated) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 300, test_seed(4), 10'000);
    std::vector<DevicePair> pairs;
    for (const FieldPair& pair : fields.pairs) {
        const DeviceArray* a = pair.a.elements->device_array();
        const DeviceArray* b = pair.b.elements->device_array();
        if (a == nullptr || b == nullptr || a->device != device) continue;
        if (const auto found = DevicePairs::pair_of(*a, *b, pair.rule)) pairs.push_back(*found);
    }
    ASSERT_GT(pairs.size(), 100U);
    std::uint64_t allocated = 0;
    for (int call = 0; call < 3; ++call) {
        if (call == 1) allocated = device_workspace_allocations();
        auto batch = DevicePairs::start(device, pairs);
        ASSERT_TRUE(batch) << batch.error().message;
        ASSERT_TRUE(batch.value()->wait().ok());
    }
    EXPECT_EQ(device_workspace_allocations(), allocated);
}

// Results of a stream that is fed `fields` until finish(), by the number of the pair.
std::vector<std::optional<DifferenceStats>> streamed(const DeviceFields& fields, std::size_t count,
                                                     bool finish, std::vector<std::size_t>* order = nullptr) {
    std::vector<std::optional<DifferenceStats>> found(fields.pairs.size());
    PairStream stream({}, [&](const FoundPairs& launch) {
        for (std::size_t i = 0; i < launch.numbers.size(); ++i) {
            found[launch.numbers[i]] = launch.of(i).found.stats;
            if (order != nullptr) order->push_back(launch.numbers[i]);
        }
    });
    for (std::size_t at = 0; at < count; ++at) {
        const FieldPair& pair = fields.pairs[at];
        const DeviceArray* a = pair.a.elements->device_array();
        const DeviceArray* b = pair.b.elements->device_array();
        if (a == nullptr || b == nullptr) continue;
        const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
        if (arrays && stream.takes(a->device)) stream.add(at, a->device, *arrays);
    }
    if (finish) stream.finish([] { return true; });
    EXPECT_TRUE(stream.failed().empty());
    return found;
}

TEST(DeviceBatch, AStreamGivesEachPairOnceAsItIsAlone) {
    TWR_TEST_DEVICE(device);
    for (const std::size_t count : {0, 1, 31, 200, 6000}) {
        const DeviceFields fields(device, count, test_seed(count), 3000);
        std::vector<std::size_t> order;
        const auto found = streamed(fields, count, true, &order);
        std::sort(order.begin(), order.end());
        EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
        EXPECT_GE(order.size() + 16, count / 2);
        for (const std::size_t at : order) {
            SCOPED_TRACE(at);
            const FieldResult alone = one(fields.pairs[at], {});
            EXPECT_EQ(found[at]->different, alone.read.different);
            EXPECT_EQ(found[at]->max_abs, alone.read.max_abs);
            EXPECT_EQ(found[at]->all, alone.read.all);
        }
    }
}

TEST(DeviceBatch, AStreamThatEndsEarlyWaitsForItsWork) {
    TWR_TEST_DEVICE(device);
    for (const std::size_t count : {1, 40, 700}) {
        const DeviceFields fields(device, count, test_seed(count), 3000);
        for (const auto& result : streamed(fields, count, false))
            EXPECT_FALSE(result.has_value() && count < 700);
    }
    // goes_on ends it: the rest is not given.
    const DeviceFields fields(device, 700, test_seed(1), 3000);
    std::size_t given = 0;
    {
        PairStream stream({}, [&](const FoundPairs& launch) { given += launch.numbers.size(); });
        std::size_t added = 0;
        for (const FieldPair& pair : fields.pairs) {
            const DeviceArray* a = pair.a.elements->device_array();
            const DeviceArray* b = pair.b.elements->device_array();
            if (a == nullptr || b == nullptr) continue;
            const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
            if (arrays && stream.takes(a->device)) stream.add(added++, a->device, *arrays);
        }
        stream.finish([&] { return given == 0; });
        EXPECT_GT(given, 0U);
        EXPECT_LT(given, added);
    }
}

// A queue that is fed `count` of these fields: the numbers of the pairs that were added, and those that have a result.
struct Queued {
    std::vector<std::size_t> added, given;
    std::vector<std::optional<DifferenceStats>> found;
    PairQueue queue;

    Queued(const DeviceFields& fields, std::size_t count)
        : found(fields.pairs.size()), queue({}, [this](const FoundPairs& launch) {
              for (std::size_t i = 0; i < launch.numbers.size(); ++i) {
                  given.push_back(launch.numbers[i]);
                  found[launch.numbers[i]] = launch.of(i).found.stats;
              }
          }) {
        for (std::size_t at = 0; at < count; ++at) {
            const FieldPair& pair = fields.pairs[at];
            const DeviceArray* a = pair.a.elements->device_array();
            const DeviceArray* b = pair.b.elements->device_array();
            if (a == nullptr || b == nullptr) continue;
            const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
            if (!arrays || !queue.takes(a->device)) continue;
            queue.add(at, a->device, *arrays);
            added.push_back(at);
        }
    }
};

TEST(DeviceBatch, AQueueGivesEachPairOnceWhicheverThreadWorks) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 5000, test_seed(9), 500);
    for (const std::size_t count : {0, 1, 200, 330, 5000}) {
        for (const bool leads : {false, true}) {
            Queued queued(fields, count);
            queued.queue.start(leads);
            EXPECT_TRUE(!leads || queued.queue.led());
            queued.queue.finish([] { return true; });
            EXPECT_TRUE(queued.queue.is_done());
            EXPECT_TRUE(queued.queue.failed().empty());
            std::sort(queued.given.begin(), queued.given.end());
            EXPECT_EQ(queued.given, queued.added);
            for (const std::size_t at : queued.given)
                EXPECT_EQ(queued.found[at]->different, one(fields.pairs[at], {}).read.different) << at;
        }
    }
}

TEST(DeviceBatch, AQueueEndsWhenItsCallerDoes) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 2000, test_seed(10), 500);
    for (const std::size_t count : {0, 100, 300, 2000}) {
        { const Queued never_started(fields, count); }
        {
            Queued never_finished(fields, count);
            never_finished.queue.start(count == 300);
        }
        Queued stopped(fields, count);
        stopped.queue.start(false);
        stopped.queue.finish([] { return false; });
        EXPECT_LE(stopped.given.size(), stopped.added.size());
    }
}

TEST(DeviceBatch, WhatTakingResultsThrowsIsThrownByFinish) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 1500, test_seed(11), 500);
    PairQueue queue({}, [](const FoundPairs&) { throw std::bad_alloc(); });
    bool thrown = false;
    try {
        for (std::size_t at = 0; at < fields.pairs.size(); ++at) {
            const FieldPair& pair = fields.pairs[at];
            const DeviceArray* a = pair.a.elements->device_array();
            const DeviceArray* b = pair.b.elements->device_array();
            if (a == nullptr || b == nullptr) continue;
            const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
            if (arrays && queue.takes(a->device)) queue.add(at, a->device, *arrays);
        }
        queue.start(true);
        queue.finish([] { return true; });
    } catch (const std::bad_alloc&) {
        thrown = true;
    }
    EXPECT_TRUE(thrown);
}

TEST(DeviceBatch, ResultsOfPairsTakenOverAreThoseOfEachAlone) {
    TWR_TEST_DEVICE(device);
    const DeviceFields fields(device, 400, test_seed(8), 3000);
    for (const Method method : {Method::automatic, Method::direct}) {
        CompareOptions options;
        options.method = method;
        std::optional<FieldResult> like;
        PairStream stream(options.device, [&](const FoundPairs& launch) {
            for (std::size_t i = 0; i < launch.numbers.size(); ++i) {
                const FieldPair& pair = fields.pairs[launch.numbers[i]];
                const ComparedElements compared{launch.of(i), launch.device, launch.reason,
                                                launch.seconds(i)};
                CompareOptions own = options;
                own.rule = pair.rule;
                const FieldResult alone = compare_field(pair.a, pair.b, own, &compared).value();
                if (!like) like = alone;
                take_compared(launch.pairs[i].dtype, launch.pairs[i].items, pair.rule, compared, *like);
                expect_alike(*like, alone);
                EXPECT_EQ(like->device_seconds, alone.device_seconds);
                EXPECT_EQ(like->max_abs_is_bound, alone.max_abs_is_bound);
                EXPECT_EQ(like->elements.ran, alone.elements.ran);
            }
        });
        for (std::size_t at = 0; at < fields.pairs.size(); ++at) {
            const FieldPair& pair = fields.pairs[at];
            const DeviceArray* a = pair.a.elements->device_array();
            const DeviceArray* b = pair.b.elements->device_array();
            if (a == nullptr || b == nullptr || a->device != device) continue;
            const auto arrays = DevicePairs::pair_of(*a, *b, pair.rule);
            if (arrays && stream.takes(device)) stream.add(at, device, *arrays);
        }
        stream.finish([] { return true; });
        EXPECT_TRUE(like.has_value());
    }
}

TEST(Batch, NoFieldsAreNoResults) { EXPECT_TRUE(compare_fields({}, {}).empty()); }

}  // namespace
}  // namespace twinrun
