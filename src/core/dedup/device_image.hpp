// The image of a step on a device: its segments cut into slices, and what is kept of the base that
// its chunks are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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

// Consecutive chunks of an image. Their numbers count from chunk `origin` of the image, as those of
// their groups do. Their parts are `part_count` from `part` on.
struct ImageSlice {
    std::uint64_t origin = 0;
    std::uint32_t first = 0;
    std::uint32_t chunks = 0;
    std::uint64_t origin_group = 0;  // of the image
    std::uint32_t first_group = 0;
    std::uint32_t groups = 0;
    std::size_t part = 0;
    std::size_t part_count = 0;
};
// Slices that lie side by side, and are hashed. `next` is the number of the slice behind them.
struct HashedSlices {
    ImageSlice slice;
    std::uint32_t changed = 0;  // chunks
    std::size_t next = 0;
};

// Not thread-safe. Errors: names that repeat and images that are too large
// (invalid_argument), segments with a bound (unsupported), and the device's.
//
// A step begins with begin(). Then come take_hashed(0), take_hashed(its `next`), … and list_changed
// of each. hash_ahead(i) comes before take_hashed(i).
class DeviceImage {
   public:
    explicit DeviceImage(DedupContext& context) : context_(context) {}
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
    [[nodiscard]] DeviceDedupSlice for_kernels(const ImageSlice& slice) const;

    // Brings slice i and some behind it on their way: their chunks are hashed, and those that
    // changed are marked, in the stream `hashing`. Does not wait.
    Result<> hash_ahead(std::size_t i);
    // Whether slice i is hashed; does not wait.
    [[nodiscard]] Result<bool> is_hashed(std::size_t i) const { return hashed_[i].done(); }
    // Waits until slice i is hashed. Others that are too, next to it, are taken with it, as long as
    // no more than `room` of their chunks changed, and no more than a slice has. Not for the method
    // `tree`, of which each slice is a tree.
    Result<HashedSlices> take_hashed(std::size_t i, std::uint64_t room);
    // Writes the numbers of the changed chunks to device memory, in the stream `working`.
    Result<> list_changed(const ImageSlice& slice, std::uint32_t* changed);
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
    [[nodiscard]] std::uint64_t slice_chunks() const;
    [[nodiscard]] std::uint32_t* changed_at(std::size_t i) const { return counts_.as<std::uint32_t>() + i; }
    [[nodiscard]] std::uint32_t* changed_on_host(std::size_t i) const {
        return counts_host_.as<std::uint32_t>() + i;
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
    DeviceMemory words_;    // marks of changed chunks, of all slices
    DeviceMemory scratch_;  // for those that are listed
    DeviceMemory counts_;   // of changed chunks, of each slice
    DeviceMemory counts_host_;
    std::deque<DeviceEvent> hashed_;  // one for each slice at least
    std::size_t asked_ = 0;           // slices that hash_ahead() was called for
};

}  // namespace twinrun
