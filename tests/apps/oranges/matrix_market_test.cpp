// SPDX-License-Identifier: Apache-2.0
#include "oranges/matrix_market.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "apps/oranges/support.hpp"

namespace oranges {
namespace {

std::string error_of(std::string_view text) {
    try {
        parse_matrix_market(text);
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "no error";
}

constexpr const char* kPattern = "%%MatrixMarket matrix coordinate pattern symmetric\n";

// A text that says the same as the graph, each time in another way.
std::string text_of(const Graph& graph, Random& random) {
    const char* kinds[] = {"pattern", "real", "integer", "complex", "Real"};
    const char* values[] = {"", " -1.5e-3", " 7", " 1 +2E400", " nan"};
    const char* symmetries[] = {"general", "symmetric", "skew-symmetric", "hermitian"};
    const char* ends[] = {"\n", "\r\n", " \n", "\n\n", "\n% a comment\n"};
    const std::uint32_t kind = random.below(5);
    std::string lines;
    std::size_t count = 0;
    const auto entry = [&](Vertex a, Vertex b) {
        lines += (random.below(8) == 0 ? " \t" : "") + std::to_string(a + 1) + "  " + std::to_string(b + 1) +
                 values[kind] + ends[random.below(5)];
        ++count;
    };
    for (const Edge& edge : graph.edge_list()) {
        const bool swap = random.below(2) == 1;
        entry(swap ? edge.b : edge.a, swap ? edge.a : edge.b);
        if (random.below(4) == 0) entry(edge.b, edge.a);
    }
    if (graph.vertices() > 0 && random.below(2) == 0) entry(0, 0);
    const std::string size = std::to_string(graph.vertices());
    return std::string("%%MatrixMarket matrix COORDINATE ") + kinds[kind] + " " +
           symmetries[random.below(4)] + "\n% made by a test\n\n" + size + " " + size + " " +
           std::to_string(count) + ends[random.below(5)] + lines;
}

TEST(MatrixMarket, ReadsWhatAGraphSays) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Random random(seed);
        const Graph graph = random_graph(random.below(15), random.unit(), seed);
        std::string text = text_of(graph, random);
        EXPECT_EQ(parse_matrix_market(text), graph) << text;
        while (text.ends_with('\n'))
            text.pop_back();
        EXPECT_EQ(parse_matrix_market(text), graph) << text;
    }
}

TEST(MatrixMarket, AnyBytesGiveAGraphOrAMessage) {
    const std::string letters =
        "0123456789 \n\r\t%+-.eE\0\xff"
        "9999999999 pattern real matrix";
    std::size_t graphs = 0, messages = 0;
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        Random random(seed);
        std::string text = text_of(random_graph(1 + random.below(6), 0.5, seed), random);
        for (std::uint32_t change = 1 + random.below(4); change > 0 && !text.empty(); --change) {
            const std::size_t at = random.below(text.size());
            switch (random.below(4)) {
                case 0: text[at] = letters[random.below(letters.size())]; break;
                case 1: text.erase(at, 1 + random.below(9)); break;
                case 2: text.insert(at, letters, random.below(letters.size()), 1 + random.below(12)); break;
                default: text.resize(at); break;
            }
        }
        try {
            const Graph graph = parse_matrix_market(text);
            EXPECT_LE(graph.vertices(), text.size() + (1u << 20));
            ++graphs;
        } catch (const std::runtime_error& error) {
            EXPECT_EQ(std::string(error.what()).find_first_of("\n\r\t"), std::string::npos);
            ++messages;
        }
    }
    EXPECT_GT(graphs, 100u);
    EXPECT_GT(messages, 100u);
}

TEST(MatrixMarket, SaysWhatIsWrongAndWhere) {
    using testing::HasSubstr;
    EXPECT_THAT(error_of(""), HasSubstr("not a Matrix Market file"));
    EXPECT_THAT(error_of("\x7f"
                         "ELF"),
                HasSubstr("not a Matrix Market file"));
    EXPECT_THAT(error_of("%%MatrixMarket matrix\n"), HasSubstr("line 1: the banner"));
    EXPECT_THAT(error_of("%%MatrixMarket matrix array real general\n2 2\n"), HasSubstr("only 'coordinate'"));
    EXPECT_THAT(error_of("%%MatrixMarket vector coordinate real general\n"),
                HasSubstr("'vector' is not a matrix"));
    EXPECT_THAT(error_of("%%MatrixMarket matrix coordinate words general\n"), HasSubstr("'words'"));
    EXPECT_THAT(error_of("%%MatrixMarket matrix coordinate real upper\n"), HasSubstr("symmetry 'upper'"));
    const std::string head = kPattern;
    EXPECT_THAT(error_of(head), HasSubstr("ends before its sizes"));
    EXPECT_THAT(error_of(head + "3 3\n"), HasSubstr("line 2: must have three sizes"));
    EXPECT_THAT(error_of(head + "3 4 0\n"), HasSubstr("square"));
    EXPECT_THAT(error_of(head + "3 3 x\n"), HasSubstr("'x' is not a number of entries"));
    EXPECT_THAT(error_of(head + "-3 -3 1\n"), HasSubstr("'-3' is not a number of rows"));
    EXPECT_THAT(error_of(head + "99999999999999999999 3 1\n"), HasSubstr("is not a number of rows"));
    EXPECT_THAT(error_of(head + "4000000000 4000000000 1\n"), HasSubstr("too many"));
    EXPECT_THAT(error_of(head + "2000000000 2000000000 1\n1 2\n"), HasSubstr("too many for a file of"));
    EXPECT_THAT(error_of(head + "3 3 18446744073709551615\n1 2\n"),
                HasSubstr("after 1 of 18446744073709551615"));
    EXPECT_THAT(error_of(head + "3 3 2\n1 2\n1 4\n"), HasSubstr("line 4: entry (1, 4) is outside"));
    EXPECT_THAT(error_of(head + "3 3 1\n0 1\n"), HasSubstr("line 3: entry (0, 1) is outside"));
    EXPECT_THAT(error_of(head + "3 3 1\n1 2 5\n"), HasSubstr("has 2 numbers"));
    EXPECT_THAT(error_of(head + "3 3 1\n1\n"), HasSubstr("has 2 numbers"));
    EXPECT_THAT(error_of(head + "3 3 1\n1 2\n\n2 3\n"), HasSubstr("line 5: more entries than the 1"));
    EXPECT_THAT(error_of("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 1.5x\n"),
                HasSubstr("value '1.5x' is not a number"));
}

TEST(MatrixMarket, NamesTheFile) {
    const std::filesystem::path path =
        std::filesystem::path(testing::TempDir()) / "oranges_matrix_market_test.mtx";
    std::ofstream(path, std::ios::binary) << kPattern << "3 3 1\n2 3\n";
    EXPECT_EQ(read_matrix_market(path), graph_of(3, "12"));
    std::ofstream(path, std::ios::binary) << kPattern << "3 3 2\n2 3\n";
    try {
        read_matrix_market(path);
        FAIL();
    } catch (const std::runtime_error& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with(path.string() + ": line 3: the file ends"));
    }
    std::filesystem::remove(path);
    EXPECT_THROW(read_matrix_market(path), std::runtime_error);
    EXPECT_THROW(read_matrix_market(testing::TempDir()), std::runtime_error);
}

}  // namespace
}  // namespace oranges
