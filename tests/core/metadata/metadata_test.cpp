#include "metadata/metadata.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "digest/field61.hpp"
#include "support/faulty_file_system.hpp"
#include "support/seed.hpp"
#include "tree/build.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

class Folder {
   public:
    Folder() {
        std::string name = (fs::temp_directory_path() / "twinrun-metadata-XXXXXX").string();
        path_ = ::mkdtemp(name.data());
    }
    ~Folder() { fs::remove_all(path_); }
    [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
    [[nodiscard]] std::size_t files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
    }

   private:
    fs::path path_;
};

Bytes slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    const std::string text(std::istreambuf_iterator<char>(file), {});
    Bytes bytes(text.size());
    std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
    return bytes;
}

void spill(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good()) << path;
}

FieldMetadata make_field(const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
                         Tolerance tolerance, unsigned bits, DigestKind kind = DigestKind::linear,
                         std::uint32_t chunk = kSmallestChunk) {
    FieldMetadata field;
    field.name = name;
    field.dtype = dtype;
    field.shape = std::move(shape);
    field.settings.tolerance = tolerance;
    field.settings.kind = kind;
    field.settings.chunk_bytes = chunk;
    if (kind == DigestKind::linear) field.settings.rule = *cell_rule(tolerance, bits).operator->();
    return field;
}

// Sections of a field from its items, dense and native.
std::array<Bytes, kSections> sections_of(FieldMetadata& field, std::span<const std::byte> items) {
    std::array<Bytes, kSections> sections;
    const auto words = [](const std::vector<std::uint64_t>& from) {
        const auto raw = std::as_bytes(std::span(from));
        return Bytes(raw.begin(), raw.end());
    };
    std::vector<ChunkDigest> digests(field.chunks());
    sections[2].resize(field.section_bytes(Section::residues));
    Digester digester(field.settings, scalar_type(field.dtype));
    ElementView view = dense_view(field.dtype, items.data());
    view.swap = field.byte_order == ByteOrder::big;
    field.counts = {};
    digester.chunks(view, 0, field.scalars(), digests.data(), sections[2].data(), &field.counts);
    std::vector<std::uint64_t> leaves, fine, sums;
    for (const ChunkDigest& d : digests) {
        if (field.settings.kind == DigestKind::published) leaves.push_back(d.fine);
        leaves.push_back(d.coarse);
        if (field.section_bytes(Section::fine) != 0) fine.push_back(d.fine);
    }
    for (std::size_t at = 0; at < items.size(); at += kDataSumBytes) {
        sums.push_back(xxh3(items.subspan(at, std::min(kDataSumBytes, items.size() - at))));
    }
    sections[0] = words(build_tree(field.settings.kind, field.chunking().blocks_per_chunk, leaves));
    sections[1] = words(fine);
    sections[3] = words(sums);
    return sections;
}

Bytes random_items(const FieldMetadata& field, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Bytes items(field.data_bytes());
    for (auto& b : items)
        b = static_cast<std::byte>(random());
    return items;
}

struct Written {
    Directory directory;
    std::vector<std::array<Bytes, kSections>> sections;
    struct Sums {
        SumsFacts facts;
        std::vector<PartialSum> sums;
    };
    std::map<std::size_t, Sums> sums;  // by field: what write_sums() is told

    // The directory that a reader finds.
    [[nodiscard]] Directory read_back() const {
        Directory d = directory;
        for (const FieldMetadata& field : d.fields) {
            if (field.partial()) d.version = 2;
        }
        for (const auto& [f, s] : sums)
            d.fields[f].sums = s.facts;
        return d;
    }
};

Bytes bytes_of(std::span<const PartialSum> sums) {
    Encoder out;
    for (const PartialSum& sum : sums) {
        out.put(sum.bucket);
        out.put(sum.coarse);
        out.put(sum.fine);
    }
    return out.bytes();
}

void give_sums(Written& content, std::size_t field, SumsFacts facts, std::vector<PartialSum> sums) {
    facts.buckets = sums.size();
    content.sections[field][4] = bytes_of(sums);
    content.sums[field] = {facts, std::move(sums)};
}

std::vector<PartialSum> random_sums(std::size_t count, std::uint64_t most, std::mt19937_64& random) {
    std::vector<PartialSum> sums(count);
    const std::uint64_t step = most / (count + 1);
    for (std::size_t i = 0; i < count; ++i)
        sums[i] = {i * step + random() % step, random() % kPrime, random() % kPrime};
    return sums;
}

// Fields with data, a 0-d one, and an empty one; parts of something larger, with sums and without.
Written small_content() {
    Written content;
    Directory& d = content.directory;
    d.step = -7;
    d.rank = 4000000000U;
    d.data_files.push_back({"data.bin", {123, 456}});
    d.fields.push_back(make_field("pressure", DType::f32, {3, 700}, {1e-3, 0}, 4));
    d.fields.back().extents = {{0, 10, 4, 2000}, {0, 9000, 12, 100}};
    d.fields.push_back(make_field("ids", DType::i64, {1500}, {}, 0, DigestKind::linear, 8192));
    d.fields.push_back(make_field("time", DType::f64, {}, {1e-9, 1e-9}, 2));
    d.fields.push_back(make_field("nothing", DType::c128, {5, 0}, {1e-9, 0}, 4));
    d.fields.push_back(make_field("hash", DType::bf16, {9000}, {0.5, 0}, 0, DigestKind::published));
    d.fields.back().global_shape = {27000};
    d.fields.back().global_offset = {18000};
    d.fields.back().format = "zarr";
    d.fields.back().order = ArrayOrder::column_major;
    d.fields.back().byte_order = ByteOrder::big;
    d.fields.push_back(make_field("part", DType::f32, {40, 25}, {1e-3, 0}, 2));
    d.fields.back().global_shape = {80, 50};
    d.fields.back().global_offset = {3, 7};
    d.fields.push_back(make_field("rows", DType::f64, {900, 3}, {1e-6, 0}, 4));
    d.fields.back().key = "ids";
    d.fields.push_back(make_field("hollow", DType::u16, {0, 4}, {1, 0}, 4));
    d.fields.back().global_shape = {8, 8};
    d.fields.back().global_offset = {8, 4};
    for (FieldMetadata& field : d.fields) {
        content.sections.push_back(sections_of(field, random_items(field, content.sections.size() + 1)));
        field.largest_sampled = 2.5;
    }
    std::mt19937_64 random(test_seed(3));
    give_sums(content, 5, {SumsKind::place, 2, 0, 0, 0}, random_sums(3, 1ULL << 50, random));
    give_sums(content, 6, {SumsKind::ids, 0, 0, 5, 1ULL << 40},
              random_sums(500, 1ULL << 50, random));  // three pages
    give_sums(content, 7, {SumsKind::place, 0, 0, 0, 0}, {});
    return content;
}

Result<> write_sections(MetadataWriter& writer, const Written& content) {
    for (std::size_t f = content.sections.size(); f-- > 0;) {  // any order
        for (std::size_t s = 0; s < 4; ++s) {
            TWR_CHECK(writer.write(f, static_cast<Section>(s), 0, content.sections[f][s]));
        }
    }
    for (const auto& [f, s] : content.sums)
        TWR_CHECK(writer.write_sums(f, s.facts, s.sums));
    return success();
}

Result<> write_file(FileSystem& system, const std::string& path, const Written& content) {
    TWR_TRY(auto writer, MetadataWriter::create(system, path, content.directory));
    writer->may_replace();
    TWR_CHECK(write_sections(*writer, content));
    return writer->commit();
}

// Opens a file and reads all of it. The error, if there is one.
Result<> read_everything(const std::string& path) {
    TWR_TRY(const auto file, MetadataFile::open(path));
    for (std::size_t f = 0; f < file->directory().fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            Bytes content(file->directory().fields[f].place(section).length);
            TWR_CHECK(file->read(f, section, 0, content));
            TWR_TRY(const auto sums, file->page_sums(f, section));
            static_cast<void>(sums);
        }
        TWR_TRY(const auto sums, file->sums(f));
        static_cast<void>(sums);
    }
    return success();
}

void expect_same(const Directory& a, const Directory& b) {
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.rank, b.rank);
    ASSERT_EQ(a.data_files.size(), b.data_files.size());
    for (std::size_t i = 0; i < a.data_files.size(); ++i) {
        EXPECT_EQ(a.data_files[i].path, b.data_files[i].path);
        EXPECT_EQ(a.data_files[i].stamp, b.data_files[i].stamp);
    }
    ASSERT_EQ(a.fields.size(), b.fields.size());
    for (std::size_t i = 0; i < a.fields.size(); ++i) {
        const FieldMetadata& x = a.fields[i];
        const FieldMetadata& y = b.fields[i];
        EXPECT_EQ(x.name, y.name);
        EXPECT_EQ(x.dtype, y.dtype);
        EXPECT_EQ(x.byte_order, y.byte_order);
        EXPECT_EQ(x.order, y.order);
        EXPECT_EQ(x.shape, y.shape);
        EXPECT_EQ(x.global_shape, y.global_shape);
        EXPECT_EQ(x.global_offset, y.global_offset);
        EXPECT_EQ(x.settings.tolerance, y.settings.tolerance);
        EXPECT_EQ(x.settings.rule, y.settings.rule);
        EXPECT_EQ(x.settings.kind, y.settings.kind);
        EXPECT_EQ(x.settings.chunk_bytes, y.settings.chunk_bytes);
        EXPECT_EQ(x.counts.nans, y.counts.nans);
        EXPECT_EQ(x.counts.tokens, y.counts.tokens);
        EXPECT_EQ(x.largest_sampled, y.largest_sampled);
        EXPECT_EQ(x.extents, y.extents);
        EXPECT_EQ(x.format, y.format);
        EXPECT_EQ(x.key, y.key);
        EXPECT_EQ(x.sums, y.sums);
    }
}

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
    d.version = 1 + random() % 2;
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
        if (d.version == 2) {
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
        // Of the other version they are anything.
        const std::uint32_t version = random() % 8 == 0 ? 3 - made.version : made.version;
        const auto decoded = decode_directory(body, kNoLimit, version);
        if (!decoded.ok()) continue;
        accepted += version == 2 && !decoded->fields.empty();
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
    for (const std::uint32_t version : {1U, 2U})
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

// ---- whole files ----

TEST(MetadataFile, RoundTrip) {
    const Folder folder;
    const Written content = small_content();
    const std::string path = folder / "x.twm";
    const auto written = write_file(posix_file_system(), path, content);
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_EQ(folder.files(), 1U);
    auto opened = MetadataFile::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    MetadataFile& file = **opened;
    expect_same(content.read_back(), file.directory());
    EXPECT_EQ(file.find("time"), 2U);
    EXPECT_EQ(file.find("no such field"), std::nullopt);
    EXPECT_EQ(file.data_path(0), folder / "data.bin");
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const Bytes& expected = content.sections[f][s];
            ASSERT_EQ(file.directory().fields[f].place(section).length, expected.size());
            // For direct reads; shorter ones share pages.
            const std::size_t alignment = expected.size() >= kPageBytes ? kPageBytes : 8;
            EXPECT_EQ(file.directory().fields[f].place(section).offset % alignment, 0U);
            Bytes all(expected.size());
            ASSERT_TRUE(file.read(f, section, 0, all).ok());
            EXPECT_EQ(all, expected) << f << ", " << s;
            // Any part.
            for (std::size_t at = 0; at < expected.size(); at += 1 + expected.size() / 7) {
                Bytes part(std::min<std::size_t>(expected.size() - at, 1 + expected.size() / 3));
                ASSERT_TRUE(file.read(f, section, at, part).ok());
                EXPECT_TRUE(
                    std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(at)));
            }
            Bytes beyond(expected.size() + 1);
            EXPECT_FALSE(file.read(f, section, 0, beyond).ok());
        }
        const auto sums = file.sums(f);
        ASSERT_TRUE(sums.ok()) << sums.error().message;
        EXPECT_EQ(*sums.operator->(),
                  content.sums.contains(f) ? content.sums.at(f).sums : std::vector<PartialSum>());
        // Nodes by their positions.
        const TreeLayout layout = file.directory().fields[f].tree();
        if (layout.nodes() == 0) continue;
        MetadataNodes nodes(file, f);
        std::vector<std::uint64_t> words;
        const std::vector<Range> ranges{{0, 1}, {layout.nodes() - 1, layout.nodes()}};
        ASSERT_TRUE(nodes.read(std::span(ranges).first(layout.nodes() > 1 ? 2 : 1), words).ok());
        const std::size_t node = node_words(file.directory().fields[f].settings.kind) * 8;
        EXPECT_EQ(std::memcmp(words.data(), content.sections[f][0].data(), node), 0);
        EXPECT_EQ(std::memcmp(words.data() + words.size() - node / 8,
                              content.sections[f][0].data() + content.sections[f][0].size() - node, node),
                  0);
    }
    EXPECT_GT(file.bytes_read(), 0U);
}

TEST(MetadataFile, OfNoFieldsAndOfEmptyFieldsIsReadable) {
    const Folder folder;
    Written content;
    ASSERT_TRUE(write_file(posix_file_system(), folder / "none.twm", content).ok());
    EXPECT_TRUE(read_everything(folder / "none.twm").ok());
    content.directory.fields.push_back(make_field("empty", DType::f32, {0}, {1e-3, 0}, 4));
    content.directory.fields.push_back(make_field("scalar", DType::f16, {}, {1e-3, 0}, 4));
    for (auto& field : content.directory.fields)
        content.sections.push_back(sections_of(field, random_items(field, 1)));
    ASSERT_TRUE(write_file(posix_file_system(), folder / "some.twm", content).ok());
    auto opened = MetadataFile::open(folder / "some.twm");
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ((*opened)->directory().fields[0].chunks(), 0U);
    EXPECT_EQ((*opened)->directory().fields[1].chunks(), 1U);
    EXPECT_TRUE(read_everything(folder / "some.twm").ok());
}

// One field; in version 2 with sums.
Written one_field(std::uint64_t items, std::uint32_t version) {
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {items}, {1e-3, 0}, 4));
    FieldMetadata& field = content.directory.fields[0];
    if (version == 2) field.key = "id";
    content.sections.push_back(sections_of(field, random_items(field, 1)));
    std::mt19937_64 random(test_seed(5));
    if (version == 2) {
        give_sums(content, 0, {SumsKind::ids, 1, 0, 3, 999},
                  random_sums(std::min<std::size_t>(items, 180), 1ULL << 40, random));
    }
    return content;
}

class MetadataFileOf : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Version, MetadataFileOf, ::testing::Values(1U, 2U),
                         ::testing::PrintToStringParamName());

TEST_P(MetadataFileOf, TruncatedAtEveryLengthIsRefused) {
    const Folder folder;
    const Written content = one_field(3, GetParam());
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    ASSERT_TRUE(read_everything(path).ok());
    EXPECT_EQ(MetadataFile::open(path).value()->directory().version, GetParam());
    const auto size = fs::file_size(path);
    for (std::uintmax_t length = size; length-- > 0;) {
        fs::resize_file(path, length);
        const auto result = MetadataFile::open(path);
        ASSERT_FALSE(result.ok()) << length;
        ASSERT_EQ(result.error().code, ErrorCode::damaged) << length;
        ASSERT_NE(result.error().message.find(path), std::string::npos);
    }
}

// Every byte of the file is either covered by a checksum that is checked before use, or is padding (spec/metadata.md).
TEST_P(MetadataFileOf, EveryFlippedBitIsSeenOrIsInPadding) {
    const Folder folder;
    const Written content = one_field(1100, GetParam());
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used;
    {
        auto file = MetadataFile::open(path);
        ASSERT_TRUE(file.ok());
        used.emplace_back(0, encode_directory((*file)->directory(), 0).size());
        for (const SectionPlace& place : (*file)->directory().fields[0].sections) {
            used.emplace_back(place.offset, place.offset + place.length);
            used.emplace_back(place.sums_offset, place.sums_offset + divide_up(place.length, kPageBytes) * 8);
        }
    }
    const Bytes good = slurp(path);
    std::size_t covered = 0;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    for (std::size_t at = 0; at < good.size(); ++at) {
        const bool is_used =
            std::any_of(used.begin(), used.end(), [&](auto r) { return r.first <= at && at < r.second; });
        if (!is_used) {
            ASSERT_EQ(good[at], std::byte{0}) << "padding is zero";
            if (at % 97 != 0) continue;
        }
        covered += is_used;
        for (unsigned bit = 0; bit < 8; ++bit) {
            if (is_used && at > 2000 && bit != at % 8)
                continue;  // inside sections one bit a byte says enough
            const char flipped = static_cast<char>(good[at] ^ static_cast<std::byte>(1U << bit));
            file.seekp(static_cast<std::streamoff>(at));
            file.write(&flipped, 1).flush();
            const auto result = read_everything(path);
            ASSERT_EQ(result.ok(), !is_used) << "byte " << at << ", bit " << bit;
            if (is_used) {
                ASSERT_EQ(result.error().code, ErrorCode::damaged) << result.error().message;
            }
        }
        const char original = static_cast<char>(good[at]);
        file.seekp(static_cast<std::streamoff>(at));
        file.write(&original, 1).flush();
    }
    EXPECT_GT(covered, GetParam() == 1 ? 900U : 900U + 180 * kPartialSumBytes);
}

TEST(MetadataFile, SaysWhetherItsDataChanged) {
    const Folder folder;
    Written content;
    content.directory.data_files.push_back({"data.bin", {}});
    content.directory.fields.push_back(make_field("x", DType::u8, {100}, {}, 0));
    content.directory.fields[0].extents.push_back({0, 0, 1, 100});
    content.directory.fields[0].format = "raw";
    const Bytes items = random_items(content.directory.fields[0], 1);
    spill(folder / "data.bin", items);
    content.sections.push_back(sections_of(content.directory.fields[0], items));
    content.directory.data_files[0].stamp = *stamp_of(folder / "data.bin").operator->();
    const std::string path = folder / "data.bin.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    const auto check = [&]() -> Result<> {
        TWR_TRY(const auto file, MetadataFile::open(path));
        return file->check_data_files();
    };
    EXPECT_TRUE(check().ok());

    const auto written = fs::last_write_time(path);
    fs::last_write_time(folder / "data.bin", written - std::chrono::hours(1));
    EXPECT_TRUE(check().ok()) << "a copy with another, older time";
    fs::last_write_time(folder / "data.bin", written + std::chrono::hours(1));
    EXPECT_EQ(check().error().code, ErrorCode::stale);

    fs::resize_file(folder / "data.bin", 99);
    const auto truncated = check();
    EXPECT_EQ(truncated.error().code, ErrorCode::damaged);
    EXPECT_NE(truncated.error().message.find("truncated"), std::string::npos) << truncated.error().message;
    fs::resize_file(folder / "data.bin", 101);
    EXPECT_EQ(check().error().code, ErrorCode::stale);
    EXPECT_NE(check().error().message.find("index it again"), std::string::npos);

    // Data of a history has no format. To index it again would take damage for its data.
    content.directory.fields[0].format.clear();
    ASSERT_TRUE(write_file(posix_file_system(), path, content).ok());
    const auto grown = check();
    EXPECT_EQ(grown.error().code, ErrorCode::damaged);
    EXPECT_NE(grown.error().message.find("restore the history"), std::string::npos) << grown.error().message;
    fs::resize_file(folder / "data.bin", 99);
    EXPECT_NE(check().error().message.find("restore the history"), std::string::npos);
    fs::remove(folder / "data.bin");
    EXPECT_EQ(check().error().code, ErrorCode::not_found);
}

TEST(MetadataFile, MissingIsNotFound) {
    const Folder folder;
    EXPECT_EQ(MetadataFile::open(folder / "none.twm").error().code, ErrorCode::not_found);
}

// ---- the writer ----

TEST(MetadataWriter, LeavesNothingWithoutACommit) {
    const Folder folder;
    const Written content = small_content();
    {
        auto writer = MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(write_sections(**writer, content).ok());
    }
    EXPECT_EQ(folder.files(), 0U);
}

TEST(MetadataWriter, KeepsTheOldFileUntilTheNewOneIsWhole) {
    const Folder folder;
    const std::string path = folder / "x.twm";
    ASSERT_TRUE(write_file(posix_file_system(), path, {}).ok());
    const Bytes before = slurp(path);
    {
        const Written content = small_content();
        auto writer = MetadataWriter::create(posix_file_system(), path, content.directory);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(write_sections(**writer, content).ok());
        EXPECT_EQ(slurp(path), before);
    }
    EXPECT_EQ(slurp(path), before);
    EXPECT_EQ(folder.files(), 1U);
    ASSERT_TRUE(write_file(posix_file_system(), path, small_content()).ok());
    EXPECT_TRUE(read_everything(path).ok());
    EXPECT_EQ(folder.files(), 1U);
}

// Beyond the size of files that are written by one call.
Written large_content() {
    Written content = small_content();
    content.directory.fields.push_back(make_field("large", DType::f32, {1 << 22}, {1e-3, 0}, 4));
    content.sections.push_back(
        sections_of(content.directory.fields.back(), random_items(content.directory.fields.back(), 9)));
    return content;
}

class MetadataWriterSizes : public ::testing::TestWithParam<Written (*)()> {};
INSTANTIATE_TEST_SUITE_P(MetadataWriter, MetadataWriterSizes,
                         ::testing::Values(&small_content, &large_content),
                         [](const auto& each) { return each.index == 0 ? "small" : "large"; });

TEST_P(MetadataWriterSizes, RoundTrip) {
    const Folder folder;
    const Written content = GetParam()();
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    EXPECT_EQ(fs::file_size(folder / "x.twm") > (1 << 20), GetParam() == &large_content);
    auto file = MetadataFile::open(folder / "x.twm");
    ASSERT_TRUE(file.ok()) << file.error().message;
    for (std::size_t f = 0; f < content.sections.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            Bytes all(content.sections[f][s].size());
            ASSERT_TRUE((*file)->read(f, static_cast<Section>(s), 0, all).ok());
            EXPECT_EQ(all, content.sections[f][s]) << f << ", " << s;
        }
    }
}

TEST_P(MetadataWriterSizes, LeavesNothingAfterAnErrorAtAnyOperation) {
    const Written content = GetParam()();
    std::size_t operations = 0;
    {
        const Folder folder;
        testing::FaultyFileSystem system;
        ASSERT_TRUE(write_file(system, folder / "x.twm", content).ok());
        operations = system.operations();
    }
    // create, write, sync, close, rename, sync_folder; a large file's sections are written one by one.
    ASSERT_GE(operations, GetParam() == &small_content ? 6U : 20U);
    for (std::size_t at = 1; at <= operations; ++at) {
        const Folder folder;
        testing::FaultyFileSystem system;
        testing::Fault fault;
        fault.at = at;
        fault.error = {ErrorCode::no_space, "full"};
        fault.written_first = 5;
        system.inject(fault);
        const auto result = write_file(system, folder / "x.twm", content);
        ASSERT_FALSE(result.ok()) << at;
        EXPECT_EQ(result.error().code, ErrorCode::no_space);
        if (system.log().back().starts_with("sync_folder")) {  // it is whole by then, if perhaps not for long
            EXPECT_TRUE(read_everything(folder / "x.twm").ok());
        } else {
            EXPECT_EQ(folder.files(), 0U) << at << ": " << system.log().back();
        }
    }
}

TEST_P(MetadataWriterSizes, SurvivesAPowerCutAtAnyOperation) {
    const Written content = GetParam()();
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        for (std::size_t at = 1;; ++at) {
            const Folder folder;
            testing::FaultyFileSystem system;
            ASSERT_TRUE(write_file(system, folder / "x.twm", {}).ok());
            const Bytes before = slurp(folder / "x.twm");
            testing::Fault fault;
            fault.at = at;
            fault.dead_after = true;
            system.inject(fault);
            const bool committed = write_file(system, folder / "x.twm", content).ok();
            system.power_cut(seed);
            ASSERT_TRUE(read_everything(folder / "x.twm").ok()) << at;
            if (committed) {
                ASSERT_NE(slurp(folder / "x.twm"), before);
                break;
            }
        }
    }
}

TEST_P(MetadataWriterSizes, SumsComeBehindEverythingElse) {
    const Folder folder;
    const Written content = GetParam()();
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    const auto file = MetadataFile::open(folder / "x.twm").value();
    std::uint64_t end = 0;
    for (const FieldMetadata& field : file->directory().fields) {
        for (std::size_t s = 0; s < 4; ++s)
            end = std::max(
                {end, field.sections[s].offset + field.sections[s].length,
                 field.sections[s].sums_offset + divide_up(field.sections[s].length, kPageBytes) * 8});
    }
    for (const auto& [f, sums] : content.sums) {
        const SectionPlace& place = file->directory().fields[f].place(Section::sums);
        EXPECT_EQ(place.offset, round_up(end, kPageBytes));
        EXPECT_EQ(place.length, sums.sums.size() * kPartialSumBytes);
        EXPECT_EQ(place.sums_offset, place.offset + place.length);
        end = place.sums_offset + divide_up(place.length, kPageBytes) * 8;
    }
    EXPECT_EQ(fs::file_size(folder / "x.twm"), round_up(end, kPageBytes));
}

// As for a copy of metadata: how many buckets there are is known from the start.
TEST_P(MetadataWriterSizes, SumsMayBeLaidOutBeforehand) {
    const Folder folder;
    const Written content = GetParam()();
    {
        const auto writer =
            MetadataWriter::create(posix_file_system(), folder / "x.twm", content.read_back()).value();
        for (std::size_t f = 0; f < content.sections.size(); ++f) {
            for (std::size_t s = 0; s < kSections; ++s)
                ASSERT_TRUE(writer->write(f, static_cast<Section>(s), 0, content.sections[f][s]).ok());
        }
        EXPECT_FALSE(writer->write_sums(6, content.sums.at(6).facts, content.sums.at(6).sums).ok());
        ASSERT_TRUE(writer->commit().ok());
    }
    ASSERT_TRUE(read_everything(folder / "x.twm").ok());
    const auto file = MetadataFile::open(folder / "x.twm").value();
    expect_same(content.read_back(), file->directory());
    for (const auto& [f, sums] : content.sums)
        EXPECT_EQ(file->sums(f).value(), sums.sums);
}

TEST(MetadataWriter, RefusesSumsThatHaveNoPlace) {
    const Folder folder;
    Written content = one_field(100, 2);
    const auto [facts, sums] = content.sums.at(0);
    {
        const auto writer =
            MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory).value();
        EXPECT_FALSE(writer->write_sums(0, facts, std::span(sums).first(7)).ok());
        EXPECT_TRUE(writer->write_sums(0, facts, sums).ok());
        EXPECT_FALSE(writer->write_sums(0, facts, sums).ok()) << "twice";
    }
    content.directory.fields[0].key.clear();  // a whole array: a file of version 1
    const auto writer =
        MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory).value();
    EXPECT_FALSE(writer->write_sums(0, facts, sums).ok());
}

TEST(MetadataWriter, TakesTheLowestVersionThatHoldsItsFields) {
    const Folder folder;
    const auto version = [&](const std::function<void(FieldMetadata&)>& change) {
        Written content = one_field(100, 1);
        change(content.directory.fields[0]);
        EXPECT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
        return MetadataFile::open(folder / "x.twm").value()->directory().version;
    };
    EXPECT_EQ(version([](FieldMetadata&) {}), 1U);
    const auto place = [](FieldMetadata& f, std::uint64_t all) {
        f.global_shape = {all};
        f.global_offset = {0};
    };
    EXPECT_EQ(version([&](FieldMetadata& f) { place(f, 100); }), 1U) << "all of an array";
    EXPECT_EQ(version([&](FieldMetadata& f) { place(f, 101); }), 2U);
    EXPECT_EQ(version([](FieldMetadata& f) { f.key = "id"; }), 2U);
}

// Right checksums, wrong numbers: what would go wrong when they are added up is refused.
TEST(MetadataFile, ImpossibleSumsAreDamaged) {
    const Folder folder;
    const std::uint64_t most = kIndexLimit / 1024 / 2;  // 1024 scalars a chunk, two chunks a bucket
    const auto reads = [&](std::vector<PartialSum> sums) {
        Written content = one_field(100, 2);
        give_sums(content, 0, {SumsKind::ids, 1, 0, 3, 999}, std::move(sums));
        EXPECT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
        const auto file = MetadataFile::open(folder / "x.twm").value();
        const auto read = file->sums(0);
        if (read.ok()) return true;
        EXPECT_EQ(read.error().code, ErrorCode::damaged);
        EXPECT_NE(read.error().message.find(folder / "x.twm"), std::string::npos);
        EXPECT_NE(read.error().message.find("impossible sums of field 'x'"), std::string::npos);
        return false;
    };
    EXPECT_TRUE(reads({}));
    EXPECT_TRUE(reads({{0, 0, 0}, {1, kPrime - 1, kPrime - 1}, {most - 1, 1, 2}}));
    EXPECT_FALSE(reads({{0, 0, 0}, {most, 1, 2}}));
    EXPECT_FALSE(reads({{std::numeric_limits<std::uint64_t>::max(), 1, 2}}));
    EXPECT_FALSE(reads({{3, 0, 0}, {3, 1, 2}}));
    EXPECT_FALSE(reads({{4, 0, 0}, {3, 1, 2}}));
    EXPECT_FALSE(reads({{4, kPrime, 0}}));
    EXPECT_FALSE(reads({{4, 0, kPrime}}));
    EXPECT_FALSE(reads({{4, 0, 1}, {5, std::numeric_limits<std::uint64_t>::max(), 0}}));
}

// One by one, by the definition of spec/digest.md, section 7.
std::uint8_t residue_at(const Bytes& section, std::size_t scalar, unsigned bits, std::size_t block) {
    const std::size_t per_line = 512 / bits;
    const std::size_t lines = divide_up(block, per_line);
    const std::size_t j = scalar % block % per_line;
    const std::size_t line = scalar / block * lines + scalar % block / per_line;
    std::uint64_t word = 0;
    for (std::size_t k = 8; k-- > 0;)
        word = word << 8 | static_cast<std::uint64_t>(section[line * 64 + j % 8 * 8 + k]);
    return static_cast<std::uint8_t>(word >> (bits * (j / 8)) & ((1U << bits) - 1));
}

TEST(MetadataFile, ResiduesOneByOne) {
    std::mt19937_64 random(test_seed(6));
    for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::c64, DType::f64}) {
        const std::size_t block = 4096 / item_bytes(scalar_type(dtype));
        const std::size_t pair = scalars_per_item(dtype);
        for (const unsigned bits : {2U, 4U}) {
            for (const std::size_t scalars :
                 {pair, block - pair, block, 2 * block + 2 * pair, 5 * block + 130}) {
                const Folder folder;
                Written content;
                content.directory.fields.push_back(
                    make_field("x", dtype, {scalars / pair}, {0.5, 0}, bits, DigestKind::linear, 8192));
                FieldMetadata& field = content.directory.fields[0];
                content.sections.push_back(sections_of(field, random_items(field, scalars)));
                ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
                const auto file = MetadataFile::open(folder / "x.twm").value();
                for (int round = 0; round < 12; ++round) {
                    const std::uint64_t first = round == 0 ? 0 : random() % scalars;
                    const std::uint64_t count =
                        round < 2 ? scalars - first : random() % (scalars - first + 1);
                    std::vector<std::uint8_t> found(count, 0xFF);
                    ASSERT_TRUE(file->residues(0, first, found).ok());
                    for (std::uint64_t i = 0; i < count; ++i)
                        ASSERT_EQ(found[i], residue_at(content.sections[0][2], first + i, bits, block)) << i;
                }
                std::vector<std::uint8_t> two(2);
                EXPECT_FALSE(file->residues(0, scalars - 1, two).ok());
                EXPECT_FALSE(file->residues(0, std::numeric_limits<std::uint64_t>::max(), two).ok());
            }
        }
    }
    const Folder folder;
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {10}, {0.5, 0}, 0));
    content.sections.push_back(
        sections_of(content.directory.fields[0], random_items(content.directory.fields[0], 1)));
    ASSERT_TRUE(write_file(posix_file_system(), folder / "x.twm", content).ok());
    std::vector<std::uint8_t> one(1);
    EXPECT_FALSE(MetadataFile::open(folder / "x.twm").value()->residues(0, 0, one).ok()) << "it has none";
}

TEST(MetadataWriter, RefusesPartsThatDoNotFit) {
    const Folder folder;
    Written content = small_content();
    auto writer = MetadataWriter::create(posix_file_system(), folder / "x.twm", content.directory);
    ASSERT_TRUE(writer.ok());
    const Bytes& residues = content.sections[0][2];
    const std::span all(residues);
    EXPECT_FALSE((*writer)->write(0, Section::residues, 8, all.subspan(8)).ok());  // not at a page
    EXPECT_FALSE((*writer)->write(0, Section::residues, 0, all.first(100)).ok());  // half a page
    EXPECT_FALSE((*writer)->write(0, Section::residues, 4096, all).ok());          // past the end
    EXPECT_FALSE((*writer)->write(0, Section::residues, 0ULL - 4096, all.first(4096 % all.size())).ok());
    EXPECT_TRUE((*writer)->write(0, Section::residues, 0, all).ok());
}

// A directory that its own reader would refuse is found before the file takes the place of an older one.
TEST(MetadataWriter, DecodesWhatItIsAboutToWrite) {
    const Folder folder;
    Written content;
    content.directory.fields.push_back(make_field("x", DType::f32, {0}, {1, 0}, 4));
    content.directory.fields[0].settings.rule.widest += 1;
    content.sections.emplace_back();
    const auto result = write_file(posix_file_system(), folder / "x.twm", content);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::internal);
    EXPECT_EQ(folder.files(), 0U);

    // A name that grew after the layout would run into the first section.
    Written grown = small_content();
    auto writer = MetadataWriter::create(posix_file_system(), folder / "y.twm", grown.directory);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(write_sections(**writer, grown).ok());
    (*writer)->directory().fields[0].name = std::string(5000, 'x');
    EXPECT_FALSE((*writer)->commit().ok());
    (*writer).reset();
    EXPECT_EQ(folder.files(), 0U);
}

}  // namespace
}  // namespace twinrun
