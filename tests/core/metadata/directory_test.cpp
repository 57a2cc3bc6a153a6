// The header and the directory of a metadata file: what they hold, and what is refused.
#include "metadata/metadata.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "support/metadata_content.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using testing::Bytes;
using testing::expect_same;
using testing::make_field;

// ---- header and directory ----

constexpr std::uint64_t kNoLimit = 1ULL << 62;

// Sections anywhere behind the directory, of the right sizes.
void place_sections(Directory& directory, std::mt19937_64& random) {
    for (FieldMetadata& field : directory.fields) {
        for (std::size_t s = 0; s < kSections; ++s) {
            field.sections[s] = {(1ULL << 20) + random() % (1ULL << 50) * 8,
                                 field.section_bytes(static_cast<Section>(s)),
                                 (1ULL << 20) + random() % (1ULL << 50) * 8, random()};
        }
    }
}

// Sums that a field may have.
SumsFacts random_facts(const FieldMetadata& field, std::mt19937_64& random) {
    SumsFacts facts;
    const bool placed = !field.global_shape.empty();
    const bool keyed = !field.key.empty() && !field.shape.empty();
    if (field.settings.kind != DigestKind::linear || (!placed && !keyed) || random() % 4 == 0) return facts;
    facts.kind = keyed && (!placed || random() % 2 == 0) ? SumsKind::ids : SumsKind::place;
    while (random() % 3 != 0 &&
           (std::uint64_t{field.settings.chunk_bytes} << (facts.height + 1)) <= kLargestChunk)
        ++facts.height;
    facts.buckets = random() % (field.scalars() + 1);
    if (facts.kind == SumsKind::ids) {
        const std::uint64_t stride = std::bit_ceil(
            std::max<std::uint64_t>(field.scalars() / std::max<std::uint64_t>(field.shape[0], 1), 1));
        if (stride > field.chunking().chunk_scalars << facts.height) return {};
        facts.largest_id = random() % (kIndexLimit / stride);
        facts.smallest_id = random() % (facts.largest_id + 1);
    }
    return facts;
}

Directory random_directory(std::mt19937_64& random) {
    const auto text = [&] {
        std::string t(random() % 20, ' ');
        for (char& c : t)
            c = static_cast<char>(random());
        return t;
    };
    Directory d;
    d.version = static_cast<std::uint32_t>(1 + random() % 4);
    d.step = static_cast<std::int64_t>(random());
    d.rank = static_cast<std::uint32_t>(random());
    for (std::uint64_t i = random() % 4; i-- > 0;) {
        d.data_files.push_back({text(), {random(), static_cast<std::int64_t>(random())}});
    }
    for (std::uint64_t i = random() % 6; i-- > 0;) {
        std::vector<std::uint64_t> shape(random() % 5);
        for (auto& n : shape)
            n = random() % (1ULL << (random() % 13));
        Tolerance tolerance;
        if (random() % 3 != 0)
            tolerance.atol =
                std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 600) - 400);
        const bool published = random() % 5 == 0;
        if (!published && random() % 3 == 0)
            tolerance.rtol = std::ldexp(1.5, -static_cast<int>(random() % 60));
        FieldMetadata field = make_field(text() + std::to_string(i),
                                         *dtype_from_number(static_cast<std::uint8_t>(1 + random() % 15)),
                                         shape, tolerance, static_cast<unsigned>(random() % 3 * 2),
                                         published ? DigestKind::published : DigestKind::linear,
                                         static_cast<std::uint32_t>(4096U << random() % 9));
        field.format = text();
        field.byte_order = static_cast<ByteOrder>(random() % 2);
        field.order = static_cast<ArrayOrder>(random() % 2);
        field.counts = {random(), random()};
        field.largest_sampled = std::bit_cast<double>(random() >> 2);
        if (!shape.empty() && random() % 2 == 0) {
            for (const std::uint64_t n : shape) {
                field.global_offset.push_back(random() >> 1);
                field.global_shape.push_back(field.global_offset.back() + n + random() % 3);
            }
        }
        const CellKind kind = field.settings.rule.kind;
        if (is_exact(kind) && d.version < (kind == CellKind::binary32 ? 3 : 4))
            field.settings.rule.kind = CellKind::tokens;
        if (d.version >= 2) {
            field.key = text();
            field.sums = random_facts(field, random);
        }
        std::uint64_t left = d.data_files.empty() ? 0 : field.items();
        while (left != 0 || (!d.data_files.empty() && random() % 3 == 0)) {
            const std::uint64_t count = random() % 3 == 0 ? left : left / 2;
            field.extents.push_back({static_cast<std::uint32_t>(random() % d.data_files.size()),
                                     random() >> 8, item_bytes(field.dtype) + random() % 100, count});
            left -= count;
        }
        d.fields.push_back(std::move(field));
    }
    place_sections(d, random);
    return d;
}

Result<Directory> decode(std::span<const std::byte> head, std::uint64_t file_bytes) {
    TWR_TRY(const auto facts, decode_header(head, file_bytes));
    const auto body = head.subspan(kHeaderBytes, facts.directory_bytes);
    if (xxh3(body) != facts.directory_checksum) return Error{ErrorCode::damaged, "checksum"};
    return decode_directory(body, file_bytes, facts.version);
}

// The reserved bytes are read and forgotten: four of the directory and, in version 2, two of each field, before three numbers and
// a place.
void forget_reserved(const Directory& directory, Bytes& body) {
    std::fill_n(body.begin() + 20, 4, std::byte{0});
    if (directory.version < 2) return;
    Directory part = directory;
    for (std::size_t fields = 1; fields <= directory.fields.size(); ++fields) {
        part.fields.assign(directory.fields.begin(),
                           directory.fields.begin() + static_cast<std::ptrdiff_t>(fields));
        const std::size_t end = encode_directory(part, 0).size() - kHeaderBytes;
        std::fill_n(body.begin() + static_cast<std::ptrdiff_t>(end - 7 * 8 - 2), 2, std::byte{0});
    }
}

TEST(Directory, RoundTripOfRandomOnes) {
    std::mt19937_64 random(test_seed(1));
    for (int round = 0; round < 400; ++round) {
        const Directory made = random_directory(random);
        const Bytes bytes = encode_directory(made, kNoLimit);
        const auto decoded = decode(bytes, kNoLimit);
        ASSERT_TRUE(decoded.ok()) << round << ": " << decoded.error().message;
        expect_same(made, *decoded.operator->());
        ASSERT_EQ(encode_directory(*decoded.operator->(), kNoLimit), bytes);
        // Its length depends on nothing but texts, shapes and extents.
        ASSERT_EQ(encode_directory(made, 0).size(), bytes.size());
        if (HasFailure()) return;
    }
}

TEST(Directory, CutAnywhereIsDamaged) {
    std::mt19937_64 random(test_seed(2));
    for (int round = 0; round < 20; ++round) {
        const Directory made = random_directory(random);
        const Bytes bytes = encode_directory(made, kNoLimit);
        for (std::size_t size = 0; size < bytes.size(); ++size) {
            const Bytes cut(bytes.begin(),
                            bytes.begin() + static_cast<std::ptrdiff_t>(size));  // exactly: for sanitizers
            ASSERT_FALSE(decode_header(cut, size).ok()) << size;
            if (size < kHeaderBytes) continue;
            const Bytes body(cut.begin() + kHeaderBytes, cut.end());
            const auto decoded = decode_directory(body, kNoLimit, made.version);
            ASSERT_FALSE(decoded.ok()) << size;
            ASSERT_EQ(decoded.error().code, ErrorCode::damaged);
        }
    }
}

// What a decoder does with bytes whose checksum is right though they are wrong: any answer but a crash, and what it
// accepts, it encodes again.
TEST(Directory, ChangedBytesAreRefusedOrRoundTrip) {
    std::mt19937_64 random(test_seed(3));
    std::size_t accepted = 0;
    for (int round = 0; round < 3000; ++round) {
        const Directory made = random_directory(random);
        const Bytes bytes = encode_directory(made, kNoLimit);
        Bytes body(bytes.begin() + kHeaderBytes, bytes.end());
        for (int changes = 0; changes < 3 && !body.empty(); ++changes) {
            body[random() % body.size()] =
                random() % 2 == 0 ? std::byte{0xFF} : static_cast<std::byte>(random());
        }
        // Of another version they are anything.
        const std::uint32_t version =
            random() % 8 == 0 ? static_cast<std::uint32_t>(1 + random() % 4) : made.version;
        const auto decoded = decode_directory(body, kNoLimit, version);
        if (!decoded.ok()) continue;
        accepted += version >= 2 && !decoded->fields.empty();
        forget_reserved(*decoded.operator->(), body);
        const Bytes again = encode_directory(*decoded.operator->(), kNoLimit);
        ASSERT_TRUE(std::equal(body.begin(), body.end(), again.begin() + kHeaderBytes, again.end()));
    }
    EXPECT_GT(accepted, 100U);
}

// ---- sums in a directory ----

// A part by place and by ID, with whatever `change` does to it.
bool decodes(const std::function<void(FieldMetadata&)>& change, std::uint32_t version = 2) {
    std::mt19937_64 random(test_seed(8));
    Directory d;
    d.version = version;
    d.fields.push_back(make_field("x", DType::c64, {50, 4}, {1e-3, 0}, 4, DigestKind::linear, 16384));
    FieldMetadata& field = d.fields[0];
    field.global_shape = {90, 4};
    field.global_offset = {40, 0};
    field.key = "id";
    change(field);
    place_sections(d, random);
    return decode(encode_directory(d, kNoLimit), kNoLimit).ok();
}

TEST(Directory, HoldsSumsThatCanBe) {
    const auto facts = [](SumsFacts sums) { return decodes([&](FieldMetadata& f) { f.sums = sums; }); };
    EXPECT_TRUE(facts({}));
    EXPECT_TRUE(facts({SumsKind::place, 0, 1, 0, 0}));
    EXPECT_TRUE(facts({SumsKind::place, 6, 400, 0, 0}));  // as many as scalars
    EXPECT_TRUE(facts({SumsKind::ids, 6, 400, 0, 0}));
    EXPECT_TRUE(facts({SumsKind::ids, 0, 0, 7, kIndexLimit / 8 - 1}));  // rows of eight scalars
    EXPECT_FALSE(facts({SumsKind::place, 7, 1, 0, 0})) << "a bucket of two megabytes";
    EXPECT_FALSE(facts({SumsKind::place, 9, 1, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::place, 64, 1, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::place, 255, 1, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::place, 0, 401, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::ids, 0, 401, 0, 0}));
    // 24 of these are 16 bytes, modulo 2^64.
    EXPECT_FALSE(facts({SumsKind::place, 0, 0xAAAAAAAAAAAAAAABULL, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::place, 0, std::numeric_limits<std::uint64_t>::max(), 0, 0}));
    EXPECT_FALSE(facts({SumsKind::place, 0, 1, 0, 1}));
    EXPECT_FALSE(facts({SumsKind::ids, 0, 1, 8, 7}));
    EXPECT_FALSE(facts({SumsKind::ids, 0, 1, 0, kIndexLimit / 8}));
    EXPECT_FALSE(facts({SumsKind::ids, 0, 1, 0, std::numeric_limits<std::uint64_t>::max()}));
    EXPECT_FALSE(facts({SumsKind::none, 1, 0, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::none, 0, 1, 0, 0}));
    EXPECT_FALSE(facts({SumsKind::none, 0, 0, 1, 1}));
    EXPECT_FALSE(facts({static_cast<SumsKind>(3), 0, 0, 0, 0}));
}

TEST(Directory, SumsNeedWhatTheyGoBy) {
    const SumsFacts place{SumsKind::place, 0, 1, 0, 0};
    const SumsFacts ids{SumsKind::ids, 0, 1, 3, 4};
    EXPECT_FALSE(decodes([&](FieldMetadata& f) {
        f.sums = place;
        f.global_shape.clear();
        f.global_offset.clear();
    }));
    EXPECT_FALSE(decodes([&](FieldMetadata& f) {
        f.sums = ids;
        f.key.clear();
    }));
    EXPECT_FALSE(decodes([&](FieldMetadata& f) {
        f.sums = ids;
        f.shape.clear();
        f.global_shape.clear();
        f.global_offset.clear();
    })) << "one item has no rows";
    for (const SumsFacts& sums : {place, ids}) {
        EXPECT_FALSE(decodes([&](FieldMetadata& f) {
            f.sums = sums;
            f.settings.kind = DigestKind::published;
            f.settings.rule = {};
        }));
    }
    EXPECT_TRUE(decodes([](FieldMetadata& f) {
        f.settings.kind = DigestKind::published;
        f.settings.rule = {};
    })) << "a key without sums";
}

// A bucket could else prove a row that lies in another, too.
TEST(Directory, RowsByIdLieInOneBucket) {
    const auto wide = [](std::uint64_t width, std::uint8_t height) {
        return decodes([&](FieldMetadata& f) {  // chunks of 4096 scalars
            f.shape = {50, width};
            f.global_shape.clear();
            f.global_offset.clear();
            f.sums = {SumsKind::ids, height, 1, 3, 4};
        });
    };
    EXPECT_TRUE(wide(2048, 0));  // of two scalars each
    EXPECT_FALSE(wide(2049, 0));
    EXPECT_TRUE(wide(2049, 1));
    EXPECT_FALSE(wide(5000, 1));
    EXPECT_TRUE(wide(131072, 6));
    EXPECT_FALSE(wide(131073, 6));
    EXPECT_FALSE(wide(1ULL << 48, 6));
    EXPECT_FALSE(decodes([](FieldMetadata& f) {
        f.shape = {0, 1ULL << 60};
        f.global_shape.clear();
        f.global_offset.clear();
        f.sums = {SumsKind::ids, 0, 1, 3, 4};
    }));
}

TEST(Directory, AKeyOfAnyLengthIsKeptOrRefused) {
    EXPECT_TRUE(decodes([](FieldMetadata& f) { f.key = std::string(1 << 16, 'k'); }));
    EXPECT_FALSE(decodes([](FieldMetadata& f) { f.key = std::string((1 << 16) + 1, 'k'); }));
}

// Puts another number into the header, with a checksum that is right.
Bytes with_header(Bytes bytes, std::size_t at, std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
        bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
    const std::uint64_t sum = xxh3(std::span(bytes).first(kHeaderBytes - 8));
    for (std::size_t i = 0; i < 8; ++i)
        bytes[kHeaderBytes - 8 + i] = static_cast<std::byte>(sum >> (8 * i));
    return bytes;
}

TEST(Directory, NumbersByTheirBitsNeedVersion3AndASuitableType) {
    const auto exact = [](DType dtype) {
        return [dtype](FieldMetadata& field) {
            const CellRule rule = *cell_rule({0, 0}, 0, DType::f32);
            field = make_field("x", dtype, {50, 4}, {0, 0}, 0);
            field.settings.rule = rule;
        };
    };
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::c64}) {
        EXPECT_TRUE(decodes(exact(dtype), 3));
        EXPECT_FALSE(decodes(exact(dtype), 2));
        EXPECT_FALSE(decodes(exact(dtype), 1));
    }
    for (const DType dtype : {DType::f64, DType::c128, DType::i8, DType::i32, DType::u64, DType::boolean})
        EXPECT_FALSE(decodes(exact(dtype), 3));
    const auto tokens = [](FieldMetadata& field) {
        field = make_field("x", DType::f32, {50, 4}, {0, 0}, 0);
        field.settings.rule.kind = CellKind::tokens;
    };
    EXPECT_TRUE(decodes(tokens, 2));
    EXPECT_TRUE(decodes(tokens, 3));
    EXPECT_TRUE(decodes(tokens, 4));
}

TEST(Directory, WordsAndIntegersNeedVersion4AndASuitableType) {
    for (const DType dtype :
         {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::i16, DType::i32, DType::i64,
          DType::u8, DType::u16, DType::u32, DType::u64, DType::boolean, DType::c64, DType::c128}) {
        for (const CellKind kind : {CellKind::binary32, CellKind::words, CellKind::integers}) {
            const auto exact = [&](FieldMetadata& field) {
                field = make_field("x", dtype, {50, 4}, {0, 0}, 0);
                field.settings.rule = {};
                field.settings.rule.kind = kind;
            };
            const bool fits = exact_kind(scalar_type(dtype)) == kind;
            EXPECT_EQ(decodes(exact, 4), fits) << dtype_name(dtype) << ' ' << static_cast<int>(kind);
            EXPECT_EQ(decodes(exact, 3), fits && kind == CellKind::binary32) << dtype_name(dtype);
        }
        const auto beyond = [&](FieldMetadata& field) {
            field = make_field("x", dtype, {50, 4}, {0, 0}, 0);
            field.settings.rule.kind = static_cast<CellKind>(6);
        };
        EXPECT_FALSE(decodes(beyond, 4));
    }
}

TEST(Header, NewerVersionIsUnsupportedAndSaysWhatToDo) {
    const Bytes good = encode_directory({}, 4096);
    const auto newer = decode_header(with_header(good, 8, kMetadataVersion + 1, 4), 4096);
    ASSERT_FALSE(newer.ok());
    EXPECT_EQ(newer.error().code, ErrorCode::unsupported);
    EXPECT_NE(newer.error().message.find("upgrade twinrun"), std::string::npos);
    const auto zero = decode_header(with_header(good, 8, 0, 4), 4096);
    ASSERT_FALSE(zero.ok());
    EXPECT_EQ(zero.error().code, ErrorCode::damaged);
}

TEST(Header, HostileSizesAreRefused) {
    const Bytes good = encode_directory({}, 4096);
    EXPECT_FALSE(
        decode_header(with_header(good, 24, std::numeric_limits<std::uint64_t>::max(), 8), 4096).ok());
    EXPECT_FALSE(decode_header(with_header(good, 24, 4096 - 63, 8), 4096).ok());
    EXPECT_FALSE(
        decode_header(with_header(with_header(good, 16, 1ULL << 62, 8), 24, kLargestDirectory + 1, 8),
                      1ULL << 62)
            .ok());
    EXPECT_FALSE(decode_header(with_header(good, 16, 4095, 8), 4096).ok());
    EXPECT_TRUE(decode_header(with_header(good, 24, 4096 - 64, 8), 4096).ok());
}

TEST(Header, ReservedBytesMayHoldWhatALaterWriterPutsThere) {
    const Bytes good = encode_directory({}, 4096);
    for (const std::size_t at : {12U, 40U, 48U})
        EXPECT_TRUE(decode_header(with_header(good, at, 1, 4), 4096).ok());
}

TEST(Directory, HostileCountsAllocateNothing) {
    Encoder out;
    out.put(std::numeric_limits<std::uint32_t>::max());
    out.put(std::numeric_limits<std::uint32_t>::max());
    for (int i = 0; i < 40; ++i)
        out.put(std::uint64_t{0});
    for (const std::uint32_t version : {1U, 2U, 3U, 4U})
        EXPECT_FALSE(decode_directory(out.bytes(), kNoLimit, version).ok());
}

// The directory's arithmetic beyond 2^32 elements, where no test can have the data.
TEST(Directory, HoldsForFieldsBeyondFourGigaElements) {
    std::mt19937_64 random(test_seed(4));
    for (const auto& [dtype, n] : std::vector<std::pair<DType, std::uint64_t>>{{DType::u8, (1ULL << 58)},
                                                                               {DType::f32, (1ULL << 33) + 1},
                                                                               {DType::f64, 1ULL << 55},
                                                                               {DType::c128, 1ULL << 54}}) {
        for (const std::uint32_t chunk : {4096U, 1U << 20}) {
            Directory d;
            d.data_files.push_back({"x", {n * item_bytes(dtype), 0}});
            d.fields.push_back(make_field("large", dtype, {1, n}, {1e-3, 0}, 4, DigestKind::linear, chunk));
            FieldMetadata& field = d.fields.back();
            field.extents.push_back({0, 1ULL << 40, item_bytes(dtype), n});
            const std::uint64_t bytes = n * item_bytes(dtype);
            EXPECT_EQ(field.chunks(), bytes / chunk + (bytes % chunk != 0));
            EXPECT_EQ(field.section_bytes(Section::fine), field.chunks() * 8);
            EXPECT_EQ(field.section_bytes(Section::residues),
                      divide_up(n * scalars_per_item(dtype), 128) * 64);  // whole blocks fill their lines
            EXPECT_EQ(field.section_bytes(Section::data_sums), divide_up(bytes, 1 << 20) * 8);
            place_sections(d, random);
            const Bytes encoded = encode_directory(d, kNoLimit);
            const auto decoded = decode(encoded, kNoLimit);
            ASSERT_TRUE(decoded.ok()) << decoded.error().message;
            EXPECT_EQ(decoded->fields[0].chunks(), field.chunks());
        }
    }
    Directory beyond;
    beyond.fields.push_back(make_field("beyond", DType::u8, {(1ULL << 58) + 1}, {}, 0));
    EXPECT_FALSE(decode(encode_directory(beyond, kNoLimit), kNoLimit).ok());
    beyond.fields[0].shape = {1ULL << 32, 1ULL << 32, 1ULL << 32};
    EXPECT_FALSE(decode(encode_directory(beyond, kNoLimit), kNoLimit).ok());
}

TEST(Directory, LocalArrayMustLieInTheGlobalOne) {
    std::mt19937_64 random(test_seed(5));
    const auto decodes = [&](std::vector<std::uint64_t> shape, std::vector<std::uint64_t> global,
                             std::vector<std::uint64_t> offset) {
        Directory d;
        d.fields.push_back(make_field("x", DType::f32, std::move(shape), {1, 0}, 4));
        d.fields[0].global_shape = std::move(global);
        d.fields[0].global_offset = std::move(offset);
        place_sections(d, random);
        return decode(encode_directory(d, kNoLimit), kNoLimit).ok();
    };
    EXPECT_TRUE(decodes({4, 5}, {8, 5}, {4, 0}));
    EXPECT_FALSE(decodes({4, 5}, {8, 5}, {5, 0}));
    EXPECT_FALSE(decodes({4, 5}, {8, 5}, {std::numeric_limits<std::uint64_t>::max(), 0}));
    EXPECT_FALSE(decodes({4, 5}, {8}, {4}));
}

TEST(Directory, TwoFieldsOfOneNameAreRefused) {
    std::mt19937_64 random(test_seed(7));
    Directory d;
    d.fields.push_back(make_field("x", DType::f32, {9}, {1, 0}, 4));
    d.fields.push_back(make_field("x", DType::f64, {9}, {1, 0}, 4));
    place_sections(d, random);
    const auto decoded = decode(encode_directory(d, kNoLimit), kNoLimit);
    ASSERT_FALSE(decoded.ok());
    EXPECT_NE(decoded.error().message.find("two fields are called 'x'"), std::string::npos);
}

TEST(Directory, PublishedDigestsNeedAToleranceToo) {
    std::mt19937_64 random(test_seed(6));
    for (const Tolerance& bad : {Tolerance{-1, 0}, Tolerance{std::nan(""), 0}, Tolerance{1, 0.5}}) {
        Directory d;
        d.fields.push_back(make_field("x", DType::f32, {9}, {1, 0}, 0, DigestKind::published));
        d.fields[0].settings.tolerance = bad;
        place_sections(d, random);
        EXPECT_FALSE(decode(encode_directory(d, kNoLimit), kNoLimit).ok());
    }
}

}  // namespace
}  // namespace twinrun
