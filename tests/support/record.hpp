// Records in tests: images that change at random, a record in memory by the definition alone, and a record in files.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "dedup/chunk_hash.hpp"
#include "dedup/deduplicator.hpp"
#include "record/delta_writer.hpp"
#include "record/entries.hpp"
#include "restore/chain.hpp"
#include "support/forwarding_file_system.hpp"

namespace twinrun::testing {

using RecordBytes = std::vector<std::byte>;

inline constexpr RecordMethod kAllMethods[] = {RecordMethod::full, RecordMethod::basic, RecordMethod::list,
                                               RecordMethod::tree, RecordMethod::runs};

// Files that are not synced: most tests do not cut the power, and to sync thousands of small files takes longer than all else.
class UnsyncedFileSystem final : public ForwardingFileSystem {
   public:
    UnsyncedFileSystem() : ForwardingFileSystem(posix_file_system()) {}
    Result<std::unique_ptr<OutputFile>> create(const std::string& path,
                                               std::uint64_t expected_bytes) override {
        TWR_TRY(auto file, ForwardingFileSystem::create(path, expected_bytes));
        return std::unique_ptr<OutputFile>(std::make_unique<File>(std::move(file)));
    }
    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override {
        TWR_TRY(auto file, ForwardingFileSystem::open_append(path, size));
        return std::unique_ptr<OutputFile>(std::make_unique<File>(std::move(file)));
    }
    Result<> sync_folder(const std::string&) override { return success(); }

   private:
    class File final : public OutputFile {
       public:
        explicit File(std::unique_ptr<OutputFile> inner) : inner_(std::move(inner)) {}
        Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
            return inner_->write_at(offset, bytes);
        }
        Result<> sync() override { return success(); }
        void set_time(std::int64_t mtime_ns) override { inner_->set_time(mtime_ns); }
        Result<> close() override { return inner_->close(); }

       private:
        std::unique_ptr<OutputFile> inner_;
    };
};
inline FileSystem& unsynced_file_system() {
    static UnsyncedFileSystem system;
    return system;
}

inline RecordBytes read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    const std::vector<char> text(std::istreambuf_iterator<char>(file), {});
    RecordBytes bytes(text.size());
    if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}
inline void write_file(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good()) << path;
}

// Changes bits of one byte where it is.
inline void flip_bits(const std::string& path, std::uint64_t at, std::byte bits) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    char byte = 0;
    file.get(byte);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(static_cast<std::byte>(byte) ^ bits));
    EXPECT_TRUE(file.good()) << path;
}

inline RecordBytes random_bytes(std::mt19937_64& random, std::size_t size) {
    RecordBytes bytes(size);
    for (std::size_t i = 0; i < size; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, size - i));
    }
    return bytes;
}
template <class T>
RecordBytes bytes_of(const std::vector<T>& values) {
    RecordBytes bytes(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

struct TestSegment {
    std::string name;
    RecordBytes bytes;
    unsigned shift = 0;  // bytes behind an aligned address
    std::optional<DifferenceRule> bound = {};
    DType dtype = DType::u8;
};
using TestImage = std::vector<TestSegment>;

inline void expect_same(const TestImage& got, const TestImage& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t s = 0; s < wanted.size(); ++s) {
        ASSERT_EQ(got[s].name, wanted[s].name);
        ASSERT_EQ(got[s].bytes.size(), wanted[s].bytes.size()) << wanted[s].name;
        const auto [a, b] = std::mismatch(got[s].bytes.begin(), got[s].bytes.end(), wanted[s].bytes.begin());
        ASSERT_TRUE(a == got[s].bytes.end())
            << "segment " << wanted[s].name << " differs from byte " << b - wanted[s].bytes.begin() << " of "
            << wanted[s].bytes.size();
    }
}

// An image in memory that begins and ends where its segments do, so that a sanitizer sees what is read past them.
class PlacedImage {
   public:
    explicit PlacedImage(const TestImage& image) {
        for (const TestSegment& segment : image) {
            const std::size_t size = segment.bytes.size();
            buffers_.push_back(std::make_unique<std::byte[]>(size + segment.shift));
            std::byte* data = buffers_.back().get() + segment.shift;
            if (size != 0) std::memcpy(data, segment.bytes.data(), size);
            segments_.push_back(
                {segment.name, size != 0 ? data : nullptr, size, segment.bound, segment.dtype});
        }
    }
    [[nodiscard]] std::span<const ImageSegment> segments() const { return segments_; }

   private:
    std::vector<std::unique_ptr<std::byte[]>> buffers_;
    std::vector<ImageSegment> segments_;
};

inline std::vector<std::uint64_t> first_chunks(const TestImage& image, std::uint32_t chunk_bytes) {
    std::vector<std::uint64_t> firsts = {0};
    for (const TestSegment& segment : image)
        firsts.push_back(firsts.back() + divide_up(segment.bytes.size(), chunk_bytes));
    return firsts;
}
inline std::size_t find_segment(const TestImage& image, const std::string& name) {
    std::size_t s = 0;
    while (s < image.size() && image[s].name != name)
        ++s;
    return s;
}
inline std::uint64_t content_of(std::span<const std::byte> bytes, std::uint32_t chunk_bytes) {
    std::vector<ChunkHash> hashes(divide_up(bytes.size(), chunk_bytes));
    chunk_hashes(bytes, chunk_bytes, hashes.data());
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < hashes.size(); ++i)
        sum += content_term(hashes[i], i);
    return sum;
}

// Segments that appear, vanish, grow, shrink, are reordered and come back; bytes that are written, copied, cleared, repeated.
class RandomHistory {
   public:
    RandomHistory(std::uint64_t seed, std::uint32_t chunk_bytes, std::uint64_t most_chunks = 40)
        : random_(seed), chunk_(chunk_bytes), most_(most_chunks) {}

    const TestImage& next() {
        if (past_.empty()) {
            for (std::uint64_t i = 0, n = 1 + below(4); i < n; ++i)
                add_segment();
        } else {
            for (std::uint64_t i = 0, n = below(5); i < n; ++i)
                change();
        }
        past_.push_back(now_);
        return past_.back();
    }
    // Only bytes change, in place.
    const TestImage& next_in_place() {
        if (past_.empty()) return next();
        for (std::uint64_t i = 0, n = below(6); i < n; ++i) {
            if (!now_.empty()) change_bytes(now_[below(now_.size())]);
        }
        past_.push_back(now_);
        return past_.back();
    }
    [[nodiscard]] const std::vector<TestImage>& past() const { return past_; }
    std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
    std::mt19937_64& random() { return random_; }

   private:
    std::uint64_t some_size() {
        switch (below(6)) {
            case 0: return below(4) == 0 ? 0 : 1 + below(chunk_);
            case 1: return chunk_ * (1 + below(most_));
            default: return chunk_ * below(most_) + below(chunk_);
        }
    }
    RecordBytes some_bytes(std::uint64_t size) {
        RecordBytes bytes(size);
        switch (below(5)) {
            case 0: break;  // zeros
            case 1: {       // of a period, that of chunks or another one
                static constexpr std::uint64_t kPeriods[] = {1, 2, 3, 5, 12};
                const std::uint64_t period = kPeriods[below(5)] * (below(3) == 0 ? 1 : chunk_);
                const RecordBytes pattern = random_bytes(random_, period);
                for (std::size_t i = 0; i < size; ++i)
                    bytes[i] = pattern[i % period];
                break;
            }
            case 2:  // what another segment has
                if (!now_.empty()) {
                    const RecordBytes& other = now_[below(now_.size())].bytes;
                    const std::size_t n = std::min<std::size_t>(size, other.size());
                    if (n != 0) std::memcpy(bytes.data(), other.data(), n);
                    break;
                }
                [[fallthrough]];
            default: bytes = random_bytes(random_, size);
        }
        return bytes;
    }
    void add_segment() {
        if (now_.size() > 6) return;
        std::string name = "s";  // not by operator+, of which GCC 12 warns
        name += std::to_string(below(9));
        if (find_segment(now_, name) != now_.size()) return;
        now_.insert(now_.begin() + static_cast<std::ptrdiff_t>(below(now_.size() + 1)),
                    {name, some_bytes(some_size()), static_cast<unsigned>(below(8))});
    }
    void change_bytes(TestSegment& segment) {
        RecordBytes& bytes = segment.bytes;
        if (bytes.empty()) return;
        const bool aligned = below(2) == 0;
        const auto place = [&] {
            const std::uint64_t at = below(bytes.size());
            return aligned ? at / chunk_ * chunk_ : at;
        };
        const std::uint64_t at = place();
        const std::uint64_t longest = below(2) == 0 ? 4 : chunk_ * 8;
        const std::uint64_t n = std::min<std::uint64_t>(1 + below(longest), bytes.size() - at);
        switch (below(4)) {
            case 0: std::memset(bytes.data() + at, 0, n); break;
            case 1: {
                const RecordBytes& from = now_[below(now_.size())].bytes;
                if (from.empty()) break;
                const std::uint64_t source =
                    aligned ? below(from.size()) / chunk_ * chunk_ : below(from.size());
                std::memmove(bytes.data() + at, from.data() + source,
                             std::min<std::uint64_t>(n, from.size() - source));
                break;
            }
            default: {
                const RecordBytes fresh = random_bytes(random_, n);
                std::memcpy(bytes.data() + at, fresh.data(), n);
            }
        }
    }
    void change() {
        if (now_.empty()) return add_segment();
        const std::size_t s = below(now_.size());
        switch (below(12)) {
            case 0: return add_segment();
            case 1: now_.erase(now_.begin() + static_cast<std::ptrdiff_t>(s)); return;
            case 2: std::swap(now_[s], now_[below(now_.size())]); return;
            case 3: {  // grows, with zeros or more of what there is
                const RecordBytes more = some_bytes(1 + below(chunk_ * 6));
                now_[s].bytes.insert(now_[s].bytes.end(), more.begin(), more.end());
                if (now_[s].bytes.size() > 2 * most_ * chunk_) now_[s].bytes.resize(most_ * chunk_ + 3);
                return;
            }
            case 4: now_[s].bytes.resize(below(now_[s].bytes.size() + 1)); return;
            case 5: now_ = past_[below(past_.size())]; return;
            case 6: now_[s].shift = static_cast<unsigned>(below(8)); return;
            default: change_bytes(now_[s]); return;
        }
    }

    std::mt19937_64 random_;
    std::uint64_t chunk_;
    std::uint64_t most_;
    TestImage now_;
    std::vector<TestImage> past_;
};

using MakeDeduplicator = std::function<Result<std::unique_ptr<Deduplicator>>(const DedupOptions&)>;

// A record by its definition: payload in memory, a Location a chunk. Holds every outcome against what it says of itself.
class ModelRecord {
   public:
    explicit ModelRecord(DedupOptions options, const MakeDeduplicator& make = make_host_deduplicator)
        : options_(std::move(options)) {
        if (options_.verify && !options_.read) {
            options_.read = [this](Location at, std::span<std::byte> chunk) -> Result<> {
                const RecordBytes& payload = steps_.at(ordinal_of(at)).payload;
                std::memcpy(chunk.data(), payload.data() + chunk_of(at) * options_.chunk_bytes, chunk.size());
                return success();
            };
        }
        auto made = make(options_);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        if (made.ok()) dedup_ = std::move(*made);
    }

    struct Step {
        TestImage shape;              // names and sizes; no bytes
        std::vector<Location> where;  // of each chunk
        RecordBytes payload;
        StepOutcome outcome;
        std::uint64_t entry_bytes = 0;
    };

    // The next ordinal.
    Result<StepOutcome> add(const TestImage& image) {
        const auto ordinal = next_ordinal_++;
        Sink sink(*this, options_.give_base);
        const PlacedImage placed(image);
        auto outcome = dedup_->step(ordinal, placed.segments(), sink);
        if (!outcome) return outcome;
        take(ordinal, image, *outcome, sink.payload);
        if (options_.give_base && outcome->method != RecordMethod::full) check_bases(ordinal, *outcome, sink);
        dedup_->reuse(outcome->runs);  // the next step's runs come to memory that has others
        return outcome;
    }
    // A step whose sink fails after so many calls.
    Result<StepOutcome> add_failing(const TestImage& image, std::size_t calls) {
        Sink sink(*this, options_.give_base);
        sink.fails_after = calls;
        const PlacedImage placed(image);
        return dedup_->step(next_ordinal_++, placed.segments(), sink);
    }

    [[nodiscard]] TestImage restore(std::uint32_t ordinal) const {
        const Step& step = steps_.at(ordinal);
        TestImage image = step.shape;
        std::size_t chunk = 0;
        for (TestSegment& segment : image) {
            for (std::size_t at = 0; at < segment.bytes.size(); at += options_.chunk_bytes, ++chunk) {
                const Location from = step.where[chunk];
                if (from == kNoLocation) {
                    ADD_FAILURE() << "chunk " << chunk << " is nowhere";
                    return {};
                }
                std::memcpy(
                    segment.bytes.data() + at,
                    steps_.at(ordinal_of(from)).payload.data() + chunk_of(from) * options_.chunk_bytes,
                    std::min<std::size_t>(options_.chunk_bytes, segment.bytes.size() - at));
            }
        }
        return image;
    }
    [[nodiscard]] const Step& step(std::uint32_t ordinal) const { return steps_.at(ordinal); }
    [[nodiscard]] std::uint32_t last() const { return next_ordinal_ - 1; }
    [[nodiscard]] Deduplicator& deduplicator() { return *dedup_; }

   private:
    struct Sink final : PayloadSink {
        Sink(const ModelRecord& record, bool bases) : chunk(record.options_.chunk_bytes), give_base(bases) {}
        Result<> take(const Chunks& chunks) override {
            if (calls++ >= fails_after) return Error{ErrorCode::no_space, "the sink is full"};
            EXPECT_EQ(chunks.bytes.size() % chunk, 0U);
            payload.insert(payload.end(), chunks.bytes.begin(), chunks.bytes.end());
            if (give_base) {
                base.insert(base.end(), chunks.base.begin(), chunks.base.end());
                base_at.insert(base_at.end(), chunks.base_at.begin(), chunks.base_at.end());
            } else {
                EXPECT_TRUE(chunks.base.empty() && chunks.base_at.empty());
            }
            return success();
        }
        std::size_t chunk;
        bool give_base;
        std::size_t calls = 0;
        std::size_t fails_after = ~std::size_t{0};
        RecordBytes payload;
        RecordBytes base;
        std::vector<Location> base_at;
    };

    void take(std::uint32_t ordinal, const TestImage& image, const StepOutcome& outcome,
              const RecordBytes& payload) {
        const auto firsts = first_chunks(image, options_.chunk_bytes);
        Step& step = steps_[ordinal];
        step.outcome = outcome;
        step.payload = payload;
        for (const TestSegment& segment : image) {
            step.shape.push_back({segment.name, RecordBytes(segment.bytes.size()), 0, {}, DType::u8});
        }
        ASSERT_EQ(outcome.chunks, firsts.back());
        ASSERT_EQ(step.payload.size(), outcome.payload * options_.chunk_bytes);
        ASSERT_LE(outcome.payload, outcome.changed);
        step.where.assign(outcome.chunks, kNoLocation);
        if (outcome.base != kNoBase) {
            ASSERT_LT(outcome.base, ordinal);
            const Step& base = steps_.at(outcome.base);
            const auto base_firsts = first_chunks(base.shape, options_.chunk_bytes);
            for (std::size_t s = 0; s < image.size(); ++s) {
                const std::size_t there = find_segment(base.shape, image[s].name);
                if (there == base.shape.size()) continue;
                const std::uint64_t both =
                    std::min(firsts[s + 1] - firsts[s], base_firsts[there + 1] - base_firsts[there]);
                std::copy_n(base.where.begin() + static_cast<std::ptrdiff_t>(base_firsts[there]), both,
                            step.where.begin() + static_cast<std::ptrdiff_t>(firsts[s]));
            }
        }
        apply(ordinal, outcome.runs, step.where, outcome.payload);
        std::uint64_t covered = 0;
        for (const Run& run : outcome.runs)
            covered += run.count;
        EXPECT_EQ(covered, outcome.changed);
        ASSERT_EQ(std::count(step.where.begin(), step.where.end(), kNoLocation), 0);

        // Entries say the same.
        Encoder encoder;
        encode_entries(outcome.method, ordinal, outcome.chunks, outcome.runs, encoder);
        step.entry_bytes = encoder.size();
        const auto decoded =
            decode_entries(outcome.method, ordinal, outcome.chunks, outcome.payload, encoder.bytes());
        ASSERT_TRUE(decoded.ok()) << decoded.error().message;
        std::vector<Location> from_runs(outcome.chunks, kNoLocation);
        std::vector<Location> from_entries(outcome.chunks, kNoLocation);
        apply(ordinal, outcome.runs, from_runs, outcome.payload);
        apply(ordinal, *decoded, from_entries, outcome.payload);
        ASSERT_EQ(from_runs, from_entries);

        ASSERT_EQ(outcome.content.size(), image.size());
        if (options_.hash_bits < 128 && !options_.verify) return;  // copies may be of other bytes
        const TestImage restored = restore(ordinal);
        for (std::size_t s = 0; s < image.size(); ++s) {
            const std::uint64_t content = outcome.method == RecordMethod::full
                                              ? 0
                                              : content_of(restored[s].bytes, options_.chunk_bytes);
            EXPECT_EQ(outcome.content[s], content) << image[s].name;
        }
    }
    void apply(std::uint32_t ordinal, const std::vector<Run>& runs, std::vector<Location>& where,
               std::uint64_t payload) const {
        std::uint64_t end = 0;
        std::uint64_t next = 0;
        for (const Run& run : runs) {
            ASSERT_GE(run.begin, end);
            ASSERT_GT(run.count, 0U);
            ASSERT_LE(run.begin + run.count, where.size());
            end = run.begin + run.count;
            const std::uint64_t steps = run.repeat ? 1 : run.count;
            if (!run.repeat && run.source == location(ordinal, next)) {
                next += run.count;
            } else if (ordinal_of(run.source) == ordinal) {
                ASSERT_LE(chunk_of(run.source) + steps, next) << "a copy of what comes later";
            } else {
                ASSERT_LE((chunk_of(run.source) + steps) * options_.chunk_bytes,
                          steps_.at(ordinal_of(run.source)).payload.size());
            }
            for (std::uint64_t i = 0; i < run.count; ++i)
                where[run.begin + i] = run.repeat ? run.source : run.source + i;
        }
        ASSERT_EQ(next, payload);
    }
    // What the sink was given as bases is what the base has at the same places.
    void check_bases(std::uint32_t ordinal, const StepOutcome& outcome, const Sink& sink) const {
        ASSERT_EQ(sink.base.size(), sink.payload.size());
        ASSERT_EQ(sink.base_at.size(), outcome.payload);
        const Step& step = steps_.at(ordinal);
        const auto firsts = first_chunks(step.shape, options_.chunk_bytes);
        std::uint64_t next = 0;
        for (std::size_t s = 0; s < step.shape.size(); ++s) {
            for (std::uint64_t chunk = firsts[s]; chunk < firsts[s + 1]; ++chunk) {
                if (step.where[chunk] != location(ordinal, next)) continue;
                Location wanted = kNoLocation;
                if (outcome.base != kNoBase) {
                    const Step& base = steps_.at(outcome.base);
                    const auto base_firsts = first_chunks(base.shape, options_.chunk_bytes);
                    const std::size_t there = find_segment(base.shape, step.shape[s].name);
                    if (there != base.shape.size() &&
                        chunk - firsts[s] < base_firsts[there + 1] - base_firsts[there]) {
                        wanted = base.where[base_firsts[there] + (chunk - firsts[s])];
                    }
                }
                if (options_.method != RecordMethod::tree) {
                    ASSERT_EQ(sink.base_at[next], wanted);
                } else {  // a region may be a copy of a place behind the first one of its chunk
                    ASSERT_LE(sink.base_at[next], wanted);
                    ASSERT_EQ(sink.base_at[next] == kNoLocation, wanted == kNoLocation);
                }
                RecordBytes bytes(options_.chunk_bytes);
                if (wanted != kNoLocation) {
                    std::memcpy(bytes.data(),
                                steps_.at(ordinal_of(wanted)).payload.data() +
                                    chunk_of(wanted) * options_.chunk_bytes,
                                bytes.size());
                }
                ASSERT_EQ(
                    std::memcmp(bytes.data(), sink.base.data() + next * options_.chunk_bytes, bytes.size()),
                    0);
                if (wanted != kNoLocation) {
                    const Location at = sink.base_at[next];
                    ASSERT_EQ(std::memcmp(bytes.data(),
                                          steps_.at(ordinal_of(at)).payload.data() +
                                              chunk_of(at) * options_.chunk_bytes,
                                          bytes.size()),
                              0);
                }
                ++next;
            }
        }
    }

    DedupOptions options_;
    std::unique_ptr<Deduplicator> dedup_;
    std::uint32_t next_ordinal_ = 0;
    std::map<std::uint32_t, Step> steps_;
};

// A record in a folder: <ordinal>.diff.
class FolderRecord {
   public:
    FolderRecord(std::string folder, DedupOptions options, PayloadSettings payload = {}, int threads = 1)
        : folder_(std::move(folder)),
          options_(std::move(options)),
          payload_(payload),
          chain_(
              [this](std::uint32_t ordinal) -> Result<DifferencePlace> {
                  return DifferencePlace{path(ordinal)};
              },
              threads) {
        if (options_.verify && !options_.read) {
            options_.read = [this](Location at, std::span<std::byte> chunk) {
                return chain_.read_payload(at, 1, options_.chunk_bytes, chunk);
            };
        }
        auto made = make_host_deduplicator(options_);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        if (made.ok()) dedup_ = std::move(*made);
    }

    // Differences that blocks may be XORed with: those of which this many others at most have to be read first. 0: none.
    std::uint32_t deepest = 0;

    Result<StepOutcome> add(const TestImage& image, FileSystem& system = unsynced_file_system()) {
        const std::uint32_t ordinal = next_ordinal_++;
        TWR_TRY(const auto writer,
                DifferenceWriter::create(system, path(ordinal), options_.chunk_bytes, payload_));
        Sink sink(*this, *writer);
        const PlacedImage placed(image);
        TWR_TRY(StepOutcome outcome, dedup_->step(ordinal, placed.segments(), sink));
        Difference difference;
        difference.method = outcome.method;
        difference.ordinal = ordinal;
        difference.base = outcome.base;
        difference.directory = directory_of(image);
        for (std::size_t s = 0; s < image.size(); ++s)
            difference.directory.segments[s].content = outcome.content[s];
        difference.runs = outcome.runs;
        TWR_TRY(last_written, writer->finish(std::move(difference)));
        std::uint32_t depth = 0;
        for (const std::uint32_t base : writer->bases())
            depth = std::max(depth, depth_.at(base) + 1);
        depth_[ordinal] = depth;
        return outcome;
    }
    DifferenceWriter::Written last_written;

    // Segments in two files in turn, with gaps between.
    static RecordDirectory directory_of(const TestImage& image) {
        RecordDirectory directory;
        directory.files = {{"a.bin", 0}, {"sub/b.bin", 5}};
        for (std::size_t s = 0; s < image.size(); ++s) {
            RecordFile& file = directory.files[s % 2];
            directory.segments.push_back(
                {image[s].name, static_cast<std::uint32_t>(s % 2), file.bytes, image[s].bytes.size(), 0});
            file.bytes += image[s].bytes.size() + s * 3;
        }
        return directory;
    }

    [[nodiscard]] std::string path(std::uint32_t ordinal) const {
        return folder_ + "/" + std::to_string(ordinal) + ".diff";
    }
    Result<TestImage> restore(std::uint32_t ordinal) {
        TWR_TRY(const StepMap map, chain_.map(ordinal));
        TestImage image;
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            const RecordSegment& segment = map.directory.segments[s];
            image.push_back({segment.name, RecordBytes(segment.bytes), 0, {}, DType::u8});
            TWR_CHECK(chain_.read_segment(map, s, image.back().bytes));
        }
        return image;
    }
    RecordChain& chain() { return chain_; }
    [[nodiscard]] std::uint32_t last() const { return next_ordinal_ - 1; }
    [[nodiscard]] std::uint32_t depth(std::uint32_t ordinal) const { return depth_.at(ordinal); }
    Deduplicator& deduplicator() { return *dedup_; }

   private:
    struct Sink final : PayloadSink {
        Sink(FolderRecord& to, DifferenceWriter& with) : record(to), writer(with) {}
        Result<> take(const Chunks& chunks) override {
            if (record.deepest == 0 || chunks.base.empty()) return writer.add(chunks.bytes, {}, {});
            RecordBytes base(chunks.base.begin(), chunks.base.end());
            std::vector<Location> at(chunks.base_at.begin(), chunks.base_at.end());
            const std::size_t chunk = base.size() / at.size();
            for (std::size_t i = 0; i < at.size(); ++i) {
                if (at[i] == kNoLocation || record.depth_.at(ordinal_of(at[i])) < record.deepest) continue;
                at[i] = kNoLocation;
                std::memset(base.data() + i * chunk, 0, chunk);
            }
            return writer.add(chunks.bytes, base, at);
        }
        FolderRecord& record;
        DifferenceWriter& writer;
    };

    std::string folder_;
    DedupOptions options_;
    PayloadSettings payload_;
    std::map<std::uint32_t, std::uint32_t> depth_;
    RecordChain chain_;
    std::unique_ptr<Deduplicator> dedup_;
    std::uint32_t next_ordinal_ = 0;
};

}  // namespace twinrun::testing
