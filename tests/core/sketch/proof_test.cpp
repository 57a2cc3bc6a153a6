// The promise, in exact arithmetic: of a chunk that is declared proven no element exceeds the tolerance, and no bound is below
// what it bounds. For every type of elements, every rule, and tolerances wider and narrower than what digests were made for.
#include "sketch/proof.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "digest/field61.hpp"
#include "element/convert.hpp"
#include "element/exact.hpp"
#include "platform/float_environment.hpp"
#include "sketch/build.hpp"
#include "sketch/host_sketch.hpp"
#include "support/numbers.hpp"
#include "support/seed.hpp"

namespace twinrun {
namespace {

using Random = std::mt19937_64;

constexpr double kTiniest = std::numeric_limits<double>::denorm_min();

// A scalar as what it is exactly.
struct Scalar {
    bool is_integer = false;
    Magnitude integer{};  // of 64 bits
    double x = 0;         // of anything else
};

Scalar scalar_at(const ElementView& view, std::uint64_t i) {
    alignas(8) std::array<std::byte, 8> staging;
    const void* at = load(view, i, 1, staging.data());
    Scalar s;
    std::uint64_t bits = 0;
    float narrow = 0;
    switch (compute_type(view.scalar)) {
        case ComputeType::f32:
            std::memcpy(&narrow, at, 4);
            s.x = static_cast<double>(narrow);
            return s;
        case ComputeType::f64: std::memcpy(&s.x, at, 8); return s;
        case ComputeType::i64:
        case ComputeType::u64: break;
    }
    std::memcpy(&bits, at, 8);
    const bool negative = view.scalar == DType::i64 && bits >> 63 != 0;
    s.is_integer = true;
    s.integer = {negative ? ~bits + 1 : bits, 0, negative};
    return s;
}

bool differs(const Scalar& a, const Scalar& b, const Tolerance& tolerance) {
    if (a.is_integer) {
        return exceeds_exactly(a.integer.magnitude, a.integer.negative, b.integer.magnitude,
                               b.integer.negative, tolerance);
    }
    if (std::isnan(a.x) || std::isnan(b.x)) return std::isnan(a.x) != std::isnan(b.x);
    if (std::isinf(a.x) || std::isinf(b.x)) return a.x != b.x;
    return exceeds_exactly(a.x, b.x, tolerance);
}

bool finite(const Scalar& s) { return s.is_integer || std::isfinite(s.x); }

// |a - b|, rounded.
double distance(const Scalar& a, const Scalar& b) {
    if (!finite(a) || !finite(b)) return 0;  // of a pair that agrees
    if (!a.is_integer) return std::fabs(a.x - b.x);
    const auto value = [](const Magnitude& m) {
        return m.negative ? -static_cast<__int128>(m.magnitude) : static_cast<__int128>(m.magnitude);
    };
    const __int128 d = value(a.integer) - value(b.integer);
    return static_cast<double>(d < 0 ? -d : d);
}

// The number that is nearest to x, as far as the type has such; else another one.
void put(DType scalar, double x, std::byte* at) {
    const auto as = [&]<class T>(T value) {
        if constexpr (std::is_floating_point_v<T>) {
            value = static_cast<T>(x);
        } else {
            constexpr auto kLargest = static_cast<double>(std::numeric_limits<T>::max());
            const double in_range = std::fabs(x) < kLargest ? x : 1;
            value = static_cast<T>(std::nearbyint(std::is_signed_v<T> ? in_range : std::fabs(in_range)));
        }
        std::memcpy(at, &value, sizeof value);
    };
    switch (scalar) {
        case DType::f32: as(float{}); return;
        case DType::f64: as(double{}); return;
        case DType::i8: as(std::int8_t{}); return;
        case DType::i16: as(std::int16_t{}); return;
        case DType::i32: as(std::int32_t{}); return;
        case DType::i64: as(std::int64_t{}); return;
        case DType::u8: as(std::uint8_t{}); return;
        case DType::u16: as(std::uint16_t{}); return;
        case DType::u32: as(std::uint32_t{}); return;
        case DType::u64: as(std::uint64_t{}); return;
        case DType::boolean: *at = static_cast<std::byte>(x != 0); return;
        case DType::bf16: {
            const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
            const std::uint32_t up = std::isfinite(x) ? 0x7FFF + (bits >> 16 & 1) : 0;
            const auto high = static_cast<std::uint16_t>((bits + up) >> 16);
            std::memcpy(at, &high, 2);
            return;
        }
        default: {  // f16, without its denormal numbers
            int exponent = 0;
            const double fraction = std::frexp(std::fabs(x), &exponent);
            std::uint16_t bits = 0;
            if (std::isnan(x)) {
                bits = 0x7E00;
            } else if (std::isinf(x) || exponent > 16) {
                bits = 0x7C00;
            } else if (exponent >= -13) {
                const int fraction_bits = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11))) - 1024;
                bits = static_cast<std::uint16_t>(((exponent + 14) << 10) + fraction_bits);
            }
            if (std::signbit(x)) bits |= 0x8000;
            std::memcpy(at, &bits, 2);
        }
    }
}

double number(const Scalar& s) {
    if (!s.is_integer) return s.x;
    const auto x = static_cast<double>(s.integer.magnitude);
    return s.integer.negative ? -x : x;
}

// Two runs of a field. The first chunk is the same in both; in the second a few elements lie less than the tolerance apart; in all
// others every element lies less than that apart, and in those behind the third a few lie about the tolerance apart, or far.
struct Runs {
    FieldMetadata field;
    std::vector<std::byte> a, b;
    BuiltField built_a, built_b;
};

Runs two_runs(DType dtype, const Tolerance& tolerance, unsigned bits, DigestKind kind, Random& random) {
    Runs runs;
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = dtype;
    plan.tolerance = tolerance;
    plan.residue_bits = bits;
    plan.kind = kind;
    plan.chunk_bytes = random() % 4 == 0 ? 8192 : 4096;
    const std::size_t in_chunk = plan.chunk_bytes / item_bytes(dtype);
    plan.shape = {5 * in_chunk + 1 + random() % in_chunk};
    runs.field = plan_field(std::move(plan)).value();
    const DType scalar = scalar_type(dtype);
    const std::size_t bytes = item_bytes(scalar);
    const std::size_t scalars = runs.field.scalars();
    runs.a.resize(runs.field.data_bytes());
    std::uniform_real_distribution<double> part(-1, 1);
    // Near zero, of a size at which the tolerance counts, and beyond what has cells.
    const double unit = tolerance.atol > 0 ? tolerance.atol : 1;
    const double sizes[] = {unit, 16 * unit, 1000 * unit, 1, 100, std::ldexp(unit, 60)};
    const double odd[] = {0, -0.0, std::nan(""), INFINITY, -INFINITY, kTiniest, -kTiniest, 1e300};
    for (std::size_t i = 0; i < scalars; ++i) {
        const double x =
            random() % 64 == 0 ? odd[random() % std::size(odd)] : part(random) * sizes[random() % 6];
        put(scalar, x, &runs.a[i * bytes]);
    }
    runs.b = runs.a;
    const ElementView view = dense_view(dtype, runs.a.data());
    const double drift = (random() % 2 == 0 ? 0.3 : 0.8);
    for (std::size_t i = 0; i < scalars; ++i) {
        const std::size_t chunk = i / runs.field.chunking().chunk_scalars;
        if (chunk == 0) continue;  // as it is in a
        std::uint64_t how = random() % 512;
        const double x = number(scalar_at(view, i));
        if (!std::isfinite(x)) continue;
        const double reach = tolerance.atol + tolerance.rtol * std::fabs(x);
        double moved = 0;
        if (chunk >= 2) moved = drift * part(random) * reach;
        if (chunk == 2) how = 3;  // nothing else
        if (how == 0) moved = (chunk == 1 ? part(random) : 1 + part(random) / 64) * reach;
        if (how == 1 && chunk == 3) moved = 8 * part(random) * reach;
        if (how == 2 && chunk == 3) moved = part(random) * 100;
        if (moved != 0) put(scalar, x + moved, &runs.b[i * bytes]);
    }
    for (const bool second : {false, true}) {
        MemorySource source(dtype, runs.field.items(), (second ? runs.b : runs.a).data(), item_bytes(dtype),
                            false);
        auto& built = second ? runs.built_b : runs.built_a;
        const auto made = build_in_memory(runs.field, source, {}, built);
        EXPECT_TRUE(made) << made.error().message;
    }
    return runs;
}

// How often each was met, so that no property holds for want of cases.
struct Met {
    std::uint64_t by_tree = 0, by_residues = 0, open = 0, with_drift = 0, reached = 0, unbounded = 0;
};

void check(const Runs& runs, const Tolerance& wanted, const std::string& name, Met& met) {
    const FieldMetadata& field = runs.field;
    const ChunkProof proof(field, wanted);
    const DigestKind kind = field.settings.kind;
    const TreeLayout tree = field.tree();
    const std::size_t before = (tree.nodes() - tree.leaves) * node_words(kind);
    const auto leaves_a = std::span(runs.built_a.tree).subspan(before);
    const auto leaves_b = std::span(runs.built_b.tree).subspan(before);
    const ElementView view_a = dense_view(field.dtype, runs.a.data());
    const ElementView view_b = dense_view(field.dtype, runs.b.data());
    ProvenDrift drift = proof.drift();
    std::vector<std::uint64_t> proven;
    std::vector<std::uint32_t> flagged, open;
    for (std::uint64_t c = 0; c < field.chunks(); ++c) {
        const ChunkDigest a = chunk_digest(kind, leaves_a, runs.built_a.fine, c);
        const ChunkDigest b = chunk_digest(kind, leaves_b, runs.built_b.fine, c);
        if (proof.digests_prove(a, b)) {
            drift.by_tree += proof.scalars(c);
            proven.push_back(c);
            ++met.by_tree;
            continue;
        }
        flagged.push_back(static_cast<std::uint32_t>(c));
        if (proof.by_residues()) {
            const std::size_t at = c * proof.shape().residue_bytes_per_chunk;
            const SketchVerdict verdict = proof.residues_say(
                c, a.fine, b.fine, runs.built_a.residues.data() + at, runs.built_b.residues.data() + at);
            if (verdict.proven) {
                drift.add(verdict.counts);
                proven.push_back(c);
                ++met.by_residues;
                continue;
            }
        }
        open.push_back(static_cast<std::uint32_t>(c));
        ++met.open;
    }

    const FloatEnvironment nearest(Rounding::to_nearest);
    const double bound = largest_unread(drift, wanted);
    const double least = least_unread(drift);
    double squares = 0;
    std::uint64_t scalars = 0;
    bool reached = least == 0;
    const Tolerance just_below{std::nextafter(least, 0.0), 0};
    for (const std::uint64_t c : proven) {
        const std::uint64_t begin = c * field.chunking().chunk_scalars;
        scalars += proof.scalars(c);
        for (std::uint64_t i = begin; i < begin + proof.scalars(c); ++i) {
            const Scalar a = scalar_at(view_a, i);
            const Scalar b = scalar_at(view_b, i);
            if (differs(a, b, wanted)) {
                FAIL() << name << ": scalar " << i
                       << " of a proven chunk exceeds the tolerance: " << number(a) << " " << number(b);
            }
            const double d = distance(a, b);
            if (d == 0) continue;
            squares += d * d;
            if (!std::isnan(bound) && differs(a, b, {bound, 0})) {
                FAIL() << name << ": |a - b| = " << d << " of scalar " << i << " exceeds the bound " << bound;
            }
            reached = reached || differs(a, b, just_below);
        }
    }
    EXPECT_TRUE(reached) << name << ": no |a - b| is as large as " << least;
    EXPECT_EQ(drift.scalars(), scalars) << name;
    const double all = sum_squares_of_all(0, drift, wanted);
    if (std::isnan(all)) {
        ++met.unbounded;
    } else {
        EXPECT_LE(squares, all * (1 + 1e-12)) << name;
    }
    met.with_drift += squares > 0;
    met.reached += least > 0;
    EXPECT_TRUE(!proof.by_tree() || (!proven.empty() && proven.front() == 0))
        << name << ": equal data is open";

    // Sketches in memory say the same.
    MemorySource source_a(field.dtype, field.items(), runs.a.data(), item_bytes(field.dtype), false);
    MemorySource source_b(field.dtype, field.items(), runs.b.data(), item_bytes(field.dtype), false);
    const HostSketch sketch_a = HostSketch::build(field, source_a).value();
    const auto found = sketch_a.compare(HostSketch::build(field, source_b).value(), {wanted});
    if (!found) {
        EXPECT_TRUE(proven.empty()) << name << ": " << found.error().message;
        return;
    }
    EXPECT_EQ(found->flagged, flagged) << name;
    EXPECT_EQ(found->open, open) << name;
    EXPECT_EQ(found->by_tree, drift.by_tree) << name;
    EXPECT_EQ(found->by_cells, drift.by_cells) << name;
}

using testing::kEveryDType;

class Proof : public ::testing::TestWithParam<DType> {};

TEST_P(Proof, OfAChunkHoldsInExactArithmetic) {
    const DType dtype = GetParam();
    Random random(test_seed(static_cast<std::uint64_t>(dtype)));
    const bool floating = is_floating(dtype);
    std::vector<Tolerance> tolerances = {
        {0, 0}, {floating ? 1e-3 : 3, 0}, {0.37, 0}, {16, 0}, {0, 1e-2}, {1e-3, 1e-3}, {2, 0.25}, {0, 1e-15}};
    if (dtype == DType::f64 || dtype == DType::c128) {
        tolerances.push_back({3 * kTiniest, 0});  // its fine cells are finer than any float64
        tolerances.push_back({1e-310, 0});
        tolerances.push_back({1e300, 0});
    }
    Met linear, published;
    for (const Tolerance& made_for : tolerances) {
        for (const unsigned bits : {0U, 2U, 4U}) {
            const Runs runs = two_runs(dtype, made_for, bits, DigestKind::linear, random);
            for (const double factor : {1.0, 0.4, 0.99, 1.01, 5.0, 0.0}) {
                for (const double relative : {0.0, 1e-6}) {
                    const Tolerance wanted{made_for.atol * factor,
                                           made_for.rtol * std::max(factor, 0.5) + relative};
                    const std::string name = std::string(dtype_name(dtype)) + ", " + std::to_string(bits) +
                                             " bits, made for " + std::to_string(made_for.atol) + ", " +
                                             std::to_string(made_for.rtol) + ", wanted " +
                                             std::to_string(wanted.atol) + ", " + std::to_string(wanted.rtol);
                    check(runs, wanted, name, linear);
                    if (HasFatalFailure()) return;
                }
            }
        }
        if (!floating || made_for.rtol != 0) continue;
        const Runs runs = two_runs(dtype, made_for, 0, DigestKind::published, random);
        for (const double factor : {1.0, 0.99, 2.0}) {
            check(runs, {made_for.atol * factor, 0}, std::string(dtype_name(dtype)) + ", published",
                  published);
            if (HasFatalFailure()) return;
        }
    }
    EXPECT_GT(linear.by_tree, 0U);
    EXPECT_GT(linear.open, 0U);
    EXPECT_GT(linear.unbounded, 0U);
    if (dtype == DType::boolean) return;
    EXPECT_GT(linear.by_residues, 0U);
    EXPECT_GT(linear.with_drift, 0U);
    if (floating) {
        EXPECT_GT(published.by_tree, 0U);
        if (precision_bits(dtype) < 24)
            return;  // few of its numbers lie in other cells and within the tolerance
        EXPECT_GT(linear.reached, 0U);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, Proof, ::testing::ValuesIn(kEveryDType),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

FieldMetadata field_of(Tolerance tolerance, unsigned bits, DigestKind kind = DigestKind::linear) {
    FieldPlan plan;
    plan.name = "x";
    plan.shape = {3000};
    plan.tolerance = tolerance;
    plan.residue_bits = bits;
    plan.kind = kind;
    return plan_field(std::move(plan)).value();
}

TEST(ProofOfAField, WhatMetadataCanProve) {
    const FieldMetadata field = field_of({1e-3, 0}, 4);
    const ChunkProof same(field, {1e-3, 0});
    EXPECT_TRUE(same.by_tree() && same.by_residues());
    EXPECT_EQ(same.widest(), field.settings.rule.widest);
    // Narrower than a coarse cell: residues alone; narrower than a fine one: nothing.
    const ChunkProof narrower(field, {same.drift().coarse_cell * 0.9, 0});
    EXPECT_TRUE(!narrower.by_tree() && narrower.by_residues());
    EXPECT_FALSE(narrower.digests_prove({1, 2}, {1, 2}));
    const ChunkProof none(field, {same.drift().cell * 0.9, 0});
    EXPECT_FALSE(none.by_tree() || none.by_residues() || none.digests_prove({1, 2}, {1, 2}));
    EXPECT_EQ(none.widest(), -1);
    EXPECT_FALSE(none.residues_say(BucketResidues{0, 0, 0, {5}}, 7, 7).proven);
    EXPECT_FALSE(ChunkProof(field_of({1e-3, 0}, 0), {1e-3, 0}).by_residues());

    const ChunkProof published(field_of({1e-3, 0}, 0, DigestKind::published), {1e-3, 0});
    EXPECT_TRUE(published.digests_prove({1, 2}, {1, 2}));
    EXPECT_FALSE(published.digests_prove({1, 2}, {3, 2}) || published.digests_prove({1, 2}, {1, 3}));
    EXPECT_TRUE(same.digests_prove({1, 2}, {3, 2}));
    EXPECT_FALSE(published.by_residues());
    EXPECT_FALSE(ChunkProof(field_of({1e-3, 0}, 0, DigestKind::published), {9e-4, 0}).by_tree());
}

TEST(ProofOfAField, TheLastChunkIsShort) {
    const ChunkProof proof(field_of({1e-3, 0}, 4), {1e-3, 0});
    EXPECT_EQ(proof.scalars(0), 1024U);
    EXPECT_EQ(proof.scalars(2), 952U);
    const Range ranges[] = {{0, 1}, {2, 3}};
    EXPECT_EQ(proof.scalars(ranges), 1976U);
    EXPECT_EQ(proof.device_item({1, 3}).scalars, 1976U);
    EXPECT_EQ(proof.device_item({1, 3}).widest, proof.widest());
}

TEST(ProofOfAField, BucketsAreProvenAsChunksAre) {
    const ChunkProof proof(field_of({1e-3, 0}, 2), {1e-3, 0});
    const auto widest = static_cast<std::size_t>(proof.widest());
    ASSERT_LT(widest, 7U);
    BucketResidues residues;
    residues.correction = 30;
    residues.counts[widest] = 9;
    EXPECT_TRUE(proof.residues_say(residues, 50, 20).proven);
    EXPECT_EQ(proof.residues_say(residues, 50, 20).counts, residues.counts);
    EXPECT_TRUE(proof.residues_say(residues, 10, kPrime - 20).proven);  // modulo p
    EXPECT_FALSE(proof.residues_say(residues, 20, 50).proven);
    BucketResidues beyond = residues;
    beyond.beyond = 1;
    EXPECT_FALSE(proof.residues_say(beyond, 50, 20).proven);
    residues.counts[widest + 1] = 1;
    EXPECT_FALSE(proof.residues_say(residues, 50, 20).proven);
    EXPECT_TRUE(proof.residues_say(residues, 50, 20).consistent);
}

TEST(Bounds, FollowFromWhatProved) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Tolerance absolute{0.3, 0};
    const Tolerance combined{0.3, 0.1};
    ProvenDrift cells;
    cells.cell = 0.0625;
    cells.coarse_cell = 0.25;
    EXPECT_EQ(largest_unread(cells, absolute), 0);  // nothing was proven
    cells.by_cells[0] = 2;
    EXPECT_EQ(largest_unread(cells, absolute), 0.0625);
    cells.by_tree = 10;
    EXPECT_EQ(largest_unread(cells, absolute), 0.25);
    cells.by_cells[3] = 1;
    EXPECT_EQ(largest_unread(cells, absolute), 0.25);
    EXPECT_EQ(least_unread(cells), 0.125);
    EXPECT_EQ(sum_squares_of_all(1, cells, combined), 1 + 10 * 0.0625 + 2 * 0.00390625 + 0.0625);
    cells.by_cells[6] = 1;
    EXPECT_EQ(largest_unread(cells, combined), 7 * 0.0625);

    ProvenDrift keys;  // of a relative rule, or of published digests
    keys.by_tree = 4;
    EXPECT_EQ(largest_unread(keys, absolute), 0.3);
    EXPECT_TRUE(std::isnan(largest_unread(keys, combined)));
    EXPECT_EQ(sum_squares_of_all(1, keys, absolute), 1 + 4 * (0.3 * 0.3));
    EXPECT_TRUE(std::isnan(sum_squares_of_all(1, keys, combined)));
    EXPECT_EQ(least_unread(keys), 0);

    ProvenDrift huge;
    huge.cell = std::ldexp(1.0, 508);
    huge.coarse_cell = std::ldexp(1.0, 512);  // its square is infinite
    huge.by_cells[0] = 1;
    EXPECT_EQ(sum_squares_of_all(0, huge, {huge.coarse_cell, 0}), std::ldexp(1.0, 1016));
    huge.by_tree = 1;
    EXPECT_EQ(sum_squares_of_all(0, huge, {huge.coarse_cell, 0}), INFINITY);

    ProvenDrift finest;  // 3 times the tiniest number are 6 fine cells, which are no number
    finest.coarse_cell = 2 * kTiniest;
    finest.by_cells[5] = 1;
    EXPECT_EQ(largest_unread(finest, {3 * kTiniest, 0}), 3 * kTiniest);

    ProvenDrift tokens;
    tokens.cell = -1;
    tokens.by_tree = 4;
    EXPECT_EQ(largest_unread(tokens, combined), 0);
    EXPECT_EQ(sum_squares_of_all(1, tokens, combined), 1);

    for (const auto& [read, unread, value, is_bound] : {std::tuple{1.0, 0.5, 1.0, false},
                                                        {1.0, 1.0, 1.0, false},
                                                        {1.0, 1.5, 1.5, true},
                                                        {INFINITY, 1.5, INFINITY, false},
                                                        {INFINITY, nan, INFINITY, true},
                                                        {0.0, 0.0, 0.0, false}}) {
        const LargestOfAll largest = largest_of_all(read, unread);
        EXPECT_EQ(largest.value, value);
        EXPECT_EQ(largest.is_bound, is_bound);
    }
    EXPECT_TRUE(std::isnan(largest_of_all(1, nan).value) && largest_of_all(1, nan).is_bound);
}

TEST(ProofOfTwoFields, MustGoTogether) {
    const DifferenceRule rule{{1e-3, 0}};
    const FieldMetadata field = field_of({1e-3, 0}, 4);
    EXPECT_TRUE(ChunkProof::between(field, field, rule));
    FieldMetadata longer = field;
    longer.shape = {3001};
    FieldMetadata other_type = field;
    other_type.dtype = DType::i32;
    FieldMetadata column_major = field;
    column_major.order = ArrayOrder::column_major;
    for (const FieldMetadata& b : {longer, other_type, column_major, field_of({2e-3, 0}, 4),
                                   field_of({1e-3, 0}, 2), field_of({1e-3, 0}, 0, DigestKind::published)}) {
        for (const bool swapped : {false, true}) {
            const auto refused =
                swapped ? ChunkProof::between(b, field, rule) : ChunkProof::between(field, b, rule);
            ASSERT_FALSE(refused);
            EXPECT_EQ(refused.error().code, ErrorCode::mismatch);
        }
    }
    EXPECT_FALSE(ChunkProof::between(field, field, {{1e-6, 0}}));
    // Tokens of numbers say nothing beside their bits, but each kind of its own.
    for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
        const FieldMetadata by_bits = plan_field({.name = "x", .dtype = dtype, .shape = {3000}}).value();
        const FieldMetadata by_tokens =
            plan_field({.name = "x", .dtype = dtype, .shape = {3000}, .tokens = true}).value();
        EXPECT_TRUE(ChunkProof::between(by_bits, by_bits, rule));
        EXPECT_TRUE(ChunkProof::between(by_tokens, by_tokens, rule));
        for (const auto& [a, b] : {std::pair(by_bits, by_tokens), std::pair(by_tokens, by_bits)}) {
            const auto refused = ChunkProof::between(a, b, rule);
            ASSERT_FALSE(refused);
            EXPECT_NE(refused.error().message.find("an earlier kind"), std::string::npos);
        }
    }
    FieldMetadata with_nans = field;
    with_nans.counts.nans = 1;
    EXPECT_TRUE(ChunkProof::between(field, with_nans, rule));
    EXPECT_FALSE(ChunkProof::between(field, with_nans, {{1e-3, 0}, false}));
    const FieldMetadata published = field_of({1e-3, 0}, 0, DigestKind::published);
    EXPECT_TRUE(ChunkProof::between(published, published, rule));
    EXPECT_FALSE(ChunkProof::between(published, published, {{1e-3, 0}, false}));
}

}  // namespace
}  // namespace twinrun
