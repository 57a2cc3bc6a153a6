#include "aggregate/plan/last_transfer.hpp"

#include <algorithm>
#include <utility>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

// What is added to figures of steps, so that a step back is one too.
constexpr auto kNoStep = static_cast<double>(2 * LastTransfer::kFarthest);

// Whether parts are the old ones, all `delta` bytes farther in the file.
bool moved_by(std::span<const ArrayPart> now, std::span<const ArrayPart> before, std::uint64_t delta) {
    return std::equal(now.begin(), now.end(), before.begin(), before.end(),
                      [&](const ArrayPart& a, const ArrayPart& b) {
                          return a.where.offset == b.where.offset + delta && a.where.width == b.where.width &&
                                 a.where.count == b.where.count && a.where.stride == b.where.stride &&
                                 a.memory_offset == b.memory_offset && a.memory_stride == b.memory_stride;
                      });
}

}  // namespace

void LastTransfer::put(std::span<const ArrayPart> parts, std::span<double> figures) const {
    if (parts.empty()) {
        if (!parts_.empty()) figures[kChanged] = 1;
        return;
    }
    const std::uint64_t begin = parts.front().where.begin();
    figures[kBelow] = static_cast<double>(kFarthest - begin + 1);
    const std::uint64_t before = parts_.empty() ? 0 : parts_.front().where.begin();
    const std::uint64_t delta = begin - before;
    if (declared_ && moved_by(parts, parts_, delta)) {
        const auto step = static_cast<double>(static_cast<std::int64_t>(delta));
        figures[kAhead] = kNoStep + step;
        figures[kBack] = kNoStep - step;
    } else {
        figures[kChanged] = 1;
    }
}

std::uint64_t LastTransfer::zero(std::span<const double> agreed, std::uint64_t block) {
    const std::uint64_t first = kFarthest + 1 - static_cast<std::uint64_t>(agreed[kBelow]);
    return first - first % block;
}

std::optional<std::uint64_t> LastTransfer::base_after(std::span<const double> agreed, bool reads,
                                                      std::uint64_t multiple) const {
    const bool same_step = agreed[kAhead] - kNoStep == kNoStep - agreed[kBack];
    if (!declared_ || changed(agreed) || !same_step || (reads_ && !reads)) return std::nullopt;
    const auto step = static_cast<std::int64_t>(agreed[kAhead] - kNoStep);
    if (step % static_cast<std::int64_t>(multiple) != 0) return std::nullopt;
    return base_ + static_cast<std::uint64_t>(step);
}

bool LastTransfer::follow(std::span<const double> agreed, bool reads, std::uint64_t multiple) {
    const auto base = base_after(agreed, reads, multiple);
    if (!base) return false;
    for (ArrayPart& part : parts_)
        part.where.offset += *base - base_;
    base_ = *base;
    return true;
}

Result<std::vector<RankSet>> LastTransfer::renew(std::span<const ArrayPart> parts, std::uint64_t zero) {
    declared_ = false;
    base_ = zero;
    parts_.assign(parts.begin(), parts.end());
    std::vector<ArrayPart> relative = parts_;
    for (ArrayPart& part : relative)
        part.where.offset -= zero;
    return rank_sets(relative);
}

void LastTransfer::declared(bool reads) {
    reads_ = reads;
    declared_ = true;
}

}  // namespace aggregate_plan
}  // namespace twinrun
