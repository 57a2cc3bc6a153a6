// SPDX-License-Identifier: Apache-2.0
// Graphlet degree vectors: how often a vertex lies in each orbit of the connected induced subgraphs
// of 2 to 5 vertices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oranges/graph.hpp"
#include "oranges/orbits.hpp"

namespace oranges {

// How much a thread gathers before it adds its counts to those of all threads.
struct GatherLimits {
    std::size_t rows = 4096;                // 1.25 MiB, about a core's cache
    std::uint64_t subgraphs = 0xFFFF'FFFF;  // so that no gathered count overflows
};

// Counts the subgraphs of one vertex after the other, in parallel. A subgraph belongs to its
// smallest vertex.
class GraphletCounter {
   public:
    // The graph must outlive it.
    GraphletCounter(const Graph& graph, int threads, const GatherLimits& limits = {});
    ~GraphletCounter();
    GraphletCounter(const GraphletCounter&) = delete;
    GraphletCounter& operator=(const GraphletCounter&) = delete;

    // Counts on until the subgraphs of all vertices before end are counted, and of no others: the
    // counts do not depend on the number of threads. Throws std::overflow_error where one exceeds
    // 32 bits; the counts are of no use then.
    void advance(Vertex end);
    // Goes on from counts() and done() of an earlier counter of this graph. Throws
    // std::runtime_error for others.
    void restore(std::span<const std::uint32_t> counts, Vertex done);

    Vertex done() const { return done_; }
    // [vertices][73]
    std::span<const std::uint32_t> counts() const { return counts_; }
    // Of 5 vertices, counted so far.
    std::uint64_t subgraphs() const;

   private:
    class Worker;

    const Graph& graph_;
    std::vector<std::uint32_t> counts_;
    std::vector<std::unique_ptr<Worker>> workers_;
    Vertex done_ = 0;
};

}  // namespace oranges
