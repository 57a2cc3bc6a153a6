#include "record/delta_writer.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "platform/team.hpp"
#include "record/write_behind.hpp"

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

struct DifferenceTools::Block {
    PendingChunks part;  // what it is packed from
    std::vector<std::byte> packed;
    std::size_t bytes = 0;
    bool stored = true;
    bool xored = false;
    std::uint64_t base_reads = 0;  // bytes that reading its bases takes, if it is XORed
    BlockCodings codings;
    std::uint64_t checksum = 0;

    [[nodiscard]] const BlockCoding& coding() const { return xored ? codings.mixed : codings.plain; }
    [[nodiscard]] bool has_base() const {
        return std::any_of(part.at.begin(), part.at.end(), [](Location at) { return at != kNoLocation; });
    }
    [[nodiscard]] std::span<const std::byte> kept() const {
        return stored ? part.bytes : std::span<const std::byte>(packed).first(bytes);
    }
};

struct DifferenceTools::Work {
    explicit Work(const PayloadSettings& settings)
        : team(std::max(1, settings.threads)),
          mixed(static_cast<std::size_t>(team.size())),
          behind(settings.threads > 1) {
        for (int worker = 0; worker < team.size(); ++worker)
            packers.emplace_back(settings.level);
    }
    // work(i, worker) for each i below `count`, in this order, on the team where that pays.
    template <class Each>
    void each(std::size_t count, bool shared, const Each& work) {
        std::atomic<std::size_t> next{0};
        const auto turn = [&](int worker) {
            for (std::size_t i = next++; i < count; i = next++)
                work(i, worker);
        };
        if (count > 1 && shared) {
            team.run(turn);
        } else {
            turn(0);
        }
    }

    // Sizes vary from batch to batch: it does not grow for each.
    std::byte* reserve_out(std::uint64_t size) { return out.reserve(std::bit_ceil(size)); }

    Team team;
    std::vector<BlockPacker> packers;
    std::vector<std::vector<std::byte>> mixed;
    std::vector<Block> blocks;
    AlignedBytes out;
    WriteBehind behind;
    // Chunks that are kept until there are enough.
    std::vector<std::byte> bytes;
    std::vector<std::byte> base;
    std::vector<Location> at;
    std::vector<std::uint32_t> reads;
    void clear() {
        bytes.clear();
        base.clear();
        at.clear();
        reads.clear();
    }
    [[nodiscard]] PendingChunks kept() const { return {bytes, base, at, reads}; }
};

DifferenceTools::DifferenceTools(const PayloadSettings& settings) : work_(std::make_unique<Work>(settings)) {}
DifferenceTools::~DifferenceTools() = default;

DifferenceWriter::DifferenceWriter(FileSystem& system, std::string path, std::uint32_t chunk_bytes,
                                   const PayloadSettings& settings, DifferenceTools* tools)
    : system_(system), path_(std::move(path)), chunk_bytes_(chunk_bytes), settings_(settings) {
    if (settings_.block_bytes == 0)
        settings_.block_bytes = settings_.codec == PayloadCodec::stored ? kStoredBlock : kPackedBlockBytes;
    block_chunks_ = std::max(1U, std::min(settings_.block_bytes, kLargestPayloadBlock) / chunk_bytes_);
    if (tools == nullptr) {
        own_tools_ = std::make_unique<DifferenceTools>(settings_);
        tools = own_tools_.get();
    }
    work_ = tools->work_.get();
    work_->clear();
}

DifferenceWriter::~DifferenceWriter() {
    if (file_ == nullptr || done_) return;
    static_cast<void>(work_->behind.wait());
    file_.reset();
    static_cast<void>(system_.remove(temporary_));  // closed already, it would stay
}

Result<std::unique_ptr<DifferenceWriter>> DifferenceWriter::create(FileSystem& system, std::string path,
                                                                   std::uint32_t chunk_bytes,
                                                                   const PayloadSettings& settings,
                                                                   DifferenceTools* tools) try {
    if (!codec_available(settings.codec)) {
        return Error{ErrorCode::unsupported,
                     "this build of twinrun lacks zstd: build it with libzstd, or keep payload unpacked"};
    }
    std::unique_ptr<DifferenceWriter> writer(
        new DifferenceWriter(system, std::move(path), chunk_bytes, settings, tools));
    writer->temporary_ = temporary_name(writer->path_);
    TWR_TRY(writer->file_, system.create(writer->temporary_, 0));
    return writer;
} catch (const std::bad_alloc&) {
    return no_memory();
}

std::uint64_t DifferenceWriter::chunks() const { return chunks_; }
const std::vector<std::uint32_t>& DifferenceWriter::bases() const { return base_ordinals_; }

PendingChunks PendingChunks::first(std::uint64_t chunks, std::uint64_t chunk_bytes) const {
    return {bytes.first(chunks * chunk_bytes),
            base.first(std::min<std::size_t>(base.size(), chunks * chunk_bytes)),
            at.first(std::min<std::size_t>(at.size(), chunks)),
            reads.first(std::min<std::size_t>(reads.size(), chunks))};
}
PendingChunks PendingChunks::behind(std::uint64_t chunks, std::uint64_t chunk_bytes) const {
    return {bytes.subspan(chunks * chunk_bytes),
            base.subspan(std::min<std::size_t>(base.size(), chunks * chunk_bytes)),
            at.subspan(std::min<std::size_t>(at.size(), chunks)),
            reads.subspan(std::min<std::size_t>(reads.size(), chunks))};
}

// Keeps chunks until there are enough.
void DifferenceWriter::append(const PendingChunks& chunks) {
    DifferenceTools::Work& kept = *work_;
    const auto fill = [&] {
        kept.base.resize(kept.bytes.size());
        kept.at.resize(kept.bytes.size() / chunk_bytes_, kNoLocation);
        kept.reads.resize(kept.at.size());
    };
    with_base_ = with_base_ || !chunks.base.empty();
    if (with_base_) fill();  // what came before without one
    kept.bytes.insert(kept.bytes.end(), chunks.bytes.begin(), chunks.bytes.end());
    if (!with_base_) return;
    kept.base.insert(kept.base.end(), chunks.base.begin(), chunks.base.end());
    kept.at.insert(kept.at.end(), chunks.at.begin(), chunks.at.end());
    kept.reads.insert(kept.reads.end(), chunks.reads.begin(), chunks.reads.end());
    fill();
}

// Packs and writes what append() kept: whole blocks, or all.
Result<> DifferenceWriter::flush(bool all) {
    DifferenceTools::Work& kept = *work_;
    const std::uint64_t pending = kept.bytes.size() / chunk_bytes_;
    const std::uint64_t done = all ? pending : pending / block_chunks_ * block_chunks_;
    const PendingChunks part = kept.kept().first(done, chunk_bytes_);
    TWR_CHECK(write_blocks({&part, 1}));
    const auto at = static_cast<std::ptrdiff_t>(done);
    const auto bytes = static_cast<std::ptrdiff_t>(done * chunk_bytes_);
    kept.bytes.erase(kept.bytes.begin(), kept.bytes.begin() + bytes);
    if (!with_base_) return success();
    kept.base.erase(kept.base.begin(), kept.base.begin() + bytes);
    kept.at.erase(kept.at.begin(), kept.at.begin() + at);
    kept.reads.erase(kept.reads.begin(), kept.reads.begin() + at);
    return success();
}

Result<> DifferenceWriter::add(std::span<const std::byte> chunks, std::span<const std::byte> base,
                               std::span<const Location> base_at,
                               std::span<const std::uint32_t> base_reads) try {
    const std::uint64_t count = chunks.size() / chunk_bytes_;
    if (chunks_ + count > kMostPayloadChunks)
        return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
    PendingChunks left{chunks, base, base_at, base_reads};
    chunks_ += count;
    if (count >= kDirectBlocks * block_chunks_) {
        // Many are packed where they are, behind what is kept, whose last block becomes whole.
        const std::uint64_t over = work_->bytes.size() / chunk_bytes_ % block_chunks_;
        const std::uint64_t missing = over == 0 ? 0 : block_chunks_ - over;
        append(left.first(missing, chunk_bytes_));
        left = left.behind(missing, chunk_bytes_);
        const std::uint64_t direct = (count - missing) / block_chunks_ * block_chunks_;
        const PendingChunks parts[] = {work_->kept(), left.first(direct, chunk_bytes_)};
        TWR_CHECK(write_blocks(parts));
        work_->clear();
        left = left.behind(direct, chunk_bytes_);
    }
    append(left);
    return work_->bytes.size() >= kWriteBytes ? flush(false) : success();
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> DifferenceWriter::add_packed(std::span<const PackedBlock> blocks) try {
    // As many as are written together.
    std::size_t begin = 0;
    std::uint64_t size = 0;
    const auto write = [&](std::size_t end) -> Result<> {
        std::byte* to = work_->reserve_out(size);
        for (; begin != end; ++begin)
            to = std::copy(blocks[begin].bytes.begin(), blocks[begin].bytes.end(), to);
        return write_out(std::exchange(size, 0));
    };
    for (std::size_t b = 0; b < blocks.size(); ++b) {
        const PackedBlock& block = blocks[b];
        if (!work_->bytes.empty() || block.chunks == 0 || block.chunks > block_chunks_ ||
            chunks_ % block_chunks_ != 0) {
            return Error{ErrorCode::internal, "packed payload that does not fit what came before it"};
        }
        if (chunks_ + block.chunks > kMostPayloadChunks)
            return Error{ErrorCode::invalid_argument, "more than 2^39 chunks: larger chunks are needed"};
        blocks_.push_back({written_ + size, static_cast<std::uint32_t>(block.bytes.size()),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, 1, false,
                           xxh3(block.bytes)});
        block_reads_.push_back(static_cast<std::uint32_t>(divide_up(block.bytes.size(), block.chunks)));
        size += block.bytes.size();
        chunks_ += block.chunks;
        if (size >= kWriteBytes) TWR_CHECK(write(b + 1));
    }
    return write(blocks.size());
} catch (const std::bad_alloc&) {
    return no_memory();
}

void DifferenceWriter::pack_plain(Block& block, int worker) {
    BlockPacker& packer = work_->packers[static_cast<std::size_t>(worker)];
    const std::size_t raw = block.part.bytes.size();
    const std::size_t size = packer.pack(block.part.bytes, block.codings.plain);
    block.stored = size == 0;
    block.xored = false;
    block.bytes = block.stored ? raw : size;
    if (!block.stored) std::swap(block.packed, packer.packed());
}

// The same after XOR with the block's bases, if that takes enough less than `plain` bytes.
void DifferenceWriter::pack_mixed(Block& block, std::size_t plain, int worker) {
    const PendingChunks& part = block.part;
    auto& mixed = work_->mixed[static_cast<std::size_t>(worker)];
    mixed.resize(part.bytes.size());
    xor_bytes(part.bytes, part.base.data(), mixed.data());
    BlockPacker& packer = work_->packers[static_cast<std::size_t>(worker)];
    const std::size_t size = packer.pack(mixed, block.codings.mixed);
    std::uint64_t reads = 0;
    for (std::size_t i = 0; i < part.reads.size(); ++i) {
        if (part.at[i] != kNoLocation) reads += part.reads[i];
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

// Compresses one block, alone or mixed with its bases, whichever is smaller by enough. Only one of
// these is tried where the measured block says which one it will be.
void DifferenceWriter::pack_block(Block& block, int worker) {
    const std::size_t raw = block.part.bytes.size();
    block.stored = true;
    block.xored = false;
    block.bytes = raw;
    block.base_reads = 0;
    if (settings_.codec == PayloadCodec::zstd) {
        const std::uint64_t plain = block.codings.plain.share;
        const std::uint64_t mixed = block.codings.mixed.share;
        const bool mixes = block.has_base();
        const bool measured = plain != 0 && mixed != 0;
        if (mixes && measured && mixed * 4 < plain * 3) pack_mixed(block, plain * raw / kCodingShare, worker);
        if (!block.xored) {
            pack_plain(block, worker);
            if (mixes && (!measured || (mixed * 4 >= plain * 3 && mixed < plain) ||
                          block.codings.plain.share != plain))
                pack_mixed(block, block.bytes, worker);
        }
    }
    block.checksum = xxh3(block.kept());
}

// First one block of each group, on which its coding is measured, then all others. So which block
// is measured depends on its place alone.
void DifferenceWriter::pack_all(std::span<Block> blocks) {
    const std::uint64_t before = blocks_.size();
    const auto group_of = [&](std::uint64_t b) { return (before + b) / kGroupBlocks; };
    std::vector<std::uint64_t> turns[2];
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
        blocks[b].codings = {};
        turns[codings_.try_emplace(group_of(b)).second ? 0 : 1].push_back(b);
    }
    for (const std::vector<std::uint64_t>& turn : turns) {
        std::atomic<bool> failed{false};
        work_->each(turn.size(), true, [&](std::size_t i, int worker) {
            try {
                Block& block = blocks[turn[i]];
                block.codings = codings_.at(group_of(turn[i]));
                pack_block(block, worker);
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

// Notes what the chunks of the newest block, a mixed one, were XORed with.
void DifferenceWriter::note_bases(const Block& block) {
    const std::uint64_t before = (blocks_.size() - 1) * block_chunks_;
    for (std::uint64_t i = 0; i < block.part.at.size(); ++i) {
        const Location at = block.part.at[i];
        if (at == kNoLocation) continue;
        const std::uint64_t chunk = before + i;
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
Result<> DifferenceWriter::write_blocks(std::span<const PendingChunks> parts) {
    auto& blocks = work_->blocks;
    std::size_t count = 0;
    for (PendingChunks left : parts) {
        for (std::uint64_t chunks = left.bytes.size() / chunk_bytes_; chunks != 0;) {
            const auto own = std::min<std::uint64_t>(block_chunks_, chunks);
            if (blocks.size() == count) blocks.emplace_back();
            blocks[count++].part = left.first(own, chunk_bytes_);
            left = left.behind(own, chunk_bytes_);
            chunks -= own;
        }
    }
    const std::span all = std::span(blocks).first(count);
    pack_all(all);
    return write_packed(all);
}

Result<> DifferenceWriter::write_packed(std::span<const Block> blocks) {
    std::vector<std::uint64_t> offsets;
    offsets.reserve(blocks.size());
    std::uint64_t size = 0;
    for (const Block& block : blocks) {
        offsets.push_back(size);
        blocks_.push_back({written_ + size, static_cast<std::uint32_t>(block.bytes),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd,
                           block.stored ? std::uint8_t{1} : block.coding().width, block.xored, block.checksum,
                           block.coding().form});
        const std::uint64_t chunks = block.part.bytes.size() / chunk_bytes_;
        block_reads_.push_back(static_cast<std::uint32_t>(divide_up(block.bytes + block.base_reads, chunks)));
        if (block.xored) note_bases(block);
        size += block.bytes;
    }
    std::byte* const to = work_->reserve_out(size);
    work_->each(blocks.size(), size >= kTeamBytes, [&](std::size_t b, int) {
        const auto kept = blocks[b].kept();
        std::copy(kept.begin(), kept.end(), to + offsets[b]);
    });
    return write_out(size);
}

// Writes the first `size` bytes of the memory for that behind those before.
Result<> DifferenceWriter::write_out(std::uint64_t size) {
    if (size == 0) return success();
    TWR_CHECK(work_->behind.put(*file_, written_, work_->out, size));
    written_ += size;
    return success();
}

Result<DifferenceWriter::Written> DifferenceWriter::finish(Difference&& difference) try {
    TWR_CHECK(difference.directory.check(chunk_bytes_));
    TWR_CHECK(flush(true));
    TWR_CHECK(work_->behind.wait());
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
