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

Error no_memory() { return Error{ErrorCode::out_of_memory, "not enough memory to write a record"}; }

}  // namespace

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

}  // namespace twinrun
