#include <cstring>

#include "device/device.hpp"
#include "digest/digest_device.hpp"
#include "engine/device_compare.hpp"
#include "engine/device_place.hpp"
#include "engine/device_team.hpp"
#include "engine/sketch_job.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

class DeviceSketchJob final : public SketchJob {
   public:
    template <class... Arguments>
    explicit DeviceSketchJob(DeviceTeam& team, Arguments&&... arguments)
        : SketchJob(std::forward<Arguments>(arguments)...), team_(team) {}
    [[nodiscard]] std::size_t most_slots() const override { return kDeviceSlots; }
    [[nodiscard]] std::size_t most_under_way() const override { return kDeviceLanes; }
    Result<std::byte*> allocate(int worker, std::size_t bytes) override {
        return team_.buffers(worker, bytes);
    }
    Result<> process(std::uint64_t, std::byte*, int) override {
        return Error{ErrorCode::internal, "work for a device went to the host"};
    }

    Result<bool> begin(std::uint64_t slice, std::byte* buffer, int worker) override {
        return team_.begin(worker,
                           [&](int device, DeviceLane& lane) { return start(slice, buffer, device, lane); });
    }
    Result<> finish(std::uint64_t slice, std::byte*, int worker) override {
        TWR_TRY(const DeviceLane* const lane, team_.finish(worker));
        const std::byte* const answer = lane->space->host_memory();
        std::array<std::uint64_t, 8> counts{};
        std::memcpy(counts.data(), answer, sizeof counts);
        add_counts(worker, counts);
        const auto* proven = reinterpret_cast<const std::uint8_t*>(answer + kDeviceAlignment);
        const ReadPlan& plan = reads();
        for (std::uint64_t w = plan.slices[slice].begin; w < plan.slices[slice].end; ++w) {
            for (std::size_t p = plan.windows[w].first_part; p < plan.windows[w].last_part; ++p) {
                for (std::uint64_t c = plan.parts[p].begin; c < plan.parts[p].end; ++c) {
                    if (*proven++ == 0) leave_open(slice, c);
                }
            }
        }
        return success();
    }

   private:
    // Device: both sides' pages, counts, verdicts, numbers of chunks. Host: counts, verdicts,
    // numbers.
    Result<> start(std::uint64_t slice, std::byte* buffer, int device, DeviceLane& lane) {
        const DeviceRuntime* runtime = device_runtime();
        const ReadPlan& plan = reads();
        DeviceWorkspace& space = *lane.space;
        const StreamHandle stream = space.stream().get();
        std::uint64_t chunks = 0;
        for (std::uint64_t w = plan.slices[slice].begin; w < plan.slices[slice].end; ++w) {
            for (std::size_t p = plan.windows[w].first_part; p < plan.windows[w].last_part; ++p)
                chunks += plan.parts[p].size();
        }
        const std::size_t side = device_aligned(room());
        const std::size_t answer_at = 2 * side;
        const std::size_t answer_bytes = kDeviceAlignment + device_aligned(chunks);
        const std::size_t list_bytes = device_aligned(chunks * sizeof(std::uint32_t));
        TWR_CHECK(space.reserve_device(answer_at + answer_bytes + list_bytes));
        TWR_CHECK(space.reserve_host(answer_bytes + list_bytes));
        std::byte* const memory = space.device_memory();
        std::byte* const answer = memory + answer_at;
        auto* const list = reinterpret_cast<std::uint32_t*>(space.host_memory() + answer_bytes);
        const auto* const list_there = reinterpret_cast<const std::uint32_t*>(answer + answer_bytes);

        std::vector<DeviceSketchItem> items;
        std::size_t used = 0;
        std::uint64_t seen = 0;
        bool lists = false;
        const auto there = [&](const std::byte* host) {
            const auto offset = static_cast<std::size_t>(host - buffer);
            return offset < room() ? memory + offset : memory + side + (offset - room());
        };
        TWR_CHECK(for_each_window(
            slice, buffer, [&](const Window& window, const Sketches& at, std::size_t until) -> Result<> {
                used = until;
                DeviceSketchItem item = proof().device_item({window.begin, window.end});
                item.fine_a = reinterpret_cast<const std::uint64_t*>(there(at.fine[0]));
                item.fine_b = reinterpret_cast<const std::uint64_t*>(there(at.fine[1]));
                item.residues_a = there(at.residues[0]);
                item.residues_b = there(at.residues[1]);
                item.proven = reinterpret_cast<std::uint8_t*>(answer + kDeviceAlignment + seen);
                item.counts = reinterpret_cast<std::uint64_t*>(answer);
                const std::uint64_t from = seen;
                for (std::size_t p = window.first_part; p < window.last_part; ++p) {
                    for (std::uint64_t c = plan.parts[p].begin; c < plan.parts[p].end; ++c)
                        list[seen++] = static_cast<std::uint32_t>(c - window.begin);
                }
                item.count = seen - from;
                if (item.count != window.end - window.begin) {
                    item.chunks = list_there + from;
                    lists = true;
                }
                items.push_back(item);
                return success();
            }));
        TWR_CHECK(lane.begin.record(stream));
        TWR_CHECK(to_result(runtime->copy(device, memory, buffer, used, stream)));
        TWR_CHECK(to_result(runtime->copy(device, memory + side, buffer + room(), used, stream)));
        if (lists) {
            TWR_CHECK(
                to_result(runtime->copy(device, answer + answer_bytes, list, seen * sizeof *list, stream)));
        }
        TWR_CHECK(to_result(runtime->fill(device, answer, 0, answer_bytes, stream)));
        for (const DeviceSketchItem& item : items)
            TWR_CHECK(to_result(device_digest_kernels()->sketch(device, item, stream)));
        TWR_CHECK(to_result(runtime->copy(device, space.host_memory(), answer, answer_bytes, stream)));
        return lane.end.record(stream);
    }

    DeviceTeam& team_;
};

}  // namespace

Result<DeviceSketches> check_sketches_on(std::span<const int> devices, MetadataFile& a, std::size_t field_a,
                                         MetadataFile& b, std::size_t field_b, std::span<const Range> chunks,
                                         const ChunkProof& proof, bool elements_at_hand, CacheUse cache,
                                         const StreamOptions& options) {
    TWR_CHECK(check_device_tables());
    if (devices.empty()) return Error{ErrorCode::internal, "no device to compare on"};
    std::uint64_t bytes = 0;
    for (const Range& r : chunks)
        bytes += r.size() * (proof.shape().residue_bytes_per_chunk + 8) * 2;
    StreamOptions stream = options;
    stream.threads = device_team_size(devices.size(), kWorkersPerDevice, bytes, worker_count(options));
    return with_fitting_slices(kDeviceSketchBytes, [&](std::size_t size) -> Result<DeviceSketches> {
        DeviceSketches found;
        TWR_TRY(const auto team, DeviceTeam::create(devices, stream.threads, {}));
        device_has_started();
        DeviceSketchJob job(*team, a, field_a, b, field_b, chunks, proof, elements_at_hand, cache,
                            stream.threads, size);
        TWR_TRY(found.outcome.stream, run_slices(job, stream));
        found.outcome.device_seconds = team->seconds();
        found.open = job.open();
        found.chunks_read = job.chunks_read();
        found.counts = job.counts();
        return found;
    });
}

}  // namespace twinrun
