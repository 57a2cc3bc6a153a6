// The parts of a host that hwloc finds, as places. libhwloc 2 (BSD) is opened at run time. Where it
// is missing, descriptions that begin with hwloc are an error; all others work.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregate/topology/models.hpp"
#include "aggregate/topology/places.hpp"
#include "base/result.hpp"

namespace twinrun {

// "hwloc", "hwloc:synthetic:pack:2 numa:2 core:4 pu:1", "hwloc:xml:PATH", each followed by
// settings:
// [,hosts=N][,latency=S][,bandwidth=B][,memory=B][,cache=B][,numa=B][,package=B][,gateway_bandwidth=B]
struct HwlocDescription {
    enum class Source : std::uint8_t { host, synthetic, xml };
    Source source = Source::host;
    std::string text;         // the description (synthetic) or the path (xml)
    std::uint32_t hosts = 0;  // number of such hosts; 0: not set
    ModelSettings network;    // between hosts
    PlaceBandwidths inner;
};
[[nodiscard]] bool is_hwloc(const std::string& description);
// Errors: invalid_argument.
Result<HwlocDescription> parse_hwloc(const std::string& description);

// More processing units (threads of cores) than this are an error, because a description may ask
// for any number.
inline constexpr std::uint32_t kMostUnits = 8192;

struct HwlocHost {
    std::vector<InnerPlace> cores;  // in hwloc's order; processing units if hwloc finds no cores
    InnerPlace own;                 // the smallest parts that cover the calling process' CPU set
};
// Errors: unsupported: libhwloc.so.15 is missing, or has another version; invalid_argument: hwloc
// cannot read the description.
Result<HwlocHost> ask_hwloc(const HwlocDescription& description);

// For plans: each node of the topology is a core. Nodes are numbered core by core, host by host.
// Hosts are one hop apart.
Result<std::shared_ptr<const Topology>> make_hwloc(const std::string& description);

// The place of the `number`th process of a host. Source::host: where the calling process is bound.
// Otherwise core number % cores.
Result<InnerPlace> place_of_process(const HwlocDescription& description, std::uint32_t number);

// "package 1, NUMA node 2, L3 3, core 12", without the parts that are unknown; "anywhere" if all
// are.
[[nodiscard]] std::string place_words(const InnerPlace& place);

}  // namespace twinrun
