// Numbers that trade one resource for another, apart from the code that uses them.
// Where a number was measured: 2 cores of a Xeon (Sapphire Rapids) virtual machine, virtio disk of about 1 GB/s.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twinrun {

// Element bytes of one side in a slice. 1 MiB is also the unit of data checksums: it must stay that multiple.
inline constexpr std::size_t kSliceBytes = 1 << 20;
// The same where the page cache holds the data: both sides' buffers stay in a core's L2 cache.
inline constexpr std::size_t kSliceBytesInCache = 256 << 10;
// Buffers are registered with the kernel when every one is read into about this often.
inline constexpr std::uint64_t kReusesToRegister = 16;
// Work below this is done by the calling thread with plain reads: threads and rings cost more than they save.
inline constexpr std::uint64_t kInlineBytes = 4 << 20;
// A gap up to this many bytes between two reads is read through. Storage: about what arrives during one more request;
// page cache: what is copied during one more system call.
inline constexpr std::uint64_t kGapOnStorage = 32 << 10;
inline constexpr std::uint64_t kGapInCache = 8 << 10;
// Slices in flight a worker: enough bytes in flight to cover the latency of storage.
inline constexpr std::size_t kMostSlots = 12;
inline constexpr std::size_t kQueueDepth = 64;
// A file with less than this share of its pages in the page cache is read with O_DIRECT.
inline constexpr double kCachedShare = 0.5;

// How far ahead of the element comparison data is asked for, in bytes.
inline constexpr std::size_t kPrefetchAhead = 1024;

}  // namespace twinrun
