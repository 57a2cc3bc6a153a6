// SPDX-License-Identifier: Apache-2.0
// The leapfrog integration and its diagnostics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "minihacc/gravity.hpp"
#include "minihacc/particles.hpp"
#include "minihacc/step_sink.hpp"
#include "minihacc/team.hpp"

namespace minihacc {

struct SimulationOptions {
    std::size_t particles = 0;
    std::uint64_t seed = 0;
    std::size_t mesh = 0;    // 0: default_mesh(particles)
    double time_step = 0.0;  // in units of 1 / sqrt(4 pi G mean density); 0: kTimeStep
    bool deterministic = false;
};

struct Energy {
    double kinetic = 0.0, potential = 0.0;
    double total() const { return kinetic + potential; }
};

class Simulation {
   public:
    static constexpr double kTimeStep = 0.06;
    static constexpr double kSofteningSpacings = 0.07;  // softening over the mean particle spacing

    // About two mesh points per particle spacing, of a size that the FFT does well.
    static std::size_t default_mesh(std::size_t particles);

    // Throws std::runtime_error when the machine has less memory than memory_needed.
    Simulation(const SimulationOptions& options, ThreadTeam& team);

    static double memory_needed(const SimulationOptions& options);  // bytes, about

    std::size_t mesh_size() const { return gravity_.mesh().size(); }
    double time_step() const { return time_step_; }

    // One kick-drift-kick step; negative_time runs it backwards.
    void step(bool negative_time = false);

    Energy energy() const;
    std::array<double, 3> momentum() const;

    // x, y, z, vx, vy, vz, phi, as of the last step.
    std::array<Field, 7> fields() const;
    const Particles& particles() const { return particles_; }

   private:
    template <class Value, class Body>
    Value sum_over_particles(Body&& body) const;
    void compute_forces();

    bool deterministic_;
    double time_step_;
    double mass_;
    ThreadTeam& team_;
    Particles particles_;
    Gravity gravity_;
    std::vector<float> ax_, ay_, az_;
};

}  // namespace minihacc
