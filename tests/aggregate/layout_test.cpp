#include "aggregate/plan/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "support/device.hpp"

namespace twinrun {
namespace {

// ---- brute force ----

bool has(const StridedSet& set, std::uint64_t at) {
    for (std::uint64_t i = 0; i < set.count; ++i) {
        const std::uint64_t begin = set.offset + i * set.stride;
        if (at >= begin && at < begin + set.width) return true;
    }
    return false;
}

std::optional<std::uint64_t> common_by_bytes(const StridedSet& a, const StridedSet& b) {
    for (std::uint64_t at = 0; at < std::min(a.end(), b.end()); ++at) {
        if (has(a, at) && has(b, at)) return at;
    }
    return std::nullopt;
}

class Draw {
   public:
    explicit Draw(std::uint64_t seed) : random_(seed) {}
    std::uint64_t operator()(std::uint64_t low, std::uint64_t high) {
        return low + random_() % (high - low + 1);
    }
    StridedSet set(std::uint64_t most_count, std::uint64_t most_stride) {
        StridedSet set;
        set.offset = (*this)(0, 60);
        set.width = (*this)(1, 9);
        set.count = (*this)(1, most_count);
        set.stride = set.width + ((*this)(0, 3) == 0 ? 0 : (*this)(0, most_stride));
        return set;
    }
    std::mt19937_64& random() { return random_; }

   private:
    std::mt19937_64 random_;
};

TEST(Layout, BytesNextAndLastEqualBruteForce) {
    Draw draw(1);
    for (int round = 0; round < test_rounds(300); ++round) {
        const StridedSet set = draw.set(6, 20);
        for (std::uint64_t at = 0; at < set.end() + 3; ++at) {
            std::optional<std::uint64_t> next;
            std::optional<std::uint64_t> last;
            for (std::uint64_t x = 0; x < set.end(); ++x) {
                if (!has(set, x)) continue;
                if (x >= at && !next) next = x;
                if (x < at) last = x + 1;
            }
            EXPECT_EQ(next_byte(set, at), next);
            EXPECT_EQ(last_end(set, at), last);
        }
        const std::uint64_t begin = draw(0, set.end());
        const std::uint64_t end = draw(begin, set.end() + 5);
        std::uint64_t count = 0;
        for (std::uint64_t x = begin; x < end; ++x)
            count += has(set, x) ? 1 : 0;
        EXPECT_EQ(bytes_in(set, {begin, end}), count);
    }
}

TEST(Layout, CommonBytesEqualBruteForce) {
    Draw draw(2);
    int met = 0;
    int missed = 0;
    for (int round = 0; round < test_rounds(20000); ++round) {
        const StridedSet a = draw.set(8, 25);
        const StridedSet b = draw.set(8, 25);
        const auto expected = common_by_bytes(a, b);
        // One of the bytes that both have; the first item of `a` that meets b has it.
        const auto found = first_common(a, b);
        ASSERT_EQ(found.has_value(), expected.has_value())
            << a.offset << " " << a.width << " " << a.count << " " << a.stride << " | " << b.offset << " "
            << b.width << " " << b.count << " " << b.stride;
        if (expected) {
            EXPECT_EQ(*found, *expected);
        }
        ASSERT_EQ(first_common(b, a), found);
        (expected ? met : missed)++;
    }
    EXPECT_GT(met, 0);
    EXPECT_GT(missed, 0);
}

TEST(Layout, CommonBytesOfLargeSets) {
    // Strides 2^20 and 2^20 + 8: items of 8 bytes meet again after 2^17 of them, items of 4 on other places never do.
    const std::uint64_t stride = std::uint64_t{1} << 20;
    const StridedSet a{0, 8, std::uint64_t{1} << 30, stride};
    const StridedSet b{8, 8, std::uint64_t{1} << 30, stride + 8};
    // a's item i lies at b's item j if i 2^20 = 8 + j (2^20 + 8): j = 2^17 - 1, i = 2^17.
    EXPECT_EQ(first_common(a, b), (std::uint64_t{1} << 17) * stride);
    EXPECT_EQ(first_common(a, {12, 4, std::uint64_t{1} << 30, stride + 8}),
              (std::uint64_t{1} << 17) * stride + 4);
    EXPECT_EQ(
        first_common({0, 4, std::uint64_t{1} << 30, stride}, {12, 4, std::uint64_t{1} << 30, stride + 8}),
        std::nullopt);
    // Only if there are so many items.
    EXPECT_EQ(first_common(a, {8, 8, (std::uint64_t{1} << 17) - 1, stride + 8}), std::nullopt);
    EXPECT_EQ(first_common(a, {8, 8, std::uint64_t{1} << 17, stride + 8}), (std::uint64_t{1} << 17) * stride);
    // At the edge of what a file may have.
    const std::uint64_t far = (std::uint64_t{1} << 62) + 3;
    EXPECT_EQ(first_common({far, 1, 1, 1}, {3, 1, (std::uint64_t{1} << 31) + 1, std::uint64_t{1} << 31}),
              far);
}

// ---- declarations ----

// Which variable has a byte, and where its memory has it.
using PlacedBytes = std::map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>>;

struct Expected {
    PlacedBytes bytes;
    bool overlap = false;
};

Expected by_bytes(const std::vector<DeclaredVariable>& variables) {
    Expected expected;
    for (std::uint32_t k = 0; k < variables.size(); ++k) {
        const DeclaredVariable& v = variables[k];
        const std::uint64_t stride = v.file_stride == 0 ? v.item_bytes : v.file_stride;
        const std::uint64_t memory = v.memory_stride == 0 ? v.item_bytes : v.memory_stride;
        for (std::uint64_t i = 0; i < v.items; ++i) {
            for (std::uint64_t b = 0; b < v.item_bytes; ++b) {
                const bool added =
                    expected.bytes.emplace(v.file_offset + i * stride + b, std::pair(k, i * memory + b))
                        .second;
                expected.overlap = expected.overlap || !added;
            }
        }
    }
    return expected;
}

std::vector<DeclaredVariable> random_variables(Draw& draw) {
    std::vector<DeclaredVariable> variables;
    if (draw(0, 1) == 0) {  // records, in any order, perhaps without some fields
        std::vector<std::uint64_t> sizes;
        std::uint64_t record = draw(0, 3);
        const std::uint64_t start = draw(0, 50);
        std::uint64_t at = start;
        for (std::uint64_t k = draw(1, 5); k > 0; --k) {
            sizes.push_back(draw(1, 9));
            record += sizes.back();
        }
        const std::uint64_t items = draw(0, 12);
        for (const std::uint64_t size : sizes) {
            if (draw(0, 5) != 0) {
                variables.push_back({size, items, at, record, draw(0, 2) == 0 ? size + draw(0, 4) : 0});
            }
            at += size;
        }
    }
    std::uint64_t place = draw(0, 400);
    for (std::uint64_t k = draw(0, 4); k > 0; --k) {
        const std::uint64_t size = draw(1, 12);
        const std::uint64_t items = draw(0, 8);
        const std::uint64_t stride = draw(0, 1) == 0 ? 0 : size + draw(0, 15);
        variables.push_back({size, items, place, stride, draw(0, 2) == 0 ? size + draw(0, 4) : 0});
        place += draw(0, 3) == 0 ? draw(0, 40) : items * std::max(stride, size);
    }
    std::shuffle(variables.begin(), variables.end(), draw.random());
    return variables;
}

TEST(Layout, SetsHaveTheDeclaredBytesAndOverlapsAreRefused) {
    Draw draw(3);
    int refused = 0;
    int joined = 0;
    for (int round = 0; round < test_rounds(3000); ++round) {
        const auto variables = random_variables(draw);
        const Expected expected = by_bytes(variables);
        const auto sets = rank_sets(variables);
        ASSERT_EQ(sets.ok(), !expected.overlap) << (sets.ok() ? "" : sets.error().message);
        if (!sets.ok()) {
            ++refused;
            EXPECT_EQ(sets.error().code, ErrorCode::invalid_argument);
            continue;
        }
        std::uint64_t total = 0;
        for (const RankSet& set : *sets) {
            total += set.where.bytes();
            joined += set.fields.size() > 1 ? 1 : 0;
        }
        EXPECT_EQ(total, expected.bytes.size());
        for (const auto& [offset, source] : expected.bytes)
            EXPECT_EQ(variable_at(*sets, offset), source.first);
        std::uint64_t end = 0;
        std::uint64_t bytes = 0;
        for (const StridedSet& set : shape_of(*sets)) {
            EXPECT_GE(set.offset, 0U);
            EXPECT_TRUE(!set.dense() || set.count == 1);
            bytes += set.bytes();
            for (std::uint64_t i = 0; i < set.count; ++i)
                EXPECT_TRUE(expected.bytes.contains(set.offset + i * set.stride + set.width - 1));
            end = std::max(end, set.end());
        }
        EXPECT_EQ(bytes, total);
        EXPECT_EQ(end, expected.bytes.empty() ? 0 : expected.bytes.rbegin()->first + 1);
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(joined, 0);
}

TEST(Layout, GatherAndScatterEqualBruteForce) {
    Draw draw(4);
    for (int round = 0; round < test_rounds(3000); ++round) {
        const auto variables = random_variables(draw);
        const Expected expected = by_bytes(variables);
        const auto sets = rank_sets(variables);
        if (!sets.ok() || expected.bytes.empty()) continue;
        std::vector<std::vector<std::uint8_t>> arrays;
        std::vector<const void*> from;
        for (const DeclaredVariable& v : variables) {
            const std::uint64_t memory = v.memory_stride == 0 ? v.item_bytes : v.memory_stride;
            arrays.emplace_back(v.items * memory + 1);
            for (auto& byte : arrays.back())
                byte = static_cast<std::uint8_t>(draw(0, 255));
        }
        for (auto& array : arrays)
            from.push_back(array.data());
        const std::uint64_t end = expected.bytes.rbegin()->first + 1;
        const Range range{draw(0, end - 1), draw(0, end + 10)};
        if (range.begin >= range.end) continue;
        constexpr std::uint8_t kNobodys = 0xC3;
        std::vector<std::uint8_t> file(range.bytes(), kNobodys);
        for (const RankSet& set : *sets)
            gather_range(set, from.data(), range, reinterpret_cast<std::byte*>(file.data()));
        auto back = arrays;
        std::vector<void*> to;
        for (auto& array : back) {
            std::fill(array.begin(), array.end(), kNobodys);
            to.push_back(array.data());
        }
        for (const RankSet& set : *sets)
            scatter_range(set, to.data(), range, reinterpret_cast<const std::byte*>(file.data()));
        auto wanted_back = arrays;
        for (auto& array : wanted_back)
            std::fill(array.begin(), array.end(), kNobodys);
        std::vector<std::uint8_t> wanted(range.bytes(), kNobodys);
        for (const auto& [offset, source] : expected.bytes) {
            if (offset < range.begin || offset >= range.end) continue;
            wanted[offset - range.begin] = arrays[source.first][source.second];
            wanted_back[source.first][source.second] = arrays[source.first][source.second];
        }
        ASSERT_EQ(file, wanted);
        ASSERT_EQ(back, wanted_back);

        // The parts of a set, each by itself, are the set; a run of memory is what the byte's variable has there.
        for (const RankSet& set : *sets) {
            const SetPart part = part_of(set.where, range);
            std::vector<std::uint8_t> packed(bytes_in(set.where, range));
            ASSERT_EQ(packed.size(),
                      part.head.bytes() + (part.last - part.first) * set.where.width + part.tail.bytes());
            auto* at = reinterpret_cast<std::byte*>(packed.data());
            gather_cut(set, from.data(), part.head, at);
            gather_items(set, from.data(), part.first, part.last, at + part.head.bytes(), set.where.width);
            gather_cut(set, from.data(), part.tail, at + packed.size() - part.tail.bytes());
            std::vector<std::uint8_t> in_order;
            for (const auto& [offset, source] : expected.bytes) {
                if (offset < range.begin || offset >= range.end || !has(set.where, offset)) continue;
                in_order.push_back(arrays[source.first][source.second]);
                const MemoryRun run = memory_run(set, offset);
                ASSERT_EQ(run.variable, source.first);
                ASSERT_EQ(run.offset, source.second);
                ASSERT_GE(run.bytes, 1U);
                const auto last = expected.bytes.find(offset + run.bytes - 1);
                ASSERT_TRUE(last != expected.bytes.end());
                ASSERT_EQ(last->second, std::pair(run.variable, run.offset + run.bytes - 1));
            }
            ASSERT_EQ(packed, in_order);
        }
    }
}

TEST(Layout, ParticlesOfOneRankAreOneDenseSet) {
    const std::uint64_t sizes[] = {4, 4, 4, 4, 4, 4, 4, 8, 2};
    std::vector<DeclaredVariable> variables;
    std::uint64_t at = 380;
    for (const std::uint64_t size : sizes) {
        variables.push_back({size, 1000, at, 38, 0});
        at += size;
    }
    std::reverse(variables.begin(), variables.end());
    const auto sets = rank_sets(variables);
    ASSERT_TRUE(sets.ok());
    ASSERT_EQ(sets->size(), 1U);
    EXPECT_EQ(sets->front().fields.size(), 9U);
    EXPECT_EQ(shape_of(*sets), (std::vector<StridedSet>{{380, 38000, 1, 38000}}));
}

TEST(Layout, WhatHasNoMeaningIsRefused) {
    const std::uint64_t huge = std::uint64_t{1} << 62;
    const auto refused = [](DeclaredVariable variable, const std::string& words) {
        const std::vector<DeclaredVariable> two{{1, 1, 1000, 0, 0}, variable};
        const auto sets = rank_sets(two);
        ASSERT_FALSE(sets.ok());
        EXPECT_EQ(sets.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(sets.error().message.find(words), std::string::npos) << sets.error().message;
        EXPECT_NE(sets.error().message.find("variable"), std::string::npos) << sets.error().message;
    };
    refused({0, 1, 0, 0, 0}, "item_bytes is 0");
    refused({8, 2, 0, 7, 0}, "file_stride (7)");
    refused({8, 2, 0, 0, 7}, "memory_stride (7)");
    refused({8, huge, 0, 0, 0}, "2^63");
    refused({huge, 1, huge, 0, 0}, "2^63");
    refused({8, 3, 0, huge, 0}, "2^63");
    refused({8, 3, 0, 0, huge}, "2^63");
    refused({8, 1, UINT64_MAX, 0, 0}, "2^63");
    refused({1, 1, 1000, 0, 0}, "variables 0 and 1 both claim the byte at offset 1000");
    EXPECT_TRUE(rank_sets(std::vector<DeclaredVariable>{{0, 0, 5, 1, 1}, {8, 1, 0, 3, 3}}).ok());
}

}  // namespace
}  // namespace twinrun
