#include "sketch/quick_roots.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "device/device.hpp"
#include "device/event.hpp"
#include "digest/digest_device.hpp"

namespace twinrun {

namespace {

// In the place of a half of a root that is not there yet: sums have fewer bits.
constexpr std::uint64_t kNotThere = ~std::uint64_t{0};

// An event takes a device 2 us, and a place in the line of its work. The default stream is there as
// long as the process, so that one can be made of it when somebody waits: every so many calls have
// one, so that nobody waits for much more than the call.
constexpr unsigned kCallsOfEvent = 64;
constexpr StreamHandle kDefaultStream = nullptr;

class QuickQueue;

// Where the words lie; nothing where the kernels do not take them.
std::optional<DeviceRuns> runs_of(const DeviceArray& words) {
    if (words.dense()) return DeviceRuns{};
    if (words.swap || !check_array(words).ok()) return std::nullopt;
    const DeviceGather all = gather_of(words, 0, 0, nullptr);
    const std::uint64_t bytes = words.items() * all.item_bytes;
    const int inner = all.dimensions - 1;
    if (inner < 0 || inner > kMostRunDimensions || bytes > kMostRunsBytes) return std::nullopt;
    DeviceRuns runs;
    runs.run_bytes = static_cast<std::uint32_t>(all.shape[inner] * all.item_bytes);
    runs.step = all.strides[inner];
    runs.dimensions = inner;
    runs.spread = runs.step != std::int64_t{all.item_bytes} || runs.run_bytes % kRootRunUnit != 0 ||
                  reinterpret_cast<std::uintptr_t>(words.data) % kRootRunUnit != 0;
    for (int d = 0; d < inner; ++d) {
        runs.spread = runs.spread || all.strides[d] % std::int64_t{kRootRunUnit} != 0;
        runs.shape[d] = static_cast<std::uint32_t>(all.shape[d]);
        runs.strides[d] = all.strides[d];
    }
    return runs;
}

// One call. Places of the ring are its own until it is settled.
class QuickRoots final : public QueuedRoots {
   public:
    QuickRoots(QuickQueue& queue, std::size_t begin, std::size_t count)
        : queue_(&queue), begin_(begin), count_(count) {}
    Result<std::vector<std::uint64_t>> roots() override;

   private:
    friend class QuickQueue;
    QuickQueue* queue_;
    std::size_t begin_;
    std::size_t count_;
    std::vector<std::unique_ptr<DeviceEvent>> made_;  // one a stream, but for the default one
    bool in_default_stream_ = false;
    DeviceEvent* default_made_ = nullptr;  // of these: that of the default stream, if there is one
    bool settled_ = false;
    std::vector<std::uint64_t> roots_;
    std::optional<Error> error_;
};

// The calls of one device, in their order. Kernels write roots into page-locked memory of the host,
// so that a call needs no copy, and one that is asked for late no word with the driver.
class QuickQueue {
   public:
    explicit QuickQueue(int device) : device_(device) {}
    Result<std::shared_ptr<QueuedRoots>> add(std::span<const DeviceArray* const> words);
    // Waits for all calls up to this one.
    void settle(const QuickRoots& one);

   private:
    Result<> prepare();
    Result<> submit(std::span<const DeviceArray* const> words, QuickRoots& call);
    Result<> submit_of_stream(StreamHandle stream, QuickRoots& call);
    Result<std::unique_ptr<DeviceEvent>> new_event();
    [[nodiscard]] bool are_there(const QuickRoots& call);
    Result<> wait_for_first();
    void settle_first();
    // After an error: nothing may be under way in the streams when the sums are cleared.
    void clear(std::span<const DeviceArray* const> words);
    [[nodiscard]] DeviceRootSums& root(std::size_t at) {
        return roots_.as<DeviceRootSums>()[at % kQuickRoots];
    }

    const int device_;
    const DeviceDigestKernels* const kernels_ = device_digest_kernels();
    std::mutex mutex_;
    DeviceMemory sums_;
    DeviceMemory roots_;
    std::unique_ptr<DeviceEvent> late_;  // of who waits where no call has one
    bool prepared_ = false;
    unsigned without_event_ = 0;  // calls in the default stream since the last event
    std::size_t next_ = 0;        // places are counted on and on
    std::deque<std::shared_ptr<QuickRoots>> under_way_;
    std::vector<std::unique_ptr<DeviceEvent>> events_;  // that no call has
    std::vector<DeviceRootItem> items_;
};

QuickQueue& quick_queue_of(int device) {
    // Never destroyed: the driver may be gone before.
    static std::mutex& mutex = *new std::mutex;
    static auto& queues = *new std::map<int, std::unique_ptr<QuickQueue>>;
    const std::lock_guard guard(mutex);
    auto& queue = queues[device];
    if (queue == nullptr) queue = std::make_unique<QuickQueue>(device);
    return *queue;
}

Result<std::vector<std::uint64_t>> QuickRoots::roots() {
    queue_->settle(*this);
    if (error_) return *error_;
    return roots_;
}

Result<> QuickQueue::prepare() {
    if (prepared_) return success();
    while (!under_way_.empty())
        settle_first();
    TWR_CHECK(sums_.reserve(device_, kQuickRoots * sizeof(DeviceRootSums)));
    TWR_CHECK(roots_.reserve(kHostMemory, kQuickRoots * sizeof(DeviceRootSums)));
    if (late_ == nullptr) {
        TWR_TRY(late_, new_event());
    }
    TWR_TRY(DeviceStream stream, DeviceStream::create(device_));
    TWR_CHECK(to_result(device_runtime()->fill(device_, sums_.data(), 0, kQuickRoots * sizeof(DeviceRootSums),
                                               stream.get())));
    TWR_CHECK(stream.wait());
    prepared_ = true;
    return success();
}

Result<std::unique_ptr<DeviceEvent>> QuickQueue::new_event() {
    if (!events_.empty()) {
        auto event = std::move(events_.back());
        events_.pop_back();
        return event;
    }
    auto event = std::make_unique<DeviceEvent>();
    TWR_CHECK(event->make(device_));
    return event;
}

bool QuickQueue::are_there(const QuickRoots& call) {
    for (std::size_t i = 0; i < call.count_; ++i) {
        DeviceRootSums& halves = root(call.begin_ + i);
        if (std::atomic_ref(halves.low).load(std::memory_order_acquire) == kNotThere ||
            std::atomic_ref(halves.high).load(std::memory_order_acquire) == kNotThere)
            return false;
    }
    return true;
}

Result<> QuickQueue::wait_for_first() {
    const QuickRoots& first = *under_way_.front();
    std::optional<Error> error;
    for (const auto& event : first.made_) {
        if (auto waited = event->wait(); !waited) error = std::move(waited).error();
    }
    if (error) return *std::move(error);
    if (!first.in_default_stream_ || first.default_made_ != nullptr) return success();
    for (const auto& later : under_way_) {
        if (later->default_made_ != nullptr) return later->default_made_->wait();
    }
    TWR_CHECK(late_->record(kDefaultStream));
    without_event_ = 0;
    return late_->wait();
}

void QuickQueue::settle_first() {
    QuickRoots& first = *under_way_.front();
    if (!are_there(first)) {
        if (auto waited = wait_for_first(); !waited) first.error_ = std::move(waited).error();
        if (!first.error_ && !are_there(first))
            first.error_ = Error{ErrorCode::internal, "a device has made no root"};
        if (first.error_) prepared_ = false;  // its sums may hold anything
    }
    if (!first.error_) {
        for (std::size_t i = 0; i < first.count_; ++i)
            first.roots_[i] = root_of(root(first.begin_ + i));
    }
    for (auto& event : first.made_)
        events_.push_back(std::move(event));
    first.made_.clear();
    first.default_made_ = nullptr;
    first.settled_ = true;
    under_way_.pop_front();
}

void QuickQueue::settle(const QuickRoots& one) {
    const std::lock_guard guard(mutex_);
    while (!one.settled_ && !under_way_.empty())
        settle_first();
}

Result<> QuickQueue::submit_of_stream(StreamHandle stream, QuickRoots& call) {
    const bool of_default = stream == kDefaultStream;
    const bool with_event = !of_default || without_event_ + 1 >= kCallsOfEvent;
    if (with_event) {
        TWR_TRY(auto event, new_event());
        call.made_.push_back(std::move(event));
    }
    TWR_CHECK(to_result(kernels_->roots(device_, items_.data(), items_.size(), stream)));
    if (of_default) call.in_default_stream_ = true;
    if (!with_event) {
        ++without_event_;
        return success();
    }
    DeviceEvent& event = *call.made_.back();
    TWR_CHECK(event.record(stream));
    if (of_default) {
        call.default_made_ = &event;
        without_event_ = 0;
    }
    return success();
}

Result<> QuickQueue::submit(std::span<const DeviceArray* const> words, QuickRoots& call) {
    // Streams are few: each pass takes the arrays of one.
    std::size_t taken = 0;
    for (std::size_t of = 0; taken < words.size(); ++of) {
        const StreamHandle stream = words[of]->stream;
        const bool before = std::any_of(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(of),
                                        [&](const DeviceArray* w) { return w->stream == stream; });
        if (before) continue;
        items_.clear();
        for (std::size_t i = of; i < words.size(); ++i) {
            if (words[i]->stream != stream) continue;
            const std::size_t at = (call.begin_ + i) % kQuickRoots;
            const std::optional<DeviceRuns> runs = runs_of(*words[i]);
            if (!runs) return Error{ErrorCode::internal, "an array that is not read the quick way"};
            items_.push_back({words[i]->data, words[i]->items(), words[i]->dtype,
                              sums_.as<DeviceRootSums>() + at, roots_.as<DeviceRootSums>() + at, *runs});
        }
        TWR_CHECK(submit_of_stream(stream, call));
        taken += items_.size();
    }
    return success();
}

void QuickQueue::clear(std::span<const DeviceArray* const> words) {
    while (!under_way_.empty())
        settle_first();
    for (const DeviceArray* array : words)
        static_cast<void>(device_runtime()->wait_stream(device_, array->stream));
    prepared_ = false;
}

Result<std::shared_ptr<QueuedRoots>> QuickQueue::add(std::span<const DeviceArray* const> words) {
    if (kernels_ == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    for (const DeviceArray* array : words)
        TWR_CHECK(check_array(*array));
    const std::lock_guard guard(mutex_);
    TWR_CHECK(prepare());
    while (!under_way_.empty() && next_ + words.size() - under_way_.front()->begin_ > kQuickRoots)
        settle_first();
    auto call = std::make_shared<QuickRoots>(*this, next_, words.size());
    // Takes its memory now: what is submitted must be in the queue, and events go back.
    call->roots_.assign(words.size(), 0);
    call->made_.reserve(words.size());
    items_.reserve(words.size());
    under_way_.push_back(call);
    events_.reserve(events_.size() + under_way_.size() * 2 + words.size());
    for (std::size_t i = 0; i < words.size(); ++i)
        root(next_ + i) = {kNotThere, kNotThere};
    if (Result<> submitted = submit(words, *call); !submitted) {
        under_way_.pop_back();
        clear(words);
        for (auto& event : call->made_)
            events_.push_back(std::move(event));
        return std::move(submitted).error();
    }
    next_ += words.size();
    return std::shared_ptr<QueuedRoots>(std::move(call));
}

}  // namespace

bool is_quick(const DeviceArray& words) {
    return words.device != kHostMemory && words.items() != 0 && runs_of(words).has_value();
}

Result<std::shared_ptr<QueuedRoots>> queue_quick_roots(std::span<const DeviceArray* const> words) try {
    return quick_queue_of(words[0]->device).add(words);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of device arrays"};
}

}  // namespace twinrun
