// A machine's network as Slurm describes it. The texts come from outside: any text gives a topology
// or an error, and memory stays within the limits below.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregate/topology/topology_file.hpp"
#include "base/result.hpp"

namespace twinrun {

// Names of a Slurm hostlist: "n[08-11,15],m[0-1]r[1-2],login" (of several brackets the last varies
// fastest). Errors:
// invalid_argument: another syntax, more than `most` names, a name of more than 256 characters.
Result<std::vector<std::string>> expand_hostlist(std::string_view list, std::size_t most = kMostNodes);

// Reads the output of `scontrol show topology`: one line for each switch (topology/tree:
// SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-3]) or a block (topology/block: BlockName=b0
// BlockIndex=0 Nodes=n[0-3]). A switch that several others name is below the first of them. Nodes
// are numbered in the order of their first mention.
Result<NamedTopology> parse_scontrol_topology(std::string_view text);

// A node as its own processes see it.
struct Host {
    std::string name;     // gethostname's
    std::string address;  // SLURM_TOPOLOGY_ADDR, "top.leaf.node"; empty if Slurm does not set it
    std::string pattern;  // SLURM_TOPOLOGY_ADDR_PATTERN, "switch.switch.node"
};
Host this_host();

// The topology from the addresses of all nodes. Errors: invalid_argument: a node without an
// address, addresses of different patterns.
Result<NamedTopology> parse_slurm_addresses(std::span<const Host> hosts);

// Runs `scontrol show topology`, for at most 10 seconds, and returns its output.
Result<std::string> run_scontrol();

}  // namespace twinrun
