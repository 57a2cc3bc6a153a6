// SPDX-License-Identifier: Apache-2.0
// Newtonian gravity in a periodic box: mesh and short-range parts, added up for every particle.
#pragma once

#include <cstddef>
#include <span>

#include "minihacc/mesh.hpp"
#include "minihacc/short_range.hpp"
#include "minihacc/team.hpp"

namespace minihacc {

struct GravityOptions {
    std::size_t mesh = 0;        // mesh points per side, at least kSmallestMesh
    double particle_mass = 0.0;  // every particle's
    double softening = 0.0;      // Plummer's length
    bool deterministic = false;  // fixed order of every sum
};

class Gravity {
   public:
    // Below this the short-range cutoff would not fit into the box with its periodic images kept
    // apart.
    static constexpr std::size_t kSmallestMesh = 16;
    // Split and cutoff, in mesh cells and splits: beyond the cutoff 0.5% of Newton's force is left
    // to neglect.
    static constexpr double kSplitCells = 1.0;
    static constexpr double kCutoffSplits = 5.0;

    Gravity(const GravityOptions& options, ThreadTeam& team);

    // Accelerations, and each particle's potential in the field of all others (with their images
    // and the uniform background). Any real positions: they are wrapped into the box.
    void compute(std::span<const float> x, std::span<const float> y, std::span<const float> z,
                 std::span<float> ax, std::span<float> ay, std::span<float> az, std::span<float> phi);

    const Mesh& mesh() const { return mesh_; }
    double cutoff() const { return cutoff_; }

   private:
    GravityOptions options_;
    ThreadTeam& team_;
    double split_, cutoff_;
    Mesh mesh_;
    PairLaw law_;
    CellList cells_;
};

}  // namespace minihacc
