// SPDX-License-Identifier: Apache-2.0
// The particles' state, and the initial conditions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "minihacc/team.hpp"

namespace minihacc {

// Element i belongs to the same particle for the whole run. Positions are not wrapped back into the
// box [0, 1): a particle that crosses its edge would otherwise seem to differ by a whole box
// between two runs.
struct Particles {
    std::vector<float> x, y, z, vx, vy, vz, phi;

    explicit Particles(std::size_t count)
        : x(count), y(count), z(count), vx(count), vy(count), vz(count), phi(count) {}
    std::size_t size() const { return x.size(); }
};

// The position's image in [0, 1).
inline float wrapped(float position) {
    const float inside =
        position - static_cast<float>(static_cast<long>(position)) + (position < 0.0f ? 1.0f : 0.0f);
    return inside < 1.0f ? inside : 0.0f;
}

// Mixes (seed, stream, index) into 64 bits that look random: a counter-based generator, so that a
// value does not depend on which thread asked for it, or when.
std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

// A cubic lattice, displaced by the gradient of a Gaussian random potential (Zel'dovich's
// approximation) with the growing mode's velocities. The same seed gives the same bits for any
// number of threads.
Particles initial_particles(std::size_t count, std::uint64_t seed, ThreadTeam& team);

}  // namespace minihacc
