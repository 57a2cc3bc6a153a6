#include "capture/device_stage.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "base/start_thread.hpp"
#include "device/device.hpp"
#include "sketch/device_sums.hpp"
#include "source/device_array.hpp"

namespace twinrun {

namespace {

// The device's own copy is a twentieth faster for a large array (8.6 GB on an H200: 4.55 and
// 4.8 ms), and takes some microseconds to ask for.
constexpr std::uint64_t kOwnCopy = std::uint64_t{64} << 20;

std::size_t room_for(const DeviceArray& array) {
    return device_aligned(array.items() * item_bytes(array.dtype));
}

}  // namespace

DeviceStage::~DeviceStage() {
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

bool DeviceStage::holds(std::span<const DeviceArray> arrays, std::uint64_t more) const {
    for (const DeviceArray& array : arrays)
        more += room_for(array);
    return more <= limit_;
}

std::shared_ptr<StagedArrays> DeviceStage::take(std::span<const FieldMetadata* const> fields,
                                                std::span<const DeviceArray* const> arrays, bool keep_data,
                                                std::uint64_t more, double& waited) {
    std::uint64_t bytes = more;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        if (keep_data) {
            bytes += room_for(*arrays[i]);
            continue;
        }
        for (const Section section : {Section::tree, Section::fine, Section::residues})
            bytes += device_aligned(fields[i]->section_bytes(section));
        bytes += device_aligned(device_sums_bytes(*fields[i]));
    }
    if (keep_data && bytes > limit_) return nullptr;
    auto staged = std::make_unique<StagedArrays>();
    try {
        if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
    } catch (const std::exception&) {
        return nullptr;  // no thread can be started that would bring the arrays to the host
    }
    {
        std::unique_lock lock(pool_->mutex);
        const auto fits = [&] { return pool_->used == 0 || pool_->used + bytes <= limit_; };
        if (!fits()) {
            const auto start = std::chrono::steady_clock::now();
            pool_->changed.wait(lock, fits);
            waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        pool_->used += bytes;
    }
    staged->bytes = bytes;
    bool filled = false;
    try {
        filled = fill(*staged, fields, arrays, keep_data);
    } catch (const std::exception&) {  // not enough memory
    }
    if (!filled) {
        staged->memory.clear();  // not into the pool: copies that were begun may still write there
        pool_->give_back(std::move(staged));
        return nullptr;
    }
    return {staged.release(),
            [pool = pool_](StagedArrays* of) { pool->give_back(std::unique_ptr<StagedArrays>(of)); }};
}

void DeviceStage::Pool::give_back(std::unique_ptr<StagedArrays> staged) {
    staged->sketches.clear();
    const std::lock_guard guard(mutex);
    used -= staged->bytes;
    try {
        for (auto& [device, memory] : staged->memory)
            free[device].push_back(std::move(memory));
    } catch (const std::exception&) {  // no memory for the list: the memory is freed
    }
    changed.notify_all();
}

bool DeviceStage::fill(StagedArrays& staged, std::span<const FieldMetadata* const> fields,
                       std::span<const DeviceArray* const> arrays, bool keep_data) {
    if (keep_data) return copy(staged, arrays).ok();
    std::map<int, std::vector<std::size_t>> on;
    for (std::size_t i = 0; i < arrays.size(); ++i)
        on[arrays[i]->device].push_back(i);
    bool ordered = true;
    for (auto& [device, numbers] : on) {
        std::vector<const FieldMetadata*> own_fields;
        std::vector<DeviceArray> own_arrays;
        for (const std::size_t i : numbers) {
            own_fields.push_back(fields[i]);
            own_arrays.push_back(*arrays[i]);
            ordered = ordered && arrays[i]->ordered;
        }
        auto started = StartedSketches::start(std::move(own_fields), std::move(own_arrays));
        if (!started) return false;
        staged.sketches.push_back({std::move(numbers), std::move(started).value()});
    }
    for (const auto& on_one : staged.sketches) {
        if (!ordered && !on_one.sketches->wait()) return false;
    }
    return true;
}

Result<> DeviceStage::copy(StagedArrays& staged, std::span<const DeviceArray* const> arrays) {
    const DeviceRuntime* runtime = device_runtime();
    const DeviceElementKernels* elements = device_element_kernels();
    if (runtime == nullptr || elements == nullptr)
        return Error{ErrorCode::unsupported, "no library for devices"};
    std::map<int, std::size_t> room;
    for (const DeviceArray* array : arrays)
        room[array->device] += room_for(*array);
    for (const auto& [device, bytes] : room) {
        DeviceMemory memory(device);
        {
            const std::lock_guard guard(pool_->mutex);
            auto& free = pool_->free[device];
            const auto fits = std::find_if(free.begin(), free.end(),
                                           [&, n = bytes](const DeviceMemory& m) { return m.bytes() >= n; });
            if (fits != free.end()) {
                memory = std::move(*fits);
                free.erase(fits);
            } else {
                free.clear();  // all are too small: steps have grown
            }
        }
        TWR_CHECK(memory.reserve(device, std::max<std::size_t>(bytes, kDeviceAlignment)));
        staged.memory.emplace(device, std::move(memory));
    }
    // Arrays by the thousand come from one stream, and are small: what a device is asked for each
    // of them takes longer than the copies.
    struct OnOne {
        DeviceStream stream;
        std::set<StreamHandle> followed;
        std::vector<DeviceCopy> copies;
        std::size_t used = 0;
    };
    std::map<int, OnOne> on;
    for (const DeviceArray* array : arrays) {
        auto found = on.find(array->device);
        if (found == on.end()) {
            TWR_TRY(DeviceStream made, DeviceStream::create(array->device));
            found = on.emplace(array->device, OnOne{std::move(made), {}, {}, 0}).first;
        }
        OnOne& one = found->second;
        if (one.followed.insert(array->stream).second) TWR_CHECK(one.stream.follow(array->stream));
        std::byte* const to = staged.memory.at(array->device).data() + one.used;
        one.used += room_for(*array);
        const std::uint64_t items = array->items();
        const std::uint64_t bytes = items * item_bytes(array->dtype);
        if (items != 0 && array->dense() && bytes >= kOwnCopy) {
            TWR_CHECK(to_result(runtime->copy(array->device, to, array->data, bytes, one.stream.get())));
        } else if (items != 0 && array->dense()) {
            one.copies.push_back({array->data, to, bytes});
        } else if (items != 0) {
            TWR_CHECK(to_result(
                elements->gather(array->device, gather_of(*array, 0, items, to), one.stream.get())));
        }
        DeviceArray copy = *array;
        copy.data = to;
        copy.strides.clear();
        copy.swap = false;
        copy.stream = nullptr;  // the copy is complete when take() returns
        copy.owner.reset();
        staged.copies.push_back(std::move(copy));
    }
    for (auto& [device, one] : on) {
        TWR_CHECK(
            to_result(elements->copy_all(device, one.copies.data(), one.copies.size(), one.stream.get())));
    }
    for (auto& [device, one] : on)
        TWR_CHECK(one.stream.wait_soon());
    return success();
}

void DeviceStage::hand_over(std::shared_ptr<StagedArrays> staged, std::function<void()> work) {
    {
        const std::lock_guard guard(mutex_);
        tasks_.push_back({std::move(staged), std::move(work)});
    }
    changed_.notify_all();
}

void DeviceStage::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task.work();
        task = {};
        lock.lock();
    }
}

}  // namespace twinrun
