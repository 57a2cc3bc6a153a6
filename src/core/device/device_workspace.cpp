#include "device/device_workspace.hpp"

#include <algorithm>
#include <atomic>

#include "base/checked.hpp"

namespace twinrun {

namespace {

std::atomic<std::uint64_t> allocations{0};

// Memory grows by a share of itself at least, so that fields that grow a little from step to step
// rarely make it grow.
constexpr std::size_t kStep = 1 << 20;
std::size_t with_room(std::size_t bytes) { return round_up(bytes + bytes / 8, kStep); }

}  // namespace

std::uint64_t device_workspace_allocations() { return allocations.load(); }

Result<std::unique_ptr<DeviceWorkspace>> DeviceWorkspace::create(int device) {
    TWR_TRY(auto stream, DeviceStream::create(device));
    std::unique_ptr<DeviceWorkspace> made(new DeviceWorkspace(std::move(stream)));
    for (DeviceEvent& mark : made->marks_)
        TWR_CHECK(mark.make(device));
    ++allocations;
    return made;
}

Result<> DeviceWorkspace::reserve_device(std::size_t bytes, std::size_t most) {
    if (bytes <= memory_.bytes()) return success();
    ++allocations;
    if (memory_.reserve(device(), std::max(bytes, std::min(with_room(bytes), most)))) return success();
    if (memory_.reserve(device(), bytes)) return success();
    // Memory that unused workspaces hold may be the memory that is missing.
    DeviceWorkspaces::release_all_idle(device());
    return memory_.reserve(device(), bytes);
}

Result<> DeviceWorkspace::reserve_host(std::size_t bytes) {
    if (bytes <= pinned_.bytes()) return success();
    ++allocations;
    const std::size_t needed = round_up(bytes, 64 << 10);
    if (pinned_.reserve(kHostMemory, needed)) return success();
    DeviceWorkspaces::release_all_idle();
    return pinned_.reserve(kHostMemory, needed);
}

Result<> DeviceWorkspace::mark(std::size_t number) { return marks_[number].record(stream_.get()); }

Result<> DeviceWorkspace::wait_mark(std::size_t number) { return marks_[number].wait(); }

DeviceWorkspaces::Lease::~Lease() {
    if (workspace_ == nullptr) return;
    // Work may be under way if the lease ends by an error. Where waiting fails, the device is lost
    // to this process, or work that nobody will wait for uses the memory: releasing it waits for
    // the device.
    if (workspace_->stream().wait()) pool_->give_back(std::move(workspace_));
}

Result<DeviceWorkspaces::Lease> DeviceWorkspaces::lease(int device, std::size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        auto& idle = idle_[device];
        if (!idle.empty()) {
            const auto best = std::max_element(idle.begin(), idle.end(), [&](const auto& x, const auto& y) {
                const std::size_t of_x = x->device_bytes();
                const std::size_t of_y = y->device_bytes();
                if (of_x < bytes || of_y < bytes) return of_x < of_y;
                return of_x > of_y;
            });
            std::unique_ptr<DeviceWorkspace> found = std::move(*best);
            idle.erase(best);
            return Lease(*this, std::move(found));
        }
    }
    auto made = DeviceWorkspace::create(device);
    if (!made && made.error().code == ErrorCode::out_of_memory) {
        release_all_idle(device);
        made = DeviceWorkspace::create(device);
    }
    if (!made) return std::move(made).error();
    return Lease(*this, std::move(made).value());
}

void DeviceWorkspaces::release_idle(int device) {
    std::vector<std::unique_ptr<DeviceWorkspace>> ended;
    const std::lock_guard lock(mutex_);
    for (auto& [number, idle] : idle_) {
        if (device != kHostMemory && number != device) continue;
        for (auto& workspace : idle)
            ended.push_back(std::move(workspace));
        idle.clear();
    }
}

void DeviceWorkspaces::give_back(std::unique_ptr<DeviceWorkspace> workspace) {
    const std::lock_guard lock(mutex_);
    const int device = workspace->device();
    idle_[device].push_back(std::move(workspace));
}

void DeviceWorkspaces::release_all_idle(int device) {
    for (DeviceWorkspaces* pool : {&builds(), &sketches(), &copies(), &slices(), &buffers()})
        pool->release_idle(device);
}

DeviceWorkspaces& DeviceWorkspaces::builds() {
    static auto* const pool = new DeviceWorkspaces;
    return *pool;
}
DeviceWorkspaces& DeviceWorkspaces::sketches() {
    static auto* const pool = new DeviceWorkspaces;
    return *pool;
}
DeviceWorkspaces& DeviceWorkspaces::copies() {
    static auto* const pool = new DeviceWorkspaces;
    return *pool;
}
DeviceWorkspaces& DeviceWorkspaces::slices() {
    static auto* const pool = new DeviceWorkspaces;
    return *pool;
}
DeviceWorkspaces& DeviceWorkspaces::buffers() {
    static auto* const pool = new DeviceWorkspaces;
    return *pool;
}

}  // namespace twinrun
