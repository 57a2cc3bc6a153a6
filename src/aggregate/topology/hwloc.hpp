// What hwloc says of a host's inside, as places. libhwloc 2 (BSD) is opened at run time, and is an error where it is asked for and not
// there; nothing else needs it.
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

// "hwloc", "hwloc:synthetic:pack:2 numa:2 core:4 pu:1", "hwloc:xml:PATH", each with settings behind it:
// [,hosts=N][,latency=S][,bandwidth=B][,memory=B][,cache=B][,numa=B][,package=B][,gateway_bandwidth=B]
struct HwlocDescription {
    enum class Source : std::uint8_t { host, synthetic, xml };
    Source source = Source::host;
    std::string text;         // of synthetic and xml
    std::uint32_t hosts = 0;  // such ones; 0: not said
    ModelSettings network;    // between hosts
    PlaceBandwidths inner;
};
[[nodiscard]] bool is_hwloc(const std::string& description);
// Errors: invalid_argument.
Result<HwlocDescription> parse_hwloc(const std::string& description);

// More processing units (threads of cores) than this are an error: a description can ask for any number.
inline constexpr std::uint32_t kMostUnits = 8192;

struct HwlocHost {
    std::vector<InnerPlace> cores;  // in hwloc's order; processing units where it knows no cores
    InnerPlace own;                 // the smallest parts that cover the calling process' CPU set
};
// Errors: unsupported: libhwloc.so.15 is not there, or of another version; invalid_argument: hwloc makes nothing of it.
Result<HwlocHost> ask_hwloc(const HwlocDescription& description);

// For plans: a node of the topology is a core; core after core, host after host (one, or `hosts`, one hop apart).
Result<std::shared_ptr<const Topology>> make_hwloc(const std::string& description);

// Where the `number`th process of a host is. Of the host itself: where it is bound. Of a description: on its core of that number,
// round and round.
Result<InnerPlace> place_of_process(const HwlocDescription& description, std::uint32_t number);

// "package 1, NUMA node 2, L3 3, core 12", as far as it is known; else "anywhere".
[[nodiscard]] std::string place_words(const InnerPlace& place);

}  // namespace twinrun
