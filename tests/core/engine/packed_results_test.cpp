#include "engine/packed_results.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/packed_layouts.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

FieldResult random_result(std::mt19937_64& random) {
    const auto few = [&] { return random() % 3 == 0 ? random() : random() % 4; };
    const auto real = [&] { return static_cast<double>(few()) / 8; };
    FieldResult r;
    r.method = static_cast<Method>(random() % 4);
    const std::vector<std::string> texts = {"", "why", "pread", "cuda:0", std::string(300, 'x')};
    const auto text = [&] { return texts[random() % texts.size()]; };
    r.reason = text();
    r.io = text();
    r.device = text();
    r.device_reason = text();
    for (std::uint64_t n = random() % 3; n != 0; --n)
        r.warnings.push_back(text());
    r.device_seconds = real();
    r.scalars = few();
    r.chunks = few();
    r.max_abs_is_bound = random() % 2 == 0;
    r.max_abs = real();
    r.max_abs_unread = random() % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : real();
    DifferenceStats& s = r.read;
    for (std::uint64_t* count : {&s.scalars, &s.different, &s.infinite, &s.first, &s.max_abs_at,
                                 &s.max_rel_at, &s.max_rel_different_at})
        *count = few();
    for (double* value :
         {&s.max_abs, &s.max_rel, &s.largest, &s.sum_squares, &s.sum_squares_different, &s.max_rel_different})
        *value = real();
    for (Histogram* histogram : {&s.all, &s.over}) {
        for (std::uint64_t n = random() % 5; n != 0; --n)
            (*histogram)[random() % kHistogramBins] = random();
        if (random() % 2 == 0) histogram->back() = few();
    }
    r.proven.by_tree = few();
    for (auto& count : r.proven.by_cells)
        count = few();
    for (std::uint64_t* word : {&r.unread_different, &r.unread_begin, &r.unread_end})
        *word = few();
    r.proven.cell = real();
    r.proven.coarse_cell = real();
    for (StageFacts* stage : {&r.tree, &r.sketch, &r.elements})
        *stage = {random() % 2 == 0, few(), few(), few(), real()};
    for (std::uint64_t* bits : {&r.first_bits_a, &r.first_bits_b, &r.max_bits_a, &r.max_bits_b})
        *bits = few();
    return r;
}

void expect_unpacked(const FieldResult& x, const FieldResult& y) {
    EXPECT_EQ(x.method, y.method);
    EXPECT_EQ(x.reason, y.reason);
    EXPECT_EQ(x.io, y.io);
    EXPECT_EQ(x.device, y.device);
    EXPECT_EQ(x.device_reason, y.device_reason);
    EXPECT_EQ(x.device_seconds, y.device_seconds);
    EXPECT_EQ(x.scalars, y.scalars);
    EXPECT_EQ(x.chunks, y.chunks);
    EXPECT_EQ(std::memcmp(&x.read, &y.read, sizeof x.read), 0);
    EXPECT_EQ(std::memcmp(&x.proven, &y.proven, sizeof x.proven), 0);
    EXPECT_EQ(x.max_abs_is_bound, y.max_abs_is_bound);
    EXPECT_EQ(x.max_abs, y.max_abs);
    EXPECT_EQ(std::memcmp(&x.max_abs_unread, &y.max_abs_unread, sizeof x.max_abs_unread), 0);
    for (const auto& [of_x, of_y] : {std::pair(&x.tree, &y.tree), std::pair(&x.sketch, &y.sketch),
                                     std::pair(&x.elements, &y.elements)}) {
        EXPECT_EQ(of_x->ran, of_y->ran);
        EXPECT_EQ(of_x->chunks_in, of_y->chunks_in);
        EXPECT_EQ(of_x->chunks_out, of_y->chunks_out);
        EXPECT_EQ(of_x->bytes_read, of_y->bytes_read);
        EXPECT_EQ(of_x->seconds, of_y->seconds);
    }
    EXPECT_EQ(x.first_bits_a, y.first_bits_a);
    EXPECT_EQ(x.first_bits_b, y.first_bits_b);
    EXPECT_EQ(x.max_bits_a, y.max_bits_a);
    EXPECT_EQ(x.max_bits_b, y.max_bits_b);
    EXPECT_EQ(x.warnings, y.warnings);
    EXPECT_EQ(x.unread_different, y.unread_different);
    EXPECT_EQ(x.unread_begin, y.unread_begin);
    EXPECT_EQ(x.unread_end, y.unread_end);
}

TEST(PackedResults, AreWhatWasPut) {
    for (std::uint64_t round = 0; round < 20; ++round) {
        std::mt19937_64 random(test_seed(round));
        const std::size_t count = random() % 40;
        std::vector<FieldResult> results;
        PackedResults packed(count);
        for (std::size_t at = 0; at < count; ++at)
            results.push_back(random_result(random));
        std::vector<bool> put(count);
        for (std::size_t n = 0; n < count; ++n) {  // in any order, not all of them
            const std::size_t at = random() % count;
            if (put[at]) continue;
            packed.put(at, results[at]);
            put[at] = true;
        }
        const auto other = PackedResults::from(packed.bytes());
        ASSERT_TRUE(other) << other.error().message;
        for (const PackedResults* one : {static_cast<const PackedResults*>(&packed), &other.value()}) {
            ASSERT_EQ(one->size(), count);
            for (std::size_t at = 0; at < count; ++at) {
                ASSERT_EQ(one->has(at), put[at]);
                if (put[at]) expect_unpacked(one->get(at), results[at]);
            }
        }
    }
}

TEST(PackedResults, OfFieldsThatAgreeTakeLittleMemory) {
    PackedResults packed(1000);
    FieldResult result;
    result.io = "pread";
    for (std::size_t at = 0; at < 1000; ++at) {
        result.elements.seconds = static_cast<double>(at);
        packed.put(at, result);
    }
    EXPECT_LT(packed.bytes().size(), 1000 * 64U);
}

// Any byte that is another is found, and so is any end that is missing.
TEST(PackedResults, DamagedBytesAreRefused) {
    std::mt19937_64 random(test_seed(1));
    PackedResults packed(5);
    for (const std::size_t at : {0, 1, 4})
        packed.put(at, random_result(random));
    PackedLayouts layouts;
    const std::vector<std::uint64_t> shape = {3, 4};
    layouts.add({"x", DType::f64, true, shape, 1, {0.5, 0.25}});
    layouts.add({"y", DType::u8, false, {}, 0, {}});
    const auto refuses = [](const std::vector<std::byte>& bytes, const auto& decode) {
        ASSERT_TRUE(decode(bytes));
        for (std::size_t at = 0; at < bytes.size(); ++at) {
            std::vector<std::byte> other = bytes;
            other[at] ^= std::byte{1};
            EXPECT_FALSE(decode(other)) << at;
            EXPECT_FALSE(decode(
                std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at))));
        }
    };
    refuses(packed.bytes(), [](const auto& bytes) { return PackedResults::from(bytes).ok(); });
    refuses(layouts.bytes(), [](const auto& bytes) { return PackedLayouts::from(bytes).ok(); });
}

TEST(PackedLayouts, AreWhatWasAdded) {
    std::mt19937_64 random(test_seed(2));
    struct Own {
        std::string name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
        std::uint64_t rule;
        Tolerance tolerance;
    };
    std::vector<Own> all;
    PackedLayouts packed;
    for (std::size_t at = 0; at < 300; ++at) {
        Own own{std::string(random() % 9, static_cast<char>(random())),
                *dtype_from_number(static_cast<std::uint8_t>(1 + random() % 15)),
                random() % 2 == 0,
                std::vector<std::uint64_t>(random() % 4, random() % 3),
                random() % 3,
                {static_cast<double>(random() % 3), 0}};
        packed.add({own.name, own.dtype, own.fortran_order, own.shape, own.rule, own.tolerance});
        all.push_back(std::move(own));
    }
    const auto other = PackedLayouts::from(packed.bytes());
    ASSERT_TRUE(other);
    for (const PackedLayouts* one : {static_cast<const PackedLayouts*>(&packed), &other.value()}) {
        ASSERT_EQ(one->size(), all.size());
        for (std::size_t at = 0; at < all.size(); ++at) {
            const NamedLayout found = one->get(at);
            EXPECT_EQ(found.name, all[at].name);
            EXPECT_EQ(found.dtype, all[at].dtype);
            EXPECT_EQ(found.fortran_order, all[at].fortran_order);
            EXPECT_TRUE(std::ranges::equal(found.shape, all[at].shape));
            EXPECT_EQ(found.rule, all[at].rule);
            EXPECT_EQ(found.tolerance, all[at].tolerance);
        }
    }
}

}  // namespace
}  // namespace twinrun
