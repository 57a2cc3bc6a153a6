#include "aggregate/plan/overlap.hpp"

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "aggregate/plan/sweep.hpp"

namespace twinrun {

namespace {

// The open sets of one stride, by the place of an item within the stride: [place, place + width),
// around the end. No two of them meet.
class Ring {
   public:
    explicit Ring(std::uint64_t stride) : stride_(stride) {}

    // The set that meets `width` bytes at this offset, continued for ever; kNone: there is none.
    static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    [[nodiscard]] std::size_t meets(std::uint64_t offset, std::uint64_t width) const {
        if (at_.empty()) return kNone;
        if (width >= stride_) return at_.begin()->second.set;
        const std::uint64_t begin = offset % stride_;
        const std::uint64_t end = begin + width;
        const auto next = at_.lower_bound(begin);
        if (next != at_.end() && next->first < end) return next->second.set;
        if (next != at_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second.width > begin) return before->second.set;
        }
        // Around the end: of these bytes, and of the last set.
        if (end > stride_ && at_.begin()->first < end - stride_) return at_.begin()->second.set;
        const auto last = std::prev(at_.end());
        const std::uint64_t last_end = last->first + last->second.width;
        if (last_end > stride_ && begin < last_end - stride_) return last->second.set;
        return kNone;
    }
    void add(const StridedSet& set, std::size_t number) {
        at_.emplace(set.offset % stride_, Item{set.width, number});
    }
    void remove(const StridedSet& set) { at_.erase(set.offset % stride_); }
    [[nodiscard]] bool empty() const { return at_.empty(); }
    [[nodiscard]] std::size_t size() const { return at_.size(); }
    template <class Look>
    void each(const Look& look) const {
        for (const auto& [place, item] : at_) {
            if (!look(item.set)) return;
        }
    }

   private:
    struct Item {
        std::uint64_t width;
        std::size_t set;
    };
    std::uint64_t stride_;
    std::map<std::uint64_t, Item> at_;
};

// Takes sets by ascending offset. A set is open until the next one begins behind its end. For an
// open set that begins no later than another one, all that matters is its items without end in
// both directions: if one of these meets the other's first item, it is an item of the set.
class Sweep {
   public:
    explicit Sweep(std::span<const StridedSet> sets) : sets_(sets) {}

    // The open set that meets this one; Ring::kNone: there is none.
    std::size_t take(std::size_t number) {
        const StridedSet& set = sets_[number];
        while (!ends_.empty() && ends_.top().first <= set.offset)
            close_next();
        ++compared_;
        if (dense_ != Ring::kNone && meet(dense_, number)) return dense_;
        const std::size_t met = set.count == 1 ? meets_dense(set) : meets_strided(number);
        if (met != Ring::kNone) return met;
        if (set.count == 1) {
            dense_ = number;
        } else {
            rings_.try_emplace(set.stride, set.stride).first->second.add(set, number);
        }
        ends_.emplace(set.end(), number);
        return Ring::kNone;
    }
    [[nodiscard]] std::uint64_t compared() const { return compared_; }
    [[nodiscard]] bool too_many() const { return compared_ > kMostCompared + 32 * sets_.size(); }

   private:
    [[nodiscard]] bool meet(std::size_t one, std::size_t other) const {
        return first_common(sets_[one], sets_[other]).has_value();
    }
    void close_next() {
        const std::size_t number = ends_.top().second;
        ends_.pop();
        ++compared_;
        if (number == dense_) {
            dense_ = Ring::kNone;
            return;
        }
        const auto ring = rings_.find(sets_[number].stride);
        ring->second.remove(sets_[number]);
        if (ring->second.empty()) rings_.erase(ring);
    }
    std::size_t meets_dense(const StridedSet& set) {
        for (const auto& [stride, ring] : rings_) {
            ++compared_;
            if (const std::size_t met = ring.meets(set.offset, set.width); met != Ring::kNone) return met;
            if (too_many()) break;
        }
        return Ring::kNone;
    }
    std::size_t meets_strided(std::size_t number) {
        const StridedSet& set = sets_[number];
        std::size_t met = Ring::kNone;
        for (const auto& [stride, ring] : rings_) {
            if (stride == set.stride) {
                ++compared_;
                met = ring.meets(set.offset, set.width);
            } else {
                ring.each([&](std::size_t other) {
                    ++compared_;
                    if (meet(other, number)) met = other;
                    return met == Ring::kNone && !too_many();
                });
            }
            if (met != Ring::kNone || too_many()) break;
        }
        return met;
    }

    std::span<const StridedSet> sets_;
    std::size_t dense_ = Ring::kNone;      // the open set of one item: two of them would meet
    std::map<std::uint64_t, Ring> rings_;  // by stride: sets of several items
    using End = std::pair<std::uint64_t, std::size_t>;
    std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
    std::uint64_t compared_ = 0;
};

}  // namespace

Result<std::optional<std::uint64_t>> first_overlap(std::span<const StridedSet> sets,
                                                   std::uint64_t* compared) {
    std::vector<std::size_t> order(sets.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return sets[a].offset != sets[b].offset ? sets[a].offset < sets[b].offset : a < b;
    });
    Sweep sweep(sets);
    std::optional<std::uint64_t> common;
    for (const std::size_t number : order) {
        const std::size_t met = sweep.take(number);
        if (met != Ring::kNone) common = first_common(sets[met], sets[number]);
        if (common || sweep.too_many()) break;
    }
    if (compared != nullptr) *compared = sweep.compared();
    if (!common && sweep.too_many()) {
        return Error{ErrorCode::unsupported,
                     std::to_string(sets.size()) +
                         " sets have so many different strides side by side that bytes which two of them "
                         "claim cannot be looked for"};
    }
    return common;
}

Result<std::optional<std::uint64_t>> first_overlap(std::span<const SetNumbers> sets,
                                                   std::uint64_t* compared) {
    std::vector<StridedSet> all;
    all.reserve(sets.size());
    for (const auto& [offset, width, count, stride] : sets)
        all.push_back({offset, width, count, stride});
    return first_overlap(std::span<const StridedSet>(all), compared);
}

}  // namespace twinrun
