#include "capture/device_pieces.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/checked.hpp"
#include "device/device_workspace.hpp"

namespace twinrun {

namespace {

// More do not make it faster: some threads that copy reach what a device's link does. Each has
// page-locked memory of two pieces.
constexpr int kMostWorkers = 8;

// A device that arrays lie on, and what a thread needs there.
struct Place {
    int device = 0;
    std::vector<StreamHandle> streams;  // of the arrays, each once
    bool gathers = false;               // some array is not dense
};

struct Job {
    const std::shared_ptr<PendingStep>& step;
    const DevicePieces& with;
    std::vector<const Piece*> pieces;
    std::vector<Place> places;
    std::size_t half = 0;  // bytes that hold any piece
    std::atomic<std::size_t> next = 0;

    const Piece* take() {
        const std::size_t i = next++;
        return i < pieces.size() ? pieces[i] : nullptr;
    }
    // The number of the device's place; of all places, where it has none yet.
    [[nodiscard]] std::size_t place_of(int device) const {
        std::size_t i = 0;
        while (i < places.size() && places[i].device != device)
            ++i;
        return i;
    }
    void add(const DeviceArray& array) {
        const std::size_t number = place_of(array.device);
        if (number == places.size()) places.push_back({array.device, {}, false});
        Place& place = places[number];
        if (std::find(place.streams.begin(), place.streams.end(), array.stream) == place.streams.end())
            place.streams.push_back(array.stream);
        place.gathers = place.gathers || !array.dense();
    }
};

// One thread's part of the job. While a piece is given on, the next one is on its way.
class Worker {
   public:
    explicit Worker(Job& job) : job_(job) {}
    // The first workspace has the memory that all of them write to.
    ~Worker() {
        while (!workspaces_.empty())
            workspaces_.pop_back();
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    Result<> prepare() {
        for (const Place& place : job_.places) {
            TWR_TRY(auto workspace, DeviceWorkspaces::copies().lease(place.device));
            if (place.gathers) TWR_CHECK(workspace->reserve_device(2 * job_.half));
            if (workspaces_.empty()) TWR_CHECK(workspace->reserve_host(2 * job_.half));
            for (const StreamHandle stream : place.streams)
                TWR_CHECK(workspace->stream().follow(stream));
            workspaces_.push_back(std::move(workspace));
        }
        busy_.resize(workspaces_.size());
        return success();
    }
    Result<> run(double& waited) {
        const Piece* piece = job_.take();
        if (piece != nullptr) TWR_CHECK(begin(*piece, 0));
        for (unsigned half = 0; piece != nullptr; half ^= 1) {
            const Piece* const next = job_.take();
            if (next != nullptr) TWR_CHECK(begin(*next, half ^ 1));
            TWR_CHECK(end(*piece, half, waited));
            piece = next;
        }
        return success();
    }

   private:
    [[nodiscard]] std::byte* image(unsigned half) const {
        return workspaces_.front()->host_memory() + half * job_.half;
    }
    // Puts the copies of a piece into the streams.
    Result<> begin(const Piece& piece, unsigned half) {
        for (const Segment& segment : piece.segments) {
            const DeviceArray* const array = job_.with.arrays[segment.field];
            if (array != nullptr && segment.items != 0) TWR_CHECK(copy(*array, segment, half));
        }
        for (std::size_t i = 0; i < workspaces_.size(); ++i) {
            if (busy_[i][half]) TWR_CHECK(workspaces_[i]->mark(half));
        }
        return success();
    }
    Result<> copy(const DeviceArray& array, const Segment& segment, unsigned half) {
        const std::size_t number = job_.place_of(array.device);
        DeviceWorkspace& workspace = *workspaces_[number];
        const StreamHandle stream = workspace.stream().get();
        const std::size_t item = item_bytes(array.dtype);
        busy_[number][half] = true;
        const std::byte* data = static_cast<const std::byte*>(array.data) + segment.first_item * item;
        if (!array.dense()) {
            const DeviceElementKernels* const elements = device_element_kernels();
            if (elements == nullptr)
                return Error{ErrorCode::internal, "the device library has no table of elements"};
            std::byte* const dense = workspace.device_memory() + half * job_.half + segment.offset;
            TWR_CHECK(to_result(elements->gather(
                array.device, gather_of(array, segment.first_item, segment.items, dense), stream)));
            data = dense;
        }
        return to_result(device_runtime()->copy(array.device, image(half) + segment.offset, data,
                                                segment.items * item, stream));
    }
    // Waits for the piece, and gives it to the pipeline.
    Result<> end(const Piece& piece, unsigned half, double& waited) {
        for (std::size_t i = 0; i < workspaces_.size(); ++i) {
            if (busy_[i][half]) TWR_CHECK(workspaces_[i]->wait_mark(half));
            busy_[i][half] = false;
        }
        const StepLayout& layout = *job_.step->layout;
        clear_padding(layout, piece, image(half));
        Load load;
        load.step = job_.step;
        load.piece = &piece;
        load.image = image(half);
        load.make_sums = !layout.recorded;
        if (StagingRing* const ring = job_.with.ring; ring != nullptr) {
            std::byte* const block = ring->allocate(piece.bytes, waited);
            if (block == nullptr)
                return Error{ErrorCode::internal, "a piece is larger than the staging memory allows"};
            std::memcpy(block, image(half), piece.bytes);
            load.image = load.block = block;
        }
        job_.with.pipeline.submit(std::move(load));
        return success();
    }

    Job& job_;
    std::vector<DeviceWorkspaces::Lease> workspaces_;  // of each place
    std::vector<std::array<bool, 2>> busy_;            // of each: whether a half is on its way
};

}  // namespace

Result<> bring_pieces(const std::shared_ptr<PendingStep>& step, const DevicePieces& with, double& waited) {
    Job job{step, with, {}, {}};
    std::uint64_t bytes = 0;
    for (const Piece& piece : step->layout->pieces) {
        bool is_brought = false;
        for (const Segment& segment : piece.segments) {
            const DeviceArray* const array = with.arrays[segment.field];
            if (array == nullptr || segment.items == 0) continue;
            TWR_CHECK(check_array(*array));
            job.add(*array);
            is_brought = true;
        }
        if (!is_brought) continue;
        job.pieces.push_back(&piece);
        job.half = std::max<std::size_t>(job.half, round_up(piece.bytes, 4096));
        bytes += piece.bytes;
    }
    if (job.pieces.empty()) return success();
    if (device_runtime() == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    std::mutex mutex;  // protects what follows
    std::optional<Error> failure;
    std::optional<Error> no_memory;  // of a thread that could not begin
    double longest = 0;
    const auto work = [&](int number) {
        if (number >= kMostWorkers || static_cast<std::size_t>(number) >= job.pieces.size()) return;
        double own = 0;
        Result<> done = out_of_memory();
        try {
            Worker worker(job);
            done = worker.prepare();
            // Where there is no memory for one more, the others do the work.
            if (!done && done.error().code == ErrorCode::out_of_memory) {
                const std::lock_guard guard(mutex);
                no_memory = std::move(done).error();
                return;
            }
            if (done) done = worker.run(own);
        } catch (const std::exception&) {  // done stays out_of_memory()
        }
        const std::lock_guard guard(mutex);
        longest = std::max(longest, own);
        if (done) return;
        job.next = job.pieces.size();
        if (!failure) failure = std::move(done).error();
    };
    if (job.pieces.size() < 2 || bytes < kTeamBytes || with.team.size() == 1) {
        work(0);
    } else {
        with.team.run(work);
    }
    waited += longest;
    if (failure) return std::move(*failure);
    if (job.next < job.pieces.size()) return *no_memory;
    return success();
}

}  // namespace twinrun
