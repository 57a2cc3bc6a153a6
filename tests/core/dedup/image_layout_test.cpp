#include "dedup/image_layout.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

constexpr std::uint64_t kChunk = 64;

std::vector<ImageSegment> segments_of(const std::vector<std::pair<std::string, std::uint64_t>>& sizes) {
    std::vector<ImageSegment> segments;
    for (const auto& [name, bytes] : sizes) {
        ImageSegment segment;
        segment.name = name;
        segment.bytes = bytes;
        segments.push_back(segment);
    }
    return segments;
}

ImageLayout layout_of(const std::vector<std::pair<std::string, std::uint64_t>>& sizes) {
    return ImageLayout::make(segments_of(sizes), kChunk).value();
}

TEST(ImageLayout, EachSegmentBeginsWithAChunk) {
    const ImageLayout layout = layout_of({{"a", 65}, {"empty", 0}, {"b", 64}, {"c", 1}});
    EXPECT_EQ(layout.firsts(), (std::vector<std::uint64_t>{0, 2, 2, 3, 4}));
    EXPECT_EQ(layout.chunk_counts(), (std::vector<std::uint64_t>{2, 0, 1, 1}));
    EXPECT_EQ(layout.segment_of(1), 0U);
    EXPECT_EQ(layout.segment_of(2), 2U);
    EXPECT_EQ(layout.bytes_between(0, 0, 2), 65U);
    EXPECT_EQ(layout.bytes_between(0, 1, 2), 1U);
    EXPECT_EQ(layout.bytes_between(0, 0, 1), 64U);
}

TEST(ImageLayout, PartsOfSegmentsCoverTheChunks) {
    std::mt19937_64 random(test_seed(3));
    for (int round = 0; round < 300; ++round) {
        std::vector<std::pair<std::string, std::uint64_t>> sizes;
        for (std::size_t s = random() % 9; s != 0; --s)
            sizes.emplace_back(std::to_string(s), random() % 3 == 0 ? 0 : random() % 400);
        const ImageLayout layout = layout_of(sizes);
        const std::uint64_t begin = random() % (layout.chunks() + 1);
        const std::uint64_t end = begin + random() % (layout.chunks() - begin + 1);
        std::uint64_t next = begin;
        layout.each_segment(begin, end, [&](std::size_t s, std::uint64_t from, std::uint64_t to) {
            EXPECT_EQ(from, next);
            EXPECT_LT(from, to);
            EXPECT_EQ(layout.segment_of(from), s);
            EXPECT_EQ(layout.segment_of(to - 1), s);
            next = to;
        });
        EXPECT_EQ(next, end);
    }
}

TEST(ImageLayout, WhatIsKnownMovesByName) {
    const ImageLayout old =
        layout_of({{"a", 3 * kChunk}, {"gone", kChunk}, {"b", 5 * kChunk}, {"c", kChunk}});
    const ImageLayout now = layout_of({{"new", kChunk}, {"b", 4 * kChunk}, {"a", 9 * kChunk}, {"c", kChunk}});
    const std::vector<std::uint64_t> known{2, 1, 5, 0};
    std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::size_t>> moves;
    for (const ImageLayout::Move& move : now.moves_from(old, known))
        moves.emplace_back(move.from, move.to, move.count, move.segment);
    EXPECT_EQ(moves, (decltype(moves){{4, 1, 4, 1}, {0, 5, 2, 2}}));
    EXPECT_TRUE(now.moves_from({}, {}).empty());
}

TEST(ImageLayout, SegmentsAreTheSameByNamesAndSizes) {
    const ImageLayout layout = layout_of({{"a", 65}, {"b", 1}});
    EXPECT_TRUE(layout.same_segments(layout_of({{"a", 65}, {"b", 1}})));
    EXPECT_FALSE(layout.same_segments(layout_of({{"a", 66}, {"b", 1}})));
    EXPECT_FALSE(layout.same_segments(layout_of({{"b", 1}, {"a", 65}})));
    EXPECT_FALSE(layout.same_segments({}));
}

TEST(ImageLayout, RefusesWhatNoPayloadCanHold) {
    EXPECT_TRUE(layout_of({{"a", 1}, {"b", 1}}).check_names());
    const auto twice = layout_of({{"a", 1}, {"a", 1}}).check_names();
    ASSERT_FALSE(twice.ok());
    EXPECT_EQ(twice.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(twice.error().message, "two segments of the name 'a'");
    EXPECT_TRUE(ImageLayout::make(segments_of({{"a", kMostPayloadChunks * kChunk}}), kChunk));
    EXPECT_FALSE(ImageLayout::make(segments_of({{"a", kMostPayloadChunks * kChunk + 1}}), kChunk));
    EXPECT_FALSE(ImageLayout::make(segments_of({{"a", kMostPayloadChunks * kChunk}, {"b", 1}}), kChunk));
}

}  // namespace
}  // namespace twinrun
