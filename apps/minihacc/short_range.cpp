// SPDX-License-Identifier: Apache-2.0
#include "minihacc/short_range.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "minihacc/particles.hpp"

namespace minihacc {

namespace {

// Candidates are padded to a multiple, so that loops have no remainder.
constexpr std::size_t kLanes = 16;
static_assert(kLanes >= CellList::kPadding, "reserve() leaves room for kLanes");
constexpr float kFarAway = 1.0e6f;  // where the padding lies

// (erf(u) - 2 u exp(-u^2) / sqrt(pi)) / r^3 with u = r / 2 r_s: the mesh's acceleration over the
// distance.
double mesh_force(double r, double split) {
    const double u = r / (2.0 * split);
    const double root_pi = std::sqrt(std::numbers::pi);
    if (u < 1e-2) {  // series: the difference above cancels
        const double u2 = u * u;
        return (4.0 / 3.0 - 4.0 / 5.0 * u2 + 2.0 / 7.0 * u2 * u2) / (root_pi * 8.0 * split * split * split);
    }
    return (std::erf(u) - 2.0 * u * std::exp(-u * u) / root_pi) / (r * r * r);
}

// Coefficients of powers of t, from those of Chebyshev's polynomials.
std::vector<double> powers(const std::vector<double>& chebyshev) {
    const std::size_t n = chebyshev.size();
    std::vector<double> sum(n, 0.0), before(n, 0.0), current(n, 0.0);
    before[0] = 1.0;
    current[1] = 1.0;
    for (std::size_t i = 0; i < n; ++i)
        sum[i] += chebyshev[0] * before[i] + chebyshev[1] * current[i];
    for (std::size_t k = 2; k < n; ++k) {
        std::vector<double> next(n, 0.0);
        for (std::size_t i = 0; i < n; ++i)
            next[i] = (i > 0 ? 2.0 * current[i - 1] : 0.0) - before[i];
        before = current;
        current = next;
        for (std::size_t i = 0; i < n; ++i)
            sum[i] += chebyshev[k] * current[i];
    }
    return sum;
}

}  // namespace

PairLaw::PairLaw(double split, double softening, double cutoff)
    : cutoff2(static_cast<float>(cutoff * cutoff)),
      softening2(static_cast<float>(softening * softening)),
      to_t(static_cast<float>(2.0 / (cutoff * cutoff))),
      force{},
      potential{} {
    constexpr int kNodes = 4 * (kDegree + 1);
    const double pi = std::numbers::pi;
    std::vector<double> chebyshev(kDegree + 1, 0.0);
    for (int node = 0; node < kNodes; ++node) {
        const double angle = pi * (node + 0.5) / kNodes;
        const double value = mesh_force(cutoff * std::sqrt((std::cos(angle) + 1.0) / 2.0), split);
        for (int k = 0; k <= kDegree; ++k)
            chebyshev[static_cast<std::size_t>(k)] +=
                (k == 0 ? 1.0 : 2.0) / kNodes * value * std::cos(k * angle);
    }
    const std::vector<double> f = powers(chebyshev);

    // d(potential)/ds = -force / 2 and ds = cutoff^2 / 2 dt.
    std::array<double, kDegree + 2> p{};
    double at_zero = 0.0, at_cutoff = 0.0;  // t = -1, t = 1
    for (std::size_t k = 0; k < f.size(); ++k) {
        force[k] = static_cast<float>(f[k]);
        p[k + 1] = -f[k] * cutoff * cutoff / 4.0 / static_cast<double>(k + 1);
        at_zero += (k % 2 == 0 ? -1.0 : 1.0) * p[k + 1];
        at_cutoff += p[k + 1];
    }
    const double mesh_at_zero = 1.0 / (std::sqrt(pi) * split);
    const double mesh_at_cutoff = at_cutoff - at_zero + mesh_at_zero;
    const double softened_at_cutoff = 1.0 / std::sqrt(cutoff * cutoff + softening * softening);
    p[0] = mesh_at_zero - at_zero + (softened_at_cutoff - mesh_at_cutoff);
    for (std::size_t k = 0; k < p.size(); ++k)
        potential[k] = static_cast<float>(p[k]);
}

CellList::CellList(double cutoff, ThreadTeam& team)
    : side_(static_cast<std::size_t>(kReach / cutoff)),
      team_(team),
      begin_(side_ * side_ * side_ + 1),
      cursor_(side_ * side_ * side_),
      slab_begin_(side_ + 1) {}

void CellList::build(std::span<const float> x, std::span<const float> y, std::span<const float> z,
                     bool ordered) {
    const std::size_t count = x.size();
    const std::size_t cells = cursor_.size();
    cell_.resize(count);
    order_.resize(count);
    for (auto* axis : {&x_, &y_, &z_})
        axis->resize(count + kPadding);
    const auto index = [this](float position) {
        return std::min(static_cast<std::size_t>(wrapped(position) * static_cast<float>(side_)), side_ - 1);
    };
    const std::size_t piece =
        std::clamp<std::size_t>(count / (static_cast<std::size_t>(team_.size()) * 64), 16, 4096);

    std::fill(cursor_.begin(), cursor_.end(), 0u);
    team_.for_pieces(count, piece, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const auto cell =
                static_cast<std::uint32_t>((index(x[i]) * side_ + index(y[i])) * side_ + index(z[i]));
            cell_[i] = cell;
            std::atomic_ref(cursor_[cell]).fetch_add(1, std::memory_order_relaxed);
        }
    });
    std::uint32_t sum = 0;
    for (std::size_t c = 0; c < cells; ++c) {
        begin_[c] = sum;
        sum += cursor_[c];
        cursor_[c] = begin_[c];
    }
    begin_[cells] = sum;
    for (std::size_t slab = 0; slab <= side_; ++slab)
        slab_begin_[slab] = begin_[slab * side_ * side_];

    team_.for_pieces(count, piece, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
            const auto place = std::atomic_ref(cursor_[cell_[i]]).fetch_add(1, std::memory_order_relaxed);
            order_[place] = static_cast<std::uint32_t>(i);
        }
    });
    team_.for_pieces(cells, 256, [&](std::size_t first, std::size_t last) {
        if (ordered)
            for (std::size_t c = first; c < last; ++c)
                std::sort(order_.begin() + begin_[c], order_.begin() + begin_[c + 1]);
        for (std::size_t place = begin_[first]; place < begin_[last]; ++place) {
            const std::uint32_t i = order_[place];
            x_[place] = wrapped(x[i]);
            y_[place] = wrapped(y[i]);
            z_[place] = wrapped(z[i]);
        }
    });
}

CellSummer::CellSummer(const CellList& cells, const PairLaw& law) : cells_(cells), law_(law) {}

void CellSummer::Candidates::reserve(std::size_t needed) {
    if (x.size() >= needed + kLanes) return;
    for (auto* axis : {&x, &y, &z})
        axis->resize(2 * (needed + kLanes));
}

void CellSummer::Candidates::pad() {
    for (; count % kLanes != 0; ++count)
        x[count] = y[count] = z[count] = kFarAway;
}

namespace {

constexpr std::size_t kBlock = CellList::kPadding;

inline void move_block(float* __restrict to, const float* __restrict from, float origin) {
    for (std::size_t i = 0; i < kBlock; ++i)
        to[i] = from[i] - origin;
}

}  // namespace

void CellSummer::gather(std::size_t cx, std::size_t cy, std::size_t cz) {
    constexpr long kReach = CellList::kReach;
    const auto side = static_cast<long>(cells_.cells_per_side());
    const auto cell_begin = cells_.cell_begin();
    const auto sorted = cells_.positions();
    const float width = 1.0f / static_cast<float>(side);
    const float centre_x = (static_cast<float>(cx) + 0.5f) * width;
    const float centre_y = (static_cast<float>(cy) + 0.5f) * width;
    const float centre_z = (static_cast<float>(cz) + 0.5f) * width;
    Candidates& all = around_;
    all.count = 0;

    // The cells [first, last) of a row lie next to each other in the sorted order.
    const auto append = [&](long row, long first, long last, float x0, float y0, float z0) {
        const std::size_t begin = cell_begin[static_cast<std::size_t>(row * side + first)];
        const std::size_t n = cell_begin[static_cast<std::size_t>(row * side + last)] - begin;
        all.reserve(all.count + n);
        float* x = all.x.data() + all.count;
        float* y = all.y.data() + all.count;
        float* z = all.z.data() + all.count;
        // A row holds a dozen particles or so: whole blocks, whose excess the next row overwrites,
        // spare the loops' remainders.
        for (std::size_t block = 0; block < n; block += kBlock) {
            move_block(x + block, sorted.x.data() + begin + block, x0);
            move_block(y + block, sorted.y.data() + begin + block, y0);
            move_block(z + block, sorted.z.data() + begin + block, z0);
        }
        all.count += n;
    };
    // The cell's index in the box, and how far its image lies from it.
    const auto periodic = [side](long cell, float& shift) {
        shift = cell < 0 ? 1.0f : (cell >= side ? -1.0f : 0.0f);
        return cell < 0 ? cell + side : (cell >= side ? cell - side : cell);
    };
    const long low = static_cast<long>(cz) - kReach, high = static_cast<long>(cz) + kReach + 1;
    for (long dx = -kReach; dx <= kReach; ++dx)
        for (long dy = -kReach; dy <= kReach; ++dy) {
            float shift_x = 0.0f, shift_y = 0.0f;
            const long ix = periodic(static_cast<long>(cx) + dx, shift_x);
            const long iy = periodic(static_cast<long>(cy) + dy, shift_y);
            const long row = ix * side + iy;
            const float x0 = centre_x + shift_x, y0 = centre_y + shift_y;
            if (low < 0) append(row, low + side, side, x0, y0, centre_z + 1.0f);
            if (dx == 0 && dy == 0) {
                const auto first = static_cast<std::size_t>(row * side);
                own_ = all.count + cell_begin[first + cz] -
                       cell_begin[first + static_cast<std::size_t>(std::max(low, 0L))];
            }
            append(row, std::max(low, 0L), std::min(high, side), x0, y0, centre_z);
            if (high > side) append(row, 0, high - side, x0, y0, centre_z - 1.0f);
        }
    all.pad();
}

// Takes the cell's particles in one octant as targets, and all within the cutoff of the box around
// them as close_.
bool CellSummer::select(unsigned octant, std::size_t count) {
    targets_.clear();
    std::array<float, 3> low{}, high{};
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t c = own_ + i;
        const std::array<float, 3> at{around_.x[c], around_.y[c], around_.z[c]};
        const unsigned its = (at[0] < 0.0f ? 0u : 1u) + (at[1] < 0.0f ? 0u : 2u) + (at[2] < 0.0f ? 0u : 4u);
        if (its != octant) continue;
        for (std::size_t axis = 0; axis < 3; ++axis) {
            low[axis] = targets_.empty() ? at[axis] : std::min(low[axis], at[axis]);
            high[axis] = targets_.empty() ? at[axis] : std::max(high[axis], at[axis]);
        }
        targets_.push_back(static_cast<std::uint32_t>(i));
    }
    if (targets_.empty()) return false;

    close_.count = 0;
    close_.reserve(around_.count);
    const auto outside = [](float value, float least, float most) {
        return std::max(std::max(least - value, value - most), 0.0f);
    };
    const float reach2 = law_.cutoff2 * 1.0001f;  // never loses a pair to rounding
    for (std::size_t c = 0; c < around_.count; ++c) {
        const float x = around_.x[c], y = around_.y[c], z = around_.z[c];
        const float dx = outside(x, low[0], high[0]);
        const float dy = outside(y, low[1], high[1]);
        const float dz = outside(z, low[2], high[2]);
        close_.x[close_.count] = x;
        close_.y[close_.count] = y;
        close_.z[close_.count] = z;
        close_.count += dx * dx + dy * dy + dz * dz < reach2 ? 1 : 0;
    }
    close_.pad();
    return true;
}

namespace {

[[gnu::always_inline]] inline PairSum sum_pairs(const float* __restrict x, const float* __restrict y,
                                                const float* __restrict z, std::size_t count, float tx,
                                                float ty, float tz, const PairLaw& law) {
    float ax = 0.0f, ay = 0.0f, az = 0.0f, phi = 0.0f;
    const PairLaw l = law;
#pragma omp simd reduction(+ : ax, ay, az, phi)
    for (std::size_t i = 0; i < count; ++i) {
        const float dx = x[i] - tx, dy = y[i] - ty, dz = z[i] - tz;
        const float s = dx * dx + dy * dy + dz * dz;
        const float t = s * l.to_t - 1.0f;
        float g = l.force[PairLaw::kDegree];
        for (int k = PairLaw::kDegree - 1; k >= 0; --k)
            g = g * t + l.force[static_cast<std::size_t>(k)];
        float p = l.potential[PairLaw::kDegree + 1];
        for (int k = PairLaw::kDegree; k >= 0; --k)
            p = p * t + l.potential[static_cast<std::size_t>(k)];
        const float inverse = 1.0f / std::sqrt(s + l.softening2);
        // A particle is at distance 0, exactly, from itself.
        const bool near = s < l.cutoff2 && s > 0.0f;
        const float w = near ? inverse * inverse * inverse - g : 0.0f;
        ax += w * dx;
        ay += w * dy;
        az += w * dz;
        phi -= near ? inverse - p : 0.0f;
    }
    return {ax, ay, az, phi};
}

using SumPairs = PairSum (*)(const float*, const float*, const float*, std::size_t, float, float, float,
                             const PairLaw&);

PairSum sum_pairs_portable(const float* x, const float* y, const float* z, std::size_t count, float tx,
                           float ty, float tz, const PairLaw& law) {
    return sum_pairs(x, y, z, count, tx, ty, tz, law);
}

#if defined(__x86_64__)
// Compiled without contraction (-ffp-contract=off), like everything: only the order of the lanes'
// sums differs.
__attribute__((target("avx2"))) PairSum sum_pairs_avx2(const float* x, const float* y, const float* z,
                                                       std::size_t count, float tx, float ty, float tz,
                                                       const PairLaw& law) {
    return sum_pairs(x, y, z, count, tx, ty, tz, law);
}

__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) PairSum sum_pairs_avx512(
    const float* x, const float* y, const float* z, std::size_t count, float tx, float ty, float tz,
    const PairLaw& law) {
    return sum_pairs(x, y, z, count, tx, ty, tz, law);
}
#endif

SumPairs choose_sum_pairs() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return sum_pairs_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_pairs_avx2;
#endif
    return sum_pairs_portable;
}

}  // namespace

PairSum CellSummer::sum_one(const Candidates& candidates, std::size_t target) const {
    static const SumPairs sum = choose_sum_pairs();
    return sum(candidates.x.data(), candidates.y.data(), candidates.z.data(), candidates.count,
               around_.x[target], around_.y[target], around_.z[target], law_);
}

}  // namespace minihacc
