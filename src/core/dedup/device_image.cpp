#include "dedup/device_image.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"

namespace twinrun {

namespace {

// Hashed in about 0.15 ms, many times what a launch costs. The first slices are smaller, so that
// payload is soon on its way, and the last ones, so that little of it is left at the end.
constexpr std::uint64_t kImageSliceBytes = std::uint64_t{512} << 20;
constexpr std::uint64_t kFirstSliceBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kLastSliceBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kSlicesTogether = 64;
// Slices that the device has to do, while what was found in others is looked up.
constexpr std::uint64_t kSlicesAhead = 6;

}  // namespace

// ---- segments and the base ----

Result<ImageLayout> DeviceImage::layout_of(std::span<const ImageSegment> segments) const {
    for (const ImageSegment& segment : segments) {
        if (segment.bound) {
            return Error{
                ErrorCode::unsupported,
                "segment '" + segment.name + "': bounds are not supported on devices: copy it to the host"};
        }
    }
    return ImageLayout::make(segments, context_.chunk);
}

Result<> DeviceImage::begin(std::span<const ImageSegment> segments) {
    TWR_CHECK(lay_out(segments));
    TWR_CHECK(cut(segments, layout_));
    return reserve_marks();
}

Result<std::uint64_t> DeviceImage::begin_whole(std::span<const ImageSegment> segments) {
    TWR_TRY(const ImageLayout layout, layout_of(segments));
    TWR_CHECK(layout.check_names());
    TWR_CHECK(cut(segments, layout));
    return layout.chunks();
}

// State for these segments: what is known of those that the base has too moves along.
Result<> DeviceImage::lay_out(std::span<const ImageSegment> segments) {
    DedupContext& c = context_;
    TWR_TRY(ImageLayout layout, layout_of(segments));
    if (layout.same_segments(layout_)) return success();
    TWR_CHECK(layout.check_names());
    const std::size_t content_bytes = layout.segments() * sizeof(std::uint64_t);
    std::vector<DeviceBaseMove> moves;
    std::vector<std::uint64_t> base_chunks(layout.segments());
    std::uint64_t moved = 0;
    for (const ImageLayout::Move& move : layout.moves_from(layout_, base_chunks_)) {
        base_chunks[move.segment] = move.count;
        moves.push_back({move.from, move.to, move.count, moved, move.segment});
        moved += move.count;
    }
    const std::uint64_t chunks = layout.chunks();
    DeviceMemory hashes;
    DeviceMemory content;
    DeviceMemory image;
    DeviceMemory where;
    TWR_CHECK(hashes.reserve(c.device, chunks * sizeof(ChunkHash)));
    TWR_CHECK(content.reserve(c.device, content_bytes));
    if (c.keeps_image()) {
        TWR_CHECK(image.reserve(c.device, chunks * c.chunk));
        TWR_CHECK(where.reserve(c.device, chunks * sizeof(Location)));
    }
    TWR_CHECK(c.fill(content.data(), 0, content_bytes, c.hashing));
    if (!moves.empty()) {
        const std::size_t bytes = moves.size() * sizeof(DeviceBaseMove);
        TWR_CHECK(device_parts_.reserve(c.device, bytes));
        TWR_CHECK(c.copy(device_parts_.data(), moves.data(), bytes, c.hashing));
        TWR_CHECK(to_result(c.kernels.move_base(
            c.device, c.options.chunk_bytes, device_parts_.as<DeviceBaseMove>(), moves.size(), moved, base(0),
            {hashes.as<ChunkHash>(), image.data(), where.as<Location>()}, content.as<std::uint64_t>(),
            c.hashing.get())));
    }
    TWR_CHECK(c.wait(c.hashing));
    layout_ = std::move(layout);
    base_chunks_ = std::move(base_chunks);
    hashes_ = std::move(hashes);
    content_ = std::move(content);
    base_image_ = std::move(image);
    where_ = std::move(where);
    return success();
}

DeviceBase DeviceImage::base(std::uint64_t first) const {
    DeviceBase base;
    base.hashes = hashes_.as<ChunkHash>() + first;
    if (context_.keeps_image()) {
        base.image = base_image_.data() + first * context_.chunk;
        base.where = where_.as<Location>() + first;
    }
    return base;
}

Result<> DeviceImage::replace_base(std::span<const ImageSegment> segments, std::span<const Location> where) {
    DedupContext& c = context_;
    TWR_CHECK(lay_out(segments));
    if (c.options.give_base && where.size() != chunks())
        return Error{ErrorCode::internal, "a base without the Locations of its chunks"};
    std::fill(base_chunks_.begin(), base_chunks_.end(), 0);
    TWR_CHECK(c.fill(content_.data(), 0, layout_.segments() * sizeof(std::uint64_t), c.hashing));
    TWR_CHECK(cut(segments, layout_));
    TWR_CHECK(reserve_marks());
    for (std::size_t i = 0; i < slices_.size(); ++i) {
        const DeviceDedupSlice of = for_kernels(slices_[i]);
        TWR_CHECK(to_result(c.kernels.find_changed(c.device, of, c.hashing.get())));
        if (!c.keeps_image()) continue;
        DeviceConsolidate what;
        what.chunk_bytes = c.options.chunk_bytes;
        what.parts = of.parts;
        what.part_count = of.part_count;
        what.first_chunk = of.first;
        what.chunk_count = of.chunks;
        what.to = base(slices_[i].origin + of.first).image;
        TWR_CHECK(to_result(c.kernels.consolidate(c.device, what, c.hashing.get())));
    }
    if (c.keeps_image()) TWR_CHECK(c.copy(where_.data(), where.data(), where.size_bytes(), c.hashing));
    TWR_CHECK(c.wait(c.hashing));
    become_base();
    return success();
}

void DeviceImage::become_base() { base_chunks_ = layout_.chunk_counts(); }

// ---- slices ----

std::uint64_t DeviceImage::slice_chunks() const {
    const std::uint64_t given = context_.options.slice_chunks;
    return given != 0 ? given : kImageSliceBytes / context_.chunk;
}

// slices_ and parts_: the image cut up, and its parts on the device.
Result<> DeviceImage::cut(std::span<const ImageSegment> segments, const ImageLayout& layout) {
    DedupContext& c = context_;
    slices_.clear();
    parts_.clear();
    const bool trees = c.options.method == RecordMethod::tree;
    const std::uint32_t per_group = dedup_group_chunks(c.options.chunk_bytes);
    const std::uint64_t most = slice_chunks();
    const bool alike = trees || c.options.slice_chunks != 0;
    const std::uint64_t least = alike ? most : kLastSliceBytes / c.chunk;
    std::uint64_t next = alike ? most : kFirstSliceBytes / c.chunk;
    // Slices that are looked at together share their numbers.
    const std::uint64_t numbers = trees ? most : std::min(kMostSliceChunks, kSlicesTogether * most);
    ImageSlice slice;
    std::uint64_t groups = 0;
    for (std::uint64_t first = 0; first < layout.chunks(); first += slice.chunks) {
        const std::uint64_t left = layout.chunks() - first;
        const std::uint64_t wanted = std::clamp(round_up(left / 2, least), least, next);
        next = std::min(most, 2 * next);
        if (first == 0 || first + std::min(left, wanted) - slice.origin > numbers) {
            slice.origin = first;
            slice.origin_group = groups;
        }
        const std::uint64_t last = first + std::min(left, wanted);
        slice.first = static_cast<std::uint32_t>(first - slice.origin);
        slice.chunks = static_cast<std::uint32_t>(last - first);
        slice.first_group = static_cast<std::uint32_t>(groups - slice.origin_group);
        slice.groups = 0;
        slice.part = parts_.size();
        layout.each_segment(first, last, [&](std::size_t s, std::uint64_t begin, std::uint64_t end) {
            DeviceDedupPart part;
            part.number = begin - layout.first(s);
            part.data = segments[s].data + part.number * c.chunk;
            part.bytes = layout.bytes_between(s, begin, end);
            part.segment = static_cast<std::uint32_t>(s);
            part.first = static_cast<std::uint32_t>(begin - slice.origin);
            part.chunks = static_cast<std::uint32_t>(end - begin);
            if (s < base_chunks_.size()) {
                part.with_base = static_cast<std::uint32_t>(
                    std::clamp<std::uint64_t>(base_chunks_[s], part.number, part.number + part.chunks) -
                    part.number);
            }
            part.group = slice.first_group + slice.groups;
            slice.groups += static_cast<std::uint32_t>(divide_up(part.chunks, per_group));
            parts_.push_back(part);
        });
        groups += slice.groups;
        slice.part_count = parts_.size() - slice.part;
        slices_.push_back(slice);
    }
    if (parts_.empty()) return success();
    const std::size_t bytes = parts_.size() * sizeof(DeviceDedupPart);
    TWR_CHECK(device_parts_.reserve(c.device, bytes));
    TWR_CHECK(parts_host_.reserve(kHostMemory, bytes));
    std::memcpy(parts_host_.data(), parts_.data(), bytes);
    TWR_CHECK(c.copy(device_parts_.data(), parts_host_.data(), bytes, c.hashing));
    return c.working.follow(c.hashing.get());
}

Result<> DeviceImage::reserve_marks() {
    DedupContext& c = context_;
    if (slices_.empty()) return success();
    const std::uint32_t group_words = dedup_group_chunks(c.options.chunk_bytes) / 32;
    // Those of slices with the same numbers may be listed at once.
    std::uint64_t together = 0;
    for (const ImageSlice& slice : slices_)
        together = std::max<std::uint64_t>(together, std::uint64_t{slice.first_group} + slice.groups);
    const ImageSlice& last = slices_.back();
    const std::uint64_t words = (last.origin_group + last.first_group + last.groups) * group_words;
    const std::size_t count_bytes = slices_.size() * sizeof(std::uint32_t);
    TWR_CHECK(words_.reserve(c.device, words * sizeof(std::uint32_t)));
    TWR_CHECK(scratch_.reserve(c.device, c.kernels.scan_scratch(together * group_words)));
    TWR_CHECK(counts_.reserve(c.device, count_bytes));
    TWR_CHECK(counts_host_.reserve(kHostMemory, count_bytes));
    while (hashed_.size() < slices_.size()) {
        if (Result<> made = hashed_.emplace_back().make(c.device); !made) {
            hashed_.pop_back();
            return made;
        }
    }
    asked_ = 0;
    return c.fill(counts_.data(), 0, count_bytes, c.hashing);
}

DeviceDedupSlice DeviceImage::for_kernels(const ImageSlice& of) const {
    const std::uint32_t group_words = dedup_group_chunks(context_.options.chunk_bytes) / 32;
    DeviceDedupSlice slice;
    slice.chunk_bytes = context_.options.chunk_bytes;
    slice.first = of.first;
    slice.chunks = of.chunks;
    slice.parts = device_parts(of);
    slice.part_count = static_cast<std::uint32_t>(of.part_count);
    slice.first_group = of.first_group;
    slice.groups = of.groups;
    slice.hashes = hashes_.as<ChunkHash>() + of.origin;
    slice.content = content_.as<std::uint64_t>();
    slice.mask = context_.mask;
    slice.words = words_.as<std::uint32_t>() + of.origin_group * group_words;
    slice.scratch = scratch_.data();
    return slice;
}

Result<> DeviceImage::hash_ahead(std::size_t of_slice) {
    DedupContext& c = context_;
    const auto begin_of = [](const ImageSlice& slice) { return slice.origin + slice.first; };
    const std::uint64_t until = begin_of(slices_[of_slice]) + kSlicesAhead * slice_chunks();
    for (; asked_ < slices_.size() && begin_of(slices_[asked_]) < until; ++asked_) {
        const std::size_t i = asked_;
        DeviceDedupSlice of = for_kernels(slices_[i]);
        of.changed = changed_at(i);
        TWR_CHECK(to_result(c.kernels.find_changed(c.device, of, c.hashing.get())));
        TWR_CHECK(c.counting.follow(c.hashing.get()));
        TWR_CHECK(
            to_result(c.kernels.report(c.device, changed_on_host(i), changed_at(i), 1, c.counting.get())));
        TWR_CHECK(hashed_[i].record(c.counting.get()));
    }
    return success();
}

Result<HashedSlices> DeviceImage::take_hashed(std::size_t i, std::uint64_t room) {
    TWR_CHECK(hashed_[i].wait_soon());
    std::size_t hashed = i + 1;
    if (context_.options.method != RecordMethod::tree) {
        while (hashed < asked_ && slices_[hashed].origin == slices_[i].origin) {
            TWR_TRY(const bool is_hashed, hashed_[hashed].done());
            if (!is_hashed) break;
            ++hashed;
        }
    }
    HashedSlices found{slices_[i], *changed_on_host(i), i + 1};
    room = std::min(room, slice_chunks());
    for (; found.next < hashed; ++found.next) {
        const std::uint32_t changed = *changed_on_host(found.next);
        if (std::uint64_t{found.changed} + changed > room) break;
        const ImageSlice& more = slices_[found.next];
        found.changed += changed;
        found.slice.chunks += more.chunks;
        found.slice.groups += more.groups;
        found.slice.part_count += more.part_count;
    }
    return found;
}

Result<> DeviceImage::list_changed(const ImageSlice& slice, std::uint32_t* changed) {
    DedupContext& c = context_;
    return to_result(c.kernels.list_changed(c.device, for_kernels(slice), changed, c.working.get()));
}

Result<> DeviceImage::fetch_content(std::span<std::uint64_t> content) {
    return context_.copy(content.data(), content_.data(), content.size_bytes(), context_.hashing);
}

// ---- memory ----

void DeviceImage::forget() {
    layout_ = {};
    hashes_.clear();
    content_.clear();
    base_chunks_.clear();
    base_image_.clear();
    where_.clear();
}

void DeviceImage::release() {
    for (DeviceMemory* memory : {&device_parts_, &parts_host_, &words_, &scratch_, &counts_, &counts_host_})
        memory->clear();
}

std::uint64_t DeviceImage::memory_bytes() const {
    std::uint64_t bytes = 0;
    for (const DeviceMemory* memory : {&hashes_, &content_, &base_image_, &where_, &device_parts_,
                                       &parts_host_, &words_, &scratch_, &counts_, &counts_host_}) {
        bytes += memory->bytes();
    }
    return bytes;
}

}  // namespace twinrun
