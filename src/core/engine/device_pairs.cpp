#include "engine/device_pairs.hpp"

#include <algorithm>
#include <utility>

#include "source/tuning.hpp"

namespace twinrun {

namespace {

bool is_same(const DifferenceRule& x, const DifferenceRule& y) {
    return x.tolerance.atol == y.tolerance.atol && x.tolerance.rtol == y.tolerance.rtol &&
           x.nan_equal == y.nan_equal && x.measure.ulps == y.measure.ulps;  // circles are not taken
}

}  // namespace

std::optional<DevicePair> DevicePairs::pair_of(const DeviceArray& a, const DeviceArray& b,
                                               const DifferenceRule& rule) {
    if (a.device != b.device || a.dtype != b.dtype) return std::nullopt;
    for (const DeviceArray* side : {&a, &b}) {
        if (!side->strides.empty() && side->strides.size() != side->shape.size()) return std::nullopt;
        if (!side->dense()) return std::nullopt;
    }
    const DevicePair pair{a.data, b.data, a.stream, b.stream, a.items(), a.dtype, &rule};
    if (pair.items != b.items() || !takes(pair)) return std::nullopt;
    return pair;
}

bool DevicePairs::takes(const DevicePair& pair) {
    if (pair.items == 0 || pair.items > kMostArrayBytes / item_bytes(pair.dtype)) return false;
    for (const void* data : {pair.a, pair.b}) {
        if (data == nullptr ||
            reinterpret_cast<std::uintptr_t>(data) % item_bytes(scalar_type(pair.dtype)) != 0)
            return false;
    }
    const auto& period = pair.rule->measure.period;
    return std::all_of(period.begin(), period.end(), [](double length) { return length == 0; });
}

void DevicePairs::divide(std::span<const DevicePair> pairs) {
    std::vector<std::size_t> group_of(pairs.size());
    std::vector<std::size_t> number(pairs.size());  // in its group
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const DevicePair& pair = pairs[i];
        const DType scalar = scalar_type(pair.dtype);
        const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) {
            return g.what.scalar == scalar && (g.rule == pair.rule || is_same(g.what.rule, *pair.rule));
        });
        group_of[i] = static_cast<std::size_t>(group - groups_.begin());
        if (group == groups_.end())
            groups_.push_back(
                {{scalar, *pair.rule, kSmallestChunk / item_bytes(scalar)}, pair.rule, {}, 0, 0});
        std::vector<DevicePart>& parts = groups_[group_of[i]].parts;
        number[i] = parts.size();
        parts.push_back({pair.a, pair.b, pair.scalars(), 0});
    }
    std::vector<std::size_t> first(groups_.size() + 1, 0);
    for (std::size_t g = 0; g < groups_.size(); ++g)
        first[g + 1] = first[g] + groups_[g].parts.size();
    place_.resize(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i)
        place_[i] = first[group_of[i]] + number[i];
}

// The batch's stream waits for the work that makes the arrays.
Result<> DevicePairs::follow(std::span<const DevicePair> pairs) {
    const auto follow = [&](StreamHandle stream) -> Result<> {
        if (std::find(followed_.rbegin(), followed_.rend(), stream) != followed_.rend()) return success();
        followed_.push_back(stream);
        return space_->stream().follow(stream);
    };
    for (const DevicePair& pair : pairs) {
        TWR_CHECK(follow(pair.stream_a));
        TWR_CHECK(follow(pair.stream_b));
    }
    return success();
}

// Device memory: results, then the groups' scratch. Host: likewise.
// before: a batch whose kernels end before these begin: both at once would each take longer. What
// the kernels need is put into place meanwhile, and the other batch's results are copied.
Result<> DevicePairs::launch(const DevicePairs* before) {
    const int device = space_->device();
    const StreamHandle stream = space_->stream().get();
    const DeviceDifferenceKernels* kernels = device_difference_kernels();
    const std::size_t results = device_aligned(place_.size() * sizeof(DevicePairResult));
    std::size_t device_bytes = results;
    std::size_t host_bytes = results;
    for (Group& g : groups_) {
        kernels->pairs_scratch(device, g.what, g.parts.data(), g.parts.size(), &g.device_bytes,
                               &g.host_bytes);
        device_bytes += device_aligned(g.device_bytes);
        host_bytes += device_aligned(g.host_bytes);
    }
    TWR_CHECK(space_->reserve_device(device_bytes));
    TWR_CHECK(space_->reserve_host(host_bytes));
    TWR_CHECK(compared_.make(device));
    TWR_CHECK(begin_.make(device, true));
    TWR_CHECK(end_.make(device, true));
    auto* const found = reinterpret_cast<DevicePairResult*>(space_->device_memory());
    std::byte* scratch = space_->device_memory() + results;
    std::byte* host_scratch = space_->host_memory() + results;
    for (const Group& g : groups_) {
        TWR_CHECK(to_result(kernels->put_pairs(device, g.what, g.parts.data(), g.parts.size(), scratch,
                                               host_scratch, stream)));
        scratch += device_aligned(g.device_bytes);
        host_scratch += device_aligned(g.host_bytes);
    }
    if (before != nullptr) TWR_CHECK(before->compared_.hold_up(device, stream));
    TWR_CHECK(begin_.record(stream));
    scratch = space_->device_memory() + results;
    std::size_t first = 0;
    for (const Group& g : groups_) {
        TWR_CHECK(to_result(kernels->compare_pairs(device, g.what, g.parts.data(), g.parts.size(),
                                                   found + first, scratch, stream)));
        first += g.parts.size();
        scratch += device_aligned(g.device_bytes);
    }
    TWR_CHECK(compared_.record(stream));
    TWR_CHECK(to_result(device_runtime()->copy(device, space_->host_memory(), space_->device_memory(),
                                               place_.size() * sizeof(DevicePairResult), stream)));
    results_ = reinterpret_cast<const DevicePairResult*>(space_->host_memory());
    return end_.record(stream);
}

Result<std::unique_ptr<DevicePairs>> DevicePairs::start(int device, std::span<const DevicePair> pairs,
                                                        const DevicePairs* before) {
    if (device_runtime() == nullptr || device_difference_kernels() == nullptr)
        return Error{ErrorCode::unsupported, "the device library lacks kernels: install it again"};
    std::unique_ptr<DevicePairs> batch(new DevicePairs);
    batch->divide(pairs);
    TWR_TRY(batch->space_, DeviceWorkspaces::slices().lease(device));
    TWR_CHECK(batch->follow(pairs));
    if (Result<> launched = batch->launch(before); !launched) {
        // What was put into the stream before it failed still uses the memory.
        static_cast<void>(batch->space_->stream().wait());
        return std::move(launched).error();
    }
    return batch;
}

Result<> DevicePairs::lead() {
    for (const StreamHandle stream : followed_)
        TWR_CHECK(space_->stream().lead(stream));
    return success();
}

Result<> DevicePairs::wait() {
    TWR_CHECK(end_.wait_soon());
    TWR_TRY(seconds_, end_.seconds_since(begin_));
    return success();
}

}  // namespace twinrun
