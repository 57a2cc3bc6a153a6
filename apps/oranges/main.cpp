// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
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

#include "oranges/generators.hpp"
#include "oranges/graphlets.hpp"
#include "oranges/history_sink.hpp"
#include "oranges/matrix_market.hpp"
#include "oranges/ordering.hpp"
#include "oranges/raw_sink.hpp"
#include "oranges/reference.hpp"

namespace {

using oranges::Graph;

constexpr int kExitTrouble = 2;
constexpr std::uint64_t kMostThreads = 1024;
constexpr std::size_t kVerifiedRows = 64;

constexpr const char* kUsage =
    "Usage: oranges [options]\n"
    "\n"
    "Graphlet degree vectors of a graph: how often each vertex lies in each of the 73 orbits of the "
    "connected\n"
    "induced subgraphs of 2 to 5 vertices, u32 [vertices][73].\n"
    "\n"
    "  --graph WHAT       delaunay (default), message-race, unstructured-mesh, bubbles, road; or FILE.mtx, "
    "a\n"
    "                     Matrix Market file\n"
    "  --vertices N       of a generated graph, about (default 100000)\n"
    "  --seed N           of a generated graph (default 1)\n"
    "  --order WHAT       renumber the vertices: gorder (default), rcm (reverse Cuthill-McKee), none\n"
    "  --threads N        default: all cores\n"
    "  --checkpoints N    checkpoint I of N is taken when I / N of the vertices are done (default 10)\n"
    "  --out FOLDER       write them there as plain files\n"
    "  --history FOLDER   capture them into a twinrun history there\n"
    "  --setting N=V      a setting of the capture, as memory=64MiB or mode=digests; may be repeated\n"
    "  --verify           check the counts at the end against a slow count and against known sums\n"
    "  --quiet            print nothing\n"
    "  --help             print this\n"
    "\n"
    "Event graphs (message-race, unstructured-mesh):\n"
    "  --ranks N          default 32\n"
    "  --iterations N     instead of --vertices\n"
    "  --messages N       that a rank sends at an iteration of a race (default 11)\n"
    "  --pairs N          of neighbours in an unstructured mesh (default 220, or as many as ranks have)\n";

struct BadArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Arguments {
    std::string graph = "delaunay";
    std::optional<std::uint64_t> vertices;
    std::optional<std::uint64_t> iterations;
    std::optional<std::uint64_t> ranks;
    std::optional<std::uint64_t> messages;
    std::optional<std::uint64_t> pairs;
    std::uint64_t seed = 1;
    std::string order = "gorder";
    std::string out;
    std::string history;
    std::vector<std::string> settings;
    std::uint64_t checkpoints = 10;
    int threads = 0;
    bool verify = false;
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
        const auto folder = [&] {
            std::string name = value();
            if (name.empty()) throw BadArgument(option + " needs the name of a folder");
            return name;
        };
        if (option == "--graph") {
            arguments.graph = value();
        } else if (option == "--vertices") {
            arguments.vertices = parse_whole(option, value(), 1, Graph::kMostVertices);
        } else if (option == "--iterations") {
            arguments.iterations = parse_whole(option, value(), 0, 1u << 24);
        } else if (option == "--ranks") {
            arguments.ranks = parse_whole(option, value(), 2, 4096);
        } else if (option == "--messages") {
            arguments.messages = parse_whole(option, value(), 1, 65536);
        } else if (option == "--pairs") {
            arguments.pairs = parse_whole(option, value(), 1, 1u << 23);
        } else if (option == "--seed") {
            arguments.seed = parse_whole(option, value(), 0, UINT64_MAX);
        } else if (option == "--order") {
            arguments.order = value();
            if (arguments.order != "gorder" && arguments.order != "rcm" && arguments.order != "none")
                throw BadArgument("--order: '" + arguments.order + "' is not gorder, rcm or none");
        } else if (option == "--threads") {
            arguments.threads = static_cast<int>(parse_whole(option, value(), 1, kMostThreads));
        } else if (option == "--checkpoints") {
            arguments.checkpoints = parse_whole(option, value(), 1, 1'000'000);
        } else if (option == "--out") {
            arguments.out = folder();
        } else if (option == "--history") {
            arguments.history = folder();
        } else if (option == "--setting") {
            arguments.settings.push_back(value());
        } else if (option == "--verify") {
            arguments.verify = true;
        } else if (option == "--quiet") {
            arguments.quiet = true;
        } else if (option == "--help" || option == "-h") {
            arguments.help = true;
        } else {
            throw BadArgument("unknown argument '" + option + "'; oranges --help lists them");
        }
        if (attached) throw BadArgument(option + " takes no value");
    }
    const bool race = arguments.graph == "message-race", mesh = arguments.graph == "unstructured-mesh";
    if (!race && !mesh && (arguments.ranks || arguments.iterations))
        throw BadArgument("--ranks and --iterations are of message-race and unstructured-mesh");
    if (arguments.messages && !race) throw BadArgument("--messages is of message-race");
    if (arguments.pairs && !mesh) throw BadArgument("--pairs is of unstructured-mesh");
    if (arguments.vertices && arguments.iterations)
        throw BadArgument("--vertices and --iterations say the same thing; give one");
    if (!arguments.settings.empty() && arguments.history.empty())
        throw BadArgument("--setting is of --history FOLDER");
    if (arguments.threads == 0)
        arguments.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 1024u));
    return arguments;
}

// As many iterations as make about that many vertices, at least one.
template <class Options>
Options with_iterations(Options options, const Arguments& arguments,
                        std::uint64_t (*vertices)(const Options&)) {
    if (arguments.iterations) {
        options.iterations = *arguments.iterations;
        return options;
    }
    options.iterations = 0;
    const std::uint64_t none = vertices(options);
    options.iterations = 1;
    const std::uint64_t each = vertices(options) - none;
    const std::uint64_t target = std::max(arguments.vertices.value_or(100'000), none) - none;
    options.iterations = std::max<std::uint64_t>((target + each / 2) / each, 1);
    return options;
}

Graph make_graph(const Arguments& arguments) {
    const std::uint64_t vertices = arguments.vertices.value_or(100'000);
    if (arguments.graph == "delaunay") return oranges::delaunay_graph(vertices, arguments.seed);
    if (arguments.graph == "bubbles") return oranges::bubble_graph(vertices, arguments.seed);
    if (arguments.graph == "road") return oranges::road_graph(vertices, arguments.seed);
    if (arguments.graph == "message-race") {
        oranges::RaceOptions options;
        options.ranks = arguments.ranks.value_or(options.ranks);
        options.messages = arguments.messages.value_or(options.messages);
        return oranges::race_graph(with_iterations(options, arguments, oranges::race_vertices),
                                   arguments.seed);
    }
    if (arguments.graph == "unstructured-mesh") {
        oranges::ExchangeOptions options;
        options.ranks = arguments.ranks.value_or(options.ranks);
        options.pairs = arguments.pairs.value_or(
            std::clamp(options.pairs, options.ranks - 1, options.ranks * (options.ranks - 1) / 2));
        return oranges::exchange_graph(with_iterations(options, arguments, oranges::exchange_vertices),
                                       arguments.seed);
    }
    if (std::filesystem::path(arguments.graph).extension() == ".mtx") {
        if (arguments.vertices) throw BadArgument("--vertices is of generated graphs");
        return oranges::read_matrix_market(arguments.graph);
    }
    throw BadArgument("--graph: '" + arguments.graph +
                      "' is neither a graph that oranges --help lists nor a file named *.mtx");
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void run(const Arguments& arguments) {
    std::vector<std::unique_ptr<oranges::StepSink>> sinks;
    if (!arguments.out.empty()) sinks.push_back(std::make_unique<oranges::RawSink>(arguments.out));
    const auto start = Clock::now();
    Graph graph = make_graph(arguments);
    const double making = seconds_since(start);
    const auto ordering = Clock::now();
    if (arguments.order == "gorder") graph = oranges::reordered(graph, oranges::gorder(graph));
    if (arguments.order == "rcm") graph = oranges::reordered(graph, oranges::reverse_cuthill_mckee(graph));
    if (!arguments.quiet) {
        std::printf(
            "oranges: %s, %u vertices, %llu edges, order %s, %d threads; made in %.2f s, ordered in %.2f s\n",
            arguments.graph.c_str(), graph.vertices(), static_cast<unsigned long long>(graph.edges()),
            arguments.order.c_str(), arguments.threads, making, seconds_since(ordering));
        std::printf("%10s  %10s  %8s  %8s\n", "checkpoint", "vertices", "count s", "write s");
    }

    if (!arguments.history.empty())
        sinks.push_back(std::make_unique<oranges::HistorySink>(arguments.history, graph.vertices(),
                                                               arguments.threads, arguments.settings));
    oranges::GraphletCounter counter(graph, arguments.threads);
    double counting = 0;
    for (std::uint64_t step = 1; step <= arguments.checkpoints; ++step) {
        const auto begin = Clock::now();
        counter.advance(static_cast<oranges::Vertex>(step * graph.vertices() / arguments.checkpoints));
        const double seconds = seconds_since(begin);
        counting += seconds;
        const auto writing = Clock::now();
        for (const auto& sink : sinks)
            sink->capture(step, counter.counts());
        if (arguments.quiet) continue;
        std::printf("%10llu  %10u  %8.3f  %8.3f\n", static_cast<unsigned long long>(step), counter.done(),
                    seconds, seconds_since(writing));
        std::fflush(stdout);
    }
    for (const auto& sink : sinks)
        sink->finish();
    if (!arguments.quiet)
        std::printf(
            "%llu connected subgraphs of 5 vertices; counted in %.3f s: %.0f vertices/s, %.0f subgraphs/s\n",
            static_cast<unsigned long long>(counter.subgraphs()), counting, graph.vertices() / counting,
            static_cast<double>(counter.subgraphs()) / counting);
    if (arguments.verify) {
        const std::string error = oranges::find_error(graph, counter.counts(), kVerifiedRows, arguments.seed);
        if (!error.empty()) throw std::runtime_error("wrong counts: " + error);
        if (!arguments.quiet)
            std::printf("verified: all degrees, the sums of all orbits, %zu rows\n", kVerifiedRows);
    }
}

int trouble(const char* what) {
    std::fprintf(stderr, "oranges: %s\n", what);
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
        return trouble("not enough memory; a smaller graph, or fewer --threads, need less");
    } catch (const std::length_error&) {
        return trouble("not enough memory; a smaller graph, or fewer --threads, need less");
    } catch (const std::system_error& error) {
        return trouble((std::string("cannot start the threads: ") + error.what()).c_str());
    } catch (const std::exception& error) {
        return trouble(error.what());
    }
}
