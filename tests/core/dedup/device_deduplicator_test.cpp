// De-duplication on devices: the same as on the host, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "dedup/chunk_hash.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "record/compression.hpp"
#include "support/device.hpp"
#include "support/device_faults.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

using testing::kAllMethods;

using Bytes = std::vector<std::byte>;
struct Segment {
    std::string name;
    Bytes bytes;
};
using Image = std::vector<Segment>;

void randomize(std::byte* at, std::size_t bytes, std::mt19937_64& random) {
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(at + i, &word, 8);
    }
    for (; i < bytes; ++i)
        at[i] = static_cast<std::byte>(random());
}
Bytes random_bytes(std::size_t bytes, std::mt19937_64& random) {
    Bytes all(bytes);
    randomize(all.data(), bytes, random);
    return all;
}

struct Sink final : PayloadSink {
    Bytes bytes;
    Bytes base;
    std::vector<Location> base_at;
    Result<> take(const Chunks& chunks) override {
        bytes.insert(bytes.end(), chunks.bytes.begin(), chunks.bytes.end());
        base.insert(base.end(), chunks.base.begin(), chunks.base.end());
        base_at.insert(base_at.end(), chunks.base_at.begin(), chunks.base_at.end());
        return success();
    }
    // Unpacked again.
    std::uint32_t chunk_bytes = 0;
    std::uint64_t packed_blocks = 0;
    Result<> take_packed(std::span<const PackedBlock> blocks) override {
        Compressor compressor;
        for (const PackedBlock& block : blocks) {
            ++packed_blocks;
            const std::size_t at = bytes.size();
            bytes.resize(at + block.chunks * std::size_t{chunk_bytes});
            const auto own = std::span(bytes).subspan(at);
            if (!block.stored) {
                TWR_CHECK(compressor.unpack(block.bytes, own));
            } else if (block.bytes.size() == own.size()) {
                std::copy(block.bytes.begin(), block.bytes.end(), own.begin());
            } else {
                return Error{ErrorCode::internal, "a stored block of another size than its chunks"};
            }
        }
        return success();
    }
};

// A chunk of one size at a random place.
struct Stretch {
    Bytes* in;
    std::size_t at;
    std::size_t bytes;
};
Stretch stretch(Image& image, std::size_t unit, std::mt19937_64& random) {
    Bytes& in = image[random() % image.size()].bytes;
    if (in.empty()) return {&in, 0, 0};
    const std::size_t at = random() % 2 == 0 ? random() % in.size() : random() % in.size() / unit * unit;
    const std::size_t bytes =
        std::min<std::size_t>(in.size() - at, 1 + random() % (unit * (1 + random() % 64)));
    return {&in, at, random() % 2 == 0 ? bytes : std::min(in.size() - at, (bytes + unit - 1) / unit * unit)};
}

// What a simulation might do between two steps, and what is hard to record.
void change(Image& image, std::size_t unit, std::mt19937_64& random) {
    const auto what = random() % 12;
    if (what == 0) return;
    if (what == 1) {
        for (Segment& segment : image)
            randomize(segment.bytes.data(), segment.bytes.size(), random);
        return;
    }
    if (what == 2) {  // segments grow, shrink, and change places
        Segment& segment = image[random() % image.size()];
        const std::size_t before = segment.bytes.size();
        segment.bytes.resize(random() % 2 == 0 ? before + random() % (9 * unit)
                                               : before - random() % (before + 1));
        if (segment.bytes.size() > before && random() % 2 == 0)
            randomize(segment.bytes.data() + before, segment.bytes.size() - before, random);
        if (random() % 2 == 0) std::swap(image[0], image[random() % image.size()]);
        return;
    }
    if (what == 3) {
        if (random() % 2 == 0 && image.size() > 1) {
            image.erase(image.begin() + static_cast<std::ptrdiff_t>(random() % image.size()));
        } else {
            image.push_back(
                {"new" + std::to_string(random() % 1000000), random_bytes(random() % (40 * unit), random)});
        }
        return;
    }
    for (std::uint64_t n = 1 + random() % 8; n != 0; --n) {
        const Stretch to = stretch(image, unit, random);
        std::byte* const at = to.in->data() + to.at;
        if (what <= 5) {
            if (to.bytes != 0) randomize(at, to.bytes, random);
        } else if (what <= 7) {
            std::fill_n(at, to.bytes, std::byte{0});
        } else if (what == 8) {  // a period, of a chunk or not
            const std::size_t period = random() % 2 == 0 ? unit : 1 + random() % (2 * unit);
            for (std::size_t i = period; i < to.bytes; ++i)
                at[i] = at[i - period];
        } else {
            const Stretch from = stretch(image, unit, random);
            const std::size_t bytes = std::min(to.bytes, from.bytes);
            if (bytes != 0) std::memmove(at, from.in->data() + from.at, bytes);
        }
    }
}

// Segments in device memory, some of them not aligned.
class Uploaded {
   public:
    Uploaded(int device, const Image& image, std::size_t skew) {
        for (std::size_t s = 0; s < image.size(); ++s) {
            memory_.emplace_back(device, std::span<const std::byte>(image[s].bytes), skew * (s + 1) % 61);
            segments_.push_back({image[s].name, memory_.back().data(), image[s].bytes.size(), {}, DType::u8});
        }
    }
    [[nodiscard]] const std::vector<ImageSegment>& segments() const { return segments_; }

   private:
    std::deque<OnDevice> memory_;
    std::vector<ImageSegment> segments_;
};
std::vector<ImageSegment> on_host(const Image& image) {
    std::vector<ImageSegment> segments;
    for (const Segment& segment : image)
        segments.push_back({segment.name, segment.bytes.data(), segment.bytes.size(), {}, DType::u8});
    return segments;
}

// The two implementations side by side, and what restore would make of their steps.
class Twins {
   public:
    Twins(int device, const DedupOptions& options) : device_(device), options_(options) {
        DedupOptions of_host = options;
        of_host.pack_block_bytes = 0;
        auto host = make_host_deduplicator(of_host);
        auto made = make_device_deduplicator(device, options);
        EXPECT_TRUE(host.ok() && made.ok()) << (made.ok() ? "" : made.error().message);
        if (host.ok()) host_ = std::move(*host);
        if (made.ok()) deduplicator_ = std::move(*made);
    }
    [[nodiscard]] bool ok() const { return host_ != nullptr && deduplicator_ != nullptr; }
    [[nodiscard]] Deduplicator& host() { return *host_; }
    [[nodiscard]] Deduplicator& device() { return *deduplicator_; }
    [[nodiscard]] const std::vector<Location>& where() const { return where_; }

    StepOutcome step(std::uint32_t ordinal, const Image& image, std::size_t skew = 0) {
        Sink a;
        Sink b;
        b.chunk_bytes = options_.chunk_bytes;
        auto expected = host_->step(ordinal, on_host(image), a);
        const Uploaded uploaded(device_, image, skew);
        auto found = deduplicator_->step(ordinal, uploaded.segments(), b);
        EXPECT_TRUE(expected.ok()) << (expected.ok() ? "" : expected.error().message);
        EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().message);
        if (!expected.ok() || !found.ok()) return {};
        EXPECT_EQ(found->base, expected->base);
        EXPECT_EQ(found->method, expected->method);
        EXPECT_EQ(found->chunks, expected->chunks);
        EXPECT_EQ(found->changed, expected->changed);
        EXPECT_EQ(found->payload, expected->payload);
        EXPECT_EQ(found->content, expected->content);
        EXPECT_EQ(found->runs.size(), expected->runs.size());
        for (std::size_t r = 0; r < std::min(found->runs.size(), expected->runs.size()); ++r) {
            const Run& x = found->runs[r];
            const Run& y = expected->runs[r];
            EXPECT_EQ(x, y) << "run " << r << ": " << x.begin << " " << x.count << " " << x.source << " "
                            << x.repeat << " against " << y.begin << " " << y.count << " " << y.source << " "
                            << y.repeat;
            if (!(x == y)) break;
        }
        EXPECT_TRUE(a.bytes == b.bytes);
        EXPECT_EQ(b.packed_blocks != 0, options_.pack_block_bytes != 0 && found->payload != 0);
        EXPECT_TRUE(a.base == b.base);
        EXPECT_EQ(a.base_at, b.base_at);
        EXPECT_EQ(deduplicator_->facts().entries, host_->facts().entries);
        EXPECT_EQ(deduplicator_->facts().evicted, host_->facts().evicted);
        payload_[ordinal] = std::move(b.bytes);
        restores(image, *found);
        // The next step's runs come to memory that has others.
        host_->reuse(expected->runs);
        deduplicator_->reuse(found->runs);
        return std::move(*found);
    }

   private:
    // Runs and payload give the image back.
    void restores(const Image& image, const StepOutcome& outcome) {
        const std::size_t chunk = options_.chunk_bytes;
        std::map<std::string, std::vector<Location>> now;
        std::vector<Location> where;
        for (const Segment& segment : image) {
            const std::size_t chunks = (segment.bytes.size() + chunk - 1) / chunk;
            std::vector<Location> known;
            if (outcome.base != kNoBase && base_.count(segment.name) != 0) known = base_.at(segment.name);
            known.resize(chunks, kNoLocation);
            where.insert(where.end(), known.begin(), known.end());
        }
        for (const Run& run : outcome.runs) {
            for (std::uint64_t i = 0; i < run.count; ++i)
                where.at(run.begin + i) = run.source + (run.repeat ? 0 : i);
        }
        std::size_t next = 0;
        for (const Segment& segment : image) {
            Bytes restored;
            for (std::size_t at = 0; at < segment.bytes.size(); at += chunk) {
                const Location from = where.at(next++);
                ASSERT_NE(from, kNoLocation);
                const Bytes& payload = payload_.at(ordinal_of(from));
                ASSERT_LE((chunk_of(from) + 1) * chunk, payload.size());
                const auto* begin = payload.data() + chunk_of(from) * chunk;
                restored.insert(restored.end(), begin, begin + std::min(chunk, segment.bytes.size() - at));
            }
            ASSERT_TRUE(restored == segment.bytes) << segment.name;
        }
        if (outcome.method == RecordMethod::full) return;  // nothing was learned
        next = 0;
        for (const Segment& segment : image) {
            const std::size_t chunks = (segment.bytes.size() + chunk - 1) / chunk;
            now[segment.name].assign(where.begin() + static_cast<std::ptrdiff_t>(next),
                                     where.begin() + static_cast<std::ptrdiff_t>(next + chunks));
            next += chunks;
        }
        base_ = std::move(now);
        where_ = std::move(where);
    }

    int device_;
    DedupOptions options_;
    const testing::DeviceWorksAhead ahead_;  // slices are taken together
    std::unique_ptr<Deduplicator> host_;
    std::unique_ptr<Deduplicator> deduplicator_;
    std::map<std::uint32_t, Bytes> payload_;
    std::map<std::string, std::vector<Location>> base_;
    std::vector<Location> where_;
};

Image some_image(std::size_t unit, std::mt19937_64& random) {
    Image image;
    const std::size_t segments = 1 + random() % 5;
    for (std::size_t s = 0; s < segments; ++s)
        image.push_back({"s" + std::to_string(s),
                         random_bytes(random() % (unit * (random() % 2 == 0 ? 300 : 7)), random)});
    image.push_back({"empty", {}});
    return image;
}

// Steps that change a little or all, and come back to what was.
void random_history(int device, const DedupOptions& options, std::uint64_t seed, int steps, bool skewed) {
    SCOPED_TRACE("method " + std::string(method_name(options.method)) + ", chunks of " +
                 std::to_string(options.chunk_bytes) + ", slices of " + std::to_string(options.slice_chunks) +
                 ", table of " + std::to_string(options.table_bytes) + ", seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Twins twins(device, options);
    ASSERT_TRUE(twins.ok());
    Image image = some_image(options.chunk_bytes, random);
    std::vector<Image> before;
    std::uint32_t ordinal = static_cast<std::uint32_t>(random() % 3);
    for (int i = 0; i < steps; ++i) {
        SCOPED_TRACE("step " + std::to_string(i));
        twins.step(ordinal, image, skewed ? random() % 61 : 0);
        if (::testing::Test::HasFailure()) return;
        ordinal += 1 + static_cast<std::uint32_t>(random() % 2);
        before.push_back(image);
        if (random() % 5 == 0) image = before[random() % before.size()];
        if (random() % 6 != 0) change(image, options.chunk_bytes, random);
    }
}

class DeviceDedupOf : public ::testing::TestWithParam<RecordMethod> {};

TEST(DeviceDedup, HashesEqualThoseOfTheHost) {
    TWR_TEST_DEVICE(device);
    const DeviceDedupKernels& kernels = *device_dedup_kernels();
    std::mt19937_64 random(1);
    for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        SCOPED_TRACE(chunk);
        for (const std::size_t chunks : {std::size_t{1}, std::size_t{31}, std::size_t{200}}) {
            const Bytes bytes = random_bytes(chunk * chunks, random);
            std::vector<ChunkHash> expected(chunks);
            chunk_hashes(bytes, chunk, expected.data());
            const OnDevice data(device, std::span<const std::byte>(bytes));
            const OnDevice hashes(device, chunks * sizeof(ChunkHash));
            ASSERT_TRUE(to_result(
                kernels.hash_chunks(device, data.data(), chunks, chunk, hashes.as<ChunkHash>(), nullptr)));
            EXPECT_EQ(hashes.values<ChunkHash>(), expected);
        }
    }
}

// Payload that is packed where it lies is the same payload, whatever its size and wherever slices end.
TEST(DeviceDedup, PackedPayloadIsThePayload) {
    TWR_TEST_DEVICE(device);
    if (!codec_available(PayloadCodec::zstd)) GTEST_SKIP() << "this build lacks zstd";
    DedupOptions options;
    options.pack_block_bytes = 64U << 10;
    if (auto made = make_device_deduplicator(device, options);
        !made && made.error().code == ErrorCode::unsupported) {
        GTEST_SKIP() << made.error().message;
    }
    int seed = 100;
    for (const RecordMethod method :
         {RecordMethod::runs, RecordMethod::full, RecordMethod::basic, RecordMethod::tree}) {
        for (const std::uint32_t chunk : {32U, 256U, 65536U}) {
            options.method = method;
            options.chunk_bytes = chunk;
            options.skip_when_all_new = seed % 2 == 0 && method != RecordMethod::full;
            options.slice_chunks = chunk == 65536 ? 4 : 1024;
            random_history(device, options, static_cast<std::uint64_t>(++seed), 6, true);
        }
    }
    // With what is not had together.
    options.keep_base = options.give_base = true;
    options.skip_when_all_new = false;
    EXPECT_EQ(make_device_deduplicator(device, options).error().code, ErrorCode::invalid_argument);
}

// All sizes of the last chunk's kind, all alignments, several segments at once.
TEST(DeviceDedup, ContentOfSegmentsEqualsTheHosts) {
    TWR_TEST_DEVICE(device);
    const DeviceDedupKernels& kernels = *device_dedup_kernels();
    std::mt19937_64 random(2);
    for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        SCOPED_TRACE(chunk);
        for (int round = 0; round < test_rounds(8); ++round) {
            std::deque<OnDevice> memory;
            std::vector<DeviceDedupPart> parts;
            std::vector<std::uint64_t> expected;
            DeviceDedupSlice slice;
            slice.chunk_bytes = chunk;
            const std::size_t segments = 1 + random() % 20;
            for (std::size_t s = 0; s < segments; ++s) {
                const std::size_t most = chunk >= 4096 ? 3 : 300;
                const Bytes bytes = random_bytes(1 + random() % (most * chunk), random);
                const std::size_t chunks = (bytes.size() + chunk - 1) / chunk;
                std::vector<ChunkHash> hashes(chunks);
                chunk_hashes(bytes, chunk, hashes.data());
                memory.emplace_back(device, std::span<const std::byte>(bytes),
                                    random() % 2 == 0 ? 0 : random() % 61);
                DeviceDedupPart part;
                part.data = memory.back().data();
                part.bytes = bytes.size();
                part.number = random() % 2 == 0 ? 0 : random() >> 20;  // beyond 2^32 too
                part.segment = static_cast<std::uint32_t>(s);
                part.first = slice.chunks;
                part.chunks = static_cast<std::uint32_t>(chunks);
                part.with_base = random() % 2 == 0 ? part.chunks : 0;  // makes no difference here
                part.group = slice.groups;
                slice.chunks += part.chunks;
                slice.groups += (part.chunks + dedup_group_chunks(chunk) - 1) / dedup_group_chunks(chunk);
                parts.push_back(part);
                expected.push_back(7);
                for (std::size_t i = 0; i < chunks; ++i)
                    expected.back() += content_term(hashes[i], part.number + i);
            }
            const OnDevice table(device, std::span<const DeviceDedupPart>(parts));
            const OnDevice content(device,
                                   std::span<const std::uint64_t>(std::vector<std::uint64_t>(segments, 7)));
            slice.parts = table.as<DeviceDedupPart>();
            slice.part_count = static_cast<std::uint32_t>(segments);
            slice.content = content.as<std::uint64_t>();
            ASSERT_TRUE(to_result(kernels.hash_content(device, slice, nullptr)));
            EXPECT_EQ(content.values<std::uint64_t>(), expected);
        }
    }
}

TEST_P(DeviceDedupOf, RandomHistoriesEqualTheHosts) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    for (int round = 0; round < test_rounds(6); ++round) {
        for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
            options.chunk_bytes = chunk;
            random_history(device, options, static_cast<std::uint64_t>(round) * 100 + chunk,
                           chunk >= 4096 ? 4 : 10, round % 2 == 1);
            if (HasFailure()) return;
        }
    }
}

TEST_P(DeviceDedupOf, SlicesMakeNoOtherDifferenceThanOnTheHost) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    for (int round = 0; round < test_rounds(20); ++round) {
        options.chunk_bytes = 32U << (round % 5);
        options.slice_chunks = std::uint64_t{1} << (round % 11);
        random_history(device, options, 1000 + static_cast<std::uint64_t>(round), 8, round % 3 == 0);
        if (HasFailure()) return;
    }
}

TEST_P(DeviceDedupOf, SmallTablesForgetTheSame) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    for (int round = 0; round < test_rounds(12); ++round) {
        options.chunk_bytes = 32U << (round % 4);
        options.table_bytes = std::uint64_t{42 * 1024} << (round % 2);
        options.slice_chunks = round % 3 == 0 ? 0 : std::uint64_t{64} << (round % 5);
        random_history(device, options, 2000 + static_cast<std::uint64_t>(round), 30, false);
        if (HasFailure()) return;
    }
}

TEST_P(DeviceDedupOf, HashesThatCollideDoTheSame) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    // What collides cannot be restored: only what both find is compared.
    for (const unsigned bits : {1U, 12U, 63U, 64U, 65U, 127U}) {
        options.hash_bits = bits;
        options.chunk_bytes = 64;
        auto host = make_host_deduplicator(options);
        auto made = make_device_deduplicator(device, options);
        ASSERT_TRUE(host.ok() && made.ok());
        std::mt19937_64 random(bits);
        Image image = some_image(64, random);
        for (std::uint32_t i = 0; i < 6; ++i) {
            Sink a;
            Sink b;
            const auto expected = (*host)->step(i, on_host(image), a);
            const Uploaded uploaded(device, image, 0);
            const auto found = (*made)->step(i, uploaded.segments(), b);
            ASSERT_TRUE(expected.ok() && found.ok());
            EXPECT_EQ(found->runs, expected->runs);
            EXPECT_EQ(found->content, expected->content);
            EXPECT_TRUE(a.bytes == b.bytes);
            change(image, 64, random);
        }
    }
}

TEST_P(DeviceDedupOf, GivesTheBase) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    options.keep_base = options.give_base = true;
    for (int round = 0; round < test_rounds(8); ++round) {
        options.chunk_bytes = 32U << (round % 6);
        options.slice_chunks = round % 2 == 0 ? 0 : 128;
        random_history(device, options, 3000 + static_cast<std::uint64_t>(round), 10, round % 2 == 0);
        if (HasFailure()) return;
    }
}

TEST_P(DeviceDedupOf, SkipsStepsThatFollowNewOnes) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    options.skip_when_all_new = true;
    std::mt19937_64 random(3);
    Twins twins(device, options);
    ASSERT_TRUE(twins.ok());
    Image image = {{"a", random_bytes(100000, random)}, {"b", random_bytes(777, random)}};
    int whole = 0;
    for (std::uint32_t i = 0; i < 24; ++i) {
        whole += twins.step(i, image, 4).method == RecordMethod::full ? 1 : 0;
        if (HasFailure()) return;
        if (i % 8 != 6) {
            for (Segment& segment : image)
                randomize(segment.bytes.data(), segment.bytes.size(), random);
        }
    }
    EXPECT_GT(whole, 3);
}

TEST_P(DeviceDedupOf, TakesUpAnEarlierHistory) {
    TWR_TEST_DEVICE(device);
    for (const bool give_base : {false, true}) {
        DedupOptions options;
        options.method = GetParam();
        options.chunk_bytes = 128;
        options.keep_base = options.give_base = give_base;
        options.table_bytes = give_base ? 42 * 4096 : 0;
        std::mt19937_64 random(4);
        Image image = some_image(128, random);
        Sink earlier;
        Twins first(device, options);
        ASSERT_TRUE(first.ok());
        const Uploaded uploaded(device, image, 3);
        const auto one = first.device().step(5, uploaded.segments(), earlier);
        ASSERT_TRUE(one.ok());
        std::vector<Location> where(one->chunks);
        for (const auto& run : one->runs) {
            for (std::uint64_t i = 0; i < run.count; ++i)
                where[run.begin + i] = run.source + (run.repeat ? 0 : i);
        }

        auto host = make_host_deduplicator(options);
        auto made = make_device_deduplicator(device, options);
        ASSERT_TRUE(host.ok() && made.ok());
        ASSERT_TRUE((*host)->learn(location(5, 0), earlier.bytes));
        ASSERT_TRUE((*made)->learn(location(5, 0), earlier.bytes));
        for (int again = 0; again < 2; ++again) {
            ASSERT_TRUE((*host)->rebase(5, on_host(image), where));
            ASSERT_TRUE((*made)->rebase(5, uploaded.segments(), where));
        }
        for (std::uint32_t i = 6; i < 12; ++i) {
            change(image, 128, random);
            Sink a;
            Sink b;
            const auto expected = (*host)->step(i, on_host(image), a);
            const Uploaded now(device, image, 0);
            const auto found = (*made)->step(i, now.segments(), b);
            ASSERT_TRUE(expected.ok() && found.ok());
            EXPECT_EQ(found->runs, expected->runs);
            EXPECT_EQ(found->base, expected->base);
            EXPECT_EQ(found->content, expected->content);
            EXPECT_TRUE(a.bytes == b.bytes);
            EXPECT_TRUE(a.base == b.base);
            EXPECT_EQ(a.base_at, b.base_at);
        }
    }
}

// Chunks of one value, and of two in turn: the source stays or goes on, at every distance from a slice's end.
TEST_P(DeviceDedupOf, JoinsAcrossSlices) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    options.chunk_bytes = 32;
    options.slice_chunks = 4;
    std::mt19937_64 random(5);
    for (int round = 0; round < test_rounds(100); ++round) {
        Twins twins(device, options);
        ASSERT_TRUE(twins.ok());
        Image image = {{"a", random_bytes(std::size_t{32} * 40, random)}};
        twins.step(0, image);
        const Bytes values = image[0].bytes;
        image[0].bytes.resize(32 * (20 + random() % 60));
        std::size_t value = 0;
        for (std::size_t at = 0; at < image[0].bytes.size(); at += 32) {
            const auto next = random() % 8;
            value = next < 3 ? value : next < 6 ? value + 1 : random();
            std::memcpy(image[0].bytes.data() + at, values.data() + value % 40 * 32, 32);
            if (random() % 16 == 0) randomize(image[0].bytes.data() + at, 32, random);
        }
        twins.step(1, image);
        if (HasFailure()) return;
    }
}

// More than fits the buffers that differences leave through.
TEST_P(DeviceDedupOf, LargeDifferencesLeaveInPieces) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    options.method = GetParam();
    options.chunk_bytes = 4096;
    options.slice_chunks = 16384;
    std::mt19937_64 random(6);
    Twins twins(device, options);
    ASSERT_TRUE(twins.ok());
    Image image = {{"a", random_bytes((std::size_t{70} << 20) + 1, random)},
                   {"b", random_bytes(std::size_t{60} << 20, random)}};
    twins.step(0, image, 0);
    if (HasFailure()) return;
    for (std::size_t at = 0; at < image[0].bytes.size(); at += 5000)  // nearly all
        image[0].bytes[at] ^= std::byte{1};
    twins.step(1, image, 8);
}

INSTANTIATE_TEST_SUITE_P(Methods, DeviceDedupOf, ::testing::ValuesIn(kAllMethods),
                         [](const auto& method) { return std::string(method_name(method.param)); });

TEST(DeviceDedup, ManySmallSegments) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(7);
    for (const RecordMethod method : {RecordMethod::full, RecordMethod::runs}) {
        DedupOptions options;
        options.method = method;
        options.chunk_bytes = 64;
        options.slice_chunks = 4096;
        Twins twins(device, options);
        ASSERT_TRUE(twins.ok());
        Image image;
        for (int s = 0; s < 300; ++s)
            image.push_back({"t" + std::to_string(s), random_bytes(random() % 3000, random)});
        twins.step(0, image, 5);
        for (int i = 0; i < 20; ++i)
            change(image, 64, random);
        twins.step(1, image, 0);
    }
}

TEST(DeviceDedup, AllZerosAreOneRunAfterTheFirstChunk) {
    TWR_TEST_DEVICE(device);
    DedupOptions options;
    Twins twins(device, options);
    ASSERT_TRUE(twins.ok());
    const StepOutcome outcome = twins.step(0, {{"zeros", Bytes(std::size_t{1} << 20)}});
    EXPECT_EQ(outcome.payload, 1U);
    EXPECT_EQ(outcome.runs.size(), 2U);
    EXPECT_TRUE(twins.step(1, {{"zeros", Bytes(std::size_t{1} << 20)}}).runs.empty());
}

// Slices that are hashed by the time that the host looks are one piece of work, and the runs are
// those of each for itself.
TEST(DeviceDedup, SlicesThatAreHashedAreTakenTogether) {
    TWR_FAKE_DEVICE(fake);
    TWR_TEST_DEVICE(device);
    const testing::DeviceWorksAhead ahead;
    DedupOptions options;
    options.slice_chunks = 16;
    constexpr std::size_t kSlices = 400;  // more than share their numbers
    std::mt19937_64 random(9);
    Bytes bytes = random_bytes(kSlices * 16 * options.chunk_bytes, random);
    auto host = make_host_deduplicator(options);
    auto made = make_device_deduplicator(device, options);
    ASSERT_TRUE(host.ok() && made.ok());
    for (std::uint32_t i = 0; i < 3; ++i) {
        const OnDevice image(device, std::span<const std::byte>(bytes));
        const std::uint64_t before = fake->calls("join");
        Sink expected_payload;
        Sink payload;
        const auto expected =
            (*host)->step(i, {{{"a", bytes.data(), bytes.size(), {}, DType::u8}}}, expected_payload);
        const auto found = (*made)->step(i, {{{"a", image.data(), bytes.size(), {}, DType::u8}}}, payload);
        ASSERT_TRUE(expected.ok() && found.ok());
        EXPECT_EQ(found->runs, expected->runs);
        EXPECT_EQ(found->content, expected->content);
        EXPECT_TRUE(payload.bytes == expected_payload.bytes);
        const std::uint64_t joined = fake->calls("join") - before;
        if (i == 0) {
            EXPECT_EQ(joined, kSlices);  // no more changed chunks at once than a slice has
        } else {
            EXPECT_GE(joined, kSlices / 16);
            EXPECT_LT(joined, kSlices * 3 / 4);
        }
        for (std::size_t slice = 0; slice < kSlices; ++slice)  // a chunk of each
            randomize(bytes.data() + (slice * 16 + random() % 16) * options.chunk_bytes, 8, random);
    }
}

// Work is divided into tiles; here there are more of them than a block has threads.
TEST(DeviceDedup, ManyTilesAtOnce) {
    TWR_TEST_DEVICE(device);
    std::mt19937_64 random(12);
    for (const RecordMethod method : {RecordMethod::runs, RecordMethod::tree, RecordMethod::list}) {
        DedupOptions options;
        options.method = method;
        options.chunk_bytes = 32;
        options.threads = 3;
        Twins twins(device, options);
        ASSERT_TRUE(twins.ok());
        Image image = {{"a", random_bytes(std::size_t{16} << 20, random)}};
        twins.step(0, image);
        randomize(image[0].bytes.data(), image[0].bytes.size(), random);  // all of it
        twins.step(1, image);
        if (HasFailure()) return;
        // Runs that cross tiles, chunks that repeat, and copies of what lies far away.
        Bytes& bytes = image[0].bytes;
        const Bytes before = bytes;
        for (std::size_t at = 0; at + 100'000 < bytes.size(); at += 131'072) {
            std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(bytes.size() - at - 100'000), 90'016,
                        bytes.begin() + static_cast<std::ptrdiff_t>(at));
            std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at + 90'016), 9'984, std::byte{7});
        }
        twins.step(2, image);
        if (HasFailure()) return;
        // So many runs that threads share them; then more, and fewer.
        std::uint32_t ordinal = 3;
        for (const std::size_t every : {5, 2, 3, 1000}) {
            for (std::size_t at = random() % every; at < bytes.size() / 32; at += every)
                randomize(bytes.data() + at * 32, 8, random);
            const StepOutcome outcome = twins.step(ordinal++, image);
            if (HasFailure()) return;
            EXPECT_TRUE(every != 2 || outcome.runs.size() > std::size_t{1} << 17);
        }
    }
}

TEST(DeviceDedup, NothingIsAllocatedFromStepToStep) {
    TWR_FAKE_DEVICE(fake);
    TWR_TEST_DEVICE(device);
    // A step of many slices uses all memory for what is on its way, one of one slice always the same.
    for (const std::uint64_t slice : {256U, 0U}) {
        SCOPED_TRACE(slice);
        DedupOptions options;
        options.slice_chunks = slice;
        auto made = make_device_deduplicator(device, options);
        ASSERT_TRUE(made.ok());
        std::mt19937_64 random(8);
        const Bytes bytes = random_bytes(1 << 20, random);
        const OnDevice image(device, std::span<const std::byte>(bytes));
        const std::vector<ImageSegment> segments = {{"a", image.data(), bytes.size(), {}, DType::u8}};
        for (std::uint32_t i = 0; i < 4; ++i) {
            if (i == 2) {
                ASSERT_TRUE(fake->fail(""));
            }
            Bytes now = bytes;
            randomize(now.data() + i * 1000, 5000, random);
            ASSERT_TRUE(
                to_result(device_runtime()->copy(device, image.data(), now.data(), now.size(), nullptr)));
            ASSERT_TRUE(to_result(device_runtime()->wait_stream(device, nullptr)));
            Sink sink;
            ASSERT_TRUE((*made)->step(i, segments, sink).ok());
        }
        EXPECT_EQ(fake->calls("allocate") + fake->calls("allocate_host"), 0U);
    }
}

// Numbers of chunks that 32 bits do not hold, without the memory that an image of so many would take.
TEST(DeviceDedup, RunsAndSourcesBeyond32Bits) {
    TWR_TEST_DEVICE(device);
    const DeviceDedupKernels& kernels = *device_dedup_kernels();
    const std::uint64_t first = (std::uint64_t{1} << 33) + 64;
    const std::vector<std::uint32_t> changed = {0, 1, 2, 3, 9, 10, 11, 12};
    const Location old = location(3, (std::uint64_t{1} << 32) - 2);  // steps over 2^32
    const std::vector<Location> sources = {old,
                                           old + 1,
                                           old + 2,
                                           old + 2,
                                           old + 2,
                                           old + 2,
                                           location(9, 5) | kDeviceFresh,
                                           location(9, 6) | kDeviceFresh};
    DeviceJoinState before;
    before.chunk = first - 1;
    before.source = old - 1;
    before.open = before.head = 1;
    const OnDevice changed_on(device, std::span<const std::uint32_t>(changed));
    const OnDevice sources_on(device, std::span<const Location>(sources));
    const OnDevice state(device, std::span<const DeviceJoinState>(&before, 1));
    const OnDevice next(device, sizeof before);
    const OnDevice entries(device, changed.size() * sizeof(DeviceRunEntry));
    const OnDevice counts(device, 16);
    const OnDevice scratch(device, kernels.scan_scratch(changed.size()));
    DeviceJoin what;
    what.changed = changed_on.as<std::uint32_t>();
    what.sources = sources_on.as<Location>();
    what.count = static_cast<std::uint32_t>(changed.size());
    what.first = first;
    what.copies = true;
    what.state = state.as<DeviceJoinState>();
    what.next = next.as<DeviceJoinState>();
    what.entries = entries.as<DeviceRunEntry>();
    what.entry_count = counts.as<unsigned long long>();
    what.continues = what.entry_count + 1;
    what.scratch = scratch.data();
    ASSERT_TRUE(to_result(kernels.join(device, what, nullptr)));
    const auto found = counts.values<unsigned long long>();
    ASSERT_EQ(found[0], 4U);
    EXPECT_EQ(found[1], 1U);  // goes on with the run before
    const auto runs = entries.values<DeviceRunEntry>();
    const auto expect = [&](std::size_t i, std::uint32_t begin, std::uint32_t last, Location source) {
        EXPECT_EQ(runs[i].begin, begin) << i;
        EXPECT_EQ(runs[i].last, last) << i;
        EXPECT_EQ(runs[i].source, source) << i;
    };
    expect(0, 0, 2, old);
    expect(1, 3, 3, old + 2);
    expect(2, 9, 10, (old + 2) | kDeviceFresh);
    expect(3, 11, 12, location(9, 5));
    const DeviceJoinState after = next.values<DeviceJoinState>()[0];
    EXPECT_EQ(after.chunk, first + 12);
    EXPECT_EQ(after.source, sources.back());
    EXPECT_EQ(after.open, 1U);
    EXPECT_EQ(after.head, 0U);
    EXPECT_EQ(after.step, 1U);
}

TEST(DeviceDedup, ScattersPayloadToItsPlaces) {
    TWR_TEST_DEVICE(device);
    const DeviceDedupKernels& kernels = *device_dedup_kernels();
    std::mt19937_64 random(9);
    for (int round = 0; round < test_rounds(60); ++round) {
        const std::uint32_t chunk = kSmallestRecordChunk << (random() % 12);
        SCOPED_TRACE("round " + std::to_string(round) + ", chunks of " + std::to_string(chunk));
        const std::size_t bytes = 1 + random() % (chunk * (chunk >= 4096 ? 20U : 2000U));
        const std::size_t chunks = (bytes + chunk - 1) / chunk;
        const std::size_t payload_chunks = 1 + random() % 300;
        const Bytes payload = random_bytes(payload_chunks * chunk, random);
        Bytes expected(bytes, std::byte{0xA5});
        std::vector<DeviceScatterRun> runs;
        std::uint64_t before = 0;
        for (std::size_t at = random() % 3; at < chunks;) {
            DeviceScatterRun run;
            run.begin = at;
            run.count = std::min<std::uint64_t>(chunks - at, 1 + random() % (random() % 2 == 0 ? 3 : 500));
            run.repeat = random() % 3 == 0 ? 1 : 0;
            run.source = random() % payload_chunks;
            if (run.repeat == 0) run.count = std::min(run.count, payload_chunks - run.source);
            run.before = before;
            before += run.count;
            for (std::uint64_t i = 0; i < run.count; ++i) {
                const std::size_t to = (at + i) * chunk;
                std::memcpy(expected.data() + to,
                            payload.data() + (run.source + (run.repeat != 0 ? 0 : i)) * chunk,
                            std::min<std::size_t>(chunk, bytes - to));
            }
            runs.push_back(run);
            at += run.count + (random() % 2 == 0 ? 0 : random() % 5);
        }
        const std::size_t skew = round % 2 == 0 ? 0 : random() % 61;
        const OnDevice to(device, bytes + 64, skew);
        const OnDevice from(device, std::span<const std::byte>(payload));
        const OnDevice on(device, std::span<const DeviceScatterRun>(runs));
        DeviceScatter what;
        what.chunk_bytes = chunk;
        what.runs = on.as<DeviceScatterRun>();
        what.run_count = runs.size();
        what.chunks = before;
        what.payload = from.data();
        what.to = to.data();
        what.bytes = bytes;
        ASSERT_TRUE(to_result(kernels.scatter(device, what, nullptr)));
        expected.resize(bytes + 64, std::byte{0xA5});  // nothing is written behind
        EXPECT_TRUE(to.values<std::byte>() == expected);
    }
}

TEST(DeviceDedup, RefusesWhatItDoesNotHave) {
    TWR_TEST_DEVICE(device);
    const auto refused = [&](const DedupOptions& options, ErrorCode code) {
        const auto made = make_device_deduplicator(device, options);
        ASSERT_FALSE(made.ok());
        EXPECT_EQ(made.error().code, code) << made.error().message;
    };
    DedupOptions options;
    options.keep_base = options.verify = true;
    options.read = [](Location, std::span<std::byte>) { return success(); };
    refused(options, ErrorCode::unsupported);
    options = {};
    options.chunk_bytes = 48;
    refused(options, ErrorCode::invalid_argument);
    options = {};
    options.slice_chunks = 3;
    refused(options, ErrorCode::invalid_argument);
    options.slice_chunks = kMostSliceChunks * 2;
    refused(options, ErrorCode::invalid_argument);
    options = {};
    const auto none = make_device_deduplicator(1000, options);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::unsupported);

    auto made = make_device_deduplicator(device, options);
    ASSERT_TRUE(made.ok());
    const OnDevice image(device, 4096);
    ImageSegment segment{"a", image.data(), 4096, DifferenceRule{}, DType::u8};
    Sink sink;
    const auto bound = (*made)->step(0, std::span(&segment, 1), sink);
    ASSERT_FALSE(bound.ok());
    EXPECT_EQ(bound.error().code, ErrorCode::unsupported);
    segment.bound.reset();
    const std::vector<ImageSegment> twice = {segment, segment};
    EXPECT_EQ((*made)->step(0, twice, sink).error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE((*made)->step(0, std::span(&segment, 1), sink).ok());

    options.method = RecordMethod::full;
    made = make_device_deduplicator(device, options);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->step(0, twice, sink).error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE((*made)->step(0, std::span(&segment, 1), sink).ok());
}

TEST(DeviceDedup, ASinkThatFailsEndsTheStepAndAllIsForgotten) {
    TWR_TEST_DEVICE(device);
    struct Failing final : PayloadSink {
        Result<> take(const Chunks&) override { return Error{ErrorCode::no_space, "full"}; }
    };
    DedupOptions options;
    auto made = make_device_deduplicator(device, options);
    ASSERT_TRUE(made.ok());
    std::mt19937_64 random(10);
    const Image image = {{"a", random_bytes(100000, random)}};
    const Uploaded uploaded(device, image, 0);
    Sink good;
    ASSERT_TRUE((*made)->step(0, uploaded.segments(), good).ok());
    const Uploaded other(device, {{"a", random_bytes(100000, random)}}, 0);
    Failing bad;
    EXPECT_EQ((*made)->step(1, other.segments(), bad).error().code, ErrorCode::no_space);
    EXPECT_EQ((*made)->facts().entries, 0U);
    const auto again = (*made)->step(2, uploaded.segments(), good);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->base, kNoBase);
    EXPECT_EQ(again->payload, again->chunks);
}

// Every call of the device's library fails once, in the middle of a history.
TEST(DeviceDedupFaults, AnErrorIsTheLibrarysAndLeavesNothing) {
    TWR_FAKE_DEVICE(fake);
    for (const RecordMethod method : {RecordMethod::runs, RecordMethod::tree, RecordMethod::basic}) {
        SCOPED_TRACE(method_name(method));
        testing::fail_each_call(*fake, testing::LessMemory::may_fail, [&]() -> Result<> {
            DedupOptions options;
            options.method = method;
            options.chunk_bytes = 64;
            options.slice_chunks = 64;
            options.table_bytes = 42 * 1024;
            options.keep_base = options.give_base = method == RecordMethod::runs;
            TWR_TRY(auto host, make_host_deduplicator(options));
            TWR_TRY(auto made, make_device_deduplicator(0, options));
            std::mt19937_64 random(11);
            Image image = {{"a", random_bytes(64 * 100 + 7, random)}, {"b", random_bytes(64 * 60, random)}};
            Sink earlier;
            const Bytes learned = random_bytes(64 * 30, random);
            TWR_CHECK(host->learn(location(0, 0), learned));
            TWR_CHECK(made->learn(location(0, 0), learned));
            for (std::uint32_t i = 1; i < 5; ++i) {
                Sink a;
                Sink b;
                std::deque<DeviceMemory> memory;
                std::vector<ImageSegment> segments;
                for (const Segment& segment : image) {
                    TWR_CHECK(memory.emplace_back().reserve(0, segment.bytes.size()));
                    TWR_CHECK(to_result(device_runtime()->copy(0, memory.back().data(), segment.bytes.data(),
                                                               segment.bytes.size(), nullptr)));
                    segments.push_back(
                        {segment.name, memory.back().data(), segment.bytes.size(), {}, DType::u8});
                }
                TWR_CHECK(to_result(device_runtime()->wait_stream(0, nullptr)));
                const auto expected = host->step(i, on_host(image), a);
                const auto found = made->step(i, segments, b);
                if (!found) {
                    // One step is lost, and the next one stands alone, unless the library fails again
                    // or the device is lost.
                    const std::uint64_t failed = fake->failed();
                    Sink c;
                    const auto again = made->step(i + 100, segments, c);
                    if (again.ok()) {
                        EXPECT_EQ(again->base, kNoBase);
                    } else if (again.error().message.find("is lost") == std::string::npos) {
                        EXPECT_GT(fake->failed(), failed) << again.error().message;
                    }
                    return found.error();
                }
                EXPECT_TRUE(expected.ok());
                EXPECT_EQ(found->runs, expected->runs);
                EXPECT_EQ(found->content, expected->content);
                EXPECT_TRUE(a.bytes == b.bytes);
                EXPECT_TRUE(a.base == b.base);
                change(image, 64, random);
                if (i == 2) image[0].bytes.resize(image[0].bytes.size() + 100);
            }
            return success();
        });
        if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace twinrun
