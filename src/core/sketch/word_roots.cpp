#include "sketch/word_roots.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sketch/host_sketch.hpp"
#include "sketch/quick_roots.hpp"
#include "sketch/words.hpp"

namespace twinrun {

namespace {

// The arrays on one device.
struct ArraysOfDevice {
    std::vector<std::size_t> numbers;
    std::vector<const DeviceArray*> arrays;
    std::uint64_t bytes = 0;
};

Result<std::shared_ptr<QueuedRoots>> queue(const ArraysOfDevice& of) {
    const bool quick = of.bytes <= kMostQuickBytes && of.arrays.size() <= kQuickRoots &&
                       std::all_of(of.arrays.begin(), of.arrays.end(),
                                   [](const DeviceArray* array) { return is_quick(*array); });
    if (quick) return queue_quick_roots(of.arrays);
    std::vector<FieldMetadata> fields;
    std::vector<DeviceArray> arrays;
    for (const DeviceArray* array : of.arrays) {
        TWR_TRY(FieldMetadata field, plan_words(array->dtype, array->shape));
        fields.push_back(std::move(field));
        arrays.push_back(*array);
    }
    return queue_roots(std::move(fields), std::move(arrays));
}

std::uint64_t bytes_on_host(std::span<const DeviceArray> words) {
    std::uint64_t bytes = 0;
    for (const DeviceArray& array : words) {
        if (array.device == kHostMemory) bytes += array.items() * item_bytes(array.dtype);
    }
    return bytes;
}

Result<std::uint64_t> root_on_host(const FieldMetadata& field, const DeviceArray& words,
                                   const StreamOptions& options) {
    MemorySource source(words.dtype, field.items(), words.data, item_bytes(words.dtype), false);
    TWR_TRY(const HostSketch sketch, HostSketch::build(field, source, options));
    return sketch.built().tree.empty() ? 0 : sketch.built().tree[0];
}

}  // namespace

Result<WordRoots> WordRoots::start(std::span<const DeviceArray> words, std::uint64_t few_bytes,
                                   StreamOptions options) {
    if (bytes_on_host(words) < few_bytes) options.threads = 1;
    WordRoots started;
    started.roots_.resize(words.size());
    std::map<int, ArraysOfDevice> on_devices;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i].device == kHostMemory) {
            TWR_TRY(const FieldMetadata field, plan_words(words[i].dtype, words[i].shape));
            TWR_TRY(started.roots_[i], root_on_host(field, words[i], options));
        } else if (words[i].items() != 0) {
            ArraysOfDevice& of = on_devices[words[i].device];
            of.numbers.push_back(i);
            of.arrays.push_back(&words[i]);
            of.bytes += words[i].items() * item_bytes(words[i].dtype);
        }
    }
    for (auto& [device, of] : on_devices) {
        TWR_TRY(auto roots, queue(of));
        started.queued_.push_back({std::move(of.numbers), std::move(roots)});
    }
    return started;
}

Result<std::vector<std::uint64_t>> WordRoots::roots() {
    for (const Queued& queued : queued_) {
        TWR_TRY(const std::vector<std::uint64_t> made, queued.roots->roots());
        for (std::size_t i = 0; i < made.size(); ++i)
            roots_[queued.numbers[i]] = made[i];
    }
    queued_.clear();
    return roots_;
}

}  // namespace twinrun
