#include "support/fake_device/faults.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/fake_device/streams.hpp"

namespace twinrun::fake {

std::recursive_mutex lock_of_all;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}
int devices() {
    static const int once =
        static_cast<int>(std::min<std::uint64_t>(number_of("TWINRUN_FAKE_DEVICES", 1), kMostDevices));
    return once;
}

DeviceStatus failure(ErrorCode code, int device, const std::string& text) {
    DeviceStatus status;
    status.failed = true;
    status.code = code;
    std::snprintf(status.text, sizeof status.text, "cuda:%d: fake device: %s", device, text.c_str());
    return status;
}

constexpr const char* kNames[kFunctions + 1] = {
    "versions",     "count",         "describe",    "free_memory",  "place_of",     "page_locked",
    "allocate",     "allocate_host", "make_stream", "wait_stream",  "make_event",   "record",
    "stream_wait",  "wait_event",    "event_done",  "elapsed",      "copy",         "fill",
    "gather",       "copy_all",      "digest",      "sketch",       "roots",        "add_sums",
    "build",        "walk",          "equal_roots", "compare",      "report",       "find_changed",
    "list_changed", "hash_content",  "hash_chunks", "insert",       "count_by_use", "take_out",
    "put_in",       "look_up",       "place_all",   "join",         "join_tree",    "consolidate",
    "keep_base",    "move_base",     "scatter",     "pack_library", "pack_scratch", "pack",
    nullptr,
};
// A function without a name would be a null pointer in the middle.
static_assert([] {
    for (int f = 0; f < kFunctions; ++f)
        if (kNames[f] == nullptr) return false;
    return true;
}());

namespace {

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

}  // namespace

DeviceStatus enter(Function function, int device) {
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

}  // namespace twinrun::fake
