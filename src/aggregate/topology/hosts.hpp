// The topology that a program runs on, from the names of its nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "aggregate/topology/slurm.hpp"
#include "aggregate/topology/topology.hpp"

namespace twinrun {

// A topology whose node k is hosts[k]. Two hosts may have the same name; each is a node.
//   "auto"       Slurm's topology if every host has an address from Slurm that names switches or
//                blocks; otherwise "node"
//   "node", "flat"  every node one hop from every other
//   "slurm"      from the hosts' addresses, or if they have none from `scontrol show topology`; an
//                error if neither names a topology
//   "file:PATH"  hosts are found by their names, or by the part before the first dot
//   models       host k is the model's node k; an error if the model has fewer nodes
// scontrol: run_scontrol, or a test's replacement. It starts a process, so with several ranks one
// rank should run it and give the others its text. The result depends only on the arguments, the
// text and files.
Result<std::shared_ptr<const Topology>> topology_of_hosts(
    const std::string& description, std::span<const Host> hosts,
    const std::function<Result<std::string>()>& scontrol = run_scontrol);

}  // namespace twinrun
