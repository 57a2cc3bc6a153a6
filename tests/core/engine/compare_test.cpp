#include "engine/compare.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/merge.hpp"
#include "sketch/build.hpp"
#include "support/fields.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::memory_of;

class CompareTest : public ::testing::Test {
   protected:
    [[nodiscard]] std::string write(const std::string& name, const void* data, std::size_t bytes) const {
        return folder_.write(name, data, bytes);
    }
    std::shared_ptr<MetadataFile> index(const std::string& name, ElementSource& source,
                                        const Tolerance& tolerance, DigestKind kind = DigestKind::linear,
                                        std::uint32_t chunk = kSmallestChunk, unsigned bits = 4) const {
        FieldPlan plan = testing::plan_of(source.dtype(), source.items(), tolerance);
        plan.kind = kind;
        plan.chunk_bytes = chunk;
        plan.residue_bits = bits;
        return testing::index_field(folder_.path(name + ".twm"), source, std::move(plan));
    }

    testing::TestFolder folder_;
};

// Items spread over several files and extents, strided and big-endian, read like one array, for every cut of it.
TEST_F(CompareTest, ExtentsOfManyFilesReadAsOneArray) {
    std::vector<double> values(3000);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::sin(static_cast<double>(i));
    struct Record {
        char before[5];
        std::uint64_t swapped;
        char after[3];
    } __attribute__((packed));
    std::vector<Record> records(1000);
    std::vector<std::uint64_t> dense(2000);
    for (std::size_t i = 0; i < 2000; ++i)
        dense[i] = __builtin_bswap64(std::bit_cast<std::uint64_t>(values[i]));
    for (std::size_t i = 0; i < 1000; ++i)
        records[i].swapped = __builtin_bswap64(std::bit_cast<std::uint64_t>(values[2000 + i]));
    const std::string first = write("dense", dense.data(), dense.size() * 8);
    const std::string second = write("records", records.data(), records.size() * sizeof(Record));
    for (const CacheUse cache : {CacheUse::buffered, CacheUse::direct}) {
        auto source =
            FileSource::create(
                DType::f64, ByteOrder::big, 3000,
                {{first, 8 * 500, 8, 1500}, {first, 0, 8, 500}, {second, 5, sizeof(Record), 1000}}, cache)
                .value();
        ASSERT_TRUE(source->prepare());
        std::mt19937_64 random(test_seed(3));
        for (int round = 0; round < 200; ++round) {
            const std::uint64_t at = random() % 3000;
            const std::uint64_t count = 1 + random() % (3000 - at);
            const std::size_t room = source->buffer_bytes(count);
            auto* buffer = static_cast<std::byte*>(::operator new (room, std::align_val_t{kDirectAlignment}));
            std::vector<ReadRequest> requests;
            ASSERT_TRUE(source->plan(at, count, buffer, requests));
            for (const ReadRequest& r : requests) {
                ASSERT_LE(r.to + r.bytes, buffer + room);
                ASSERT_TRUE(r.file->read_at(r.offset, {r.to, r.at_least}));
            }
            const ElementView view = source->view(at, count, buffer);
            for (std::uint64_t i = 0; i < count; ++i) {
                const std::uint64_t item = at + i;
                const double expected = item < 1500   ? values[500 + item]
                                        : item < 2000 ? values[item - 1500]
                                                      : values[item];
                ASSERT_EQ(std::bit_cast<double>(raw_bits(view, i)), expected) << item;
            }
            ::operator delete (buffer, std::align_val_t{kDirectAlignment});
        }
    }
}

TEST_F(CompareTest, ExtentsThatDoNotFitAreErrors) {
    const std::vector<float> values(100);
    const std::string path = write("x", values.data(), 400);
    EXPECT_FALSE(
        FileSource::create(DType::f32, ByteOrder::little, 100, {{path, 0, 4, 99}}, CacheUse::buffered));
    EXPECT_FALSE(
        FileSource::create(DType::f32, ByteOrder::little, 100, {{path, 0, 3, 100}}, CacheUse::buffered));
    EXPECT_FALSE(
        FileSource::create(DType::f32, ByteOrder::little, 100, {{path, ~0ULL, 4, 100}}, CacheUse::buffered));
    auto late =
        FileSource::create(DType::f32, ByteOrder::little, 100, {{path, 1, 4, 100}}, CacheUse::buffered);
    ASSERT_TRUE(late);
    const auto prepared = (*late)->prepare();
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::damaged);
    auto missing =
        FileSource::create(DType::f32, ByteOrder::little, 1, {{path + "x", 0, 4, 1}}, CacheUse::buffered);
    EXPECT_EQ((*missing)->prepare().error().code, ErrorCode::not_found);
}

// One element is changed, anywhere: every method finds it, for leaf counts around powers of two and all chunk sizes.
TEST_F(CompareTest, OneChangedElementIsFoundAnywhere) {
    std::mt19937_64 random(test_seed(4));
    for (const std::uint32_t chunk : {4096U, 8192U, 65536U}) {
        for (const std::size_t chunks : {1, 2, 3, 5, 7, 8, 9, 31, 33, 100}) {
            const std::size_t n = chunks * chunk / 4 - random() % 700;
            std::vector<float> a(n);
            for (auto& x : a)
                x = static_cast<float>(random() % 1000);
            auto source_a = memory_of(DType::f32, a);
            for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
                const auto metadata_a = index("a", *source_a, {1e-3, 0}, kind, chunk);
                for (int round = 0; round < 3; ++round) {
                    std::vector<float> b = a;
                    const std::size_t at = round == 0 ? n - 1 : round == 1 ? 0 : random() % n;
                    b[at] += 1;
                    auto source_b = memory_of(DType::f32, b);
                    const auto metadata_b = index("b", *source_b, {1e-3, 0}, kind, chunk);
                    CompareOptions options;
                    options.rule.tolerance.atol = 1e-3;
                    const auto result = compare_field({source_a.get(), metadata_a.get(), 0},
                                                      {source_b.get(), metadata_b.get(), 0}, options);
                    ASSERT_TRUE(result) << result.error().message;
                    EXPECT_EQ(result.value().read.different, 1U);
                    EXPECT_EQ(result.value().read.first, at);
                    EXPECT_EQ(result.value().tree.chunks_out, 1U);
                    EXPECT_EQ(result.value().method,
                              kind == DigestKind::linear ? Method::staged : Method::published);
                }
            }
        }
    }
}

// The metadata of a field does not depend on how it was made.
TEST_F(CompareTest, MetadataIsTheSameForAnyThreadsMemoryAndSource) {
    std::mt19937_64 random(test_seed(5));
    std::vector<double> values(700'001);
    for (auto& x : values)
        x = static_cast<double>(random() % 1000000) * 1e-3;
    values[4711] = std::nan("");
    const std::string path = write("x", values.data(), values.size() * 8);
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = DType::f64;
    plan.shape = {values.size()};
    plan.tolerance = {1e-4, 0};
    const FieldMetadata field = plan_field(plan).value();
    auto in_memory = memory_of(DType::f64, values);
    BuiltField expected;
    ASSERT_TRUE(build_in_memory(field, *in_memory, {.threads = 1}, expected));
    EXPECT_EQ(expected.counts.nans, 1U);
    for (const int threads : {1, 3}) {
        for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{1} << 28}) {
            for (const CacheUse cache : {CacheUse::buffered, CacheUse::direct}) {
                auto source = FileSource::create(DType::f64, ByteOrder::little, values.size(),
                                                 {{path, 0, 8, values.size()}}, cache)
                                  .value();
                BuiltField built;
                const auto done =
                    build_in_memory(field, *source, {.threads = threads, .memory_bytes = bytes}, built);
                ASSERT_TRUE(done) << done.error().message;
                EXPECT_EQ(built.tree, expected.tree);
                EXPECT_EQ(built.fine, expected.fine);
                EXPECT_EQ(built.residues, expected.residues);
                EXPECT_EQ(built.counts.nans, 1U);
            }
        }
    }
}

TEST_F(CompareTest, MetadataAloneDecidesWhatItCanAndSaysWhatItCannot) {
    std::vector<float> a(10'000, 1.0F);
    std::vector<float> b(a);
    for (auto& x : b)
        x += 3e-4F;
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    const auto metadata_a = index("a", *source_a, {1e-3, 0});
    const auto metadata_b = index("b", *source_b, {1e-3, 0});
    CompareOptions options;
    options.rule.tolerance.atol = 1e-3;
    auto result = compare_field({nullptr, metadata_a.get(), 0}, {nullptr, metadata_b.get(), 0}, options);
    ASSERT_TRUE(result);
    EXPECT_TRUE(result.value().same());
    EXPECT_TRUE(result.value().max_abs_is_bound);
    EXPECT_GE(result.value().max_abs, 3e-4);
    b[77] += 1;
    const auto metadata_c = index("c", *source_b, {1e-3, 0});
    result = compare_field({nullptr, metadata_a.get(), 0}, {nullptr, metadata_c.get(), 0}, options);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::not_found);
    EXPECT_NE(result.error().message.find("cannot decide from element 0 on"), std::string::npos)
        << result.error().message;
}

// Exact digests without elements: as many chunks differ as brute force finds, in one call and in ranges, and
// the first is the first in memory. Where they cannot decide, nothing is said to differ.
TEST_F(CompareTest, ExactDigestsAloneCountTheChunksThatDiffer) {
    std::mt19937_64 random(test_seed(11));
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i16, DType::u64, DType::c64}) {
        const std::size_t item = item_bytes(dtype);
        for (int round = 0; round < 20; ++round) {
            std::vector<std::uint8_t> a(item * (1 + random() % 20'000), 0);
            for (auto& byte : a)
                byte = static_cast<std::uint8_t>(1 + random() % 7);  // no NaN, no zero
            std::vector<std::uint8_t> b = a;
            for (std::uint64_t n = random() % 4; n != 0; --n)
                b[random() % b.size()] ^= 8;
            const std::uint64_t items = a.size() / item;
            MemorySource source_a(dtype, items, a.data(), item, false);
            MemorySource source_b(dtype, items, b.data(), item, false);
            const auto of_a = index("a", source_a, {});
            const auto of_b = index("b", source_b, {});
            const std::uint64_t chunk_scalars = kSmallestChunk / item * scalars_per_item(dtype);
            const std::uint64_t scalars = items * scalars_per_item(dtype);
            std::vector<std::uint64_t> chunks;
            for (std::size_t begin = 0; begin < a.size(); begin += kSmallestChunk) {
                const std::size_t size = std::min<std::size_t>(kSmallestChunk, a.size() - begin);
                if (std::memcmp(a.data() + begin, b.data() + begin, size) != 0)
                    chunks.push_back(begin / kSmallestChunk);
            }
            const auto check = [&](const FieldResult& found) {
                EXPECT_EQ(found.unread_different, chunks.size());
                EXPECT_EQ(found.different(), chunks.size());
                EXPECT_EQ(found.same(), chunks.empty());
                EXPECT_EQ(found.read.scalars, 0U);
                EXPECT_EQ(std::isnan(found.max_abs), !chunks.empty());
                EXPECT_FALSE(found.max_abs_is_bound);
                if (chunks.empty()) return;
                EXPECT_EQ(found.unread_begin, chunks.front() * chunk_scalars);
                EXPECT_EQ(found.unread_end, std::min(scalars, (chunks.front() + 1) * chunk_scalars));
            };
            const FieldSide side_a{nullptr, of_a.get(), 0};
            const FieldSide side_b{nullptr, of_b.get(), 0};
            CompareOptions options;
            auto whole = compare_field(side_a, side_b, options);
            ASSERT_TRUE(whole) << whole.error().message;
            check(*whole);
            const std::uint64_t cut = random() % (scalars / chunk_scalars + 1) * chunk_scalars;
            if (cut != 0 && cut < scalars) {
                options.ranges = {{0, cut}};
                const auto low = compare_field(side_a, side_b, options);
                options.ranges = {{cut, scalars}};
                const auto high = compare_field(side_a, side_b, options);
                ASSERT_TRUE(low && high);
                check(merged(std::vector<const FieldResult*>{&*high, &*low}, {}).value());
                options.ranges.reset();
            }
            options.rule.tolerance.atol = 1e-9;  // wider: digests that differ say nothing
            EXPECT_EQ(static_cast<bool>(compare_field(side_a, side_b, options)), chunks.empty());
            options.rule.tolerance = {};
            options.rule.measure.ulps = 1;
            EXPECT_EQ(static_cast<bool>(compare_field(side_a, side_b, options)), chunks.empty());
        }
    }
    // Zeros of both signs are equal, and published digests tell them apart.
    const std::vector<float> zeros(100, 0.0F);
    const std::vector<float> negative(100, -0.0F);
    auto source_a = memory_of(DType::f32, zeros);
    auto source_b = memory_of(DType::f32, negative);
    for (const DigestKind kind : {DigestKind::linear, DigestKind::published}) {
        const auto of_a = index("a", *source_a, {}, kind);
        const auto of_b = index("b", *source_b, {}, kind);
        const auto found = compare_field({nullptr, of_a.get(), 0}, {nullptr, of_b.get(), 0}, {});
        EXPECT_TRUE(!found || found->same());
    }
}

TEST_F(CompareTest, MismatchesAreErrors) {
    std::vector<float> a(100);
    std::vector<float> shorter(99);
    std::vector<std::int32_t> integers(100);
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, shorter);
    auto source_c = memory_of(DType::i32, integers);
    for (ElementSource* other :
         {static_cast<ElementSource*>(source_b.get()), static_cast<ElementSource*>(source_c.get())}) {
        const auto result = compare_field({source_a.get(), nullptr, 0}, {other, nullptr, 0}, {});
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code, ErrorCode::mismatch);
    }
    CompareOptions negative;
    negative.rule.tolerance.atol = -1;
    EXPECT_FALSE(compare_field({source_a.get(), nullptr, 0}, {source_a.get(), nullptr, 0}, negative));
    CompareOptions staged;
    staged.method = Method::staged;
    EXPECT_FALSE(compare_field({source_a.get(), nullptr, 0}, {source_a.get(), nullptr, 0}, staged));
}

// Data that is equal where digests differ is not what was digested: an error, never "same".
TEST_F(CompareTest, EqualDataBesideOtherDigestsIsAnError) {
    std::mt19937_64 random(test_seed(16));
    for (const auto kind : {DigestKind::linear, DigestKind::published}) {
        for (const double atol : {1e-3, 0.0}) {
            if (kind == DigestKind::published && atol == 0) continue;
            for (const unsigned bits : {0U, 4U}) {
                std::vector<float> a(50'000);
                for (auto& x : a)
                    x = static_cast<float>(random() % 1000);
                std::vector<float> b = a;
                const std::size_t at = random() % a.size();
                b[at] += 1;
                auto source_a = memory_of(DType::f32, a);
                auto source_b = memory_of(DType::f32, b);
                const auto metadata_a = index("a", *source_a, {atol, 0}, kind, kSmallestChunk, bits);
                const auto metadata_b = index("b", *source_b, {atol, 0}, kind, kSmallestChunk, bits);
                CompareOptions options;
                options.rule.tolerance.atol = atol;
                const auto compared = [&](ElementSource& x, ElementSource& y) {
                    return compare_field({&x, metadata_a.get(), 0}, {&y, metadata_b.get(), 0}, options);
                };
                const auto intact = compared(*source_a, *source_b);
                ASSERT_TRUE(intact) << intact.error().message;
                EXPECT_EQ(intact->read.different, 1U);
                // The changed data of one run, in both; and zeros, as from storage that lost it.
                const std::vector<float> zeros(a.size());
                const auto source_z = memory_of(DType::f32, zeros);
                for (auto* same : {source_a.get(), source_b.get(), source_z.get()}) {
                    const auto result = compared(*same, *same);
                    ASSERT_FALSE(result);
                    EXPECT_EQ(result.error().code, ErrorCode::damaged);
                    const std::size_t chunk = kSmallestChunk / sizeof(float);
                    EXPECT_NE(result.error().message.find("from element " +
                                                          std::to_string(at / chunk * chunk) + " on"),
                              std::string::npos)
                        << result.error().message;
                }
            }
        }
    }
}

// A flipped bit anywhere in either metadata file is an error or changes nothing: never another verdict.
TEST_F(CompareTest, FlippedBitsNeverChangeTheVerdict) {
    std::mt19937_64 random(test_seed(6));
    std::vector<float> a(6000);
    for (auto& x : a)
        x = static_cast<float>(random() % 1000);
    std::vector<float> b = a;
    for (std::size_t i = 0; i < 3000; ++i)
        b[i] -= 4e-4F;  // another coarse cell: the sketch decides these chunks
    b[5999] += 1;
    auto source_a = memory_of(DType::f32, a);
    auto source_b = memory_of(DType::f32, b);
    const auto metadata_a = index("a", *source_a, {1e-3, 0});
    const std::string path = index("b", *source_b, {1e-3, 0})->path();
    std::vector<char> bytes(std::filesystem::file_size(path));
    std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    CompareOptions options;
    options.rule.tolerance.atol = 1e-3;
    const auto metadata_b = MetadataFile::open(path);
    const auto intact =
        compare_field({source_a.get(), metadata_a.get(), 0}, {source_b.get(), metadata_b->get(), 0}, options);
    ASSERT_TRUE(intact && intact->sketch.ran && intact->elements.ran);
    int errors = 0;
    for (int round = 0; round < 1500; ++round) {
        const std::size_t bit = random() % (bytes.size() * 8);
        std::vector<char> flipped = bytes;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        const std::string damaged = write("damaged.twm", flipped.data(), flipped.size());
        const auto metadata_d = MetadataFile::open(damaged);
        if (!metadata_d) {
            ++errors;
            continue;
        }
        const auto result = compare_field({source_a.get(), metadata_a.get(), 0},
                                          {source_b.get(), metadata_d->get(), 0}, options);
        if (!result) {
            EXPECT_EQ(result.error().code, ErrorCode::damaged);
            ++errors;
            continue;
        }
        ASSERT_EQ(result.value().read.different, 1U);
        ASSERT_EQ(result.value().read.first, 5999U);
    }
    EXPECT_GT(errors, 100);
}

}  // namespace
}  // namespace twinrun
