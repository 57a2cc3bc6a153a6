#include "dedup/device_image.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"

namespace twinrun {

namespace {

// Hashed in about 0.15 ms, many times what a launch costs.
constexpr std::uint64_t kImageSliceBytes = std::uint64_t{512} << 20;

}  // namespace

Result<> DeviceImage::prepare() {
    for (DeviceEvent* event : {&hashed_[0], &hashed_[1], &listed_[0], &listed_[1]})
        TWR_CHECK(event->make(context_.device));
    return success();
}

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
        const DeviceDedupSlice of = slice(i);
        TWR_CHECK(to_result(c.kernels.find_changed(c.device, of, c.hashing.get())));
        if (!c.keeps_image()) continue;
        DeviceConsolidate what;
        what.chunk_bytes = c.options.chunk_bytes;
        what.parts = of.parts;
        what.part_count = of.part_count;
        what.chunk_count = of.chunks;
        what.to = base(slices_[i].first).image;
        TWR_CHECK(to_result(c.kernels.consolidate(c.device, what, c.hashing.get())));
    }
    if (c.keeps_image()) TWR_CHECK(c.copy(where_.data(), where.data(), where.size_bytes(), c.hashing));
    TWR_CHECK(c.wait(c.hashing));
    become_base();
    return success();
}

void DeviceImage::become_base() { base_chunks_ = layout_.chunk_counts(); }

// ---- slices ----

// slices_ and parts_: the image cut up, and its parts on the device.
Result<> DeviceImage::cut(std::span<const ImageSegment> segments, const ImageLayout& layout) {
    DedupContext& c = context_;
    slices_.clear();
    parts_.clear();
    const std::uint32_t per_group = dedup_group_chunks(c.options.chunk_bytes);
    const std::uint64_t slice_chunks =
        c.options.slice_chunks != 0 ? c.options.slice_chunks : kImageSliceBytes / c.chunk;
    for (std::uint64_t first = 0; first < layout.chunks(); first += slice_chunks) {
        const std::uint64_t last = std::min(layout.chunks(), first + slice_chunks);
        ImageSlice slice{first, static_cast<std::uint32_t>(last - first), 0, parts_.size(), 0};
        layout.each_segment(first, last, [&](std::size_t s, std::uint64_t begin, std::uint64_t end) {
            DeviceDedupPart part;
            part.number = begin - layout.first(s);
            part.data = segments[s].data + part.number * c.chunk;
            part.bytes = layout.bytes_between(s, begin, end);
            part.segment = static_cast<std::uint32_t>(s);
            part.first = static_cast<std::uint32_t>(begin - first);
            part.chunks = static_cast<std::uint32_t>(end - begin);
            if (s < base_chunks_.size()) {
                part.with_base = static_cast<std::uint32_t>(
                    std::clamp<std::uint64_t>(base_chunks_[s], part.number, part.number + part.chunks) -
                    part.number);
            }
            part.group = slice.groups;
            slice.groups += static_cast<std::uint32_t>(divide_up(part.chunks, per_group));
            parts_.push_back(part);
        });
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
    const std::uint32_t group_words = dedup_group_chunks(context_.options.chunk_bytes) / 32;
    std::uint64_t words = 0;
    for (const ImageSlice& slice : slices_)
        words = std::max<std::uint64_t>(words, std::uint64_t{slice.groups} * group_words);
    scan_scratch_ = device_aligned(context_.scan_bytes(words + 1));
    const std::size_t bytes = 2 * device_aligned((words + 1) * sizeof(std::uint32_t)) + scan_scratch_;
    for (std::size_t b = 0; b < std::min<std::size_t>(2, slices_.size()); ++b)
        TWR_CHECK(marks_[b].reserve(context_.device, bytes));
    most_words_ = words;
    return success();
}

DeviceDedupSlice DeviceImage::slice(std::size_t i) const {
    const ImageSlice& of = slices_[i];
    const std::size_t words_bytes = device_aligned((most_words_ + 1) * sizeof(std::uint32_t));
    const DeviceMemory& marks = marks_[i % 2];
    DeviceDedupSlice slice;
    slice.chunk_bytes = context_.options.chunk_bytes;
    slice.chunks = of.chunks;
    slice.parts = device_parts(of);
    slice.part_count = static_cast<std::uint32_t>(of.part_count);
    slice.groups = of.groups;
    slice.hashes = hashes_.as<ChunkHash>() + of.first;
    slice.content = content_.as<std::uint64_t>();
    slice.mask = context_.mask;
    slice.words = marks.as<std::uint32_t>();
    slice.before = marks.as<std::uint32_t>(words_bytes);
    slice.scratch = marks.data() + 2 * words_bytes;
    slice.scratch_bytes = scan_scratch_;
    return slice;
}

Result<> DeviceImage::hash(std::size_t i) {
    DedupContext& c = context_;
    const DeviceDedupSlice of = slice(i);
    TWR_CHECK(to_result(c.kernels.find_changed(c.device, of, c.hashing.get())));
    TWR_CHECK(c.copy(changed_on_host(i), of.before + of.words_of(), sizeof(std::uint32_t), c.hashing));
    return hashed_[i % 2].record(c.hashing.get());
}

Result<std::uint32_t> DeviceImage::count_changed(std::size_t i) {
    // Behind the last slice nothing is in the stream. A wait that sleeps takes longer to wake up
    // than a slice to hash.
    if (i + 1 == slices_.size()) {
        TWR_CHECK(context_.wait(context_.hashing));
    } else {
        TWR_CHECK(hashed_[i % 2].wait());
    }
    return *changed_on_host(i);
}

Result<> DeviceImage::list_changed(std::size_t i, std::uint32_t* changed) {
    DedupContext& c = context_;
    TWR_CHECK(to_result(c.kernels.list_changed(c.device, slice(i), changed, c.working.get())));
    return listed_[i % 2].record(c.working.get());
}

Result<> DeviceImage::hash_after_listing(std::size_t i) {
    TWR_CHECK(listed_[i % 2].hold_up(context_.device, context_.hashing.get()));
    return hash(i);
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
    for (DeviceMemory* memory : {&device_parts_, &parts_host_, &marks_[0], &marks_[1]})
        memory->clear();
}

std::uint64_t DeviceImage::memory_bytes() const {
    std::uint64_t bytes = 0;
    for (const DeviceMemory* memory :
         {&hashes_, &content_, &base_image_, &where_, &device_parts_, &parts_host_, &marks_[0], &marks_[1]}) {
        bytes += memory->bytes();
    }
    return bytes;
}

}  // namespace twinrun
