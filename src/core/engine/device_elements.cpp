#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>

#include "base/checked.hpp"
#include "device/device.hpp"
#include "difference/difference_device.hpp"
#include "element/element_device.hpp"
#include "engine/device_compare.hpp"
#include "engine/device_place.hpp"
#include "engine/device_team.hpp"
#include "engine/gathered.hpp"
#include "source/device_array.hpp"
#include "source/plan.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

// How a side's elements come to the device.
enum class Way : std::uint8_t {
    in_place,   // they are there, dense and native
    on_device,  // they are there, and are gathered
    peer,       // from another device, dense and native
    locked,     // from the caller's page-locked memory
    memory,     // from the caller's memory, through a buffer
    reads,      // as reads into a buffer
    direct,     // as reads into device memory
};

class DeviceElementJob final : public SliceJob {
   public:
    struct Side {
        ElementSource* source = nullptr;
        const DeviceArray* array = nullptr;
        Way way = Way::reads;
    };

    DeviceElementJob(DeviceTeam& team, std::array<Side, 2> sides, std::size_t chunk_items,
                     std::span<const Range> chunks, const DifferenceRule& rule, int workers,
                     std::size_t slice_bytes)
        : team_(team),
          sides_(sides),
          dtype_(sides[0].source->dtype()),
          items_(sides[0].source->items()),
          item_(item_bytes(dtype_)),
          scalar_(item_bytes(scalar_type(dtype_))),
          chunk_items_(chunk_items),
          storage_(sides[0].source->on_storage() || sides[1].source->on_storage()),
          plan_(plan_reads(chunks, chunk_items * item_, slice_bytes, storage_ ? kGapOnStorage : kGapInCache,
                           kDeviceWindows)),
          gathered_(workers, plan_.slices.size()),
          different_chunks_(plan_.slices.size()) {
        what_.scalar = scalar_type(dtype_);
        what_.rule = rule;
        what_.chunk_scalars = chunk_items * scalars_per_item(dtype_);
        for (std::size_t s = 0; s < 2; ++s) {
            for (const Range& slice : plan_.slices) {
                std::size_t room = 0;
                for (std::uint64_t w = slice.begin; w < slice.end; ++w)
                    room += host_room(s, items_of(plan_.windows[w]).second);
                rooms_[s] = std::max(rooms_[s], room);
            }
            rooms_[s] = round_up(rooms_[s], kDirectAlignment);
        }
    }
    [[nodiscard]] std::uint64_t slices() const override { return plan_.slices.size(); }
    [[nodiscard]] std::size_t buffer_bytes() const override { return rooms_[0] + rooms_[1]; }
    [[nodiscard]] std::uint64_t total_bytes() const override {
        return plan_.chunks_read * chunk_items_ * item_ * 2;
    }
    [[nodiscard]] bool on_storage() const override {
        return storage_ && (sides_[0].way == Way::reads || sides_[1].way == Way::reads);
    }
    [[nodiscard]] std::size_t most_slots() const override { return kDeviceSlots; }
    [[nodiscard]] std::size_t most_under_way() const override { return kDeviceLanes; }
    Result<std::byte*> allocate(int worker, std::size_t bytes) override {
        if (buffer_bytes() == 0) return nullptr;
        return team_.buffers(worker, bytes);
    }

    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        for (std::size_t s = 0; s < 2; ++s) {
            if (sides_[s].way == Way::reads) {
                std::byte* to = buffer;
                for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
                    const auto [first, count] = items_of(plan_.windows[w]);
                    TWR_CHECK(sides_[s].source->plan(first, count, to, requests));
                    to += host_room(s, count);
                }
            }
            buffer += rooms_[s];
        }
        return success();
    }
    Result<> process(std::uint64_t, std::byte*, int) override {
        return Error{ErrorCode::internal, "work for a device went to the host"};
    }

    Result<bool> begin(std::uint64_t slice, std::byte* buffer, int worker) override {
        return team_.begin(worker,
                           [&](int device, DeviceLane& lane) { return start(slice, buffer, device, lane); });
    }
    Result<> finish(std::uint64_t slice, std::byte*, int worker) override {
        TWR_TRY(const DeviceLane* const lane, team_.finish(worker));
        const auto& found = *reinterpret_cast<const DeviceDifferenceResult*>(lane->space->host_memory());
        gathered_.of(worker).merge(found.stats);
        gathered_.close(worker, slice);
        different_chunks_[slice] = found.different_chunks;
        return success();
    }

    // Whether reads may go to device memory, from the files that they name: then that is done.
    // Error: why not.
    Result<> read_directly(std::size_t side) {
        ElementSource& source = *sides_[side].source;
        if (!probe_direct_storage().available)
            return Error{ErrorCode::unsupported, probe_direct_storage().reason};
        std::vector<ReadRequest> requests;
        std::vector<ReadRequest> first_of_file;
        for (const Window& window : plan_.windows) {
            const auto [first, count] = items_of(window);
            if (!source.only_points(first, count)) {
                return Error{ErrorCode::unsupported, "elements that follow each other lie in several places"};
            }
            requests.clear();
            TWR_CHECK(source.plan(first, count, fake(), requests));
            for (const ReadRequest& r : requests) {
                if (files_.contains(r.file)) continue;
                TWR_TRY(files_[r.file], DirectStorageFile::open(*r.file));
                first_of_file.push_back(r);
            }
        }
        if (first_of_file.empty())
            return Error{ErrorCode::unsupported, "these elements are not read from files"};
        // Some refuse only when it comes to reading.
        TWR_TRY(DeviceTeam::Worker* const worker, team_.worker(0));
        DeviceWorkspace& space = *worker->lanes[0].space;
        TWR_CHECK(space.reserve_device(kDirectAlignment));
        for (const ReadRequest& r : first_of_file) {
            TWR_CHECK(files_[r.file]->read(space.device_memory(), 0, r.offset,
                                           std::min(r.bytes, kDirectAlignment),
                                           std::min(r.at_least, kDirectAlignment)));
        }
        sides_[side].way = Way::direct;
        rooms_[side] = 0;
        return success();
    }

    [[nodiscard]] DifferenceStats total() const { return gathered_.total(); }
    [[nodiscard]] std::uint64_t different_chunks() const {
        std::uint64_t all = 0;
        for (const std::uint64_t n : different_chunks_)
            all += n;
        return all;
    }
    [[nodiscard]] std::uint64_t direct_bytes() const { return direct_bytes_.load(); }
    [[nodiscard]] std::uint64_t copied_bytes() const { return copied_bytes_.load(); }
    [[nodiscard]] bool direct() const { return sides_[0].way == Way::direct || sides_[1].way == Way::direct; }

   private:
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> items_of(const Window& window) const {
        const std::uint64_t first = window.begin * chunk_items_;
        return {first, std::min(window.end * chunk_items_, items_) - first};
    }
    // A place for arithmetic where no memory is meant yet.
    static std::byte* fake() { return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 30); }

    // Room of a window in the slice's host buffer.
    [[nodiscard]] std::size_t host_room(std::size_t s, std::uint64_t count) const {
        const Side& side = sides_[s];
        if (side.way == Way::reads) return round_up(side.source->buffer_bytes(count), kDirectAlignment);
        if (side.way == Way::memory) return device_aligned(packed_stride(side) * count);
        return 0;
    }
    // Of memory in the buffer: as it lies, or gathered where that would be mostly gaps.
    [[nodiscard]] std::uint64_t packed_stride(const Side& side) const {
        const std::uint64_t stride = side.source->view(0, 1, nullptr).stride;
        return stride <= kWidestStride * item_ ? std::max<std::uint64_t>(stride, item_) : item_;
    }
    [[nodiscard]] std::size_t span_of(std::uint64_t stride, std::uint64_t count) const {
        return (count - 1) * stride + item_;
    }

    // Copies items of the caller's memory to the buffer.
    ElementView pack(const ElementView& view, std::uint64_t count, std::uint64_t to_stride,
                     std::byte* to) const {
        if (view.stride <= to_stride) {
            std::memcpy(to, view.base, span_of(view.stride, count));
        } else {
            for (std::uint64_t i = 0; i < count; ++i)
                std::memcpy(to + i * item_, view.base + i * view.stride, item_);
        }
        ElementView packed = view;
        packed.base = to;
        packed.stride = std::min(view.stride, to_stride);
        return packed;
    }

    // Where the items of each window lie, and where they will on the device. `used`: of the lane's
    // device memory.
    void lay_out(std::size_t s, std::uint64_t slice, std::byte* buffer, std::vector<DevicePiece>& pieces,
                 std::size_t& used) {
        const Side& side = sides_[s];
        const Range& windows = plan_.slices[slice];
        const bool buffered = side.way == Way::reads || side.way == Way::memory;
        // Many small windows go as one stretch of the buffer, which they lie in one after the
        // other.
        const bool as_one = buffered && windows.size() > kSingleCopies;
        std::size_t stretch = 0;
        const std::size_t begin = used;
        pieces.clear();
        for (std::uint64_t w = windows.begin; w < windows.end; ++w) {
            const auto [first, count] = items_of(plan_.windows[w]);
            DevicePiece piece;
            piece.stride = item_;
            const auto* const data =
                side.array == nullptr ? nullptr : static_cast<const std::byte*>(side.array->data);
            switch (side.way) {
                case Way::in_place: piece.placed = data + first * item_; break;
                case Way::on_device: piece.gathers = true; break;
                case Way::peer:
                    piece.host = data + first * item_;
                    piece.bytes = count * item_;
                    piece.raw = piece.first = used;
                    used += device_aligned(piece.bytes);
                    break;
                case Way::direct: {
                    const ElementView view = side.source->view(first, count, fake());
                    piece.raw = used = round_up(used, kDirectAlignment);
                    piece.first = piece.raw + static_cast<std::size_t>(view.base - fake());
                    piece.stride = view.stride;
                    piece.swap = view.swap;
                    used += round_up(side.source->buffer_bytes(count), kDirectAlignment);
                    break;
                }
                case Way::locked:
                case Way::memory:
                case Way::reads: {
                    ElementView view = side.source->view(first, count, buffer + stretch);
                    if (side.way == Way::memory)
                        view = pack(view, count, packed_stride(side), buffer + stretch);
                    piece.stride = view.stride;
                    piece.swap = view.swap;
                    stretch += host_room(s, count);
                    if (as_one) {
                        piece.first = begin + static_cast<std::size_t>(view.base - buffer);
                    } else {
                        piece.host = view.base;
                        piece.bytes = span_of(view.stride, count);
                        piece.raw = piece.first = used;
                        used += device_aligned(piece.bytes);
                    }
                    break;
                }
            }
            if (piece.placed == nullptr && !piece.gathers)
                piece.gathers =
                    piece.stride != item_ || (piece.swap && scalar_ > 1) || piece.first % scalar_ != 0;
            pieces.push_back(piece);
        }
        if (as_one) {
            pieces.front().host = buffer;
            pieces.front().bytes = stretch;
            pieces.front().raw = begin;
            used += device_aligned(stretch);
        }
        std::size_t number = 0;
        for (std::uint64_t w = windows.begin; w < windows.end; ++w) {
            DevicePiece& piece = pieces[number++];
            if (!piece.gathers) continue;
            piece.dense = used;
            used += device_aligned(items_of(plan_.windows[w]).second * item_);
        }
    }

    void fill_parts(std::uint64_t slice, DeviceLane& lane, const std::byte* memory) const {
        const std::uint64_t pair = scalars_per_item(dtype_);
        lane.parts.clear();
        std::size_t number = 0;
        for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w, ++number) {
            const Window& window = plan_.windows[w];
            const std::uint64_t first = items_of(window).first;
            std::array<const std::byte*, 2> at{};
            for (std::size_t s = 0; s < 2; ++s) {
                const DevicePiece& piece = lane.pieces[s][number];
                at[s] = piece.placed != nullptr ? piece.placed
                                                : memory + (piece.gathers ? piece.dense : piece.first);
            }
            for (std::size_t p = window.first_part; p < window.last_part; ++p) {
                const std::uint64_t item = plan_.parts[p].begin * chunk_items_;
                const std::uint64_t end = std::min(plan_.parts[p].end * chunk_items_, items_);
                DevicePart part;
                part.a = at[0] + (item - first) * item_;
                part.b = at[1] + (item - first) * item_;
                part.scalars = (end - item) * pair;
                part.index = item * pair;
                lane.parts.push_back(part);
            }
        }
    }

    // Puts a slice into the lane's stream.
    Result<> start(std::uint64_t slice, std::byte* buffer, int device, DeviceLane& lane) {
        const DeviceRuntime* runtime = device_runtime();
        const DeviceDifferenceKernels* kernels = device_difference_kernels();
        DeviceWorkspace& space = *lane.space;
        const StreamHandle stream = space.stream().get();
        std::size_t used = 0;
        for (std::size_t s = 0; s < 2; ++s) {
            lay_out(s, slice, buffer, lane.pieces[s], used);
            buffer += rooms_[s];
        }
        fill_parts(slice, lane, space.device_memory());
        std::size_t scratch = 0;
        std::size_t host_scratch = 0;
        kernels->scratch(device, what_, lane.parts.data(), lane.parts.size(), &scratch, &host_scratch);
        used = device_aligned(used);
        if (used + scratch > space.device_bytes()) {
            lane.registered = {};
            lane.registered_at = nullptr;
        }
        TWR_CHECK(space.reserve_device(std::max<std::size_t>(used + scratch, 1)));
        constexpr std::size_t result_room = device_aligned(sizeof(DeviceDifferenceResult));
        TWR_CHECK(space.reserve_host(result_room + host_scratch));
        std::byte* const memory = space.device_memory();
        fill_parts(slice, lane, memory);

        if (direct()) TWR_CHECK(read_slice(slice, lane));
        TWR_CHECK(lane.begin.record(stream));
        for (std::size_t s = 0; s < 2; ++s) {
            for (const DevicePiece& piece : lane.pieces[s]) {
                if (piece.bytes == 0) continue;
                TWR_CHECK(
                    to_result(runtime->copy(device, memory + piece.raw, piece.host, piece.bytes, stream)));
                copied_bytes_.fetch_add(piece.bytes, std::memory_order_relaxed);
            }
            TWR_CHECK(gather(s, slice, device, lane, stream));
        }
        TWR_CHECK(to_result(kernels->compare(device, what_, lane.parts.data(), lane.parts.size(),
                                             reinterpret_cast<DeviceDifferenceResult*>(space.host_memory()),
                                             memory + used, space.host_memory() + result_room, stream)));
        return lane.end.record(stream);
    }

    Result<> read_slice(std::uint64_t slice, DeviceLane& lane) {
        std::byte* const memory = lane.space->device_memory();
        if (lane.registered_at != memory) {
            lane.registered = DirectStorageBuffer(memory, lane.space->device_bytes());
            lane.registered_at = memory;
        }
        for (std::size_t s = 0; s < 2; ++s) {
            if (sides_[s].way != Way::direct) continue;
            std::size_t number = 0;
            for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w, ++number) {
                const auto [first, count] = items_of(plan_.windows[w]);
                lane.requests.clear();
                TWR_CHECK(sides_[s].source->plan(first, count, fake(), lane.requests));
                for (const ReadRequest& r : lane.requests) {
                    const std::size_t to =
                        lane.pieces[s][number].raw + static_cast<std::size_t>(r.to - fake());
                    TWR_CHECK(files_.at(r.file)->read(memory, to, r.offset, r.bytes, r.at_least));
                    direct_bytes_.fetch_add(r.needed(), std::memory_order_relaxed);
                }
            }
        }
        return success();
    }

    Result<> gather(std::size_t s, std::uint64_t slice, int device, DeviceLane& lane,
                    StreamHandle stream) const {
        std::byte* const memory = lane.space->device_memory();
        std::size_t number = 0;
        for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
            const DevicePiece& piece = lane.pieces[s][number++];
            if (!piece.gathers) continue;
            const auto [first, count] = items_of(plan_.windows[w]);
            DeviceGather gather;
            if (sides_[s].way == Way::on_device) {
                gather = gather_of(*sides_[s].array, first, count, memory + piece.dense);
            } else {
                gather.from = memory + piece.first;
                gather.to = memory + piece.dense;
                gather.count = count;
                gather.item_bytes = static_cast<std::uint32_t>(item_);
                gather.swap_bytes = piece.swap && scalar_ > 1 ? static_cast<std::uint32_t>(scalar_) : 0;
                gather.dimensions = 1;
                gather.shape[0] = count;
                gather.strides[0] = static_cast<std::int64_t>(piece.stride);
            }
            TWR_CHECK(to_result(device_element_kernels()->gather(device, gather, stream)));
        }
        return success();
    }

    DeviceTeam& team_;
    std::array<Side, 2> sides_;
    DType dtype_;
    std::uint64_t items_;
    std::size_t item_;
    std::size_t scalar_;
    std::size_t chunk_items_;
    bool storage_;
    ReadPlan plan_;
    DeviceDifference what_;
    Gathered gathered_;
    std::vector<std::uint64_t> different_chunks_;  // of each slice
    std::array<std::size_t, 2> rooms_{};           // of a side in the host's buffer
    std::map<InputFile*, std::unique_ptr<DirectStorageFile>> files_;
    std::atomic<std::uint64_t> direct_bytes_{0};
    std::atomic<std::uint64_t> copied_bytes_{0};
};

// Whether devices copy from this memory at full speed.
bool is_locked(ElementSource& source) {
    const ElementView view = source.view(0, 1, nullptr);
    const std::byte* const last =
        view.base + (source.items() - 1) * view.stride + item_bytes(source.dtype()) - 1;
    for (const std::byte* at : {view.base, last}) {
        bool locked = false;
        if (const auto status = device_runtime()->page_locked(at, &locked); status.failed || !locked)
            return false;
    }
    return true;
}

Way way_of(ElementSource& source, int device, bool few_windows) {
    if (const DeviceArray* array = source.device_array(); array != nullptr) {
        if (array->device == device) return array->dense() ? Way::in_place : Way::on_device;
        return array->dense() ? Way::peer : Way::reads;
    }
    if (!source.in_memory()) return Way::reads;
    const std::uint64_t stride = source.view(0, 1, nullptr).stride;
    const bool narrow = stride <= kWidestStride * item_bytes(source.dtype());
    return narrow && few_windows && is_locked(source) ? Way::locked : Way::memory;
}

}  // namespace

Result<DeviceElements> compare_elements_on(std::span<const int> devices, ElementSource& a, ElementSource& b,
                                           std::size_t chunk_items, std::span<const Range> chunks,
                                           const DifferenceRule& rule, const StreamOptions& options,
                                           bool direct_storage) {
    TWR_CHECK(check_device_tables());
    if (devices.empty()) return Error{ErrorCode::internal, "no device to compare on"};
    const std::array<ElementSource*, 2> sources{&a, &b};
    std::array<const DeviceArray*, 2> arrays{};
    std::array<DeviceElementJob::Side, 2> sides{};
    // Sparse windows of locked memory are gathered in a buffer, and copied once.
    const bool few_windows = chunks.size() <= 64;
    bool locked = true;
    bool in_place = true;
    double widest = 1;  // buffer bytes a byte of elements
    for (std::size_t s = 0; s < 2; ++s) {
        sides[s].source = sources[s];
        sides[s].way = way_of(*sources[s], devices[0], few_windows);
        // Through the host the source itself waits for the array.
        if (sides[s].way == Way::in_place || sides[s].way == Way::on_device || sides[s].way == Way::peer)
            sides[s].array = arrays[s] = sources[s]->device_array();
        locked = locked && sides[s].way != Way::reads && sides[s].way != Way::memory;
        in_place = in_place && sides[s].way == Way::in_place;
        constexpr std::uint64_t sample = 1 << 16;
        if (sides[s].way == Way::reads) {
            widest = std::max(widest, static_cast<double>(sources[s]->buffer_bytes(sample)) /
                                          static_cast<double>(sample * item_bytes(a.dtype())));
        }
    }
    if (arrays[0] != nullptr || arrays[1] != nullptr) devices = devices.first(1);

    std::size_t slice_bytes = in_place ? kDeviceSliceBytesInPlace
                              : locked ? kDeviceSliceBytesLocked
                                       : kDeviceSliceBytes;
    while (!locked && slice_bytes > kSmallestDeviceSlice && 4 * slice_bytes > options.memory_bytes)
        slice_bytes /= 2;
    std::uint64_t bytes = 0;
    for (const Range& r : chunks)
        bytes += r.size() * chunk_items * item_bytes(a.dtype()) * 2;
    StreamOptions stream = options;
    stream.threads = device_team_size(devices.size(),
                                      in_place ? 1
                                      : locked ? 2
                                               : kWorkersPerDevice,
                                      bytes, worker_count(options));

    return with_fitting_slices(slice_bytes, [&](std::size_t size) -> Result<DeviceElements> {
        DeviceElements found;
        TWR_TRY(const auto team, DeviceTeam::create(devices, stream.threads, arrays));
        device_has_started();
        DeviceElementJob job(*team, sides, chunk_items, chunks, rule, stream.threads,
                             static_cast<std::size_t>(static_cast<double>(size) / widest));
        for (std::size_t s = 0; direct_storage && s < 2; ++s) {
            if (sides[s].way != Way::reads) continue;
            if (auto direct = job.read_directly(s); !direct)
                found.outcome.note = "read through the host: " + direct.error().message;
        }
        TWR_TRY(found.outcome.stream, run_slices(job, stream));
        found.stats = job.total();
        found.different_chunks = job.different_chunks();
        found.outcome.stream.bytes_read += job.direct_bytes();
        if (job.direct()) {
            found.outcome.stream.io = "cufile";
        } else if (arrays[0] != nullptr && arrays[1] != nullptr) {
            found.outcome.stream.io = "none";
        }
        found.outcome.device_seconds = team->seconds();
        if (arrays[0] == nullptr && arrays[1] == nullptr)
            device_has_copied(job.copied_bytes(), found.outcome.device_seconds);
        return found;
    });
}

}  // namespace twinrun
