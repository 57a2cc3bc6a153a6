#include "dedup/device_payload.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <tuple>

#include "dedup/shares.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
constexpr std::size_t kSmallestPiece = std::size_t{256} << 10;
constexpr std::size_t kSpinBytes = std::size_t{4} << 20;  // 0.1 ms on their way
// Where all chunks of a slice are sent and it has at most so many parts, each is copied from where
// it lies.
constexpr std::size_t kMostCopies = 16;
// One thread puts some 10,000 runs to their places in the time in which others wake up.
constexpr std::size_t kTeamRuns = std::size_t{1} << 15;
constexpr int kMostThreads = 8;  // they share the memory's rate

}  // namespace

DevicePayload::DevicePayload(DedupContext& context, const DeviceImage& image)
    : context_(context), image_(image), team_(std::clamp(context.options.threads, 1, kMostThreads)) {}

Result<> DevicePayload::prepare() {
    for (Piece& piece : pieces_)
        TWR_CHECK(piece.done.make(context_.device));
    if (context_.options.pack_block_bytes != 0) {
        TWR_TRY(packer_, DevicePacker::create(context_.device, context_.options.pack_block_bytes));
    }
    return success();
}

Result<> DevicePayload::send(DeviceStep& step, const ImageSlice& of, const SlicePayload& given) {
    SlicePayload what = given;
    if (packer_ != nullptr) {
        TWR_CHECK(pack(step, of, what));
        what.chunks = 0;
    }
    const bool base = gives_base(what);
    const bool in_place = what.chunks == of.chunks && !base && of.part_count <= kMostCopies;
    for (Sent sent; sent.entries < what.entry_count || sent.chunks < what.chunks;) {
        if (under_way_.size() == kPieces) TWR_CHECK(hand_out(step));
        const std::size_t needed = piece_bytes(what, sent);
        const std::size_t chosen = idle_piece(needed);
        Piece& piece = pieces_[chosen];
        TWR_CHECK(piece.host.reserve(kHostMemory, needed));
        plan_piece(piece, of, what, sent);
        TWR_CHECK(stage(piece, of, what, sent, in_place));
        if (in_place) TWR_CHECK(copy_in_place(of, of.first + sent.chunks, piece));
        TWR_CHECK(piece.done.record(context_.copying.get()));
        under_way_.push_back(chosen);
        sent.entries += piece.entries;
        sent.chunks += piece.chunks;
    }
    return success();
}

// Bytes of a chunk that is sent, with its base and where that is.
std::size_t DevicePayload::chunk_bytes(const SlicePayload& what) const {
    return gives_base(what) ? 2 * context_.chunk + sizeof(Location) : context_.chunk;
}

// The memory that a piece for the rest needs.
std::size_t DevicePayload::piece_bytes(const SlicePayload& what, const Sent& sent) const {
    const std::uint64_t left = (what.entry_count - sent.entries) * sizeof(DeviceRunEntry) +
                               (what.chunks - sent.chunks) * chunk_bytes(what) + 4 * kDeviceAlignment;
    return std::min<std::uint64_t>(kPieceBytes, std::max<std::uint64_t>(kSmallestPiece, std::bit_ceil(left)));
}

// The idle piece with the least memory that is enough; where none has enough, with the most:
// page-locked memory takes milliseconds to allocate. So memory is allocated only where more pieces
// are under way at once than ever before, or larger ones. At least one piece must be idle.
std::size_t DevicePayload::idle_piece(std::size_t needed) const {
    const auto rank = [&](std::size_t piece) {
        const std::size_t bytes = pieces_[piece].host.bytes();
        const bool idle = std::find(under_way_.begin(), under_way_.end(), piece) == under_way_.end();
        return std::tuple(!idle, bytes < needed, bytes < needed ? ~bytes : bytes);
    };
    std::size_t best = 0;
    for (std::size_t p = 1; p < kPieces; ++p) {
        if (rank(p) < rank(best)) best = p;
    }
    return best;
}

// The part of the rest that goes with this piece, and its place in the memory.
void DevicePayload::plan_piece(Piece& piece, const ImageSlice& of, const SlicePayload& what,
                               const Sent& sent) const {
    const std::uint64_t chunk = context_.chunk;
    const bool base = gives_base(what);
    const std::size_t each = chunk_bytes(what);
    const std::uint64_t entries_left = what.entry_count - sent.entries;
    const std::uint64_t chunks_left = what.chunks - sent.chunks;
    const std::size_t room = std::min(piece.host.bytes(), kPieceBytes);
    piece.first = of.origin;
    piece.entries = std::min<std::uint64_t>(entries_left, room / sizeof(DeviceRunEntry));
    piece.continues = what.continues && sent.entries == 0;
    piece.base = base;
    piece.chunks_at = device_aligned(piece.entries * sizeof(DeviceRunEntry));
    piece.chunks = 0;
    // Chunks follow the last entry.
    if (piece.entries == entries_left && piece.chunks_at + 2 * kDeviceAlignment < room) {
        piece.chunks =
            std::min<std::uint64_t>(chunks_left, (room - piece.chunks_at - 2 * kDeviceAlignment) / each);
    }
    piece.base_at = device_aligned(piece.chunks_at + piece.chunks * chunk);
    piece.where_at = base ? device_aligned(piece.base_at + piece.chunks * chunk) : piece.base_at;
    piece.bytes = piece.where_at + (base ? piece.chunks * sizeof(Location) : 0);
    piece.gaps.clear();
}

DeviceConsolidate DevicePayload::consolidation(const ImageSlice& of, const SlicePayload& what,
                                               std::uint64_t first_chunk) const {
    DeviceConsolidate work;
    work.chunk_bytes = context_.options.chunk_bytes;
    work.parts = image_.device_parts(of);
    work.part_count = static_cast<std::uint32_t>(of.part_count);
    if (what.fresh != nullptr) {
        work.chunks = what.fresh + first_chunk;
    } else {
        work.first_chunk = static_cast<std::uint32_t>(of.first + first_chunk);
    }
    return work;
}

// Collects a piece in device memory and copies it to the host; with in_place only its entries.
Result<> DevicePayload::stage(Piece& piece, const ImageSlice& of, const SlicePayload& what, const Sent& sent,
                              bool in_place) {
    DedupContext& c = context_;
    DeviceConsolidate work = consolidation(of, what, sent.chunks);
    work.entries = what.entries + sent.entries;
    work.entry_count = piece.entries;
    work.chunk_count = in_place ? 0 : piece.chunks;
    if (work.entry_count == 0 && work.chunk_count == 0) return success();
    TWR_CHECK(piece.staged.reserve(c.device, piece.host.bytes()));
    work.to_entries = piece.staged.as<DeviceRunEntry>();
    work.to = piece.staged.data() + piece.chunks_at;
    if (piece.base) {
        const DeviceBase from = image_.base(of.origin);
        work.base = from.image;
        work.base_at = from.where;
        work.to_base = piece.staged.data() + piece.base_at;
        work.to_base_at = piece.staged.as<Location>(piece.where_at);
    }
    TWR_CHECK(to_result(c.kernels.consolidate(c.device, work, c.working.get())));
    TWR_CHECK(c.copying.follow(c.working.get()));
    const std::size_t bytes = in_place ? piece.entries * sizeof(DeviceRunEntry) : piece.bytes;
    return c.copy(piece.host.data(), piece.staged.data(), bytes, c.copying);
}

// Copies chunks of a slice, from number `first` on, from where they lie.
Result<> DevicePayload::copy_in_place(const ImageSlice& of, std::uint64_t first, Piece& piece) {
    const std::uint64_t chunk = context_.chunk;
    for (const DeviceDedupPart& part : image_.parts(of)) {
        const std::uint64_t begin = std::max<std::uint64_t>(first, part.first);
        const std::uint64_t end =
            std::min<std::uint64_t>(first + piece.chunks, std::uint64_t{part.first} + part.chunks);
        if (begin >= end) continue;
        const std::uint64_t from = (begin - part.first) * chunk;
        const std::uint64_t bytes = std::min(part.bytes, (end - part.first) * chunk) - from;
        const std::size_t to = piece.chunks_at + (begin - first) * chunk;
        TWR_CHECK(context_.copy(piece.host.data() + to, part.data + from, bytes, context_.copying));
        if (bytes != (end - begin) * chunk) piece.gaps.emplace_back(to + bytes, to + (end - begin) * chunk);
    }
    return success();
}

// The runs of a piece's entries, behind those before them.
Result<> DevicePayload::add_runs(const Piece& piece, DeviceStep& step) {
    const auto* entry = piece.host.as<DeviceRunEntry>();
    const auto* const end = entry + piece.entries;
    std::vector<Run>& runs = step.outcome.runs;
    const auto run_of = [&](const DeviceRunEntry& from) {
        return Run{piece.first + from.begin, std::uint64_t{from.last} - from.begin + 1,
                   from.source & ~kDeviceFresh, (from.source & kDeviceFresh) != 0};
    };
    if (piece.continues && entry != end) {
        if (step.runs_put == 0) return Error{ErrorCode::internal, "a run that goes on before it began"};
        const Run more = run_of(*entry++);
        Run& last = runs[step.runs_put - 1];
        last = Run(last.begin, last.count + more.count, last.source, more.repeat);
    }
    const auto count = static_cast<std::size_t>(end - entry);
    if (runs.size() < step.runs_put + count) runs.resize(step.runs_put + count);
    const auto put = [&](std::size_t first, std::size_t last) {
        std::transform(entry + first, entry + last, runs.data() + step.runs_put + first, run_of);
    };
    if (count < kTeamRuns) {
        put(0, count);
    } else {
        each_share(team_, count, [&](const ShareRange& of, int) { put(of.begin, of.end); });
    }
    step.runs_put += count;
    return success();
}

Result<bool> DevicePayload::hand_out_arrived(DeviceStep& step) {
    if (under_way_.empty()) return false;
    TWR_TRY(const bool is_there, pieces_[under_way_.front()].done.done());
    if (is_there) TWR_CHECK(hand_out(step));
    return is_there;
}

// Waits for the oldest piece, adds its runs to the outcome, and gives its chunks to the sink.
Result<> DevicePayload::hand_out(DeviceStep& step) {
    Piece& piece = pieces_[under_way_.front()];
    TWR_CHECK(piece.bytes <= kSpinBytes ? piece.done.wait_soon() : piece.done.wait());
    under_way_.pop_front();
    TWR_CHECK(add_runs(piece, step));
    for (const auto& [begin, end] : piece.gaps)
        std::memset(piece.host.data() + begin, 0, end - begin);
    if (piece.chunks == 0) return success();
    PayloadSink::Chunks chunks;
    chunks.bytes = {piece.host.data() + piece.chunks_at, piece.chunks * context_.chunk};
    if (piece.base) {
        chunks.base = {piece.host.data() + piece.base_at, piece.chunks * context_.chunk};
        chunks.base_at = {piece.host.as<Location>(piece.where_at), piece.chunks};
    }
    return step.sink->take(chunks);
}

Result<> DevicePayload::finish(DeviceStep& step) {
    while (!under_way_.empty())
        TWR_CHECK(hand_out(step));
    return packer_ != nullptr ? hand_out_packed(step, true) : success();
}

// ---- packed payload ----

// Copies chunks of a slice to where payload is packed.
Result<> DevicePayload::pack(DeviceStep& step, const ImageSlice& of, const SlicePayload& what) {
    DedupContext& c = context_;
    for (std::uint64_t done = 0; done < what.chunks;) {
        TWR_TRY(std::byte* const to, packer_->reserve((what.chunks - done) * c.chunk));
        DeviceConsolidate work = consolidation(of, what, done);
        work.chunk_count = std::min(what.chunks - done, packer_->room() / c.chunk);
        work.to = to;
        TWR_CHECK(to_result(c.kernels.consolidate(c.device, work, c.working.get())));
        packer_->added(work.chunk_count * c.chunk);
        done += work.chunk_count;
        if (packer_->room() < c.chunk) TWR_CHECK(hand_out_packed(step, false));
    }
    return success();
}

Result<> DevicePayload::hand_out_packed(DeviceStep& step, bool all) {
    return packer_->pack(all, context_.options.chunk_bytes, context_.working,
                         [&](std::span<const PackedBlock> blocks) { return step.sink->take_packed(blocks); });
}

// ---- memory ----

void DevicePayload::drop() {
    under_way_.clear();
    if (packer_ != nullptr) packer_->clear();
}

void DevicePayload::release() {
    if (packer_ != nullptr) packer_->release();
    for (Piece& piece : pieces_) {
        piece.staged.clear();
        piece.host.clear();
    }
}

std::uint64_t DevicePayload::memory_bytes() const {
    std::uint64_t bytes = packer_ != nullptr ? packer_->memory_bytes() : 0;
    for (const Piece& piece : pieces_)
        bytes += piece.staged.bytes() + piece.host.bytes();
    return bytes;
}

}  // namespace twinrun
