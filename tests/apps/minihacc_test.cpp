// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "minihacc/gravity.hpp"
#include "minihacc/particles.hpp"
#include "minihacc/raw_sink.hpp"
#include "minihacc/simulation.hpp"
#include "minihacc/team.hpp"

namespace minihacc {
namespace {

using Vector = std::array<double, 3>;

// Ewald's sum for a unit point mass at the origin of the periodic unit box: acceleration and potential at d.
// Toukmaji and Board, Computer Physics Communications 95 (1996), with the uniform background's term.
struct EwaldField {
    Vector acceleration{};
    double potential = 0.0;
};

EwaldField ewald(const Vector& d) {
    const double pi = std::numbers::pi, alpha = 2.0;
    EwaldField field;
    field.potential = pi / (alpha * alpha);
    for (int i = -4; i <= 4; ++i)
        for (int j = -4; j <= 4; ++j)
            for (int k = -4; k <= 4; ++k) {
                const Vector image{d[0] - i, d[1] - j, d[2] - k};
                const double r = std::hypot(image[0], image[1], image[2]);
                const double share = std::erfc(alpha * r);
                field.potential -= share / r;
                const double force =
                    (share + 2.0 * alpha * r / std::sqrt(pi) * std::exp(-alpha * alpha * r * r)) /
                    (r * r * r);
                for (std::size_t a = 0; a < 3; ++a)
                    field.acceleration[a] -= force * image[a];
            }
    for (int i = -6; i <= 6; ++i)
        for (int j = -6; j <= 6; ++j)
            for (int k = -6; k <= 6; ++k) {
                const int h2 = i * i + j * j + k * k;
                if (h2 == 0) continue;
                const double weight = std::exp(-pi * pi * h2 / (alpha * alpha)) / h2;
                const double phase = 2.0 * pi * (i * d[0] + j * d[1] + k * d[2]);
                field.potential -= weight / pi * std::cos(phase);
                const Vector mode{double(i), double(j), double(k)};
                for (std::size_t a = 0; a < 3; ++a)
                    field.acceleration[a] -= 2.0 * weight * mode[a] * std::sin(phase);
            }
    return field;
}

// The potential of a unit mass's own images and background at its place.
double ewald_self() {
    const double r = 1e-3;
    return ewald({r, 0.0, 0.0}).potential + 1.0 / r;
}

struct Forces {
    std::vector<float> ax, ay, az, phi;
    explicit Forces(std::size_t n) : ax(n), ay(n), az(n), phi(n) {}
};

double uniform(std::uint64_t stream, std::uint64_t index) {
    return static_cast<double>(counter_random(20240817, stream, index) >> 11) * 0x1p-53;
}

std::vector<float> uniform_points(std::uint64_t stream, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(uniform(stream, i));
    return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float p, float q) {
        return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q);
    });
}

bool same_bits(const Particles& a, const Particles& b) {
    return same_bits(a.x, b.x) && same_bits(a.y, b.y) && same_bits(a.z, b.z) && same_bits(a.vx, b.vx) &&
           same_bits(a.vy, b.vy) && same_bits(a.vz, b.vz) && same_bits(a.phi, b.phi);
}

SimulationOptions options(std::size_t particles, bool deterministic = false) {
    SimulationOptions result;
    result.particles = particles;
    result.seed = 7;
    result.deterministic = deterministic;
    return result;
}

TEST(Team, EveryThreadRunsOnceAndPiecesCoverTheRange) {
    ThreadTeam team(3);
    for (int round = 0; round < 100; ++round) {
        std::vector<int> ran(3, 0);
        team.run([&](int rank) { ++ran[static_cast<std::size_t>(rank)]; });
        EXPECT_EQ(ran, (std::vector<int>{1, 1, 1}));
        std::vector<int> covered(101, 0);
        team.for_pieces(covered.size(), 7, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i)
                ++covered[i];
        });
        EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), 101);
    }
}

TEST(Team, ThrowsWhatABodyThrewAndWorksOn) {
    ThreadTeam team(2);
    EXPECT_THROW(team.run([](int rank) {
        if (rank == 1) throw std::runtime_error("one");
    }),
                 std::runtime_error);
    int calls = 0;
    team.run([&](int rank) {
        if (rank == 0) ++calls;
    });
    EXPECT_EQ(calls, 1);
}

TEST(Wrapped, IsTheImageInTheBox) {
    EXPECT_EQ(wrapped(0.25f), 0.25f);
    EXPECT_EQ(wrapped(1.25f), 0.25f);
    EXPECT_EQ(wrapped(-0.25f), 0.75f);
    EXPECT_EQ(wrapped(-2.0f), 0.0f);
    EXPECT_EQ(wrapped(-1e-12f), 0.0f);  // 1 - 1e-12 rounds to 1, which is 0's image
    EXPECT_EQ(wrapped(1.0f), 0.0f);
}

TEST(Mesh, DepositConservesMass) {
    ThreadTeam team(2);
    const std::size_t n = 20, count = 5000;
    const auto x = uniform_points(0, count), y = uniform_points(1, count), z = uniform_points(2, count);
    CellList cells(5.0 / n, team);
    cells.build(x, y, z, true);
    Mesh mesh(n, 1.0 / n, team);
    mesh.clear();
    mesh.deposit_ordered(cells.positions(), cells.slab_begin());
    EXPECT_NEAR(mesh.deposited(), count, 1e-6 * count);
    mesh.clear();
    mesh.deposit_atomic(cells.positions());
    EXPECT_NEAR(mesh.deposited(), count, 1e-6 * count);
}

TEST(CellList, SortsEveryParticleIntoItsCell) {
    ThreadTeam team(2);
    const std::size_t count = 3000;
    auto x = uniform_points(3, count), y = uniform_points(4, count), z = uniform_points(5, count);
    x[0] = std::nextafter(1.0f, 0.0f);
    x[1] = 0.0f;
    x[2] = -0.5f;
    CellList cells(0.3, team);
    const auto side = cells.cells_per_side();
    ASSERT_EQ(side, 6u);
    for (const bool ordered : {false, true}) {
        cells.build(x, y, z, ordered);
        const auto order = cells.order();
        std::vector<std::uint32_t> seen(order.begin(), order.end());
        std::sort(seen.begin(), seen.end());
        for (std::uint32_t i = 0; i < count; ++i)
            ASSERT_EQ(seen[i], i);
        for (std::size_t cell = 0; cell < side * side * side; ++cell)
            for (auto place = cells.cell_begin()[cell]; place < cells.cell_begin()[cell + 1]; ++place) {
                const auto at = cells.positions();
                EXPECT_EQ(at.x[place], wrapped(x[order[place]]));
                const auto scale = static_cast<float>(side);
                EXPECT_EQ(static_cast<std::size_t>(at.x[place] * scale), cell / side / side);
                EXPECT_EQ(static_cast<std::size_t>(at.y[place] * scale), cell / side % side);
                EXPECT_EQ(static_cast<std::size_t>(at.z[place] * scale), cell % side);
                if (ordered && place > cells.cell_begin()[cell]) {
                    EXPECT_LT(order[place - 1], order[place]);
                }
            }
    }
}

// Two bodies at separations from a tenth of a mesh cell to half the box, in directions all over the
// sphere and at all positions relative to the mesh, also across the box's edges.
TEST(Gravity, PairForceIsEwalds) {
    ThreadTeam team(2);
    const std::size_t n = 48;
    Gravity gravity({.mesh = n, .particle_mass = 1.0, .softening = 0.0, .deterministic = true}, team);
    std::vector<float> x(2), y(2), z(2);
    Forces f(2);
    double worst = 0.0, square = 0.0;
    std::size_t pairs = 0;
    for (double r = 0.1 / n; r < 0.5; r *= 1.15)
        for (std::uint64_t trial = 0; trial < 24; ++trial, ++pairs) {
            const double cosine = 2.0 * uniform(10, pairs) - 1.0, sine = std::sqrt(1.0 - cosine * cosine);
            const double angle = 2.0 * std::numbers::pi * uniform(11, pairs);
            x[0] = static_cast<float>(uniform(12, pairs));
            y[0] = static_cast<float>(uniform(13, pairs));
            z[0] = static_cast<float>(uniform(14, pairs));
            x[1] = static_cast<float>(x[0] + r * sine * std::cos(angle));
            y[1] = static_cast<float>(y[0] + r * sine * std::sin(angle));
            z[1] = static_cast<float>(z[0] + r * cosine);
            gravity.compute(x, y, z, f.ax, f.ay, f.az, f.phi);
            const EwaldField exact = ewald({double(x[1]) - x[0], double(y[1]) - y[0], double(z[1]) - z[0]});
            // Relative to Newton's force of the pair alone: the periodic force vanishes at some places.
            const double error = std::hypot(f.ax[1] - exact.acceleration[0], f.ay[1] - exact.acceleration[1],
                                            f.az[1] - exact.acceleration[2]) *
                                 r * r;
            EXPECT_LT(error, 0.01) << "separation " << r * n << " mesh cells";
            worst = std::max(worst, error);
            square += error * error;
            const double potential = exact.potential + ewald_self();
            // The mesh's image of a particle's own cloud, n / sqrt(pi) deep, varies within a mesh cell.
            EXPECT_NEAR(f.phi[1], potential, 0.005 / r + 0.01 * n) << "separation " << r * n << " mesh cells";
        }
    RecordProperty("worst_relative_force_error", std::to_string(worst));
    EXPECT_LT(std::sqrt(square / static_cast<double>(pairs)), 0.005);
}

TEST(Gravity, ManyBodiesFeelTheSumOfEwaldForces) {
    ThreadTeam team(2);
    const std::size_t count = 24;
    const auto x = uniform_points(20, count), y = uniform_points(21, count), z = uniform_points(22, count);
    Gravity gravity({.mesh = 32, .particle_mass = 1.0 / count, .softening = 0.0, .deterministic = false},
                    team);
    Forces f(count);
    gravity.compute(x, y, z, f.ax, f.ay, f.az, f.phi);
    for (std::size_t i = 0; i < count; ++i) {
        Vector sum{};
        double potential = ewald_self(), scale = 0.0;
        for (std::size_t j = 0; j < count; ++j) {
            if (j == i) continue;
            const EwaldField one = ewald({double(x[i]) - x[j], double(y[i]) - y[j], double(z[i]) - z[j]});
            for (std::size_t a = 0; a < 3; ++a)
                sum[a] += one.acceleration[a] / count;
            potential += one.potential;
            scale = std::max(
                scale, std::hypot(one.acceleration[0], one.acceleration[1], one.acceleration[2]) / count);
        }
        EXPECT_NEAR(f.ax[i], sum[0], 0.02 * scale);
        EXPECT_NEAR(f.ay[i], sum[1], 0.02 * scale);
        EXPECT_NEAR(f.az[i], sum[2], 0.02 * scale);
        EXPECT_NEAR(f.phi[i], potential / count, 0.02 * std::abs(potential / count) + 0.01);
    }
}

TEST(Gravity, SofteningIsPlummers) {
    ThreadTeam team(1);
    const double softening = 0.002;
    Gravity gravity({.mesh = 32, .particle_mass = 1.0, .softening = softening, .deterministic = true}, team);
    Forces f(2);
    for (const double r : {0.0005, 0.002, 0.01}) {
        const std::vector<float> x{0.4f, static_cast<float>(0.4 + r)}, y{0.3f, 0.3f}, z{0.9f, 0.9f};
        gravity.compute(x, y, z, f.ax, f.ay, f.az, f.phi);
        const double d = double(x[1]) - x[0];
        const double expected = -d / std::pow(d * d + softening * softening, 1.5);
        EXPECT_NEAR(f.ax[1], expected, 0.01 * std::abs(expected));
        EXPECT_NEAR(f.ax[0], -expected, 0.01 * std::abs(expected));
    }
}

// A crowded cell is summed octant by octant; the force must not notice.
TEST(Gravity, CrowdedCellsAgreeWithDirectSummation) {
    ThreadTeam team(2);
    const std::size_t count = 600, n = 32;
    const double softening = 0.001, mass = 1.0 / count;
    auto x = uniform_points(30, count), y = uniform_points(31, count), z = uniform_points(32, count);
    for (std::size_t i = 0; i < count; ++i) {  // a clump of 0.08 across, over the box's corner
        x[i] = 0.98f + 0.08f * x[i];
        y[i] = 0.08f * y[i] - 0.04f;
        z[i] = 0.95f + 0.08f * z[i];
    }
    Gravity gravity({.mesh = n, .particle_mass = mass, .softening = softening, .deterministic = true}, team);
    Forces f(count);
    gravity.compute(x, y, z, f.ax, f.ay, f.az, f.phi);
    double error = 0.0, total = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
        Vector sum{};
        for (std::size_t j = 0; j < count; ++j) {
            const Vector d{double(x[j]) - x[i], double(y[j]) - y[i], double(z[j]) - z[i]};
            const double s = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + softening * softening;
            // Within a clump this small the images only add a linear field, far below the tolerance.
            for (std::size_t a = 0; a < 3; ++a)
                sum[a] += mass * d[a] / (s * std::sqrt(s));
        }
        error +=
            std::pow(f.ax[i] - sum[0], 2) + std::pow(f.ay[i] - sum[1], 2) + std::pow(f.az[i] - sum[2], 2);
        total += sum[0] * sum[0] + sum[1] * sum[1] + sum[2] * sum[2];
    }
    EXPECT_LT(std::sqrt(error / total), 0.01);
}

TEST(InitialParticles, SameBitsForAnyNumberOfThreads) {
    for (const std::size_t count : {1u, 2u, 9u, 1000u, 5000u}) {
        ThreadTeam one(1), three(3);
        const Particles a = initial_particles(count, 5, one), b = initial_particles(count, 5, three);
        EXPECT_TRUE(same_bits(a, b)) << count;
        if (count >= 1000) {
            EXPECT_FALSE(same_bits(a, initial_particles(count, 6, three))) << count;
        }
        for (std::size_t i = 0; i < count; ++i)
            ASSERT_TRUE(std::isfinite(a.x[i]) && std::isfinite(a.y[i]) && std::isfinite(a.vz[i]));
    }
}

TEST(Simulation, DeterministicIsTheSameBitsForAnyNumberOfThreads) {
    for (const std::size_t count : {1000u, 6000u}) {
        ThreadTeam one(1);
        Simulation reference(options(count, true), one);
        for (int step = 0; step < 12; ++step)
            reference.step();
        const Energy energy = reference.energy();
        for (const int threads : {2, 3, 3}) {
            ThreadTeam team(threads);
            Simulation other(options(count, true), team);
            for (int step = 0; step < 12; ++step)
                other.step();
            EXPECT_TRUE(same_bits(reference.particles(), other.particles())) << threads << " threads";
            EXPECT_EQ(other.energy().kinetic, energy.kinetic);
            EXPECT_EQ(other.energy().potential, energy.potential);
        }
    }
}

TEST(Simulation, ConservesMomentumAndEnergy) {
    ThreadTeam team(2);
    Simulation simulation(options(8000), team);
    const Energy first = simulation.energy();
    EXPECT_LT(first.potential, 0.0);
    for (int step = 0; step < 50; ++step)
        simulation.step();
    const Energy last = simulation.energy();
    const auto momentum = simulation.momentum();
    // A particle's typical momentum times the total number: what could have been lost.
    const double scale = std::sqrt(2.0 * last.kinetic);
    for (const double component : momentum)
        EXPECT_LT(std::abs(component), 1e-5 * scale);
    EXPECT_LT(std::abs(last.total() - first.total()), 0.03 * (last.kinetic - last.potential));
    EXPECT_GT(last.kinetic, 5.0 * first.kinetic);  // structure has formed
}

TEST(Simulation, LeapfrogRunsBackwards) {
    ThreadTeam team(2);
    Simulation simulation(options(4096, true), team);
    const Particles first = simulation.particles();
    for (int step = 0; step < 10; ++step)
        simulation.step();
    double moved = 0.0;
    for (std::size_t i = 0; i < first.size(); ++i)
        moved = std::max(moved, std::abs(double(first.x[i]) - simulation.particles().x[i]));
    for (int step = 0; step < 10; ++step)
        simulation.step(true);
    double left = 0.0;
    for (std::size_t i = 0; i < first.size(); ++i)
        left = std::max(left, std::abs(double(first.x[i]) - simulation.particles().x[i]));
    EXPECT_GT(moved, 0.01);
    EXPECT_LT(left, 1e-3 * moved);
}

TEST(Simulation, AnyNumberOfParticles) {
    ThreadTeam team(2);
    for (const std::size_t count : {1u, 2u, 7u, 8u, 63u}) {
        Simulation simulation(options(count), team);
        for (int step = 0; step < 3; ++step)
            simulation.step();
        for (const Field& field : simulation.fields()) {
            ASSERT_EQ(field.values.size(), count);
            for (const float value : field.values)
                ASSERT_TRUE(std::isfinite(value)) << field.name;
        }
    }
}

TEST(Simulation, DefaultMeshIsSmoothAndLargeEnough) {
    for (const std::size_t count : {1u, 1000u, 100000u, 1000000u, 20000000u}) {
        const std::size_t n = Simulation::default_mesh(count);
        EXPECT_GE(n, Gravity::kSmallestMesh);
        const double wanted = 2.0 * std::cbrt(static_cast<double>(count));
        EXPECT_GE(static_cast<double>(n), 0.99 * wanted);
        if (count >= 1000) {
            EXPECT_LE(static_cast<double>(n), 1.25 * wanted);
        }
    }
    EXPECT_EQ(Simulation::default_mesh(1000000), 200u);
}

TEST(Simulation, RefusesWhatDoesNotFitIntoMemory) {
    ThreadTeam team(1);
    EXPECT_LT(Simulation::memory_needed(options(1000000)), 1e9);
    EXPECT_THROW(Simulation(options(1'000'000'000'000), team), std::runtime_error);
}

class RawSinkTest : public testing::Test {
   protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "minihacc-test-XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path folder_;
};

TEST_F(RawSinkTest, WritesEachFieldsBytes) {
    RawSink sink(folder_ / "run");
    const std::vector<float> x{1.0f, -2.5f, 3.0f}, phi{0.5f};
    const std::array<Field, 2> fields{{{"x", x}, {"phi", phi}}};
    sink.capture(10, fields);
    std::ifstream file(folder_ / "run/step-0000000010/x.f32", std::ios::binary);
    std::vector<float> back(4);
    file.read(reinterpret_cast<char*>(back.data()), 16);
    EXPECT_EQ(file.gcount(), 12);
    back.resize(3);
    EXPECT_EQ(back, x);
    EXPECT_EQ(std::filesystem::file_size(folder_ / "run/step-0000000010/phi.f32"), 4u);
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run"))
        EXPECT_EQ(entry.path().filename(), "step-0000000010");
}

TEST_F(RawSinkTest, RefusesAFolderThatHoldsSteps) {
    { RawSink(folder_).capture(1, {}); }
    EXPECT_THROW(RawSink{folder_}, std::runtime_error);
}

TEST_F(RawSinkTest, SaysWhichFolderCannotBeMade) {
    std::ofstream(folder_ / "file") << "x";
    try {
        RawSink sink(folder_ / "file");
        FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("file"), std::string::npos);
    }
}

}  // namespace
}  // namespace minihacc
