// The runtime: devices, memory, streams, events, copies.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

// What an event marked last.
struct Mark {
    std::shared_ptr<Stream> stream;
    std::uint64_t at = 0;
    double time = 0;  // milliseconds; 0: not yet
};
struct Event {
    int device = 0;
    bool timed = false;
    std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};
std::map<EventHandle, std::unique_ptr<Event>> events;

DeviceStatus versions(int* runtime, int* driver) {
    FAKE_ENTER(kVersions);
    *runtime = *driver = 13000;
    return {};
}
DeviceStatus count(int* number) {
    *number = 0;
    FAKE_ENTER(kCount);
    *number = devices();
    return {};
}
DeviceStatus describe(int device, DeviceFacts* facts) {
    FAKE_ENTER(kDescribe, device);
    std::snprintf(facts->name, sizeof facts->name, "fake");
    std::snprintf(facts->bus, sizeof facts->bus, "fake:%d", device);
    facts->compute_major = 9;
    facts->multiprocessors = 1;
    facts->memory_bytes = memory_of_each();
    facts->free_bytes = free_bytes(device);
    facts->usable = true;
    return {};
}
DeviceStatus free_memory(int device, std::uint64_t* bytes) {
    FAKE_ENTER(kFreeMemory, device);
    *bytes = free_bytes(device);
    return {};
}
DeviceStatus place_of(const void* memory, int* device) {
    *device = kHostMemory;
    FAKE_ENTER(kPlaceOf);
    if (const auto* block = block_of(memory); block != nullptr) *device = block->second.device;
    return {};
}
DeviceStatus page_locked(const void* memory, bool* is) {
    FAKE_ENTER(kPageLocked);
    const auto* block = block_of(memory);
    *is = block != nullptr && block->second.device == kHostMemory;
    return {};
}
DeviceStatus allocate(int device, std::size_t bytes, void** memory) {
    FAKE_ENTER(kAllocate, device);
    return take(device, bytes, memory);
}
void release(int device, void* memory) { drop(device, memory); }
DeviceStatus allocate_host(std::size_t bytes, void** memory) {
    FAKE_ENTER(kAllocateHost);
    return take(kHostMemory, bytes, memory);
}
void release_host(void* memory) { drop(kHostMemory, memory); }

DeviceStatus make_stream(int device, StreamHandle* stream) {
    FAKE_ENTER(kMakeStream, device);
    *stream = add_stream(device);
    return {};
}
void release_stream(int, StreamHandle handle) {
    const Lock lock(lock_of_all);
    drop_stream(handle);
}
DeviceStatus wait_stream(int device, StreamHandle handle) {
    FAKE_ENTER(kWaitStream, device);
    const auto stream = stream_of(device, handle);
    if (stream == nullptr) return failure(ErrorCode::internal, device, "no such stream");
    stream->finish();
    return after_waiting(device);
}

DeviceStatus make_event(int device, bool timed, EventHandle* event) {
    FAKE_ENTER(kMakeEvent, device);
    auto made = std::make_unique<Event>();
    made->device = device;
    made->timed = timed;
    *event = made.get();
    events[*event] = std::move(made);
    return {};
}
void drop_event(int, EventHandle event) {
    const Lock lock(lock_of_all);
    if (events.erase(event) == 0) {
        std::fprintf(stderr, "fake device: an event that was not made here is dropped\n");
        std::abort();
    }
}
DeviceStatus record(int device, EventHandle event, StreamHandle handle) {
    FAKE_ENTER(kRecord, device);
    const auto stream = stream_of(device, handle);
    const auto found = events.find(event);
    if (stream == nullptr || found == events.end() || stream->device != device ||
        found->second->device != device) {
        return failure(ErrorCode::internal, device, "an event or stream that is not one of this device");
    }
    // What waits for what it marked before goes on waiting for that.
    auto mark = found->second->mark = std::make_shared<Mark>();
    stream->push([mark] {
        mark->time =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
                .count();
    });
    mark->stream = stream;
    mark->at = stream->put;
    return {};
}
void finish(const std::shared_ptr<Mark>& mark) {
    if (mark->stream == nullptr) return;
    const auto stream = mark->stream;
    stream->run(mark->at);
    mark->stream = nullptr;  // a mark in a stream's own work must not hold the stream
}
DeviceStatus stream_wait(int device, StreamHandle handle, EventHandle event) {
    FAKE_ENTER(kStreamWait, device);
    const auto found = events.find(event);
    if (found == events.end()) return failure(ErrorCode::internal, device, "no such event");
    return push(device, handle, [mark = found->second->mark] { finish(mark); });
}
DeviceStatus wait_event(int device, EventHandle event) {
    FAKE_ENTER(kWaitEvent, device);
    const auto found = events.find(event);
    if (found == events.end()) return failure(ErrorCode::internal, device, "no such event");
    finish(found->second->mark);
    return after_waiting(device);
}
unsigned asked_ahead = 0;

}  // namespace

void work_ahead(unsigned every) { asked_ahead = every; }

namespace {

// A device works on while nobody waits for it: who asks again finds it done, and with work_ahead() in some cases who asks for the
// first time.
DeviceStatus event_done(int device, EventHandle event, bool* done) {
    FAKE_ENTER(kEventDone, device);
    const auto found = events.find(event);
    if (found == events.end()) return failure(ErrorCode::internal, device, "no such event");
    static unsigned asked = 0;
    if (asked_ahead != 0 && ++asked % asked_ahead == 0) finish(found->second->mark);
    *done = found->second->mark->stream == nullptr;
    finish(found->second->mark);
    return after_waiting(device);
}
DeviceStatus elapsed(int device, EventHandle begin, EventHandle end, float* milliseconds) {
    FAKE_ENTER(kElapsed, device);
    const auto a = events.find(begin);
    const auto b = events.find(end);
    if (a == events.end() || b == events.end() || !a->second->timed || !b->second->timed ||
        a->second->mark->time == 0 || b->second->mark->time == 0) {
        return failure(ErrorCode::internal, device,
                       "the time between events that are not timed, or not done");
    }
    *milliseconds = static_cast<float>(b->second->mark->time - a->second->mark->time);
    return {};
}

DeviceStatus copy(int device, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
    FAKE_ENTER(kCopy, device);
    if (bytes == 0) return {};
    const auto place = [](const void* at) {
        const auto* block = block_of(at);
        return block == nullptr ? kMostDevices : block->second.device;  // kMostDevices: pageable
    };
    const int place_to = place(to);
    const int place_from = place(from);
    if ((place_to != kMostDevices && !lies_on(place_to, to, bytes)) ||
        (place_from != kMostDevices && !lies_on(place_from, from, bytes))) {
        return failure(ErrorCode::internal, device, "copy: it goes over the end of memory");
    }
    // From pageable memory the driver takes what is there now; into it, it waits until all is done.
    std::shared_ptr<std::vector<std::byte>> taken;
    if (place_from == kMostDevices && place_to != kMostDevices) {
        const auto* const begin = static_cast<const std::byte*>(from);
        taken = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
    }
    const DeviceStatus put = push(device, stream, [=] {
        if ((place_to != kMostDevices && !lies_on(place_to, to, bytes)) ||
            (place_from != kMostDevices && !lies_on(place_from, from, bytes))) {
            return trouble(device, "copy: memory that was released before its work was done");
        }
        std::memmove(to, taken != nullptr ? taken->data() : from, bytes);
    });
    if (put.failed || place_to != kMostDevices) return put;
    stream_of(device, stream)->finish();
    return after_waiting(device);
}
DeviceStatus fill(int device, void* to, int byte, std::size_t bytes, StreamHandle stream) {
    FAKE_ENTER(kFill, device);
    if (bytes == 0) return {};
    return push(device, stream, [=] {
        Checker checker(device, "fill");
        checker.memory(to, bytes, 1, "its memory");
        if (checker.ok()) std::memset(to, byte, bytes);
    });
}

}  // namespace

std::uint64_t event_count() { return events.size(); }

// By name, so that a new member does not go wrong silently.
const DeviceRuntime kRuntime = {.name = "fake",
                                .versions = versions,
                                .count = count,
                                .describe = describe,
                                .free_memory = free_memory,
                                .place_of = place_of,
                                .page_locked = page_locked,
                                .allocate = allocate,
                                .release = release,
                                .allocate_host = allocate_host,
                                .release_host = release_host,
                                .make_stream = make_stream,
                                .drop_stream = release_stream,
                                .wait_stream = wait_stream,
                                .make_event = make_event,
                                .drop_event = drop_event,
                                .record = record,
                                .stream_wait = stream_wait,
                                .wait_event = wait_event,
                                .elapsed = elapsed,
                                .copy = copy,
                                .fill = fill,
                                .event_done = event_done};

}  // namespace twinrun::fake
