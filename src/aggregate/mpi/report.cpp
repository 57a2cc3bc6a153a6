// Reports of an aggregate's last declaration, write and read, as a structure and as JSON.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "base/sized.hpp"

namespace twinrun::aggregation {

namespace {

twr_aggregate_transfer figures_of(const Transfer& transfer) {
    const auto& sums = transfer.figures.sums;
    const auto& largest = transfer.figures.largest;
    const auto count = [](double value) { return static_cast<std::uint64_t>(value); };
    twr_aggregate_transfer figures{};
    figures.size = sizeof figures;
    figures.bytes = count(sums[kShared] + sums[kRemote] + sums[kDirect]);
    figures.bytes_by_node_memory = count(sums[kShared]);
    figures.bytes_from_other_nodes = count(sums[kRemote]);
    figures.bytes_direct = count(sums[kDirect]);
    figures.windows = count(sums[kWindows]);
    figures.total_seconds = largest[kTotal] + transfer.rename_seconds;
    figures.gather_seconds = largest[kGather];
    figures.direct_seconds = largest[kDirectSeconds];
    figures.storage_seconds = largest[kStorage];
    figures.wait_seconds = largest[kWait];
    figures.sync_seconds = largest[kSync];
    figures.rename_seconds = transfer.rename_seconds;
    return figures;
}

nlohmann::json transfer_report(const Transfer& transfer, bool written) {
    const twr_aggregate_transfer figures = figures_of(transfer);
    nlohmann::json seconds = {{"total", figures.total_seconds},
                              {"gather", figures.gather_seconds},
                              {"direct", figures.direct_seconds},
                              {"storage", figures.storage_seconds},
                              {"wait", figures.wait_seconds}};
    if (written) {
        seconds["sync"] = figures.sync_seconds;
        seconds["rename"] = figures.rename_seconds;
    }
    return {{"path", transfer.path},
            {"bytes", figures.bytes},
            {"bytes_by_node_memory", figures.bytes_by_node_memory},
            {"bytes_from_other_nodes", figures.bytes_from_other_nodes},
            {"bytes_direct", figures.bytes_direct},
            {"windows", figures.windows},
            {"seconds", seconds}};
}

}  // namespace

Result<> fill(const std::optional<Transfer>& done, const char* verb, twr_aggregate_transfer* to) {
    if (to == nullptr) return refuse("transfer is NULL");
    const std::size_t size = to->size;
    constexpr std::size_t kLeast =
        offsetof(twr_aggregate_transfer, rename_seconds) + sizeof to->rename_seconds;
    TWR_CHECK(check_size(size, sizeof(twr_aggregate_transfer), kLeast, "twr_aggregate_transfer"));
    if (!done) return Error{ErrorCode::not_found, std::string("nothing has been ") + verb + " yet"};
    twr_aggregate_transfer filled = figures_of(*done);
    filled.size = size;
    std::memset(to, 0, size);
    std::memcpy(to, &filled, std::min(size, sizeof filled));
    return success();
}

std::string report_of(const twr_aggregate& a) {
    const Plan& plan = *a.plan;
    nlohmann::json report = {{"ranks", a.team->ranks()},
                             {"nodes", a.team->nodes()},
                             {"files", a.group.files},
                             {"file", a.group.file},
                             {"topology", a.topology->name()},
                             {"placement", placement_name(a.settings.placement)},
                             {"backend", backend_name(a.settings.backend)},
                             {"buffers", a.settings.buffers},
                             {"update", a.settings.update},
                             {"sync", a.settings.sync}};
    if (plan.declared()) {
        nlohmann::json partitions = nlohmann::json::array();
        for (const Partition& partition : plan.partitions()) {
            double bytes = 0;
            for (const Contribution& member : partition.members)
                bytes += static_cast<double>(member.bytes);
            nlohmann::json entry = {
                {"begin", partition.range.begin},
                {"end", partition.range.end},
                {"bytes", static_cast<std::uint64_t>(bytes)},
                {"ranks", partition.members.size()},
                {"aggregator", a.group.team_rank[partition.aggregator]},
                {"node", a.group.node_of[partition.aggregator]},
                {"gateway", partition.exit.gateway},
                {"cost", {{"gather", partition.cost.gather}, {"write", partition.cost.write}}}};
            if (is_hwloc(a.settings.topology)) {
                entry["place"] = place_words(a.topology->inner_place(a.group.place_of[partition.aggregator]));
            }
            partitions.push_back(std::move(entry));
        }
        report["declared"] = {{"bytes", plan.table().bytes()},
                              {"sets", plan.table().sets().size()},
                              {"begin", plan.table().span().begin},
                              {"end", plan.table().span().end},
                              {"block_bytes", plan.traits().block},
                              {"buffer_bytes", plan.buffer_bytes()},
                              {"members", members_name(plan.members())},
                              {"election_rounds", plan.election_rounds()},
                              {"plan", plan.taken() ? "saved" : "elected"},
                              {"seconds", plan.seconds()},
                              {"partitions", std::move(partitions)}};
    }
    if (a.written) report["write"] = transfer_report(*a.written, true);
    if (a.read) report["read"] = transfer_report(*a.read, false);
    if (const BackgroundFigures own = background_figures(a); own.used) {
        report["background"] = {{"by", own.thread ? "thread" : "caller"},
                                {"writes", own.writes},
                                {"staged_bytes", own.staged_bytes},
                                {"seconds", {{"copy", own.copy_seconds}, {"wait", own.wait_seconds}}}};
    }
    return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace twinrun::aggregation
