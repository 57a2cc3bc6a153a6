// The engine against a comparison that shares no code with it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "engine/batch.hpp"
#include "sketch/build.hpp"
#include "support/fields.hpp"
#include "support/plain_compare.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

constexpr DType kPlainTypes[] = {DType::f32, DType::f64, DType::f16,     DType::bf16, DType::i8,
                                 DType::i16, DType::i32, DType::i64,     DType::u8,   DType::u16,
                                 DType::u32, DType::u64, DType::boolean, DType::c64,  DType::c128};

enum class Held { memory, file, metadata, metadata_alone };

struct Field {
    DType dtype = DType::f32;
    std::uint64_t items = 0;
    std::vector<std::byte> a, b;
    Tolerance tolerance;  // of the metadata, and of the comparison
    Held held = Held::memory;
    std::uint64_t offset = 0;  // in the data files
    std::size_t number = 0;    // in the metadata
};

class PlainTest : public ::testing::Test {
   protected:
    template <class T>
    static void put(std::vector<std::byte>& to, std::uint64_t scalar, T value) {
        std::memcpy(to.data() + scalar * sizeof value, &value, sizeof value);
    }
    // A floating-point number of the type; others are bits.
    void put_number(DType scalar, std::vector<std::byte>& to, std::uint64_t at, double value) {
        switch (scalar) {
            case DType::f32: return put(to, at, static_cast<float>(value));
            case DType::f64: return put(to, at, value);
            case DType::boolean: return put(to, at, static_cast<std::uint8_t>(random_() % 2));
            default: {
                const std::uint64_t bits = random_() % 4 == 0 ? random_() : random_() % 50;
                std::memcpy(to.data() + at * item_bytes(scalar), &bits, item_bytes(scalar));
            }
        }
    }
    double value() {
        switch (random_() % 60) {
            case 0: return std::numeric_limits<double>::quiet_NaN();
            case 1: return std::numeric_limits<double>::infinity();
            case 2: return -std::numeric_limits<double>::infinity();
            case 3: return -0.0;
            case 4: return std::numeric_limits<double>::denorm_min() * static_cast<double>(random_() % 9);
            case 5: return std::numeric_limits<double>::max();
            default: return static_cast<double>(static_cast<std::int64_t>(random_() % 2001) - 1000) / 64;
        }
    }
    // Near the tolerance, on either side of it, or anywhere.
    void change(Field& field, std::uint64_t at) {
        const DType scalar = scalar_type(field.dtype);
        const double old = plain::number(scalar, field.a.data() + at * item_bytes(scalar)).value;
        const double allowed = field.tolerance.atol + field.tolerance.rtol * std::fabs(old);
        const double sign = random_() % 2 == 0 ? 1 : -1;
        double now = old + sign * allowed;
        switch (random_() % 5) {
            case 0: now = std::nextafter(now, sign * std::numeric_limits<double>::infinity()); break;
            case 1: now = std::nextafter(now, -sign * std::numeric_limits<double>::infinity()); break;
            case 2: now = value(); break;
            case 3: now = old + sign * allowed * 0.5; break;
            default: break;
        }
        put_number(scalar, field.b, at, now);
    }

    std::vector<Field> fields(std::size_t count, std::uint64_t largest) {
        std::vector<Field> made(count);
        for (Field& field : made) {
            field.dtype = kPlainTypes[random_() % std::size(kPlainTypes)];
            field.items = random_() % 8 == 0 ? random_() % largest : random_() % 400;
            const std::uint64_t scalars = field.items * scalars_per_item(field.dtype);
            field.a.resize(field.items * item_bytes(field.dtype));
            for (std::uint64_t i = 0; i < scalars; ++i)
                put_number(scalar_type(field.dtype), field.a, i, value());
            field.b = field.a;
            if (is_floating(field.dtype)) {
                const Tolerance wide[] = {{0, 0}, {0.25, 0}, {1e-3, 1e-5}, {0, 1e-6}, {0.1, 0}};
                field.tolerance = wide[random_() % std::size(wide)];
            }
            const std::uint64_t changes = random_() % 3 == 0 ? scalars / 3 : random_() % 4;
            for (std::uint64_t i = 0; scalars != 0 && i < changes; ++i)
                change(field, random_() % scalars);
            field.held = static_cast<Held>(random_() % 4);
        }
        return made;
    }

    // Both runs' data files, and their metadata of those fields that have some.
    void write(std::vector<Field>& fields, unsigned bits) {
        for (const bool first : {true, false}) {
            const std::string name = first ? "a" : "b";
            std::ofstream data(path(name), std::ios::binary);
            Directory directory;
            directory.data_files.push_back({name, {}});
            std::vector<std::unique_ptr<MemorySource>> sources;
            std::uint64_t at = 0;
            for (Field& field : fields) {
                const auto& bytes = first ? field.a : field.b;
                data.write(reinterpret_cast<const char*>(bytes.data()),
                           static_cast<std::streamsize>(bytes.size()));
                field.offset = at;
                at += bytes.size();
                if (field.held == Held::memory || field.held == Held::file) continue;
                field.number = directory.fields.size();
                FieldPlan plan = testing::plan_of(field.dtype, field.items, field.tolerance);
                plan.name += std::to_string(field.number);
                plan.residue_bits = bits;
                directory.fields.push_back(plan_field(std::move(plan)).value());
                sources.push_back(std::make_unique<MemorySource>(field.dtype, field.items, bytes.data(),
                                                                 item_bytes(field.dtype), false));
            }
            auto writer =
                MetadataWriter::create(posix_file_system(), path(name + ".twm"), std::move(directory))
                    .value();
            writer->may_replace();
            for (std::size_t i = 0; i < sources.size(); ++i)
                ASSERT_TRUE(build_field(*writer, i, *sources[i], {}));
            ASSERT_TRUE(writer->finish_temporary());
        }
    }
    [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }

    // Sources and pairs of fields, made anew: what was read of metadata is remembered.
    struct Pairs {
        std::shared_ptr<MetadataFile> a, b;
        std::vector<std::unique_ptr<ElementSource>> sources;
        std::vector<FieldPair> pairs;
    };
    Pairs pairs(const std::vector<Field>& fields, bool nan_equal, CacheUse cache) const {
        Pairs made;
        made.a = MetadataFile::open(path("a.twm")).value();
        made.b = MetadataFile::open(path("b.twm")).value();
        const auto files = std::make_shared<OpenFiles>();
        for (const Field& field : fields) {
            FieldPair pair;
            for (const bool first : {true, false}) {
                FieldSide& side = first ? pair.a : pair.b;
                if (field.held == Held::metadata || field.held == Held::metadata_alone) {
                    side.metadata = (first ? made.a : made.b).get();
                    side.field = field.number;
                }
                if (field.held == Held::metadata_alone) continue;
                const std::size_t item = item_bytes(field.dtype);
                if (field.held == Held::memory) {
                    made.sources.push_back(std::make_unique<MemorySource>(
                        field.dtype, field.items, (first ? field.a : field.b).data(), item, false));
                } else {
                    const std::vector<PathExtent> extents{
                        {path(first ? "a" : "b"), field.offset, item, field.items}};
                    made.sources.push_back(
                        FileSource::create(field.dtype, ByteOrder::little, field.items, extents, cache, files)
                            .value());
                }
                side.elements = made.sources.back().get();
            }
            pair.rule.tolerance = field.tolerance;
            pair.rule.nan_equal = nan_equal;
            made.pairs.push_back(pair);
        }
        return made;
    }

    static void expect_near(double found, double expected) {
        if (found != expected) {  // both may be infinite
            EXPECT_LE(std::fabs(found - expected), 1e-9 * expected);
        }
    }

    // What every method must find.
    static void check(const FieldResult& result, const Field& field, bool nan_equal) {
        const DType scalar = scalar_type(field.dtype);
        const std::uint64_t scalars = field.items * scalars_per_item(field.dtype);
        const plain::Found expected =
            plain::compare(scalar, field.a.data(), field.b.data(), scalars, field.tolerance, nan_equal);
        EXPECT_EQ(result.scalars, scalars);
        EXPECT_EQ(result.same(), expected.different == 0);
        if (result.unread_different != 0) {  // exact digests alone
            EXPECT_LE(result.unread_different, expected.different);
            EXPECT_LE(result.unread_begin, expected.first);
            EXPECT_GT(result.unread_end, expected.first);
            EXPECT_EQ(result.read.scalars, 0U);
            EXPECT_TRUE(std::isnan(result.max_abs));
            return;
        }
        EXPECT_EQ(result.read.different, expected.different);
        EXPECT_EQ(result.read.first, expected.first);
        EXPECT_EQ(result.read.infinite, expected.infinite);
        EXPECT_EQ(result.read.over, expected.over);
        expect_near(result.read.sum_squares_different, expected.sum_squares_different);
        if (is_floating(scalar)) {
            EXPECT_EQ(result.read.max_rel_different, expected.max_rel_different);
        }
        EXPECT_EQ(result.read.scalars + result.proven.scalars(), scalars);
        if (expected.first != kNowhere) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, field.b.data() + expected.first * item_bytes(scalar), item_bytes(scalar));
            EXPECT_EQ(result.first_bits_b, bits);
        }
        // NaN: no bound is known.
        EXPECT_FALSE(result.max_abs < expected.max_abs * (1 - 1e-12));
        if (result.read.scalars == scalars) {
            EXPECT_EQ(result.max_abs, expected.max_abs);
            EXPECT_EQ(result.read.max_abs_at, expected.max_abs_at);
            EXPECT_EQ(result.read.all, expected.all);
            expect_near(result.read.sum_squares, expected.sum_squares);
        }
    }

    testing::TestFolder folder_;
    std::mt19937_64 random_;
};

TEST_F(PlainTest, ManyFieldsAreComparedAsScalarByScalar) {
    for (int round = 0; round < 12; ++round) {
        SCOPED_TRACE(round);
        random_.seed(test_seed(static_cast<std::uint64_t>(round)));
        std::vector<Field> all = fields(150, round % 4 == 0 ? 60'000 : 3'000);
        write(all, round % 3 == 0 ? 0 : 4);
        const bool nan_equal = round % 5 != 0;
        const CacheUse cache = round % 2 == 0 ? CacheUse::automatic : CacheUse::direct;
        CompareOptions options;
        options.stream.threads = 1 + round % 4;
        const Pairs together = pairs(all, nan_equal, cache);
        const Pairs alone = pairs(all, nan_equal, cache);
        const auto results = compare_fields(together.pairs, options);
        std::size_t compared = 0;
        for (std::size_t at = 0; at < all.size(); ++at) {
            SCOPED_TRACE(at);
            CompareOptions own = options;
            own.rule = alone.pairs[at].rule;
            const auto one = compare_field(alone.pairs[at].a, alone.pairs[at].b, own);
            ASSERT_EQ(results[at].ok(), one.ok());
            if (!one) {
                // Metadata alone cannot tell.
                EXPECT_EQ(all[at].held, Held::metadata_alone);
                EXPECT_EQ(results[at].error().message, one.error().message);
                continue;
            }
            ++compared;
            check(*results[at], all[at], nan_equal);
            // Bytes are those of the field, whatever other threads read of the same files
            // meanwhile.
            EXPECT_EQ(results[at]->tree.bytes_read, one->tree.bytes_read);
            EXPECT_EQ(results[at]->sketch.bytes_read, one->sketch.bytes_read);
            EXPECT_EQ(results[at]->elements.bytes_read, one->elements.bytes_read);
            EXPECT_EQ(results[at]->io, one->io);
        }
        EXPECT_GT(compared, all.size() / 2);
    }
}

// Of many sizes: some are small, some taken by a thread each, some shared by all threads.
TEST_F(PlainTest, LargeFieldsAreComparedAsScalarByScalar) {
    random_.seed(test_seed(77));
    std::vector<Field> all = fields(12, 300);
    for (const std::uint64_t items : {2'000'000, 600'000, 700'000, 650'000, 800'000, 750'000}) {
        Field field;
        field.items = items;
        field.held = static_cast<Held>(all.size() % 3);
        field.tolerance = {0.25, 0};
        field.a.resize(items * sizeof(float));
        for (std::uint64_t i = 0; i < items; ++i)
            put(field.a, i, static_cast<float>(i % 1000));
        field.b = field.a;
        for (int i = 0; i < 200; ++i)
            change(field, random_() % items);
        all.push_back(std::move(field));
    }
    write(all, 4);
    for (const int threads : {1, 2, 3}) {
        SCOPED_TRACE(threads);
        CompareOptions options;
        options.stream.threads = threads;
        options.stream.memory_bytes = 64 << 20;
        const Pairs made = pairs(all, true, CacheUse::automatic);
        const auto results = compare_fields(made.pairs, options);
        for (std::size_t at = 0; at < all.size(); ++at) {
            SCOPED_TRACE(at);
            if (all[at].held == Held::metadata_alone && !results[at]) continue;
            ASSERT_TRUE(results[at]) << results[at].error().message;
            check(*results[at], all[at], true);
        }
    }
}

}  // namespace
}  // namespace twinrun
