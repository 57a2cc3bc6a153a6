#include "record/delta_format.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "platform/file_io.hpp"
#include "record/compression.hpp"
#include "record/entries.hpp"

namespace twinrun {

namespace {

constexpr char kMagic[8] = {'T', 'W', 'R', 'D', 'I', 'F', 'F', '\n'};

Error damaged(std::string what) { return Error{ErrorCode::damaged, std::move(what)}; }

// How a block is kept: 0 as it is, 1 packed, then packed in planes of items of 2, 4 and 8 bytes
// (2 to 4), with the sign last (5 to 7), and sparse (8 to 10).
constexpr unsigned kForms = 3;
constexpr unsigned kWidths = 3;

unsigned coding_of(const PayloadBlock& block) {
    if (block.codec == PayloadCodec::stored) return 0;
    if (block.width == 1) return 1;
    return 1 + kWidths * static_cast<unsigned>(block.form) +
           static_cast<unsigned>(std::countr_zero(static_cast<unsigned>(block.width)));
}
void set_coding(PayloadBlock& block, unsigned coding) {
    block.codec = coding == 0 ? PayloadCodec::stored : PayloadCodec::zstd;
    if (coding < 2) return;
    block.width = static_cast<std::uint8_t>(2U << (coding - 2) % kWidths);
    block.form = static_cast<BlockForm>((coding - 2) / kWidths);
}
// The largest that a version has.
unsigned most_coding(std::uint32_t version) {
    return version < 3 ? 1 : version == 3 ? 1 + kWidths : 1 + kForms * kWidths;
}

// The lowest that has what the difference holds: older programs read what they can.
std::uint32_t version_of(const Difference& difference) {
    unsigned coding = 0;
    for (const PayloadBlock& block : difference.blocks)
        coding = std::max(coding, coding_of(block));
    if (coding > most_coding(3)) return kDifferenceVersion;
    if (coding > most_coding(2)) return 3;
    if (!difference.partial() && entries_grouped(difference.method, difference.ordinal, difference.runs))
        return 3;
    return difference.directory.only_files() ? 1 : 2;
}

}  // namespace

bool is_difference_file(const std::string& path) {
    return begins_with(path, std::as_bytes(std::span(kMagic)));
}

std::vector<std::byte> encode_difference_tail(const Difference& difference) {
    Encoder encoder;
    const RecordDirectory& directory = difference.directory;
    const std::uint32_t version = version_of(difference);
    encoder.put(static_cast<std::uint32_t>(directory.files.size()));
    for (const RecordFile& file : directory.files) {
        encoder.put_text(file.name);
        encoder.put(file.bytes);
        if (version == 1) continue;
        encoder.put(static_cast<std::uint8_t>(file.kind));
        if (file.kind == RecordFileKind::link) encoder.put_text(file.to);
    }
    encoder.put(static_cast<std::uint32_t>(directory.segments.size()));
    for (const RecordSegment& segment : directory.segments) {
        encoder.put_text(segment.name);
        encoder.put(segment.file);
        encoder.put(segment.offset);
        encoder.put(segment.bytes);
        encoder.put(segment.content);
    }
    const auto put_section = [&](const Encoder& section) {
        encoder.put(static_cast<std::uint64_t>(section.size()));
        encoder.put_bytes(section.bytes());
    };
    Encoder entries;
    if (!difference.partial()) {
        encode_entries(difference.method, difference.ordinal, difference.chunks(), difference.runs, entries);
    }
    put_section(entries);
    Encoder bases;
    if (!difference.bases.empty()) encode_runs(difference.ordinal, difference.bases, false, bases);
    put_section(bases);
    encoder.put(static_cast<std::uint64_t>(difference.blocks.size()));
    for (const PayloadBlock& block : difference.blocks) {
        encoder.put(block.bytes);
        encoder.put(static_cast<std::uint8_t>(coding_of(block) | (block.xored ? 0x80U : 0U)));
        encoder.put(block.checksum);
    }
    encoder.put(static_cast<std::uint64_t>(difference.kept.size()));
    for (const Difference::Kept& kept : difference.kept) {
        encoder.put(kept.ordinal);
        encoder.put(kept.first);
        encoder.put(kept.count);
    }
    return encoder.bytes();
}

std::vector<std::byte> encode_difference_header(const Difference& difference, std::span<const std::byte> tail,
                                                std::uint64_t tail_offset, std::uint64_t tail_unpacked,
                                                bool packed) {
    Encoder encoder;
    encoder.put_bytes(std::as_bytes(std::span(kMagic)));
    encoder.put(version_of(difference));
    encoder.put(static_cast<std::uint8_t>(difference.method));
    encoder.put(static_cast<std::uint8_t>(std::countr_zero(difference.chunk_bytes)));
    encoder.put(static_cast<std::uint8_t>(packed ? PayloadCodec::zstd : PayloadCodec::stored));
    encoder.put(static_cast<std::uint8_t>(difference.partial() ? 1 : 0));
    encoder.put(difference.ordinal);
    encoder.put(difference.base);
    encoder.put(tail_offset);
    encoder.put(static_cast<std::uint64_t>(tail.size()));
    encoder.put(tail_unpacked);
    encoder.put(xxh3(tail));
    encoder.put(difference.payload_chunks);
    encoder.put(difference.block_chunks);
    while (encoder.size() < kDifferenceHeaderBytes - 8)
        encoder.put(std::uint8_t{0});
    encoder.put(xxh3(encoder.bytes()));
    return encoder.bytes();
}

std::uint64_t checksum_in(std::span<const std::byte> header) {
    Decoder seal(header.first(kDifferenceHeaderBytes).last(8));
    return seal.get<std::uint64_t>();
}

Result<DifferenceHeader> decode_difference_header(std::span<const std::byte> bytes,
                                                  std::uint64_t file_bytes) {
    if (bytes.size() < kDifferenceHeaderBytes) return damaged("shorter than its header");
    bytes = bytes.first(kDifferenceHeaderBytes);
    if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return damaged("not a difference of a record");
    Decoder decoder(bytes.subspan(sizeof kMagic));
    if (checksum_in(bytes) != xxh3(bytes.first(kDifferenceHeaderBytes - 8)))
        return damaged("the header's checksum is wrong");
    const auto version = decoder.get<std::uint32_t>();
    if (version == 0) return damaged("no such version");
    if (version > kDifferenceVersion) {
        return Error{ErrorCode::unsupported, "version " + std::to_string(version) +
                                                 " of the format: a newer twinrun is needed to read it"};
    }
    DifferenceHeader header;
    header.version = version;
    const auto method = decoder.get<std::uint8_t>();
    const auto chunk_bits = decoder.get<std::uint8_t>();
    const auto codec = decoder.get<std::uint8_t>();
    const auto flags = decoder.get<std::uint8_t>();
    header.ordinal = decoder.get<std::uint32_t>();
    header.base = decoder.get<std::uint32_t>();
    header.tail_offset = decoder.get<std::uint64_t>();
    header.tail_bytes = decoder.get<std::uint64_t>();
    header.tail_unpacked = decoder.get<std::uint64_t>();
    header.tail_checksum = decoder.get<std::uint64_t>();
    header.payload_chunks = decoder.get<std::uint64_t>();
    header.block_chunks = decoder.get<std::uint32_t>();
    if (method > static_cast<unsigned>(RecordMethod::runs)) return damaged("no such method");
    header.method = static_cast<RecordMethod>(method);
    if (chunk_bits > 16 || !record_chunk_ok(std::uint64_t{1} << chunk_bits))
        return damaged("no such size of chunks");
    header.chunk_bytes = 1U << chunk_bits;
    if (codec > static_cast<unsigned>(PayloadCodec::zstd) || flags > 1) return damaged("unknown flags");
    header.packed = codec != 0;
    header.partial = flags != 0;
    if (header.ordinal > kMostOrdinals || (header.base != kNoBase && header.base >= header.ordinal))
        return damaged("its base is no earlier difference");
    if (header.tail_offset < kDifferenceHeaderBytes || header.tail_offset > file_bytes ||
        header.tail_bytes != file_bytes - header.tail_offset) {
        return damaged("truncated, or longer than it says");
    }
    if (header.tail_unpacked > header.tail_bytes * (header.packed ? kMostUnpacked : 1) ||
        (!header.packed && header.tail_unpacked != header.tail_bytes)) {
        return damaged("its index cannot have the size that it says");
    }
    if (header.payload_chunks > kMostPayloadChunks || header.block_chunks == 0 ||
        std::uint64_t{header.block_chunks} * header.chunk_bytes > kLargestPayloadBlock) {
        return damaged("sizes that no payload has");
    }
    return header;
}

namespace {

// The parts of a tail, in their order. Each function checks what it can without the others.

Result<RecordDirectory> decode_directory(Decoder& decoder, const DifferenceHeader& header) {
    RecordDirectory directory;
    const auto files = decoder.get<std::uint32_t>();
    for (std::uint32_t f = 0; f < files && !decoder.failed(); ++f) {
        RecordFile file;
        file.name = decoder.get_text(kLongestRecordName);
        file.bytes = decoder.get<std::uint64_t>();
        if (header.version > 1) {
            const auto kind = decoder.get<std::uint8_t>();
            if (kind > static_cast<unsigned>(RecordFileKind::folder))
                return damaged("neither a file nor a link nor a folder");
            file.kind = static_cast<RecordFileKind>(kind);
            if (file.kind == RecordFileKind::link) file.to = decoder.get_text(kLongestRecordName);
        }
        directory.files.push_back(std::move(file));
    }
    const auto segments = decoder.get<std::uint32_t>();
    for (std::uint32_t s = 0; s < segments && !decoder.failed(); ++s) {
        RecordSegment segment;
        segment.name = decoder.get_text(kLongestRecordName);
        segment.file = decoder.get<std::uint32_t>();
        segment.offset = decoder.get<std::uint64_t>();
        segment.bytes = decoder.get<std::uint64_t>();
        segment.content = decoder.get<std::uint64_t>();
        directory.segments.push_back(std::move(segment));
    }
    if (decoder.failed()) return damaged("its directory is cut short");
    if (auto good = directory.check(header.chunk_bytes); !good) return damaged(good.error().message);
    return directory;
}

Result<std::vector<PayloadBlock>> decode_blocks(Decoder& decoder, const DifferenceHeader& header) {
    std::vector<PayloadBlock> decoded;
    const auto blocks = decoder.get<std::uint64_t>();
    if (decoder.failed() || blocks > decoder.remaining() / 13) return damaged("its blocks are cut short");
    std::uint64_t offset = kDifferenceHeaderBytes;
    decoded.reserve(blocks);
    for (std::uint64_t b = 0; b < blocks; ++b) {
        PayloadBlock block;
        block.offset = offset;
        block.bytes = decoder.get<std::uint32_t>();
        const auto flags = decoder.get<std::uint8_t>();
        block.checksum = decoder.get<std::uint64_t>();
        block.xored = (flags & 0x80) != 0;
        const unsigned coding = flags & 0x7FU;
        if (coding > most_coding(header.version)) return damaged("no such codec");
        set_coding(block, coding);
        if (block.bytes > header.tail_offset - offset)
            return damaged("a block passes the end of the payload");
        offset += block.bytes;
        decoded.push_back(block);
    }
    if (offset != header.tail_offset) return damaged("bytes of payload that no block has");
    return decoded;
}

// The chunks that a partial difference keeps; none of any other.
Result<std::vector<Difference::Kept>> decode_kept(Decoder& decoder, const DifferenceHeader& header) {
    std::vector<Difference::Kept> decoded;
    const auto kept = decoder.get<std::uint64_t>();
    if (decoder.failed() || kept > decoder.remaining() / 20) return damaged("its index is cut short");
    if (header.partial != (kept != 0)) return damaged("its kind and its index contradict each other");
    std::uint64_t stored = 0;
    for (std::uint64_t k = 0; k < kept; ++k) {
        Difference::Kept part;
        part.ordinal = decoder.get<std::uint32_t>();
        part.first = decoder.get<std::uint64_t>();
        part.count = decoder.get<std::uint64_t>();
        if (part.ordinal > header.ordinal || part.count == 0 || part.first >= kMostPayloadChunks ||
            part.count > kMostPayloadChunks - part.first || stored + part.count > kMostPayloadChunks) {
            return damaged("it keeps chunks that cannot be");
        }
        if (!decoded.empty()) {
            const Difference::Kept& last = decoded.back();
            if (location(part.ordinal, part.first) < location(last.ordinal, last.first) + last.count)
                return damaged("it keeps chunks twice, or not in order");
        }
        stored += part.count;
        decoded.push_back(part);
    }
    if (stored != 0 && stored != header.payload_chunks) return damaged("it keeps another number of chunks");
    return decoded;
}

Result<> check_blocks(std::span<const PayloadBlock> blocks, const DifferenceHeader& header) {
    if (blocks.size() != divide_up(header.payload_chunks, header.block_chunks))
        return damaged("another number of blocks than its payload needs");
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
        const std::uint64_t own =
            std::min<std::uint64_t>(header.block_chunks, header.payload_chunks - b * header.block_chunks);
        const PayloadBlock& block = blocks[b];
        if (block.codec == PayloadCodec::stored && block.bytes != own * header.chunk_bytes)
            return damaged("a block of another size than its chunks");
    }
    return success();
}

Result<std::vector<Run>> decode_image(std::span<const std::byte> entries, const DifferenceHeader& header,
                                      std::uint64_t chunks) {
    if (header.partial) {
        if (!entries.empty() || header.base != kNoBase) return damaged("leftovers that describe an image");
        return std::vector<Run>();
    }
    if (header.version < 3 && says_grouped(header.method, entries))
        return damaged("entries that its version does not have");
    TWR_TRY(std::vector<Run> runs,
            decode_entries(header.method, header.ordinal, chunks, header.payload_chunks, entries));
    if (header.base == kNoBase) {
        std::uint64_t end = 0;
        for (const Run& run : runs) {
            if (run.begin != end) break;
            end += run.count;
        }
        if (end != chunks) return damaged("without a base, and chunks are missing");
    }
    return runs;
}

}  // namespace

Result<Difference> decode_difference_tail(const DifferenceHeader& header, std::span<const std::byte> tail,
                                          Compressor& compressor) try {
    if (xxh3(tail) != header.tail_checksum) return damaged("the index's checksum is wrong");
    std::vector<std::byte> unpacked;
    if (header.packed) {
        unpacked.resize(header.tail_unpacked);
        TWR_CHECK(compressor.unpack(tail, unpacked));
        tail = unpacked;
    }
    Difference difference;
    difference.method = header.method;
    difference.chunk_bytes = header.chunk_bytes;
    difference.ordinal = header.ordinal;
    difference.base = header.base;
    difference.payload_chunks = header.payload_chunks;
    difference.block_chunks = header.block_chunks;
    Decoder decoder(tail);
    TWR_TRY(difference.directory, decode_directory(decoder, header));
    const auto section = [&](std::span<const std::byte>& bytes) {
        const auto size = decoder.get<std::uint64_t>();
        if (decoder.failed() || size > decoder.remaining()) return false;
        bytes = tail.subspan(tail.size() - decoder.remaining(), size);
        decoder.skip(size);
        return true;
    };
    std::span<const std::byte> entries;
    std::span<const std::byte> bases;
    if (!section(entries) || !section(bases)) return damaged("its entries are cut short");
    TWR_TRY(difference.blocks, decode_blocks(decoder, header));
    TWR_TRY(difference.kept, decode_kept(decoder, header));
    if (decoder.remaining() != 0) return damaged("bytes behind its index");
    TWR_CHECK(check_blocks(difference.blocks, header));
    TWR_TRY(difference.runs, decode_image(entries, header, difference.chunks()));
    if (!bases.empty()) {
        TWR_TRY(difference.bases, decode_runs(header.ordinal, header.payload_chunks, 0, false, bases));
    }
    return difference;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for its index"};
}

}  // namespace twinrun
