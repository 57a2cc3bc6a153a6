#include "record/delta_writer.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "platform/team.hpp"

namespace twinrun {

namespace {

constexpr std::uint32_t kStoredBlock = 64U << 10;
constexpr std::uint64_t kWriteBytes = std::uint64_t{8} << 20;
// So many are packed where the caller has them; fewer are kept until more come.
constexpr std::uint64_t kDirectBlocks = 8;
// Blocks whose coding is measured once: to try all codings takes several times as long as one.
constexpr std::uint64_t kGroupBlocks = 16;
// Bytes that reading a block takes with all that it was XORed with, at most, for each byte that it
// takes without XOR. So any step is read in about twice the time of one that stands alone.
constexpr std::uint64_t kMostReads = 2;

// By pointers alone: bytes may be anything, also the members of a vector that they are in.
void xor_bytes(std::span<const std::byte> from, const std::byte* base, std::byte* to) {
    const std::byte* const bytes = from.data();
    const std::size_t size = from.size();
    for (std::size_t i = 0; i < size; ++i)
        to[i] = bytes[i] ^ base[i];
}

Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory to write a record"}; }

}  // namespace

struct DifferenceWriter::Block {
    std::uint64_t first = 0;  // chunk among the pending
    std::uint64_t chunks = 0;
    std::vector<std::byte> packed;
    std::size_t bytes = 0;
    bool stored = true;
    bool xored = false;
    std::uint64_t base_reads = 0;  // bytes that reading its bases takes, if it is XORed
    Codings codings;
    std::uint64_t checksum = 0;

    [[nodiscard]] const BlockCoding& coding() const { return xored ? codings.mixed : codings.plain; }
};

struct DifferenceWriter::Work {
    Work(int threads, int level) : team(std::max(1, threads)), mixed(static_cast<std::size_t>(team.size())) {
        for (int worker = 0; worker < team.size(); ++worker)
            packers.emplace_back(level);
    }
    Team team;
    std::vector<BlockPacker> packers;
    std::vector<std::vector<std::byte>> mixed;
    std::vector<Block> blocks;
    std::vector<std::byte> out;
};

DifferenceWriter::DifferenceWriter(FileSystem& system, std::string path, std::uint32_t chunk_bytes,
                                   const PayloadSettings& settings)
    : system_(system), path_(std::move(path)), chunk_bytes_(chunk_bytes), settings_(settings) {
    if (settings_.block_bytes == 0)
        settings_.block_bytes = settings_.codec == PayloadCodec::stored ? kStoredBlock : kPackedBlockBytes;
    block_chunks_ = std::max(1U, std::min(settings_.block_bytes, kLargestPayloadBlock) / chunk_bytes_);
    work_ = std::make_unique<Work>(settings_.threads, settings_.level);
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

DifferenceWriter::Pending DifferenceWriter::Pending::first(std::uint64_t chunks,
                                                           std::uint64_t chunk_bytes) const {
    return {bytes.first(chunks * chunk_bytes),
            base.first(std::min<std::size_t>(base.size(), chunks * chunk_bytes)),
            at.first(std::min<std::size_t>(at.size(), chunks)),
            reads.first(std::min<std::size_t>(reads.size(), chunks))};
}
DifferenceWriter::Pending DifferenceWriter::Pending::behind(std::uint64_t chunks,
                                                            std::uint64_t chunk_bytes) const {
    return {bytes.subspan(chunks * chunk_bytes),
            base.subspan(std::min<std::size_t>(base.size(), chunks * chunk_bytes)),
            at.subspan(std::min<std::size_t>(at.size(), chunks)),
            reads.subspan(std::min<std::size_t>(reads.size(), chunks))};
}

// Keeps chunks until there are enough.
void DifferenceWriter::append(const Pending& chunks) {
    with_base_ = with_base_ || !chunks.base.empty();
    if (with_base_) {  // what came before without one
        pending_base_.resize(pending_.size());
        pending_at_.resize(pending_.size() / chunk_bytes_, kNoLocation);
        pending_reads_.resize(pending_at_.size());
    }
    pending_.insert(pending_.end(), chunks.bytes.begin(), chunks.bytes.end());
    if (!with_base_) return;
    pending_base_.insert(pending_base_.end(), chunks.base.begin(), chunks.base.end());
    pending_at_.insert(pending_at_.end(), chunks.at.begin(), chunks.at.end());
    pending_reads_.insert(pending_reads_.end(), chunks.reads.begin(), chunks.reads.end());
    pending_base_.resize(pending_.size());
    pending_at_.resize(pending_.size() / chunk_bytes_, kNoLocation);
    pending_reads_.resize(pending_at_.size());
}

// Packs and writes what append() kept: whole blocks, or all.
Result<> DifferenceWriter::flush(bool all) {
    const std::uint64_t pending = pending_.size() / chunk_bytes_;
    const std::uint64_t done = all ? pending : pending / block_chunks_ * block_chunks_;
    const auto at = static_cast<std::ptrdiff_t>(done);
    const auto bytes = static_cast<std::ptrdiff_t>(done * chunk_bytes_);
    TWR_CHECK(write_blocks(
        Pending{pending_, pending_base_, pending_at_, pending_reads_}.first(done, chunk_bytes_)));
    pending_.erase(pending_.begin(), pending_.begin() + bytes);
    if (!with_base_) return success();
    pending_base_.erase(pending_base_.begin(), pending_base_.begin() + bytes);
    pending_at_.erase(pending_at_.begin(), pending_at_.begin() + at);
    pending_reads_.erase(pending_reads_.begin(), pending_reads_.begin() + at);
    return success();
}

Result<> DifferenceWriter::add(std::span<const std::byte> chunks, std::span<const std::byte> base,
                               std::span<const Location> base_at,
                               std::span<const std::uint32_t> base_reads) try {
    std::uint64_t count = chunks.size() / chunk_bytes_;
    if (chunks_ + count > kMostPayloadChunks)
        return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
    Pending left{chunks, base, base_at, base_reads};
    chunks_ += count;
    if (count >= kDirectBlocks * block_chunks_) {
        // Many are packed where they are. First what is kept of a block becomes whole.
        const std::uint64_t kept = pending_.size() / chunk_bytes_ % block_chunks_;
        const std::uint64_t missing = kept == 0 ? 0 : block_chunks_ - kept;
        append(left.first(missing, chunk_bytes_));
        left = left.behind(missing, chunk_bytes_);
        TWR_CHECK(flush(false));
        count = (count - missing) / block_chunks_ * block_chunks_;
        TWR_CHECK(write_blocks(left.first(count, chunk_bytes_)));
        left = left.behind(count, chunk_bytes_);
    }
    append(left);
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
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, 1, false,
                           xxh3(block.bytes)});
        block_reads_.push_back(static_cast<std::uint32_t>(divide_up(block.bytes.size(), block.chunks)));
        out.insert(out.end(), block.bytes.begin(), block.bytes.end());
        chunks_ += block.chunks;
        if (out.size() >= kWriteBytes) TWR_CHECK(write());
    }
    return write();
} catch (const std::bad_alloc&) {
    return no_memory();
}

bool DifferenceWriter::has_base(const Pending& pending, const Block& block) {
    if (pending.at.empty()) return false;
    const auto at = pending.at.subspan(block.first, block.chunks);
    return std::any_of(at.begin(), at.end(), [](Location base) { return base != kNoLocation; });
}

void DifferenceWriter::pack_plain(Block& block, std::span<const std::byte> raw, int worker) {
    BlockPacker& packer = work_->packers[static_cast<std::size_t>(worker)];
    const std::size_t size = packer.pack(raw, block.codings.plain);
    block.stored = size == 0;
    block.xored = false;
    block.bytes = block.stored ? raw.size() : size;
    if (!block.stored) std::swap(block.packed, packer.packed());
}

// The same after XOR with the block's bases, if that takes enough less than `plain` bytes.
void DifferenceWriter::pack_mixed(const Pending& pending, Block& block, std::span<const std::byte> raw,
                                  std::size_t plain, int worker) {
    auto& mixed = work_->mixed[static_cast<std::size_t>(worker)];
    mixed.resize(raw.size());
    xor_bytes(raw, pending.base.data() + block.first * chunk_bytes_, mixed.data());
    BlockPacker& packer = work_->packers[static_cast<std::size_t>(worker)];
    const std::size_t size = packer.pack(mixed, block.codings.mixed);
    std::uint64_t reads = 0;
    for (std::uint64_t i = block.first; !pending.reads.empty() && i < block.first + block.chunks; ++i) {
        if (pending.at[i] != kNoLocation) reads += pending.reads[i];
    }
    // At least an eighth must be saved: to name the bases takes bytes, and each later read takes
    // time for the bases.
    const std::size_t room = plain - std::min(plain, std::max<std::size_t>(17, plain / 8));
    if (size == 0 || size > room || size + reads > kMostReads * plain) return;
    std::swap(block.packed, packer.packed());
    block.bytes = size;
    block.stored = false;
    block.xored = true;
    block.base_reads = reads;
}

// Compresses one block of what is pending, alone or mixed with its bases, whichever is smaller by
// enough. Only one of these is tried where the measured block says which one it will be.
void DifferenceWriter::pack_block(const Pending& pending, Block& block, int worker) {
    const auto raw = pending.bytes.subspan(block.first * chunk_bytes_, block.chunks * chunk_bytes_);
    block.stored = true;
    block.xored = false;
    block.bytes = raw.size();
    block.base_reads = 0;
    if (settings_.codec == PayloadCodec::zstd) {
        const std::uint64_t plain = block.codings.plain.share;
        const std::uint64_t mixed = block.codings.mixed.share;
        const bool mixes = has_base(pending, block);
        const bool measured = plain != 0 && mixed != 0;
        if (mixes && measured && mixed * 4 < plain * 3)
            pack_mixed(pending, block, raw, plain * raw.size() / kCodingShare, worker);
        if (!block.xored) {
            pack_plain(block, raw, worker);
            if (mixes && (!measured || (mixed * 4 >= plain * 3 && mixed < plain) ||
                          block.codings.plain.share != plain))
                pack_mixed(pending, block, raw, block.bytes, worker);
        }
    }
    block.checksum = xxh3(block.stored ? raw : std::span<const std::byte>(block.packed).first(block.bytes));
}

// First one block of each group, on which its coding is measured, then all others. So which block
// is measured depends on its place alone.
void DifferenceWriter::pack_all(std::span<Block> blocks, const Pending& pending) {
    const std::uint64_t chunks = pending.bytes.size() / chunk_bytes_;
    const std::uint64_t before = blocks_.size();
    const auto group_of = [&](std::uint64_t b) { return (before + b) / kGroupBlocks; };
    std::vector<std::uint64_t> turns[2];
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
        blocks[b].first = b * block_chunks_;
        blocks[b].chunks = std::min<std::uint64_t>(block_chunks_, chunks - blocks[b].first);
        blocks[b].codings = {};
        turns[codings_.try_emplace(group_of(b)).second ? 0 : 1].push_back(b);
    }
    for (const std::vector<std::uint64_t>& turn : turns) {
        std::atomic<std::uint64_t> next{0};
        std::atomic<bool> failed{false};
        work_->team.run([&](int worker) {
            try {
                for (std::uint64_t i = next++; i < turn.size(); i = next++) {
                    Block& block = blocks[turn[i]];
                    block.codings = codings_.at(group_of(turn[i]));
                    pack_block(pending, block, worker);
                }
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        });
        if (failed) throw std::bad_alloc();
        if (&turn != &turns[0]) break;
        for (const std::uint64_t b : turn)
            codings_[group_of(b)] = blocks[b].codings;
    }
}

// Notes what the chunks of a mixed block were XORed with. before: chunks of the payload before
// those that are pending.
void DifferenceWriter::note_bases(const Pending& pending, const Block& block, std::uint64_t before) {
    for (std::uint64_t i = 0; i < block.chunks; ++i) {
        const Location at = pending.at[block.first + i];
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

// Packs and writes blocks that are whole, but for the last one of all.
Result<> DifferenceWriter::write_blocks(const Pending& pending) {
    const std::uint64_t chunks = pending.bytes.size() / chunk_bytes_;
    const std::uint64_t count = divide_up(chunks, block_chunks_);
    const std::uint64_t before = blocks_.size() * block_chunks_;
    auto& blocks = work_->blocks;
    blocks.resize(std::max<std::size_t>(blocks.size(), count));
    pack_all(std::span(blocks).first(count), pending);

    auto& out = work_->out;
    out.clear();
    for (std::uint64_t b = 0; b < count; ++b) {
        const Block& block = blocks[b];
        const std::byte* from =
            block.stored ? pending.bytes.data() + block.first * chunk_bytes_ : block.packed.data();
        out.insert(out.end(), from, from + block.bytes);
        blocks_.push_back({written_ + out.size() - block.bytes, static_cast<std::uint32_t>(block.bytes),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd,
                           block.stored ? std::uint8_t{1} : block.coding().width, block.xored, block.checksum,
                           block.coding().form});
        block_reads_.push_back(
            static_cast<std::uint32_t>(divide_up(block.bytes + block.base_reads, block.chunks)));
        if (block.xored) note_bases(pending, block, before);
    }
    if (!out.empty()) {
        TWR_CHECK(file_->write_at(written_, out));
        written_ += out.size();
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
        const std::size_t size = Compressor().pack(tail, std::span(smaller).first(tail.size() - 1), 3);
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
    Written written{written_ + tail.size(), written_ - kDifferenceHeaderBytes, checksum_in(header)};
    TWR_CHECK(file_->sync());
    TWR_CHECK(file_->close());
    TWR_CHECK(system_.rename(temporary_, path_));
    done_ = true;
    return written;
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
