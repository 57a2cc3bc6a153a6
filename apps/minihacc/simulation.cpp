// SPDX-License-Identifier: Apache-2.0
#include "minihacc/simulation.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <numbers>
#include <stdexcept>

namespace minihacc {

namespace {

constexpr std::size_t kPiece = 4096;

std::size_t mesh_of(const SimulationOptions& options) {
    return options.mesh != 0 ? options.mesh : Simulation::default_mesh(options.particles);
}

// Linux grants more memory than there is, and kills some process when it is used: so ask before.
const SimulationOptions& fitting(const SimulationOptions& options) {
    const double needed = Simulation::memory_needed(options);
    const double present =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    if (needed > present) {
        char message[160];
        std::snprintf(message, sizeof(message),
                      "needs about %.1f GB of memory, and the machine has %.1f GB: "
                      "take fewer particles or a smaller mesh",
                      needed / 1e9, present / 1e9);
        throw std::runtime_error(message);
    }
    return options;
}

}  // namespace

std::size_t Simulation::default_mesh(std::size_t particles) {
    const double goal = 2.0 * std::cbrt(static_cast<double>(particles));
    auto n = std::max(Gravity::kSmallestMesh, static_cast<std::size_t>(std::lround(goal)));
    const auto is_smooth = [](std::size_t value) {
        for (const std::size_t factor : {2u, 3u, 5u})
            while (value % factor == 0)
                value /= factor;
        return value == 1;
    };
    while (n % 2 != 0 || !is_smooth(n))
        ++n;
    return n;
}

double Simulation::memory_needed(const SimulationOptions& options) {
    // Ten floats of state and five words in the cell list a particle; density and four samples a
    // mesh point.
    const auto mesh = static_cast<double>(mesh_of(options));
    return 60.0 * static_cast<double>(options.particles) + 21.0 * mesh * mesh * mesh;
}

Simulation::Simulation(const SimulationOptions& options, ThreadTeam& team)
    : deterministic_(options.deterministic),
      time_step_((options.time_step > 0.0 ? options.time_step : kTimeStep) /
                 std::sqrt(4.0 * std::numbers::pi)),
      mass_(1.0 / static_cast<double>(options.particles)),
      team_(team),
      particles_(initial_particles(fitting(options).particles, options.seed, team)),
      gravity_(
          {mesh_of(options), mass_, kSofteningSpacings / std::cbrt(static_cast<double>(options.particles)),
           options.deterministic},
          team),
      ax_(options.particles),
      ay_(options.particles),
      az_(options.particles) {
    compute_forces();
}

void Simulation::compute_forces() {
    gravity_.compute(particles_.x, particles_.y, particles_.z, ax_, ay_, az_, particles_.phi);
}

void Simulation::step(bool negative_time) {
    const auto dt = static_cast<float>(negative_time ? -time_step_ : time_step_);
    const float half = 0.5f * dt;
    Particles& p = particles_;
    const auto kick = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
            p.vx[i] += half * ax_[i];
        for (std::size_t i = begin; i < end; ++i)
            p.vy[i] += half * ay_[i];
        for (std::size_t i = begin; i < end; ++i)
            p.vz[i] += half * az_[i];
    };
    team_.for_pieces(p.size(), kPiece, [&](std::size_t begin, std::size_t end) {
        kick(begin, end);
        for (std::size_t i = begin; i < end; ++i)
            p.x[i] += dt * p.vx[i];
        for (std::size_t i = begin; i < end; ++i)
            p.y[i] += dt * p.vy[i];
        for (std::size_t i = begin; i < end; ++i)
            p.z[i] += dt * p.vz[i];
    });
    compute_forces();
    team_.for_pieces(p.size(), kPiece, kick);
}

// Adds up body(i). The pieces' sums are merged in the order in which they are done, or by number if
// deterministic.
template <class Value, class Body>
Value Simulation::sum_over_particles(Body&& body) const {
    const std::size_t count = particles_.size();
    const auto sum_piece = [&](std::size_t begin, std::size_t end) {
        Value sum{};
        for (std::size_t i = begin; i < end; ++i) {
            const Value one = body(i);
            for (std::size_t q = 0; q < sum.size(); ++q)
                sum[q] += one[q];
        }
        return sum;
    };
    Value total{};
    const auto merge = [&](const Value& sum) {
        for (std::size_t q = 0; q < total.size(); ++q)
            total[q] += sum[q];
    };
    if (deterministic_) {
        std::vector<Value> sums((count + kPiece - 1) / kPiece);
        team_.for_pieces(count, kPiece, [&](std::size_t begin, std::size_t end) {
            sums[begin / kPiece] = sum_piece(begin, end);
        });
        for (const Value& sum : sums)
            merge(sum);
    } else {
        std::mutex mutex;
        team_.for_pieces(count, kPiece, [&](std::size_t begin, std::size_t end) {
            const Value sum = sum_piece(begin, end);
            const std::lock_guard lock(mutex);
            merge(sum);
        });
    }
    return total;
}

Energy Simulation::energy() const {
    const Particles& p = particles_;
    const auto sum = sum_over_particles<std::array<double, 2>>([&](std::size_t i) {
        const double vx = p.vx[i], vy = p.vy[i], vz = p.vz[i];
        return std::array<double, 2>{vx * vx + vy * vy + vz * vz, static_cast<double>(p.phi[i])};
    });
    // Each pair's energy is in both particles' potential, hence half of that too.
    return {0.5 * mass_ * sum[0], 0.5 * mass_ * sum[1]};
}

std::array<double, 3> Simulation::momentum() const {
    const Particles& p = particles_;
    auto sum = sum_over_particles<std::array<double, 3>>([&](std::size_t i) {
        return std::array<double, 3>{p.vx[i], p.vy[i], p.vz[i]};
    });
    for (double& component : sum)
        component *= mass_;
    return sum;
}

std::array<Field, 7> Simulation::fields() const {
    const Particles& p = particles_;
    return {{{"x", p.x}, {"y", p.y}, {"z", p.z}, {"vx", p.vx}, {"vy", p.vy}, {"vz", p.vz}, {"phi", p.phi}}};
}

}  // namespace minihacc
