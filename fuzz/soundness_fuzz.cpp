// The promise: whenever two runs' metadata says that all elements of a chunk agree, they do. Two
// arrays and a tolerance of any bits; equal coarse digests, equal published digests, or a proof by
// the sketch, and then every pair in exact arithmetic. Also that the sketch is complete: cells at
// most `widest` apart are always proven.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "digest/digest.hpp"
#include "element/exact.hpp"
#include "input.hpp"
#include "platform/float_environment.hpp"

using namespace twinrun;
using fuzz::Input;
using fuzz::require;

namespace {

double tolerance(Input& input, std::uint8_t form) {
    const auto bits = input.take<std::uint64_t>();
    switch (form % 4) {
        case 0: return 0;
        case 1:
            return std::ldexp(1 + static_cast<double>(bits & 0xFFFF) / 65536,
                              static_cast<int>(bits >> 16 & 63) - 48);
        case 2: return std::ldexp(1.0, static_cast<int>(bits % 2000) - 1000);
        default: {
            const double x = std::fabs(std::bit_cast<double>(bits));
            return std::isfinite(x) ? x : 1e-3;
        }
    }
}

// Number i of an array whose scalars lie densely.
struct Scalar {
    bool is_integer = false;
    bool negative = false;
    std::uint64_t magnitude = 0;  // of an integer
    double x = 0;                 // of anything else
};
Scalar scalar(const ElementView& view, std::uint64_t i) {
    alignas(8) std::array<std::byte, 8> staging;
    const void* at = load(view, i, 1, staging.data());
    Scalar s;
    switch (compute_type(view.scalar)) {
        case ComputeType::f32: {
            float f = 0;
            std::memcpy(&f, at, 4);
            s.x = static_cast<double>(f);
            break;
        }
        case ComputeType::f64: std::memcpy(&s.x, at, 8); break;
        case ComputeType::i64:
        case ComputeType::u64: {
            std::memcpy(&s.magnitude, at, 8);
            s.is_integer = true;
            s.negative = view.scalar == DType::i64 && (s.magnitude >> 63) != 0;
            if (s.negative) s.magnitude = ~s.magnitude + 1;
            break;
        }
    }
    return s;
}

bool differs(const Scalar& a, const Scalar& b, const Tolerance& t) {
    if (a.is_integer) return exceeds_exactly(a.magnitude, a.negative, b.magnitude, b.negative, t);
    if (std::isnan(a.x) || std::isnan(b.x)) return std::isnan(a.x) != std::isnan(b.x);
    if (std::isinf(a.x) || std::isinf(b.x)) return a.x != b.x;
    return exceeds_exactly(a.x, b.x, t);
}

Cell fine_cell(const Scalar& s, const CellRule& rule) {
    return s.is_integer ? cell_of_integer(s.magnitude, s.negative, rule, 0) : cell_of(s.x, rule, 0);
}

struct Side {
    ChunkDigest digest;
    std::vector<std::byte> residues;
};
Side side(const DigestSettings& settings, const ElementView& view, std::uint64_t scalars) {
    Side made;
    made.residues.resize(chunk_residue_bytes(view.scalar, scalars, settings.rule.residue_bits));
    Digester digester(settings, view.scalar);
    digester.chunks(view, 0, scalars, &made.digest, made.residues.data(), nullptr);
    return made;
}

// Makes one scalar the number, as far as its type can.
void put(DType dtype, double moved, std::byte* at) {
    const auto as = [&]<class T>(T value) {
        if constexpr (std::is_floating_point_v<T>) {
            value = static_cast<T>(moved);
        } else {
            constexpr auto kLargest = static_cast<double>(std::numeric_limits<T>::max() / 2);
            if (!(moved > -kLargest && moved < kLargest)) return;
            value = static_cast<T>(static_cast<std::int64_t>(moved));
        }
        std::memcpy(at, &value, sizeof value);
    };
    switch (dtype) {
        case DType::f32: as(float{}); break;
        case DType::f64: as(double{}); break;
        case DType::i8: as(std::int8_t{}); break;
        case DType::i16: as(std::int16_t{}); break;
        case DType::i32: as(std::int32_t{}); break;
        case DType::i64: as(std::int64_t{}); break;
        case DType::u64: as(std::uint64_t{}); break;
        default:
            // A neighbour by bits.
            *at = static_cast<std::byte>(static_cast<int>(*at) + (moved > 0 ? 1 : -1));
    }
}

double value_of(const Scalar& s) {
    if (!s.is_integer) return s.x;
    return s.negative ? -static_cast<double>(s.magnitude) : static_cast<double>(s.magnitude);
}

// Numbers that lie on and beside the edges of cells, from 16 bits each.
void near_edges(const std::vector<std::byte>& numbers, DType dtype, const Tolerance& t,
                std::vector<std::byte>& bytes) {
    Input input(reinterpret_cast<const std::uint8_t*>(numbers.data()), numbers.size());
    const double unit = t.atol != 0 ? t.atol : 1;
    for (std::size_t at = 0; at < bytes.size(); at += item_bytes(dtype)) {
        put(dtype, static_cast<double>(input.take<std::int16_t>()) / 64 * unit, &bytes[at]);
    }
}

// The second array from the first: a few numbers moved by about the tolerance, so that all others
// agree.
void perturb(Input& input, const Tolerance& t, const ElementView& view, std::vector<std::byte>& bytes) {
    const std::size_t size = item_bytes(view.scalar);
    const std::size_t scalars = bytes.size() / size;
    for (unsigned changes = 1 + input.take<std::uint8_t>() % 4; changes-- > 0;) {
        const std::size_t i = input.take<std::uint8_t>() % scalars;
        const auto how = input.take<std::uint8_t>();
        const auto amount = input.take<std::int16_t>();
        if (how >= 0xF0) {
            bytes[i * size + static_cast<std::size_t>(how) % size] ^= static_cast<std::byte>(amount);
            continue;
        }
        const double x = value_of(scalar(view, i));
        const double reach = t.atol + t.rtol * std::fabs(x);
        // In units of the tolerance: just about 1, up to 2, or up to 8.
        const double part = static_cast<double>(amount) / (1 << 15);
        const double factor = how < 0x60 ? 1 + part / 128 : how < 0xC0 ? 1 + part : 8 * part;
        put(view.scalar, (how & 1) != 0 ? x + factor * reach : x - factor * reach, &bytes[i * size]);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const auto choice = input.take<std::uint8_t>();
    const auto forms = input.take<std::uint8_t>();
    const DType dtype = *dtype_from_number(static_cast<std::uint8_t>(1 + choice % 13));
    const unsigned bits = static_cast<unsigned>(choice / 13 % 3) * 2;
    DigestSettings settings;
    settings.tolerance.atol = tolerance(input, forms & 3);
    settings.tolerance.rtol = tolerance(input, forms >> 2 & 3);
    // What is asked may be another tolerance than what the metadata was made for.
    Tolerance wanted = settings.tolerance;
    if ((forms & 0x10) != 0) wanted.atol = tolerance(input, forms >> 5 & 3);
    const auto rule = cell_rule(settings.tolerance, bits, scalar_type(dtype));
    require(rule.ok());
    settings.rule = *rule.operator->();

    const std::size_t item = item_bytes(dtype);
    const std::size_t scalars = std::min<std::size_t>(input.left() / item / 2, kBlockBytes / item);
    if (scalars == 0) return 0;
    auto first = input.take_bytes(scalars * item);
    if (choice / 39 % 2 != 0) {
        const auto numbers = first;
        near_edges(numbers, dtype, settings.tolerance, first);
    }
    const ElementView view_a = dense_view(dtype, first.data());
    auto second = first;
    if ((forms & 0x80) != 0) {
        second = input.take_bytes(scalars * item);
    } else {
        perturb(input, settings.tolerance, view_a, second);
    }
    const ElementView view_b = dense_view(dtype, second.data());

    bool any_differs = false;
    bool any_differs_from_made_for = false;
    bool cells_close = true;
    const ProofReach reach = proof_reach(settings.rule, settings.tolerance, wanted);
    {
        const FloatEnvironment nearest(Rounding::to_nearest);
        for (std::size_t i = 0; i < scalars; ++i) {
            const Scalar a = scalar(view_a, i);
            const Scalar b = scalar(view_b, i);
            any_differs = any_differs || differs(a, b, wanted);
            any_differs_from_made_for = any_differs_from_made_for || differs(a, b, settings.tolerance);
            const Cell p = fine_cell(a, settings.rule);
            const Cell q = fine_cell(b, settings.rule);
            const auto apart = static_cast<std::int64_t>(p.bits - q.bits);
            cells_close = cells_close && p.token == q.token &&
                          (p.token ? apart == 0 : apart >= -reach.widest && apart <= reach.widest);
        }
    }

    const Side a = side(settings, view_a, scalars);
    const Side b = side(settings, view_b, scalars);
    if (reach.usable && reach.coarse_proves && a.digest.coarse == b.digest.coarse) require(!any_differs);
    if (reach.usable && a.digest.fine == b.digest.fine) require(!any_differs);
    if (settings.rule.residue_bits != 0 && reach.usable) {
        const ChunkShape shape = chunk_shape(dtype, settings.chunk_bytes, settings.rule.residue_bits);
        const SketchVerdict verdict =
            check_sketch(digest_kernels(), shape, scalars, settings.rule.residue_bits, reach.widest,
                         a.digest.fine, b.digest.fine, a.residues.data(), b.residues.data());
        if (verdict.proven) require(!any_differs);
        require(verdict.proven == cells_close);
    }

    settings.kind = DigestKind::published;
    settings.rule = {};
    settings.tolerance.rtol = 0;
    if (side(settings, view_a, scalars).digest == side(settings, view_b, scalars).digest) {
        require(!any_differs_from_made_for);
    }
    return 0;
}
