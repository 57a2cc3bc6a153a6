// Roots of the words of few arrays on a device, made in the background with one launch: for who
// digests the values of a program one after the other. What is larger, or has more dimensions with
// strides, takes queue_roots().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "sketch/root_queue.hpp"
#include "source/device_array.hpp"

namespace twinrun {

// Whether queue_quick_roots() takes the array: words of a device, with an element. They may lie in
// any order that takes no more than kMostRunDimensions + 1 strides, as heads of attention and
// transposed matrices do; dense ones and dense runs of a multiple of 16 bytes are fastest.
bool is_quick(const DeviceArray& words);

// Arrays that take the quick way together have at most so many bytes: above, the kernels of
// queue_roots() are faster.
inline constexpr std::uint64_t kMostQuickBytes = std::uint64_t{1} << 30;
// Roots that a device has under way, at most; who asks for more waits for the first ones.
inline constexpr std::size_t kQuickRoots = std::size_t{1} << 15;

// The arrays are is_quick(), of one device, and not more than kQuickRoots. Each is read in the
// order of its stream: work that is put there later may change it. Errors: the device's, at once or
// from roots(). Throws nothing.
Result<std::shared_ptr<QueuedRoots>> queue_quick_roots(std::span<const DeviceArray* const> words);

}  // namespace twinrun
