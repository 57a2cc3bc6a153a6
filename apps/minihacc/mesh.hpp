// SPDX-License-Identifier: Apache-2.0
// The long-range half of the force: deposit with triangular clouds, Poisson's equation by FFT,
// gradient, interpolation. Box side, total mass of the particles and the gravitational constant are
// all 1 here and everywhere in minihacc.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "minihacc/fft.hpp"
#include "minihacc/team.hpp"

namespace minihacc {

// Positions in [0, 1), in the order of the cell list.
struct SortedPositions {
    std::span<const float> x, y, z;
};

struct MeshSample {
    float phi, gx, gy, gz;  // potential and its gradient
};

class Mesh {
   public:
    // split: length r_s of the force split; the mesh carries the potential erf(r / 2 r_s) / r of
    // each particle.
    Mesh(std::size_t n, double split, ThreadTeam& team);

    std::size_t size() const { return filter_.size(); }

    void clear();

    // Adds each particle's unit weight to its 27 nearest mesh points. Many threads add to one point
    // at once, so that the order of the floating-point additions, and with it the rounding, differs
    // from run to run.
    void deposit_atomic(const SortedPositions& particles);

    // The same sum in one fixed order for any number of threads. slab_begin[s] is the first
    // particle with floor(x * slabs) == s (slabs + 1 entries); a slab must be at least two mesh
    // cells wide.
    void deposit_ordered(const SortedPositions& particles, std::span<const std::uint32_t> slab_begin);

    double deposited() const;  // the sum over all mesh points

    // Density to potential and its gradient, for particles of this mass.
    void solve(double particle_mass);

    MeshSample sample(float x, float y, float z) const;

   private:
    // Triangular-shaped clouds. With cloud-in-cell's 2 points, a split 1.4 times as long (2.7 times
    // the pairs) still left errors of 2% in single pairs' forces, where these leave less than 1%.
    static constexpr int kPoints = 3;
    struct Stencil;
    Stencil stencil(float x, float y, float z) const;
    std::size_t row(std::size_t ix, std::size_t iy) const { return (ix * n_ + iy) * filter_.row_stride(); }
    void gradient();

    std::size_t n_;
    double split_;
    ThreadTeam& team_;
    FourierFilter filter_;
    AlignedFloats field_;  // density, then potential, in rows of filter_.row_stride()
    // MeshSample for each point, dense: one load brings all that a particle needs
    AlignedFloats samples_;
};

}  // namespace minihacc
