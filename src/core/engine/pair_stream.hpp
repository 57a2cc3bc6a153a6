// Pairs of arrays on devices, compared there while more of them are added: the device has work as
// soon as a few are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device_pairs.hpp"
#include "engine/device_place.hpp"

namespace twinrun {

// What one launch found. Valid during the call that gives it.
struct FoundPairs {
    std::span<const std::size_t> numbers;  // the caller's
    std::span<const DevicePair> pairs;
    const DevicePairs* results = nullptr;
    const std::string* device = nullptr;  // its name
    const std::string* reason = nullptr;  // why there

    [[nodiscard]] const DevicePairResult& of(std::size_t i) const { return results->of(i); }
    // That the device took for a pair, by its share of the scalars.
    [[nodiscard]] double seconds(std::size_t i) const {
        return seconds_a_scalar * static_cast<double>(pairs[i].scalars());
    }
    double seconds_a_scalar = 0;
};

// Used by one thread at a time. What was started is waited for when it ends, whether its results
// were taken or not.
class PairStream {
   public:
    using Take = std::function<void(const FoundPairs& found)>;

    // The first launch is of so many pairs, and each later one of twice as many, up to the most: so
    // few that the host's work before the first and after the last is short, so many that a launch
    // does not count. Small arrays are gathered further: until the device has work for as long as a
    // launch takes the host, or so many times as many.
    static constexpr std::size_t kFirst = 32;
    static constexpr std::size_t kMost = 256;
    // Both arrays of all pairs: a tenth of a millisecond.
    static constexpr std::uint64_t kEnoughBytes = 256 << 20;
    static constexpr std::size_t kMostTimes = 4;
    // Launches that a device has at a time: those whose results the host takes, and enough for the
    // device to go on with.
    static constexpr std::size_t kUnderWay = 12;

    // take: is given results by add() and finish(), in the thread that calls these.
    PairStream(DeviceChoice choice, Take take) : choice_(std::move(choice)), take_(std::move(take)) {}

    // Whether pairs on this device are compared here.
    bool takes(int device) { return place_of(device) != nullptr; }
    // number: the caller's. pair: DevicePairs::takes it; its arrays and its rule stay until
    // finish(), or until this ends. Waits where too many launches are under way: see is_full().
    void add(std::size_t number, int device, const DevicePair& pair);
    // Whether add() for this device may wait.
    [[nodiscard]] bool is_full(int device) const;

    // Starts what was added last.
    void start();
    // After start(): later work of the arrays' streams waits for what was started, and may change
    // the arrays. False: that cannot be said of all that was added.
    bool lead();
    // After start(): whether finish() need not wait.
    [[nodiscard]] bool is_done() const;
    // Waits for all. goes_on: asked after each launch; false: the rest is not taken. Afterwards
    // failed() has the numbers of the pairs whose launch failed, ascending: one by one they need
    // less memory, and each says what is wrong with it.
    void finish(const std::function<bool()>& goes_on);
    [[nodiscard]] const std::vector<std::size_t>& failed() const { return failed_; }
    // Why the first of them failed.
    [[nodiscard]] const std::optional<Error>& error() const { return error_; }

   private:
    struct Launch {
        std::vector<std::size_t> numbers;
        std::vector<DevicePair> pairs;
        std::unique_ptr<DevicePairs> batch;
    };
    struct Place {
        int device = 0;
        std::string name, reason;   // no name: pairs there are compared one by one
        std::size_t next = kFirst;  // pairs of the next launch
        Launch gathered;
        std::uint64_t bytes = 0;  // of gathered
        std::deque<Launch> under_way;
    };
    Place* place_of(int device);
    void fail(const Launch& launch, Error why);
    void start(Place& place);
    // Takes the results of the oldest launch.
    void take_first(Place& place);

    DeviceChoice choice_;
    Take take_;
    std::map<int, Place> places_;
    std::vector<std::size_t> failed_;
    std::optional<Error> error_;
};

}  // namespace twinrun
