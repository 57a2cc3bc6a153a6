// SPDX-License-Identifier: Apache-2.0
#include "haccio/split.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "haccio/agree.hpp"
#include "haccio/method.hpp"
#include "haccio/partitions.hpp"
#include "haccio/random.hpp"
#include "haccio/results.hpp"

namespace haccio {

namespace {

using nlohmann::json;

struct Made {
    std::uint64_t partition = 0;
    MPI_Comm comm = MPI_COMM_NULL;
};

class Splitter {
   public:
    Splitter(const SplitOptions& options, MPI_Comm world) : options_(options), world_(world), clock_(world) {
        int rank = 0, ranks = 0;
        MPI_Comm_rank(world, &rank);
        MPI_Comm_size(world, &ranks);
        rank_ = static_cast<std::uint64_t>(rank);
        ranks_ = static_cast<std::uint64_t>(ranks);
        overlapping_ = overlapping(ranks_, options.communicators, options.size);
        disjoint_ = disjoint(ranks_, options.communicators);
        rounds_ = rounds_of(overlapping_);
        MPI_Comm_group(world, &group_);
    }
    Splitter(const Splitter&) = delete;
    Splitter& operator=(const Splitter&) = delete;
    ~Splitter() { MPI_Group_free(&group_); }

    int run() {
        together(world_, [&] {
            if (options_.size > ranks_)
                throw Failure("--size " + std::to_string(options_.size) + ": there are " +
                              std::to_string(ranks_) + " ranks");
            if (rank_ == 0) results_ = std::make_unique<Results>(options_.json, "");
        });
        const std::string library = mpi_library();
        const std::uint64_t size = overlapping_.front().end - overlapping_.front().begin;
        const std::uint64_t rounds = *std::max_element(rounds_.begin(), rounds_.end()) + 1;
        put({{"kind", "run"},
             {"mpi", library},
             {"ranks", ranks_},
             {"communicators", options_.communicators},
             {"size", size},
             {"rounds", rounds},
             {"options",
              {{"repeat", options_.repeat}, {"warmup", options_.warmup}, {"seed", options_.seed}}}});
        std::vector<std::vector<double>> seconds(options_.ways.size());
        for (std::uint64_t round = 0; round < options_.warmup + options_.repeat; ++round) {
            const std::vector<std::size_t> order = shuffled(options_.ways.size(), options_.seed, round);
            for (std::size_t at = 0; at < order.size(); ++at) {
                const double taken = measured(options_.ways[order[at]]);
                if (round < options_.warmup) continue;
                seconds[order[at]].push_back(taken);
                put({{"kind", "repetition"},
                     {"way", options_.ways[order[at]]},
                     {"repetition", round - options_.warmup},
                     {"order", at},
                     {"seconds", taken}});
            }
        }
        const bool table = rank_ == 0 && !options_.quiet && options_.json != "-";
        if (table) {
            std::printf(
                "haccio: %llu ranks, %s; %llu communicators of %llu ranks, in %llu rounds where they do not "
                "overlap\n",
                static_cast<unsigned long long>(ranks_), library.c_str(),
                static_cast<unsigned long long>(options_.communicators),
                static_cast<unsigned long long>(size), static_cast<unsigned long long>(rounds));
            std::printf("%-10s  %10s  %10s  %10s\n", "way", "ms", "least", "most");
        }
        for (std::size_t i = 0; i < seconds.size(); ++i) {
            const Spread spread = spread_of(seconds[i]);
            put({{"kind", "summary"},
                 {"way", options_.ways[i]},
                 {"seconds",
                  {{"min", spread.min},
                   {"median", spread.median},
                   {"max", spread.max},
                   {"mean", spread.mean},
                   {"deviation", spread.deviation}}}});
            if (table)
                std::printf("%-10s  %10.3f  %10.3f  %10.3f\n", options_.ways[i].c_str(), 1e3 * spread.median,
                            1e3 * spread.min, 1e3 * spread.max);
        }
        std::fflush(stdout);
        return wrong_ ? 1 : 0;
    }

   private:
    void put(const json& line) {
        together(world_, [&] {
            if (rank_ == 0) results_->line(line);
        });
    }

    double measured(const std::string& way) {
        std::vector<Made> made;
        MPI_Barrier(world_);
        const Clock::Time start = Clock::now();
        if (way == "split") {
            made = by_split();
        } else if (way == "group") {
            made = by_group();
        } else if (way == "coloured") {
            made = by_colours(overlapping_, rounds_);
        } else {
            made = by_colours(disjoint_, std::vector<std::uint64_t>(disjoint_.size(), 0));
        }
        const double seconds = clock_.span(start, Clock::now());
        check(way, made, way == "disjoint" ? disjoint_ : overlapping_);
        for (Made& each : made)
            MPI_Comm_free(&each.comm);
        return seconds;
    }

    // As the paper's library: all ranks split, partition after partition.
    std::vector<Made> by_split() const {
        std::vector<Made> made;
        for (std::uint64_t p = 0; p < overlapping_.size(); ++p) {
            MPI_Comm comm = MPI_COMM_NULL;
            MPI_Comm_split(world_, overlapping_[p].holds(rank_) ? 0 : MPI_UNDEFINED, static_cast<int>(rank_),
                           &comm);
            if (comm != MPI_COMM_NULL) made.push_back({p, comm});
        }
        return made;
    }

    // The ranks of a partition alone: ascending, so that nobody waits in a circle.
    std::vector<Made> by_group() const {
        std::vector<Made> made;
        for (std::uint64_t p = 0; p < overlapping_.size(); ++p) {
            if (!overlapping_[p].holds(rank_)) continue;
            int range[1][3] = {
                {static_cast<int>(overlapping_[p].begin), static_cast<int>(overlapping_[p].end) - 1, 1}};
            MPI_Group members = MPI_GROUP_NULL;
            MPI_Group_range_incl(group_, 1, range, &members);
            MPI_Comm comm = MPI_COMM_NULL;
            MPI_Comm_create_group(world_, members, static_cast<int>(p), &comm);
            MPI_Group_free(&members);
            made.push_back({p, comm});
        }
        return made;
    }

    // A split for each round of partitions that do not overlap: the colour is the partition.
    std::vector<Made> by_colours(const std::vector<Partition>& partitions,
                                 const std::vector<std::uint64_t>& rounds) const {
        std::vector<Made> made;
        const std::uint64_t all = *std::max_element(rounds.begin(), rounds.end()) + 1;
        for (std::uint64_t round = 0; round < all; ++round) {
            int colour = MPI_UNDEFINED;
            for (std::size_t p = 0; p < partitions.size(); ++p) {
                if (rounds[p] == round && partitions[p].holds(rank_)) colour = static_cast<int>(p);
            }
            MPI_Comm comm = MPI_COMM_NULL;
            MPI_Comm_split(world_, colour, static_cast<int>(rank_), &comm);
            if (comm != MPI_COMM_NULL) made.push_back({static_cast<std::uint64_t>(colour), comm});
        }
        return made;
    }

    // Each communicator has the ranks of its partition, in order, and this rank is in all of its
    // partitions.
    void check(const std::string& way, const std::vector<Made>& made,
               const std::vector<Partition>& partitions) {
        std::string complaint;
        std::uint64_t expected = 0;
        for (const Partition& partition : partitions)
            expected += partition.holds(rank_) ? 1 : 0;
        if (made.size() != expected)
            complaint = std::to_string(made.size()) + " communicators instead of " + std::to_string(expected);
        for (const Made& each : made) {
            const Partition& partition = partitions[each.partition];
            MPI_Group group = MPI_GROUP_NULL;
            MPI_Comm_group(each.comm, &group);
            int size = 0;
            MPI_Group_size(group, &size);
            bool right = static_cast<std::uint64_t>(size) == partition.end - partition.begin;
            for (int i = 0; right && i < size; ++i) {
                int world_rank = 0;
                MPI_Group_translate_ranks(group, 1, &i, group_, &world_rank);
                right =
                    static_cast<std::uint64_t>(world_rank) == partition.begin + static_cast<std::uint64_t>(i);
            }
            MPI_Group_free(&group);
            if (!right && complaint.empty())
                complaint = "communicator " + std::to_string(each.partition) + " has other ranks than " +
                            std::to_string(partition.begin) + " to " + std::to_string(partition.end - 1);
        }
        const std::vector<std::string> complaints = gather_texts(world_, complaint);
        int wrong = 0;
        for (std::size_t i = 0; i < complaints.size(); ++i) {
            if (complaints[i].empty()) continue;
            wrong = 1;
            std::fprintf(stderr, "haccio: %s: rank %zu: %s\n", way.c_str(), i, complaints[i].c_str());
        }
        MPI_Bcast(&wrong, 1, MPI_INT, 0, world_);
        wrong_ = wrong_ || wrong != 0;
    }

    const SplitOptions& options_;
    MPI_Comm world_;
    Clock clock_;
    MPI_Group group_ = MPI_GROUP_NULL;
    std::uint64_t rank_ = 0, ranks_ = 1;
    std::vector<Partition> overlapping_, disjoint_;
    std::vector<std::uint64_t> rounds_;
    std::unique_ptr<Results> results_;
    bool wrong_ = false;
};

}  // namespace

int run_split(const SplitOptions& options, MPI_Comm world) { return Splitter(options, world).run(); }

}  // namespace haccio
