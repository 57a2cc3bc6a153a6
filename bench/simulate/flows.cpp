// Prints what jobs move over the links of a modelled machine: text that play.cpp simulates.
//
//   simulate_flows TOPOLOGY [taper=N] [gateway_factor=N] [servers=N,BYTES_A_SECOND[,STRIPE]]
//                  [noise=INTERVAL_MS,BYTES,FLOWS,SEED] [bridges=halves|nearest] job:NAME=VALUE,... [job:...]
//
// README.md describes the settings and the text. It needs no SimGrid.
#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jobs.hpp"
#include "network.hpp"

namespace twinrun::simulation {

namespace {

struct Servers {
    std::uint32_t count = 0;  // 0: storage behind the gateways is not modelled
    double capacity = 0;
    std::uint64_t stripe = 8U << 20;
};

struct Noise {
    double interval = 0;      // seconds between two bursts on a server; 0: no bursts
    double bytes = 0;         // of a burst; both are means of exponential distributions
    std::uint32_t flows = 1;  // that a burst consists of
    std::uint64_t seed = 1;
};

struct Machine {
    std::string description;
    NetworkSettings network;
    Servers servers;
    Noise noise;
    std::vector<std::string> jobs;
};

std::uint64_t mixed(std::uint64_t x) {  // SplitMix64
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// Numbers the routes and prints each, with its links, at its first use.
class Printer {
   public:
    Printer(Network& network, const Links& links, const Servers& servers)
        : network_(network), links_(links), servers_(servers) {}

    std::uint32_t gather(std::uint32_t from, std::uint32_t to) {
        return of({from == to ? Kind::memory : Kind::gather, from, to, 0},
                  [&] { return network_.between(from, to); });
    }
    std::uint32_t storage(bool write, std::uint32_t node, std::uint32_t gateway, std::uint32_t server,
                          Links& links) {
        return of({write ? Kind::write : Kind::read, node, gateway, server}, [&] {
            Route route = write ? network_.to_gateway(node, gateway) : network_.from_gateway(gateway, node);
            if (servers_.count != 0)
                route.push_back(links.of("server:" + std::to_string(server), servers_.capacity));
            return route;
        });
    }
    std::uint32_t server(std::uint32_t server, Links& links) {
        return of({Kind::noise, server, 0, 0},
                  [&] { return Route{links.of("server:" + std::to_string(server), servers_.capacity)}; });
    }
    [[nodiscard]] const Route& links_of(std::uint32_t route) const { return routes_[route]; }

   private:
    enum class Kind : std::uint8_t { memory, gather, write, read, noise };
    using Key = std::tuple<Kind, std::uint32_t, std::uint32_t, std::uint32_t>;

    // No two routes have the same end points: a player may find a route by them.
    static std::pair<std::string, std::string> ends_of(const Key& key) {
        const auto [kind, a, b, c] = key;
        const std::string node = "n" + std::to_string(a);
        const std::string behind = "s" + std::to_string(b) + "/" + std::to_string(c);
        switch (kind) {
            case Kind::memory: return {node, "m" + std::to_string(a)};
            case Kind::gather: return {node, "n" + std::to_string(b)};
            case Kind::write: return {node, behind};
            case Kind::read: return {behind, node};
            case Kind::noise: break;
        }
        return {"x" + std::to_string(a), "y" + std::to_string(a)};
    }
    template <class Make>
    std::uint32_t of(const Key& key, Make&& make) {
        const auto [at, added] = numbers_.try_emplace(key, static_cast<std::uint32_t>(routes_.size()));
        if (!added) return at->second;
        routes_.push_back(make());
        for (; printed_ < links_.all().size(); ++printed_) {
            const Links::Link& link = links_.all()[printed_];
            std::printf("link %zu %.17g %s\n", printed_, link.capacity, link.name.c_str());
        }
        const auto [from, to] = ends_of(key);
        std::printf("route %u %s %s", at->second, from.c_str(), to.c_str());
        for (const std::uint32_t link : routes_.back())
            std::printf(" %u", link);
        std::printf("\n");
        return at->second;
    }
    Network& network_;
    const Links& links_;
    const Servers& servers_;
    std::map<Key, std::uint32_t> numbers_;
    std::vector<Route> routes_;
    std::size_t printed_ = 0;
};

struct Flow {
    std::uint32_t route = 0;
    std::uint64_t bytes = 0;
};

// One job's lines, and the time that each link needs for its bytes.
class JobPrinter {
   public:
    JobPrinter(Printer& printer, Links& links, const Servers& servers)
        : printer_(printer), links_(links), servers_(servers) {}

    void print(std::size_t number, const Job& job, const Moved& moved) {
        std::printf("job %zu %llu %u %.17g %u %s %zu\n", number, static_cast<unsigned long long>(moved.bytes),
                    moved.ranks, job.start, job.buffers, job.method == Method::calls ? "rounds" : "pipelined",
                    moved.partitions.size());
        for (const MovedPartition& part : moved.partitions) {
            const std::uint64_t shift = mixed(job.seed + part.file + (std::uint64_t{number} << 32));
            std::vector<Window> windows;
            for (const MovedWindow& window : part.windows)
                windows.push_back(flows_of(part, window, shift));
            std::printf("part %zu %u %u %u %zu\n", number, part.rank, part.node, part.gateway,
                        windows.size());
            for (const Window& window : windows) {
                std::printf("window %u", window.round);
                print("read", window.read);
                print("gather", window.gather);
                print("write", window.write);
                std::printf("\n");
            }
        }
        bounds(number);
    }

   private:
    struct Window {
        std::uint32_t round = 0;
        std::vector<Flow> read, gather, write;
    };

    Window flows_of(const MovedPartition& part, const MovedWindow& window, std::uint64_t shift) {
        Window made{window.round, {}, {}, {}};
        for (const NodeBytes& one : window.gathered)
            made.gather.push_back({printer_.gather(one.node, part.node), one.bytes});
        const auto stored = [&](bool write) {
            std::vector<Flow> flows;
            for (const auto& [server, bytes] : by_server(window.range, shift))
                flows.push_back({printer_.storage(write, part.node, part.gateway, server, links_), bytes});
            return flows;
        };
        if (window.read_first) made.read = stored(false);
        made.write = stored(true);
        for (const auto* flows : {&made.read, &made.gather, &made.write}) {
            for (const Flow& flow : *flows) {
                for (const std::uint32_t link : printer_.links_of(flow.route))
                    bytes_[link] += static_cast<double>(flow.bytes);
            }
        }
        return made;
    }
    // Stripes of a file lie on servers in turn, from one that the seed chooses.
    [[nodiscard]] std::map<std::uint32_t, std::uint64_t> by_server(Range range, std::uint64_t shift) const {
        std::map<std::uint32_t, std::uint64_t> found;
        if (servers_.count == 0) return {{0, range.bytes()}};
        for (std::uint64_t at = range.begin; at < range.end;) {
            const std::uint64_t end = std::min(range.end, (at / servers_.stripe + 1) * servers_.stripe);
            found[static_cast<std::uint32_t>((at / servers_.stripe + shift) % servers_.count)] += end - at;
            at = end;
        }
        return found;
    }
    static void print(const char* name, const std::vector<Flow>& flows) {
        if (flows.empty()) return;
        std::printf(" %s", name);
        for (const Flow& flow : flows)
            std::printf(" %u:%llu", flow.route, static_cast<unsigned long long>(flow.bytes));
    }
    // Of each kind of link the one that needs longest.
    void bounds(std::size_t number) {
        std::map<std::string, std::pair<double, std::string>> most;
        for (const auto& [link, bytes] : bytes_) {
            const Links::Link& one = links_.all()[link];
            const std::string kind = one.name.substr(0, one.name.find(':'));
            const double seconds = bytes / one.capacity;
            if (seconds > most[kind].first) most[kind] = {seconds, one.name};
        }
        for (const auto& [kind, found] : most)
            std::printf("bound %zu %s %.17g %s\n", number, kind.c_str(), found.first, found.second.c_str());
        bytes_.clear();
    }
    Printer& printer_;
    Links& links_;
    const Servers& servers_;
    std::map<std::uint32_t, double> bytes_;  // by link
};

// "8,2e9"
bool numbers(std::string_view text, std::size_t least, std::size_t most, std::vector<double>& values) {
    while (!text.empty()) {
        const std::size_t comma = std::min(text.find(','), text.size());
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + comma, value);
        if (error != std::errc() || end != text.data() + comma || !(value > 0)) return false;
        values.push_back(value);
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return values.size() >= least && values.size() <= most;
}

bool set(Machine& machine, std::string_view word) {
    if (word.starts_with("job:")) {
        machine.jobs.emplace_back(word.substr(4));
        return true;
    }
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = equals < word.size() ? word.substr(equals + 1) : std::string_view();
    std::vector<double> v;
    if (name == "taper" && numbers(value, 1, 1, v)) {
        machine.network.taper = v[0];
    } else if (name == "gateway_factor" && numbers(value, 1, 1, v)) {
        machine.network.gateway_factor = v[0];
    } else if (name == "servers" && numbers(value, 2, 3, v)) {
        machine.servers.count = static_cast<std::uint32_t>(v[0]);
        machine.servers.capacity = v[1];
        if (v.size() > 2) machine.servers.stripe = static_cast<std::uint64_t>(v[2]);
    } else if (name == "bridges" && (value == "halves" || value == "nearest")) {
        machine.network.halves = value == "halves";
    } else if (name == "noise" && numbers(value, 4, 4, v)) {
        machine.noise = {v[0] / 1000, v[1], static_cast<std::uint32_t>(v[2]),
                         static_cast<std::uint64_t>(v[3])};
    } else {
        return false;
    }
    return true;
}

// Routes have the topology's hops: the library's model and this one are of the same machine.
Result<> check_hops(const Topology& topology, Network& network, const Moved& moved, bool halves) {
    const auto check = [](std::uint32_t from, std::size_t links, std::uint32_t hops, bool more) -> Result<> {
        if (links == hops || (more && links > hops)) return success();
        return Error{ErrorCode::internal, "a route of node " + std::to_string(from) + " has " +
                                              std::to_string(links) + " links, and the topology " +
                                              std::to_string(hops) + " hops"};
    };
    for (const MovedPartition& part : moved.partitions) {
        const std::uint32_t hops = topology.distance_to_gateway(part.node, part.gateway);
        TWR_CHECK(check(part.node, network.to_gateway(part.node, part.gateway).size(), hops, halves));
        TWR_CHECK(check(part.node, network.from_gateway(part.gateway, part.node).size(), hops, halves));
        for (const MovedWindow& window : part.windows) {
            for (const NodeBytes& one : window.gathered) {
                if (one.node == part.node) continue;
                TWR_CHECK(check(one.node, network.between(one.node, part.node).size(),
                                topology.distance(one.node, part.node), false));
            }
        }
    }
    return success();
}

Result<> print_all(const Machine& machine) {
    TWR_TRY(const std::shared_ptr<const Topology> topology, make_topology(machine.description, 0));
    Links links;
    TWR_TRY(const std::unique_ptr<Network> network,
            make_network(machine.description, *topology, machine.network, links));
    Links unused;
    TWR_TRY(const std::unique_ptr<Network> checked,
            make_network(machine.description, *topology, machine.network, unused));
    Printer printer(*network, links, machine.servers);
    JobPrinter jobs(printer, links, machine.servers);
    std::printf("flows 1\nlatency %.9g\n", static_cast<double>(topology->latency()));
    for (std::size_t k = 0; k < machine.jobs.size(); ++k) {
        TWR_TRY(const Job job, job_of(machine.jobs[k], *topology));
        TWR_TRY(const Moved moved, moved_by(job, *topology));
        TWR_CHECK(check_hops(*topology, *checked, moved, machine.network.halves));
        jobs.print(k, job, moved);
    }
    if (machine.noise.interval > 0) {
        for (std::uint32_t server = 0; server < machine.servers.count; ++server) {
            const std::uint32_t route = printer.server(server, links);
            std::printf("noise %u %.17g %.17g %u %llu\n", route, machine.noise.interval, machine.noise.bytes,
                        machine.noise.flows,
                        static_cast<unsigned long long>(mixed(machine.noise.seed * 1'000'003 + server)));
        }
    }
    std::printf("end\n");
    return success();
}

}  // namespace

}  // namespace twinrun::simulation

int main(int argc, char** argv) {
    twinrun::simulation::Machine machine;
    if (argc > 1) machine.description = argv[1];
    for (int k = 2; k < argc; ++k) {
        if (twinrun::simulation::set(machine, argv[k])) continue;
        std::fprintf(stderr, "simulate_flows: '%s': bench/simulate/README.md lists what there is\n", argv[k]);
        return 2;
    }
    if (machine.jobs.empty()) {
        std::fprintf(stderr, "usage: simulate_flows TOPOLOGY [NAME=VALUE...] job:NAME=VALUE,...\n");
        return 2;
    }
    if (const auto done = twinrun::simulation::print_all(machine); !done) {
        std::fprintf(stderr, "simulate_flows: %s\n", done.error().message.c_str());
        return 1;
    }
    return 0;
}
