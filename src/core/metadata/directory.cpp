// Header and directory of the metadata file, to and from bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

namespace {

// As PNG's: a byte that no text has, and line ends that a transfer in text mode would change.
constexpr std::size_t kLongestText = kLongestName;

Error damaged(const std::string& what) { return {ErrorCode::damaged, "damaged metadata: " + what}; }

void put_shape(Encoder& out, const std::vector<std::uint64_t>& shape) {
    for (const std::uint64_t n : shape)
        out.put(n);
}

// Sections of version 1.
constexpr std::size_t kFirstSections = 4;

void put_place(Encoder& out, const SectionPlace& place) {
    out.put(place.offset);
    out.put(place.length);
    out.put(place.sums_offset);
    out.put(place.sums_checksum);
}

SectionPlace get_place(Decoder& in) {
    SectionPlace place;
    place.offset = in.get<std::uint64_t>();
    place.length = in.get<std::uint64_t>();
    place.sums_offset = in.get<std::uint64_t>();
    place.sums_checksum = in.get<std::uint64_t>();
    return place;
}

void put_field(Encoder& out, const FieldMetadata& field, std::uint32_t version) {
    const CellRule& rule = field.settings.rule;
    out.put_text(field.name);
    out.put_text(field.format);
    out.put(static_cast<std::uint8_t>(field.dtype));
    out.put(static_cast<std::uint8_t>(field.byte_order));
    out.put(static_cast<std::uint8_t>(field.order));
    out.put(static_cast<std::uint8_t>(field.settings.kind));
    out.put(static_cast<std::uint8_t>(rule.kind));
    out.put(rule.residue_bits);
    out.put(rule.coarse_shift);
    out.put(static_cast<std::uint8_t>(field.global_shape.empty() ? 0 : 1));
    out.put_i32(rule.widest);
    out.put_i32(rule.fine_exponent);
    out.put_f64(rule.key_origin);
    out.put_f64(field.settings.tolerance.atol);
    out.put_f64(field.settings.tolerance.rtol);
    out.put(field.settings.chunk_bytes);
    out.put(static_cast<std::uint32_t>(field.shape.size()));
    put_shape(out, field.shape);
    put_shape(out, field.global_shape);
    put_shape(out, field.global_offset);
    out.put(field.counts.nans);
    out.put(field.counts.tokens);
    out.put_f64(field.largest_sampled);
    out.put(static_cast<std::uint32_t>(field.extents.size()));
    for (const Extent& e : field.extents) {
        out.put(e.file);
        out.put(e.offset);
        out.put(e.stride);
        out.put(e.count);
    }
    for (std::size_t s = 0; s < kFirstSections; ++s)
        put_place(out, field.sections[s]);
    if (version < 2) return;
    out.put_text(field.key);
    out.put(static_cast<std::uint8_t>(field.sums.kind));
    out.put(field.sums.height);
    out.put(std::uint8_t{0});
    out.put(std::uint8_t{0});
    out.put(field.sums.buckets);
    out.put(field.sums.smallest_id);
    out.put(field.sums.largest_id);
    put_place(out, field.place(Section::sums));
}

bool get_shape(Decoder& in, std::size_t dimensions, std::vector<std::uint64_t>& shape) {
    if (in.remaining() < dimensions * 8) return false;
    shape.resize(dimensions);
    for (auto& n : shape)
        n = in.get<std::uint64_t>();
    return true;
}

bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t file_bytes) {
    const auto end = checked_add(offset, length);
    return end && *end <= file_bytes;
}

// The rule must be the one that this build derives from the tolerance: digests made under another
// rule, whatever wrote them, would not prove what they seem to.
Result<> check_rule(const FieldMetadata& field) {
    const CellRule& rule = field.settings.rule;
    // Tokens were the only exact rule before version 3, and before version 4 of most types.
    const auto expected =
        rule.kind == CellKind::tokens
            ? cell_rule(field.settings.tolerance, rule.residue_bits)
            : cell_rule(field.settings.tolerance, rule.residue_bits, scalar_type(field.dtype));
    if (!expected) return damaged(expected.error().message);
    if (field.settings.kind == DigestKind::published) {
        if (field.settings.tolerance.rtol != 0)
            return damaged("a published digest with a relative tolerance");
        return rule == CellRule{} ? success() : Result<>(damaged("a published digest with cells"));
    }
    if (*expected.operator->() != rule || std::signbit(rule.key_origin)) {
        return damaged("cells that do not follow from the tolerance");
    }
    return success();
}

// The local array lies inside the global one.
bool placed_inside(const FieldMetadata& field) {
    for (std::size_t d = 0; d < field.global_shape.size(); ++d) {
        if (!inside(field.global_offset[d], field.shape[d], field.global_shape[d])) return false;
    }
    return true;
}

// head_bytes: header and directory, which no section may overlap.
Result<> check_places(const FieldMetadata& field, std::size_t sections, std::uint64_t head_bytes,
                      std::uint64_t file_bytes) {
    for (std::size_t s = 0; s < sections; ++s) {
        const SectionPlace& place = field.sections[s];
        const std::uint64_t needed = field.section_bytes(static_cast<Section>(s));
        if (place.length != needed && !(static_cast<Section>(s) == Section::data_sums && place.length == 0)) {
            return damaged("a section of field '" + field.name +
                           "' has another size than its settings imply");
        }
        const std::uint64_t sums = divide_up(place.length, kPageBytes) * 8;
        if (!inside(place.offset, place.length, file_bytes) || !inside(place.sums_offset, sums, file_bytes) ||
            place.offset % 8 != 0 || place.sums_offset % 8 != 0 || place.offset < head_bytes ||
            place.sums_offset < head_bytes) {
            return damaged("a section of field '" + field.name + "' lies outside its part of the file");
        }
    }
    return success();
}

// The facts about sums that version 2 adds.
Result<> get_sums(Decoder& in, FieldMetadata& field) {
    const auto impossible = [&] { return damaged("field '" + field.name + "' has impossible sums"); };
    field.key = in.get_text(kLongestText);
    const auto kind = in.get<std::uint8_t>();
    SumsFacts& sums = field.sums;
    sums.height = in.get<std::uint8_t>();
    static_cast<void>(in.get<std::uint8_t>());
    static_cast<void>(in.get<std::uint8_t>());
    sums.buckets = in.get<std::uint64_t>();
    sums.smallest_id = in.get<std::uint64_t>();
    sums.largest_id = in.get<std::uint64_t>();
    field.sections[static_cast<std::size_t>(Section::sums)] = get_place(in);
    if (in.failed()) return damaged("its directory ends too early");
    if (kind > 2 || sums.height > 63) return impossible();
    sums.kind = static_cast<SumsKind>(kind);
    if (sums.kind == SumsKind::none) return sums == SumsFacts{} ? success() : Result<>(impossible());
    const std::uint64_t chunk_bytes = field.settings.chunk_bytes;
    if (field.settings.kind != DigestKind::linear || sums.height > 8 ||
        (chunk_bytes << sums.height) > kLargestChunk || sums.buckets > field.scalars()) {
        return impossible();
    }
    if (sums.kind == SumsKind::place) {
        if (field.global_shape.empty() || sums.smallest_id != 0 || sums.largest_id != 0) return impossible();
        return success();
    }
    if (field.key.empty() || field.shape.empty() || sums.smallest_id > sums.largest_id) return impossible();
    // No row lies across buckets, nor beyond all indices.
    const std::uint64_t stride =
        id_stride(std::max<std::uint64_t>(field.scalars() / std::max<std::uint64_t>(field.shape[0], 1), 1));
    if (stride * item_bytes(scalar_type(field.dtype)) > chunk_bytes << sums.height ||
        sums.largest_id >= kIndexLimit / stride) {
        return impossible();
    }
    return success();
}

// What a field is and how it is digested. has_place: it is a part of a larger array.
Result<> get_kind(Decoder& in, std::uint32_t version, FieldMetadata& field, bool& has_place) {
    CellRule& rule = field.settings.rule;
    field.name = in.get_text(kLongestText);
    field.format = in.get_text(kLongestText);
    const auto dtype = dtype_from_number(in.get<std::uint8_t>());
    const auto byte_order = in.get<std::uint8_t>();
    const auto order = in.get<std::uint8_t>();
    const auto digest = in.get<std::uint8_t>();
    const auto cells = in.get<std::uint8_t>();
    rule.residue_bits = in.get<std::uint8_t>();
    rule.coarse_shift = in.get<std::uint8_t>();
    const auto place = in.get<std::uint8_t>();
    if (in.failed()) return damaged("its directory ends too early");
    const std::uint8_t last_kind = version < 3 ? 2 : version < 4 ? 3 : 5;
    if (!dtype || byte_order > 1 || order > 1 || digest > 1 || cells > last_kind || place > 1)
        return damaged("field '" + field.name + "' has a type that does not exist");
    has_place = place != 0;
    field.dtype = *dtype;
    field.byte_order = static_cast<ByteOrder>(byte_order);
    field.order = static_cast<ArrayOrder>(order);
    field.settings.kind = static_cast<DigestKind>(digest);
    rule.kind = static_cast<CellKind>(cells);
    rule.widest = in.get_i32();
    rule.fine_exponent = in.get_i32();
    rule.key_origin = in.get_f64();
    field.settings.tolerance.atol = in.get_f64();
    field.settings.tolerance.rtol = in.get_f64();
    field.settings.chunk_bytes = in.get<std::uint32_t>();
    return success();
}

Result<> get_shapes(Decoder& in, FieldMetadata& field, bool has_place) {
    const std::uint32_t dimensions = in.get<std::uint32_t>();
    if (in.failed() || dimensions > kMostDimensions)
        return damaged("field '" + field.name + "' has too many dimensions");
    if (!get_shape(in, dimensions, field.shape)) return damaged("its directory ends too early");
    if (has_place &&
        (!get_shape(in, dimensions, field.global_shape) || !get_shape(in, dimensions, field.global_offset))) {
        return damaged("its directory ends too early");
    }
    if ((has_place && dimensions == 0) || !placed_inside(field))
        return damaged("field '" + field.name + "' lies outside its global array");
    return success();
}

// How many items the field has.
Result<std::uint64_t> possible_items(const FieldMetadata& field) {
    const auto items = checked_product(field.shape);
    // Twice the bytes must fit as well: sizes are rounded up and doubled below.
    if (!items || *items > (1ULL << 58) / item_bytes(field.dtype))
        return damaged("field '" + field.name + "' has an impossible shape");
    const std::uint32_t chunk = field.settings.chunk_bytes;
    if (chunk < kSmallestChunk || chunk > kLargestChunk || (chunk & (chunk - 1)) != 0)
        return damaged("field '" + field.name + "' has an impossible chunk size");
    return *items;
}

Result<> get_extents(Decoder& in, FieldMetadata& field, std::uint32_t extents, std::uint64_t items,
                     std::size_t data_files) {
    std::uint64_t covered = 0;
    for (std::uint32_t i = 0; i < extents; ++i) {
        Extent e;
        e.file = in.get<std::uint32_t>();
        e.offset = in.get<std::uint64_t>();
        e.stride = in.get<std::uint64_t>();
        e.count = in.get<std::uint64_t>();
        const auto span = checked_multiply(e.stride, e.count);
        if (e.file >= data_files || !span || !checked_add(e.offset, *span) ||
            e.stride < item_bytes(field.dtype) || e.count > items - covered) {
            return damaged("field '" + field.name + "' has an impossible extent");
        }
        covered += e.count;
        field.extents.push_back(e);
    }
    if (extents != 0 && covered != items)
        return damaged("the extents of field '" + field.name + "' do not cover it");
    return success();
}

Result<FieldMetadata> get_field(Decoder& in, std::uint32_t version, std::size_t data_files,
                                std::uint64_t head_bytes, std::uint64_t file_bytes) {
    FieldMetadata field;
    bool has_place = false;
    TWR_CHECK(get_kind(in, version, field, has_place));
    TWR_CHECK(get_shapes(in, field, has_place));
    field.counts.nans = in.get<std::uint64_t>();
    field.counts.tokens = in.get<std::uint64_t>();
    field.largest_sampled = in.get_f64();
    const std::uint32_t extents = in.get<std::uint32_t>();
    if (in.failed() || in.remaining() / 28 < extents) return damaged("its directory ends too early");
    TWR_TRY(const std::uint64_t items, possible_items(field));
    TWR_CHECK(get_extents(in, field, extents, items, data_files));
    for (std::size_t s = 0; s < kFirstSections; ++s)
        field.sections[s] = get_place(in);
    if (version >= 2) {
        TWR_CHECK(get_sums(in, field));
    } else {
        field.sections[static_cast<std::size_t>(Section::sums)].sums_checksum =
            xxh3(std::span<const std::byte>());  // of no pages
    }
    if (in.failed()) return damaged("its directory ends too early");
    TWR_CHECK(check_rule(field));
    TWR_CHECK(check_places(field, version >= 2 ? kSections : kFirstSections, head_bytes, file_bytes));
    return field;
}

}  // namespace

std::uint64_t FieldMetadata::items() const { return checked_product(shape).value_or(0); }

std::uint64_t FieldMetadata::chunks() const { return divide_up(data_bytes(), settings.chunk_bytes); }

std::uint64_t FieldMetadata::section_bytes(Section section) const {
    const ChunkShape shape_of_chunk = chunking();
    switch (section) {
        case Section::tree: return tree().nodes() * node_words(settings.kind) * 8;
        case Section::fine:
            return settings.kind == DigestKind::published || settings.rule.coarse_shift == 0 ? 0
                                                                                             : chunks() * 8;
        case Section::residues: {
            const unsigned bits = settings.rule.residue_bits;
            if (bits == 0) return 0;
            const std::uint64_t whole = scalars() / shape_of_chunk.chunk_scalars;
            const auto rest = static_cast<std::size_t>(scalars() % shape_of_chunk.chunk_scalars);
            return whole * shape_of_chunk.residue_bytes_per_chunk +
                   chunk_residue_bytes(scalar_type(dtype), rest, bits);
        }
        case Section::data_sums: return divide_up(data_bytes(), kDataSumBytes) * 8;
        case Section::sums: return sums.buckets * kPartialSumBytes;
    }
    return 0;
}

std::uint32_t required_version(std::span<const FieldMetadata> fields) {
    std::uint32_t version = 1;
    for (const FieldMetadata& field : fields) {
        const CellKind kind = field.settings.rule.kind;
        if (kind == CellKind::words || kind == CellKind::integers) return 4;
        if (kind == CellKind::binary32) version = 3;
        if (field.partial() || field.sums != SumsFacts{}) version = std::max(version, 2U);
    }
    return version;
}

std::vector<std::byte> encode_directory(const Directory& directory, std::uint64_t file_bytes) {
    Encoder body;
    body.put(static_cast<std::uint32_t>(directory.fields.size()));
    body.put(static_cast<std::uint32_t>(directory.data_files.size()));
    body.put_i64(directory.step);
    body.put(directory.rank);
    body.put(std::uint32_t{0});
    for (const DataFile& file : directory.data_files) {
        body.put_text(file.path);
        body.put(file.stamp.size);
        body.put_i64(file.stamp.mtime_ns);
    }
    for (const FieldMetadata& field : directory.fields)
        put_field(body, field, directory.version);

    Encoder header;
    for (const unsigned char c : kMetadataMagic)
        header.put(static_cast<std::uint8_t>(c));
    header.put(directory.version);
    header.put(std::uint32_t{0});
    header.put(file_bytes);
    header.put(static_cast<std::uint64_t>(body.size()));
    header.put(xxh3(body.bytes()));
    header.put(directory.status);
    header.put(std::uint64_t{0});
    header.put(xxh3(header.bytes()));
    std::vector<std::byte> all = header.bytes();
    all.insert(all.end(), body.bytes().begin(), body.bytes().end());
    return all;
}

Error wrong_size(std::uint64_t should, std::uint64_t has) {
    return damaged("truncated or extended: it should have " + std::to_string(should) + " bytes and has " +
                   std::to_string(has) + ": index the data again");
}

Result<HeaderFacts> decode_header(std::span<const std::byte> header, std::uint64_t file_bytes,
                                  ResiduePlace residues) {
    if (header.size() < kMetadataMagic.size() ||
        std::memcmp(header.data(), kMetadataMagic.data(), kMetadataMagic.size()) != 0) {
        return Error{
            ErrorCode::damaged,
            "not a twinrun metadata file: its first bytes are others; restore it from a copy, or make it "
            "again with: twinrun index"};
    }
    if (header.size() < kHeaderBytes) return damaged("truncated: it ends within its header");
    Decoder in(header.first(kHeaderBytes));
    static_cast<void>(in.get<std::uint64_t>());
    const auto version = in.get<std::uint32_t>();
    static_cast<void>(in.get<std::uint32_t>());
    const auto size = in.get<std::uint64_t>();
    HeaderFacts facts;
    facts.version = version;
    facts.bytes = size;
    facts.directory_bytes = in.get<std::uint64_t>();
    facts.directory_checksum = in.get<std::uint64_t>();
    facts.status = in.get<std::uint64_t>();
    static_cast<void>(in.get<std::uint64_t>());
    const bool intact = in.get<std::uint64_t>() == xxh3(header.first(kHeaderBytes - 8));
    if (intact && version > kMetadataVersion) {
        return Error{ErrorCode::unsupported,
                     "metadata of version " + std::to_string(version) + ", this twinrun reads up to " +
                         std::to_string(kMetadataVersion) + ": upgrade twinrun, or index the data again"};
    }
    if (!intact || version == 0) return damaged("its header's checksum is wrong: index the data again");
    const bool ends_early = residues == ResiduePlace::elsewhere && size > file_bytes &&
                            inside(kHeaderBytes, facts.directory_bytes, file_bytes);
    if (size != file_bytes && !ends_early) return wrong_size(size, file_bytes);
    if (facts.directory_bytes > kLargestDirectory ||
        !inside(kHeaderBytes, facts.directory_bytes, file_bytes)) {
        return damaged("its directory lies outside the file");
    }
    return facts;
}

Result<Directory> decode_directory(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                   std::uint32_t version) {
    Decoder in(bytes);
    Directory directory;
    directory.version = version;
    const auto fields = in.get<std::uint32_t>();
    const auto data_files = in.get<std::uint32_t>();
    directory.step = in.get_i64();
    directory.rank = in.get<std::uint32_t>();
    static_cast<void>(in.get<std::uint32_t>());
    // A field takes more than 100 bytes, a data file at least 20: no count can make us allocate
    // more than the file holds.
    if (in.failed() || in.remaining() / 100 < fields || in.remaining() / 20 < data_files) {
        return damaged("its directory ends too early");
    }
    for (std::uint32_t i = 0; i < data_files; ++i) {
        DataFile file;
        file.path = in.get_text(kLongestText);
        file.stamp.size = in.get<std::uint64_t>();
        file.stamp.mtime_ns = in.get_i64();
        directory.data_files.push_back(std::move(file));
    }
    for (std::uint32_t i = 0; i < fields; ++i) {
        TWR_TRY(FieldMetadata field,
                get_field(in, version, data_files, kHeaderBytes + bytes.size(), file_bytes));
        directory.fields.push_back(std::move(field));
    }
    std::vector<std::string_view> names;
    names.reserve(fields);
    for (const FieldMetadata& field : directory.fields)
        names.push_back(field.name);
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
        return damaged("two fields are called '" + std::string(*twice) + "'");
    if (in.failed() || in.remaining() != 0)
        return damaged("its directory has another length than its content");
    return directory;
}

}  // namespace twinrun
