// A device library without a device: all tables that the core asks for, on the host, with the portable kernels and host memory
// in place of devices'. What surrounds the kernels (slices, orders of streams, scratch memory, pools, errors) is tested with
// it on any machine; it is never installed.
//
//   TWINRUN_CUDA_LIBRARY=…/libtwinrun_fake_device.so test_engine --gtest_filter='Device*'
//
// Streams are as lazy as they may be: work is done when somebody waits for it, so that a wait that is missing shows as wrong
// data. Memory is filled with rubbish when it is given and when it goes back. Kernels refuse addresses that are not on their
// device, or not aligned; scratch memory on the host that changes before the kernel has run is an error.
//
//   TWINRUN_FAKE_DEVICES=2                  how many; 1 where it is not set
//   TWINRUN_FAKE_DEVICE_MEMORY=30000000     bytes of each
//   TWINRUN_FAKE_DEVICE_FAIL=copy:3:io      the third call of `copy` fails, once; copy:3+:io: and all after it. Functions:
//                                           kNames below, or any (each call counted). Codes:
//                                           out_of_memory (where none is given), io, unsupported, internal; or lost: io, and
//                                           so does every later call for that device, whose work is never done
#include "support/fake_device.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dedup/dedup_device.hpp"
#include "difference/difference_device.hpp"
#include "digest/digest_device.hpp"
#include "digest/field61.hpp"
#include "digest/sums_device.hpp"
#include "digest/values.hpp"
#include "element/element_device.hpp"
#include "record/compression.hpp"
#include "record/pack_device.hpp"
#include "tree/build.hpp"
#include "tree/tree_device.hpp"
#include "tree/walk.hpp"

namespace twinrun {
namespace {

constexpr std::size_t kScratch = 512;  // bytes an item: what overlaps them shows
constexpr int kMostDevices = 16;
constexpr int kFresh = 0xCD;
constexpr int kReleased = 0xDD;

// One lock for all: what a stream does, it does in the thread that waits, with the lock held.
std::recursive_mutex lock_of_all;
using Lock = std::lock_guard<std::recursive_mutex>;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}
int devices() {
    static const int once =
        static_cast<int>(std::min<std::uint64_t>(number_of("TWINRUN_FAKE_DEVICES", 1), kMostDevices));
    return once;
}
std::uint64_t memory_of_each() {
    static const std::uint64_t once = number_of("TWINRUN_FAKE_DEVICE_MEMORY", std::uint64_t{8} << 30);
    return once;
}

DeviceStatus failure(ErrorCode code, int device, const std::string& text) {
    DeviceStatus status;
    status.failed = true;
    status.code = code;
    std::snprintf(status.text, sizeof status.text, "cuda:%d: fake device: %s", device, text.c_str());
    return status;
}

// ---- faults ----

enum Function : std::uint8_t {
    kVersions,
    kCount,
    kDescribe,
    kFreeMemory,
    kPlaceOf,
    kPageLocked,
    kAllocate,
    kAllocateHost,
    kMakeStream,
    kWaitStream,
    kMakeEvent,
    kRecord,
    kStreamWait,
    kWaitEvent,
    kEventDone,
    kElapsed,
    kCopy,
    kFill,
    kGather,
    kDigestCall,
    kSketch,
    kAddSums,
    kBuild,
    kWalk,
    kCompare,
    kFindChanged,
    kListChanged,
    kHashContent,
    kHashChunks,
    kInsert,
    kCountByUse,
    kTakeOut,
    kPutIn,
    kLookUp,
    kPlaceAll,
    kJoin,
    kJoinTree,
    kConsolidate,
    kKeepBase,
    kMoveBase,
    kScatter,
    kPackLibrary,
    kPackScratch,
    kPack,
    kFunctions,
};
constexpr const char* kNames[kFunctions + 1] = {
    "versions",     "count",         "describe",     "free_memory",  "place_of",    "page_locked",
    "allocate",     "allocate_host", "make_stream",  "wait_stream",  "make_event",  "record",
    "stream_wait",  "wait_event",    "event_done",   "elapsed",      "copy",        "fill",
    "gather",       "digest",        "sketch",       "add_sums",     "build",       "walk",
    "compare",      "find_changed",  "list_changed", "hash_content", "hash_chunks", "insert",
    "count_by_use", "take_out",      "put_in",       "look_up",      "place_all",   "join",
    "join_tree",    "consolidate",   "keep_base",    "move_base",    "scatter",     "pack_library",
    "pack_scratch", "pack",          nullptr,
};

struct Fault {
    int function = -1;  // kFunctions: any; -1: none
    std::uint64_t number = 0;
    bool always = false;
    ErrorCode code = ErrorCode::out_of_memory;
    bool lost = false;
};
Fault fault;
std::array<std::uint64_t, kFunctions> calls_made{};
std::uint64_t calls_failed = 0;
std::array<bool, kMostDevices> lost{};

bool parse(const std::string& text, Fault& into) {
    into = {};
    if (text.empty()) return true;
    const std::size_t first = text.find(':');
    if (first == std::string::npos) return false;
    const std::size_t second = text.find(':', first + 1);
    const std::string name = text.substr(0, first);
    Fault read;
    for (int f = 0; f < kFunctions; ++f) {
        if (name == kNames[f]) read.function = f;
    }
    if (name == "any") read.function = kFunctions;
    char* end = nullptr;
    read.number = std::strtoull(text.c_str() + first + 1, &end, 10);
    read.always = *end == '+';
    const std::string code = second == std::string::npos ? "out_of_memory" : text.substr(second + 1);
    if (code == "io" || code == "lost") {
        read.code = ErrorCode::io;
    } else if (code == "unsupported") {
        read.code = ErrorCode::unsupported;
    } else if (code == "internal") {
        read.code = ErrorCode::internal;
    } else if (code != "out_of_memory") {
        return false;
    }
    read.lost = code == "lost";
    if (read.function < 0 || read.number == 0) return false;
    into = read;
    return true;
}

struct Stream;
void abandon(int device);  // what is under way there

// At the beginning of every call that may fail. What is the host's counts as the first device's.
DeviceStatus enter(Function function, int device = 0) {
    static const bool once = [] {
        const char* text = std::getenv("TWINRUN_FAKE_DEVICE_FAIL");
        if (text != nullptr && !parse(text, fault)) {
            std::fprintf(stderr, "fake device: TWINRUN_FAKE_DEVICE_FAIL=%s is not understood\n", text);
            std::abort();
        }
        return true;
    }();
    static_cast<void>(once);
    ++calls_made[function];
    if (device < 0 || device >= std::max(devices(), 1))
        return failure(ErrorCode::unsupported, device, std::string(kNames[function]) + ": no such device");
    const auto d = static_cast<std::size_t>(device);
    const bool counts = !lost[d] && (fault.function == function || fault.function == kFunctions);
    if (counts && --fault.number == 0) {
        if (fault.always) {
            fault.number = 1;
        } else {
            fault.function = -1;
        }
        ++calls_failed;
        if (fault.lost) {
            lost[d] = true;
            abandon(device);
        }
        return failure(fault.code, device, std::string(kNames[function]) + ": made to fail");
    }
    if (lost[d])
        return failure(ErrorCode::io, device, std::string(kNames[function]) + ": the device is lost");
    return {};
}
#define FAKE_ENTER(...)           \
    const Lock lock(lock_of_all); \
    if (const DeviceStatus entered = enter(__VA_ARGS__); entered.failed) return entered

// ---- memory ----

struct Block {
    int device;
    std::size_t bytes;
};
std::map<const std::byte*, Block> blocks;
std::array<std::uint64_t, kMostDevices> used{};

const std::pair<const std::byte* const, Block>* block_of(const void* memory) {
    const auto* at = static_cast<const std::byte*>(memory);
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return nullptr;
    --next;
    return at < next->first + next->second.bytes ? &*next : nullptr;
}

// Whether all of it lies in one block. device: kHostMemory for page-locked memory.
bool lies_on(int device, const void* memory, std::size_t bytes) {
    if (bytes == 0) return true;
    const auto* block = block_of(memory);
    return block != nullptr && block->second.device == device &&
           bytes <= block->second.bytes -
                        static_cast<std::size_t>(static_cast<const std::byte*>(memory) - block->first);
}

DeviceStatus take(int device, std::size_t bytes, void** memory) {
    *memory = nullptr;
    const bool here = device >= 0;
    if (here && bytes > memory_of_each() - std::min(memory_of_each(), used[static_cast<std::size_t>(device)]))
        return failure(ErrorCode::out_of_memory, device, "not enough device memory");
    *memory = std::aligned_alloc(256, (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256);
    if (*memory == nullptr)
        return failure(ErrorCode::out_of_memory, std::max(device, 0), "not enough memory");
    std::memset(*memory, kFresh, bytes);
    blocks[static_cast<const std::byte*>(*memory)] = {device, bytes};
    if (here) used[static_cast<std::size_t>(device)] += bytes;
    return {};
}

void finish_all(int device);

void drop(int device, void* memory) {
    const Lock lock(lock_of_all);
    if (memory == nullptr) return;
    const auto found = blocks.find(static_cast<const std::byte*>(memory));
    if (found == blocks.end() || found->second.device != device) {
        std::fprintf(stderr, "fake device: memory that was not given here is released\n");
        std::abort();
    }
    // As the driver does: it waits for the device.
    for (int d = 0; d < kMostDevices; ++d) {
        if (device == kHostMemory || d == device) finish_all(d);
    }
    if (device >= 0) used[static_cast<std::size_t>(device)] -= found->second.bytes;
    std::memset(memory, kReleased, found->second.bytes);
    blocks.erase(found);
    std::free(memory);
}

// ---- streams ----

struct Stream {
    int device;
    std::deque<std::function<void()>> work;
    std::uint64_t put = 0;
    std::uint64_t done = 0;

    void push(std::function<void()> what) {
        work.push_back(std::move(what));
        ++put;
    }
    void run(std::uint64_t until) {
        while (done < until && !work.empty()) {
            const auto what = std::move(work.front());
            work.pop_front();
            ++done;
            what();
        }
    }
    void finish() { run(put); }
};

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

std::map<StreamHandle, std::shared_ptr<Stream>> streams;
std::map<EventHandle, std::unique_ptr<Event>> events;
std::vector<std::shared_ptr<Stream>> dropped;    // with work in them that goes on
std::array<std::string, kMostDevices> troubles;  // of kernels, told to whoever waits

std::shared_ptr<Stream> stream_of(int device, StreamHandle handle) {
    static std::array<std::shared_ptr<Stream>, kMostDevices> defaults;
    if (handle == nullptr) {
        auto& stream = defaults[static_cast<std::size_t>(device)];
        if (stream == nullptr) stream = std::make_shared<Stream>(Stream{device, {}, 0, 0});
        return stream;
    }
    const auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

void for_each_stream(int device, const std::function<void(Stream&)>& what) {
    std::vector<std::shared_ptr<Stream>> all = dropped;
    for (const auto& [handle, stream] : streams)
        all.push_back(stream);
    all.push_back(stream_of(device, nullptr));
    for (const auto& stream : all) {
        if (stream->device == device) what(*stream);
    }
    std::erase_if(dropped, [](const auto& stream) { return stream->work.empty(); });
}

void finish_all(int device) {
    for_each_stream(device, [](Stream& stream) { stream.finish(); });
}

void abandon(int device) {
    for_each_stream(device, [](Stream& stream) {
        stream.work.clear();
        stream.done = stream.put;
    });
}

void trouble(int device, const std::string& text) {
    std::string& all = troubles[static_cast<std::size_t>(device)];
    if (all.empty()) all = text;
    std::fprintf(stderr, "fake device: cuda:%d: %s\n", device, text.c_str());
}
DeviceStatus after_waiting(int device) {
    std::string& text = troubles[static_cast<std::size_t>(device)];
    if (text.empty()) return {};
    return failure(ErrorCode::internal, device, std::exchange(text, {}));
}

// Checks what a kernel is given.
class Checker {
   public:
    Checker(int device, const char* kernel) : device_(device), kernel_(kernel) {}
    void memory(const void* at, std::size_t bytes, std::size_t alignment, const char* what) {
        if (bytes == 0) return;
        if (!lies_on(device_, at, bytes)) fail(what, "is not memory of this device");
        aligned(at, alignment, what);
    }
    void memory_or_locked(const void* at, std::size_t bytes, std::size_t alignment, const char* what) {
        if (bytes == 0) return;
        if (!lies_on(device_, at, bytes) && !lies_on(kHostMemory, at, bytes))
            fail(what, "is neither memory of this device nor page-locked");
        aligned(at, alignment, what);
    }
    void locked(const void* at, std::size_t bytes, const char* what) {
        if (!lies_on(kHostMemory, at, bytes)) fail(what, "is not page-locked");
    }
    void require(bool holds, const char* what, const char* why) {
        if (!holds) fail(what, why);
    }
    [[nodiscard]] bool ok() const { return ok_; }

   private:
    void aligned(const void* at, std::size_t alignment, const char* what) {
        if (reinterpret_cast<std::uintptr_t>(at) % alignment != 0) fail(what, "is misaligned");
    }
    void fail(const char* what, const char* why) {
        ok_ = false;
        trouble(device_, std::string(kernel_) + ": " + what + " " + why);
    }
    int device_;
    const char* kernel_;
    bool ok_ = true;
};

// The scratch memory of a call: rubbish on the device; on the host something that must still be there when its work is done.
class Scratch {
   public:
    Scratch(void* device_memory, std::size_t device_bytes, void* host_memory, std::size_t host_bytes)
        : device_memory_(device_memory),
          device_bytes_(device_bytes),
          host_memory_(static_cast<std::uint8_t*>(host_memory)),
          host_bytes_(host_bytes) {
        static std::uint8_t next = 0;
        value_ = ++next;
    }
    // When the call is made.
    void prepare() const {
        if (host_bytes_ != 0) std::memset(host_memory_, value_, host_bytes_);
    }
    // When its work is done.
    void check(Checker& checker) const {
        checker.memory(device_memory_, device_bytes_, 16, "scratch memory");
        checker.locked(host_memory_, host_bytes_, "scratch memory on the host");
        if (!checker.ok()) return;
        checker.require(std::all_of(host_memory_, host_memory_ + host_bytes_,
                                    [this](std::uint8_t x) { return x == value_; }),
                        "scratch memory on the host", "changed before its work was done");
        if (device_bytes_ != 0) std::memset(device_memory_, 0xEE, device_bytes_);
    }

   private:
    void* device_memory_;
    std::size_t device_bytes_;
    std::uint8_t* host_memory_;
    std::size_t host_bytes_;
    std::uint8_t value_;
};

DeviceStatus push(int device, StreamHandle handle, std::function<void()> what) {
    const auto stream = stream_of(device, handle);
    if (stream == nullptr || stream->device != device)
        return failure(ErrorCode::internal, device, "a stream that is not one of this device");
    stream->push(std::move(what));
    return {};
}

// ---- the runtime ----

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
    facts->free_bytes = memory_of_each() - used[static_cast<std::size_t>(device)];
    facts->usable = true;
    return {};
}
DeviceStatus free_memory(int device, std::uint64_t* bytes) {
    FAKE_ENTER(kFreeMemory, device);
    *bytes = memory_of_each() - used[static_cast<std::size_t>(device)];
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
    auto made = std::make_shared<Stream>(Stream{device, {}, 0, 0});
    *stream = made.get();
    streams[*stream] = std::move(made);
    return {};
}
void drop_stream(int, StreamHandle handle) {
    const Lock lock(lock_of_all);
    const auto found = streams.find(handle);
    if (found == streams.end()) {
        std::fprintf(stderr, "fake device: a stream that was not made here is dropped\n");
        std::abort();
    }
    if (!found->second->work.empty()) dropped.push_back(found->second);
    streams.erase(found);
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
// A device works on while nobody waits for it: who asks again finds it done.
DeviceStatus event_done(int device, EventHandle event, bool* done) {
    FAKE_ENTER(kEventDone, device);
    const auto found = events.find(event);
    if (found == events.end()) return failure(ErrorCode::internal, device, "no such event");
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
                                .drop_stream = drop_stream,
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

// ---- elements ----

void gather_now(int device, const DeviceGather& g) {
    std::int64_t low = 0;
    std::int64_t high = static_cast<std::int64_t>(g.item_bytes);
    for (int d = 0; d < g.dimensions; ++d) {
        const std::int64_t reach = (static_cast<std::int64_t>(g.shape[d]) - 1) * g.strides[d];
        if (g.shape[d] != 0) (reach < 0 ? low : high) += reach;
    }
    Checker checker(device, "gather");
    checker.memory(static_cast<const std::byte*>(g.from) + low, static_cast<std::size_t>(high - low), 1,
                   "what it reads");
    checker.memory(g.to, g.count * g.item_bytes, g.item_bytes, "what it writes");
    if (!checker.ok()) return;
    const auto* from = static_cast<const std::byte*>(g.from);
    auto* to = static_cast<std::byte*>(g.to);
    for (std::uint64_t i = g.first; i < g.first + g.count; ++i, to += g.item_bytes) {
        std::uint64_t rest = i;
        std::int64_t at = 0;
        for (int d = g.dimensions; d-- > 0;) {
            at += static_cast<std::int64_t>(rest % g.shape[d]) * g.strides[d];
            rest /= g.shape[d];
        }
        std::memcpy(to, from + at, g.item_bytes);
        for (std::uint32_t s = 0; g.swap_bytes != 0 && s < g.item_bytes; s += g.swap_bytes)
            std::reverse(to + s, to + s + g.swap_bytes);
    }
}
DeviceStatus gather(int device, const DeviceGather& what, StreamHandle stream) {
    FAKE_ENTER(kGather, device);
    const bool known = what.item_bytes == 1 || what.item_bytes == 2 || what.item_bytes == 4 ||
                       what.item_bytes == 8 || what.item_bytes == 16;
    if (!known || what.dimensions < 0 || what.dimensions > kMostGatherDimensions)
        return failure(ErrorCode::invalid_argument, device,
                       "gather: items or dimensions that it does not know");
    if (what.count == 0) return {};
    return push(device, stream, [=] { gather_now(device, what); });
}
const DeviceElementKernels kElement = {.gather = gather};

// ---- digests ----

void raise_largest(const DeviceDigestItem& item, const ElementView& view) {
    const std::uint64_t slice = (1 << 20) / item_bytes(item.scalar);
    const ComputeType type = compute_type(item.scalar);
    for (std::uint64_t at = 0; at < item.scalars; at += slice) {
        for (std::uint64_t k = at; k < std::min(at + slice, item.scalars); k += 1021) {
            alignas(64) std::byte staging[64];
            const void* value = load(view, k, 1, staging);
            double x = 0;
            if (type == ComputeType::f32) {
                float f = 0;
                std::memcpy(&f, value, 4);
                x = static_cast<double>(f);
            } else if (type == ComputeType::f64) {
                std::memcpy(&x, value, 8);
            }
            x = std::fabs(x);
            if (!std::isfinite(x)) continue;
            std::uint64_t word = 0;
            std::memcpy(&word, &x, 8);
            *item.largest = std::max(*item.largest, word);
        }
    }
}

void digest_now(int device, const DeviceDigestItem& item) {
    if (item.scalars == 0) return;
    Digester digester(item.settings, item.scalar, Backend::portable);
    const ElementView view = dense_view(item.scalar, item.data);
    const std::size_t per_chunk = digester.shape().chunk_scalars;
    const std::size_t chunks = (item.scalars + per_chunk - 1) / per_chunk;
    const unsigned bits = item.settings.rule.residue_bits;
    const bool published = item.settings.kind == DigestKind::published;
    std::size_t residue_bytes = 0;
    if (item.residues != nullptr && bits != 0) {
        residue_bytes = item.scalars / per_chunk * digester.shape().residue_bytes_per_chunk +
                        chunk_residue_bytes(item.scalar, item.scalars % per_chunk, bits);
    }
    Checker checker(device, "digest");
    checker.memory(item.data, item.scalars * item_bytes(item.scalar), item_bytes(item.scalar), "its data");
    checker.memory(item.leaves, chunks * (published ? 16 : 8), 8, "its leaves");
    if (item.fine != nullptr) checker.memory(item.fine, chunks * 8, 8, "its fine digests");
    checker.memory(item.residues, residue_bytes, 1, "its residues");
    if (item.counts != nullptr) checker.memory(item.counts, sizeof *item.counts, 8, "its counts");
    if (item.largest != nullptr) checker.memory(item.largest, 8, 8, "its largest");
    if (!checker.ok()) return;
    std::vector<ChunkDigest> digests(chunks);
    std::vector<std::byte> residues(chunks * digester.shape().residue_bytes_per_chunk);
    ElementCounts counts;
    digester.chunks(view, 0, item.scalars, digests.data(), bits != 0 ? residues.data() : nullptr, &counts);
    for (std::size_t c = 0; c < digests.size(); ++c) {
        if (published) {
            item.leaves[2 * c] = digests[c].fine;
            item.leaves[2 * c + 1] = digests[c].coarse;
        } else {
            item.leaves[c] = digests[c].coarse;
            if (item.fine != nullptr) item.fine[c] = digests[c].fine;
        }
    }
    if (residue_bytes != 0) std::memcpy(item.residues, residues.data(), residue_bytes);
    if (item.counts != nullptr) item.counts->add(counts);
    if (item.largest != nullptr) raise_largest(item, view);
}

void digest_scratch(const DeviceDigestItem*, std::size_t n, std::size_t* device_bytes,
                    std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus digest(int device, const DeviceDigestItem* items, std::size_t n, void* scratch,
                    void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kDigestCall, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DeviceDigestItem>(items, items + n)] {
        Checker checker(device, "digest");
        area.check(checker);
        for (std::size_t i = 0; checker.ok() && i < all.size(); ++i)
            digest_now(device, all[i]);
    });
}

void sketch_now(int device, const DeviceSketchItem& item) {
    const ChunkShape shape = chunk_shape(item.scalar, item.chunk_bytes, item.residue_bits);
    const std::uint64_t chunks = (item.scalars + shape.chunk_scalars - 1) / shape.chunk_scalars;
    const std::size_t residue_bytes = item.scalars / shape.chunk_scalars * shape.residue_bytes_per_chunk;
    Checker checker(device, "sketch");
    checker.memory(item.fine_a, chunks * 8, 8, "a's fine digests");
    checker.memory(item.fine_b, chunks * 8, 8, "b's fine digests");
    checker.memory(item.residues_a, residue_bytes, 16, "a's residues");
    checker.memory(item.residues_b, residue_bytes, 16, "b's residues");
    if (item.chunks != nullptr) checker.memory(item.chunks, item.count * 4, 4, "its chunks");
    checker.memory(item.proven, item.count, 1, "its verdicts");
    checker.memory(item.counts, 64, 8, "its counts");
    if (!checker.ok()) return;
    for (std::uint64_t i = 0; i < item.count; ++i) {
        const std::uint64_t c = item.chunks == nullptr ? i : item.chunks[i];
        if (c >= chunks) return trouble(device, "sketch: a chunk that is not there");
        const auto n = static_cast<std::size_t>(
            std::min<std::uint64_t>(shape.chunk_scalars, item.scalars - c * shape.chunk_scalars));
        const std::size_t at = c * shape.residue_bytes_per_chunk;
        const SketchVerdict verdict =
            check_sketch(kPortableDigest, shape, n, item.residue_bits, item.widest, item.fine_a[c],
                         item.fine_b[c], item.residues_a + at, item.residues_b + at);
        item.proven[i] = verdict.proven ? 1 : 0;
        for (std::size_t k = 0; verdict.proven && k < 8; ++k)
            item.counts[k] += verdict.counts[k];
    }
}
DeviceStatus sketch(int device, const DeviceSketchItem& item, StreamHandle stream) {
    FAKE_ENTER(kSketch, device);
    return push(device, stream, [=] { sketch_now(device, item); });
}
const DeviceDigestKernels kDigest = {.scratch = digest_scratch, .digest = digest, .sketch = sketch};

// ---- sums of digests: scalar by scalar ----

void add_sums_now(int device, const DeviceSumsItem& item, const std::vector<std::uint64_t>& buckets) {
    const std::size_t size = item_bytes(item.scalar);
    Checker checker(device, "add_sums");
    checker.memory(item.data, item.count * size, size, "its data");
    checker.memory(item.halves, item.bucket_count * kSumsWords * 8, 8, "its sums");
    if (!checker.ok()) return;
    const std::uint64_t block = kBlockBytes / size;
    const FloatEnvironment guard(environment_of(item.rule));
    const ElementView view = dense_view(item.scalar, item.data);
    std::uint64_t behind_last = 0;
    std::uint64_t power = 1;
    for (std::uint64_t i = 0; i < item.count; ++i) {
        std::uint64_t row = (item.first + i) / item.row_scalars;
        std::uint64_t index = item.base + (item.first + i) % item.row_scalars;
        for (std::uint32_t k = 0; k < item.axis_count; ++k) {
            index += row % item.axes[k].extent * item.axes[k].stride;
            row /= item.axes[k].extent;
        }
        alignas(64) std::byte staging[64];
        const void* at = load(view, i, 1, staging);
        const auto value = [&](int shift) {
            const auto of = [&]<class T>(T x) {
                std::memcpy(&x, at, sizeof x);
                return field_value(cell_for(x, item.rule, shift));
            };
            switch (compute_type(item.scalar)) {
                case ComputeType::f32: return of(float{});
                case ComputeType::f64: return of(double{});
                case ComputeType::i64: return of(std::int64_t{});
                case ComputeType::u64: return of(std::uint64_t{});
            }
            return std::uint64_t{0};
        };
        const std::uint64_t behind = (item.bucket_scalars - 1 - index % item.bucket_scalars) / block;
        if (behind != behind_last) power = power61(kRho, behind_last = behind);
        const std::uint64_t weight = multiply61(coefficient(index % block), power);
        const std::uint64_t bucket = index / item.bucket_scalars;
        std::uint64_t slot = bucket - item.first_bucket;
        if (!buckets.empty()) {
            slot = static_cast<std::uint64_t>(std::lower_bound(buckets.begin(), buckets.end(), bucket) -
                                              buckets.begin());
        }
        if (slot >= item.bucket_count || (!buckets.empty() && buckets[slot] != bucket))
            return trouble(device, "add_sums: a bucket that is not there");
        std::uint64_t* const to = item.halves + slot * kSumsWords;
        const std::uint64_t coarse = multiply61(weight, value(item.rule.coarse_shift));
        const std::uint64_t fine = multiply61(weight, value(0));
        to[0] += coarse & 0xFFFFFFFF;
        to[1] += coarse >> 32;
        to[2] += fine & 0xFFFFFFFF;
        to[3] += fine >> 32;
    }
}
void sums_scratch(const DeviceSumsItem*, std::size_t n, std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus add_sums(int device, const DeviceSumsItem* items, std::size_t n, void* scratch,
                      void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kAddSums, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    // Buckets are the caller's until this call is over.
    std::vector<std::vector<std::uint64_t>> buckets(n);
    for (std::size_t i = 0; i < n; ++i) {
        const DeviceSumsItem& item = items[i];
        if (item.buckets != nullptr) buckets[i].assign(item.buckets, item.buckets + item.bucket_count);
        for (std::uint64_t w = 0; w < item.words; ++w) {
            std::uint64_t slot = item.before[w];
            for (unsigned bit = 0; bit < 64; ++bit) {
                if ((item.bits[w] >> bit & 1) == 0) continue;
                const bool own = slot >= item.first_slot && slot - item.first_slot < item.bucket_count;
                if (own) buckets[i].push_back(item.first_bucket + w * 64 + bit);
                ++slot;
            }
        }
    }
    return push(device, stream,
                [=, all = std::vector<DeviceSumsItem>(items, items + n), own = std::move(buckets)] {
                    Checker checker(device, "add_sums");
                    area.check(checker);
                    for (std::size_t i = 0; checker.ok() && i < all.size(); ++i)
                        add_sums_now(device, all[i], own[i]);
                });
}
const DeviceSumsKernels kSums = {.scratch = sums_scratch, .add = add_sums};

// ---- trees ----

void tree_scratch(const DeviceTreeItem*, std::size_t n, std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus build(int device, const DeviceTreeItem* items, std::size_t n, void* scratch, void* host_scratch,
                   StreamHandle stream) {
    FAKE_ENTER(kBuild, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DeviceTreeItem>(items, items + n)] {
        Checker checker(device, "build");
        area.check(checker);
        for (const DeviceTreeItem& item : all) {
            const TreeLayout layout{item.leaves};
            const std::size_t words = node_words(item.kind);
            checker.memory(item.nodes, layout.nodes() * words * 8, 8, "its nodes");
            if (!checker.ok()) return;
            if (item.leaves == 0) continue;
            const std::uint64_t* leaves = item.nodes + layout.first(0) * words;
            const std::vector<std::uint64_t> nodes =
                build_tree(item.kind, item.blocks_per_chunk, {leaves, item.leaves * words});
            std::copy(nodes.begin(), nodes.end(), item.nodes);
        }
    });
}
std::size_t walk_scratch(std::uint64_t leaves) { return leaves / 8 + kScratch; }
DeviceStatus walk(int device, const std::uint64_t* a, const std::uint64_t* b, std::uint64_t leaves,
                  DigestKind kind, std::uint32_t* chunks, std::uint64_t* number, void* scratch,
                  StreamHandle stream) {
    FAKE_ENTER(kWalk, device);
    return push(device, stream, [=] {
        const TreeLayout layout{leaves};
        const std::size_t words = node_words(kind);
        const std::size_t nodes = leaves == 0 ? 0 : layout.nodes() * words;
        Checker checker(device, "walk");
        checker.memory(number, 8, 8, "its count");
        checker.memory(a, nodes * 8, 8, "a's nodes");
        checker.memory(b, nodes * 8, 8, "b's nodes");
        checker.memory(chunks, leaves * 4, 4, "its chunks");
        checker.memory(scratch, walk_scratch(leaves), 8, "scratch memory");
        if (!checker.ok()) return;
        std::memset(scratch, 0xEE, walk_scratch(leaves));
        *number = 0;
        if (leaves == 0) return;
        MemoryNodes nodes_a({a, nodes}, words);
        MemoryNodes nodes_b({b, nodes}, words);
        const auto walked = walk_trees(layout, words, nodes_a, nodes_b);
        if (!walked) return trouble(device, walked.error().message);
        for (const Range& r : walked->chunks) {
            for (std::uint64_t c = r.begin; c < r.end; ++c)
                chunks[(*number)++] = static_cast<std::uint32_t>(c);
        }
    });
}
const DeviceTreeKernels kTree = {
    .build_scratch = tree_scratch, .build = build, .walk_scratch = walk_scratch, .walk = walk};

// ---- differences ----

void difference_scratch(int, const DeviceDifference&, const DevicePart*, std::size_t n,
                        std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * 64 + kScratch;
    *host_bytes = n * 32 + 64;
}
// Adds a part, chunk by chunk.
void compare_part(const DeviceDifference& what, const DevicePart& part, DeviceDifferenceResult& result) {
    for (std::uint64_t at = 0; at < part.scalars; at += what.chunk_scalars) {
        DifferenceStats chunk;  // of its own: a sum over all would lose more bits than a device's
        compare_elements(kPortableDifference, dense_view(what.scalar, part.a),
                         dense_view(what.scalar, part.b), at, std::min(what.chunk_scalars, part.scalars - at),
                         part.index + at, what.rule, &chunk);
        result.stats.merge(chunk);
        if (chunk.different != 0) ++result.different_chunks;
    }
}
void check_parts(Checker& checker, const DeviceDifference& what, const std::vector<DevicePart>& parts) {
    const std::size_t item = item_bytes(what.scalar);
    for (const DevicePart& part : parts) {
        checker.memory(part.a, part.scalars * item, item, "a");
        checker.memory(part.b, part.scalars * item, item, "b");
    }
}
DeviceStatus compare(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                     DeviceDifferenceResult* result, void* scratch, void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kCompare, device);
    const Scratch area(scratch, n * 64 + kScratch, host_scratch, n * 32 + 64);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DevicePart>(parts, parts + n)] {
        Checker checker(device, "compare");
        area.check(checker);
        checker.memory_or_locked(result, sizeof *result, 8, "its result");
        check_parts(checker, what, all);
        if (!checker.ok()) return;
        *result = {};
        for (const DevicePart& part : all)
            compare_part(what, part, *result);
    });
}
DeviceStatus compare_pairs(int device, const DeviceDifference& what, const DevicePart* parts, std::size_t n,
                           DevicePairResult* results, void* scratch, void* host_scratch,
                           StreamHandle stream) {
    FAKE_ENTER(kCompare, device);
    const Scratch area(scratch, n * 64 + kScratch, host_scratch, n * 32 + 64);
    area.prepare();
    return push(device, stream, [=, all = std::vector<DevicePart>(parts, parts + n)] {
        Checker checker(device, "compare_pairs");
        area.check(checker);
        checker.memory(results, n * sizeof *results, 8, "its results");
        check_parts(checker, what, all);
        for (const DevicePart& part : all)
            checker.require(part.scalars != 0, "a part", "is empty");
        checker.require(
            *std::max_element(what.rule.measure.period.begin(), what.rule.measure.period.end()) == 0,
            "a measure", "has circles");
        if (!checker.ok()) return;
        for (std::size_t i = 0; i < n; ++i) {
            DevicePairResult& result = results[i];
            result = {};
            compare_part(what, all[i], result.found);
            const DifferenceStats& stats = result.found.stats;
            const auto bits = [&](const void* run, std::uint64_t at) {
                std::uint64_t value = 0;
                const std::size_t item = item_bytes(what.scalar);
                if (at != kNowhere) {
                    std::memcpy(&value, static_cast<const std::byte*>(run) + (at - all[i].index) * item,
                                item);
                }
                return value;
            };
            result.first_bits[0] = bits(all[i].a, stats.first);
            result.first_bits[1] = bits(all[i].b, stats.first);
            result.largest_bits[0] = bits(all[i].a, stats.max_abs_at);
            result.largest_bits[1] = bits(all[i].b, stats.max_abs_at);
        }
    });
}
const DeviceDifferenceKernels kDifference = {.scratch = difference_scratch,
                                             .compare = compare,
                                             .pairs_scratch = difference_scratch,
                                             .compare_pairs = compare_pairs};

// ---- de-duplication: chunk by chunk, in order ----

namespace dedup {

std::size_t scan_scratch(int, std::uint64_t items) { return items / 4 + kScratch; }
// Scratch memory of a scan is rubbish afterwards.
void scan(Checker& checker, void* scratch, std::size_t bytes, std::uint64_t items) {
    checker.require(bytes >= scan_scratch(0, items), "scratch memory", "is too small");
    checker.memory(scratch, bytes, 16, "scratch memory");
    if (checker.ok()) std::memset(scratch, 0xEE, bytes);
}

void check_parts(Checker& checker, const DeviceDedupPart* parts, std::uint32_t count,
                 std::uint32_t chunk_bytes) {
    checker.memory(parts, count * sizeof *parts, 8, "its parts");
    for (std::uint32_t p = 0; checker.ok() && p < count; ++p) {
        checker.memory(parts[p].data, parts[p].bytes, 1, "a part's data");
        checker.require(
            parts[p].chunks != 0 && (parts[p].bytes + chunk_bytes - 1) / chunk_bytes == parts[p].chunks,
            "a part", "has another number of chunks");
    }
}
ChunkHash hash_of(const DeviceDedupPart& part, std::uint32_t i, std::uint32_t chunk_bytes) {
    const std::uint64_t at = std::uint64_t{i} * chunk_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, part.bytes - at);
    return bytes == chunk_bytes ? chunk_hash(part.data + at, chunk_bytes)
                                : short_chunk_hash(part.data + at, bytes, chunk_bytes);
}
void copy_chunk(const DeviceDedupPart* parts, std::uint32_t count, std::uint32_t chunk,
                std::uint32_t chunk_bytes, std::byte* to) {
    const DeviceDedupPart* part = parts;
    while (part + 1 != parts + count && part[1].first <= chunk)
        ++part;
    const std::uint64_t at = std::uint64_t{chunk - part->first} * chunk_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, part->bytes - at);
    std::memcpy(to, part->data + at, bytes);
    std::memset(to + bytes, 0, chunk_bytes - bytes);
}
bool same(const ChunkHash& a, const ChunkHash& b, const ChunkHash& mask) {
    return ((a.low ^ b.low) & mask.low) == 0 && ((a.high ^ b.high) & mask.high) == 0;
}

void find_changed_now(int device, const DeviceDedupSlice& slice, bool content_alone) {
    Checker checker(device, "find_changed");
    check_parts(checker, slice.parts, slice.part_count, slice.chunk_bytes);
    if (!content_alone) {
        checker.memory(slice.hashes, slice.chunks * sizeof(ChunkHash), 16, "its hashes");
        checker.memory(slice.words, slice.words_of() * std::size_t{4}, 4, "its marks");
        checker.memory(slice.before, (slice.words_of() + 1) * std::size_t{4}, 4, "its counts");
        scan(checker, slice.scratch, slice.scratch_bytes, slice.words_of() + 1);
    }
    if (!checker.ok()) return;
    const std::uint32_t words_each = dedup_group_chunks(slice.chunk_bytes) / 32;
    if (!content_alone) std::memset(slice.words, 0, slice.words_of() * std::size_t{4});
    std::uint32_t chunks = 0;
    std::uint32_t groups = 0;
    for (std::uint32_t p = 0; p < slice.part_count; ++p) {
        const DeviceDedupPart& part = slice.parts[p];
        checker.memory(slice.content + part.segment, 8, 8, "its content");
        checker.require(part.first == chunks && part.group == groups, "a part",
                        "is not where the one before it ends");
        if (!checker.ok()) return;
        for (std::uint32_t i = 0; i < part.chunks; ++i) {
            const ChunkHash hash = hash_of(part, i, slice.chunk_bytes);
            std::uint64_t& content = slice.content[part.segment];
            if (content_alone) {
                content += content_term(hash, part.number + i);
                continue;
            }
            ChunkHash& known = slice.hashes[part.first + i];
            if (i < part.with_base) {
                if (same(hash, known, slice.mask)) continue;
                content -= content_term(known, part.number + i);
            }
            content += content_term(hash, part.number + i);
            known = hash;
            slice.words[part.group * words_each + i / 32] |= 1U << (i % 32);
        }
        chunks += part.chunks;
        groups += (part.chunks + words_each * 32 - 1) / (words_each * 32);
    }
    checker.require(chunks == slice.chunks && groups == slice.groups, "a slice", "is not what its parts are");
    if (content_alone) return;
    std::uint32_t sum = 0;
    for (std::uint32_t w = 0; w < slice.words_of(); ++w) {
        slice.before[w] = sum;
        sum += static_cast<std::uint32_t>(std::popcount(slice.words[w]));
    }
    slice.before[slice.words_of()] = sum;
}
DeviceStatus find_changed(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    FAKE_ENTER(kFindChanged, device);
    return push(device, stream, [=] { find_changed_now(device, slice, false); });
}
DeviceStatus hash_content(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    FAKE_ENTER(kHashContent, device);
    return push(device, stream, [=] { find_changed_now(device, slice, true); });
}

DeviceStatus list_changed(int device, const DeviceDedupSlice& slice, std::uint32_t* changed,
                          StreamHandle stream) {
    FAKE_ENTER(kListChanged, device);
    return push(device, stream, [=] {
        Checker checker(device, "list_changed");
        check_parts(checker, slice.parts, slice.part_count, slice.chunk_bytes);
        checker.memory(slice.words, slice.words_of() * std::size_t{4}, 4, "its marks");
        checker.memory(slice.before, (slice.words_of() + 1) * std::size_t{4}, 4, "its counts");
        if (checker.ok())
            checker.memory(changed, slice.before[slice.words_of()] * std::size_t{4}, 4, "what changed");
        if (!checker.ok()) return;
        const std::uint32_t words_each = dedup_group_chunks(slice.chunk_bytes) / 32;
        std::uint32_t* to = changed;
        for (std::uint32_t p = 0; p < slice.part_count; ++p) {
            const DeviceDedupPart& part = slice.parts[p];
            for (std::uint32_t i = 0; i < part.chunks; ++i) {
                if ((slice.words[part.group * words_each + i / 32] >> (i % 32) & 1) != 0)
                    *to++ = part.first + i;
            }
        }
    });
}

DeviceStatus hash_chunks(int device, const std::byte* chunks, std::uint64_t count, std::uint32_t chunk_bytes,
                         ChunkHash* hashes, StreamHandle stream) {
    FAKE_ENTER(kHashChunks, device);
    return push(device, stream, [=] {
        Checker checker(device, "hash_chunks");
        checker.memory(chunks, count * chunk_bytes, 16, "its chunks");
        checker.memory(hashes, count * sizeof(ChunkHash), 16, "its hashes");
        if (checker.ok()) chunk_hashes({chunks, count * chunk_bytes}, chunk_bytes, hashes);
    });
}

constexpr std::uint64_t kUnplaced = kMostPayloadChunks;

void check_table(Checker& checker, const DeviceDedupTable& table) {
    checker.memory(table.slots, table.count * sizeof(DeviceDedupSlot), 32, "its table");
    checker.memory(table.entries, 8, 8, "its count of entries");
}
DeviceDedupSlot* slot_of(const DeviceDedupTable& table, const ChunkHash& hash, const ChunkHash& mask,
                         bool make) {
    const std::uint64_t low = std::max<std::uint64_t>(1, hash.low & mask.low);
    const std::uint64_t high = std::max<std::uint64_t>(1, hash.high & mask.high);
    for (std::uint64_t s = low & (table.count - 1), probes = 0; probes < table.count;
         s = (s + 1) & (table.count - 1), ++probes) {
        DeviceDedupSlot& slot = table.slots[s];
        if (slot.high == high && slot.low == low) return &slot;
        if (slot.high != 0) continue;
        if (!make) return nullptr;
        slot.high = high;
        slot.low = low;
        ++*table.entries;
        return &slot;
    }
    std::fprintf(stderr, "fake device: a table without room\n");
    std::abort();
}
void lower(DeviceDedupSlot& slot, Location at, std::uint32_t ordinal) {
    slot.not_at = std::max(slot.not_at, ~at);
    slot.used = ordinal;
}

DeviceStatus insert(int device, const DeviceDedupTable& table, const ChunkHash* hashes, std::uint64_t count,
                    const ChunkHash& mask, Location first, std::uint32_t ordinal, StreamHandle stream) {
    FAKE_ENTER(kInsert, device);
    return push(device, stream, [=] {
        Checker checker(device, "insert");
        check_table(checker, table);
        checker.memory(hashes, count * sizeof(ChunkHash), 16, "its hashes");
        for (std::uint64_t i = 0; checker.ok() && i < count; ++i)
            lower(*slot_of(table, hashes[i], mask, true), first + i, ordinal);
    });
}
DeviceStatus count_by_use(int device, const DeviceDedupTable& table, unsigned shift, std::uint32_t above,
                          unsigned long long* counts, StreamHandle stream) {
    FAKE_ENTER(kCountByUse, device);
    return push(device, stream, [=] {
        Checker checker(device, "count_by_use");
        check_table(checker, table);
        checker.memory(counts, 256 * 8, 8, "its counts");
        for (std::uint64_t s = 0; checker.ok() && s < table.count; ++s) {
            const DeviceDedupSlot& slot = table.slots[s];
            if (slot.high != 0 && (slot.used >> shift) >> 8 == above) ++counts[slot.used >> shift & 255];
        }
    });
}
DeviceStatus take_out(int device, const DeviceDedupTable& table, std::uint32_t used_since,
                      DeviceDedupSlot* taken, unsigned long long* number, StreamHandle stream) {
    FAKE_ENTER(kTakeOut, device);
    return push(device, stream, [=] {
        Checker checker(device, "take_out");
        check_table(checker, table);
        checker.memory(number, 8, 8, "its count");
        for (std::uint64_t s = 0; checker.ok() && s < table.count; ++s) {
            const DeviceDedupSlot& slot = table.slots[s];
            if (slot.high == 0 || slot.used < used_since) continue;
            checker.memory(taken + *number, sizeof slot, 32, "what it takes");
            if (checker.ok()) taken[(*number)++] = slot;
        }
    });
}
DeviceStatus put_in(int device, const DeviceDedupTable& table, const DeviceDedupSlot* taken,
                    std::uint64_t number, StreamHandle stream) {
    FAKE_ENTER(kPutIn, device);
    return push(device, stream, [=] {
        Checker checker(device, "put_in");
        check_table(checker, table);
        checker.memory(taken, number * sizeof *taken, 32, "what it takes");
        constexpr ChunkHash kAll{~std::uint64_t{0}, ~std::uint64_t{0}};
        for (std::uint64_t i = 0; checker.ok() && i < number; ++i) {
            DeviceDedupSlot& slot = *slot_of(table, {taken[i].low, taken[i].high}, kAll, true);
            slot.not_at = taken[i].not_at;
            slot.used = taken[i].used;
        }
    });
}

void look_up_now(int device, const DeviceLookUp& what) {
    Checker checker(device, "look_up");
    check_table(checker, what.table);
    checker.memory(what.changed, what.end * std::size_t{4}, 4, "what changed");
    checker.memory(what.slots, what.end * std::size_t{4}, 4, "its slots");
    checker.memory(what.sources, what.end * std::size_t{8}, 8, "its sources");
    checker.memory(what.places, what.end * std::size_t{4}, 4, "its places");
    checker.memory(what.fresh_count, 8, 8, "its count of new chunks");
    scan(checker, what.scratch, what.scratch_bytes, what.end - what.begin);
    if (!checker.ok()) return;
    const auto unplaced = [&](std::uint32_t j) { return location(what.ordinal, kUnplaced + j); };
    for (std::uint32_t j = what.begin; j < what.end; ++j) {
        checker.memory(what.hashes + what.changed[j], sizeof(ChunkHash), 16, "a hash");
        if (!checker.ok()) return;
        DeviceDedupSlot* slot = slot_of(what.table, what.hashes[what.changed[j]], what.mask, true);
        lower(*slot, unplaced(j), what.ordinal);
        what.slots[j] = static_cast<std::uint32_t>(slot - what.table.slots);
    }
    std::uint32_t fresh = 0;
    for (std::uint32_t j = what.begin; j < what.end; ++j) {
        DeviceDedupSlot& slot = what.table.slots[what.slots[j]];
        what.places[j] = fresh;
        if (~slot.not_at == unplaced(j)) {
            checker.memory(what.fresh + what.placed_in_slice + fresh, 4, 4, "its new chunks");
            if (!checker.ok()) return;
            what.fresh[what.placed_in_slice + fresh] = what.changed[j];
            const Location at = location(what.ordinal, what.placed + fresh++);
            slot.not_at = ~at;
            what.sources[j] = at | kDeviceFresh;
        } else {
            what.sources[j] = ~slot.not_at;
        }
    }
    *what.fresh_count = fresh;
}
DeviceStatus look_up(int device, const DeviceLookUp& what, StreamHandle stream) {
    FAKE_ENTER(kLookUp, device);
    return push(device, stream, [=] { look_up_now(device, what); });
}
DeviceStatus place_all(int device, std::uint32_t ordinal, std::uint64_t placed, std::uint32_t number,
                       Location* sources, StreamHandle stream) {
    FAKE_ENTER(kPlaceAll, device);
    return push(device, stream, [=] {
        Checker checker(device, "place_all");
        checker.memory(sources, number * std::size_t{8}, 8, "its sources");
        for (std::uint32_t j = 0; checker.ok() && j < number; ++j)
            sources[j] = location(ordinal, placed + j) | kDeviceFresh;
    });
}

void join_now(int device, const DeviceJoin& what) {
    Checker checker(device, "join");
    checker.memory(what.changed, what.count * std::size_t{4}, 4, "what changed");
    checker.memory(what.sources, what.count * std::size_t{8}, 8, "its sources");
    checker.memory(what.heads, what.count * std::size_t{8}, 8, "its heads");
    checker.memory(what.entries, what.count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.state, sizeof *what.state, 8, "its state");
    checker.memory(what.entry_count, 8, 8, "its count");
    checker.memory(what.continues, 8, 8, "whether it continues");
    scan(checker, what.scratch, what.scratch_bytes, what.count);
    if (!checker.ok()) return;
    std::memset(what.heads, 0xEE, what.count * std::size_t{8});
    DeviceJoinState& state = *what.state;
    std::uint64_t entries = 0;
    *what.continues = 0;
    for (std::uint32_t j = 0; j < what.count; ++j) {
        const std::uint64_t chunk = what.first + what.changed[j];
        const bool fresh = (what.sources[j] & kDeviceFresh) != 0;
        const std::uint64_t step = what.sources[j] - state.source;
        const bool joins = state.open != 0 && chunk == state.chunk + 1 && step <= 1 &&
                           (fresh || what.copies) && !what.alone && (state.head != 0 || step == state.step);
        if (!joins || j == 0) {
            what.entries[entries++] = {what.changed[j], what.changed[j], what.sources[j] & ~kDeviceFresh};
            if (joins) *what.continues = 1;
        }
        if (joins) {
            DeviceRunEntry& entry = what.entries[entries - 1];
            entry.last = what.changed[j];
            if (step == 0) entry.source |= kDeviceFresh;
        }
        state.chunk = chunk;
        state.source = what.sources[j];
        state.open = 1;
        state.head = joins ? 0 : 1;
        state.step = joins ? static_cast<std::uint32_t>(step) : 0;
    }
    if (what.alone) state = {};
    *what.entry_count = entries;
}
DeviceStatus join(int device, const DeviceJoin& what, StreamHandle stream) {
    FAKE_ENTER(kJoin, device);
    return push(device, stream, [=] { join_now(device, what); });
}

void join_tree_now(int device, const DeviceTreeJoin& what) {
    Checker checker(device, "join_tree");
    check_table(checker, what.table);
    checker.memory(what.leaf_hashes, what.leaves * sizeof(ChunkHash), 16, "its leaves");
    checker.memory(what.changed, what.count * std::size_t{4}, 4, "what changed");
    checker.memory(what.sources, what.count * std::size_t{8}, 8, "its sources");
    checker.memory(what.labels, 2 * what.width, 16, "its labels");
    checker.memory(what.at, 2 * what.width * 8, 8, "its places");
    checker.memory(what.hashes, what.width * sizeof(ChunkHash), 16, "its hashes");
    checker.memory(what.levels, what.count, 1, "its levels");
    checker.memory(what.places, what.count * std::size_t{4}, 4, "its places");
    checker.memory(what.entries, what.count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.state, sizeof *what.state, 8, "its state");
    checker.memory(what.entry_count, 8, 8, "its count");
    checker.memory(what.continues, 8, 8, "whether it continues");
    scan(checker, what.scratch, what.scratch_bytes, what.count);
    if (!checker.ok()) return;
    enum : std::uint8_t { kNone, kFirst, kCopy };
    std::memset(what.labels, kNone, 2 * what.width);
    for (std::uint32_t j = 0; j < what.count; ++j) {
        const std::uint64_t leaf = what.width + what.changed[j];
        what.labels[leaf] = (what.sources[j] & kDeviceFresh) != 0 ? kFirst : kCopy;
        what.at[leaf] = what.sources[j] & ~kDeviceFresh;
    }
    const auto hash_at = [&](std::uint64_t node) {
        return node >= what.width ? what.leaf_hashes[node - what.width] : what.hashes[node];
    };
    for (const std::uint8_t label : {kFirst, kCopy}) {
        std::uint64_t level = 0;
        for (std::uint64_t n = what.width / 2; n != 0; n /= 2) {
            ++level;
            for (std::uint64_t i = n; i < 2 * n; ++i) {
                if (what.labels[2 * i] != label || what.labels[2 * i + 1] != label) continue;
                const ChunkHash left = hash_at(2 * i);
                const ChunkHash right = hash_at(2 * i + 1);
                const std::uint64_t words[5] = {left.low, left.high, right.low, right.high, level};
                what.hashes[i] = chunk_hash(reinterpret_cast<const std::byte*>(words), sizeof words);
                DeviceDedupSlot* slot = slot_of(what.table, what.hashes[i], what.mask, label == kFirst);
                if (slot == nullptr) continue;
                what.labels[i] = label;
                if (label == kFirst) {
                    what.at[i] = what.at[2 * i];
                    lower(*slot, what.at[i], what.ordinal);
                } else {
                    what.at[i] = ~slot->not_at;
                    slot->used = what.ordinal;
                }
            }
        }
    }
    std::uint64_t entries = 0;
    for (std::uint32_t j = 0; j < what.count;) {
        std::uint64_t node = what.width + what.changed[j];
        std::uint32_t chunks = 1;
        while (node > 1 && node % 2 == 0 && what.labels[node / 2] == what.labels[node]) {
            node /= 2;
            chunks *= 2;
        }
        what.entries[entries++] = {what.changed[j], what.changed[j] + chunks - 1, what.at[node]};
        j += chunks;
    }
    *what.entry_count = entries;
    *what.continues = 0;
    *what.state = {};
}
DeviceStatus join_tree(int device, const DeviceTreeJoin& what, StreamHandle stream) {
    FAKE_ENTER(kJoinTree, device);
    return push(device, stream, [=] { join_tree_now(device, what); });
}

void consolidate_now(int device, const DeviceConsolidate& what) {
    Checker checker(device, "consolidate");
    check_parts(checker, what.parts, what.part_count, what.chunk_bytes);
    checker.memory(what.entries, what.entry_count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.to_entries, what.entry_count * sizeof(DeviceRunEntry), 16, "where entries go");
    checker.memory(what.to, what.chunk_count * what.chunk_bytes, 16, "where chunks go");
    if (what.chunks != nullptr) checker.memory(what.chunks, what.chunk_count * 4, 4, "its chunks");
    if (what.base != nullptr) {
        checker.memory(what.to_base, what.chunk_count * what.chunk_bytes, 16, "where the base goes");
        checker.memory(what.to_base_at, what.chunk_count * 8, 8, "where the base's places go");
    }
    if (!checker.ok()) return;
    if (what.entry_count != 0)
        std::memcpy(what.to_entries, what.entries, what.entry_count * sizeof(DeviceRunEntry));
    for (std::uint64_t i = 0; i < what.chunk_count; ++i) {
        const std::uint32_t chunk =
            what.chunks != nullptr ? what.chunks[i] : what.first_chunk + static_cast<std::uint32_t>(i);
        copy_chunk(what.parts, what.part_count, chunk, what.chunk_bytes, what.to + i * what.chunk_bytes);
        if (what.base == nullptr) continue;
        const DeviceDedupPart* part = what.parts;
        while (part + 1 != what.parts + what.part_count && part[1].first <= chunk)
            ++part;
        const bool had = chunk - part->first < part->with_base;
        what.to_base_at[i] = had ? what.base_at[chunk] : kNoLocation;
        std::byte* to = what.to_base + i * what.chunk_bytes;
        if (had) {
            std::memcpy(to, what.base + std::uint64_t{chunk} * what.chunk_bytes, what.chunk_bytes);
        } else {
            std::memset(to, 0, what.chunk_bytes);
        }
    }
}
DeviceStatus consolidate(int device, const DeviceConsolidate& what, StreamHandle stream) {
    FAKE_ENTER(kConsolidate, device);
    return push(device, stream, [=] { consolidate_now(device, what); });
}

DeviceStatus keep_base(int device, std::uint32_t chunk_bytes, const DeviceDedupPart* parts,
                       std::uint32_t part_count, const std::uint32_t* changed, const Location* sources,
                       std::uint32_t number, const DeviceBase& base, StreamHandle stream) {
    FAKE_ENTER(kKeepBase, device);
    return push(device, stream, [=] {
        Checker checker(device, "keep_base");
        check_parts(checker, parts, part_count, chunk_bytes);
        checker.memory(changed, number * std::size_t{4}, 4, "what changed");
        checker.memory(sources, number * std::size_t{8}, 8, "its sources");
        for (std::uint32_t j = 0; checker.ok() && j < number; ++j) {
            std::byte* to = base.image + std::uint64_t{changed[j]} * chunk_bytes;
            checker.memory(to, chunk_bytes, 16, "the base");
            checker.memory(base.where + changed[j], 8, 8, "the base's places");
            if (!checker.ok()) return;
            copy_chunk(parts, part_count, changed[j], chunk_bytes, to);
            base.where[changed[j]] = sources[j] & ~kDeviceFresh;
        }
    });
}
DeviceStatus move_base(int device, std::uint32_t chunk_bytes, const DeviceBaseMove* moves,
                       std::uint64_t number, std::uint64_t chunks, const DeviceBase& from,
                       const DeviceBase& to, std::uint64_t* content, StreamHandle stream) {
    FAKE_ENTER(kMoveBase, device);
    return push(device, stream, [=] {
        Checker checker(device, "move_base");
        checker.memory(moves, number * sizeof *moves, 8, "its moves");
        if (!checker.ok()) return;
        std::uint64_t before = 0;
        for (std::uint64_t m = 0; m < number; ++m) {
            const DeviceBaseMove& move = moves[m];
            checker.require(move.before == before, "a move", "says another number of chunks before it");
            before += move.count;
            checker.memory(from.hashes + move.from, move.count * sizeof(ChunkHash), 16, "what it moves");
            checker.memory(to.hashes + move.to, move.count * sizeof(ChunkHash), 16, "where it moves it");
            checker.memory(content + move.segment, 8, 8, "its content");
            if (from.image != nullptr) {
                checker.memory(from.image + move.from * chunk_bytes, move.count * chunk_bytes, 16,
                               "an image");
                checker.memory(to.image + move.to * chunk_bytes, move.count * chunk_bytes, 16,
                               "another image");
            }
            if (!checker.ok()) return;
            for (std::uint64_t i = 0; i < move.count; ++i) {
                to.hashes[move.to + i] = from.hashes[move.from + i];
                content[move.segment] += content_term(from.hashes[move.from + i], i);
                if (from.where != nullptr) to.where[move.to + i] = from.where[move.from + i];
            }
            if (from.image != nullptr)
                std::memcpy(to.image + move.to * chunk_bytes, from.image + move.from * chunk_bytes,
                            move.count * chunk_bytes);
        }
        checker.require(before == chunks, "its moves", "have another number of chunks");
    });
}

void scatter_now(int device, const DeviceScatter& what) {
    Checker checker(device, "scatter");
    checker.memory(what.runs, what.run_count * sizeof *what.runs, 8, "its runs");
    if (!checker.ok()) return;
    std::uint64_t before = 0;
    for (std::uint64_t r = 0; r < what.run_count; ++r) {
        const DeviceScatterRun& run = what.runs[r];
        checker.require(run.before == before && run.count != 0, "a run",
                        "says another number of chunks before it");
        before += run.count;
        for (std::uint64_t i = 0; checker.ok() && i < run.count; ++i) {
            const std::byte* from =
                what.payload + (run.source + (run.repeat != 0 ? 0 : i)) * what.chunk_bytes;
            const std::uint64_t at = (run.begin + i) * what.chunk_bytes;
            checker.require(at < what.bytes, "a run", "passes the end of the segment");
            if (!checker.ok()) return;
            const std::uint64_t bytes = std::min<std::uint64_t>(what.chunk_bytes, what.bytes - at);
            checker.memory(from, what.chunk_bytes, 16, "payload");
            checker.memory(what.to + at, bytes, 1, "where it goes");
            if (checker.ok()) std::memcpy(what.to + at, from, bytes);
        }
    }
    checker.require(before == what.chunks, "its runs", "have another number of chunks");
}
DeviceStatus scatter(int device, const DeviceScatter& what, StreamHandle stream) {
    FAKE_ENTER(kScatter, device);
    return push(device, stream, [=] { scatter_now(device, what); });
}

const DeviceDedupKernels kDedup = {.scan_scratch = scan_scratch,
                                   .find_changed = find_changed,
                                   .list_changed = list_changed,
                                   .hash_content = hash_content,
                                   .hash_chunks = hash_chunks,
                                   .insert = insert,
                                   .count_by_use = count_by_use,
                                   .take_out = take_out,
                                   .put_in = put_in,
                                   .look_up = look_up,
                                   .place_all = place_all,
                                   .join = join,
                                   .join_tree = join_tree,
                                   .consolidate = consolidate,
                                   .keep_base = keep_base,
                                   .move_base = move_base,
                                   .scatter = scatter};

}  // namespace dedup

// ---- packing: by the library that the host has ----

DeviceStatus pack_library(const char** name) {
    constexpr int device = 0;
    FAKE_ENTER(kPackLibrary, device);
    if (!codec_available(PayloadCodec::zstd))
        return failure(ErrorCode::unsupported, device, "this build lacks zstd");
    *name = "zstd";
    return {};
}
DeviceStatus pack_scratch(int device, std::uint32_t block_bytes, std::uint64_t count, std::size_t* bytes,
                          StreamHandle) {
    FAKE_ENTER(kPackScratch, device);
    *bytes = count * block_bytes / 8 + kScratch;
    return {};
}
void pack_now(int device, const DevicePack& what) {
    Checker checker(device, "pack");
    const std::uint64_t count = what.blocks();
    checker.memory(what.from, what.bytes, 256, "what is packed");
    checker.require(what.scratch_bytes >= count * what.block_bytes / 8 + kScratch, "scratch memory",
                    "is too small");
    checker.memory(what.scratch, what.scratch_bytes, 256, "scratch memory");
    checker.memory(what.to, (what.bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment,
                   kPackedAlignment, "where blocks go");
    checker.memory(what.sizes, DevicePack::sizes_bytes(count), 8, "their sizes");
    if (!checker.ok()) return;
    std::memset(what.scratch, 0xEE, what.scratch_bytes);
    Compressor compressor;
    std::uint64_t end = 0;
    for (std::uint64_t b = 0; b < count; ++b) {
        const std::uint64_t begin = b * what.block_bytes;
        const std::uint64_t own = std::min<std::uint64_t>(what.block_bytes, what.bytes - begin);
        std::byte* const to = what.to + end;
        std::size_t size = compressor.pack({what.from + begin, own}, {to, own - 1}, 1);
        what.sizes[b] =
            static_cast<std::uint32_t>(size == 0 ? own : size) | (size == 0 ? kDeviceStoredBlock : 0);
        if (size == 0) {
            std::memcpy(to, what.from + begin, own);
            size = own;
        }
        end += (size + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    }
    std::memcpy(reinterpret_cast<std::byte*>(what.sizes) + DevicePack::end_at(count), &end, sizeof end);
}
DeviceStatus pack(int device, const DevicePack& what, StreamHandle stream) {
    FAKE_ENTER(kPack, device);
    return push(device, stream, [=] { pack_now(device, what); });
}
const DevicePackKernels kPacking = {.library = pack_library, .scratch = pack_scratch, .pack = pack};

// ---- what tests ask ----

bool set_fault(const char* text) {
    const Lock lock(lock_of_all);
    calls_made = {};
    calls_failed = 0;
    lost = {};
    return parse(text, fault);
}
std::uint64_t failed_calls() {
    const Lock lock(lock_of_all);
    return calls_failed;
}
std::uint64_t calls_of(const char* function) {
    const Lock lock(lock_of_all);
    std::uint64_t all = 0;
    for (std::size_t f = 0; f < kFunctions; ++f) {
        if (std::strcmp(function, "any") == 0 || std::strcmp(function, kNames[f]) == 0) all += calls_made[f];
    }
    return all;
}
void held_now(testing::FakeDeviceHeld* held) {
    const Lock lock(lock_of_all);
    *held = {blocks.size(), streams.size(), events.size()};
}
const testing::FakeDeviceControl kControl = {
    .fail = set_fault, .failed = failed_calls, .calls = calls_of, .functions = kNames, .held = held_now};

}  // namespace
}  // namespace twinrun

extern "C" __attribute__((visibility("default"))) const void* twinrun_device_table(const char* name,
                                                                                   std::uint32_t abi,
                                                                                   const char* version) {
    using namespace twinrun;
    if (abi != kDeviceAbi || std::strcmp(version, TWINRUN_VERSION) != 0) return nullptr;
    if (std::strcmp(name, "runtime") == 0) return &kRuntime;
    if (std::strcmp(name, "element") == 0) return &kElement;
    if (std::strcmp(name, "digest") == 0) return &kDigest;
    if (std::strcmp(name, "sums") == 0) return &kSums;
    if (std::strcmp(name, "tree") == 0) return &kTree;
    if (std::strcmp(name, "difference") == 0) return &kDifference;
    if (std::strcmp(name, "dedup") == 0) return &dedup::kDedup;
    if (std::strcmp(name, "pack") == 0) return &kPacking;
    if (std::strcmp(name, "fake") == 0) return &kControl;
    return nullptr;
}
