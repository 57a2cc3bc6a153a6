// SPDX-License-Identifier: Apache-2.0
#include "minihacc/gravity.hpp"

#include <cmath>
#include <numbers>

namespace minihacc {

Gravity::Gravity(const GravityOptions& options, ThreadTeam& team)
    : options_(options),
      team_(team),
      split_(kSplitCells / static_cast<double>(options.mesh)),
      cutoff_(kCutoffSplits * split_),
      mesh_(options.mesh, split_, team),
      law_(split_, options.softening, cutoff_),
      cells_(cutoff_, team) {}

void Gravity::compute(std::span<const float> x, std::span<const float> y, std::span<const float> z,
                      std::span<float> ax, std::span<float> ay, std::span<float> az, std::span<float> phi) {
    cells_.build(x, y, z, options_.deterministic);
    const SortedPositions sorted = cells_.positions();
    mesh_.clear();
    if (options_.deterministic)
        mesh_.deposit_ordered(sorted, cells_.slab_begin());
    else
        mesh_.deposit_atomic(sorted);
    mesh_.solve(options_.particle_mass);

    // The mesh's potential includes the particle's own smoothed cloud, and has mean zero; the
    // short-range potential has mean -4 pi r_s^2 per unit density. Both are taken out, as in
    // Ewald's sum.
    const double pi = std::numbers::pi;
    const double density = options_.particle_mass * static_cast<double>(x.size());
    const auto own_cloud = static_cast<float>(options_.particle_mass / (std::sqrt(pi) * split_));
    const auto background = static_cast<float>(4.0 * pi * split_ * split_ * density);
    const auto mass = static_cast<float>(options_.particle_mass);

    // Every particle's sum is done by one thread, in the order of the cell list.
    const std::size_t side = cells_.cells_per_side();
    team_.for_pieces(side * side, 4, [&](std::size_t first, std::size_t last) {
        CellSummer summer(cells_, law_);
        for (std::size_t cell = first * side; cell < last * side; ++cell)
            summer.sum_cell(cell / side / side, cell / side % side, cell % side,
                            [&](std::uint32_t place, const PairSum& pairs) {
                                const MeshSample far =
                                    mesh_.sample(sorted.x[place], sorted.y[place], sorted.z[place]);
                                const std::uint32_t i = cells_.order()[place];
                                ax[i] = mass * pairs.ax - far.gx;
                                ay[i] = mass * pairs.ay - far.gy;
                                az[i] = mass * pairs.az - far.gz;
                                phi[i] = mass * pairs.phi + far.phi + own_cloud + background;
                            });
    });
}

}  // namespace minihacc
