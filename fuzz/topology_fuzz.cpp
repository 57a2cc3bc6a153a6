// Topologies from any text. The first byte says which kind: what `scontrol show topology` prints, a
// file, a description, lines of addresses, a hostlist. What is accepted answers everything that may
// be asked of it.
#include <algorithm>

#include "aggregate/topology/hosts.hpp"
#include "input.hpp"

using namespace twinrun;

namespace {

void ask(const Topology& t) {
    fuzz::require(t.nodes() >= 1 && t.nodes() <= kMostNodes && t.gateways() >= 1);
    for (const std::uint32_t a : {0U, t.nodes() / 2, t.nodes() - 1}) {
        for (const std::uint32_t b : {0U, t.nodes() / 3, t.nodes() - 1}) {
            fuzz::require(t.distance(a, b) == t.distance(b, a) && t.distance(a, b) <= t.diameter());
            fuzz::require(t.bandwidth(a, b) > 0 && (a == b || t.bandwidth(a, b) >= t.least_bandwidth()));
        }
        const std::uint32_t gateway = t.gateway_of(a);
        fuzz::require(gateway < t.gateways() && t.bandwidth_to_gateway(a, gateway) > 0);
        (void)t.distance_to_gateway(a, gateway);
        (void)t.bridge(a);
        fuzz::require(t.gateway_capacity(gateway) > 0);
    }
}

void ask(const Result<NamedTopology>& named) {
    if (!named.ok()) return;
    fuzz::require(named->names.size() == named->topology->nodes());
    ask(*named->topology);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0 || size > 65536) return 0;
    const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 5) {
        case 0: ask(parse_scontrol_topology(text)); break;
        case 1: ask(parse_topology_file(text)); break;
        case 2: {
            if (text.starts_with("file:")) break;
            const auto made = make_topology(text, 3);
            if (made.ok()) ask(**made);
            break;
        }
        case 3: {
            std::vector<Host> hosts;
            for (std::size_t begin = 0; begin < text.size() && hosts.size() < 1000;) {
                const std::size_t end = std::min(text.find('\n', begin), text.size());
                const std::string line = text.substr(begin, end - begin);
                const std::size_t space = std::min(line.find(' '), line.size());
                hosts.push_back({"n", line.substr(0, space), line.substr(std::min(space + 1, line.size()))});
                begin = end + 1;
            }
            ask(parse_slurm_addresses(hosts));
            break;
        }
        default: {
            const auto names = expand_hostlist(text, 100'000);
            if (names.ok()) fuzz::require(names->size() <= 100'000);
        }
    }
    return 0;
}
