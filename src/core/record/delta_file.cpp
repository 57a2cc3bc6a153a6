#include "record/delta_file.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <set>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "platform/team.hpp"
#include "record/entries.hpp"

namespace twinrun {

namespace {

constexpr char kMagic[8] = {'T', 'W', 'R', 'D', 'I', 'F', 'F', '\n'};
constexpr std::uint32_t kStoredBlock = 64U << 10;
constexpr std::uint32_t kLargestBlock = 16U << 20;
constexpr std::uint64_t kMostUnpacked = 4096;  // times the packed size: more is no honest tail
constexpr std::uint64_t kWriteBytes = std::uint64_t{8} << 20;

Error damaged(std::string what) { return Error{ErrorCode::damaged, std::move(what)}; }
Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory to write a record"}; }

// The lowest that has what the directory holds: older programs read what they can.
std::uint32_t version_of(const RecordDirectory& directory) {
    return directory.only_files() ? 1 : kDifferenceVersion;
}

}  // namespace

// ---- the format ----

std::vector<std::byte> encode_difference_tail(const Difference& difference) {
    Encoder encoder;
    const RecordDirectory& directory = difference.directory;
    const std::uint32_t version = version_of(directory);
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
        encoder.put(
            static_cast<std::uint8_t>(static_cast<unsigned>(block.codec) | (block.xored ? 0x80U : 0U)));
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
    encoder.put(version_of(difference.directory));
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

Result<DifferenceHeader> decode_difference_header(std::span<const std::byte> bytes,
                                                  std::uint64_t file_bytes) {
    if (bytes.size() < kDifferenceHeaderBytes) return damaged("shorter than its header");
    bytes = bytes.first(kDifferenceHeaderBytes);
    if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return damaged("not a difference of a record");
    Decoder decoder(bytes.subspan(sizeof kMagic));
    Decoder seal(bytes.last(8));
    if (seal.get<std::uint64_t>() != xxh3(bytes.first(kDifferenceHeaderBytes - 8)))
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
        std::uint64_t{header.block_chunks} * header.chunk_bytes > kLargestBlock) {
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
        if ((flags & 0x7F) > static_cast<unsigned>(PayloadCodec::zstd)) return damaged("no such codec");
        block.codec = static_cast<PayloadCodec>(flags & 0x7F);
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

Result<Difference> decode_difference_tail(const DifferenceHeader& header,
                                          std::span<const std::byte> tail) try {
    if (xxh3(tail) != header.tail_checksum) return damaged("the index's checksum is wrong");
    std::vector<std::byte> unpacked;
    if (header.packed) {
        unpacked.resize(header.tail_unpacked);
        Compressor compressor;
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

// ---- writing ----

struct DifferenceWriter::Block {
    std::uint64_t first = 0;  // chunk among the pending
    std::uint64_t chunks = 0;
    std::vector<std::byte> packed;
    std::size_t bytes = 0;
    bool stored = true;
    bool xored = false;
    std::uint64_t checksum = 0;
};

struct DifferenceWriter::Work {
    explicit Work(int threads)
        : team(std::max(1, threads)),
          compressors(static_cast<std::size_t>(team.size())),
          scratch(compressors.size()),
          other(compressors.size()) {}
    Team team;
    std::vector<Compressor> compressors;
    std::vector<std::vector<std::byte>> scratch;
    std::vector<std::vector<std::byte>> other;
    std::vector<Block> blocks;
    std::vector<std::byte> out;
};

DifferenceWriter::DifferenceWriter(FileSystem& system, std::string path, std::uint32_t chunk_bytes,
                                   const PayloadSettings& settings)
    : system_(system), path_(std::move(path)), chunk_bytes_(chunk_bytes), settings_(settings) {
    if (settings_.block_bytes == 0)
        settings_.block_bytes = settings_.codec == PayloadCodec::stored ? kStoredBlock : kPackedBlockBytes;
    block_chunks_ = std::max(1U, std::min(settings_.block_bytes, kLargestBlock) / chunk_bytes_);
    work_ = std::make_unique<Work>(settings_.threads);
}

DifferenceWriter::~DifferenceWriter() {
    if (file_ == nullptr || done_) return;
    file_.reset();
    static_cast<void>(system_.remove(temporary_));  // closed already, it would stay
}

Result<std::unique_ptr<DifferenceWriter>> DifferenceWriter::create(FileSystem& system, std::string path,
                                                                   std::uint32_t chunk_bytes,
                                                                   const PayloadSettings& settings) try {
    if (!codec_available(settings.codec)) {
        return Error{ErrorCode::unsupported,
                     "this build of twinrun lacks zstd: build it with libzstd, or keep payload unpacked"};
    }
    std::unique_ptr<DifferenceWriter> writer(
        new DifferenceWriter(system, std::move(path), chunk_bytes, settings));
    writer->temporary_ = temporary_name(writer->path_);
    TWR_TRY(writer->file_, system.create(writer->temporary_, 0));
    return writer;
} catch (const std::bad_alloc&) {
    return no_memory();
}

std::uint64_t DifferenceWriter::chunks() const { return chunks_; }
const std::vector<std::uint32_t>& DifferenceWriter::bases() const { return base_ordinals_; }

Result<> DifferenceWriter::add(std::span<const std::byte> chunks, std::span<const std::byte> base,
                               std::span<const Location> base_at) try {
    const std::size_t count = chunks.size() / chunk_bytes_;
    if (chunks_ + count > kMostPayloadChunks)
        return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
    with_base_ = with_base_ || !base.empty();
    if (with_base_) {  // what came before without one
        pending_base_.resize(pending_.size());
        pending_at_.resize(pending_.size() / chunk_bytes_, kNoLocation);
    }
    pending_.insert(pending_.end(), chunks.begin(), chunks.end());
    if (with_base_) {
        pending_base_.insert(pending_base_.end(), base.begin(), base.end());
        pending_at_.insert(pending_at_.end(), base_at.begin(), base_at.end());
        pending_base_.resize(pending_.size());
        pending_at_.resize(pending_.size() / chunk_bytes_, kNoLocation);
    }
    chunks_ += count;
    return pending_.size() >= kWriteBytes ? flush(false) : success();
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> DifferenceWriter::add_packed(std::span<const PackedBlock> blocks) try {
    auto& out = work_->out;
    out.clear();
    const auto write = [&]() -> Result<> {
        if (out.empty()) return success();
        TWR_CHECK(file_->write_at(written_, out));
        written_ += out.size();
        out.clear();
        return success();
    };
    for (const PackedBlock& block : blocks) {
        if (!pending_.empty() || block.chunks == 0 || block.chunks > block_chunks_ ||
            chunks_ % block_chunks_ != 0) {
            return Error{ErrorCode::internal, "packed payload that does not fit what came before it"};
        }
        if (chunks_ + block.chunks > kMostPayloadChunks)
            return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
        blocks_.push_back({written_ + out.size(), static_cast<std::uint32_t>(block.bytes.size()),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, false,
                           xxh3(block.bytes)});
        out.insert(out.end(), block.bytes.begin(), block.bytes.end());
        chunks_ += block.chunks;
        if (out.size() >= kWriteBytes) TWR_CHECK(write());
    }
    return write();
} catch (const std::bad_alloc&) {
    return no_memory();
}

// Compresses one block of what is pending, alone or mixed with its bases, whichever is smaller by
// enough.
void DifferenceWriter::pack_block(Block& block, int worker) {
    auto& compressor = work_->compressors[static_cast<std::size_t>(worker)];
    auto& mixed = work_->scratch[static_cast<std::size_t>(worker)];
    auto& other = work_->other[static_cast<std::size_t>(worker)];
    const auto raw =
        std::span<const std::byte>(pending_).subspan(block.first * chunk_bytes_, block.chunks * chunk_bytes_);
    block.stored = true;
    block.xored = false;
    block.bytes = raw.size();
    if (settings_.codec == PayloadCodec::zstd) {
        block.packed.resize(raw.size());
        const std::size_t plain =
            compressor.pack(raw, std::span(block.packed).first(raw.size() - 1), settings_.level);
        if (plain != 0) {
            block.stored = false;
            block.bytes = plain;
        }
        bool has_base = false;
        for (std::uint64_t i = 0; with_base_ && !has_base && i < block.chunks; ++i)
            has_base = pending_at_[block.first + i] != kNoLocation;
        if (has_base) {
            mixed.resize(raw.size());
            const std::byte* base = pending_base_.data() + block.first * chunk_bytes_;
            for (std::size_t i = 0; i < raw.size(); ++i)
                mixed[i] = raw[i] ^ base[i];
            other.resize(raw.size());
            // At least an eighth must be saved: to name the bases takes bytes, and each later read
            // takes time for the bases.
            const std::size_t room =
                block.bytes - std::min(block.bytes, std::max<std::size_t>(17, block.bytes / 8));
            const std::size_t size =
                room == 0 ? 0 : compressor.pack(mixed, std::span(other).first(room), settings_.level);
            if (size != 0) {
                std::swap(block.packed, other);
                block.bytes = size;
                block.stored = false;
                block.xored = true;
            }
        }
    }
    block.checksum = xxh3(block.stored ? raw : std::span<const std::byte>(block.packed).first(block.bytes));
}

// Notes what the chunks of a mixed block were XORed with. before: chunks of the payload before
// those that are pending.
void DifferenceWriter::note_bases(const Block& block, std::uint64_t before) {
    for (std::uint64_t i = 0; i < block.chunks; ++i) {
        const Location at = pending_at_[block.first + i];
        if (at == kNoLocation) continue;
        const std::uint64_t chunk = before + block.first + i;
        const auto place = std::lower_bound(base_ordinals_.begin(), base_ordinals_.end(), ordinal_of(at));
        if (place == base_ordinals_.end() || *place != ordinal_of(at))
            base_ordinals_.insert(place, ordinal_of(at));
        if (!base_runs_.empty()) {
            Run& run = base_runs_.back();
            if (chunk == run.begin + run.count && at == run.source + run.count && !run.repeat) {
                ++run.count;
                continue;
            }
            if (chunk == run.begin + run.count && at == run.source && (run.repeat || run.count == 1)) {
                run.repeat = true;
                ++run.count;
                continue;
            }
        }
        base_runs_.push_back({chunk, 1, at, false});
    }
}

Result<> DifferenceWriter::flush(bool all) {
    const std::uint64_t pending = pending_.size() / chunk_bytes_;
    const std::uint64_t whole = pending / block_chunks_;
    const std::uint64_t count = whole + (all && pending % block_chunks_ != 0 ? 1 : 0);
    auto& blocks = work_->blocks;
    blocks.resize(std::max<std::size_t>(blocks.size(), count));
    std::atomic<std::uint64_t> next{0};
    std::atomic<bool> failed{false};
    work_->team.run([&](int worker) {
        try {
            for (std::uint64_t b = next++; b < count; b = next++) {
                blocks[b].first = b * block_chunks_;
                blocks[b].chunks = std::min<std::uint64_t>(block_chunks_, pending - blocks[b].first);
                pack_block(blocks[b], worker);
            }
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    });
    if (failed) throw std::bad_alloc();

    auto& out = work_->out;
    out.clear();
    for (std::uint64_t b = 0; b < count; ++b) {
        const Block& block = blocks[b];
        const std::byte* from =
            block.stored ? pending_.data() + block.first * chunk_bytes_ : block.packed.data();
        out.insert(out.end(), from, from + block.bytes);
        blocks_.push_back({written_ + out.size() - block.bytes, static_cast<std::uint32_t>(block.bytes),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, block.xored,
                           block.checksum});
        if (block.xored) note_bases(block, chunks_ - pending);
    }
    if (!out.empty()) {
        TWR_CHECK(file_->write_at(written_, out));
        written_ += out.size();
    }
    const std::uint64_t done = std::min(pending, count * block_chunks_);
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done * chunk_bytes_));
    if (with_base_) {
        pending_base_.erase(pending_base_.begin(),
                            pending_base_.begin() + static_cast<std::ptrdiff_t>(done * chunk_bytes_));
        pending_at_.erase(pending_at_.begin(), pending_at_.begin() + static_cast<std::ptrdiff_t>(done));
    }
    return success();
}

Result<DifferenceWriter::Written> DifferenceWriter::finish(Difference&& difference) try {
    TWR_CHECK(difference.directory.check(chunk_bytes_));
    TWR_CHECK(flush(true));
    difference.chunk_bytes = chunk_bytes_;
    difference.payload_chunks = chunks_;
    difference.block_chunks = block_chunks_;
    difference.blocks = std::move(blocks_);
    difference.bases = std::move(base_runs_);
    std::vector<std::byte> tail = encode_difference_tail(difference);
    const std::uint64_t unpacked = tail.size();
    bool packed = false;
    // The published methods' entries are measured as they were published, unless packing was asked
    // for.
    if (codec_available(PayloadCodec::zstd) &&
        (settings_.codec == PayloadCodec::zstd || difference.method == RecordMethod::runs)) {
        std::vector<std::byte> smaller(tail.size());
        const std::size_t size =
            work_->compressors[0].pack(tail, std::span(smaller).first(tail.size() - 1), 3);
        if (size != 0 && unpacked <= size * kMostUnpacked) {
            smaller.resize(size);
            tail = std::move(smaller);
            packed = true;
        }
    }
    const std::vector<std::byte> header =
        encode_difference_header(difference, tail, written_, unpacked, packed);
    TWR_CHECK(file_->write_at(written_, tail));
    TWR_CHECK(file_->write_at(0, header));
    Written written{written_ + tail.size(), written_ - kDifferenceHeaderBytes, xxh3(header)};
    TWR_CHECK(file_->sync());
    TWR_CHECK(file_->close());
    TWR_CHECK(system_.rename(temporary_, path_));
    done_ = true;
    return written;
} catch (const std::bad_alloc&) {
    return no_memory();
}

bool is_difference_file(const std::string& path) {
    return begins_with(path, std::as_bytes(std::span(kMagic)));
}

// ---- reading ----

Result<std::shared_ptr<DifferenceFile>> DifferenceFile::open(const std::string& path) try {
    std::shared_ptr<DifferenceFile> opened(new DifferenceFile);
    TWR_TRY(opened->file_, InputFile::open(path));
    std::vector<std::byte> header(std::min<std::uint64_t>(kDifferenceHeaderBytes, opened->file_->size()));
    TWR_CHECK(opened->file_->read_at(0, header));
    auto decoded = decode_difference_header(header, opened->file_->size());
    if (!decoded) return std::move(decoded).error().at(path);
    opened->header_checksum_ = xxh3(header);
    std::vector<std::byte> tail(decoded->tail_bytes);
    TWR_CHECK(opened->file_->read_at(decoded->tail_offset, tail));
    auto difference = decode_difference_tail(*decoded, tail);
    if (!difference) return std::move(difference).error().at(path);
    opened->difference_ = std::move(*difference);
    opened->stored_chunks_ = decoded->payload_chunks;
    std::uint64_t at = 0;
    for (const Difference::Kept& kept : opened->difference_.kept) {
        opened->kept_at_.push_back(at);
        at += kept.count;
    }
    return opened;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to read it"};
}

std::optional<std::uint64_t> DifferenceFile::position(Location at) const {
    if (!difference_.partial()) {
        if (ordinal_of(at) != difference_.ordinal || chunk_of(at) >= stored_chunks_) return std::nullopt;
        return chunk_of(at);
    }
    const auto& kept = difference_.kept;
    const auto after =
        std::upper_bound(kept.begin(), kept.end(), at, [](Location sought, const Difference::Kept& part) {
            return sought < location(part.ordinal, part.first);
        });
    if (after == kept.begin()) return std::nullopt;
    const auto part = std::prev(after);
    const Location first = location(part->ordinal, part->first);
    if (at - first >= part->count) return std::nullopt;
    return kept_at_[static_cast<std::size_t>(part - kept.begin())] + (at - first);
}

std::uint64_t DifferenceFile::block_chunks(std::size_t b) const {
    return std::min<std::uint64_t>(difference_.block_chunks, stored_chunks_ - b * difference_.block_chunks);
}

Result<> DifferenceFile::read_block(std::size_t b, Compressor& compressor, std::vector<std::byte>& scratch,
                                    std::span<std::byte> to) const {
    const PayloadBlock& block = difference_.blocks[b];
    const bool stored = block.codec == PayloadCodec::stored;
    std::span<std::byte> read = to;
    if (!stored) {
        if (scratch.size() < block.bytes) scratch.resize(block.bytes);
        read = std::span(scratch).first(block.bytes);
    }
    TWR_CHECK(file_->read_at(block.offset, read));
    if (xxh3(read) != block.checksum) {
        return Error{ErrorCode::damaged, path() + ": damaged: payload block " + std::to_string(b) +
                                             " (bytes from " + std::to_string(block.offset) + " on)"};
    }
    if (stored) return success();
    auto unpacked = compressor.unpack(read, to);
    if (!unpacked) return std::move(unpacked).error().at(path());
    return success();
}

}  // namespace twinrun
