#include "history/recorder.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "base/checked.hpp"
#include "device/device.hpp"
#include "record/pack_device.hpp"

namespace twinrun {

namespace {

// The longest chain of XORs: reading a chunk reads one block for each.
constexpr std::uint32_t kMostXors = 16;
// Chains of bases: after each kTryMap steps a complete map is written if it is small, after
// kMustMap steps always.
constexpr std::uint32_t kTryMap = 32;
constexpr std::uint32_t kMustMap = 256;
constexpr std::uint64_t kBytesOfRun = 6;    // estimate of a run's size in the file
constexpr std::size_t kMostReadsKept = 64;  // differences
constexpr std::uint64_t kLearnBytes = std::uint64_t{16} << 20;

// Bytes that reading a step takes, for each that it takes where it stands alone.
constexpr std::uint64_t kMostReads = 2;

// Whether all chunks are new but for an eighth.
bool nearly_all(std::uint64_t chunks, std::uint64_t of) { return chunks != 0 && chunks * 8 >= of * 7; }

// Whether a difference cannot be read: then it is not used, and recording continues without it.
bool unreadable(const Error& error) {
    return error.code == ErrorCode::damaged || error.code == ErrorCode::not_found ||
           error.code == ErrorCode::io;
}

}  // namespace

// Passes payload from the deduplicator to the writer, and leaves out bases whose chain of XORs is
// too long.
class Recorder::Sink final : public PayloadSink {
   public:
    Sink(Recorder& recorder, DifferenceWriter& writer) : recorder_(recorder), writer_(writer) {}
    Result<> take(const Chunks& chunks) override {
        auto taken = add(chunks);
        failed_ = failed_ || !taken;
        return taken;
    }
    Result<> take_packed(std::span<const PackedBlock> blocks) override {
        auto taken = writer_.add_packed(blocks);
        failed_ = failed_ || !taken;
        return taken;
    }
    [[nodiscard]] bool failed() const { return failed_; }

   private:
    Result<> add(const Chunks& chunks) {
        if (chunks.base.empty()) return writer_.add(chunks.bytes, {}, {});
        at_.assign(chunks.base_at.begin(), chunks.base_at.end());
        reads_.assign(at_.size(), 0);
        const std::size_t chunk = recorder_.options_.settings.chunk_bytes;
        std::span<const std::byte> base = chunks.base;
        for (std::size_t i = 0; i < at_.size(); ++i) {
            if (at_[i] == kNoLocation) continue;
            TWR_TRY(const std::uint32_t depth, recorder_.depth_of(ordinal_of(at_[i])));
            if (depth + 1 <= kMostXors) {
                TWR_TRY(const Reads* reads, recorder_.reads_of(ordinal_of(at_[i])));
                reads_[i] = reads->of(at_[i], recorder_.options_.settings.chunk_bytes);
                continue;
            }
            // The chain is too long: the chunk is stored without a base.
            at_[i] = kNoLocation;
            if (base.data() == chunks.base.data()) {
                base_.assign(chunks.base.begin(), chunks.base.end());
                base = base_;
            }
            std::memset(base_.data() + i * chunk, 0, chunk);
        }
        return writer_.add(chunks.bytes, base, at_, reads_);
    }

    Recorder& recorder_;
    DifferenceWriter& writer_;
    std::vector<Location> at_;
    std::vector<std::uint32_t> reads_;
    std::vector<std::byte> base_;
    bool failed_ = false;
};

Recorder::Recorder(const RecorderOptions& options, RecordChain::Locate locate, std::uint32_t first)
    : options_(options), locate_(std::move(locate)), next_(first) {
    chain_ = std::make_unique<RecordChain>(
        [this](std::uint32_t ordinal) -> Result<DifferencePlace> {
            std::error_code ignored;
            const auto own = own_.find(ordinal);
            if (own != own_.end() && std::filesystem::exists(own->second.file, ignored)) return own->second;
            return locate_(ordinal);
        },
        options.threads);
}
Recorder::~Recorder() = default;

Result<std::unique_ptr<Recorder>> Recorder::create(const RecorderOptions& options, RecordChain::Locate locate,
                                                   std::uint32_t first_ordinal) try {
    TWR_CHECK(options.settings.check());
    if (!codec_available(options.settings.codec)) {
        return Error{ErrorCode::unsupported,
                     "this build of twinrun lacks zstd: build it with libzstd, or record without packing"};
    }
    std::unique_ptr<Recorder> recorder(new Recorder(options, std::move(locate), first_ordinal));
    TWR_CHECK(recorder->make_deduplicator());
    return recorder;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to record"};
}

Result<> Recorder::make_deduplicator() {
    block_bytes_ = 0;
    DedupOptions dedup;
    dedup.method = options_.settings.method;
    dedup.chunk_bytes = options_.settings.chunk_bytes;
    dedup.table_bytes = options_.table_bytes;
    dedup.threads = options_.threads;
    dedup.give_base = options_.settings.xored;
    dedup.verify = options_.verify && options_.settings.method != RecordMethod::full;
    dedup.keep_base = dedup.give_base || dedup.verify || options_.settings.bounded;
    dedup.skip_when_all_new = !dedup.keep_base && options_.settings.method != RecordMethod::full;
    dedup.hash_bits = options_.hash_bits;
    if (dedup.verify) {
        dedup.read = [chain = chain_.get(), size = dedup.chunk_bytes](Location at, std::span<std::byte> to) {
            return chain->read_payload(at, 1, size, to);
        };
    }
    if (options_.device == kHostMemory) {
        TWR_TRY(deduplicator_, make_host_deduplicator(dedup));
    } else {
        // Compresses on the device too, if possible.
        if (options_.settings.codec == PayloadCodec::zstd && !dedup.give_base) {
            dedup.pack_block_bytes = std::max(kDevicePackedBlockBytes, dedup.chunk_bytes);
            if (auto packing = make_device_deduplicator(options_.device, dedup)) {
                deduplicator_ = std::move(packing).value();
                block_bytes_ = dedup.pack_block_bytes;
                return success();
            }
            dedup.pack_block_bytes = 0;
        }
        TWR_TRY(deduplicator_, make_device_deduplicator(options_.device, dedup));
    }
    return success();
}

bool Recorder::move_to_host() try {
    if (options_.device == kHostMemory) return false;
    const int device = std::exchange(options_.device, kHostMemory);
    if (!make_deduplicator()) {
        options_.device = device;
        return false;
    }
    brought_.clear();
    forget();
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

// Copies segments that are elsewhere to the device (or host) where the deduplicator works.
Result<> Recorder::bring(std::vector<ImageSegment>& image) {
    std::uint64_t total = 0;
    for (const ImageSegment& segment : image) {
        if (segment.device != options_.device) total += device_aligned(segment.bytes);
    }
    if (total == 0) return success();
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, "no library for devices"};
    TWR_CHECK(brought_.reserve(options_.device, total));
    std::vector<int> devices;
    std::uint64_t at = 0;
    for (ImageSegment& segment : image) {
        if (segment.device == options_.device) continue;
        const int device = options_.device == kHostMemory ? segment.device : options_.device;
        std::byte* const to = brought_.data() + at;
        TWR_CHECK(to_result(runtime->copy(device, to, segment.data, segment.bytes, nullptr)));
        devices.push_back(device);
        segment.data = to;
        segment.device = options_.device;
        at += device_aligned(segment.bytes);
    }
    for (const int device : devices)
        TWR_CHECK(to_result(runtime->wait_stream(device, nullptr)));
    return success();
}

Result<std::uint32_t> Recorder::depth_of(std::uint32_t ordinal) {
    if (const auto known = depth_.find(ordinal); known != depth_.end()) return known->second;
    TWR_TRY(const auto file, chain_->open(ordinal));
    std::uint32_t depth = 0;
    std::uint32_t last = kNoBase;
    for (const Run& run : file->difference().bases) {
        if (ordinal_of(run.source) == last) continue;
        last = ordinal_of(run.source);
        // Bases are earlier differences: the recursion ends.
        TWR_TRY(const std::uint32_t below, depth_of(last));
        depth = std::max(depth, below + 1);
    }
    return depth_[ordinal] = depth;
}

std::uint32_t Recorder::Reads::of(Location at, std::uint32_t chunk_bytes) const {
    const std::uint64_t block = chunk_of(at) / block_chunks;
    return block < blocks.size() ? blocks[block] : chunk_bytes;
}

Result<const Recorder::Reads*> Recorder::reads_of(std::uint32_t ordinal) {
    auto known = reads_.find(ordinal);
    if (known == reads_.end()) {
        TWR_TRY(Reads reads, reads_in_file(ordinal));
        known = reads_.emplace(ordinal, std::move(reads)).first;
    }
    return &known->second;
}

Result<Recorder::Reads> Recorder::reads_in_file(std::uint32_t ordinal) {
    TWR_TRY(const auto file, chain_->open(ordinal));
    const Difference& difference = file->difference();
    Reads found;
    // Leftovers have other places: their chunks count as if they were not packed.
    if (difference.partial()) return found;
    found.block_chunks = difference.block_chunks;
    std::vector<std::uint64_t> bytes(difference.blocks.size());
    for (const Run& run : difference.bases) {
        TWR_TRY(const Reads* reads, reads_of(ordinal_of(run.source)));
        for (std::uint64_t i = 0; i < run.count; ++i) {
            const std::uint64_t block = (run.begin + i) / difference.block_chunks;
            if (!difference.blocks[block].xored) continue;
            bytes[block] += reads->of(run.repeat ? run.source : run.source + i, difference.chunk_bytes);
        }
    }
    for (std::size_t b = 0; b < bytes.size(); ++b) {
        const std::uint64_t chunks = file->block_chunks(b);
        found.blocks.push_back(
            static_cast<std::uint32_t>(divide_up(difference.blocks[b].bytes + bytes[b], chunks)));
    }
    return found;
}

// What the step takes that the chain of XORs behind this one begins with, as a share of so many
// chunks.
Result<std::uint64_t> Recorder::alone_in_files(std::uint32_t ordinal, std::uint64_t chunks) {
    for (std::uint32_t deep = 0; deep <= kMostXors; ++deep) {
        TWR_TRY(const auto file, chain_->open(ordinal));
        const Difference& difference = file->difference();
        if (difference.bases.empty()) {
            std::uint64_t bytes = 0;
            for (const PayloadBlock& block : difference.blocks)
                bytes += block.bytes;
            if (!nearly_all(file->stored_chunks(), chunks)) return std::uint64_t{0};
            return bytes * chunks / file->stored_chunks();
        }
        ordinal = ordinal_of(difference.bases.front().source);
    }
    return std::uint64_t{0};
}

// Where nearly all chunks change in every step, and are XORed with the step before, a later step
// needs all of these. Before that takes more than twice the bytes of a step that stands alone, one
// does. All of its chunks are new then: few that are as they were would need the whole chain.
void Recorder::plan_next(const StepOutcome& outcome, const DifferenceWriter& writer,
                         std::uint64_t payload_bytes, std::uint32_t depth) {
    next_alone_ = false;
    if (!nearly_all(outcome.payload, outcome.chunks)) return;
    if (writer.bases().empty()) {
        alone_bytes_ = payload_bytes * outcome.chunks / outcome.payload;
        return;
    }
    const std::uint64_t block = writer.block_bytes() / options_.settings.chunk_bytes;
    std::uint64_t reads = 0;
    for (std::size_t b = 0; b < writer.block_reads().size(); ++b)
        reads += writer.block_reads()[b] * std::min(block, outcome.payload - b * block);
    // The next one takes about as much as this one, or a little more.
    const std::uint64_t next = payload_bytes + payload_bytes / 8;
    next_alone_ = depth == kMostXors || (alone_bytes_ != 0 && reads + next > kMostReads * alone_bytes_);
}

// Before a step: bases lie in new differences as a rule.
void Recorder::trim_reads() {
    while (reads_.size() > kMostReadsKept)
        reads_.erase(reads_.begin());
}

Result<> Recorder::learn(std::span<const std::uint32_t> ordinals) try {
    if (options_.settings.method == RecordMethod::full || options_.settings.method == RecordMethod::basic)
        return success();
    const std::uint32_t chunk = options_.settings.chunk_bytes;
    // Finds the first difference such that it and all newer ones fit into the table.
    std::size_t first = ordinals.size();
    std::uint64_t entries = 0;
    while (first != 0) {
        auto file = chain_->open(ordinals[first - 1]);
        if (!file && !unreadable(file.error())) return std::move(file).error();
        if (file) entries += (*file)->stored_chunks();
        if (options_.table_bytes != 0 && entries * 56 > options_.table_bytes) break;
        --first;
    }
    std::vector<std::byte> buffer;
    const auto learn_one = [&](std::uint32_t ordinal) -> Result<> {
        TWR_TRY(const auto file, chain_->open(ordinal));
        const Difference& difference = file->difference();
        if (difference.chunk_bytes != chunk) return success();
        std::vector<Difference::Kept> parts = difference.kept;
        std::erase_if(parts, [&](const Difference::Kept& part) { return part.ordinal != ordinal; });
        if (!difference.partial()) parts = {{ordinal, 0, difference.payload_chunks}};
        for (const Difference::Kept& part : parts) {
            const std::uint64_t most = std::max<std::uint64_t>(1, kLearnBytes / chunk);
            for (std::uint64_t done = 0; done < part.count; done += most) {
                const std::uint64_t count = std::min(most, part.count - done);
                buffer.resize(count * chunk);
                TWR_CHECK(chain_->read_payload(location(ordinal, part.first + done), count, chunk, buffer));
                TWR_CHECK(deduplicator_->learn(location(ordinal, part.first + done), buffer));
            }
        }
        return success();
    };
    for (const std::uint32_t ordinal : ordinals.subspan(first)) {
        if (auto learnt = learn_one(ordinal); !learnt && !unreadable(learnt.error())) return learnt;
    }
    chain_->forget();  // closes the files: there may be many
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to append to a record"};
}

Result<> Recorder::rebase(std::uint32_t ordinal) try {
    StepMap map;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<ImageSegment> image;
    std::vector<std::uint32_t> bases;  // the chain of bases, with the difference itself
    const auto read = [&]() -> Result<> {
        TWR_TRY(map, chain_->map(ordinal));
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            const RecordSegment& segment = map.directory.segments[s];
            bytes.emplace_back(segment.bytes);
            TWR_CHECK(chain_->read_segment(map, s, bytes.back()));
            image.push_back({segment.name, bytes.back().data(), segment.bytes, std::nullopt, DType::u8});
        }
        TWR_TRY(bases, chain_->bases(ordinal));
        return success();
    };
    if (auto done = read(); !done) return unreadable(done.error()) ? success() : std::move(done);
    // Its chunks cannot be compared.
    if (map.chunk_bytes != options_.settings.chunk_bytes) return success();
    TWR_CHECK(bring(image));
    std::vector<Location> where;
    if (options_.settings.xored) {
        where.reserve(map.firsts.back());
        for (const Run& run : map.runs) {
            for (std::uint64_t i = 0; i < run.count; ++i)
                where.push_back(run.repeat ? run.source : run.source + i);
        }
    }
    TWR_CHECK(deduplicator_->rebase(ordinal, image, where));
    if (auto alone = alone_in_files(ordinal, map.firsts.back())) alone_bytes_ = *alone;
    next_alone_ = false;
    steps_since_map_ = static_cast<std::uint32_t>(bases.size()) - 1;
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to append to a record"};
}

void Recorder::forget() {
    deduplicator_->forget();
    chain_->forget();
    steps_since_map_ = 0;
    bytes_since_map_ = 0;
}

// Sometimes gives the difference a complete map (with the location of every chunk) and no base, so
// that reading a map needs few differences: when the map is small compared with what was written
// since the last one, or the chain of bases is too long.
Result<> Recorder::limit_chain(Difference& difference, std::uint64_t payload_bytes) {
    if (difference.base == kNoBase) {
        steps_since_map_ = 0;
        bytes_since_map_ = 0;
        return success();
    }
    bytes_since_map_ += payload_bytes + difference.runs.size() * kBytesOfRun;
    ++steps_since_map_;
    const bool must = steps_since_map_ >= kMustMap;
    if (!must && steps_since_map_ % kTryMap != 0) return success();
    TWR_TRY(auto all,
            chain_->resolve(difference.directory, difference.chunk_bytes, difference.runs, difference.base));
    chain_->forget();  // an open file would keep its space on a tier from which it is removed
    if (!must && all.size() * kBytesOfRun > bytes_since_map_ / 4) return success();
    difference.runs = std::move(all);
    difference.base = kNoBase;
    difference.method = RecordMethod::runs;
    steps_since_map_ = 0;
    bytes_since_map_ = 0;
    return success();
}

Result<Recorder::Recorded> Recorder::record(FileSystem& system, const std::string& path,
                                            RecordDirectory directory,
                                            std::span<const ImageSegment> image) try {
    TWR_CHECK(directory.check(options_.settings.chunk_bytes));
    if (next_ >= kMostOrdinals)
        return Error{ErrorCode::invalid_argument, "a record holds 2^24 steps at most: begin another one"};
    const std::uint32_t ordinal = next_++;
    trim_reads();
    if (std::exchange(next_alone_, false)) deduplicator_->forget();
    const auto recorded = [&]() -> Result<Recorded> {
        PayloadSettings payload;
        payload.codec = options_.settings.codec;
        payload.level = options_.settings.level;
        payload.block_bytes = block_bytes_;
        payload.threads = options_.threads;
        std::vector<ImageSegment> segments(image.begin(), image.end());
        device_failed_ = true;
        TWR_CHECK(bring(segments));
        device_failed_ = false;
        if (tools_ == nullptr) tools_ = std::make_unique<DifferenceTools>(payload);
        TWR_TRY(auto writer,
                DifferenceWriter::create(system, path, options_.settings.chunk_bytes, payload, tools_.get()));
        Sink sink(*this, *writer);
        auto found = deduplicator_->step(ordinal, segments, sink);
        device_failed_ = !found && !sink.failed() && options_.device != kHostMemory;
        TWR_TRY(StepOutcome outcome, std::move(found));
        Difference difference;
        difference.method = outcome.method;
        difference.chunk_bytes = options_.settings.chunk_bytes;
        difference.ordinal = ordinal;
        difference.base = outcome.base;
        difference.directory = std::move(directory);
        for (std::size_t s = 0; s < outcome.content.size(); ++s)
            difference.directory.segments[s].content = outcome.content[s];
        difference.runs = std::move(outcome.runs);
        TWR_CHECK(limit_chain(difference, outcome.payload * options_.settings.chunk_bytes));
        std::uint32_t depth = 0;
        TWR_TRY(const auto written, writer->finish(std::move(difference)));
        // NOLINTNEXTLINE(bugprone-use-after-move): finish() leaves the runs.
        deduplicator_->reuse(std::move(difference.runs));
        for (const std::uint32_t base : writer->bases()) {
            TWR_TRY(const std::uint32_t below, depth_of(base));
            depth = std::max(depth, below + 1);
        }
        depth_[ordinal] = depth;
        plan_next(outcome, *writer, written.payload_bytes, depth);
        reads_[ordinal] = {writer->block_bytes() / options_.settings.chunk_bytes, writer->block_reads()};
        own_[ordinal] = {path, written.header_checksum};
        return Recorded{ordinal,
                        written.bytes,
                        written.header_checksum,
                        written.bytes - written.payload_bytes,
                        written.payload_bytes,
                        outcome.chunks,
                        outcome.changed,
                        outcome.payload,
                        outcome.collisions};
    };
    auto done = recorded();
    if (!done) forget();
    return done;
} catch (const std::bad_alloc&) {
    forget();
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to record the step"};
}

}  // namespace twinrun
