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

// A topology whose node k is hosts[k] (each a node of its own, by whatever means the caller told them apart).
//   "auto"       Slurm's where every host has an address of it that names switches or blocks, else "node"
//   "node", "flat"  every node one hop from every other
//   "slurm"      from the hosts' addresses, else from `scontrol show topology`; an error where neither says anything
//   "file:PATH"  hosts are found by name, or by what is before a name's first dot
//   models       host k is the model's node k; an error where it has fewer
// scontrol: run_scontrol, or what a test has in its place. It starts a process: with several ranks let one call this (its result
// depends on the arguments and files alone, and so is the same wherever those are).
Result<std::shared_ptr<const Topology>> topology_of_hosts(
    const std::string& description, std::span<const Host> hosts,
    const std::function<Result<std::string>()>& scontrol = run_scontrol);

}  // namespace twinrun
