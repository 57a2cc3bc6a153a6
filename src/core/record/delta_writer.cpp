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
#include "record/planes.hpp"

namespace twinrun {

namespace {

constexpr std::uint32_t kStoredBlock = 64U << 10;
constexpr std::uint64_t kWriteBytes = std::uint64_t{8} << 20;
// Blocks whose coding is measured once: to try all codings takes seven times as long as one.
constexpr std::uint64_t kGroupBlocks = 16;

Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory to write a record"}; }

}  // namespace

struct DifferenceWriter::Block {
    std::uint64_t first = 0;  // chunk among the pending
    std::uint64_t chunks = 0;
    std::vector<std::byte> packed;
    std::size_t bytes = 0;
    bool stored = true;
    bool xored = false;
    std::uint8_t planes = 1;
    Coding coding;
    std::uint64_t checksum = 0;
};

struct DifferenceWriter::Work {
    explicit Work(int threads)
        : team(std::max(1, threads)),
          compressors(static_cast<std::size_t>(team.size())),
          scratch(compressors.size()),
          planes(compressors.size()),
          best(compressors.size()),
          other(compressors.size()) {}
    Team team;
    std::vector<Compressor> compressors;
    std::vector<std::vector<std::byte>> scratch;
    std::vector<std::vector<std::byte>> planes;
    std::vector<std::vector<std::byte>> best;
    std::vector<std::vector<std::byte>> other;
    std::vector<Block> blocks;
    std::vector<std::byte> out;
};

DifferenceWriter::DifferenceWriter(FileSystem& system, std::string path, std::uint32_t chunk_bytes,
                                   const PayloadSettings& settings)
    : system_(system), path_(std::move(path)), chunk_bytes_(chunk_bytes), settings_(settings) {
    if (settings_.block_bytes == 0)
        settings_.block_bytes = settings_.codec == PayloadCodec::stored ? kStoredBlock : kPackedBlockBytes;
    block_chunks_ = std::max(1U, std::min(settings_.block_bytes, kLargestPayloadBlock) / chunk_bytes_);
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
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, 1, false,
                           xxh3(block.bytes)});
        out.insert(out.end(), block.bytes.begin(), block.bytes.end());
        chunks_ += block.chunks;
        if (out.size() >= kWriteBytes) TWR_CHECK(write());
    }
    return write();
} catch (const std::bad_alloc&) {
    return no_memory();
}

// Packs in planes, or where `planes` is 1 as it is. Returns the size; 0: no room.
std::size_t DifferenceWriter::pack_in(std::span<const std::byte> raw, std::uint8_t planes,
                                      std::span<std::byte> to, int worker) {
    const auto w = static_cast<std::size_t>(worker);
    auto& compressor = work_->compressors[w];
    if (planes == 1) return compressor.pack(raw, to, settings_.level);
    return pack_planes(compressor, raw, planes, settings_.level, work_->planes[w], to);
}

// Packs `raw` to the worker's `best`, as the block that was measured before it was. Where none was,
// or where it packs much worse or better than that one, all codings are tried, and `planes` and
// `share` become those of the smallest. Returns the size; 0: it does not fit in `room`.
std::size_t DifferenceWriter::pack_coded(std::span<const std::byte> raw, std::size_t room,
                                         std::uint8_t& planes, std::uint32_t& share, int worker) {
    const auto w = static_cast<std::size_t>(worker);
    auto& best = work_->best[w];
    auto& other = work_->other[w];
    best.resize(std::max(best.size(), raw.size()));
    other.resize(std::max(other.size(), raw.size()));
    std::size_t size = 0;
    const auto share_of_raw = [&](std::size_t bytes) {
        return static_cast<std::uint32_t>((bytes == 0 ? raw.size() : bytes) * 1024 / raw.size() + 1);
    };
    const std::uint32_t expected = share;
    size = pack_in(raw, planes, std::span(best).first(room), worker);
    const std::uint32_t got_share = share_of_raw(size);
    const std::uint32_t alike = expected / 8 + 16;
    if (expected != 0 && got_share <= expected + alike && got_share + alike >= expected) return size;
    const std::uint8_t tried = planes;
    for (const unsigned candidate : {1U, 2U, 4U, 8U}) {
        if (candidate == tried) continue;
        // No better than what is there by a 256th is not worth the planes.
        const std::size_t less = size == 0 ? room : size - std::max<std::size_t>(1, size / 256);
        const auto coding = static_cast<std::uint8_t>(candidate);
        const std::size_t got = pack_in(raw, coding, std::span(other).first(less), worker);
        if (got == 0) continue;
        size = got;
        planes = coding;
        std::swap(best, other);
    }
    share = share_of_raw(size);
    return size;
}

void DifferenceWriter::pack_alone(Block& block, std::span<const std::byte> raw, int worker) {
    const std::size_t size =
        pack_coded(raw, raw.size() - 1, block.coding.plain, block.coding.plain_share, worker);
    if (size == 0) return;
    block.planes = block.coding.plain;
    block.stored = false;
    block.bytes = size;
    std::swap(block.packed, work_->best[static_cast<std::size_t>(worker)]);
}

// The same after XOR with the block's bases, if that is smaller by enough.
void DifferenceWriter::pack_mixed(Block& block, std::span<const std::byte> raw, int worker) {
    bool has_base = false;
    for (std::uint64_t i = 0; with_base_ && !has_base && i < block.chunks; ++i)
        has_base = pending_at_[block.first + i] != kNoLocation;
    if (!has_base) return;
    const auto w = static_cast<std::size_t>(worker);
    auto& mixed = work_->scratch[w];
    mixed.resize(raw.size());
    const std::byte* base = pending_base_.data() + block.first * chunk_bytes_;
    for (std::size_t i = 0; i < raw.size(); ++i)
        mixed[i] = raw[i] ^ base[i];
    const std::size_t size =
        pack_coded(mixed, raw.size() - 1, block.coding.mixed, block.coding.mixed_share, worker);
    // At least an eighth must be saved: to name the bases takes bytes, and each later read takes
    // time for the bases.
    const std::size_t room = block.bytes - std::min(block.bytes, std::max<std::size_t>(17, block.bytes / 8));
    if (size == 0 || size > room) return;
    std::swap(block.packed, work_->best[w]);
    block.planes = block.coding.mixed;
    block.bytes = size;
    block.stored = false;
    block.xored = true;
}

// Compresses one block of what is pending, alone or mixed with its bases, whichever is smaller by
// enough.
void DifferenceWriter::pack_block(Block& block, int worker) {
    const auto raw =
        std::span<const std::byte>(pending_).subspan(block.first * chunk_bytes_, block.chunks * chunk_bytes_);
    block.stored = true;
    block.xored = false;
    block.planes = 1;
    block.bytes = raw.size();
    if (settings_.codec == PayloadCodec::zstd) {
        pack_alone(block, raw, worker);
        pack_mixed(block, raw, worker);
    }
    block.checksum = xxh3(block.stored ? raw : std::span<const std::byte>(block.packed).first(block.bytes));
}

// First one block of each group, on which its coding is measured, then all others. So which block
// is measured depends on its place alone.
void DifferenceWriter::pack_all(std::span<Block> blocks, std::uint64_t pending) {
    const std::uint64_t before = blocks_.size();
    const auto group_of = [&](std::uint64_t b) { return (before + b) / kGroupBlocks; };
    std::vector<std::uint64_t> turns[2];
    for (std::uint64_t b = 0; b < blocks.size(); ++b) {
        blocks[b].first = b * block_chunks_;
        blocks[b].chunks = std::min<std::uint64_t>(block_chunks_, pending - blocks[b].first);
        blocks[b].coding = {};
        turns[codings_.try_emplace(group_of(b)).second ? 0 : 1].push_back(b);
    }
    for (const std::vector<std::uint64_t>& turn : turns) {
        std::atomic<std::uint64_t> next{0};
        std::atomic<bool> failed{false};
        work_->team.run([&](int worker) {
            try {
                for (std::uint64_t i = next++; i < turn.size(); i = next++) {
                    Block& block = blocks[turn[i]];
                    block.coding = codings_.at(group_of(turn[i]));
                    pack_block(block, worker);
                }
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        });
        if (failed) throw std::bad_alloc();
        if (&turn != &turns[0]) break;
        for (const std::uint64_t b : turn)
            codings_[group_of(b)] = blocks[b].coding;
    }
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
    pack_all(std::span(blocks).first(count), pending);

    auto& out = work_->out;
    out.clear();
    for (std::uint64_t b = 0; b < count; ++b) {
        const Block& block = blocks[b];
        const std::byte* from =
            block.stored ? pending_.data() + block.first * chunk_bytes_ : block.packed.data();
        out.insert(out.end(), from, from + block.bytes);
        blocks_.push_back({written_ + out.size() - block.bytes, static_cast<std::uint32_t>(block.bytes),
                           block.stored ? PayloadCodec::stored : PayloadCodec::zstd, block.planes,
                           block.xored, block.checksum});
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
