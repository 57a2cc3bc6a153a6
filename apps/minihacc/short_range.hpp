// SPDX-License-Identifier: Apache-2.0
// The short-range half of the force: what the mesh leaves out, summed over pairs closer than a
// cutoff.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "minihacc/mesh.hpp"
#include "minihacc/team.hpp"

namespace minihacc {

// Per unit mass, at squared distance s < cutoff^2 (Plummer softening e):
//   acceleration = displacement * ((s + e^2)^-3/2 - force(t))
//   potential = -((s + e^2)^-1/2 - potential(t))
// where t = 2 s / cutoff^2 - 1. The polynomials stand for the mesh's erf(r / 2 r_s) / r and its
// gradient, as in HACC (Habib et al., New Astronomy 42, 2016): even in r and smooth, so few terms
// do, and no erfc is needed per pair.
struct PairLaw {
    static constexpr int kDegree = 6;  // within 0.15% of Newton's force everywhere

    PairLaw(double split, double softening, double cutoff);

    float cutoff2, softening2, to_t;       // to_t = 2 / cutoff^2
    std::array<float, kDegree + 1> force;  // coefficients, lowest power first
    // Its integral, shifted so that the pair potential ends at 0.
    std::array<float, kDegree + 2> potential;
};

// Particles sorted into cells of side >= cutoff / 2, so that all partners lie within two cells.
class CellList {
   public:
    static constexpr int kReach = 2;
    static constexpr std::size_t kPadding = 8;  // floats that may be read after the last position

    CellList(double cutoff, ThreadTeam& team);

    // Sorts by cell. Within a cell the order is that of the threads' arrival, or by particle number
    // if ordered.
    void build(std::span<const float> x, std::span<const float> y, std::span<const float> z, bool ordered);

    std::size_t cells_per_side() const { return side_; }
    SortedPositions positions() const {
        const std::size_t n = order_.size();
        return {{x_.data(), n}, {y_.data(), n}, {z_.data(), n}};
    }
    // Sorted place -> particle number.
    std::span<const std::uint32_t> order() const { return order_; }
    std::span<const std::uint32_t> cell_begin() const { return begin_; }
    std::span<const std::uint32_t> slab_begin() const {
        return slab_begin_;
    }  // by x, for Mesh::deposit_ordered

   private:
    std::size_t side_;
    ThreadTeam& team_;
    std::vector<std::uint32_t> begin_, cursor_, cell_, order_, slab_begin_;
    std::vector<float> x_, y_, z_;
};

struct PairSum {
    float ax, ay, az, phi;  // per unit mass of the partners
};

// The pair sums of one cell after another. Each thread has one of its own.
class CellSummer {
   public:
    CellSummer(const CellList& cells, const PairLaw& law);

    // Calls use(place, sum) for each particle of the cell, place being its place in the sorted
    // order.
    template <class Use>
    void sum_cell(std::size_t cx, std::size_t cy, std::size_t cz, Use&& use) {
        const std::size_t side = cells_.cells_per_side();
        const std::size_t cell = (cx * side + cy) * side + cz;
        const std::uint32_t begin = cells_.cell_begin()[cell];
        const std::size_t count = cells_.cell_begin()[cell + 1] - begin;
        if (count == 0) return;
        gather(cx, cy, cz);
        if (count < kCrowd) {
            for (std::size_t i = 0; i < count; ++i)
                use(begin + static_cast<std::uint32_t>(i), sum_one(around_, own_ + i));
            return;
        }
        for (unsigned octant = 0; octant < 8; ++octant) {
            if (!select(octant, count)) continue;
            for (const std::uint32_t i : targets_)
                use(begin + i, sum_one(close_, own_ + i));
        }
    }

   private:
    // From this number of particles on, a cell's octants each get a shorter list of candidates.
    // Fewer particles do not repay the pass over all candidates that makes it (an estimate; not
    // tuned).
    static constexpr std::size_t kCrowd = 48;

    // Relative to the cell's centre, which keeps all bits of close distances. Padded with far-away
    // points.
    struct Candidates {
        std::vector<float> x, y, z;
        std::size_t count = 0;
        void reserve(std::size_t needed);
        void pad();
    };

    void gather(std::size_t cx, std::size_t cy, std::size_t cz);
    bool select(unsigned octant, std::size_t count);
    PairSum sum_one(const Candidates& candidates, std::size_t target) const;

    const CellList& cells_;
    const PairLaw& law_;
    Candidates around_;  // all in reach of the cell
    Candidates close_;   // those of them in reach of an octant's own particles
    std::vector<std::uint32_t> targets_;
    std::size_t own_ = 0;  // where the cell's own particles start in around_
};

}  // namespace minihacc
