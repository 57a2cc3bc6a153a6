// Sums of digests, scalar by scalar.
#include <utility>
#include <vector>

#include "digest/field61.hpp"
#include "digest/values.hpp"
#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

void add_sums_now(int device, const DeviceSumsItem& item, const std::vector<std::uint64_t>& buckets) {
    const std::size_t size = item_bytes(item.scalar);
    Checker checker(device, "add_sums");
    checker.memory(item.data, item.count * size, size, "its data");
    checker.memory(item.halves, item.bucket_count * kSumsWords * 8, 8, "its sums");
    if (!checker.ok()) return;
    const std::uint64_t block = kBlockBytes / size;
    const FloatEnvironment guard(environment_of(item.rule));
    const ElementView view = dense_view(item.scalar, item.data);
    std::uint64_t behind_last = 0;
    std::uint64_t power = 1;
    for (std::uint64_t i = 0; i < item.count; ++i) {
        std::uint64_t row = (item.first + i) / item.row_scalars;
        std::uint64_t index = item.base + (item.first + i) % item.row_scalars;
        for (std::uint32_t k = 0; k < item.axis_count; ++k) {
            index += row % item.axes[k].extent * item.axes[k].stride;
            row /= item.axes[k].extent;
        }
        alignas(64) std::byte staging[64];
        const void* at = load(view, i, 1, staging);
        const auto value = [&](int shift) {
            const auto of = [&]<class T>(T x) {
                std::memcpy(&x, at, sizeof x);
                return field_value(cell_for(x, item.rule, shift));
            };
            switch (compute_type(item.scalar)) {
                case ComputeType::f32: return of(float{});
                case ComputeType::f64: return of(double{});
                case ComputeType::i64: return of(std::int64_t{});
                case ComputeType::u64: return of(std::uint64_t{});
            }
            return std::uint64_t{0};
        };
        const std::uint64_t behind = (item.bucket_scalars - 1 - index % item.bucket_scalars) / block;
        if (behind != behind_last) power = power61(kRho, behind_last = behind);
        const std::uint64_t weight = multiply61(coefficient(index % block), power);
        const std::uint64_t bucket = index / item.bucket_scalars;
        std::uint64_t slot = bucket - item.first_bucket;
        if (!buckets.empty()) {
            slot = static_cast<std::uint64_t>(std::lower_bound(buckets.begin(), buckets.end(), bucket) -
                                              buckets.begin());
        }
        if (slot >= item.bucket_count || (!buckets.empty() && buckets[slot] != bucket))
            return trouble(device, "add_sums: a bucket that is not there");
        std::uint64_t* const to = item.halves + slot * kSumsWords;
        const std::uint64_t coarse = multiply61(weight, value(item.rule.coarse_shift));
        const std::uint64_t fine = multiply61(weight, value(0));
        to[0] += coarse & 0xFFFFFFFF;
        to[1] += coarse >> 32;
        to[2] += fine & 0xFFFFFFFF;
        to[3] += fine >> 32;
    }
}
void sums_scratch(const DeviceSumsItem*, std::size_t n, std::size_t* device_bytes, std::size_t* host_bytes) {
    *device_bytes = n * kScratch;
    *host_bytes = n * kScratch / 2;
}
DeviceStatus add_sums(int device, const DeviceSumsItem* items, std::size_t n, void* scratch,
                      void* host_scratch, StreamHandle stream) {
    FAKE_ENTER(kAddSums, device);
    const Scratch area(scratch, n * kScratch, host_scratch, n * kScratch / 2);
    area.prepare();
    // Buckets are the caller's until this call is over.
    std::vector<std::vector<std::uint64_t>> buckets(n);
    for (std::size_t i = 0; i < n; ++i) {
        const DeviceSumsItem& item = items[i];
        if (item.buckets != nullptr) buckets[i].assign(item.buckets, item.buckets + item.bucket_count);
        for (std::uint64_t w = 0; w < item.words; ++w) {
            std::uint64_t slot = item.before[w];
            for (unsigned bit = 0; bit < 64; ++bit) {
                if ((item.bits[w] >> bit & 1) == 0) continue;
                const bool own = slot >= item.first_slot && slot - item.first_slot < item.bucket_count;
                if (own) buckets[i].push_back(item.first_bucket + w * 64 + bit);
                ++slot;
            }
        }
    }
    return push(device, stream,
                [=, all = std::vector<DeviceSumsItem>(items, items + n), own = std::move(buckets)] {
                    Checker checker(device, "add_sums");
                    area.check(checker);
                    for (std::size_t i = 0; checker.ok() && i < all.size(); ++i)
                        add_sums_now(device, all[i], own[i]);
                });
}

}  // namespace

const DeviceSumsKernels kSums = {.scratch = sums_scratch, .add = add_sums};

}  // namespace twinrun::fake
