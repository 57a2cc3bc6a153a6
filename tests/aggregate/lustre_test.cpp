#include "aggregate/plan/lustre.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "support/seed.hpp"

namespace twinrun {
namespace {

// Bytes as lustre_user.h lays them out.
class LustreBytes {
   public:
    template <class T>
    LustreBytes& put(T value) {
        for (std::size_t i = 0; i < sizeof(T); ++i)
            bytes.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
        return *this;
    }
    LustreBytes& zeros(std::size_t count) {
        bytes.resize(bytes.size() + count);
        return *this;
    }
    std::vector<std::byte> bytes;
};

constexpr std::uint32_t kV1 = 0x0BD10BD0;
constexpr std::uint32_t kV3 = 0x0BD30BD0;
constexpr std::uint32_t kComposite = 0x0BD60BD0;

// lov_user_md_v1 or _v3, with so many objects.
std::vector<std::byte> plain(std::uint32_t magic, std::uint32_t stripe, std::uint16_t objects,
                             std::uint32_t pattern = 1) {
    LustreBytes b;
    b.put(magic).put(pattern).zeros(16).put(stripe).put(objects).put(std::uint16_t{7});
    if (magic != kV1) b.zeros(16);
    b.zeros(objects * std::size_t{24});
    return b.bytes;
}

// lov_comp_md_v1 of these layouts, one behind the other in the file.
std::vector<std::byte> composite(const std::vector<std::vector<std::byte>>& parts) {
    std::size_t size = 32 + 48 * parts.size();
    LustreBytes entries;
    std::uint64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::uint64_t end = i + 1 == parts.size() ? UINT64_MAX : begin + (1U << 20);
        entries.put(static_cast<std::uint32_t>(i + 1)).put(std::uint32_t{0x10}).put(begin).put(end);
        entries.put(static_cast<std::uint32_t>(size)).put(static_cast<std::uint32_t>(parts[i].size()));
        entries.put(std::uint32_t{1}).put(std::uint64_t{0}).put(std::uint32_t{0});
        size += parts[i].size();
        begin = end;
    }
    LustreBytes all;
    all.put(kComposite).put(static_cast<std::uint32_t>(size)).put(std::uint32_t{3}).put(std::uint16_t{0});
    all.put(static_cast<std::uint16_t>(parts.size())).put(std::uint16_t{0}).zeros(14);
    all.bytes.insert(all.bytes.end(), entries.bytes.begin(), entries.bytes.end());
    for (const auto& part : parts)
        all.bytes.insert(all.bytes.end(), part.begin(), part.end());
    return all.bytes;
}

TEST(Lustre, PlainLayouts) {
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 1 << 20, 4)), 1U << 20);
    EXPECT_EQ(stripe_bytes_in(plain(kV3, 4 << 20, 1)), 4U << 20);
    EXPECT_EQ(stripe_bytes_in(plain(0x0BD50BD0, 65536, 2)), 65536U);
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 1 << 20, 0)), 1U << 20);  // a folder's default: no objects
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 0x80000000U, 1)), 0x80000000U);
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 1 << 20, 1, 0x100)), std::nullopt);  // on the metadata server
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 0, 1)), std::nullopt);
    EXPECT_EQ(stripe_bytes_in(plain(kV1, 65537, 1)), std::nullopt);
    EXPECT_EQ(stripe_bytes_in(plain(0x0BD20BD0, 1 << 20, 1)), std::nullopt);
    EXPECT_EQ(stripe_bytes_in(plain(0xD00BD10B, 1 << 20, 1)), std::nullopt);  // big-endian
    EXPECT_EQ(stripe_bytes_in({}), std::nullopt);
}

TEST(Lustre, CompositeLayouts) {
    EXPECT_EQ(stripe_bytes_in(composite({plain(kV1, 1 << 20, 1), plain(kV3, 4 << 20, 8)})), 4U << 20);
    // The first part on the metadata server, another system's, and one of a kind that is not known.
    const auto known = plain(kV3, 2 << 20, 2);
    EXPECT_EQ(stripe_bytes_in(composite({plain(kV1, 1 << 20, 0, 0x100), known})), 2U << 20);
    EXPECT_EQ(stripe_bytes_in(composite({plain(0x0BD70BD0, 9, 0), known})), 2U << 20);
    EXPECT_EQ(stripe_bytes_in(composite({plain(kV1, 1 << 20, 0, 0x100)})), std::nullopt);
    EXPECT_EQ(stripe_bytes_in(composite({})), std::nullopt);
    EXPECT_EQ(stripe_bytes_in(composite({known, plain(kV1, 3, 1)})), std::nullopt);  // damaged
    EXPECT_EQ(stripe_bytes_in(composite({composite({known})})), std::nullopt);       // none within another
}

// Any part of a layout, any byte changed: an answer, and never a byte beyond the end is looked at (exact sizes on the heap, for
// AddressSanitizer).
TEST(Lustre, DamagedLayouts) {
    std::mt19937_64 random(test_seed(1));
    const std::vector<std::vector<std::byte>> seeds = {
        plain(kV1, 1 << 20, 3), plain(kV3, 1 << 22, 2),
        composite({plain(kV1, 1 << 20, 1), plain(kV3, 4 << 20, 4), plain(kV1, 1 << 16, 0)})};
    for (const auto& seed : seeds) {
        for (std::size_t length = 0; length < seed.size(); ++length) {
            const std::vector<std::byte> cut(seed.begin(),
                                             seed.begin() + static_cast<std::ptrdiff_t>(length));
            const auto found = stripe_bytes_in(cut);
            if (length < 32) {
                EXPECT_EQ(found, std::nullopt);
            }
        }
        for (int round = 0; round < 20'000; ++round) {
            std::vector<std::byte> changed = seed;
            for (std::uint64_t k = 0; k <= random() % 4; ++k)
                changed[random() % changed.size()] =
                    static_cast<std::byte>(random() % 3 == 0 ? 0xFF : random());
            const auto found = stripe_bytes_in(changed);
            if (found) {
                ASSERT_TRUE(*found > 0 && *found % 65536 == 0 && *found <= UINT32_MAX);
            }
        }
    }
}

TEST(Lustre, BlocksOfStripes) {
    EXPECT_EQ(block_of_stripes(1 << 20, 64 << 20), 1U << 20);
    EXPECT_EQ(block_of_stripes(256 << 20, 64 << 20), 64U << 20);
    EXPECT_EQ(block_of_stripes(3U << 27, 64 << 20), 3U << 24);
    EXPECT_EQ(stripe_bytes_of("/"), std::nullopt);  // no Lustre here
    EXPECT_EQ(stripe_bytes_of("/no/such/file"), std::nullopt);
}

}  // namespace
}  // namespace twinrun
