#include "sketch/device_sums.hpp"

#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <tuple>
#include <vector>

#include "sketch/build.hpp"

namespace twinrun {

namespace {

// Plans that are kept.
constexpr std::size_t kMostPlans = 64;
constexpr std::uint64_t kMostPlanBytes = 64 << 20;

// A bit and its share of the counts are a 42nd of a bucket's number: as far apart as that bits are
// the shorter form.
constexpr std::uint64_t kMostReach = 42;

// All that a plan follows from.
using Layout = std::tuple<DType, std::uint32_t, std::vector<std::uint64_t>, std::vector<std::uint64_t>,
                          std::vector<std::uint64_t>>;

struct Plans {
    std::mutex mutex;
    struct Plan {
        Layout layout;
        std::shared_ptr<const DeviceSumsPlan> sums;  // null: there are none
        std::uint64_t bytes;
    };
    std::list<Plan> all;  // the latest used first
    std::uint64_t bytes = 0;
};
Plans& plans() {
    static Plans kept;
    return kept;
}

std::shared_ptr<const DeviceSumsPlan> made_plan(const FieldMetadata& field) {
    auto placement = RowPlacement::of_box(field.shape, field.global_shape, field.global_offset,
                                          scalars_per_item(field.dtype));
    if (!placement) return nullptr;
    auto sums = PartialSums::plan(field.settings, scalar_type(field.dtype),
                                  std::make_shared<const RowPlacement>(std::move(*placement)), false);
    if (!sums) return nullptr;
    auto plan = std::make_shared<DeviceSumsPlan>(DeviceSumsPlan{std::move(*sums), {}, {}});
    const std::span<const std::uint64_t> buckets = plan->sums.buckets();
    if (buckets.empty()) return plan;
    const std::uint64_t reach = buckets.back() - buckets.front() + 1;
    if (reach == buckets.size() || reach / kMostReach >= buckets.size() || buckets.size() >> 32 != 0)
        return plan;
    plan->bits.resize(reach / 64 + 1);
    plan->before.resize(plan->bits.size());
    for (const std::uint64_t bucket : buckets) {
        const std::uint64_t at = bucket - buckets.front();
        plan->bits[at / 64] |= std::uint64_t{1} << at % 64;
    }
    for (std::size_t w = 1; w < plan->bits.size(); ++w)
        plan->before[w] = plan->before[w - 1] + static_cast<std::uint32_t>(std::popcount(plan->bits[w - 1]));
    return plan;
}

std::uint64_t index_of(const RowPlacement& rows, std::uint64_t scalar) {
    return rows.start(scalar / rows.row_scalars()) + scalar % rows.row_scalars();
}

}  // namespace

std::shared_ptr<const DeviceSumsPlan> plan_device_sums(const FieldMetadata& field) {
    if (!field.partial() || !field.key.empty() || field.settings.kind != DigestKind::linear ||
        own_chunks(field))
        return nullptr;
    Layout layout{field.dtype, field.settings.chunk_bytes, field.shape, field.global_shape,
                  field.global_offset};
    Plans& kept = plans();
    {
        const std::lock_guard guard(kept.mutex);
        const auto found = std::find_if(kept.all.begin(), kept.all.end(),
                                        [&](const Plans::Plan& p) { return p.layout == layout; });
        if (found != kept.all.end()) {
            kept.all.splice(kept.all.begin(), kept.all, found);
            return found->sums;
        }
    }
    auto sums = made_plan(field);
    const std::uint64_t bytes = sums == nullptr ? 0 : sums->sums.bytes() + sums->bits.size() * 12;
    if (bytes > kMostPlanBytes) return sums;
    const std::lock_guard guard(kept.mutex);
    kept.all.push_front({std::move(layout), sums, bytes});
    kept.bytes += bytes;
    while (kept.all.size() > kMostPlans || kept.bytes > kMostPlanBytes) {
        kept.bytes -= kept.all.back().bytes;
        kept.all.pop_back();
    }
    return sums;
}

std::uint64_t device_sums_bytes(const FieldMetadata& field) {
    const auto plan = plan_device_sums(field);
    return plan == nullptr ? 0 : plan->sums.count() * kSumsWords * sizeof(std::uint64_t);
}

// Indices of a box grow with the scalars, and so do the buckets.
SumsSlots sums_slots(const DeviceSumsPlan& plan, std::uint64_t first, std::uint64_t count) {
    if (count == 0) return {};
    const RowPlacement& rows = plan.sums.placement();
    const std::span<const std::uint64_t> buckets = plan.sums.buckets();
    const auto slot = [&](std::uint64_t scalar) {
        const std::uint64_t bucket = index_of(rows, scalar) / plan.sums.bucket_scalars();
        return static_cast<std::size_t>(std::lower_bound(buckets.begin(), buckets.end(), bucket) -
                                        buckets.begin());
    };
    const std::size_t begin = slot(first);
    return {begin, slot(first + count - 1) + 1 - begin};
}

DeviceSumsItem sums_item(const DeviceSumsPlan& plan, const FieldMetadata& field, std::uint64_t first,
                         std::uint64_t count, const void* data, std::uint64_t* halves) {
    const RowPlacement& rows = plan.sums.placement();
    DeviceSumsItem item;
    item.data = data;
    item.first = first;
    item.count = count;
    item.scalar = scalar_type(field.dtype);
    item.rule = field.settings.rule;
    item.row_scalars = rows.row_scalars();
    item.base = rows.base();
    // Neighbours that lie as one are one.
    for (const RowPlacement::Axis& axis : rows.axes()) {
        if (axis.extent == 1) continue;
        if (item.axis_count != 0) {
            DeviceSumsItem::Axis& last = item.axes[item.axis_count - 1];
            if (axis.stride == last.stride * last.extent) {
                last.extent *= axis.extent;
                continue;
            }
        }
        item.axes[item.axis_count++] = {axis.extent, axis.stride};
    }
    item.bucket_scalars = plan.sums.bucket_scalars();
    const SumsSlots slots = sums_slots(plan, first, count);
    item.bucket_count = slots.count;
    if (slots.count != 0) {
        const std::span<const std::uint64_t> own = plan.sums.buckets().subspan(slots.first, slots.count);
        item.first_bucket = own.front();
        const bool gaps = own.back() - own.front() + 1 != own.size();
        if (gaps && !plan.bits.empty()) {
            const std::uint64_t base = plan.sums.buckets().front();
            const std::uint64_t word = (own.front() - base) / 64;
            item.bits = &plan.bits[word];
            item.before = &plan.before[word];
            item.words = (own.back() - base) / 64 + 1 - word;
            item.first_bucket = base + word * 64;
            item.first_slot = slots.first;
        } else if (gaps) {
            item.buckets = own.data();
        }
    }
    item.halves = halves;
    return item;
}

}  // namespace twinrun
