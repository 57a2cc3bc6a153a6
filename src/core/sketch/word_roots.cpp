#include "sketch/word_roots.hpp"

#include <map>
#include <utility>

#include "sketch/host_sketch.hpp"
#include "sketch/words.hpp"

namespace twinrun {

namespace {

// The arrays on one device.
struct ArraysOfDevice {
    std::vector<std::size_t> numbers;
    std::vector<FieldMetadata> fields;
    std::vector<DeviceArray> arrays;
};

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
        TWR_TRY(FieldMetadata field, plan_words(words[i].dtype, words[i].shape));
        if (words[i].device == kHostMemory) {
            TWR_TRY(started.roots_[i], root_on_host(field, words[i], options));
            continue;
        }
        ArraysOfDevice& of = on_devices[words[i].device];
        of.numbers.push_back(i);
        of.fields.push_back(std::move(field));
        of.arrays.push_back(words[i]);
    }
    for (auto& [device, of] : on_devices) {
        TWR_TRY(auto roots, queue_roots(std::move(of.fields), std::move(of.arrays)));
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
