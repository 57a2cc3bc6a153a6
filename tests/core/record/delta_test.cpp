#include "record/delta.hpp"

#include <gtest/gtest.h>

#include "record/delta_format.hpp"
#include "support/record.hpp"

namespace twinrun {
namespace {

TEST(Methods, HaveNamesThatAreFoundAgain) {
    for (const RecordMethod method : testing::kAllMethods)
        EXPECT_EQ(method_of(method_name(method)), method);
    EXPECT_EQ(method_of("ful"), std::nullopt);
    EXPECT_EQ(method_of(""), std::nullopt);
}

TEST(RecordDirectory, ChunkSizes) {
    for (std::uint64_t bytes = 0; bytes <= 1U << 18; ++bytes) {
        const bool power = bytes != 0 && (bytes & (bytes - 1)) == 0;
        EXPECT_EQ(record_chunk_ok(bytes), power && bytes >= 32 && bytes <= 65536);
    }
}

TEST(RecordDirectory, WhatItForbids) {
    const auto error = [](const RecordDirectory& directory) -> std::string {
        const auto checked = directory.check(64);
        return checked.ok() ? "" : checked.error().message;
    };
    RecordDirectory good;
    good.files = {{"a", 100}, {"sub/folder/b", 10}, {"..c", 0}};
    good.segments = {
        {"x", 0, 0, 50, 0}, {"y", 0, 50, 50, 0}, {"z", 1, 3, 7, 0}, {"none", 1, 5, 0, 0}, {"", 2, 0, 0, 0}};
    EXPECT_EQ(error(good), "");
    EXPECT_EQ(error({}), "");
    EXPECT_FALSE(good.check(63).ok());

    for (const std::string name :
         {"", "/", "/etc", "a/", "a//b", "..", "../a", "a/../b", ".", "./a", "a/."}) {
        RecordDirectory bad = good;
        bad.files[0].name = name;
        EXPECT_NE(error(bad), "") << name;
    }
    RecordDirectory bad = good;
    bad.files[0].name = std::string("a\0b", 3);
    EXPECT_NE(error(bad), "");
    bad = good;
    bad.files[1].name = "a";
    EXPECT_NE(error(bad).find("two files"), std::string::npos);
    bad = good;
    bad.segments[1].name = "x";
    EXPECT_NE(error(bad).find("two segments"), std::string::npos);
    bad = good;
    bad.segments[2].file = 3;
    EXPECT_NE(error(bad).find("of no file"), std::string::npos);
    bad = good;
    bad.segments[2].bytes = 8;
    EXPECT_NE(error(bad).find("passes the end"), std::string::npos);
    bad = good;
    bad.segments[2].offset = ~std::uint64_t{0};
    EXPECT_NE(error(bad).find("passes the end"), std::string::npos);
    bad = good;
    bad.segments[1].offset = 49;
    EXPECT_NE(error(bad).find("overlap"), std::string::npos);
    bad = good;
    std::swap(bad.segments[0], bad.segments[1]);  // the image's order is free
    EXPECT_EQ(error(bad), "");
    // Too long to be read again.
    bad = good;
    bad.segments[0].name = std::string(kLongestRecordName, 'n');
    EXPECT_EQ(error(bad), "");
    bad.segments[0].name += 'n';
    EXPECT_NE(error(bad), "");
    bad = good;
    bad.files[0].name = std::string(kLongestRecordName + 1, 'n');
    EXPECT_NE(error(bad), "");
}

TEST(RecordDirectory, LinksAndFolders) {
    RecordDirectory good;
    good.files = {{"a", 100},
                  {"link", 0, RecordFileKind::link, "../anywhere"},
                  {"folder", 0, RecordFileKind::folder, ""}};
    good.segments = {{"x", 0, 0, 100, 0}};
    EXPECT_TRUE(good.check(64).ok());
    EXPECT_FALSE(good.only_files());
    const auto refused = [&](auto change) {
        RecordDirectory bad = good;
        change(bad);
        return !bad.check(64).ok();
    };
    EXPECT_TRUE(refused([](auto& d) { d.files[1].to.clear(); }));
    EXPECT_TRUE(refused([](auto& d) { d.files[1].to = std::string("a\0b", 3); }));
    EXPECT_TRUE(refused([](auto& d) { d.files[1].to = std::string(kLongestRecordName + 1, 'a'); }));
    EXPECT_TRUE(refused([](auto& d) { d.files[0].to = "a"; }));
    EXPECT_TRUE(refused([](auto& d) { d.files[2].to = "a"; }));
    EXPECT_TRUE(refused([](auto& d) { d.files[1].bytes = 1; }));
    EXPECT_TRUE(refused([](auto& d) { d.files[2].bytes = 1; }));
    EXPECT_TRUE(refused([](auto& d) { d.segments.push_back({"y", 1, 0, 0, 0}); }));
    EXPECT_TRUE(refused([](auto& d) { d.segments.push_back({"y", 2, 0, 0, 0}); }));

    // Through a file's bytes, each kind and no other.
    Difference difference;
    difference.directory = good;
    difference.chunk_bytes = 64;
    difference.method = RecordMethod::runs;
    difference.runs = {{0, 2, location(0, 0), false}};
    difference.payload_chunks = 2;
    difference.block_chunks = 2;
    difference.blocks = {{kDifferenceHeaderBytes, 128, PayloadCodec::stored, 1, false, 1}};
    for (const bool only_files : {false, true}) {
        if (only_files) difference.directory.files.resize(1);
        std::vector<std::byte> tail = encode_difference_tail(difference);
        const auto decode = [&] {
            const std::uint64_t end = kDifferenceHeaderBytes + 128;
            const auto bytes = encode_difference_header(difference, tail, end, tail.size(), false);
            const auto header = decode_difference_header(bytes, end + tail.size());
            EXPECT_TRUE(header.ok());
            EXPECT_EQ(header->version, only_files ? 1U : 2U);
            return decode_difference_tail(*header, tail);
        };
        const auto decoded = decode();
        ASSERT_TRUE(decoded.ok()) << decoded.error().message;
        EXPECT_EQ(decoded->directory, difference.directory);
        if (only_files) continue;
        tail[4 + 4 + 1 + 8] = std::byte{3};  // the first file's kind
        EXPECT_EQ(decode().error().code, ErrorCode::damaged);
    }
}

TEST(RecordDirectory, ManyChunks) {
    RecordDirectory directory;
    const std::uint64_t half = (kMostPayloadChunks / 2) * 64;
    directory.files = {{"a", half * 3}};
    directory.segments = {{"x", 0, 0, half, 0}, {"y", 0, half, half, 0}};
    EXPECT_TRUE(directory.check(64).ok());
    EXPECT_EQ(directory.first_chunks(64),
              (std::vector<std::uint64_t>{0, kMostPayloadChunks / 2, kMostPayloadChunks}));
    directory.segments[1].bytes += 1;
    EXPECT_FALSE(directory.check(64).ok());
    EXPECT_TRUE(directory.check(128).ok());
    directory.files[0].bytes = ~std::uint64_t{0};
    directory.segments = {{"x", 0, 0, ~std::uint64_t{0}, 0}};
    EXPECT_FALSE(directory.check(32).ok());
    EXPECT_FALSE(directory.check(65536).ok());
    directory.segments[0].bytes = kMostPayloadChunks * 65536;
    EXPECT_TRUE(directory.check(65536).ok());
    EXPECT_FALSE(directory.check(32768).ok());
}

TEST(RecordDirectory, FirstChunksOfSegmentsOfAnySize) {
    RecordDirectory directory;
    directory.files = {{"a", 1000}};
    directory.segments = {
        {"x", 0, 0, 0, 0}, {"y", 0, 0, 1, 0}, {"z", 0, 1, 64, 0}, {"w", 0, 65, 0, 0}, {"v", 0, 65, 65, 0}};
    EXPECT_EQ(directory.first_chunks(64), (std::vector<std::uint64_t>{0, 0, 1, 2, 2, 4}));
    Difference difference;
    difference.chunk_bytes = 64;
    difference.directory = directory;
    EXPECT_EQ(difference.chunks(), 4U);
    EXPECT_EQ(difference.image_bytes(), 130U);
}

// Groups of copies belong to version 3: an older one that has them is damaged.
TEST(Delta, GroupsOfCopiesAreOfVersionThree) {
    Difference difference;
    difference.directory.files = {{"f", 64 * 40}};
    difference.directory.segments = {{"x", 0, 0, 64 * 40, 0}};
    difference.chunk_bytes = 64;
    difference.method = RecordMethod::tree;
    difference.ordinal = 2;
    difference.base = 1;
    for (std::uint64_t chunk = 0; chunk < 40; chunk += 2)
        difference.runs.push_back({chunk, 1, location(chunk % 4 == 0 ? 0 : 1, chunk), false});
    const std::vector<std::byte> tail = encode_difference_tail(difference);
    const auto bytes = encode_difference_header(difference, tail, kDifferenceHeaderBytes, tail.size(), false);
    auto header = decode_difference_header(bytes, kDifferenceHeaderBytes + tail.size());
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(header->version, 3U);
    const auto decoded = decode_difference_tail(*header, tail);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(decoded->runs, difference.runs);
    header->version = 2;
    EXPECT_EQ(decode_difference_tail(*header, tail).error().code, ErrorCode::damaged);
}

}  // namespace
}  // namespace twinrun
