#include "engine/batch.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "source/tuning.hpp"
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
                sources.push_back(std::make_unique<MemorySource>(DType::f32, values->size(), values->data(),
                                                                 sizeof(float), false));
                (values == &a[at] ? pair.a : pair.b).elements = sources.back().get();
            }
            pair.rule.tolerance.atol = static_cast<double>(random() % 3) / 2;
            pairs.push_back(pair);
        }
    }
};

void expect_equal(const FieldResult& x, const FieldResult& y) {
    EXPECT_EQ(x.method, y.method);
    EXPECT_EQ(x.reason, y.reason);
    EXPECT_EQ(x.io, y.io);
    EXPECT_EQ(x.device_reason, y.device_reason);
    EXPECT_EQ(x.scalars, y.scalars);
    EXPECT_EQ(x.chunks, y.chunks);
    EXPECT_EQ(x.read.different, y.read.different);
    EXPECT_EQ(x.read.first, y.read.first);
    EXPECT_EQ(x.read.max_abs, y.read.max_abs);
    EXPECT_EQ(x.read.max_abs_at, y.read.max_abs_at);
    EXPECT_EQ(x.read.sum_squares, y.read.sum_squares);
    EXPECT_EQ(x.read.sum_squares_different, y.read.sum_squares_different);
    EXPECT_EQ(x.read.all, y.read.all);
    EXPECT_EQ(x.read.over, y.read.over);
    EXPECT_EQ(x.first_bits_a, y.first_bits_a);
    EXPECT_EQ(x.max_bits_b, y.max_bits_b);
    EXPECT_EQ(x.elements.chunks_out, y.elements.chunks_out);
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

TEST(Batch, NoFieldsAreNoResults) { EXPECT_TRUE(compare_fields({}, {}).empty()); }

}  // namespace
}  // namespace twinrun
