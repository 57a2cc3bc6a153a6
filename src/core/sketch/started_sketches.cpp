#include "sketch/started_sketches.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_collector.hpp"
#include "sketch/device_memory.hpp"

namespace twinrun {

using namespace device_batch;

namespace {

template <class T>
std::vector<const T*> pointers_to(const std::vector<T>& objects) {
    std::vector<const T*> all;
    all.reserve(objects.size());
    for (const T& object : objects)
        all.push_back(&object);
    return all;
}

}  // namespace

struct StartedSketches::Work {
    Work(std::vector<const FieldMetadata*> all_fields, std::vector<DeviceArray> all_arrays)
        : metadata(std::move(all_fields)),
          own_arrays(std::move(all_arrays)),
          arrays(pointers_to(own_arrays)),
          fields(metadata, arrays),
          batch(fields) {}
    Work(std::vector<FieldMetadata> all_fields, std::vector<DeviceArray> all_arrays)
        : own_metadata(std::move(all_fields)),
          metadata(pointers_to(own_metadata)),
          own_arrays(std::move(all_arrays)),
          arrays(pointers_to(own_arrays)),
          fields(metadata, arrays),
          batch(fields) {}

    Result<> start(const DeviceBuildOptions& options);
    Result<> reserve(const DeviceBuildOptions& options, std::uint64_t to_gather);
    Result<> submit();
    [[nodiscard]] std::size_t stats_bytes() const { return batch.pieces().size() * sizeof(Stats); }

    std::vector<FieldMetadata> own_metadata;  // or the caller has them
    std::vector<const FieldMetadata*> metadata;
    std::vector<DeviceArray> own_arrays;
    std::vector<const DeviceArray*> arrays;
    Fields fields;
    Batch batch;
    Tables tables{};
    int device = 0;
    // The scratch memory's stream does the work: its lease ends before that of what the work
    // writes.
    std::shared_ptr<SketchMemory> memory = std::make_shared<SketchMemory>();
    DeviceWorkspaces::Lease scratch;
};

Result<> StartedSketches::Work::start(const DeviceBuildOptions& options) {
    TWR_CHECK(check_fields(fields));
    TWR_TRY(tables, device_batch::tables());
    fields.plan_sums();
    if (metadata.empty()) return success();
    device = arrays[0]->device;
    std::uint64_t to_gather = 0;
    for (std::size_t f = 0; f < metadata.size(); ++f) {
        if (arrays[f]->device != device) {
            return Error{ErrorCode::invalid_argument,
                         "sketches of arrays of several devices: build those of each by themselves"};
        }
        if (metadata[f]->items() == 0) continue;
        batch.add(fields.piece(f, 0, fields.slices(f)));
        if (!fields.dense(f)) to_gather += device_aligned(metadata[f]->data_bytes());
    }
    TWR_CHECK(reserve(options, to_gather));
    if (batch.pieces().empty()) return success();
    if (Result<> submitted = submit(); !submitted) {
        static_cast<void>(scratch->stream().wait());  // for what was put into it before
        return submitted;
    }
    return success();
}

Result<> StartedSketches::Work::reserve(const DeviceBuildOptions& options, std::uint64_t to_gather) {
    std::uint64_t gather = to_gather;
    if (options.memory_bytes != 0) gather = std::min(gather, options.memory_bytes);
    batch.lay_out(tables, gather);
    const std::size_t arena = std::max<std::size_t>(batch.arena_bytes(), 1);
    TWR_TRY(memory->workspace, DeviceWorkspaces::sketches().lease(device, arena));
    TWR_TRY(scratch, DeviceWorkspaces::builds().lease(device));
    TWR_CHECK(memory->workspace->reserve_device(arena));
    while (batch.scratch_bytes() > scratch->device_bytes()) {
        if (gather == to_gather && gather > kSliceBytes) {
            gather = std::min(gather, available(tables, device, scratch->device_bytes()));
            batch.lay_out(tables, gather);
        }
        auto reserved = scratch->reserve_device(batch.scratch_bytes());
        if (reserved) break;
        if (reserved.error().code != ErrorCode::out_of_memory || gather <= kSliceBytes) return reserved;
        gather /= 2;
        batch.lay_out(tables, gather);
    }
    return scratch->reserve_host(batch.host_bytes() + stats_bytes());
}

Result<> StartedSketches::Work::submit() {
    DeviceStream& stream = scratch->stream();
    std::byte* const arena = memory->workspace->device_memory();
    TWR_CHECK(batch.submit(tables, stream, arena, scratch->device_memory(), scratch->host_memory()));
    TWR_CHECK(to_result(tables.runtime->copy(device, scratch->host_memory() + batch.host_bytes(), arena,
                                             stats_bytes(), stream.get())));
    std::set<StreamHandle> theirs;
    for (const DeviceArray& array : own_arrays)
        theirs.insert(array.stream);
    for (const StreamHandle each : theirs)
        TWR_CHECK(stream.lead(each));
    return success();
}

StartedSketches::StartedSketches(std::unique_ptr<Work> work) : work_(std::move(work)) {}
StartedSketches::~StartedSketches() = default;

Result<std::unique_ptr<StartedSketches>> StartedSketches::start(std::vector<const FieldMetadata*> fields,
                                                                std::vector<DeviceArray> arrays,
                                                                const DeviceBuildOptions& options) try {
    auto work = std::make_unique<Work>(std::move(fields), std::move(arrays));
    TWR_CHECK(work->start(options));
    return std::unique_ptr<StartedSketches>(new StartedSketches(std::move(work)));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<std::unique_ptr<StartedSketches>> StartedSketches::start(std::vector<FieldMetadata> fields,
                                                                std::vector<DeviceArray> arrays,
                                                                const DeviceBuildOptions& options) try {
    auto work = std::make_unique<Work>(std::move(fields), std::move(arrays));
    TWR_CHECK(work->start(options));
    return std::unique_ptr<StartedSketches>(new StartedSketches(std::move(work)));
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> StartedSketches::wait() {
    Work& w = *work_;
    return w.batch.pieces().empty() ? success() : w.scratch->stream().wait();
}

Result<std::vector<DeviceSketch>> StartedSketches::sketches() try {
    Work& w = *work_;
    std::vector<DeviceSketch> all(w.metadata.size());
    for (std::size_t f = 0; f < all.size(); ++f) {
        if (w.own_metadata.empty()) {
            all[f].field_ = *w.metadata[f];
        } else {
            all[f].field_ = std::move(w.own_metadata[f]);
        }
        all[f].field_.counts = {};
        all[f].field_.largest_sampled = 0;
        all[f].memory_ = w.memory;
        all[f].plan_ = w.fields.sums[f];
    }
    TWR_CHECK(wait());  // what is above is done while the device works
    for (std::size_t i = 0; i < w.batch.pieces().size(); ++i) {
        const Piece& p = w.batch.pieces()[i];
        DeviceSketch& sketch = all[p.field];
        sketch.tree_ = p.tree;
        sketch.fine_ = p.fine;
        sketch.residues_ = p.residues;
        sketch.sums_ = p.sums;
        Stats stats;
        std::memcpy(&stats, w.scratch->host_memory() + w.batch.host_bytes() + i * sizeof stats, sizeof stats);
        sketch.field_.counts = stats.counts;
        std::memcpy(&sketch.field_.largest_sampled, &stats.largest, sizeof stats.largest);
    }
    return all;
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<> StartedSketches::bring(std::vector<BuiltField>& into, const TakeResidues& take) try {
    Work& w = *work_;
    into.assign(w.metadata.size(), {});
    for (std::size_t f = 0; f < into.size(); ++f) {
        if (w.fields.sums[f] != nullptr && w.metadata[f]->items() == 0)
            into[f].sums = {w.fields.sums[f]->sums.height(), {}};
    }
    if (w.batch.pieces().empty()) return success();
    TWR_CHECK(wait());  // then the page-locked memory serves for the way back
    const std::size_t staging = Collector::staging_bytes(w.batch);
    TWR_CHECK(w.scratch->reserve_host(staging));
    Collector collector(w.fields, into, take);
    return collector.collect(w.tables, w.batch, *w.scratch, w.memory->workspace->device_memory(),
                             w.scratch->host_memory(), staging);
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
