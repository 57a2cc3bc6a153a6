#include "digest/sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "digest/field61.hpp"
#include "support/seed.hpp"
#include "tree/layout.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;
using Shape = std::vector<std::uint64_t>;

DigestSettings settings_of(double atol, double rtol, std::uint32_t chunk_bytes, unsigned bits = 4) {
    DigestSettings settings;
    settings.tolerance = {atol, rtol};
    settings.rule = *cell_rule(settings.tolerance, bits).operator->();
    settings.chunk_bytes = chunk_bytes;
    return settings;
}

std::uint64_t product(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

// Digests of all chunks of a dense array.
template <class T>
std::vector<ChunkDigest> digests_of(const DigestSettings& settings, DType dtype, const std::vector<T>& x) {
    Digester digester(settings, dtype);
    const std::size_t chunk = digester.shape().chunk_scalars;
    std::vector<ChunkDigest> digests((x.size() + chunk - 1) / chunk);
    std::vector<std::byte> residues(x.size() + (digests.size() + 1) * (1 << 20));
    digester.chunks(dense_view(dtype, x.data()), 0, x.size(), digests.data(), residues.data(), nullptr);
    return digests;
}

template <class T>
std::vector<PartialSum> whole_sums(const DigestSettings& settings, DType dtype, const std::vector<T>& x) {
    std::vector<std::uint64_t> coarse;
    std::vector<std::uint64_t> fine;
    for (const ChunkDigest& d : digests_of(settings, dtype, x)) {
        coarse.push_back(d.coarse);
        fine.push_back(d.fine);
    }
    return sums_of_whole(coarse, fine, x.size(), chunk_shape(dtype, settings.chunk_bytes, 0));
}

// Any scalar that may come: noise, zeros, NaN, infinities, too large for a cell.
template <class T>
T any_value(Random& random) {
    switch (random() % 16) {
        case 0: return T(0);
        case 1: return std::numeric_limits<T>::quiet_NaN();
        case 2: return std::numeric_limits<T>::infinity();
        case 3: return static_cast<T>(1e36);
        default: return static_cast<T>(static_cast<std::int64_t>(random())) * static_cast<T>(0x1p-60);
    }
}

// A random box of a cutting: every axis is cut at random places, and every box of the grid is one part.
struct Box {
    Shape shape;
    Shape offset;
};
std::vector<Box> random_cutting(const Shape& whole, Random& random) {
    std::vector<std::vector<std::uint64_t>> cuts;
    for (const std::uint64_t n : whole) {
        std::vector<std::uint64_t> at{0, n};
        for (std::uint64_t k = random() % 4; k > 0; --k)
            at.push_back(random() % (n + 1));
        std::sort(at.begin(), at.end());  // two equal ones: a part without elements
        cuts.push_back(at);
    }
    std::vector<Box> boxes{{}};
    for (const auto& at : cuts) {
        std::vector<Box> next;
        for (const Box& box : boxes) {
            for (std::size_t k = 0; k + 1 < at.size(); ++k) {
                Box more = box;
                more.offset.push_back(at[k]);
                more.shape.push_back(at[k + 1] - at[k]);
                next.push_back(more);
            }
        }
        boxes = std::move(next);
    }
    return boxes;
}

template <class T>
std::vector<T> cut_out(const std::vector<T>& x, const Shape& whole, const Box& box, std::size_t pair) {
    std::vector<T> part;
    for (std::uint64_t i = 0; i < product(box.shape); ++i) {
        std::uint64_t rest = i;
        std::uint64_t at = 0;
        std::uint64_t stride = 1;
        for (std::size_t d = whole.size(); d-- > 0;) {
            at += (rest % box.shape[d] + box.offset[d]) * stride;
            rest /= box.shape[d];
            stride *= whole[d];
        }
        for (std::size_t k = 0; k < pair; ++k)
            part.push_back(x[at * pair + k]);
    }
    return part;
}

std::vector<PartialSum> add_up(const std::vector<std::pair<std::vector<PartialSum>, unsigned>>& parts,
                               unsigned height, std::size_t blocks_per_chunk) {
    std::vector<SumsOfPart> views;
    for (const auto& [sums, own] : parts)
        views.push_back({sums, own});
    return add_sums(views, height, blocks_per_chunk);
}

// Parts of any cutting add up to the digests of the whole, at every height.
template <class T>
void parts_equal_whole(DType dtype, std::size_t pair, unsigned seed) {
    Random random(seed);
    const std::array<std::pair<double, double>, 4> tolerances = {
        {{0, 0}, {1e-3, 0}, {0, 1e-4}, {1e-3, 1e-4}}};
    const std::array<Shape, 6> shapes = {
        {{7000}, {61, 97}, {13, 17, 29}, {1, 5000}, {5000, 1}, {3, 3, 5, 40}}};
    const auto [atol, rtol] = tolerances[random() % tolerances.size()];
    const Shape whole = shapes[random() % shapes.size()];
    DigestSettings settings = settings_of(atol, rtol, 4096U << (random() % 4), random() % 2 == 0 ? 4 : 0);
    const DType scalar = scalar_type(dtype);
    if (random() % 4 != 0)
        settings.rule = *cell_rule(settings.tolerance, settings.rule.residue_bits, scalar).operator->();
    std::vector<T> x(product(whole) * pair);
    for (T& value : x)
        value = any_value<T>(random);
    std::vector<std::pair<std::vector<PartialSum>, unsigned>> parts;
    unsigned height = 0;
    for (const Box& box : random_cutting(whole, random)) {
        const std::vector<T> part = cut_out(x, whole, box, pair);
        auto placement = RowPlacement::of_box(box.shape, whole, box.offset, pair);
        ASSERT_TRUE(placement);
        ASSERT_EQ(placement->scalars(), part.size());
        auto sums = PartialSums::plan(settings, scalar, std::make_shared<const RowPlacement>(*placement));
        ASSERT_TRUE(sums);
        // In pieces, in any order, that do not respect rows.
        std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
        for (std::uint64_t at = 0; at < part.size();) {
            const std::uint64_t n = std::min<std::uint64_t>(part.size() - at, (1 + random() % 999) * pair);
            pieces.emplace_back(at, n);
            at += n;
        }
        std::shuffle(pieces.begin(), pieces.end(), random);
        for (const auto& [at, n] : pieces)
            sums->add(dense_view(dtype, part.data() + at), at, n);
        const auto found = sums->finish();
        EXPECT_EQ(found.size(), sums->count());
        EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                                   [](const auto& a, const auto& b) { return a.bucket < b.bucket; }));
        height = std::max(height, sums->height());
        parts.emplace_back(found, sums->height());
    }
    std::shuffle(parts.begin(), parts.end(), random);
    const std::size_t blocks = chunk_shape(scalar, settings.chunk_bytes, 0).blocks_per_chunk;
    const auto digests = whole_sums(settings, scalar, x);
    for (unsigned h = height; h <= height + 3; ++h)
        EXPECT_EQ(add_up(parts, h, blocks), add_up({{digests, 0}}, h, blocks)) << "height " << h;
}

TEST(Sums, PartsOfAnyCuttingEqualTheWhole) {
    for (unsigned seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(seed);
        parts_equal_whole<float>(DType::f32, 1, seed);
        parts_equal_whole<double>(DType::f64, 1, seed);
        parts_equal_whole<float>(DType::c64, 2, seed);
    }
}

TEST(Sums, AddUpToTheTree) {
    Random random(test_seed(7));
    const DigestSettings settings = settings_of(1e-3, 0, 8192);
    std::vector<double> x(1024 * 8);  // eight whole chunks: all levels are full
    for (double& value : x)
        value = any_value<double>(random);
    const auto digests = whole_sums(settings, DType::f64, x);
    const std::size_t blocks = 2;
    const TreeJoin join(DigestKind::linear, blocks);
    std::vector<std::uint64_t> level;
    for (const PartialSum& sum : digests)
        level.push_back(sum.coarse);
    for (unsigned h = 0; level.size() > 1; ++h) {
        std::vector<std::uint64_t> next(level.size() / 2);
        for (std::size_t i = 0; i < next.size(); ++i)
            join(h, &level[2 * i], &level[2 * i + 1], &next[i]);
        level = next;
        const auto added = add_up({{digests, 0}}, h + 1, blocks);
        ASSERT_EQ(added.size(), level.size());
        for (std::size_t i = 0; i < level.size(); ++i) {
            EXPECT_EQ(added[i].bucket, i);
            EXPECT_EQ(added[i].coarse, level[i]);
        }
    }
}

// Particles: the sums depend on which row has which ID, and on nothing else.
TEST(Sums, ByIdDoNotDependOnOrderOrOwner) {
    Random random(test_seed(11));
    for (const std::uint64_t width : {1, 3, 4, 7}) {
        const std::uint64_t n = 5000;
        const DigestSettings settings = settings_of(1e-4, 0, 4096);
        std::vector<std::uint64_t> ids(n);
        std::iota(ids.begin(), ids.end(), 1 + random() % 1000);
        std::vector<float> x(n * width);
        for (float& value : x)
            value = any_value<float>(random);
        const auto in_parts = [&](std::size_t parts) {
            std::vector<std::size_t> order(n);
            std::iota(order.begin(), order.end(), std::size_t{0});
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::pair<std::vector<PartialSum>, unsigned>> found;
            for (std::size_t p = 0; p < parts; ++p) {
                std::vector<std::uint64_t> own;
                std::vector<float> rows;
                for (std::size_t i = p; i < n; i += parts) {
                    own.push_back(ids[order[i]]);
                    const auto row = x.begin() + static_cast<std::ptrdiff_t>(order[i] * width);
                    rows.insert(rows.end(), row, row + static_cast<std::ptrdiff_t>(width));
                }
                auto placement = RowPlacement::of_ids(own, width);
                auto sums = PartialSums::plan(settings, DType::f32,
                                              std::make_shared<const RowPlacement>(std::move(*placement)));
                EXPECT_TRUE(sums);
                sums->add(dense_view(DType::f32, rows.data()), 0, rows.size());
                found.emplace_back(sums->finish(), sums->height());
            }
            return found;
        };
        const auto one = in_parts(1);
        const auto five = in_parts(5);
        unsigned height = 0;
        for (const auto& part : five)
            height = std::max(height, part.second);
        EXPECT_EQ(add_up(five, height, 1), add_up(one, height, 1));
        // Another value, or two rows exchanged, shows in its bucket, and there alone.
        std::swap_ranges(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(width),
                         x.begin() + static_cast<std::ptrdiff_t>(width));
        if (std::memcmp(x.data(), x.data() + width, width * 4) != 0) {
            const auto other = add_up(in_parts(5), 8, 1);
            const auto same = add_up(five, 8, 1);
            ASSERT_EQ(other.size(), same.size());
            EXPECT_NE(other[0].fine, same[0].fine);
            for (std::size_t i = 1; i < other.size(); ++i)
                EXPECT_EQ(other[i], same[i]);
        }
    }
}

TEST(Sums, CostNoMoreThanTheirShare) {
    // Scattered so thinly that even the largest bucket holds a row or two.
    std::vector<std::uint64_t> ids(10000);
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = i << 20;
    const DigestSettings settings = settings_of(1e-4, 0, 4096);
    auto thin = RowPlacement::of_ids(ids, 1);
    ASSERT_TRUE(thin);
    EXPECT_FALSE(PartialSums::plan(settings, DType::f64, std::make_shared<const RowPlacement>(*thin)));
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = i * 300;
    auto dense = RowPlacement::of_ids(ids, 1);
    auto sums = PartialSums::plan(settings, DType::f64, std::make_shared<const RowPlacement>(*dense));
    ASSERT_TRUE(sums);
    EXPECT_LE(sums->count() * kPartialSumBytes * 64, ids.size() * 8);
    DigestSettings published = settings;
    published.kind = DigestKind::published;
    EXPECT_FALSE(PartialSums::plan(published, DType::f64, std::make_shared<const RowPlacement>(*dense)));
}

TEST(Sums, RefuseWhatIsTooLarge) {
    EXPECT_FALSE(RowPlacement::of_ids({kIndexLimit}, 1));
    EXPECT_FALSE(RowPlacement::of_ids({kIndexLimit / 4}, 3));
    EXPECT_TRUE(RowPlacement::of_ids({kIndexLimit / 4 - 1}, 3));
    EXPECT_FALSE(RowPlacement::of_ids({std::numeric_limits<std::uint64_t>::max()}, 1));
    const Shape whole = {1ULL << 40, 1ULL << 40};
    EXPECT_FALSE(RowPlacement::of_box(Shape{1, 1}, whole, Shape{0, 0}, 1));
    const auto empty = RowPlacement::of_box(Shape{0, 4}, Shape{4, 4}, Shape{2, 0}, 1);
    ASSERT_TRUE(empty);
    EXPECT_EQ(empty->scalars(), 0U);
}

// Residues of two runs say by how much the fine sums differ, if no value moved by more than they can tell.
TEST(Sums, ResiduesExplainTheDifference) {
    Random random(test_seed(13));
    for (const unsigned bits : {2U, 4U}) {
        for (const std::uint64_t width : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{600}}) {
            const DigestSettings settings = settings_of(1e-3, 0, 4096, bits);
            const double cell = std::ldexp(1.0, settings.rule.fine_exponent);
            const std::uint64_t n = 12000 / width;
            std::vector<std::uint64_t> ids(n);
            std::iota(ids.begin(), ids.end(), std::uint64_t{5});
            std::shuffle(ids.begin(), ids.end(), random);
            std::vector<double> a(n * width);
            std::vector<double> b(n * width);
            for (std::size_t i = 0; i < a.size(); ++i) {
                a[i] = static_cast<double>(random() % 1000000) * cell;
                const int reach = bits == 2 ? 1 : 7;
                b[i] =
                    a[i] + static_cast<double>(static_cast<int>(random() % (2 * reach + 1)) - reach) * cell;
            }
            const ChunkShape shape = chunk_shape(DType::f64, 4096, bits);
            const auto sums_and_residues = [&](const std::vector<double>& x) {
                auto placement = RowPlacement::of_ids(ids, width);
                auto sums = PartialSums::plan(settings, DType::f64,
                                              std::make_shared<const RowPlacement>(std::move(*placement)));
                sums->add(dense_view(DType::f64, x.data()), 0, x.size());
                std::vector<ChunkDigest> digests((x.size() + 511) / 512);
                std::vector<std::byte> lines(digests.size() * shape.residue_bytes_per_chunk);
                Digester(settings, DType::f64)
                    .chunks(dense_view(DType::f64, x.data()), 0, x.size(), digests.data(), lines.data(),
                            nullptr);
                std::vector<std::uint8_t> residues(x.size());
                const std::uint64_t half = x.size() / 2 + 3;
                unpack_residues(lines, 0, half, bits, shape, residues.data());
                unpack_residues(std::span(lines).subspan(half / 512 * shape.residue_bytes_per_chunk), half,
                                x.size() - half, bits, shape, residues.data() + half);
                return std::tuple(sums->finish(), residues, sums->height());
            };
            const auto [sums_a, residues_a, height] = sums_and_residues(a);
            const auto [sums_b, residues_b, other] = sums_and_residues(b);
            ASSERT_EQ(height, other);
            std::vector<std::uint64_t> starts;
            for (const std::uint64_t id : ids)
                starts.push_back(id * id_stride(width));
            // Clang before 16 captures no structured bindings.
            const auto check = [&, &of_a = residues_a,
                                levels = height](const std::vector<std::uint8_t>& of_b) {
                return compare_residues(starts, width, of_a, of_b, bits, shape, levels);
            };
            const auto found = check(residues_b);
            ASSERT_EQ(found.size(), sums_a.size());
            std::uint64_t counted = 0;
            for (std::size_t i = 0; i < found.size(); ++i) {
                EXPECT_EQ(found[i].bucket, sums_a[i].bucket);
                EXPECT_EQ(found[i].beyond, 0U);
                EXPECT_EQ(found[i].correction, subtract61(sums_a[i].fine, sums_b[i].fine));
                counted += std::accumulate(found[i].counts.begin(), found[i].counts.end(), std::uint64_t{0});
            }
            EXPECT_EQ(counted, a.size());
            // A value that moved by a multiple of what residues can tell: they see nothing, the sums do.
            b[17] += cell * (1 << bits);
            const auto moved = sums_and_residues(b);
            const auto blind = check(std::get<1>(moved));
            std::size_t unexplained = 0;
            for (std::size_t i = 0; i < blind.size(); ++i) {
                unexplained += blind[i].correction != subtract61(sums_a[i].fine, std::get<0>(moved)[i].fine);
            }
            EXPECT_EQ(unexplained, 1U);
        }
    }
}

}  // namespace
}  // namespace twinrun
