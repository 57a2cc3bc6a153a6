// Sketches of many arrays on one device, begun while more arrays are added: the device has work as
// soon as a few are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "metadata/metadata.hpp"
#include "sketch/device_build.hpp"
#include "sketch/device_sketch.hpp"
#include "sketch/started_sketches.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Used by one thread at a time. What was started is waited for when it ends.
class SketchStream {
   public:
    // The first group is of so many arrays, and each later one of twice as many, up to the most: so
    // few that the host's work before the first and after the last is short, so many that a group's
    // launches do not count.
    static constexpr std::size_t kFirst = 32;
    static constexpr std::size_t kMost = 512;
    // A group of large arrays is started before it is full: it is work enough.
    static constexpr std::uint64_t kEnoughBytes = 2ULL << 30;
    // Groups that are under way at a time: each has scratch memory of its own.
    static constexpr std::size_t kUnderWay = 8;

    // Takes the sketch of an array by its number among those that were added, each once. Called by
    // add() and finish(), by the thread that calls these.
    using TakeSketch = std::function<void(std::size_t number, DeviceSketch sketch)>;

    explicit SketchStream(TakeSketch take, const DeviceBuildOptions& options = {})
        : take_(std::move(take)), options_(options) {}

    // Returns at once, unless too many groups are under way: see is_full(). The array must stay
    // until finish() or the end; all lie on one device. Errors: those of StartedSketches::start(),
    // of any array that was added.
    Result<> add(FieldMetadata field, DeviceArray array);
    [[nodiscard]] bool is_full() const { return under_way_.size() >= kUnderWay; }
    // Starts what was added last, and arrays that must be gathered, which share all memory that
    // there is. After it nothing is added.
    Result<> start();
    // start(), and waits until all are taken.
    Result<> finish();

   private:
    struct Group {
        std::vector<std::size_t> numbers;  // of arrays, as they were added
        std::vector<FieldMetadata> fields;
        std::vector<DeviceArray> arrays;
        std::uint64_t bytes = 0;
        std::unique_ptr<StartedSketches> started;
    };
    Result<> start(Group& group);
    Result<> take_first();

    TakeSketch take_;
    DeviceBuildOptions options_;
    std::size_t count_ = 0;
    std::size_t next_ = kFirst;  // arrays of the next group
    Group dense_, strided_;
    std::deque<Group> under_way_;
};

}  // namespace twinrun
