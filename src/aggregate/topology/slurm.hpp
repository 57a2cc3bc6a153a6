// What Slurm says of a machine's network. Parsing takes text from outside: whatever it holds, the answer is a topology or an
// error, and never more memory than the limits below allow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregate/topology/topology_file.hpp"
#include "base/result.hpp"

namespace twinrun {

// Names of a list as Slurm writes it: "n[08-11,15],m[0-1]r[1-2],login" (several brackets: the last varies fastest). At most `most`
// names of at most 256 characters.
Result<std::vector<std::string>> expand_hostlist(std::string_view list, std::size_t most = kMostNodes);

// `scontrol show topology`: a line a switch (topology/tree: SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-3]) or a block
// (topology/block: BlockName=b0 BlockIndex=0 Nodes=n[0-3]). A switch that several others name is below the first of them. Nodes
// are numbered as they are met.
Result<NamedTopology> parse_scontrol_topology(std::string_view text);

// A node, as its process sees itself.
struct Host {
    std::string name;     // gethostname's
    std::string address;  // SLURM_TOPOLOGY_ADDR, "top.leaf.node"; empty where Slurm does not set it
    std::string pattern;  // SLURM_TOPOLOGY_ADDR_PATTERN, "switch.switch.node"
};
Host this_host();

// From what all nodes' environments say. Errors: a node without an address, addresses of different patterns.
Result<NamedTopology> parse_slurm_addresses(std::span<const Host> hosts);

// Runs `scontrol show topology`, for 10 seconds at most, and gives what it says.
Result<std::string> run_scontrol();

}  // namespace twinrun
