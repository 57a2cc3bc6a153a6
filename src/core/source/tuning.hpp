// Numbers that trade one resource for another, apart from the code that uses them.
// Where a number was measured: 2 cores of a Xeon (Sapphire Rapids) virtual machine, virtio disk of
// about 1 GB/s.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun {

// Element bytes of one side in a slice. 1 MiB is also the unit of data checksums: it must stay that
// multiple.
inline constexpr std::size_t kSliceBytes = 1 << 20;
// The same where the page cache holds the data: both sides' buffers stay in a core's L2 cache.
inline constexpr std::size_t kSliceBytesInCache = 256 << 10;
// Buffers are registered with the kernel when every one is read into about this often.
inline constexpr std::uint64_t kReusesToRegister = 16;
// Work below this is done by the calling thread with plain reads: threads and rings cost more than
// they save.
inline constexpr std::uint64_t kInlineBytes = 4 << 20;
// A gap up to this many bytes between two reads is read through. Storage: about what arrives during
// one more request; page cache: what is copied during one more system call.
inline constexpr std::uint64_t kGapOnStorage = 32 << 10;
inline constexpr std::uint64_t kGapInCache = 8 << 10;
// Slices in flight a worker: enough bytes in flight to cover the latency of storage.
inline constexpr std::size_t kMostSlots = 12;
inline constexpr std::size_t kQueueDepth = 64;
// Element bytes: whether a sketch is read is settled in stretches of so many, each by itself. So a
// field that is compared in ranges which end at multiples of them is read as if it were compared in
// one.
inline constexpr std::uint64_t kRangeBytes = 64 << 20;
// A file with less than this share of its pages in the page cache is read with O_DIRECT.
inline constexpr double kCachedShare = 0.5;

// ---- devices: by data sheets (PCIe 4 and 5, 25 and 50 GB/s), to be measured ----

// Element bytes of one side in a slice that goes to a device: its copy over PCIe 5 takes some 80
// us, ten times what it costs to start one.
inline constexpr std::size_t kDeviceSliceBytes = 4 << 20;
// The same from page-locked memory of the caller, where no buffer of ours is needed.
inline constexpr std::size_t kDeviceSliceBytesLocked = 16 << 20;
// The same where both sides lie on the device: nothing is copied, so this is only how often an
// interrupt is looked for.
inline constexpr std::size_t kDeviceSliceBytesInPlace = std::size_t{4} << 30;
// Out of device memory, slices are halved down to this.
inline constexpr std::size_t kSmallestDeviceSlice = 1 << 20;
// Residue bytes of one side in a slice of sketches for a device.
inline constexpr std::size_t kDeviceSketchBytes = 2 << 20;
// Slices a worker has on its device at once: one is copied, one compared, one collected.
inline constexpr std::size_t kDeviceLanes = 3;
// Page-locked buffers a worker: those on the device and one that is read into. Locking memory is
// slow: no more than that.
inline constexpr std::size_t kDeviceSlots = kDeviceLanes + 1;
// Workers for each device. Each reads, or copies from memory that is not page-locked, at several
// GB/s.
inline constexpr int kWorkersPerDevice = 8;
// A further worker is worth its buffers for this many bytes.
inline constexpr std::uint64_t kBytesPerDeviceWorker = 64 << 20;
// Windows of a slice that goes to a device: more than on the host, as a slice there costs more than
// a window.
inline constexpr std::uint64_t kDeviceWindows = 256;
// Windows that are copied one by one; more of them go as one stretch of the buffer.
inline constexpr std::uint64_t kSingleCopies = 4;
// A strided source that uses less than one in this many bytes is gathered on the host.
inline constexpr std::uint64_t kWidestStride = 4;

// Work below this is never worth the start of a device.
inline constexpr std::uint64_t kSmallestDeviceWork = std::uint64_t{1} << 30;
// Seconds until the first use of a device by a process, about.
inline constexpr double kDeviceStartSeconds = 0.5;
// Bytes a second from host memory to one device, until a run has measured it: PCIe 4.
inline constexpr double kAssumedDeviceRate = 20e9;

}  // namespace twinrun
