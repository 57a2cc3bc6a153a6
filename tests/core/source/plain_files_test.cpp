#include "source/plain_files.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "support/files.hpp"
#include "support/seed.hpp"
#include "support/test_folder.hpp"

namespace twinrun {
namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string npy(const std::string& header, std::size_t data) {
    std::string text = "\x93NUMPY";
    text += '\x01';
    text += '\0';
    text += static_cast<char>(header.size() & 0xff);
    text += static_cast<char>(header.size() >> 8);
    return text + header + std::string(data, 'x');
}

std::optional<PlainFile> read_npy(const std::string& header, std::size_t data) {
    const std::string file = npy(header, data);
    return plain_npy(bytes(file), file.size());
}

TEST(PlainFiles, NpyIsUnderstood) {
    const std::string end = ", }     \n";
    const auto matrix = read_npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)" + end, 24);
    ASSERT_TRUE(matrix);
    const PlainArray& array = matrix->arrays.at(0);
    EXPECT_EQ(array.dtype, DType::f32);
    EXPECT_TRUE(array.fortran_order);
    EXPECT_EQ(array.shape, (std::vector<std::uint64_t>{3, 2}));
    EXPECT_EQ(array.items, 6U);
    const auto big = read_npy("{'descr': '>c16', 'fortran_order': True, 'shape': (2,)" + end, 32);
    ASSERT_TRUE(big);
    EXPECT_EQ(big->arrays[0].dtype, DType::c128);
    EXPECT_EQ(big->arrays[0].byte_order, ByteOrder::big);
    EXPECT_FALSE(big->arrays[0].fortran_order);
    const auto one = read_npy("{'descr': '|b1', 'fortran_order': False, 'shape': ()" + end, 1);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->arrays[0].items, 1U);
    const auto none = read_npy("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 5)" + end, 0);
    ASSERT_TRUE(none);
    EXPECT_EQ(none->arrays[0].items, 0U);
}

TEST(PlainFiles, WhatIsUnusualInNpyIsNot) {
    const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
    ASSERT_TRUE(read_npy(good, 8));
    EXPECT_FALSE(read_npy(good, 7));  // cut short
    EXPECT_FALSE(read_npy(good, 9));  // something behind the array
    for (const std::string header : {
             "{'descr': '<f4', 'fortran_order': False, 'shape': (02,), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (2), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n",
             "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }\n",
             "{'descr': '<M4', 'fortran_order': False, 'shape': (2,), }\n",
             "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n",
             "{'descr': '=f4', 'fortran_order': False, 'shape': (2,), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x\n",
             "{'fortran_order': False, 'descr': '<f4', 'shape': (2,), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,), }\n",
             "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }\n",
             "",
         })
        EXPECT_FALSE(read_npy(header, 8)) << header;
    std::string newer = npy(good, 8);
    newer[6] = 2;
    EXPECT_FALSE(plain_npy(bytes(newer), newer.size()));
    EXPECT_FALSE(plain_npy(bytes(newer).first(5), newer.size()));
}

std::optional<PlainFile> read_safetensors(const std::string& header, std::size_t data) {
    return plain_safetensors(bytes(header), 8 + header.size() + data);
}

TEST(PlainFiles, SafetensorsAreUnderstood) {
    const std::string header =
        R"({"__metadata__":{"format":"pt","x":"\u00e9"},"a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]},)"
        R"("c":{"data_offsets":[0,3],"shape":[3],"dtype":"U8"},"e":{"dtype":"F64","shape":[0],"data_offsets":[11,11]}}  )";
    const auto file = read_safetensors(header, 11);
    ASSERT_TRUE(file);
    ASSERT_EQ(file->arrays.size(), 3U);
    EXPECT_EQ(file->arrays[0].name, "a.b");
    EXPECT_EQ(file->arrays[0].offset, 8 + header.size() + 3);
    EXPECT_EQ(file->arrays[0].shape, (std::vector<std::uint64_t>{2, 1}));
    EXPECT_EQ(file->arrays[1].dtype, DType::u8);
    EXPECT_EQ(file->arrays[1].items, 3U);
    EXPECT_EQ(file->arrays[2].items, 0U);
    EXPECT_TRUE(file->has_texts);
    EXPECT_EQ(file->texts[1].second, "\xc3\xa9");
    const auto bare = read_safetensors(R"({"__metadata__":{}})", 0);
    ASSERT_TRUE(bare);
    EXPECT_TRUE(bare->has_texts);
    EXPECT_FALSE(read_safetensors("{}", 0)->has_texts);
}

TEST(PlainFiles, WhatIsUnusualInSafetensorsIsNot) {
    const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    ASSERT_TRUE(read_safetensors(good, 8));
    EXPECT_FALSE(read_safetensors(good, 7));
    EXPECT_FALSE(read_safetensors(good, 9));
    EXPECT_FALSE(read_safetensors(" " + good, 8));
    for (
        const std::string header : {
            R"({"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})",
            R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})",
            R"({"a":{"dtype":"F32","shape":[2]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":{"a":1}}})",
            R"({"a":[0,8]})",
            R"({"a":1})",
            R"({"__metadata__":{"x":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            R"({"__metadata__":{"x":"1","x":"2"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})",
            R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} x)",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
            "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        })
        EXPECT_FALSE(read_safetensors(header, 8)) << header;
}

// Whatever the bytes are: what is understood lies in the file.
TEST(PlainFiles, DamagedHeadersAreNotReadBeyondTheirEnds) {
    std::mt19937_64 random(test_seed(3));
    const std::string text =
        R"({"__metadata__":{"f":"g"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I16","shape":[2,2],"data_offsets":[8,16]}})";
    const std::string array = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n", 16);
    for (int round = 0; round < 20000; ++round) {
        std::string header = text;
        std::string file = array;
        for (std::string* one : {&header, &file}) {
            for (std::uint64_t n = 1 + random() % 3; n != 0; --n)
                (*one)[random() % one->size()] = static_cast<char>(random());
            if (random() % 4 == 0) one->resize(random() % one->size());
        }
        const std::uint64_t size = 8 + header.size() + 16;
        if (const auto found = plain_safetensors(bytes(header), size)) {
            for (const PlainArray& one : found->arrays)
                EXPECT_LE(one.offset + one.items * item_bytes(one.dtype), size);
        }
        if (const auto found = plain_npy(bytes(file), file.size())) {
            const PlainArray& one = found->arrays.at(0);
            EXPECT_EQ(one.offset + one.items * item_bytes(one.dtype), file.size());
        }
    }
}

// Small files at hand are not opened again; later each is read as it is then.
TEST(PlainFiles, SmallFilesAreOpenedOnce) {
    testing::FreshFolder folder;
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
    const std::string other = "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }\n";
    const std::string large = "{'descr': '|u1', 'fortran_order': False, 'shape': (70000,), }\n";
    std::vector<std::string> paths;
    std::filesystem::create_directories(folder / "b");
    for (const char* name : {"a.npy", "b/a.npy", "b/large.npy", "b/short.npy", "b/text.npy", "none.npy"})
        paths.push_back(folder / name);
    const auto write = [&](const std::string& path, const std::string& text) {
        testing::put(path, std::vector<std::byte>(bytes(text).begin(), bytes(text).end()));
    };
    write(paths[0], npy(header, 8));
    write(paths[1], npy(header, 8));
    write(paths[2], npy(large, 70'000));
    write(paths[3], "\x93NUM");
    write(paths[4], "1 2 3 4 5 6 7 8 9");
    const std::vector<char> npy_files = {1, 1, 1, 0, 0, 0};
    EXPECT_EQ(are_npy(paths, 2), npy_files);
    FilesAtHand at_hand;
    EXPECT_EQ(are_npy(paths, 2, &at_hand), npy_files);
    for (const std::string& path : {paths[0], paths[1], paths[2]})
        std::filesystem::remove(path);
    write(paths[1], npy(other, 8));
    paths.resize(3);
    const auto found = read_plain_files(paths, PlainFormat::npy, 2, {}, &at_hand);
    for (const std::size_t at : {0, 1}) {
        ASSERT_TRUE(found[at]) << "it is at hand";
        EXPECT_EQ(found[at]->arrays.at(0).dtype, DType::f32);
        ASSERT_NE(found[at]->in_memory, nullptr);
        EXPECT_EQ(found[at]->in_memory->path(), paths[at]);
        const auto content = found[at]->in_memory->content();
        EXPECT_TRUE(std::ranges::equal(content, bytes(npy(header, 8))));
    }
    EXPECT_FALSE(found[2]) << "it is too large to be kept";
    const auto again = read_plain_files(paths, PlainFormat::npy, 2, {}, &at_hand);
    EXPECT_FALSE(again[0]) << "it is gone";
    ASSERT_TRUE(again[1]);
    EXPECT_EQ(again[1]->arrays.at(0).dtype, DType::i64) << "as it is now";
    // Metadata beside a file hides it, at hand or not.
    FilesAtHand more;
    EXPECT_EQ(are_npy(std::span(paths).subspan(1, 1), 1, &more), std::vector<char>{1});
    write(paths[1] + ".twm", "x");
    EXPECT_FALSE(read_plain_files(std::span(paths).subspan(1, 1), PlainFormat::npy, 1, ".twm", &more)[0]);
}

}  // namespace
}  // namespace twinrun
