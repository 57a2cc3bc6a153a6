// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "minihacc/history_sink.hpp"
#include "minihacc/raw_sink.hpp"
#include "minihacc/simulation.hpp"

namespace {

using minihacc::Gravity;
using minihacc::Simulation;

constexpr int kExitTrouble = 2;
constexpr std::uint64_t kMostParticles = 4'000'000'000;  // they are numbered in 32 bits
constexpr std::uint64_t kMostMesh = 4096;
constexpr std::uint64_t kMostThreads = 1024;
constexpr std::uint64_t kMostSteps = 1'000'000'000;

constexpr const char* kUsage =
    "Usage: minihacc [options]\n"
    "\n"
    "Gravity of N particles in a periodic box, by the particle-particle particle-mesh method.\n"
    "\n"
    "  --particles N      number of particles (default 100000)\n"
    "  --steps N          time steps (default 50)\n"
    "  --output FOLDER    write the captured steps there as plain files (default: write nothing)\n"
    "  --history FOLDER   capture them into a twinrun history there\n"
    "  --atol E           error bound of the history: runs agree where |a - b| <= E (default 1e-4)\n"
    "  --setting N=V      a setting of the capture, as memory=64MiB or mode=digests; may be repeated\n"
    "  --capture LIST     steps to capture, with commas (default 10,20,30,40, as far as --steps goes)\n"
    "  --threads N        default: all cores, and at least 2\n"
    "  --deterministic    fixed order of every sum: the same bits each time, with any number of threads\n"
    "  --seed N           of the initial conditions (default 1)\n"
    "  --mesh N           mesh points per side (default: about twice the cube root of N)\n"
    "  --time-step T      in units of 1 / sqrt(4 pi G density) (default 0.06)\n"
    "  --quiet            print nothing\n"
    "  --help             print this\n";

struct BadArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Arguments {
    minihacc::SimulationOptions simulation{.particles = 100'000, .seed = 1};
    std::uint64_t steps = 50;
    std::optional<std::vector<std::uint64_t>> captures;
    std::string output;
    std::string history;
    double atol = 1e-4;
    std::vector<std::string> settings;
    int threads = 0;
    bool quiet = false;
    bool help = false;
};

std::uint64_t parse_whole(std::string_view option, std::string_view text, std::uint64_t least,
                          std::uint64_t most) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
        throw BadArgument(std::string(option) + ": '" + std::string(text) + "' is not a whole number from " +
                          std::to_string(least) + " to " + std::to_string(most));
    return value;
}

double parse_number(const std::string& text) {
    std::size_t used = 0;
    try {
        const double value = std::stod(text, &used);
        if (used == text.size()) return value;
    } catch (const std::exception&) {
    }
    return std::numeric_limits<double>::quiet_NaN();
}

double parse_bound(std::string_view option, const std::string& text) {
    const double value = parse_number(text);
    if (!(value >= 0.0) || !std::isfinite(value))
        throw BadArgument(std::string(option) + ": '" + text + "' is not a number that is 0 or more");
    return value;
}

double parse_time_step(std::string_view option, const std::string& text) {
    const double value = parse_number(text);
    if (!(value > 0.0) || value > 1.0)
        throw BadArgument(std::string(option) + ": '" + text + "' is not a number above 0 and at most 1");
    return value;
}

std::vector<std::uint64_t> parse_list(std::string_view option, std::string_view text) {
    std::vector<std::uint64_t> values;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t comma = std::min(text.find(',', begin), text.size());
        values.push_back(parse_whole(option, text.substr(begin, comma - begin), 0, kMostSteps));
        begin = comma + 1;
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
}

Arguments parse(int argc, char** argv) {
    Arguments arguments;
    for (int i = 1; i < argc; ++i) {
        std::string option = argv[i];
        std::optional<std::string> attached;
        if (const auto equals = option.find('='); option.starts_with("--") && equals != std::string::npos) {
            attached = option.substr(equals + 1);
            option.resize(equals);
        }
        const auto value = [&]() -> std::string {
            if (attached) return *std::exchange(attached, std::nullopt);
            if (i + 1 >= argc) throw BadArgument(option + " needs a value");
            return argv[++i];
        };
        if (option == "--particles") {
            arguments.simulation.particles = parse_whole(option, value(), 1, kMostParticles);
        } else if (option == "--steps") {
            arguments.steps = parse_whole(option, value(), 0, kMostSteps);
        } else if (option == "--output") {
            arguments.output = value();
            if (arguments.output.empty()) throw BadArgument("--output needs the name of a folder");
        } else if (option == "--history") {
            arguments.history = value();
            if (arguments.history.empty()) throw BadArgument("--history needs the name of a folder");
        } else if (option == "--atol") {
            arguments.atol = parse_bound(option, value());
        } else if (option == "--setting") {
            arguments.settings.push_back(value());
        } else if (option == "--capture") {
            arguments.captures = parse_list(option, value());
        } else if (option == "--threads") {
            arguments.threads = static_cast<int>(parse_whole(option, value(), 1, kMostThreads));
        } else if (option == "--deterministic") {
            arguments.simulation.deterministic = true;
        } else if (option == "--seed") {
            arguments.simulation.seed = parse_whole(option, value(), 0, UINT64_MAX);
        } else if (option == "--mesh") {
            arguments.simulation.mesh = parse_whole(option, value(), Gravity::kSmallestMesh, kMostMesh);
        } else if (option == "--time-step") {
            arguments.simulation.time_step = parse_time_step(option, value());
        } else if (option == "--quiet") {
            arguments.quiet = true;
        } else if (option == "--help" || option == "-h") {
            arguments.help = true;
        } else {
            throw BadArgument("unknown argument '" + option + "'; minihacc --help lists them");
        }
        if (attached) throw BadArgument(option + " takes no value");
    }
    if (arguments.captures) {
        if (arguments.captures->back() > arguments.steps)
            throw BadArgument("--capture: step " + std::to_string(arguments.captures->back()) +
                              " is after the last step, " + std::to_string(arguments.steps));
        if (arguments.output.empty() && arguments.history.empty())
            throw BadArgument("--capture needs --history FOLDER or --output FOLDER to write to");
    } else {
        arguments.captures.emplace();
        for (const std::uint64_t step : {10u, 20u, 30u, 40u})
            if (step <= arguments.steps && !(arguments.output.empty() && arguments.history.empty()))
                arguments.captures->push_back(step);
    }
    if (arguments.threads == 0)
        // Two threads share even a single core, so that the default never hides what threads do to
        // the result.
        arguments.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 1024u));
    return arguments;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const Arguments& arguments) {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t count = arguments.simulation.particles;
    std::vector<std::unique_ptr<minihacc::StepSink>> sinks;
    if (!arguments.output.empty()) sinks.push_back(std::make_unique<minihacc::RawSink>(arguments.output));
    if (!arguments.history.empty())
        sinks.push_back(std::make_unique<minihacc::HistorySink>(arguments.history, arguments.atol,
                                                                arguments.threads, arguments.settings));

    minihacc::ThreadTeam team(arguments.threads);
    Simulation simulation(arguments.simulation, team);
    const auto capture = [&](std::uint64_t step) {
        if (std::binary_search(arguments.captures->begin(), arguments.captures->end(), step)) {
            const auto fields = simulation.fields();
            for (const auto& sink : sinks)
                sink->capture(step, fields);
        }
    };
    const minihacc::Energy first = arguments.quiet ? minihacc::Energy{} : simulation.energy();
    const auto report = [&](std::uint64_t step, double seconds) {
        if (arguments.quiet) return;
        const minihacc::Energy e = simulation.energy();
        const double drift = (e.total() - first.total()) / (e.kinetic + std::abs(e.potential));
        std::printf("%6llu  %13.6e  %13.6e  %13.6e  %+9.2e  %8.3f\n", static_cast<unsigned long long>(step),
                    e.kinetic, e.potential, e.total(), drift, seconds);
        std::fflush(stdout);
    };

    if (!arguments.quiet) {
        std::printf("minihacc: %zu particles, mesh %zu^3, %d threads, seed %llu, %s\n", count,
                    simulation.mesh_size(), arguments.threads,
                    static_cast<unsigned long long>(arguments.simulation.seed),
                    arguments.simulation.deterministic ? "deterministic" : "not deterministic");
        std::printf("%6s  %13s  %13s  %13s  %9s  %8s\n", "step", "kinetic", "potential", "total", "drift",
                    "seconds");
    }
    report(0, seconds_since(start));
    capture(0);
    for (std::uint64_t step = 1; step <= arguments.steps; ++step) {
        const auto begin = std::chrono::steady_clock::now();
        simulation.step();
        report(step, seconds_since(begin));
        capture(step);
    }
    for (const auto& sink : sinks)
        sink->finish();
    if (!arguments.quiet) {
        const auto p = simulation.momentum();
        std::printf("momentum %.2e %.2e %.2e; %zu steps captured; %.1f s\n", p[0], p[1], p[2],
                    arguments.captures->size(), seconds_since(start));
    }
}

int trouble(const char* what) {
    std::fprintf(stderr, "minihacc: %s\n", what);
    return kExitTrouble;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Arguments arguments = parse(argc, argv);
        if (arguments.help) {
            std::fputs(kUsage, stdout);
            return 0;
        }
        run(arguments);
        if (std::fflush(stdout) != 0) return trouble("cannot write to standard output");
        return 0;
    } catch (const std::bad_alloc&) {
        return trouble("not enough memory; fewer --particles, or a smaller --mesh, need less");
    } catch (const std::length_error&) {
        return trouble("not enough memory; fewer --particles, or a smaller --mesh, need less");
    } catch (const std::system_error& error) {
        return trouble((std::string("cannot start the threads: ") + error.what()).c_str());
    } catch (const std::exception& error) {
        return trouble(error.what());
    }
}
