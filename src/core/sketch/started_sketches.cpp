#include "sketch/started_sketches.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_collector.hpp"
#include "sketch/device_memory.hpp"
#include "sketch/sketch_plan.hpp"

namespace twinrun {

using namespace device_batch;

std::size_t SketchGroup::size() const { return plan_ == nullptr ? 0 : plan_->metadata.size(); }

DeviceSketch SketchGroup::at(std::size_t number) const {
    DeviceSketch sketch;
    sketch.field_ = *plan_->metadata[number];
    sketch.field_.counts = {};
    sketch.field_.largest_sampled = 0;
    sketch.memory_ = memory_;
    sketch.plan_ = plan_->fields.sums[number];
    const std::size_t piece = plan_->piece_of[number];
    if (piece == SketchPlan::kNoPiece) return sketch;
    const Piece& p = plan_->batch.pieces()[piece];
    sketch.tree_ = p.tree;
    sketch.fine_ = p.fine;
    sketch.residues_ = p.residues;
    sketch.sums_ = p.sums;
    Stats stats;
    std::memcpy(&stats, stats_.data() + piece * sizeof stats, sizeof stats);
    sketch.field_.counts = stats.counts;
    std::memcpy(&sketch.field_.largest_sampled, &stats.largest, sizeof stats.largest);
    return sketch;
}

struct StartedSketches::Work {
    explicit Work(std::shared_ptr<const SketchPlan> all) : plan(std::move(all)) {
        if (plan->to_gather != 0) own_batch.emplace(plan->batch);
    }

    Result<> start(const DeviceBuildOptions& options);
    Result<> reserve(const DeviceBuildOptions& options);
    Result<> reserve_scratch(const DeviceBuildOptions& options);
    Result<> submit();
    [[nodiscard]] const Batch& batch() const { return own_batch ? *own_batch : plan->batch; }
    [[nodiscard]] std::size_t stats_bytes() const { return batch().pieces().size() * sizeof(Stats); }

    std::shared_ptr<const SketchPlan> plan;
    std::optional<Batch> own_batch;  // where arrays are gathered: laid out for the memory there is
    // The scratch memory's stream does the work: its lease ends before that of what the work
    // writes.
    std::shared_ptr<SketchMemory> memory = std::make_shared<SketchMemory>();
    DeviceWorkspaces::Lease scratch;
};

Result<> StartedSketches::Work::start(const DeviceBuildOptions& options) {
    if (plan->metadata.empty()) return success();
    TWR_CHECK(reserve(options));
    if (batch().pieces().empty()) return success();
    if (Result<> submitted = submit(); !submitted) {
        static_cast<void>(scratch->stream().wait());  // for what was put into it before
        return submitted;
    }
    return success();
}

Result<> StartedSketches::Work::reserve(const DeviceBuildOptions& options) {
    std::uint64_t gather = plan->to_gather;
    if (options.memory_bytes != 0) gather = std::min(gather, options.memory_bytes);
    if (own_batch) own_batch->lay_out(plan->tables, gather);
    const std::size_t arena = std::max<std::size_t>(batch().arena_bytes(), 1);
    TWR_TRY(memory->workspace, DeviceWorkspaces::sketches().lease(plan->device, arena));
    TWR_TRY(scratch, DeviceWorkspaces::builds().lease(plan->device));
    TWR_CHECK(memory->workspace->reserve_device(arena));
    while (batch().scratch_bytes() > scratch->device_bytes()) {
        if (own_batch && gather == plan->to_gather && gather > kSliceBytes) {
            gather = std::min(gather, available(plan->tables, plan->device, scratch->device_bytes()));
            own_batch->lay_out(plan->tables, gather);
        }
        auto reserved = scratch->reserve_device(batch().scratch_bytes());
        if (reserved) break;
        const bool smallest = !own_batch || gather <= kSliceBytes;
        if (reserved.error().code != ErrorCode::out_of_memory || smallest) return reserved;
        gather /= 2;
        own_batch->lay_out(plan->tables, gather);
    }
    return scratch->reserve_host(batch().host_bytes() + stats_bytes());
}

Result<> StartedSketches::Work::submit() {
    DeviceStream& stream = scratch->stream();
    std::byte* const arena = memory->workspace->device_memory();
    std::byte* const host = scratch->host_memory();
    TWR_CHECK(batch().submit(plan->tables, stream, arena, scratch->device_memory(), host));
    return to_result(plan->tables.runtime->copy(plan->device, host + batch().host_bytes(), arena,
                                                stats_bytes(), stream.get()));
}

StartedSketches::StartedSketches(std::unique_ptr<Work> work) : work_(std::move(work)) {}
StartedSketches::~StartedSketches() = default;

Result<std::shared_ptr<const SketchPlan>> StartedSketches::plan(std::vector<FieldMetadata> fields,
                                                                std::vector<DeviceArray> arrays) try {
    auto plan = std::make_shared<SketchPlan>(std::move(fields), std::move(arrays));
    TWR_CHECK(plan->make());
    return std::shared_ptr<const SketchPlan>(std::move(plan));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<std::unique_ptr<StartedSketches>> StartedSketches::start(std::shared_ptr<const SketchPlan> plan,
                                                                const DeviceBuildOptions& options) {
    TWR_TRY(auto started, begin(std::move(plan), options));
    TWR_CHECK(started->lead());
    return started;
}

Result<std::unique_ptr<StartedSketches>> StartedSketches::begin(std::shared_ptr<const SketchPlan> plan,
                                                                const DeviceBuildOptions& options) try {
    auto work = std::make_unique<Work>(std::move(plan));
    TWR_CHECK(work->start(options));
    return std::unique_ptr<StartedSketches>(new StartedSketches(std::move(work)));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> StartedSketches::lead() {
    Work& w = *work_;
    if (w.batch().pieces().empty()) return success();
    std::vector<StreamHandle> theirs;  // few
    for (const DeviceArray& array : w.plan->own_arrays) {
        if (std::find(theirs.begin(), theirs.end(), array.stream) != theirs.end()) continue;
        theirs.push_back(array.stream);
        TWR_CHECK(w.scratch->stream().lead(array.stream));
    }
    return success();
}

Result<std::unique_ptr<StartedSketches>> StartedSketches::start(std::vector<const FieldMetadata*> fields,
                                                                std::vector<DeviceArray> arrays,
                                                                const DeviceBuildOptions& options) try {
    auto plan = std::make_shared<SketchPlan>(std::move(fields), std::move(arrays));
    TWR_CHECK(plan->make());
    return start(std::move(plan), options);
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<std::unique_ptr<StartedSketches>> StartedSketches::start_with_residues(
    std::vector<const FieldMetadata*> fields, std::vector<DeviceArray> arrays,
    const DeviceBuildOptions& options) try {
    auto plan = std::make_shared<SketchPlan>(std::move(fields), std::move(arrays));
    plan->batch.leave_residues();
    TWR_CHECK(plan->make());
    return start(std::move(plan), options);
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> StartedSketches::wait() {
    Work& w = *work_;
    return w.batch().pieces().empty() ? success() : w.scratch->stream().wait_soon();
}

Result<SketchGroup> StartedSketches::sketches() try {
    Work& w = *work_;
    SketchGroup group;
    group.plan_ = w.plan;
    group.memory_ = w.memory;
    group.stats_.resize(w.stats_bytes());
    TWR_CHECK(wait());
    if (!group.stats_.empty()) {
        std::memcpy(group.stats_.data(), w.scratch->host_memory() + w.batch().host_bytes(),
                    group.stats_.size());
    }
    return group;
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> StartedSketches::bring(std::vector<BuiltField>& into, const TakeResidues& take) try {
    Work& w = *work_;
    const SketchPlan& plan = *w.plan;
    into.assign(plan.metadata.size(), {});
    for (std::size_t f = 0; f < into.size(); ++f) {
        if (plan.fields.sums[f] != nullptr && plan.metadata[f]->items() == 0)
            into[f].sums = {plan.fields.sums[f]->sums.height(), {}};
    }
    if (w.batch().pieces().empty()) return success();
    TWR_CHECK(wait());  // then the page-locked memory serves for the way back
    const std::size_t staging = Collector::staging_bytes(w.batch());
    TWR_CHECK(w.scratch->reserve_host(staging));
    Collector collector(plan.fields, into, take);
    return collector.collect(plan.tables, w.batch(), *w.scratch, w.memory->workspace->device_memory(),
                             w.scratch->host_memory(), staging);
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<DeviceResidues> StartedSketches::bring_but_residues(std::vector<BuiltField>& into) try {
    TWR_CHECK(bring(into));
    Work& w = *work_;
    const Batch& batch = w.batch();
    if (!batch.residues_stay()) return Error{ErrorCode::internal, "residues that were not to stay"};
    DeviceResidues left;
    left.device = w.plan->device;
    left.places.resize(w.plan->metadata.size());
    for (const Piece& p : batch.pieces())
        left.places[p.field] = p.residues - batch.residues_at();
    if (batch.pieces().empty()) return left;
    left.bytes = w.memory->workspace->device_memory() + batch.residues_at();
    left.size = batch.arena_bytes() - batch.residues_at();
    left.memory = w.memory;
    return left;
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
