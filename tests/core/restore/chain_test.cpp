#include "restore/chain.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <set>
#include <thread>

#include "support/faulty_file_system.hpp"
#include "support/record.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

using testing::expect_same;
using testing::FolderRecord;
using testing::FreshFolder;
using testing::kAllMethods;
using testing::random_bytes;
using testing::RandomHistory;
using testing::read_file;
using testing::RecordBytes;
using testing::TestImage;
using testing::write_file;
using ChunkRun = Run;  // ::testing::Test has a member of that name

bool packs() { return codec_available(PayloadCodec::zstd); }

// How payload is kept.
enum class Kept { stored, packed, xored };
PayloadSettings settings_for(Kept kept, std::uint32_t block_bytes) {
    PayloadSettings settings;
    settings.codec = kept == Kept::stored || !packs() ? PayloadCodec::stored : PayloadCodec::zstd;
    settings.block_bytes = block_bytes;
    return settings;
}
DedupOptions options_for(RecordMethod method, Kept kept, std::uint32_t chunk) {
    DedupOptions options;
    options.method = method;
    options.chunk_bytes = chunk;
    options.keep_base = options.give_base = kept == Kept::xored && method != RecordMethod::full;
    return options;
}

RecordChain chain_of(const std::string& folder, int threads = 1) {
    return RecordChain(
        [folder](std::uint32_t ordinal) -> Result<DifferencePlace> {
            const std::string path = folder + "/" + std::to_string(ordinal) + ".diff";
            if (std::filesystem::exists(path)) return DifferencePlace{path};
            return Error{ErrorCode::not_found, "difference " + std::to_string(ordinal) + " is not there"};
        },
        threads);
}
Result<TestImage> restore(RecordChain& chain, std::uint32_t ordinal) {
    TWR_TRY(const StepMap map, chain.map(ordinal));
    TestImage image;
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
        // Reading does not rely on memory that is zero.
        image.push_back(
            {map.directory.segments[s].name, RecordBytes(map.directory.segments[s].bytes, std::byte{0xEE})});
        TWR_CHECK(chain.read_segment(map, s, image.back().bytes));
    }
    return image;
}

// Blocks, as (difference, number), that the bytes of these runs need, with those that they were XORed with.
using Blocks = std::set<std::pair<std::uint32_t, std::size_t>>;
void add_blocks(RecordChain& chain, Location source, Blocks& blocks) {
    const auto file = chain.open(ordinal_of(source));
    ASSERT_TRUE(file.ok()) << file.error().message;
    const Difference& difference = (*file)->difference();
    const auto position = (*file)->position(source);
    ASSERT_TRUE(position.has_value());
    const auto block = static_cast<std::size_t>(*position / difference.block_chunks);
    blocks.insert({ordinal_of(source), block});
    if (!difference.blocks[block].xored) return;
    for (const ChunkRun& run : difference.bases) {
        if (*position < run.begin || *position >= run.begin + run.count) continue;
        add_blocks(chain, run.repeat ? run.source : run.source + (*position - run.begin), blocks);
    }
}
Blocks blocks_of(RecordChain& chain, const StepMap& map, std::uint64_t begin, std::uint64_t end) {
    Blocks blocks;
    for (const ChunkRun& run : map.runs) {
        for (std::uint64_t chunk = std::max(begin, run.begin); chunk < std::min(end, run.begin + run.count);
             ++chunk)
            add_blocks(chain, run.repeat ? run.source : run.source + (chunk - run.begin), blocks);
    }
    return blocks;
}

// Flips a bit in the middle of blocks.
void damage_blocks(const std::string& folder, std::uint32_t ordinals,
                   const std::function<bool(std::uint32_t, std::size_t)>& which) {
    for (std::uint32_t ordinal = 0; ordinal < ordinals; ++ordinal) {
        const std::string path = folder + "/" + std::to_string(ordinal) + ".diff";
        const auto file = DifferenceFile::open(path);
        ASSERT_TRUE(file.ok());
        for (std::size_t b = 0; b < (*file)->difference().blocks.size(); ++b) {
            const PayloadBlock& block = (*file)->difference().blocks[b];
            if (which(ordinal, b)) testing::flip_bits(path, block.offset + block.bytes / 2, std::byte{8});
        }
    }
}

std::uint64_t bytes_of_blocks(RecordChain& chain, const Blocks& blocks) {
    std::uint64_t bytes = 0;
    for (const auto& [ordinal, block] : blocks)
        bytes += (*chain.open(ordinal))->difference().blocks[block].bytes;
    return bytes;
}

std::string name_of(RecordMethod method, Kept kept) {
    static constexpr const char* kNames[] = {"stored", "packed", "xored"};
    return std::string(method_name(method)) + "_" + kNames[static_cast<int>(kept)];
}

class Chain : public ::testing::TestWithParam<std::tuple<RecordMethod, Kept>> {
   public:
    static RecordMethod method() { return std::get<0>(GetParam()); }
    static Kept kept() { return std::get<1>(GetParam()); }
    void SetUp() override {
        if (kept() != Kept::stored && !packs()) GTEST_SKIP() << "a build without zstd";
    }
};
INSTANTIATE_TEST_SUITE_P(Methods, Chain,
                         ::testing::Combine(::testing::ValuesIn(kAllMethods),
                                            ::testing::Values(Kept::stored, Kept::packed, Kept::xored)),
                         [](const auto& each) {
                             return name_of(std::get<0>(each.param), std::get<1>(each.param));
                         });

TEST_P(Chain, RestoresRandomHistoriesOfEveryChunkSize) {
    for (std::uint32_t chunk = kSmallestRecordChunk; chunk <= kLargestRecordChunk; chunk *= 2) {
        SCOPED_TRACE("chunks of " + std::to_string(chunk));
        FreshFolder folder;
        FolderRecord record(folder.path(), options_for(method(), kept(), chunk),
                            settings_for(kept(), chunk * 5), 2);
        record.deepest = kept() == Kept::xored ? 3 : 0;
        RandomHistory history(chunk + 1, chunk, chunk <= 4096 ? 30 : 8);
        for (int step = 0; step < 10; ++step) {
            const auto added = record.add(history.next());
            ASSERT_TRUE(added.ok()) << added.error().message;
        }
        for (const int threads : {1, 3}) {
            RecordChain chain = chain_of(folder.path(), threads);
            for (std::uint32_t step = 0; step < 10; ++step) {
                const auto restored = restore(chain, step);
                ASSERT_TRUE(restored.ok()) << restored.error().message;
                expect_same(*restored, history.past()[step]);
            }
            if (HasFailure()) return;
        }
    }
}

TEST_P(Chain, RangesAreSlicesOfTheWhole) {
    FreshFolder folder;
    constexpr std::uint32_t kChunk = 64;
    FolderRecord record(folder.path(), options_for(method(), kept(), kChunk),
                        settings_for(kept(), kChunk * 3));
    record.deepest = kept() == Kept::xored ? 4 : 0;
    RandomHistory history(5, kChunk);
    for (int step = 0; step < 12; ++step)
        ASSERT_TRUE(record.add(history.next()).ok());
    for (std::uint32_t step = 0; step < 12; ++step) {
        const auto map = record.chain().map(step);
        ASSERT_TRUE(map.ok()) << map.error().message;
        const TestImage& image = history.past()[step];
        ASSERT_EQ(map->directory.segments.size(), image.size());
        for (std::size_t s = 0; s < image.size(); ++s) {
            ASSERT_EQ(map->find(image[s].name), &map->directory.segments[s]);
            const RecordBytes& whole = image[s].bytes;
            for (int range = 0; range < 30; ++range) {
                std::uint64_t begin = history.below(whole.size() + 1);
                std::uint64_t end = history.below(whole.size() + 1);
                if (begin > end) std::swap(begin, end);
                if (range % 3 == 0) begin = begin / kChunk * kChunk;
                if (range % 5 == 0)
                    end = std::min<std::uint64_t>(whole.size(), begin + history.below(kChunk));
                const auto got = std::make_unique<std::byte[]>(end - begin);  // ends where the range does
                const auto read = record.chain().read(*map, s, begin, {got.get(), end - begin});
                ASSERT_TRUE(read.ok()) << read.error().message;
                ASSERT_TRUE(std::equal(got.get(), got.get() + (end - begin),
                                       whole.begin() + static_cast<std::ptrdiff_t>(begin)));
            }
            RecordBytes more(1);
            EXPECT_FALSE(record.chain().read(*map, s, whole.size(), more).ok());
            EXPECT_FALSE(record.chain().read(*map, s, ~std::uint64_t{0}, more).ok());
            RecordBytes longer(whole.size() + 1);
            EXPECT_FALSE(record.chain().read_segment(*map, s, longer).ok());
        }
        EXPECT_EQ(map->find("of no such name"), nullptr);
    }
}

// Every block that a range does not need may be damaged.
TEST_P(Chain, ReadsOnlyTheBlocksThatARangeNeeds) {
    constexpr std::uint32_t kChunk = 64;
    std::size_t spared = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        FreshFolder folder;
        FolderRecord record(folder.path(), options_for(method(), kept(), kChunk),
                            settings_for(kept(), kChunk * 2));
        record.deepest = kept() == Kept::xored ? 3 : 0;
        RandomHistory history(seed, kChunk);
        while (history.next().empty()) {
        }
        ASSERT_TRUE(record.add(history.past().back()).ok());
        for (int step = 1; step < 8; ++step)
            ASSERT_TRUE(record.add(history.next_in_place()).ok());
        const auto map = record.chain().map(7);
        ASSERT_TRUE(map.ok());
        const TestImage& image = history.past().back();
        const std::size_t s = history.below(image.size());
        const std::uint64_t begin = history.below(image[s].bytes.size() + 1);
        const std::uint64_t end =
            std::min<std::uint64_t>(image[s].bytes.size(), begin + history.below(kChunk * 6));
        if (begin == end) continue;
        const Blocks needed = blocks_of(record.chain(), *map, map->firsts[s] + begin / kChunk,
                                        map->firsts[s] + divide_up(end, kChunk));
        ASSERT_FALSE(needed.empty());
        std::size_t damaged = 0;
        damage_blocks(folder.path(), 8, [&](std::uint32_t ordinal, std::size_t block) {
            damaged += needed.contains({ordinal, block}) ? 0 : 1;
            return !needed.contains({ordinal, block});
        });
        spared += damaged;
        RecordChain chain = chain_of(folder.path(), 2);
        RecordBytes got(end - begin);
        const auto read = chain.read(*map, s, begin, got);
        ASSERT_TRUE(read.ok()) << read.error().message;
        // Each once, however many chunks need it, and at whatever depth of XORs.
        EXPECT_EQ(chain.reads().blocks, needed.size());
        EXPECT_EQ(chain.reads().bytes, bytes_of_blocks(chain, needed));
        EXPECT_TRUE(
            std::equal(got.begin(), got.end(), image[s].bytes.begin() + static_cast<std::ptrdiff_t>(begin)));
        // And none that it needs.
        const auto victim =
            *std::next(needed.begin(), static_cast<std::ptrdiff_t>(history.below(needed.size())));
        damage_blocks(folder.path(), 8, [&](std::uint32_t ordinal, std::size_t block) {
            return std::pair(ordinal, block) == victim;
        });
        chain.forget();
        const auto failed = chain.read(*map, s, begin, got);
        ASSERT_FALSE(failed.ok());
        EXPECT_EQ(failed.error().code, ErrorCode::damaged);
        EXPECT_NE(failed.error().message.find("/" + std::to_string(victim.first) + ".diff"),
                  std::string::npos)
            << failed.error().message;
    }
    EXPECT_GT(spared, 0U);
}

// Any byte of any file: right bytes, or an error that names the file; and steps that need nothing of it are restored.
TEST_P(Chain, DamageAnywhereIsNeverWrongBytes) {
    constexpr std::uint32_t kChunk = 32;
    constexpr std::uint32_t kSteps = 4;
    FreshFolder folder;
    std::vector<TestImage> images;
    {
        FolderRecord record(folder.path(), options_for(method(), kept(), kChunk),
                            settings_for(kept(), kChunk * 3));
        record.deepest = kept() == Kept::xored ? 2 : 0;
        std::mt19937_64 random(test_seed(9));
        RecordBytes a(32 * 12);
        for (std::size_t i = 0; i < a.size(); i += 2)
            a[i] = static_cast<std::byte>(random());
        RecordBytes b = random_bytes(random, 100);
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            images.push_back({{"a", a}, {"b", b}});
            ASSERT_TRUE(record.add(images.back()).ok());
            for (std::size_t i = 0; i < 32 * 6; i += 3)
                a[i + 32 * step] = static_cast<std::byte>(random());
            std::copy_n(a.begin(), 64, b.begin());
            std::memset(a.data() + 32 * 10, 0, 32);
        }
    }
    // What each step needs: files for its map, blocks for its bytes.
    std::vector<std::set<std::uint32_t>> files(kSteps);
    std::vector<Blocks> blocks(kSteps);
    {
        RecordChain chain = chain_of(folder.path());
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            const auto map = chain.map(step);
            ASSERT_TRUE(map.ok()) << map.error().message;
            const auto bases = chain.bases(step);
            const auto needs = chain.needs(*map);
            ASSERT_TRUE(bases.ok() && needs.ok());
            files[step].insert(bases->begin(), bases->end());
            blocks[step] = blocks_of(chain, *map, 0, map->firsts.back());
            for (const auto& [ordinal, block] : blocks[step]) {
                files[step].insert(ordinal);
                EXPECT_TRUE(std::binary_search(needs->begin(), needs->end(), ordinal));
            }
        }
    }
    std::mt19937_64 random(test_seed(10));
    std::size_t failures = 0;
    std::size_t successes = 0;
    for (std::uint32_t ordinal = 0; ordinal < kSteps; ++ordinal) {
        const std::string path = folder.path() + "/" + std::to_string(ordinal) + ".diff";
        const RecordBytes good = read_file(path);
        const auto opened = DifferenceFile::open(path);
        ASSERT_TRUE(opened.ok());
        const auto& of_file = (*opened)->difference().blocks;
        // Of all bytes every one, for one of the methods: the files of the others are of the same kind.
        const std::size_t stride = method() == RecordMethod::runs ? 1 : 4;
        for (std::size_t at = random() % stride; at < good.size(); at += 1 + random() % (2 * stride - 1)) {
            const auto bit = static_cast<std::byte>(1U << (random() % 8));
            testing::flip_bits(path, at, bit);
            std::size_t block = 0;
            while (block < of_file.size() && at >= of_file[block].offset + of_file[block].bytes)
                ++block;
            const bool in_block = at >= kDifferenceHeaderBytes && block < of_file.size();
            RecordChain chain = chain_of(folder.path());
            for (std::uint32_t step = 0; step < kSteps; ++step) {
                const bool needed =
                    in_block ? blocks[step].contains({ordinal, block}) : files[step].contains(ordinal);
                const auto restored = restore(chain, step);
                ASSERT_EQ(restored.ok(), !needed) << "byte " << at << " of " << path << ", step " << step;
                ++(restored.ok() ? successes : failures);
                if (restored.ok()) {
                    expect_same(*restored, images[step]);
                    if (HasFatalFailure()) return;
                } else {
                    ASSERT_TRUE(restored.error().code == ErrorCode::damaged ||
                                restored.error().code == ErrorCode::unsupported);
                    ASSERT_NE(restored.error().message.find(path), std::string::npos)
                        << restored.error().message;
                }
            }
            testing::flip_bits(path, at, bit);
        }
        // Truncated.
        for (std::size_t size = 0; size < good.size(); size += 1 + random() % (8 * stride)) {
            write_file(path, std::span(good).first(size));
            RecordChain chain = chain_of(folder.path());
            for (std::uint32_t step = 0; step < kSteps; ++step) {
                const auto restored = restore(chain, step);
                ASSERT_EQ(restored.ok(), !files[step].contains(ordinal));
                if (!restored.ok()) {
                    ASSERT_EQ(restored.error().code, ErrorCode::damaged);
                    ASSERT_NE(restored.error().message.find(path), std::string::npos);
                }
            }
        }
        std::filesystem::remove(path);
        RecordChain chain(  // as a journal names them
            [&](std::uint32_t named) -> Result<DifferencePlace> {
                return DifferencePlace{folder.path() + "/" + std::to_string(named) + ".diff"};
            },
            1);
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            const auto restored = restore(chain, step);
            ASSERT_EQ(restored.ok(), !files[step].contains(ordinal));
            if (!restored.ok()) {
                // A journal named it: a step that needs it is damaged, and not unknown.
                ASSERT_EQ(restored.error().code, ErrorCode::damaged);
                ASSERT_NE(restored.error().message.find(path + ": missing"), std::string::npos);
            }
        }
        write_file(path, good);
    }
    EXPECT_GT(failures, 0U);
    EXPECT_GT(successes, 0U);
}

TEST_P(Chain, LongOnesReadWhatTheLastStepHas) {
    constexpr std::uint32_t kChunk = 64;
    constexpr std::uint64_t kChunks = 64;
    // More than the files that a chain holds open.
    const std::uint32_t steps = method() == RecordMethod::runs || method() == RecordMethod::full ? 300 : 60;
    FreshFolder folder;
    FolderRecord record(folder.path(), options_for(method(), kept(), kChunk), settings_for(kept(), kChunk));
    record.deepest = kept() == Kept::xored ? 5 : 0;
    std::mt19937_64 random(test_seed(11));
    RecordBytes bytes = random_bytes(random, kChunk * kChunks);
    for (std::uint32_t step = 0; step < steps; ++step) {
        ASSERT_TRUE(record.add({{"x", bytes}}).ok());
        if (step + 1 == steps) break;
        for (int i = 0; i < 2; ++i)
            bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
    // A block is one chunk: no more of them than the image has, but for what they were XORed with.
    const auto map = record.chain().map(steps - 1);
    ASSERT_TRUE(map.ok()) << map.error().message;
    const Blocks needed = blocks_of(record.chain(), *map, 0, kChunks);
    const std::size_t depth = kept() == Kept::xored ? record.deepest : 0;
    EXPECT_LE(needed.size(), kChunks * (1 + depth));
    const auto needs = record.chain().needs(*map);
    ASSERT_TRUE(needs.ok());
    EXPECT_LE(needs->size(), kChunks * (1 + depth));
    damage_blocks(folder.path(), steps, [&](std::uint32_t ordinal, std::size_t block) {
        return !needed.contains({ordinal, block});
    });
    RecordChain chain = chain_of(folder.path());
    const auto restored = restore(chain, steps - 1);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    EXPECT_EQ((*restored)[0].bytes, bytes);
    const auto bases = chain.bases(steps - 1);
    ASSERT_TRUE(bases.ok());
    EXPECT_EQ(bases->size(), method() == RecordMethod::full ? 1U : steps);
}

std::vector<Location> locations(const std::vector<ChunkRun>& runs) {
    std::vector<Location> all;
    for (const ChunkRun& run : runs) {
        EXPECT_EQ(run.begin, all.size());
        for (std::uint64_t i = 0; i < run.count; ++i)
            all.push_back(run.repeat ? run.source : run.source + i);
    }
    return all;
}

TEST_P(Chain, ResolveBeforeItIsWritten) {
    FreshFolder folder;
    constexpr std::uint32_t kChunk = 32;
    FolderRecord record(folder.path(), options_for(method(), kept(), kChunk), settings_for(kept(), 0));
    RandomHistory history(13, kChunk);
    for (std::uint32_t step = 0; step < 10; ++step) {
        const auto outcome = record.add(history.next());
        ASSERT_TRUE(outcome.ok());
        const auto map = record.chain().map(step);
        ASSERT_TRUE(map.ok());
        std::filesystem::rename(record.path(step), folder / "away");
        record.chain().forget();
        const auto runs = record.chain().resolve(map->directory, kChunk, outcome->runs, outcome->base);
        ASSERT_TRUE(runs.ok()) << runs.error().message;
        EXPECT_EQ(locations(*runs), locations(map->runs));
        EXPECT_EQ(locations(*runs).size(), outcome->chunks);
        std::filesystem::rename(folder / "away", record.path(step));
    }
}

TEST_P(Chain, PayloadIsReadAsItWas) {
    FreshFolder folder;
    constexpr std::uint32_t kChunk = 32;
    FolderRecord record(folder.path(), options_for(method(), kept(), kChunk),
                        settings_for(kept(), kChunk * 4));
    record.deepest = kept() == Kept::xored ? 2 : 0;
    testing::ModelRecord model(options_for(method(), kept(), kChunk));
    RandomHistory history(15, kChunk);
    for (std::uint32_t step = 0; step < 10; ++step) {
        const TestImage& image = history.next();
        ASSERT_TRUE(record.add(image).ok());
        ASSERT_TRUE(model.add(image).ok());
        const RecordBytes& payload = model.step(step).payload;
        const std::uint64_t chunks = payload.size() / kChunk;
        for (int range = 0; range < 5; ++range) {
            const std::uint64_t first = history.below(chunks + 1);
            const std::uint64_t count = history.below(chunks - first + 1);
            RecordBytes got(count * kChunk);
            const auto read = record.chain().read_payload(location(step, first), count, kChunk, got);
            ASSERT_TRUE(read.ok()) << read.error().message;
            ASSERT_TRUE(std::equal(got.begin(), got.end(),
                                   payload.begin() + static_cast<std::ptrdiff_t>(first * kChunk)));
        }
        RecordBytes one(kChunk);
        EXPECT_FALSE(record.chain().read_payload(location(step, chunks), 1, kChunk, one).ok());
        EXPECT_FALSE(record.chain().read_payload(location(step, 0), 2, kChunk, one).ok());
    }
}

TEST_P(Chain, VerifyReadsThroughIt) {
    FreshFolder folder;
    DedupOptions options = options_for(method(), kept(), 32);
    options.keep_base = options.verify = true;
    options.hash_bits = 5;
    FolderRecord record(folder.path(), options, settings_for(kept(), 32 * 3));
    record.deepest = kept() == Kept::xored ? 2 : 0;
    RandomHistory history(17, 32);
    for (std::uint32_t step = 0; step < 8; ++step) {
        ASSERT_TRUE(record.add(history.next()).ok());
        const auto restored = record.restore(step);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        expect_same(*restored, history.past()[step]);
    }
}

TEST_P(Chain, WriterThatFailsLosesOneStepOnly) {
    constexpr std::uint32_t kChunk = 64;
    for (std::size_t at = 1; at <= 6; ++at) {
        FreshFolder folder;
        FolderRecord record(folder.path(), options_for(method(), kept(), kChunk),
                            settings_for(kept(), kChunk * 4));
        RandomHistory history(at, kChunk);
        std::vector<std::uint32_t> there;
        for (std::uint32_t step = 0; step < 6; ++step) {
            testing::FaultyFileSystem system(testing::unsynced_file_system());
            if (step == 3) system.inject({.at = at});
            const auto added = record.add(history.next(), system);
            EXPECT_EQ(added.ok(), step != 3);
            if (!added.ok()) record.deduplicator().forget();  // its payload is nowhere
            if (added.ok()) there.push_back(step);
        }
        EXPECT_EQ(folder.names().size(), 5U);
        RecordChain chain = chain_of(folder.path());
        for (const std::uint32_t step : there) {
            const auto restored = restore(chain, step);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            expect_same(*restored, history.past()[step]);
        }
    }
}

TEST(ChainXor, DepthIsWhatTheSinkAllows) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    std::mt19937_64 random(test_seed(19));
    for (const std::uint32_t deepest : {0U, 1U, 4U, 100U}) {
        FreshFolder folder;
        FolderRecord record(folder.path(), options_for(RecordMethod::runs, Kept::xored, 256),
                            settings_for(Kept::xored, 256 * 8));
        record.deepest = deepest;
        RecordBytes bytes = random_bytes(random, 256 * 64);
        std::vector<RecordBytes> past;
        std::uint64_t payload = 0;
        std::uint32_t reached = 0;
        for (std::uint32_t step = 0; step < 30; ++step) {
            ASSERT_TRUE(record.add({{"x", bytes}}).ok());
            past.push_back(bytes);
            payload += record.last_written.payload_bytes;
            reached = std::max(reached, record.depth(step));
            for (std::size_t at = 0; at < bytes.size(); at += 64)  // a little, everywhere
                bytes[at] ^= static_cast<std::byte>(1 + random() % 7);
        }
        EXPECT_EQ(reached, std::min(deepest, 29U));
        // Noise cannot be packed, but what changes of it can.
        if (deepest == 0) {
            EXPECT_GT(payload, 30 * bytes.size() / 100 * 98);
        } else {
            EXPECT_LT(payload, 30 * bytes.size() / (deepest == 1 ? 1 : 2));
        }
        // By the files: from a chunk on, no more XORs than that.
        RecordChain chain = chain_of(folder.path(), 2);
        for (std::uint32_t step = 0; step < 30; ++step) {
            const auto map = chain.map(step);
            ASSERT_TRUE(map.ok());
            for (std::uint64_t chunk = 0; chunk < 64; chunk += 9) {
                EXPECT_LE(blocks_of(chain, *map, chunk, chunk + 1).size(), 1 + deepest);
            }
            const auto restored = restore(chain, step);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_EQ((*restored)[0].bytes, past[step]);
        }
    }
}

// More differences than are open at once: what comes as it is is written in one pass, and in later ones what it
// is XORed with.
TEST(ChainXor, MoreDifferencesThanOnePassHas) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    constexpr std::uint32_t kSteps = 150;
    std::mt19937_64 random(test_seed(31));
    FreshFolder folder;
    FolderRecord record(folder.path(), options_for(RecordMethod::runs, Kept::xored, 256),
                        settings_for(Kept::xored, 256 * 8));
    record.deepest = 1000;
    RecordBytes bytes = random_bytes(random, 256 * 64);
    std::vector<RecordBytes> past;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
        ASSERT_TRUE(record.add({{"x", bytes}}).ok());
        past.push_back(bytes);
        for (std::size_t at = 0; at < bytes.size(); at += 200 + random() % 100)
            bytes[at] ^= static_cast<std::byte>(1 + random() % 7);
    }
    EXPECT_GT(record.depth(kSteps - 1), 128U);
    for (const int threads : {1, 3}) {
        RecordChain chain = chain_of(folder.path(), threads);
        for (const std::uint32_t step : {kSteps - 1, kSteps - 2, 100U, 65U, 64U, 63U}) {
            const auto restored = restore(chain, step);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_EQ((*restored)[0].bytes, past[step]);
        }
    }
}

// Every second chunk is XORed with what it was: one difference alone has more parts than a pass takes.
TEST(ChainXor, MorePartsThanOnePassHas) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    constexpr std::uint64_t kSteps = 3;
    constexpr std::uint64_t kSmall = kSmallestRecordChunk;
    std::mt19937_64 random(test_seed(37));
    FreshFolder folder;
    FolderRecord record(folder.path(), options_for(RecordMethod::runs, Kept::xored, kSmall),
                        settings_for(Kept::xored, 128 << 10), 2);
    record.deepest = 9;
    RecordBytes bytes = random_bytes(random, kSmall * 600'000);
    std::vector<RecordBytes> past;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
        const auto added = record.add({{"x", bytes}});
        ASSERT_TRUE(added.ok()) << added.error().message;
        past.push_back(bytes);
        for (std::size_t at = step % 2 * kSmall; at < bytes.size(); at += 2 * kSmall)
            bytes[at + random() % kSmall] ^= std::byte{1};
    }
    for (const int threads : {1, 3}) {
        RecordChain chain = chain_of(folder.path(), threads);
        for (std::uint32_t step = 0; step < kSteps; ++step) {
            const auto map = chain.map(step);
            ASSERT_TRUE(map.ok()) << map.error().message;
            EXPECT_TRUE(step != 1 || map->runs.size() > 500'000);
            const auto restored = restore(chain, step);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_TRUE((*restored)[0].bytes == past[step]);
        }
    }
}

// Few elements of most chunks change, and none of some, each time of others: so the chunks that one step was
// XORed with lie in many steps. Copies, chunks that repeat, and a segment that moves, besides.
TEST(ChainXor, UnchangedChunksBetweenChangedOnes) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    constexpr std::uint32_t kChunk = 64;
    constexpr std::uint64_t kChunks = 200;
    std::mt19937_64 random(test_seed(29));
    std::uint64_t sparse = 0;
    std::uint64_t pieces = 0;
    for (int history = 0; history < 20; ++history) {
        SCOPED_TRACE(history);
        FreshFolder folder;
        FolderRecord record(folder.path(), options_for(RecordMethod::runs, Kept::xored, kChunk),
                            settings_for(Kept::xored, kChunk * (history % 2 == 0 ? 32 : 7)), 2);
        record.deepest = 12;
        RecordBytes bytes = random_bytes(random, kChunk * kChunks - random() % kChunk);
        RecordBytes other = random_bytes(random, kChunk * (random() % 9));
        std::vector<TestImage> past;
        const auto chunk_at = [&](std::uint64_t chunk) {
            return bytes.begin() + static_cast<std::ptrdiff_t>(chunk * kChunk);
        };
        for (std::uint32_t step = 0; step < 16; ++step) {
            past.push_back(random() % 4 == 0 ? TestImage{{"y", other}, {"x", bytes}}
                                             : TestImage{{"x", bytes}, {"y", other}});
            const auto added = record.add(past.back());
            ASSERT_TRUE(added.ok()) << added.error().message;
            for (std::uint64_t chunk = 0; chunk < kChunks - 1; ++chunk) {
                if (random() % 20 == 0) continue;
                for (int i = 0; i < 2; ++i)
                    chunk_at(chunk)[static_cast<std::ptrdiff_t>(random() % kChunk)] ^= std::byte{1};
            }
            const std::uint64_t from = random() % (kChunks - 10);
            const std::uint64_t to = random() % (kChunks - 10);
            if (history % 3 == 0 && step % 3 == 0) {
                const RecordBytes copied(chunk_at(from), chunk_at(from + 5));
                std::copy(copied.begin(), copied.end(), chunk_at(to));
            }
            if (history % 3 == 1 && step % 4 == 0) std::fill(chunk_at(to), chunk_at(to + 9), std::byte{3});
        }
        for (const int threads : {1, 3}) {
            RecordChain chain = chain_of(folder.path(), threads);
            for (std::uint32_t step = 0; step < 16; ++step) {
                const auto restored = restore(chain, step);
                ASSERT_TRUE(restored.ok()) << restored.error().message;
                expect_same(*restored, past[step]);
                const auto map = chain.map(step);
                ASSERT_TRUE(map.ok());
                const auto number = static_cast<std::size_t>(map->find("x") - map->directory.segments.data());
                for (int range = 0; range < 10; ++range) {
                    const RecordBytes& whole = past[step][number].bytes;
                    const std::uint64_t begin = random() % whole.size();
                    RecordBytes got(random() % (whole.size() - begin), std::byte{0xEE});
                    ASSERT_TRUE(chain.read(*map, number, begin, got).ok());
                    ASSERT_TRUE(std::equal(got.begin(), got.end(),
                                           whole.begin() + static_cast<std::ptrdiff_t>(begin)));
                }
                const auto file = chain.open(step);
                ASSERT_TRUE(file.ok());
                for (std::size_t b = 0; b < (*file)->difference().blocks.size(); ++b)
                    sparse += (*file)->sparse(b) ? 1 : 0;
                pieces += (*file)->difference().bases.size();
            }
            if (HasFailure()) return;
        }
    }
    EXPECT_GT(sparse, 500U);  // what this is about
    EXPECT_GT(pieces, 2000U);
}

TEST(ChainSkip, StepsThatWereTakenWhole) {
    FreshFolder folder;
    DedupOptions options = options_for(RecordMethod::runs, Kept::stored, 64);
    options.skip_when_all_new = true;
    FolderRecord record(folder.path(), options);
    std::mt19937_64 random(test_seed(23));
    std::vector<TestImage> images;
    std::size_t whole = 0;
    for (std::uint32_t step = 0; step < 20; ++step) {
        images.push_back({{"x", random_bytes(random, 5000)}, {"y", random_bytes(random, 77)}});
        if (step % 7 == 6) images.back() = images[step - 1];
        const auto outcome = record.add(images.back());
        ASSERT_TRUE(outcome.ok());
        whole += outcome->method == RecordMethod::full ? 1 : 0;
    }
    EXPECT_GT(whole, 3U);
    RecordChain chain = chain_of(folder.path());
    for (std::uint32_t step = 0; step < 20; ++step) {
        const auto restored = restore(chain, step);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        expect_same(*restored, images[step]);
    }
}

TEST(ChainBound, DriftStaysWithinTheBoundInFiles) {
    FreshFolder folder;
    DedupOptions options = options_for(RecordMethod::runs, Kept::stored, 64);
    options.keep_base = true;
    FolderRecord record(folder.path(), options);
    DifferenceRule rule;
    rule.tolerance.atol = 0.01;
    std::vector<double> values(100, 1);
    std::vector<std::vector<double>> past;
    std::uint64_t stored = 0;
    for (std::uint32_t step = 0; step < 200; ++step) {
        const auto outcome = record.add({{"x", testing::bytes_of(values), step % 3, rule, DType::f64}});
        ASSERT_TRUE(outcome.ok()) << outcome.error().message;
        stored += outcome->payload;
        past.push_back(values);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] += 0.0003 * static_cast<double>(i % 13);
    }
    EXPECT_LT(stored, 200U * 13 / 2);
    RecordChain chain = chain_of(folder.path());
    for (std::uint32_t step = 0; step < 200; ++step) {
        const auto restored = restore(chain, step);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        for (std::size_t i = 0; i < values.size(); ++i) {
            double value = 0;
            std::memcpy(&value, (*restored)[0].bytes.data() + i * 8, 8);
            ASSERT_LE(std::abs(value - past[step][i]), 0.01);
        }
    }
}

// ---- differences made by hand ----

struct ByHand {
    Difference difference;
    RecordBytes payload;
    PayloadSettings settings;
    RecordBytes base = {};
    std::vector<Location> base_at = {};
};
void write_by_hand(const FreshFolder& folder, ByHand given) {
    const std::string path = folder / (std::to_string(given.difference.ordinal) + ".diff");
    std::filesystem::remove(path);  // of an earlier round
    auto writer = DifferenceWriter::create(testing::unsynced_file_system(), path,
                                           given.difference.chunk_bytes, given.settings);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->add(given.payload, given.base, given.base_at).ok());
    const auto written = (*writer)->finish(Difference(given.difference));
    ASSERT_TRUE(written.ok()) << written.error().message;
}

// More than 2^32 chunks in two small files: nearly all of them are one chunk.
TEST(ChainByHand, MoreThanFourBillionChunks) {
    FreshFolder folder;
    constexpr std::uint32_t kChunk = 65536;
    constexpr std::uint64_t kMany = (std::uint64_t{1} << 34) + 3;
    std::mt19937_64 random(test_seed(29));
    ByHand first;
    first.difference.chunk_bytes = kChunk;
    first.difference.directory.files = {{"huge", kMany * kChunk}};
    first.difference.directory.segments = {{"huge", 0, 0, kMany * kChunk, 0}};
    first.payload = random_bytes(random, kChunk * 3);
    first.difference.runs = {{0, 1, location(0, 0), false},
                             {1, kMany - 3, location(0, 0), true},
                             {kMany - 2, 2, location(0, 1), false}};
    write_by_hand(folder, first);
    for (const RecordMethod method : {RecordMethod::list, RecordMethod::tree, RecordMethod::runs}) {
        ByHand second;
        second.difference = first.difference;
        second.difference.method = method;
        second.difference.ordinal = 1;
        second.difference.base = 0;
        second.payload = random_bytes(random, kChunk);
        const std::uint64_t middle = (std::uint64_t{1} << 33) + 2;
        second.difference.runs = {{middle, 1, location(1, 0), false}, {middle + 1, 1, location(0, 2), false}};
        write_by_hand(folder, second);
        RecordChain chain = chain_of(folder.path());
        const auto map = chain.map(1);
        ASSERT_TRUE(map.ok()) << map.error().message;
        EXPECT_EQ(map->firsts.back(), kMany);
        const auto chunk_at = [&](std::uint64_t chunk) {
            if (chunk == middle) return second.payload.data();
            const std::uint64_t place = chunk == middle + 1 || chunk == kMany - 1 ? 2
                                        : chunk == kMany - 2                      ? 1
                                                                                  : 0;
            return first.payload.data() + place * kChunk;
        };
        const std::vector<std::uint64_t> places = {0,          1,         middle - 1, middle,   middle + 1,
                                                   middle + 2, kMany - 4, kMany - 3,  kMany - 2};
        for (const std::uint64_t chunk : places) {
            RecordBytes got(kChunk + 100);  // from the middle of one to the middle of the next
            const std::uint64_t at = chunk * kChunk + 1234;
            const auto read = chain.read(*map, 0, at, got);
            ASSERT_TRUE(read.ok()) << read.error().message;
            EXPECT_EQ(std::memcmp(got.data(), chunk_at(chunk) + 1234, kChunk - 1234), 0) << chunk;
            EXPECT_EQ(std::memcmp(got.data() + kChunk - 1234, chunk_at(chunk + 1), 1334), 0) << chunk;
        }
    }
}

TEST(ChainByHand, AnotherContentThanWasRecordedIsDamaged) {
    FreshFolder folder;
    ByHand step;
    step.difference.chunk_bytes = 32;
    step.difference.directory.files = {{"f", 50}};
    step.difference.directory.segments = {{"x", 0, 0, 50, 0}};
    step.difference.runs = {{0, 2, location(0, 0), false}};
    std::mt19937_64 random(test_seed(31));
    step.payload = random_bytes(random, 50);
    step.payload.resize(64);
    step.difference.directory.segments[0].content =
        testing::content_of(std::span(step.payload).first(50), 32);
    write_by_hand(folder, step);
    RecordChain chain = chain_of(folder.path(), 3);
    EXPECT_TRUE(restore(chain, 0).ok());
    step.difference.directory.segments[0].content ^= 1;
    write_by_hand(folder, step);
    chain.forget();
    const auto restored = restore(chain, 0);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.error().code, ErrorCode::damaged);
    EXPECT_NE(restored.error().message.find("'x'"), std::string::npos);
}

TEST(ChainByHand, FilesThatDoNotBelongTogether) {
    FreshFolder folder;
    std::mt19937_64 random(test_seed(37));
    ByHand base;
    base.difference.chunk_bytes = 32;
    base.difference.directory.files = {{"f", 640}};
    base.difference.directory.segments = {{"x", 0, 0, 320, 0}};
    base.difference.runs = {{0, 10, location(0, 0), false}};
    base.payload = random_bytes(random, 320);
    const auto error_of = [&](const ByHand& step) {
        write_by_hand(folder, step);
        RecordChain chain = chain_of(folder.path());
        const auto restored = restore(chain, step.difference.ordinal);
        EXPECT_FALSE(restored.ok());
        return restored.ok() ? Error{} : restored.error();
    };
    write_by_hand(folder, base);
    ByHand next;
    next.difference = base.difference;
    next.difference.ordinal = 5;
    next.difference.base = 0;
    next.difference.runs.clear();
    next.payload.clear();
    {
        ByHand step = next;  // a segment that the base lacks
        step.difference.directory.segments[0].name = "y";
        const Error error = error_of(step);
        EXPECT_EQ(error.code, ErrorCode::damaged);
        EXPECT_NE(error.message.find("0.diff"), std::string::npos);
    }
    {
        ByHand step = next;  // more chunks of it than the base has
        step.difference.directory.segments[0].bytes = 321;
        EXPECT_EQ(error_of(step).code, ErrorCode::damaged);
    }
    {
        ByHand step = next;  // payload that is not there
        step.difference.runs = {{3, 2, location(0, 9), false}};
        const Error error = error_of(step);
        EXPECT_EQ(error.code, ErrorCode::damaged);
        EXPECT_NE(error.message.find("0.diff"), std::string::npos);
    }
    {
        ByHand step = next;  // no such difference
        step.difference.runs = {{3, 2, location(4, 0), false}};
        EXPECT_EQ(error_of(step).code, ErrorCode::not_found);
    }
    {
        ByHand step = next;  // chunks of another size, as base and as source
        step.difference.chunk_bytes = 64;
        EXPECT_EQ(error_of(step).code, ErrorCode::damaged);
        step.difference.base = kNoBase;
        step.difference.runs = {{0, 5, location(0, 0), false}};
        EXPECT_EQ(error_of(step).code, ErrorCode::damaged);
    }
    {
        write_by_hand(folder, next);  // a file under another's name
        std::filesystem::copy(folder / "5.diff", folder / "7.diff");
        RecordChain chain = chain_of(folder.path());
        EXPECT_TRUE(restore(chain, 5).ok());
        const auto restored = restore(chain, 7);
        ASSERT_FALSE(restored.ok());
        EXPECT_EQ(restored.error().code, ErrorCode::damaged);
        EXPECT_NE(restored.error().message.find("7.diff"), std::string::npos);
    }
}

// Steps that left: what others copy from, or were XORed with, is kept in one file.
TEST(ChainByHand, Leftovers) {
    for (const bool xored : {false, true}) {
        if (xored && !packs()) continue;
        FreshFolder folder;
        constexpr std::uint32_t kChunk = 64;
        constexpr std::uint32_t kSteps = 9;
        FolderRecord record(folder.path(),
                            options_for(RecordMethod::runs, xored ? Kept::xored : Kept::stored, kChunk),
                            settings_for(xored ? Kept::xored : Kept::stored, kChunk * 4));
        record.deepest = xored ? 3 : 0;
        RandomHistory history(43, kChunk);
        for (std::uint32_t step = 0; step < kSteps; ++step)
            ASSERT_TRUE(record.add(history.next_in_place()).ok());
        // The last step stands alone, with its whole map; of all others what it needs is left.
        const auto map = record.chain().map(kSteps - 1);
        ASSERT_TRUE(map.ok());
        std::set<Location> needed;
        const std::function<void(Location)> need = [&](Location at) {
            if (!needed.insert(at).second) return;
            const auto file = record.chain().open(ordinal_of(at));
            ASSERT_TRUE(file.ok());
            const Difference& difference = (*file)->difference();
            if (!difference.blocks[chunk_of(at) / difference.block_chunks].xored) return;
            for (const ChunkRun& run : difference.bases) {
                if (chunk_of(at) >= run.begin && chunk_of(at) < run.begin + run.count)
                    need(run.repeat ? run.source : run.source + (chunk_of(at) - run.begin));
            }
        };
        for (const ChunkRun& run : map->runs) {
            for (std::uint64_t i = 0; i < run.count; ++i)
                need(run.repeat ? run.source : run.source + i);
        }
        ByHand left;
        left.difference.chunk_bytes = kChunk;
        left.difference.ordinal = kSteps - 2;
        left.settings.block_bytes = kChunk * 5;
        for (const Location at : needed) {
            if (ordinal_of(at) == kSteps - 1) continue;
            RecordBytes chunk(kChunk);
            ASSERT_TRUE(record.chain().read_payload(at, 1, kChunk, chunk).ok());
            left.payload.insert(left.payload.end(), chunk.begin(), chunk.end());
            auto& kept = left.difference.kept;
            if (!kept.empty() && kept.back().ordinal == ordinal_of(at) &&
                kept.back().first + kept.back().count == chunk_of(at)) {
                ++kept.back().count;
            } else {
                kept.push_back({ordinal_of(at), chunk_of(at), 1});
            }
        }
        ASSERT_FALSE(left.difference.kept.empty());
        ByHand alone;
        alone.difference.chunk_bytes = kChunk;
        alone.difference.ordinal = kSteps - 1;
        alone.difference.directory = map->directory;
        alone.difference.runs = map->runs;
        for (std::uint64_t i = 0;; ++i) {  // its payload, as it is
            RecordBytes chunk(kChunk);
            if (!record.chain().read_payload(location(kSteps - 1, i), 1, kChunk, chunk).ok()) break;
            alone.payload.insert(alone.payload.end(), chunk.begin(), chunk.end());
        }
        for (std::uint32_t step = 0; step < kSteps; ++step)
            std::filesystem::remove(record.path(step));
        write_by_hand(folder, left);
        write_by_hand(folder, alone);
        const std::string leftovers = folder / (std::to_string(kSteps - 2) + ".diff");
        RecordChain chain(
            [&](std::uint32_t ordinal) -> Result<DifferencePlace> {
                return DifferencePlace{ordinal == kSteps - 1 ? folder / (std::to_string(ordinal) + ".diff")
                                                             : leftovers};
            },
            2);
        const auto restored = restore(chain, kSteps - 1);
        ASSERT_TRUE(restored.ok()) << restored.error().message;
        expect_same(*restored, history.past().back());
        const auto gone = chain.map(left.difference.kept.front().ordinal);
        ASSERT_FALSE(gone.ok());
        EXPECT_EQ(gone.error().code, ErrorCode::not_found);
        // A chunk that was not kept.
        std::uint64_t other = 0;
        while (needed.contains(location(left.difference.kept.front().ordinal, other)))
            ++other;
        RecordBytes chunk(kChunk);
        EXPECT_FALSE(
            chain.read_payload(location(left.difference.kept.front().ordinal, other), 1, kChunk, chunk).ok());
    }
}

// Leftovers can claim that a chunk was XORed with itself: reading ends.
TEST(ChainByHand, BasesInACircleEnd) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    FreshFolder folder;
    ByHand left;
    left.difference.chunk_bytes = 64;
    left.difference.ordinal = 5;
    left.difference.kept = {{3, 0, 4}};
    left.settings.codec = PayloadCodec::zstd;
    left.settings.block_bytes = 256;
    std::mt19937_64 random(test_seed(47));
    left.payload = random_bytes(random, 256);
    left.base = left.payload;
    left.base_at = {location(3, 1), location(3, 0), location(3, 3), location(3, 2)};
    write_by_hand(folder, left);
    const std::string path = folder / "5.diff";
    RecordChain chain([&](std::uint32_t) -> Result<DifferencePlace> { return DifferencePlace{path}; }, 1);
    RecordBytes got(256);
    const auto read = chain.read_payload(location(3, 0), 4, 64, got);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::damaged);
}

// Threads that each read for themselves share the files that may be open: here with longer chains than stay open.
TEST(ChainThreads, ManyShareFewOpenFiles) {
    if (!packs()) GTEST_SKIP() << "a build without zstd";
    constexpr std::uint32_t kSteps = 400;
    constexpr int kThreads = 32;
    std::mt19937_64 random(test_seed(41));
    FreshFolder folder;
    FolderRecord record(folder.path(), options_for(RecordMethod::runs, Kept::xored, 256),
                        settings_for(Kept::xored, 256 * 8));
    record.deepest = 1000;
    TestImage image;
    for (int segment = 0; segment < 2 * kThreads; ++segment)
        image.push_back({"s" + std::to_string(segment), random_bytes(random, 256 * 8)});
    for (std::uint32_t step = 0; step < kSteps; ++step) {
        const auto added = record.add(image);
        ASSERT_TRUE(added.ok()) << added.error().message;
        if (step + 1 == kSteps) break;
        for (auto& segment : image)
            segment.bytes[random() % segment.bytes.size()] ^= static_cast<std::byte>(1 + random() % 7);
    }
    EXPECT_GT(record.depth(kSteps - 1), 300U);
    RecordChain chain = chain_of(folder.path(), kThreads);
    const auto map = chain.map(kSteps - 1);
    ASSERT_TRUE(map.ok()) << map.error().message;
    struct rlimit usual {};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    struct rlimit few = usual;
    few.rlim_cur = std::min<rlim_t>(usual.rlim_cur, 256 + 64 + 60);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    TestImage got;
    for (const auto& segment : image)
        got.push_back({segment.name, RecordBytes(segment.bytes.size(), std::byte{0xEE})});
    const auto read = chain.for_each(image.size(), [&](std::size_t i, ReadScratch& own) {
        const auto number = static_cast<std::size_t>(map->find(got[i].name) - map->directory.segments.data());
        return chain.read(*map, number, 0, got[i].bytes, own);
    });
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    ASSERT_TRUE(read.ok()) << read.error().message;
    expect_same(got, image);
}

TEST(ChainThreads, ManyReadAtOnce) {
    FreshFolder folder;
    constexpr std::uint32_t kChunk = 64;
    const Kept kept = packs() ? Kept::xored : Kept::stored;
    FolderRecord record(folder.path(), options_for(RecordMethod::runs, kept, kChunk),
                        settings_for(kept, kChunk * 4));
    record.deepest = 3;
    RandomHistory history(53, kChunk);
    for (std::uint32_t step = 0; step < 8; ++step)
        ASSERT_TRUE(record.add(history.next()).ok());
    RecordChain chain = chain_of(folder.path(), 2);
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(4);
    for (std::size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([&, t] {
            for (std::uint32_t round = 0; round < 16; ++round) {
                const auto step = static_cast<std::uint32_t>((round + t) % 8);
                const auto restored = restore(chain, step);
                if (!restored.ok()) wrong[t] = restored.error().message;
                if (restored.ok()) {
                    for (std::size_t s = 0; s < restored->size(); ++s) {
                        if ((*restored)[s].bytes != history.past()[step][s].bytes) wrong[t] = "other bytes";
                    }
                }
                if (round % 5 == 4) chain.forget();
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(wrong, std::vector<std::string>(4));
}

}  // namespace
}  // namespace twinrun
