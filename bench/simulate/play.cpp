// Plays what simulate_flows prints in SimGrid, and prints the simulated seconds of each job as JSON.
// Standard input: the text that README.md describes. Built where there is SimGrid; nothing of
// twinrun is in it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <simgrid/s4u.hpp>

namespace {

namespace sg = simgrid::s4u;

struct Flow {
    std::size_t route = 0;
    std::uint64_t bytes = 0;
};

struct Window {
    std::size_t round = 0;
    std::vector<Flow> read, gather, write;
};

struct Part {
    std::vector<Window> windows;
};

struct Job {
    std::uint64_t bytes = 0;
    double start = 0;
    std::size_t buffers = 2;
    bool rounds = false;  // all parts begin a round together, and write before they gather again
    std::vector<Part> parts;
    double end = 0;
    std::vector<sg::BarrierPtr> barriers;  // by round
};

struct Noise {
    std::size_t route = 0;
    double interval = 0, bytes = 0;
    std::size_t flows = 1;
    std::uint64_t seed = 0;
};

struct Route {
    sg::Host* from = nullptr;
    sg::Host* to = nullptr;
    std::size_t hops = 0;
};

struct Machine {
    double latency = 0;
    std::vector<sg::Link*> links;
    std::map<std::string, sg::Host*> hosts;
    std::vector<Route> routes;
    std::vector<Job> jobs;
    std::vector<Noise> noises;
};

sg::Host* host_of(Machine& machine, sg::NetZone* zone, const std::string& name) {
    auto& host = machine.hosts[name];
    if (host == nullptr) host = zone->create_host(name, 1e9);
    return host;
}

void read_link(Machine& machine, sg::NetZone* zone, std::istringstream& words) {
    std::string number, name;
    double capacity = 0;
    words >> number >> capacity >> name;
    machine.links.push_back(zone->create_link("link " + number, capacity)->set_latency(0)->seal());
}

void read_route(Machine& machine, sg::NetZone* zone, std::istringstream& words) {
    std::string number, from, to;
    words >> number >> from >> to;
    Route route{host_of(machine, zone, from), host_of(machine, zone, to), 0};
    std::vector<sg::LinkInRoute> links;
    for (std::size_t link = 0; words >> link;)
        links.emplace_back(machine.links.at(link));
    route.hops = links.size();
    zone->add_bypass_route(route.from->get_netpoint(), route.to->get_netpoint(), nullptr, nullptr, links);
    machine.routes.push_back(route);
}

Window read_window(std::istringstream& words) {
    Window window;
    words >> window.round;
    std::vector<Flow>* to = nullptr;
    for (std::string word; words >> word;) {
        const std::size_t colon = word.find(':');
        if (colon == std::string::npos) {
            to = word == "read" ? &window.read : word == "gather" ? &window.gather : &window.write;
        } else {
            to->push_back({std::stoull(word.substr(0, colon)), std::stoull(word.substr(colon + 1))});
        }
    }
    return window;
}

// Ends at the line "end"; without it the text is cut.
void read(Machine& machine, sg::NetZone* zone, std::istream& in) {
    for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        std::string kind;
        words >> kind;
        if (kind == "link") {
            read_link(machine, zone, words);
        } else if (kind == "route") {
            read_route(machine, zone, words);
        } else if (kind == "latency") {
            words >> machine.latency;
        } else if (kind == "job") {
            Job job;
            std::size_t number = 0, ranks = 0;
            std::string order;
            words >> number >> job.bytes >> ranks >> job.start >> job.buffers >> order;
            job.rounds = order == "rounds";
            machine.jobs.push_back(std::move(job));
        } else if (kind == "part") {
            machine.jobs.back().parts.emplace_back();
        } else if (kind == "window") {
            machine.jobs.back().parts.back().windows.push_back(read_window(words));
        } else if (kind == "noise") {
            Noise noise;
            words >> noise.route >> noise.interval >> noise.bytes >> noise.flows >> noise.seed;
            machine.noises.push_back(noise);
        } else if (kind == "end") {
            return;
        }
    }
    throw std::runtime_error("the text of flows is cut: simulate_flows failed");
}

std::vector<sg::CommPtr> start(const Machine& machine, const std::vector<Flow>& flows) {
    std::size_t hops = 0;
    for (const Flow& flow : flows)
        hops = std::max(hops, machine.routes[flow.route].hops);
    if (hops != 0 && machine.latency > 0)
        sg::this_actor::sleep_for(machine.latency * static_cast<double>(hops));
    std::vector<sg::CommPtr> comms;
    for (const Flow& flow : flows) {
        const Route& route = machine.routes[flow.route];
        if (flow.bytes != 0) comms.push_back(sg::Comm::sendto_async(route.from, route.to, flow.bytes));
    }
    return comms;
}

void wait(const std::vector<sg::CommPtr>& comms) {
    for (const sg::CommPtr& comm : comms)
        comm->wait();
}

// As the library does it: window k is gathered once the write of window k - buffers has ended.
void play_pipelined(const Machine& machine, const Job& job, const Part& part) {
    std::vector<std::vector<sg::CommPtr>> writes;
    for (std::size_t k = 0; k < part.windows.size(); ++k) {
        if (k >= job.buffers) wait(writes[k - job.buffers]);
        if (k >= job.buffers) writes[k - job.buffers].clear();
        wait(start(machine, part.windows[k].gather));
        writes.push_back(start(machine, part.windows[k].write));
    }
    for (const auto& comms : writes)
        wait(comms);
}

void play_rounds(const Machine& machine, const Job& job, const Part& part) {
    std::size_t at = 0;
    for (std::size_t round = 0; round < job.barriers.size(); ++round) {
        job.barriers[round]->wait();
        if (at == part.windows.size() || part.windows[at].round != round) continue;
        const Window& window = part.windows[at++];
        wait(start(machine, window.read));
        wait(start(machine, window.gather));
        wait(start(machine, window.write));
    }
}

void start_job(const Machine& machine, Job& job, sg::Host* where) {
    std::size_t rounds = 0;
    for (const Part& part : job.parts) {
        for (const Window& window : part.windows)
            rounds = std::max(rounds, window.round + 1);
    }
    for (std::size_t k = 0; k < rounds && job.rounds; ++k)
        job.barriers.push_back(sg::Barrier::create(static_cast<unsigned>(job.parts.size())));
    for (const Part& part : job.parts) {
        sg::Actor::create("part", where, [&machine, &job, &part] {
            if (job.start > 0) sg::this_actor::sleep_for(job.start);
            if (job.rounds) {
                play_rounds(machine, job, part);
            } else {
                play_pipelined(machine, job, part);
            }
            job.end = std::max(job.end, sg::Engine::get_clock());
        });
    }
}

// Bursts of other programs on one server: Poisson arrivals, exponential sizes, by the seed. A burst
// is so many flows, each of which gets the same share of the server's bandwidth as a job's flow.
void start_noise(const Machine& machine, const Noise& noise, sg::Host* where) {
    const auto actor = sg::Actor::create("noise", where, [&machine, noise] {
        std::mt19937_64 random(noise.seed);
        const auto exponential = [&random](double mean) {  // the same with every standard library
            return -mean * std::log((static_cast<double>(random() >> 11) + 0.5) * 0x1p-53);
        };
        for (;;) {
            sg::this_actor::sleep_for(exponential(noise.interval));
            const Route& route = machine.routes[noise.route];
            const double bytes = exponential(noise.bytes) / static_cast<double>(noise.flows);
            for (std::size_t k = 0; k < noise.flows; ++k) {
                sg::Comm::sendto_init(route.from, route.to)
                    ->set_payload_size(static_cast<std::uint64_t>(bytes) + 1)
                    ->detach();
            }
        }
    });
    actor->daemonize();
}

}  // namespace

int main(int, char** argv) {
    // Flows share links fairly (max-min), without factors for TCP.
    std::vector<std::string> words{argv[0],
                                   "--cfg=network/model:CM02",
                                   "--cfg=network/TCP-gamma:0",
                                   "--cfg=network/crosstraffic:0",
                                   "--log=root.thres:warning",
                                   "--cfg=contexts/stack-size:64"};
    std::vector<char*> arguments;
    for (std::string& word : words)
        arguments.push_back(word.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    sg::Engine engine(&count, arguments.data());
    Machine machine;
    sg::NetZone* zone = sg::create_empty_zone("machine");
    try {
        read(machine, zone, std::cin);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "play: %s\n", error.what());
        return 1;
    }
    sg::Host* where = zone->create_host("actors", 1e9);
    zone->seal();
    for (Job& job : machine.jobs)
        start_job(machine, job, where);
    for (const Noise& noise : machine.noises)
        start_noise(machine, noise, where);
    engine.run();
    std::printf("{\"jobs\": [");
    for (std::size_t k = 0; k < machine.jobs.size(); ++k) {
        const Job& job = machine.jobs[k];
        std::printf("%s{\"bytes\": %llu, \"seconds\": %.17g}", k == 0 ? "" : ", ",
                    static_cast<unsigned long long>(job.bytes), job.end - job.start);
    }
    std::printf("]}\n");
}
