#include "aggregate/plan/planner.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>
#include <utility>

#include "aggregate/plan/exits.hpp"
#include "aggregate/topology/description.hpp"
#include "base/checked.hpp"

namespace twinrun {
inline namespace aggregate_plan {

namespace {

constexpr std::size_t kMostContributions = std::size_t{1} << 26;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

// SplitMix64, as a sequence.
class Random {
   public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t x = state_ += 0x9E3779B97F4A7C15;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
        return x ^ (x >> 31);
    }
    double unit() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
    double normal() {  // the method of Box and Muller
        const double radius = std::sqrt(-2 * std::log(unit()));
        return radius * std::cos(2 * std::numbers::pi * unit());
    }

   private:
    std::uint64_t state_;
};

// One file's ranks, cut into partitions.
class Cutter {
   public:
    Cutter(std::span<const std::uint64_t> volumes, const PlanSettings& settings, std::uint32_t first_rank,
           std::uint32_t file)
        : volumes_(volumes), settings_(settings), first_rank_(first_rank), file_(file) {
        for (const std::uint64_t bytes : volumes)
            total_ += bytes;
    }
    // Appends the partitions; false: too many contributions.
    bool cut(std::vector<PlannedPartition>& out, std::size_t& contributions) {
        if (total_ == 0) return true;
        for (std::uint32_t k = 0; k < settings_.aggregators; ++k) {
            const std::uint64_t begin = boundary(k);
            const std::uint64_t end = boundary(k + 1);
            if (begin == end) continue;
            parts_.push_back(
                {file_, static_cast<std::uint32_t>(parts_.size()), begin, end - begin, 0, 0, {}});
        }
        bool good = true;
        if (settings_.layout == PlanLayout::interleaved) {
            good = interleave(contributions);
        } else if (settings_.layout == PlanLayout::variables) {
            std::uint64_t record = 0;
            for (const std::uint64_t item : settings_.item_bytes)
                record += item;
            for (const std::uint64_t item : settings_.item_bytes) {
                for (std::uint32_t r = 0; r < volumes_.size() && good; ++r)
                    good = append(r, volumes_[r] / record * item, contributions);
            }
        } else {
            for (std::uint32_t r = 0; r < volumes_.size() && good; ++r)
                good = append(r, volumes_[r], contributions);
        }
        if (!good) return false;
        for (std::size_t k = 0; k < parts_.size(); ++k) {
            PlannedPartition& part = parts_[k];
            finish(part);
            out.push_back(std::move(part));
        }
        return true;
    }

   private:
    [[nodiscard]] std::uint64_t boundary(std::uint32_t k) const {
        if (k == settings_.aggregators) return total_;
        const auto even =
            static_cast<std::uint64_t>(static_cast<unsigned __int128>(total_) * k / settings_.aggregators);
        return std::min(total_, divide_up(even, settings_.block) * settings_.block);
    }
    bool add(PlannedPartition& part, std::uint32_t rank, std::uint64_t bytes, std::size_t& contributions) {
        const std::uint32_t number = first_rank_ + rank;
        part.contributions.push_back({number, number / settings_.ranks_per_node, static_cast<float>(bytes)});
        return ++contributions <= kMostContributions;
    }
    // The next `bytes` of the file are this rank's.
    bool append(std::uint32_t rank, std::uint64_t bytes, std::size_t& contributions) {
        while (bytes > 0) {
            PlannedPartition& part = parts_[at_];
            const std::uint64_t here = std::min(bytes, part.offset + part.bytes - offset_);
            if (!add(part, rank, here, contributions)) return false;
            bytes -= here;
            offset_ += here;
            if (offset_ == part.offset + part.bytes) ++at_;
        }
        return true;
    }
    bool interleave(std::size_t& contributions) {
        for (PlannedPartition& part : parts_) {
            for (std::uint32_t r = 0; r < volumes_.size(); ++r) {
                const double share = static_cast<double>(volumes_[r]) * static_cast<double>(part.bytes) /
                                     static_cast<double>(total_);
                if (volumes_[r] != 0 &&
                    !add(part, r, static_cast<std::uint64_t>(std::llround(share)), contributions))
                    return false;
            }
        }
        return true;
    }
    static void finish(PlannedPartition& part) {
        std::vector<Contribution>& all = part.contributions;
        const auto by_rank = [](const Contribution& a, const Contribution& b) { return a.rank < b.rank; };
        if (!std::is_sorted(all.begin(), all.end(), by_rank))
            std::stable_sort(all.begin(), all.end(), by_rank);
        std::size_t kept = 0;  // several pieces of a rank become one
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (kept > 0 && all[kept - 1].rank == all[i].rank) {
                all[kept - 1].bytes += all[i].bytes;
            } else {
                all[kept++] = all[i];
            }
        }
        all.resize(kept);
        for (std::size_t i = 0; i < all.size(); ++i)
            part.nodes += i == 0 || all[i].node != all[i - 1].node ? 1 : 0;
    }
    std::span<const std::uint64_t> volumes_;
    const PlanSettings& settings_;
    std::uint32_t first_rank_;
    std::uint32_t file_;
    std::uint64_t total_ = 0;
    std::uint64_t offset_ = 0;
    std::size_t at_ = 0;
    std::vector<PlannedPartition> parts_;
};

std::vector<std::uint32_t> partitions_of_nodes(std::uint32_t nodes,
                                               std::span<const PlannedPartition> partitions) {
    std::vector<std::uint32_t> found(nodes, kNoPartition);
    std::vector<double> most(nodes, 0);
    for (std::uint32_t p = 0; p < partitions.size(); ++p) {
        const std::vector<Contribution>& all = partitions[p].contributions;
        for (std::size_t i = 0; i < all.size();) {
            const std::uint32_t node = all[i].node;
            double bytes = 0;
            for (; i < all.size() && all[i].node == node; ++i)
                bytes += static_cast<double>(all[i].bytes);
            if (bytes > most[node]) {
                most[node] = bytes;
                found[node] = p;
            }
        }
    }
    return found;
}

}  // namespace

Result<std::vector<std::uint64_t>> volumes_of(const VolumeModel& model, std::uint32_t ranks) {
    if (model.unit == 0 || model.every == 0) return wrong("volumes: a unit or a count of 0");
    if (!std::isfinite(model.spread) || model.spread < 0 || model.spread > 1e6)
        return wrong("volumes: the spread must be a number from 0 to 1e6");
    if (ranks == 0 || model.mean > kMostBytes / ranks) return wrong("volumes: no ranks, or too many bytes");
    Random random(model.seed);
    std::vector<double> weights(ranks, 1);
    double sum = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        if (model.kind == VolumeModel::Kind::lognormal) weights[r] = std::exp(model.spread * random.normal());
        if (model.kind == VolumeModel::Kind::linear) weights[r] = r + 0.5;
        if (model.kind == VolumeModel::Kind::heavy && random.next() % model.every == 0)
            weights[r] = model.spread;
        sum += weights[r];
    }
    if (!(sum > 0) || !std::isfinite(sum)) return wrong("volumes: the spread is too large");
    const double scale = static_cast<double>(model.mean) * ranks / sum / static_cast<double>(model.unit);
    std::vector<std::uint64_t> volumes(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r)
        volumes[r] = static_cast<std::uint64_t>(std::llround(weights[r] * scale)) * model.unit;
    return volumes;
}

Result<PlanLayout> plan_layout_of(const std::string& name) {
    if (name == "records") return PlanLayout::records;
    if (name == "blocks") return PlanLayout::blocks;
    if (name == "variables") return PlanLayout::variables;
    if (name == "interleaved") return PlanLayout::interleaved;
    return wrong("'" + name + "' is no layout: records, blocks, variables or interleaved");
}

Prediction predict(const Topology& topology, std::span<const PlannedPartition> partitions,
                   std::span<const Election> elections, std::uint32_t ranks_per_node) {
    struct Port {
        double in = 0, memory = 0, out = 0;  // seconds
    };
    std::unordered_map<std::uint32_t, Port> hosts;  // of aggregators
    std::vector<double> gateways(topology.gateways(), 0);
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        const PlannedPartition& part = partitions[p];
        const std::uint32_t node = elections[p].rank / ranks_per_node;
        const std::uint32_t host = topology.host_of(node);
        Port& port = hosts[host];
        const std::vector<Contribution>& all = part.contributions;
        for (std::size_t i = 0; i < all.size();) {
            const std::uint32_t from = all[i].node;
            double bytes = 0;
            for (; i < all.size() && all[i].node == from; ++i)
                bytes += all[i].rank == elections[p].rank ? 0 : static_cast<double>(all[i].bytes);
            (topology.host_of(from) == host ? port.memory : port.in) +=
                bytes / static_cast<double>(topology.bandwidth(from, node));
        }
        const std::uint32_t gateway = elections[p].gateway;
        const auto bytes = static_cast<double>(part.bytes);
        port.out += bytes / static_cast<double>(topology.bandwidth_to_gateway(node, gateway));
        gateways[gateway] += bytes / static_cast<double>(topology.gateway_capacity(gateway));
    }
    Prediction found;
    const double ports = topology.ports();
    for (std::size_t p = 0; p < partitions.size(); ++p) {
        const std::uint32_t node = elections[p].rank / ranks_per_node;
        const Port& port = hosts[topology.host_of(node)];
        const auto total = static_cast<double>(elections[p].cost.total());
        const double gather =
            std::max({static_cast<double>(elections[p].cost.gather), port.in / ports, port.memory});
        const double write = static_cast<double>(topology.latency()) *
                                 topology.distance_to_gateway(node, elections[p].gateway) +
                             std::max(port.out / ports, gateways[elections[p].gateway]);
        found.sum += total;
        found.most = std::max(found.most, total);
        found.seconds = std::max(found.seconds, gather + write);
    }
    return found;
}

Result<Plan> make_plan(const Topology& topology, std::span<const std::uint64_t> volumes,
                       const PlanSettings& settings, std::span<const Placement> placements) {
    if (settings.ranks_per_node == 0 || settings.aggregators == 0 || settings.block == 0)
        return wrong("ranks a node, aggregators and blocks must be at least 1");
    if (settings.aggregators > kMostNodes) return wrong("too many aggregators");
    if (volumes.size() > std::uint64_t{topology.nodes()} * settings.ranks_per_node) {
        return wrong(std::to_string(volumes.size()) + " ranks do not fit " + topology.name() + " with " +
                     std::to_string(settings.ranks_per_node) + " a node");
    }
    if (volumes.size() > std::size_t{1} << 30) return wrong("too many ranks");
    std::uint64_t record = 0;
    for (const std::uint64_t item : settings.item_bytes) {
        const auto sum = checked_add(record, item);
        if (!sum || *sum > kMostBytes) return wrong("a record is too large");
        record = *sum;
    }
    if (record == 0) return wrong("a record has no bytes");
    Plan plan;
    plan.ranks = static_cast<std::uint32_t>(volumes.size());
    for (const std::uint64_t bytes : volumes) {
        const auto sum = checked_add(plan.bytes, bytes);
        if (!sum || *sum > kMostBytes) return wrong("too many bytes");
        plan.bytes = *sum;
        if (settings.layout == PlanLayout::variables && bytes % record != 0) {
            return wrong("a rank has " + std::to_string(bytes) + " bytes: no multiple of its records' " +
                         std::to_string(record));
        }
    }
    if (plan.bytes == 0) return wrong("no rank has any bytes");

    const std::uint64_t ranks_per_file =
        settings.nodes_per_file == 0 ? volumes.size()
                                     : std::uint64_t{settings.nodes_per_file} * settings.ranks_per_node;
    std::size_t contributions = 0;
    std::vector<std::size_t> files{0};  // where each file's partitions begin, and the end
    for (std::uint64_t first = 0; first < volumes.size(); first += ranks_per_file) {
        const std::uint64_t count = std::min<std::uint64_t>(ranks_per_file, volumes.size() - first);
        Cutter cutter(volumes.subspan(first, count), settings, static_cast<std::uint32_t>(first),
                      plan.files++);
        if (!cutter.cut(plan.partitions, contributions))
            return wrong("too many ranks in too many partitions: fewer aggregators, or another layout");
        files.push_back(plan.partitions.size());
    }
    for (PlannedPartition& part : plan.partitions)
        part.gateway = gateway_of_partition(topology, part.contributions);
    plan.partition_of_node = partitions_of_nodes(topology.nodes(), plan.partitions);

    std::vector<std::vector<Contribution>> sets;
    for (PlannedPartition& part : plan.partitions)
        sets.push_back(std::move(part.contributions));
    for (const Placement placement : placements) {
        PlannedPlacement planned{placement, {}, {}};
        for (std::size_t f = 0; f + 1 < files.size(); ++f) {
            const std::size_t count = files[f + 1] - files[f];
            const auto of_file = std::span<const std::vector<Contribution>>(sets).subspan(files[f], count);
            const auto some = elect(topology, placement, of_file, exits_of(topology, placement, of_file),
                                    settings.seed + f);
            planned.elections.insert(planned.elections.end(), some.begin(), some.end());
        }
        plan.placements.push_back(std::move(planned));
    }
    for (std::size_t p = 0; p < sets.size(); ++p)
        plan.partitions[p].contributions = std::move(sets[p]);
    for (PlannedPlacement& planned : plan.placements)
        planned.prediction = predict(topology, plan.partitions, planned.elections, settings.ranks_per_node);
    return plan;
}

}  // namespace aggregate_plan
}  // namespace twinrun
