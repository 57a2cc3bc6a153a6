// Trees are those of tests/vectors/tree.json, which the specification's own reader made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tree/build.hpp"

#if !defined(TWINRUN_TEST_VECTORS)
#define TWINRUN_TEST_VECTORS TWINRUN_SOURCE_DIR "/tests/vectors"
#endif

namespace twinrun {
namespace {

std::vector<std::uint64_t> words(const nlohmann::json& list) {
    std::vector<std::uint64_t> out;
    for (const auto& w : list)
        out.push_back(std::strtoull(w.get<std::string>().c_str(), nullptr, 16));
    return out;
}

TEST(TreeVectors, AreWhatBuildTreeGives) {
    std::ifstream file(TWINRUN_TEST_VECTORS "/tree.json");
    const auto content = nlohmann::json::parse(file, nullptr, false);
    ASSERT_TRUE(content.is_object());
    ASSERT_GT(content["cases"].size(), 20U);
    for (const auto& c : content["cases"]) {
        const DigestKind kind = c["kind"] == "published" ? DigestKind::published : DigestKind::linear;
        EXPECT_EQ(build_tree(kind, c["blocks_per_chunk"].get<std::size_t>(), words(c["leaves"])),
                  words(c["nodes"]))
            << c["kind"] << ", " << c["leaves"].size() << " words";
    }
}

}  // namespace
}  // namespace twinrun
