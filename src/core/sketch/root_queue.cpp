#include "sketch/root_queue.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "device/device_workspace.hpp"
#include "device/event.hpp"
#include "sketch/device_batch.hpp"

namespace twinrun {

using namespace device_batch;

namespace {

// Device memory for gathered elements: strided arrays go through it in slices.
constexpr std::uint64_t kGatherBytes = std::uint64_t{16} << 20;

class RootQueue;

class Queued final : public QueuedRoots {
   public:
    Result<std::vector<std::uint64_t>> roots() override;

   private:
    friend class RootQueue;
    RootQueue* queue_ = nullptr;
    DeviceEvent made_;
    StreamHandle stream_ = nullptr;
    std::size_t begin_ = 0;  // of its part of the ring
    std::size_t end_ = 0;
    std::vector<std::size_t> places_;  // of the roots in the ring; kNone: no element
    bool settled_ = false;
    std::vector<std::uint64_t> roots_;
    std::optional<Error> error_;
};

constexpr std::size_t kNone = ~std::size_t{0};

// Roots of a call that was made in two.
class Joined final : public QueuedRoots {
   public:
    Joined(std::shared_ptr<QueuedRoots> first, std::shared_ptr<QueuedRoots> second)
        : first_(std::move(first)), second_(std::move(second)) {}
    Result<std::vector<std::uint64_t>> roots() override {
        TWR_TRY(std::vector<std::uint64_t> all, first_->roots());
        TWR_TRY(const std::vector<std::uint64_t> others, second_->roots());
        all.insert(all.end(), others.begin(), others.end());
        return all;
    }

   private:
    std::shared_ptr<QueuedRoots> first_;
    std::shared_ptr<QueuedRoots> second_;
};

// Work of one device, one call after the other. A call works in the stream of its arrays: each call
// to the driver takes microseconds, and no stream has to wait for another one. The page-locked
// memory is a ring: a call has one part of it, for what goes to the device and for what comes back.
class RootQueue {
   public:
    Result<std::shared_ptr<QueuedRoots>> add(std::vector<FieldMetadata> fields,
                                             std::vector<DeviceArray> arrays);
    // Waits for all calls up to this one.
    void settle(const Queued& one);

   private:
    struct Work {
        Work(const std::vector<FieldMetadata>& own_fields, const std::vector<DeviceArray>& own_arrays)
            : fields(pointers_to(own_fields)),
              arrays(pointers_to(own_arrays)),
              all(fields, arrays),
              batch(all) {}
        template <class T>
        static std::vector<const T*> pointers_to(const std::vector<T>& of) {
            std::vector<const T*> pointers;
            pointers.reserve(of.size());
            for (const T& one : of)
                pointers.push_back(&one);
            return pointers;
        }
        std::vector<const FieldMetadata*> fields;
        std::vector<const DeviceArray*> arrays;
        Fields all;
        Batch batch;
    };
    // The first part of a workspace's device memory is the arena, the rest scratch memory.
    Result<> begin(int device, const Batch& batch);
    Result<> submit(const Tables& tables, Work& work, Queued& to);
    void settle_first();
    // Where `bytes` of the ring are free; waits for the oldest calls as long as there are none.
    std::optional<std::size_t> room(std::size_t bytes);

    std::mutex mutex_;
    DeviceWorkspaces::Lease workspace_;
    std::deque<std::shared_ptr<Queued>> under_way_;
};

RootQueue& queue_of(int device) {
    // Never destroyed: the driver may be gone before.
    static std::mutex& mutex = *new std::mutex;
    static auto& queues = *new std::map<int, std::unique_ptr<RootQueue>>;
    const std::lock_guard guard(mutex);
    auto& queue = queues[device];
    if (queue == nullptr) queue = std::make_unique<RootQueue>();
    return *queue;
}

Result<std::vector<std::uint64_t>> Queued::roots() {
    if (queue_ != nullptr) queue_->settle(*this);
    if (error_) return *error_;
    return roots_;
}

void RootQueue::settle_first() {
    Queued& first = *under_way_.front();
    if (auto waited = first.made_.wait(); !waited) {
        first.error_ = std::move(waited).error();
    } else {
        for (std::size_t i = 0; i < first.places_.size(); ++i) {
            if (first.places_[i] == kNone) continue;
            std::memcpy(&first.roots_[i], workspace_->host_memory() + first.places_[i], 8);
        }
    }
    first.settled_ = true;
    under_way_.pop_front();
}

void RootQueue::settle(const Queued& one) {
    const std::lock_guard guard(mutex_);
    while (!one.settled_ && !under_way_.empty())
        settle_first();
}

std::optional<std::size_t> RootQueue::room(std::size_t bytes) {
    if (bytes > kQueuedBytes) return std::nullopt;
    for (;;) {
        if (under_way_.empty()) return 0;
        const std::size_t head = under_way_.back()->end_;
        const std::size_t tail = under_way_.front()->begin_;
        if (head > tail) {  // in use: [tail, head)
            if (kQueuedBytes - head >= bytes) return head;
            if (tail >= bytes) return 0;
        } else if (tail - head >= bytes) {  // in use: all but [head, tail)
            return head;
        }
        settle_first();
    }
}

Result<> RootQueue::begin(int device, const Batch& batch) {
    if (!workspace_) {
        TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device));
        TWR_CHECK(workspace->reserve_host(kQueuedBytes));
        workspace_ = std::move(workspace);
    }
    const std::size_t bytes = batch.arena_bytes() + batch.scratch_bytes();
    if (bytes <= workspace_->device_bytes()) return success();
    while (!under_way_.empty())  // it grows only where nothing is under way
        settle_first();
    return workspace_->reserve_device(bytes);
}

Result<> RootQueue::submit(const Tables& tables, Work& work, Queued& to) {
    Batch& batch = work.batch;
    const std::vector<Piece>& pieces = batch.pieces();
    std::size_t trees_begin = kNone;
    std::size_t trees_end = 0;
    for (const Piece& p : pieces) {
        trees_begin = std::min(trees_begin, p.tree);
        trees_end = std::max(trees_end, p.tree + p.tree_bytes);
    }
    const std::size_t trees = trees_end - trees_begin;
    const std::size_t back = device_aligned(batch.host_bytes());  // where the trees come
    const auto at = room(back + device_aligned(trees));
    if (!at) return no_memory();
    std::byte* const arena = workspace_->device_memory();
    std::byte* const host = workspace_->host_memory() + *at;
    const int device = work.arrays[0]->device;
    std::set<StreamHandle> theirs;
    for (const DeviceArray* array : work.arrays)
        theirs.insert(array->stream);
    const bool one = theirs.size() == 1;
    DeviceStream& own = workspace_->stream();
    to.stream_ = one ? *theirs.begin() : own.get();
    for (const StreamHandle each : theirs) {
        if (!one) TWR_CHECK(own.follow(each));
    }
    // The call before has the same memory.
    if (!under_way_.empty() && under_way_.back()->stream_ != to.stream_)
        TWR_CHECK(under_way_.back()->made_.hold_up(device, to.stream_));
    TWR_CHECK(batch.put(tables, device, to.stream_, arena, arena + batch.arena_bytes(), host));
    TWR_CHECK(to_result(tables.runtime->copy(device, host + back, arena + trees_begin, trees, to.stream_)));
    TWR_CHECK(to.made_.make(device));
    TWR_CHECK(to.made_.record(to.stream_));
    for (const StreamHandle each : theirs) {
        if (!one) TWR_CHECK(own.lead(each));
    }
    to.begin_ = *at;
    to.end_ = *at + back + device_aligned(trees);
    for (const Piece& p : pieces)
        to.places_[p.field] = *at + back + p.tree - trees_begin;
    return success();
}

Result<std::shared_ptr<QueuedRoots>> RootQueue::add(std::vector<FieldMetadata> fields,
                                                    std::vector<DeviceArray> arrays) {
    auto to = std::make_shared<Queued>();
    to->queue_ = this;
    to->places_.assign(fields.size(), kNone);
    to->roots_.assign(fields.size(), 0);
    Work work(fields, arrays);
    TWR_CHECK(check_fields(work.all));
    TWR_TRY(const Tables tables, device_batch::tables());
    work.all.sums.assign(fields.size(), nullptr);
    int device = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        if (fields[f].settings.kind != DigestKind::linear || fields[f].settings.rule.residue_bits != 0)
            return Error{ErrorCode::invalid_argument, "roots are made of linear digests without residues"};
        if (f != 0 && arrays[f].device != device)
            return Error{ErrorCode::invalid_argument,
                         "roots of arrays of several devices: queue those of each"};
        device = arrays[f].device;
        if (fields[f].items() != 0) work.batch.add(work.all.piece(f, 0, work.all.slices(f)));
    }
    if (work.batch.pieces().empty()) {
        to->settled_ = true;
        return std::shared_ptr<QueuedRoots>(std::move(to));
    }
    work.batch.leave_out_stats();
    work.batch.lay_out(tables, kGatherBytes);
    if (fields.size() > 1 && work.batch.host_bytes() + work.batch.arena_bytes() > kQueuedBytes / 2) {
        const auto half = static_cast<std::ptrdiff_t>(fields.size() / 2);
        TWR_TRY(auto first,
                add({fields.begin(), fields.begin() + half}, {arrays.begin(), arrays.begin() + half}));
        TWR_TRY(auto second,
                add({fields.begin() + half, fields.end()}, {arrays.begin() + half, arrays.end()}));
        return std::shared_ptr<QueuedRoots>(std::make_shared<Joined>(std::move(first), std::move(second)));
    }
    const std::lock_guard guard(mutex_);
    TWR_CHECK(begin(device, work.batch));
    under_way_.push_back(nullptr);  // takes its memory now: what is submitted must be in the queue
    under_way_.pop_back();
    if (Result<> submitted = submit(tables, work, *to); !submitted) {
        // What was put into the stream before must end before its memory is used again.
        while (!under_way_.empty())
            settle_first();
        static_cast<void>(tables.runtime->wait_stream(device, to->stream_));
        return std::move(submitted).error();
    }
    under_way_.push_back(to);
    return std::shared_ptr<QueuedRoots>(std::move(to));
}

}  // namespace

Result<std::shared_ptr<QueuedRoots>> queue_roots(std::vector<FieldMetadata> fields,
                                                 std::vector<DeviceArray> arrays) try {
    if (arrays.empty()) return std::shared_ptr<QueuedRoots>(std::make_shared<Queued>());
    RootQueue& queue = queue_of(arrays[0].device);
    return queue.add(std::move(fields), std::move(arrays));
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
