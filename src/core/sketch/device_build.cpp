#include "sketch/device_build.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <new>
#include <system_error>
#include <thread>

#include "base/checked.hpp"
#include "base/start_thread.hpp"
#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_collector.hpp"

namespace twinrun {

using namespace device_batch;

namespace {

// Where the next batch begins.
struct Cursor {
    std::size_t field = 0;  // index into the fields of this device
    std::uint64_t slice = 0;
};

// Fills a batch from the cursor on, as far as `budget` bytes of device memory reach, at least with
// one slice. `mine`: the fields of this device. Returns where the next one begins.
Cursor fill_batch(const Fields& fields, std::span<const std::size_t> mine, const Tables& tables, Cursor from,
                  std::uint64_t budget, Batch& batch) {
    std::uint64_t to_gather = 0;
    std::uint64_t slice_to_gather = 0;
    for (std::size_t i = from.field; i < mine.size(); ++i) {
        const FieldMetadata& field = *fields.fields[mine[i]];
        if (fields.dense(mine[i])) continue;
        to_gather += device_aligned(field.data_bytes());
        slice_to_gather = std::max(slice_to_gather,
                                   std::min<std::uint64_t>(kSliceBytes, device_aligned(field.data_bytes())));
    }
    std::uint64_t room = budget;  // for the arena and the small rest
    for (;;) {
        batch.clear();
        std::uint64_t gather = to_gather;
        if (room != kNoLimit) gather = std::max(slice_to_gather, std::min(to_gather, room / 2));
        std::uint64_t left = room == kNoLimit ? kNoLimit : room > gather ? room - gather : 0;
        Cursor at = from;
        std::uint64_t slices = 0;
        while (at.field < mine.size()) {
            const std::size_t f = mine[at.field];
            const std::uint64_t all = fields.slices(f) - at.slice;
            std::uint64_t count = all;
            if (count != 0 && left != kNoLimit) {
                const std::uint64_t cost = Batch::arena_bytes_of(fields.piece(f, at.slice, count));
                if (cost > left) {
                    // A part of the field: every slice costs the same, and a little comes on top.
                    const std::uint64_t one = Batch::arena_bytes_of(fields.piece(f, at.slice, 1));
                    count = std::min(left / one, all - (all > 1 ? 1 : 0));
                    if (count == 0) {
                        if (slices != 0) break;
                        count = 1;
                    }
                }
                left -= std::min(left, Batch::arena_bytes_of(fields.piece(f, at.slice, count)));
            }
            if (count != 0) batch.add(fields.piece(f, at.slice, count));
            slices += count;
            if (count < all) {
                at.slice += count;
                break;
            }
            ++at.field;
            at.slice = 0;
        }
        batch.lay_out(tables, gather);
        const std::uint64_t need = batch.arena_bytes() + batch.scratch_bytes();
        if (budget == kNoLimit || need <= budget || slices <= 1) return at;
        const std::uint64_t over = need - budget;
        room = room > over + room / 16 ? room - over - room / 16 : 0;
    }
}

Result<std::uint64_t> build_fields_of(int device, std::span<const std::size_t> mine, const Fields& fields,
                                      std::vector<BuiltField>& into, const DeviceBuildOptions& options,
                                      const TakeResidues& take) {
    TWR_TRY(const Tables all, tables());
    TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device));
    Collector collector(fields, into, take);
    Batch batch(fields);
    std::uint64_t budget = options.memory_bytes == 0 ? kNoLimit : options.memory_bytes;
    std::uint64_t batches = 0;
    for (Cursor at; at.field < mine.size();) {
        Cursor next;
        for (;;) {
            next = fill_batch(fields, mine, all, at, budget, batch);
            const std::uint64_t need = batch.arena_bytes() + batch.scratch_bytes();
            if (need <= workspace->device_bytes()) break;
            if (budget == kNoLimit) {
                // Asked only where memory must grow: the answer takes the driver's lock.
                budget = available(all, device, workspace->device_bytes());
                if (need > budget) continue;
            }
            auto reserved =
                workspace->reserve_device(need, options.memory_bytes == 0 ? kNoLimit : options.memory_bytes);
            if (reserved) break;
            const bool smallest =
                batch.pieces().size() <= 1 && batch.pieces()[0].items <= fields.slice_items(mine[at.field]);
            if (reserved.error().code != ErrorCode::out_of_memory || smallest)
                return std::move(reserved).error();
            budget = std::min(budget, need) / 2;
        }
        if (!batch.pieces().empty()) {
            const std::size_t host = round_up(batch.host_bytes(), kPageBytes);
            const std::size_t staging = Collector::staging_bytes(batch);
            TWR_CHECK(workspace->reserve_host(host + staging));
            std::byte* const arena = workspace->device_memory();
            TWR_CHECK(batch.submit(all, workspace->stream(), arena, arena + batch.arena_bytes(),
                                   workspace->host_memory()));
            TWR_CHECK(
                collector.collect(all, batch, *workspace, arena, workspace->host_memory() + host, staging));
            ++batches;
        }
        at = next;
    }
    return batches;
}

}  // namespace

Result<DeviceBuildStats> build_on_device(std::span<const FieldMetadata* const> fields,
                                         std::span<const DeviceArray* const> arrays,
                                         std::vector<BuiltField>& into, const DeviceBuildOptions& options,
                                         const TakeResidues& take) try {
    const auto start = std::chrono::steady_clock::now();
    Fields all{fields, arrays};
    TWR_CHECK(check_fields(all));
    TWR_CHECK(tables());
    all.plan_sums();
    into.resize(fields.size());
    std::map<int, std::vector<std::size_t>> of_device;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        BuiltField& to = into[f];
        to.tree.clear();
        to.fine.clear();
        to.residues.clear();
        to.counts = {};
        to.largest = 0;
        to.sums.reset();
        if (all.sums[f] != nullptr && fields[f]->items() == 0) to.sums = {all.sums[f]->sums.height(), {}};
        if (fields[f]->items() != 0) of_device[arrays[f]->device].push_back(f);
    }
    struct Work {
        int device;
        std::span<const std::size_t> mine;
        Result<std::uint64_t> result = std::uint64_t{0};
    };
    std::vector<Work> work;
    for (const auto& [device, mine] : of_device)
        work.push_back({device, mine});
    const auto run = [&](Work& w) {
        try {
            w.result = build_fields_of(w.device, w.mine, all, into, options, take);
        } catch (const std::bad_alloc&) {
            w.result = no_memory();
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t w = 1; w < work.size(); ++w) {
            try {
                others.push_back(start_thread<std::jthread>([&run, &one = work[w]] { run(one); }));
            } catch (const std::system_error&) {  // no thread can be started: this one does it
                run(work[w]);
            }
        }
        if (!work.empty()) run(work[0]);
    }
    DeviceBuildStats stats;
    for (Work& w : work) {
        if (!w.result) return std::move(w.result).error();
        stats.batches += *w.result;
    }
    stats.devices = work.size();
    stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return stats;
} catch (const std::bad_alloc&) {
    return no_memory();
} catch (const std::system_error& e) {
    return Error{ErrorCode::out_of_memory, std::string("no thread for another device: ") + e.what()};
}

}  // namespace twinrun
