// The image of a step on a device: its segments cut into slices, and what is kept of the base that
// its chunks are compared with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "dedup/dedup_context.hpp"
#include "dedup/dedup_device.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/image_layout.hpp"
#include "device/event.hpp"

namespace twinrun {

// Consecutive chunks of an image. Their parts are `part_count` from `part` on.
struct ImageSlice {
    std::uint64_t first;
    std::uint32_t chunks;
    std::uint32_t groups;
    std::size_t part;
    std::size_t part_count;
};

// Not thread-safe. prepare() first. Errors: names that repeat and images that are too large
// (invalid_argument), segments with a bound (unsupported), and the device's.
//
// Two slices may be under way at once: hash(i), then count_changed(i) and list_changed(i); hash(i +
// 2) only after list_changed(i).
class DeviceImage {
   public:
    explicit DeviceImage(DedupContext& context) : context_(context) {}
    Result<> prepare();

    // Begins a step: what is known of segments that the base has too moves to where they lie now.
    Result<> begin(std::span<const ImageSegment> segments);
    // Begins a step whose chunks are not compared, and returns how many they are. The base stays as
    // it is.
    Result<std::uint64_t> begin_whole(std::span<const ImageSegment> segments);
    // Begins an image that replaces the base, brings its hashes to the device, and waits. where: as
    // Deduplicator::rebase.
    Result<> replace_base(std::span<const ImageSegment> segments, std::span<const Location> where);
    // The image of the step that began last is the base from now on.
    void become_base();

    [[nodiscard]] std::uint64_t chunks() const { return layout_.chunks(); }
    [[nodiscard]] std::size_t segments() const { return layout_.segments(); }
    [[nodiscard]] const std::vector<ImageSlice>& slices() const { return slices_; }
    [[nodiscard]] std::span<const DeviceDedupPart> parts(const ImageSlice& slice) const {
        return std::span(parts_).subspan(slice.part, slice.part_count);
    }
    [[nodiscard]] const DeviceDedupPart* device_parts(const ImageSlice& slice) const {
        return device_parts_.as<DeviceDedupPart>() + slice.part;
    }
    // The base from this chunk on. Addresses on the device.
    [[nodiscard]] DeviceBase base(std::uint64_t first) const;
    [[nodiscard]] DeviceDedupSlice slice(std::size_t i) const;

    // Hashes the chunks of slice i and marks those that changed, in the stream `hashing`.
    Result<> hash(std::size_t i);
    // Waits for hash(i), and returns how many chunks changed.
    Result<std::uint32_t> count_changed(std::size_t i);
    // Writes the numbers of the changed chunks of slice i to device memory, in the stream
    // `working`.
    Result<> list_changed(std::size_t i, std::uint32_t* changed);
    // The marks of slice i take the place of those of slice i - 2, after they were listed.
    Result<> hash_after_listing(std::size_t i);
    // Copies the checksums of the segments' content in the stream `hashing`, which the caller waits
    // for.
    Result<> fetch_content(std::span<std::uint64_t> content);

    // Drops the base.
    void forget();
    // Gives memory of a step back.
    void release();
    [[nodiscard]] std::uint64_t memory_bytes() const;

   private:
    [[nodiscard]] Result<ImageLayout> layout_of(std::span<const ImageSegment> segments) const;
    Result<> lay_out(std::span<const ImageSegment> segments);
    Result<> cut(std::span<const ImageSegment> segments, const ImageLayout& layout);
    Result<> reserve_marks();
    [[nodiscard]] std::uint32_t* changed_on_host(std::size_t i) const {
        return context_.control_host.as<std::uint32_t>(DedupContext::kStateAt) + i % 2;
    }

    DedupContext& context_;
    ImageLayout layout_;
    // The base.
    std::vector<std::uint64_t> base_chunks_;  // of each segment, those that the base has too
    DeviceMemory hashes_;
    DeviceMemory content_;
    DeviceMemory base_image_;
    DeviceMemory where_;
    // The step.
    std::vector<ImageSlice> slices_;
    std::vector<DeviceDedupPart> parts_;
    DeviceMemory device_parts_;
    DeviceMemory parts_host_;
    std::array<DeviceMemory, 2> marks_;
    std::uint64_t most_words_ = 0;
    std::size_t scan_scratch_ = 0;
    std::array<DeviceEvent, 2> hashed_;
    std::array<DeviceEvent, 2> listed_;
};

}  // namespace twinrun
