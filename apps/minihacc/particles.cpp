// SPDX-License-Identifier: Apache-2.0
#include "minihacc/particles.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <numbers>

#include "minihacc/fft.hpp"

namespace minihacc {

namespace {

// Root mean square displacement, in lattice spacings. Tied to the lattice, not to the box, so that
// structure collapses within the first ten or twenty steps of a default run whatever the number of
// particles.
constexpr double kDisplacement = 0.5;
// The density spectrum is k^kSlope exp(-(k / k_cut)^2), with k_cut in units of the lattice's
// Nyquist frequency.
constexpr double kSlope = 0.0;
constexpr double kCut = 0.5;

std::uint64_t mix(std::uint64_t z) {  // the finaliser of SplitMix64 (Steele, Lea, Flood 2014)
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

double unit_open(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

float gaussian(std::uint64_t seed, std::uint64_t index) {  // Box and Muller
    const double u = unit_open(counter_random(seed, 0, index));
    const double v = unit_open(counter_random(seed, 1, index));
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

std::size_t lattice_side(std::size_t count) {
    auto n = static_cast<std::size_t>(std::cbrt(static_cast<double>(count)));
    while (n * n * n < count)
        ++n;
    while (n > 1 && (n - 1) * (n - 1) * (n - 1) >= count)
        --n;
    return n;
}

// One component of the displacement field, on every lattice site, up to a common factor.
AlignedFloats displacement(const FourierFilter& fourier, std::uint64_t seed, int axis, ThreadTeam& team) {
    const std::size_t n = fourier.size();
    AlignedFloats field = allocate_floats(fourier.floats());
    team.for_pieces(n, 1, [&](std::size_t ix, std::size_t) {
        for (std::size_t iy = 0; iy < n; ++iy)
            for (std::size_t iz = 0; iz < n; ++iz)
                field[(ix * n + iy) * fourier.row_stride() + iz] = gaussian(seed, (ix * n + iy) * n + iz);
    });
    const double cut = kCut * static_cast<double>(n) / 2.0;
    constexpr std::size_t kBatch = FourierFilter::kBatch;
    fourier.apply(
        field.get(), [&](std::size_t iy, std::size_t iz, std::size_t count, std::complex<float>* pencils) {
            for (std::size_t ix = 0; ix < n; ++ix)
                for (std::size_t b = 0; b < count; ++b) {
                    const std::array<std::size_t, 3> index{ix, iy, iz + b};
                    double k2 = 0.0;
                    for (const std::size_t i : index) {
                        const auto f = static_cast<double>(fourier.frequency(i));
                        k2 += f * f;
                    }
                    const std::size_t own = index[static_cast<std::size_t>(axis)];
                    const auto k = static_cast<double>(fourier.frequency(own));
                    // psi = i k / k^2 delta; the Nyquist mode has no sign, so no gradient either.
                    const bool none = k2 == 0.0 || 2 * own == n;
                    const double factor =
                        none ? 0.0 : k / k2 * std::pow(k2, kSlope / 4.0) * std::exp(-0.5 * k2 / (cut * cut));
                    pencils[ix * kBatch + b] *= std::complex<float>(0.0f, static_cast<float>(factor));
                }
        });
    return field;
}

}  // namespace

std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
    constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
    return mix(mix(mix(seed + kGolden) + kGolden * (stream + 1)) + kGolden * (index + 1));
}

Particles initial_particles(std::size_t count, std::uint64_t seed, ThreadTeam& team) {
    Particles particles(count);
    const std::size_t n = lattice_side(count);
    const std::size_t sites = n * n * n;
    const double spacing = 1.0 / static_cast<double>(n);
    const FourierFilter fourier(n, team);
    std::array<AlignedFloats, 3> psi;
    double square = 0.0;
    for (int axis = 0; axis < 3; ++axis) {
        auto& field = psi[static_cast<std::size_t>(axis)];
        field = displacement(fourier, seed, axis, team);
        for (std::size_t line = 0; line < n * n; ++line)
            for (std::size_t iz = 0; iz < n; ++iz) {
                const double value = field[line * fourier.row_stride() + iz];
                square += value * value;
            }
    }
    const double rms = std::sqrt(square / static_cast<double>(3 * sites));
    const double scale = rms > 0.0 ? kDisplacement * spacing / rms : 0.0;
    // Growing mode exp(rate t) at mean density 1, G = 1.
    const double rate = std::sqrt(4.0 * std::numbers::pi);

    const std::array<float*, 3> position{particles.x.data(), particles.y.data(), particles.z.data()};
    const std::array<float*, 3> velocity{particles.vx.data(), particles.vy.data(), particles.vz.data()};
    team.for_pieces(count, 4096, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            // Unless count is a cube some sites stay empty; spread evenly, they leave no hole.
            const std::size_t site = i * sites / count;
            const std::array<std::size_t, 3> index{site / (n * n), site / n % n, site % n};
            const std::size_t at = (site / n) * fourier.row_stride() + site % n;
            for (std::size_t axis = 0; axis < 3; ++axis) {
                const double shift = scale * static_cast<double>(psi[axis][at]);
                const double home = (static_cast<double>(index[axis]) + 0.5) * spacing;
                position[axis][i] = static_cast<float>(home + shift);
                velocity[axis][i] = static_cast<float>(rate * shift);
            }
        }
    });

    // The empty sites' share of the momentum is missing: at rest as a whole, the box keeps its
    // place.
    for (float* v : velocity) {
        double sum = 0.0;
        for (std::size_t i = 0; i < count; ++i)
            sum += static_cast<double>(v[i]);
        const double mean = sum / static_cast<double>(count);
        for (std::size_t i = 0; i < count; ++i)
            v[i] = static_cast<float>(static_cast<double>(v[i]) - mean);
    }
    return particles;
}

}  // namespace minihacc
