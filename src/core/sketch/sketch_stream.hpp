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
    // Groups that are under way at a time. Each has scratch memory of its own: a few hundred bytes
    // an array, where none is gathered.
    static constexpr std::size_t kUnderWay = 32;

    // Arrays whose sketches are made together: the caller's numbers of them, and the plan.
    struct Planned {
        std::vector<std::size_t> numbers;
        std::shared_ptr<const SketchPlan> plan;
    };
    // Takes the sketches of the arrays of these numbers, each once. Called by add(), repeat() and
    // finish(), by the thread that calls these.
    using TakeSketches = std::function<void(const std::vector<std::size_t>& numbers, SketchGroup sketches)>;

    explicit SketchStream(TakeSketches take, const DeviceBuildOptions& options = {})
        : take_(std::move(take)), options_(options) {}

    // Returns at once, unless too many groups are under way: see is_full(). number: any, the
    // caller's. The array must stay until finish() or the end; all lie on one device. Errors: those
    // of StartedSketches::plan() and start(), of any array that was added.
    Result<> add(std::size_t number, FieldMetadata field, DeviceArray array);
    // The same for all arrays of a plan, of another stream of sketches of the same device.
    Result<> repeat(Planned planned);
    [[nodiscard]] bool is_full() const { return under_way_.size() >= kUnderWay; }
    // Starts what was added last, and arrays that must be gathered, which share all memory that
    // there is. Work that is put into the arrays' streams from now on waits for all of it. Nothing
    // is added after it.
    Result<> start();
    // start(), and waits until all are taken.
    Result<> finish();

    // All that was started. Plans can be repeated as long as the arrays are the same.
    [[nodiscard]] const std::vector<Planned>& planned() const { return planned_; }

   private:
    struct Group {
        std::vector<std::size_t> numbers;
        std::vector<FieldMetadata> fields;
        std::vector<DeviceArray> arrays;
        std::uint64_t bytes = 0;
    };
    struct UnderWay {
        std::size_t planned;  // in planned_
        std::unique_ptr<StartedSketches> started;
    };
    Result<> start(Group& group);
    Result<> take_first();

    TakeSketches take_;
    DeviceBuildOptions options_;
    std::size_t next_ = kFirst;  // arrays of the next group
    Group dense_, strided_;
    std::vector<Planned> planned_;
    std::deque<UnderWay> under_way_;
    std::size_t led_ = 0;  // of these: later work of the arrays' streams waits for them
};

}  // namespace twinrun
