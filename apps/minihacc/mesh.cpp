// SPDX-License-Identifier: Apache-2.0
#include "minihacc/mesh.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <numbers>
#include <vector>

namespace minihacc {

// The three nearest mesh points of each axis (periodic), and their weights.
struct Mesh::Stencil {
    std::size_t ix[kPoints], iy[kPoints], iz[kPoints];
    float wx[kPoints], wy[kPoints], wz[kPoints];
};

namespace {

template <int kPoints>
void axis_stencil(float position, std::size_t n, std::size_t (&index)[kPoints], float (&weight)[kPoints]) {
    static_assert(kPoints == 3);
    const float scaled = position * static_cast<float>(n);
    const auto nearest = static_cast<std::size_t>(scaled + 0.5f);
    const float d = scaled - static_cast<float>(nearest);
    weight[0] = 0.5f * (0.5f - d) * (0.5f - d);
    weight[1] = 0.75f - d * d;
    weight[2] = 0.5f * (0.5f + d) * (0.5f + d);
    index[1] = nearest < n ? nearest : nearest - n;
    index[0] = index[1] > 0 ? index[1] - 1 : n - 1;
    index[2] = index[1] + 1 < n ? index[1] + 1 : 0;
}

}  // namespace

Mesh::Mesh(std::size_t n, double split, ThreadTeam& team)
    : n_(n),
      split_(split),
      team_(team),
      filter_(n, team),
      field_(allocate_floats(filter_.floats())),
      samples_(allocate_floats(4 * n * n * n)) {}

Mesh::Stencil Mesh::stencil(float x, float y, float z) const {
    Stencil c;
    axis_stencil(x, n_, c.ix, c.wx);
    axis_stencil(y, n_, c.iy, c.wy);
    axis_stencil(z, n_, c.iz, c.wz);
    return c;
}

void Mesh::clear() {
    const std::size_t plane = n_ * filter_.row_stride();
    team_.for_pieces(n_, 1, [&](std::size_t ix, std::size_t) {
        std::memset(field_.get() + ix * plane, 0, plane * sizeof(float));
    });
}

void Mesh::deposit_atomic(const SortedPositions& particles) {
    // Small pieces keep the threads close together in the sorted order, and balance the load.
    const std::size_t count = particles.x.size();
    const std::size_t piece =
        std::clamp<std::size_t>(count / (static_cast<std::size_t>(team_.size()) * 64), 16, 4096);
    team_.for_pieces(count, piece, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const Stencil c = stencil(particles.x[i], particles.y[i], particles.z[i]);
            for (int a = 0; a < kPoints; ++a)
                for (int b = 0; b < kPoints; ++b) {
                    float* line = field_.get() + row(c.ix[a], c.iy[b]);
                    const float w = c.wx[a] * c.wy[b];
                    for (int d = 0; d < kPoints; ++d)
                        std::atomic_ref<float>(line[c.iz[d]])
                            .fetch_add(w * c.wz[d], std::memory_order_relaxed);
                }
        }
    });
}

void Mesh::deposit_ordered(const SortedPositions& particles, std::span<const std::uint32_t> slab_begin) {
    const std::size_t slabs = slab_begin.size() - 1;
    assert(2 * slabs <= n_);
    const auto deposit_slab = [&](std::size_t slab) {
        for (std::size_t i = slab_begin[slab]; i < slab_begin[slab + 1]; ++i) {
            const Stencil c = stencil(particles.x[i], particles.y[i], particles.z[i]);
            for (int a = 0; a < kPoints; ++a)
                for (int b = 0; b < kPoints; ++b) {
                    float* line = field_.get() + row(c.ix[a], c.iy[b]);
                    const float w = c.wx[a] * c.wy[b];
                    for (int d = 0; d < kPoints; ++d)
                        line[c.iz[d]] += w * c.wz[d];
                }
        }
    };
    // A slab reaches up to two planes into its neighbours, so every third can go at once. What is
    // left over of a number of slabs that three does not divide would meet the first ones, and goes
    // alone.
    const std::size_t threes = slabs / 3;
    for (std::size_t first = 0; first < 3; ++first)
        team_.for_pieces(threes, 1, [&](std::size_t s, std::size_t) { deposit_slab(3 * s + first); });
    for (std::size_t slab = 3 * threes; slab < slabs; ++slab)
        deposit_slab(slab);
}

double Mesh::deposited() const {
    double sum = 0.0;
    for (std::size_t ix = 0; ix < n_; ++ix)
        for (std::size_t iy = 0; iy < n_; ++iy) {
            const float* line = field_.get() + row(ix, iy);
            for (std::size_t iz = 0; iz < n_; ++iz)
                sum += line[iz];
        }
    return sum;
}

void Mesh::solve(double particle_mass) {
    // Per axis: exp(-k^2 r_s^2) of the force split, over the cloud's window sinc^3(k h / 2) twice,
    // once for the deposit and once for the interpolation (Hockney and Eastwood, Computer
    // Simulation Using Particles, ch. 8).
    const double pi = std::numbers::pi;
    std::vector<double> k2(n_), axis(n_);
    for (std::size_t i = 0; i < n_; ++i) {
        const double f = static_cast<double>(filter_.frequency(i));
        const double k = 2.0 * pi * f;
        const double half = pi * f / static_cast<double>(n_);
        const double sinc = i == 0 ? 1.0 : std::sin(half) / half;
        k2[i] = k * k;
        axis[i] = std::exp(-k2[i] * split_ * split_) / std::pow(sinc, 2 * kPoints);
    }
    // Cells of volume n^-3 and two unnormalised transforms: the factors n^3 cancel.
    const double scale = -4.0 * pi * particle_mass;
    constexpr std::size_t kBatch = FourierFilter::kBatch;
    filter_.apply(field_.get(),
                  [&](std::size_t iy, std::size_t iz, std::size_t count, std::complex<float>* pencils) {
                      for (std::size_t ix = 0; ix < n_; ++ix) {
                          const double xy = scale * axis[ix] * axis[iy];
                          const double kxy = k2[ix] + k2[iy];
                          for (std::size_t b = 0; b < count; ++b) {
                              const double kk = kxy + k2[iz + b];
                              // The mean density is left out: the box is filled with a uniform
                              // negative background.
                              const double green = kk > 0.0 ? xy * axis[iz + b] / kk : 0.0;
                              pencils[ix * kBatch + b] *= static_cast<float>(green);
                          }
                      }
                  });
    gradient();
}

void Mesh::gradient() {
    // Six-point central differences, exact to sixth order in the mesh spacing.
    const auto n = static_cast<float>(n_);
    const float c1 = n * (45.0f / 60.0f), c2 = n * (9.0f / 60.0f), c3 = n * (1.0f / 60.0f);
    const auto at = [this](std::size_t i, std::size_t shift) { return (i + shift) % n_; };
    team_.for_pieces(n_, 1, [&](std::size_t ix, std::size_t) {
        for (std::size_t iy = 0; iy < n_; ++iy) {
            const float* f = field_.get();
            const float* own = f + row(ix, iy);
            const float* x[6] = {f + row(at(ix, 1), iy), f + row(at(ix, n_ - 1), iy),
                                 f + row(at(ix, 2), iy), f + row(at(ix, n_ - 2), iy),
                                 f + row(at(ix, 3), iy), f + row(at(ix, n_ - 3), iy)};
            const float* y[6] = {f + row(ix, at(iy, 1)), f + row(ix, at(iy, n_ - 1)),
                                 f + row(ix, at(iy, 2)), f + row(ix, at(iy, n_ - 2)),
                                 f + row(ix, at(iy, 3)), f + row(ix, at(iy, n_ - 3))};
            float* out = samples_.get() + 4 * (ix * n_ + iy) * n_;
            const auto point = [&](std::size_t z, std::size_t p1, std::size_t m1, std::size_t p2,
                                   std::size_t m2, std::size_t p3, std::size_t m3) {
                out[4 * z] = own[z];
                out[4 * z + 1] =
                    c1 * (x[0][z] - x[1][z]) - c2 * (x[2][z] - x[3][z]) + c3 * (x[4][z] - x[5][z]);
                out[4 * z + 2] =
                    c1 * (y[0][z] - y[1][z]) - c2 * (y[2][z] - y[3][z]) + c3 * (y[4][z] - y[5][z]);
                out[4 * z + 3] =
                    c1 * (own[p1] - own[m1]) - c2 * (own[p2] - own[m2]) + c3 * (own[p3] - own[m3]);
            };
            const auto periodic_point = [&](std::size_t z) {
                point(z, at(z, 1), at(z, n_ - 1), at(z, 2), at(z, n_ - 2), at(z, 3), at(z, n_ - 3));
            };
            for (std::size_t z = 0; z < 3; ++z)
                periodic_point(z);
            for (std::size_t z = 3; z < n_ - 3; ++z)
                point(z, z + 1, z - 1, z + 2, z - 2, z + 3, z - 3);
            for (std::size_t z = n_ - 3; z < n_; ++z)
                periodic_point(z);
        }
    });
}

MeshSample Mesh::sample(float x, float y, float z) const {
    const Stencil c = stencil(x, y, z);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int a = 0; a < kPoints; ++a)
        for (int b = 0; b < kPoints; ++b) {
            const float w = c.wx[a] * c.wy[b];
            const float* line = samples_.get() + 4 * (c.ix[a] * n_ + c.iy[b]) * n_;
            for (int d = 0; d < kPoints; ++d) {
                const float* value = line + 4 * c.iz[d];
                const float weight = w * c.wz[d];
                for (int q = 0; q < 4; ++q)
                    sum[q] += weight * value[q];
            }
        }
    return {sum[0], sum[1], sum[2], sum[3]};
}

}  // namespace minihacc
