#include "engine/device_team.hpp"

#include "base/checked.hpp"
#include "device/device.hpp"
#include "digest/digest_device.hpp"
#include "element/element_device.hpp"

namespace twinrun {

namespace {

// The stream waits for the array, which may lie on another device.
Result<> follow(const DeviceArray& array, DeviceStream& stream) {
    DeviceEvent event;
    TWR_CHECK(event.make(array.device));
    TWR_CHECK(event.record(array.stream));
    return event.hold_up(stream.device(), stream.get());
}

}  // namespace

Result<std::unique_ptr<DeviceTeam>> DeviceTeam::create(std::span<const int> devices, int workers,
                                                       std::array<const DeviceArray*, 2> arrays) {
    std::unique_ptr<DeviceTeam> team(new DeviceTeam);
    team->devices_.assign(devices.begin(), devices.end());
    team->arrays_ = arrays;
    team->workers_.resize(static_cast<std::size_t>(workers));
    team->origins_ = std::vector<DeviceEvent>(devices.size());
    for (std::size_t d = 0; d < devices.size(); ++d) {
        TWR_TRY(Worker* const worker, team->worker(static_cast<int>(d)));
        TWR_CHECK(team->origins_[d].make(devices[d], true));
        TWR_CHECK(team->origins_[d].record(worker->lanes[0].space->stream().get()));
    }
    return team;
}

Result<DeviceTeam::Worker*> DeviceTeam::worker(int number) {
    auto& place = workers_[static_cast<std::size_t>(number)];
    if (place != nullptr) return place.get();
    auto made = std::make_unique<Worker>();
    made->device = devices_[static_cast<std::size_t>(number) % devices_.size()];
    for (DeviceLane& lane : made->lanes) {
        TWR_TRY(lane.space, DeviceWorkspaces::slices().lease(made->device));
        TWR_CHECK(lane.begin.make(made->device, true));
        TWR_CHECK(lane.end.make(made->device, true));
        for (const DeviceArray* array : arrays_) {
            if (array != nullptr) TWR_CHECK(follow(*array, lane.space->stream()));
        }
    }
    place = std::move(made);
    return place.get();
}

Result<std::byte*> DeviceTeam::buffers(int number, std::size_t bytes) {
    TWR_TRY(Worker* const mine, worker(number));
    if (!mine->buffers) {
        TWR_TRY(mine->buffers, DeviceWorkspaces::buffers().lease(mine->device));
    }
    TWR_CHECK(mine->buffers->reserve_host(bytes + kDirectAlignment));
    const auto address = reinterpret_cast<std::uintptr_t>(mine->buffers->host_memory());
    return mine->buffers->host_memory() + (round_up(address, kDirectAlignment) - address);
}

Result<DeviceLane*> DeviceTeam::finish(int number) {
    TWR_TRY(Worker* const mine, worker(number));
    DeviceLane& lane = mine->lanes[mine->finished++ % kDeviceLanes];
    TWR_CHECK(lane.end.wait());
    DeviceEvent& origin = origins_[static_cast<std::size_t>(number) % devices_.size()];
    TWR_CHECK(origin.wait());  // done long ago, but in a stream that perhaps nobody has waited for
    TWR_TRY(const double begin, lane.begin.seconds_since(origin));
    TWR_TRY(const double end, lane.end.seconds_since(origin));
    mine->busy.push_back({begin, end});
    return &lane;
}

double DeviceTeam::seconds() const {
    double all = 0;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
        std::vector<Worker::Interval> busy;
        for (std::size_t w = d; w < workers_.size(); w += devices_.size()) {
            if (workers_[w] != nullptr)
                busy.insert(busy.end(), workers_[w]->busy.begin(), workers_[w]->busy.end());
        }
        std::sort(busy.begin(), busy.end(), [](const auto& x, const auto& y) { return x.begin < y.begin; });
        double until = 0;
        for (const auto& [begin, end] : busy) {
            if (end > until) all += end - std::max(begin, until);
            until = std::max(until, end);
        }
    }
    return all;
}

Result<> check_device_tables() {
    if (device_runtime() == nullptr || device_difference_kernels() == nullptr ||
        device_digest_kernels() == nullptr || device_element_kernels() == nullptr) {
        return Error{ErrorCode::unsupported,
                     probe_devices().reason.empty()
                         ? std::string("the device library lacks kernels: install it again")
                         : probe_devices().reason};
    }
    return success();
}

int device_team_size(std::size_t devices, int a_device, std::uint64_t bytes, int threads) {
    const auto useful = static_cast<int>(std::clamp<std::uint64_t>(bytes / kBytesPerDeviceWorker / devices, 1,
                                                                   static_cast<std::uint64_t>(a_device)));
    const int all =
        std::min(useful * static_cast<int>(devices), std::max(threads, static_cast<int>(devices)));
    return std::max(all, static_cast<int>(devices));
}

}  // namespace twinrun
