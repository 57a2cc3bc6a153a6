// Topologies that tests ask, and machines made up by a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/topology/places.hpp"
#include "aggregate/topology/topology.hpp"
#include "aggregate/topology/topology_file.hpp"

namespace twinrun::testing {

inline std::shared_ptr<const Topology> topology(const std::string& description, std::uint32_t nodes = 0) {
    auto made = make_topology(description, nodes);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *made : nullptr;
}

// Distances, bandwidths and gateways all by chance.
inline std::shared_ptr<const Topology> made_up(std::mt19937_64& random, std::uint32_t nodes) {
    const auto up_to = [&](std::uint64_t most) { return random() % (most + 1); };
    std::string text = R"({"latency": 1e-6, "memory": 2e10, "nodes": )" + std::to_string(nodes);
    std::vector<std::vector<std::uint64_t>> hops(nodes, std::vector<std::uint64_t>(nodes, 0));
    std::string distances;
    std::string bandwidths;
    for (std::uint32_t a = 0; a < nodes; ++a) {
        distances += a == 0 ? "[" : ",[";
        bandwidths += a == 0 ? "[" : ",[";
        for (std::uint32_t b = 0; b < nodes; ++b) {
            hops[a][b] = a == b ? 0 : b < a ? hops[b][a] : 1 + up_to(8);
            distances += (b == 0 ? "" : ",") + std::to_string(hops[a][b]);
            bandwidths += (b == 0 ? "" : ",") + std::to_string(1'000'000'000 + 500'000'000 * up_to(9));
        }
        distances += "]";
        bandwidths += "]";
    }
    std::string gateways;
    for (std::uint64_t k = 0; k <= up_to(3); ++k) {
        gateways += (k == 0 ? "" : ",") + std::string(R"({"bandwidth": )") +
                    std::to_string(1'000'000'000 * (1 + up_to(4))) + R"(, "distances": [)";
        for (std::uint32_t a = 0; a < nodes; ++a)
            gateways += (a == 0 ? "" : ",") + std::to_string(up_to(6));
        gateways += "]}";
    }
    text += R"(, "distances": [)" + distances + R"(], "bandwidths": [)" + bandwidths + R"(], "gateways": [)" +
            gateways + "]}";
    auto named = parse_topology_file(text);
    EXPECT_TRUE(named.ok()) << (named.ok() ? "" : named.error().message);
    return named.ok() ? named->topology : nullptr;
}

// Places in hosts of a made-up network: cores in NUMA nodes in packages, and ranks that are bound to less.
inline std::shared_ptr<const Topology> made_up_places(std::mt19937_64& random) {
    const auto up_to = [&](std::uint64_t most) { return static_cast<std::uint32_t>(random() % (most + 1)); };
    auto hosts = made_up(random, 1 + up_to(4));
    std::vector<HostPlace> places(1 + up_to(40));
    for (HostPlace& place : places) {
        place.host = up_to(hosts->nodes() - 1);
        const std::uint32_t core = up_to(15);
        const std::array<std::uint32_t, 4> whole{core / 8, core / 4, core / 2, core};
        for (std::uint32_t level = up_to(4); level > 0; --level)
            place.inner.parts[level - 1] = whole[level - 1];
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    PlaceBandwidths bandwidths;
    bandwidths.numa = 1e9F * static_cast<float>(1 + up_to(40));
    bandwidths.package = 1e9F * static_cast<float>(1 + up_to(40));
    if (up_to(1) != 0) bandwidths.memory = 3e10F;
    if (up_to(1) != 0) bandwidths.cache = 5e10F;
    auto made = make_places(std::move(hosts), std::move(places), bandwidths, "made up");
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *made : nullptr;
}

}  // namespace twinrun::testing
