// SPDX-License-Identifier: Apache-2.0
#include "oranges/graphlets.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace oranges {

namespace {

// Threads take this many vertices at a time.
constexpr Vertex kPiece = 256;
// A row is padded to whole cache lines.
constexpr std::size_t kRow = 80;
// Neighbours from which on halving finds a place sooner than steps do.
constexpr std::size_t kLongList = 32;
constexpr std::uint64_t kMostCount = std::numeric_limits<std::uint32_t>::max();

template <unsigned kVertices>
const std::array<std::uint8_t, kVertices>& orbits_of(unsigned bits) {
    if constexpr (kVertices == 3)
        return kOrbitsOf3[bits];
    else if constexpr (kVertices == 4)
        return kOrbitsOf4[bits];
    else
        return kOrbitsOf5[bits];
}

}  // namespace

// Enumerates connected induced subgraphs, each once: ESU of Wernicke (IEEE/ACM Transactions on
// Computational Biology and Bioinformatics 3, 2006). Counts go to rows of its own, numbered as
// vertices are met, since an atomic addition a count takes longer than all else.
class GraphletCounter::Worker {
   public:
    Worker(const Graph& graph, std::span<std::uint32_t> counts, bool alone, const GatherLimits& limits)
        : graph_(graph), counts_(counts), alone_(alone), limits_(limits), marks_(graph.vertices(), 0) {}

    void count(Vertex root) {
        root_ = root;
        frontier_.clear();
        const std::uint32_t row = row_of(root);
        enter<0>(root);
        expect(frontier_.size());
        add(row, 0, static_cast<std::uint32_t>(frontier_.size()));
        for (std::size_t i = 0; i < frontier_.size(); ++i) {
            const Vertex v = frontier_[i];
            add(marks_[v] >> kRowShift, 0, 1);
            extend<1>(v, i + 1, 1, {row, marks_[v] >> kRowShift});
        }
        leave<0>(root);
        if (owners_.size() >= limits_.rows) flush();
    }

    void flush() {
        add_up();
        for (const Vertex v : owners_)
            marks_[v] = 0;
        owners_.clear();
    }

    std::uint64_t subgraphs() const { return subgraphs_; }

   private:
    // marks_: the vertex's row, 0 for none, and which of the first four vertices of the subgraph it
    // adjoins. Those after the root that adjoin one are in the frontier: each once, since it is put
    // there with its first bit.
    static constexpr unsigned kRowShift = 4;
    static constexpr std::uint32_t kBits = (1u << kRowShift) - 1;
    using Rows = std::array<std::uint32_t, 4>;

    std::uint32_t row_of(Vertex v) {
        if (marks_[v] >> kRowShift == 0) {
            if (owners_.size() >= (std::size_t{1} << (32 - kRowShift)) - 1)
                throw std::runtime_error("vertex " + std::to_string(root_) + " is near too many others");
            owners_.push_back(v);
            if (rows_.size() < (owners_.size() + 1) * kRow) rows_.resize(2 * (owners_.size() + 1) * kRow);
            marks_[v] |= static_cast<std::uint32_t>(owners_.size()) << kRowShift;
        }
        return marks_[v] >> kRowShift;
    }

    void add(std::uint32_t row, std::uint8_t orbit, std::uint32_t count) {
        rows_[row * kRow + orbit] += count;
    }

    // Makes v the subgraph's vertex of that number. The frontier grows by those that it alone
    // adjoins.
    template <unsigned kNumber>
    void enter(Vertex v) {
        for (const Vertex u : after_root(v)) {
            if ((marks_[u] & kBits) == 0) {
                row_of(u);
                frontier_.push_back(u);
            }
            marks_[u] |= 1u << kNumber;
        }
    }

    template <unsigned kNumber>
    void leave(Vertex v) {
        for (const Vertex u : after_root(v))
            marks_[u] &= ~(1u << kNumber);
    }

    std::span<const Vertex> after_root(Vertex v) const {
        const auto all = graph_.neighbours(v);
        if (all.size() > kLongList)
            return all.subspan(static_cast<std::size_t>(std::ranges::upper_bound(all, root_) - all.begin()));
        std::size_t skip = 0;
        while (skip < all.size() && all[skip] <= root_)
            ++skip;
        return all.subspan(skip);
    }

    // Adds v as vertex kNumber to the subgraph whose bits, with v, are these; then each vertex of
    // the frontier from `from` on. Earlier ones have had their turn.
    template <unsigned kNumber>
    void extend(Vertex v, std::size_t from, unsigned bits, Rows rows) {
        const std::size_t size = frontier_.size();
        enter<kNumber>(v);
        constexpr unsigned kShift = (kNumber + 1) * kNumber / 2;
        if constexpr (kNumber == 3) {
            finish(from, bits, rows);
        } else {
            expect(frontier_.size() - from);
            for (std::size_t i = from; i < frontier_.size(); ++i) {
                const Vertex u = frontier_[i];
                const std::uint32_t mark = marks_[u];
                const unsigned bits_with = bits | (mark & kBits) << kShift;
                rows[kNumber + 1] = mark >> kRowShift;
                const auto& orbits = orbits_of<kNumber + 2>(bits_with);
                for (std::size_t k = 0; k < orbits.size(); ++k)
                    add(rows[k], orbits[k], 1);
                extend<kNumber + 1>(u, i + 1, bits_with, rows);
            }
        }
        leave<kNumber>(v);
        frontier_.resize(size);
    }

    void finish(std::size_t from, unsigned bits, const Rows& rows) {
        const std::size_t end = frontier_.size();
        expect(end - from);
        subgraphs_ += end - from;
        std::uint32_t* const all = rows_.data();
        std::uint32_t* const r0 = all + rows[0] * kRow;
        std::uint32_t* const r1 = all + rows[1] * kRow;
        std::uint32_t* const r2 = all + rows[2] * kRow;
        std::uint32_t* const r3 = all + rows[3] * kRow;
        for (std::size_t i = from; i < end; ++i) {
            const std::uint32_t mark = marks_[frontier_[i]];
            const auto& orbits = orbits_of<5>(bits | (mark & kBits) << 6);
            ++r0[orbits[0]];
            ++r1[orbits[1]];
            ++r2[orbits[2]];
            ++r3[orbits[3]];
            ++all[(mark >> kRowShift) * kRow + orbits[4]];
        }
    }

    // Rows are added up before this many subgraphs are counted. A row counts none of them twice, so
    // no count of a row overflows.
    void expect(std::uint64_t subgraphs) {
        if (pending_ + subgraphs > limits_.subgraphs) add_up();
        pending_ += subgraphs;
    }

    // Adds the rows to the counts of all threads and clears them.
    void add_up() {
        pending_ = 0;
        for (std::size_t i = 0; i < owners_.size(); ++i) {
            std::uint32_t* const row = rows_.data() + (i + 1) * kRow;
            std::uint32_t* const to = counts_.data() + owners_[i] * kOrbits;
            // Most orbits of a sparse graph have no counts: whole groups are passed over, the
            // padding with them.
            for (std::size_t group = 0; group < kRow; group += 8) {
                std::uint32_t any = 0;
                for (std::size_t orbit = group; orbit < group + 8; ++orbit)
                    any |= row[orbit];
                if (any == 0) continue;
                for (std::size_t orbit = group; orbit < group + 8; ++orbit)
                    if (row[orbit] != 0) add_to(to[orbit], row[orbit], owners_[i], orbit);
            }
            std::fill_n(row, kRow, 0);
        }
    }

    void add_to(std::uint32_t& count, std::uint32_t more, Vertex v, std::size_t orbit) const {
        std::uint32_t before = 0;
        if (alone_) {
            before = count;
            count += more;
        } else {
            before = std::atomic_ref(count).fetch_add(more, std::memory_order_relaxed);
        }
        if (before > kMostCount - more)
            throw std::overflow_error("vertex " + std::to_string(v) + " lies in orbit " +
                                      std::to_string(orbit) + " more often than 32 bits count");
    }

    const Graph& graph_;
    std::span<std::uint32_t> counts_;
    bool alone_;
    GatherLimits limits_;
    std::vector<std::uint32_t> marks_;
    std::vector<Vertex> owners_;       // of row 1, 2, ...
    std::vector<std::uint32_t> rows_;  // row 0 is not a vertex's
    std::vector<Vertex> frontier_;
    Vertex root_ = 0;
    std::uint64_t pending_ = 0;
    std::uint64_t subgraphs_ = 0;
};

GraphletCounter::GraphletCounter(const Graph& graph, int threads, const GatherLimits& limits)
    : graph_(graph), counts_(graph.vertices() * kOrbits) {
    for (int i = 0; i < std::max(threads, 1); ++i)
        workers_.push_back(std::make_unique<Worker>(graph, counts_, threads <= 1, limits));
}

GraphletCounter::~GraphletCounter() = default;

void GraphletCounter::restore(std::span<const std::uint32_t> counts, Vertex done) {
    if (counts.size() != counts_.size() || done > graph_.vertices())
        throw std::runtime_error("these are no counts of this graph");
    std::ranges::copy(counts, counts_.begin());
    done_ = done;
}

void GraphletCounter::advance(Vertex end) {
    end = std::min(end, graph_.vertices());
    std::atomic<std::uint64_t> next{done_};
    std::vector<std::exception_ptr> failures(workers_.size());
    const auto work = [&](std::size_t rank) noexcept {
        try {
            for (;;) {
                const std::uint64_t begin = next.fetch_add(kPiece, std::memory_order_relaxed);
                if (begin >= end) break;
                for (std::uint64_t v = begin; v < std::min<std::uint64_t>(begin + kPiece, end); ++v)
                    workers_[rank]->count(static_cast<Vertex>(v));
            }
            workers_[rank]->flush();
        } catch (...) {
            failures[rank] = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> threads;
        for (std::size_t rank = 1; rank < workers_.size(); ++rank)
            threads.emplace_back(work, rank);
        work(0);
    }
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    done_ = std::max(done_, end);
}

std::uint64_t GraphletCounter::subgraphs() const {
    std::uint64_t sum = 0;
    for (const auto& worker : workers_)
        sum += worker->subgraphs();
    return sum;
}

}  // namespace oranges
