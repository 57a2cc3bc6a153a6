#include "aggregate/plan/stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "support/device.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using Places = std::vector<std::int64_t>;  // of each byte

Places places_of(const Stream& stream) {
    Places all;
    for (const Run& run : stream.runs()) {
        for (std::uint64_t i = 0; i < run.count; ++i) {
            for (std::uint64_t b = 0; b < run.width; ++b)
                all.push_back(run.offset + static_cast<std::int64_t>(i) * run.stride +
                              static_cast<std::int64_t>(b));
        }
    }
    return all;
}

class StreamDraw {
   public:
    explicit StreamDraw(std::uint64_t seed) : random_(seed) {}
    std::int64_t operator()(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
    }
    // ascending: no byte twice, as a file needs it.
    Stream stream(bool ascending, Places& places) {
        Stream made;
        std::int64_t at = ascending ? (*this)(0, 9) : (*this)(-50, 50);
        for (auto pieces = (*this)(1, 7); pieces > 0; --pieces) {
            Run run{at, static_cast<std::uint64_t>((*this)(0, 5)), static_cast<std::uint64_t>((*this)(0, 4)),
                    0};
            run.stride = ascending ? static_cast<std::int64_t>(run.width) + (*this)(0, 3) : (*this)(-9, 9);
            for (std::uint64_t i = 0; i < run.count; ++i) {
                for (std::uint64_t b = 0; b < run.width; ++b)
                    places.push_back(at + static_cast<std::int64_t>(i) * run.stride +
                                     static_cast<std::int64_t>(b));
            }
            EXPECT_TRUE(made.append(run).ok());
            if (ascending) {
                at += static_cast<std::int64_t>(run.count) * run.stride + (*this)(0, 4);
            } else {
                at = (*this)(-50, 50);
            }
        }
        return made;
    }

   private:
    std::mt19937_64 random_;
};

TEST(Stream, AppendRepeatAndSliceEqualBruteForce) {
    StreamDraw draw(test_seed(1));
    for (int round = 0; round < test_rounds(500); ++round) {
        Places places;
        const Stream stream = draw.stream(draw(0, 1) == 1, places);
        ASSERT_EQ(places_of(stream), places);
        ASSERT_EQ(stream.bytes(), places.size());
        const auto times = static_cast<std::uint64_t>(draw(0, 4));
        const std::int64_t stride =
            draw(0, 1) == 1 ? static_cast<std::int64_t>(places.size()) : draw(-60, 60);
        Places all;
        for (std::uint64_t i = 0; i < times; ++i) {
            for (const std::int64_t place : places)
                all.push_back(place + static_cast<std::int64_t>(i) * stride);
        }
        const auto copies = repeated(stream, times, stride);
        ASSERT_TRUE(copies.ok());
        ASSERT_EQ(places_of(*copies), all);
        const auto begin = draw(0, static_cast<std::int64_t>(all.size()));
        const auto end = draw(begin, static_cast<std::int64_t>(all.size()));
        const auto part = slice(*copies, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
        ASSERT_TRUE(part.ok());
        ASSERT_EQ(places_of(*part), Places(all.begin() + begin, all.begin() + end));
        if (places.empty()) continue;
        const auto tiles = slice_of_tiles(stream, stride, 7, static_cast<std::uint64_t>(begin),
                                          static_cast<std::uint64_t>(end));
        ASSERT_TRUE(tiles.ok());
        Places moved(all.begin() + begin, all.begin() + end);
        for (std::int64_t& place : moved)
            place += 7;
        ASSERT_EQ(places_of(*tiles), moved);
    }
}

TEST(Stream, BytesBeforeEqualsBruteForce) {
    StreamDraw draw(test_seed(2));
    for (int round = 0; round < test_rounds(300); ++round) {
        Places places;
        const Stream stream = draw.stream(true, places);
        for (std::int64_t end = 0; end < 120; ++end) {
            const auto before = static_cast<std::uint64_t>(
                std::count_if(places.begin(), places.end(), [&](std::int64_t place) { return place < end; }));
            ASSERT_EQ(bytes_before(stream, end), before) << end;
        }
    }
}

TEST(Stream, MatchedPartsSayWhichByteGoesWhere) {
    StreamDraw draw(test_seed(3));
    int strided = 0;
    for (int round = 0; round < test_rounds(500); ++round) {
        Places there;
        Places here;
        Stream file = draw.stream(true, there);
        Stream memory = draw.stream(false, here);
        const auto least = static_cast<std::uint64_t>(std::min(there.size(), here.size()));
        file = slice(file, 0, least).value();
        memory = slice(memory, 0, least).value();
        std::vector<ArrayPart> parts;
        ASSERT_TRUE(match(file, memory, 4, parts).ok());
        Places in_file;
        Places in_memory;
        for (const ArrayPart& part : parts) {
            EXPECT_EQ(part.variable, 4U);
            strided += part.where.count > 1 ? 1 : 0;
            for (std::uint64_t i = 0; i < part.where.count; ++i) {
                for (std::uint64_t b = 0; b < part.where.width; ++b) {
                    in_file.push_back(
                        static_cast<std::int64_t>(part.where.offset + i * part.where.stride + b));
                    in_memory.push_back(part.memory_offset +
                                        static_cast<std::int64_t>(i) * part.memory_stride +
                                        static_cast<std::int64_t>(b));
                }
            }
        }
        there.resize(least);
        here.resize(least);
        ASSERT_EQ(in_file, there);
        ASSERT_EQ(in_memory, here);
    }
    EXPECT_GT(strided, 100);
}

TEST(Stream, RegularPatternsStayOneRun) {
    Stream item;
    ASSERT_TRUE(item.append({0, 8, 1, 0}).ok());
    const auto row = repeated(item, 1000, 8);
    ASSERT_TRUE(row.ok());
    EXPECT_EQ(row->runs().size(), 1U);
    const auto interleaved = repeated(item, std::uint64_t{1} << 40, 64);
    ASSERT_TRUE(interleaved.ok());
    ASSERT_EQ(interleaved->runs().size(), 1U);
    const auto later = slice_of_tiles(item, 64, 0, 8'000'000, 16'000'000);
    ASSERT_TRUE(later.ok());
    EXPECT_EQ(later->runs().size(), 1U);
}

TEST(Stream, RefusesWhatIsTooLargeOrDoesNotAscend) {
    Stream stream;
    EXPECT_FALSE(stream.append({std::numeric_limits<std::int64_t>::max(), 8, 1, 0}).ok());
    EXPECT_FALSE(stream.append({0, 8, std::uint64_t{1} << 60, std::int64_t{1} << 40}).ok());
    ASSERT_TRUE(stream.append({0, 4, 1, 0}).ok());
    ASSERT_TRUE(stream.append({100, 8, 1, 0}).ok());
    EXPECT_EQ(repeated(stream, std::uint64_t{1} << 40, 1 << 20).error().code, ErrorCode::unsupported);
    EXPECT_FALSE(repeated(stream, 2, std::numeric_limits<std::int64_t>::max()).ok());
    const auto refused = [](std::vector<twinrun::Run> runs) {
        Stream file;
        for (const twinrun::Run& run : runs)
            EXPECT_TRUE(file.append(run).ok());
        Stream memory;
        EXPECT_TRUE(memory.append({0, file.bytes(), 1, 0}).ok());
        std::vector<ArrayPart> parts;
        const auto done = match(file, memory, 0, parts);
        return !done.ok() && done.error().code == ErrorCode::invalid_argument;
    };
    EXPECT_TRUE(refused({{-8, 4, 1, 0}}));
    EXPECT_TRUE(refused({{8, 4, 1, 0}, {0, 2, 1, 0}}));
    EXPECT_TRUE(refused({{0, 4, 3, 2}}));
    EXPECT_TRUE(refused({{0, 4, 1, 0}, {2, 3, 1, 0}}));
    EXPECT_FALSE(refused({{0, 4, 3, 4}, {20, 3, 1, 0}}));
}

}  // namespace
}  // namespace twinrun
