// Every backend gives the digests, residues and counts of tests/vectors, which the specification's own reader made.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "digest/digest.hpp"
#include "support/numbers.hpp"

#if !defined(TWINRUN_TEST_VECTORS)
#define TWINRUN_TEST_VECTORS TWINRUN_SOURCE_DIR "/tests/vectors"
#endif

namespace twinrun {
namespace {

using nlohmann::json;
using testing::kInfinity;
using Bytes = std::vector<std::byte>;

json load_json(const std::string& name) {
    const std::string path = std::string(TWINRUN_TEST_VECTORS) + "/" + name + ".json";
    std::ifstream file(path);
    EXPECT_TRUE(file.good()) << path;
    return json::parse(file, nullptr, false);
}

double number(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }
std::uint64_t word(const json& text) { return std::strtoull(text.get<std::string>().c_str(), nullptr, 16); }

Bytes bytes_of(const std::string& hex) {
    Bytes bytes(hex.size() / 2);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(std::strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
    }
    return bytes;
}

struct Layout {
    const char* name;
    std::size_t before;  // bytes in front: alignment
    std::size_t gap;     // bytes behind every item
    bool swap;
};
constexpr std::array<Layout, 5> kLayouts = {{{"dense", 0, 0, false},
                                             {"unaligned", 3, 0, false},
                                             {"strided", 0, 5, false},
                                             {"swapped", 0, 0, true},
                                             {"swapped and strided", 1, 24, true}}};

// The same items laid out otherwise. Keeps a spare byte at the end at most: a sanitizer sees reads past it.
Bytes lay_out(const Bytes& items, DType dtype, const Layout& layout) {
    const std::size_t item = item_bytes(dtype);
    const std::size_t scalar = item_bytes(scalar_type(dtype));
    Bytes out(layout.before + items.size() / item * (item + layout.gap));
    for (std::size_t at = 0; at < items.size(); at += scalar) {
        std::byte* to = out.data() + layout.before + at / item * (item + layout.gap) + at % item;
        for (std::size_t b = 0; b < scalar; ++b)
            to[layout.swap ? scalar - 1 - b : b] = items[at + b];
    }
    return out;
}

class Vectors : public ::testing::TestWithParam<const char*> {};

TEST_P(Vectors, AreWhatEveryBackendGives) {
    const json file = load_json(GetParam());
    ASSERT_TRUE(file.is_object());
    const DType dtype = *dtype_from_name(file["dtype"].get<std::string>());
    ASSERT_EQ(std::endian::native, std::endian::little) << "inputs are little-endian: swap them here first";
    std::size_t ran = 0;
    for (const json& c : file["cases"]) {
        DigestSettings settings;
        settings.tolerance = {number(c["atol"]), number(c["rtol"])};
        settings.kind = c["kind"] == "published" ? DigestKind::published : DigestKind::linear;
        settings.chunk_bytes = c["chunk_bytes"].get<std::uint32_t>();
        const auto rule = c["cells"] == "tokens"
                              ? cell_rule(settings.tolerance, c["bits"].get<unsigned>())
                              : cell_rule(settings.tolerance, c["bits"].get<unsigned>(), scalar_type(dtype));
        ASSERT_TRUE(rule.ok());
        if (settings.kind == DigestKind::linear) settings.rule = *rule.operator->();
        const auto count = c["count"].get<std::uint64_t>();
        Bytes items = bytes_of(file["inputs"][c["input"].get<std::string>()].get<std::string>());
        items.resize(count * item_bytes(scalar_type(dtype)));
        const Bytes residues_wanted = bytes_of(c["residues"].get<std::string>());
        for (const Backend backend : {Backend::portable, Backend::avx2, Backend::avx512}) {
            if (!backend_available(backend)) continue;
            Digester digester(settings, scalar_type(dtype), backend);
            for (const Layout& layout : kLayouts) {
                SCOPED_TRACE(std::string(backend_name(backend)) + ", " + layout.name + ", " +
                             c["input"].dump() + ", " + std::to_string(count) + " scalars, " +
                             c["kind"].dump() + ", atol " + c["atol"].dump() + ", rtol " + c["rtol"].dump() +
                             ", bits " + c["bits"].dump());
                const Bytes memory = lay_out(items, dtype, layout);
                ElementView view = dense_view(dtype, memory.data() + layout.before);
                view.stride += layout.gap;
                view.swap = layout.swap;
                std::vector<ChunkDigest> digests(c["fine"].size());
                Bytes residues(residues_wanted.size() + kResidueLine, std::byte{0xA5});
                ElementCounts counts;
                digester.chunks(view, 0, count, digests.data(), residues.data(), &counts);
                for (std::size_t i = 0; i < digests.size(); ++i) {
                    EXPECT_EQ(digests[i].fine, word(c["fine"][i])) << "chunk " << i;
                    EXPECT_EQ(digests[i].coarse, word(c["coarse"][i])) << "chunk " << i;
                }
                EXPECT_TRUE(std::equal(residues_wanted.begin(), residues_wanted.end(), residues.begin()));
                for (std::size_t i = residues_wanted.size(); i < residues.size(); ++i) {
                    ASSERT_EQ(residues[i], std::byte{0xA5}) << "written past the residues";
                }
                EXPECT_EQ(counts.nans, c["nans"].get<std::uint64_t>());
                EXPECT_EQ(counts.tokens, c["tokens"].get<std::uint64_t>());
                ++ran;
            }
        }
        if (HasFailure()) return;  // the first case says enough
    }
    EXPECT_GT(ran, 100U);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Vectors,
                         ::testing::Values("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8",
                                           "u16", "u32", "u64", "bool", "c64", "c128"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Rules, FollowFromTheTolerance) {
    const json file = load_json("rules");
    ASSERT_GT(file["cases"].size(), 100U);
    for (const json& c : file["cases"]) {
        SCOPED_TRACE(c.dump());
        const auto rule = cell_rule({number(c["atol"]), number(c["rtol"])}, c["bits"].get<unsigned>());
        ASSERT_TRUE(rule.ok());
        constexpr std::array<const char*, 3> kKinds = {"tokens", "absolute", "relative"};
        EXPECT_EQ(kKinds[static_cast<std::size_t>(rule->kind)], c["kind"].get<std::string>());
        EXPECT_EQ(rule->residue_bits, c["residue_bits"].get<unsigned>());
        EXPECT_EQ(rule->coarse_shift, c["coarse_shift"].get<unsigned>());
        EXPECT_EQ(rule->widest, c["widest"].get<int>());
        EXPECT_EQ(rule->fine_exponent, c["fine_exponent"].get<int>());
        EXPECT_EQ(rule->key_origin, number(c["key_origin"]));
    }
}

TEST(Rules, HaveNoNegativeOrigin) {
    // -0.0 / rtol is -0.0, whose bits are those of 0.0 only in value.
    const auto rule = cell_rule({-0.0, 1e-3}, 4);
    ASSERT_TRUE(rule.ok());
    EXPECT_EQ(rule->kind, CellKind::relative);
    EXPECT_EQ(bits_of(rule->key_origin), 0U);
}

TEST(Tokens, OfNanAndInfinitiesBelongToNoNumber) {
    // The seeds of these tokens are the bits of denormal numbers.
    const std::array<double, 3> special = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
    const std::array<std::uint64_t, 3> seeds = {kNanSeed, kPositiveInfinitySeed, kNegativeInfinitySeed};
    for (const Backend backend : {Backend::portable, Backend::avx2, Backend::avx512}) {
        if (!backend_available(backend)) continue;
        Digester digester({}, DType::f64, backend);
        for (std::size_t i = 0; i < special.size(); ++i) {
            std::array<ChunkDigest, 2> digests;
            for (std::size_t k = 0; k < 2; ++k) {
                const std::vector<double> x(64, k == 0 ? special[i] : std::bit_cast<double>(seeds[i]));
                digester.chunks(dense_view(DType::f64, x.data()), 0, x.size(), &digests[k], nullptr, nullptr);
            }
            EXPECT_NE(digests[0], digests[1]) << backend_name(backend) << ", " << special[i];
        }
    }
}

TEST(Published, SeesDifferencesBelowTheNormalNumbers) {
    // 1 / grid is beyond the largest float64 here; rounded down, it would make cells far wider than the tolerance.
    DigestSettings settings;
    settings.tolerance = {1e-310, 0};
    settings.kind = DigestKind::published;
    Digester digester(settings, DType::f64);
    std::array<ChunkDigest, 2> digests;
    for (int i = 0; i < 2; ++i) {
        const double x = i * 1e-309;
        digester.chunks(dense_view(DType::f64, &x), 0, 1, &digests[static_cast<std::size_t>(i)], nullptr,
                        nullptr);
    }
    EXPECT_NE(digests[0], digests[1]);
}

}  // namespace
}  // namespace twinrun
