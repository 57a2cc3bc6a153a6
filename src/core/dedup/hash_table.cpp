#include "dedup/hash_table.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "dedup/shares.hpp"

namespace twinrun {

namespace {

// 0 says "empty": a hash's half that is 0 counts as 1.
std::uint64_t key(std::uint64_t half) { return half == 0 ? 1 : half; }

template <class T>
T load(const T& value) {
    return std::atomic_ref(const_cast<T&>(value)).load(std::memory_order_relaxed);
}

// Takes an empty half slot for `mine`; true if it then holds `mine`, whoever put it there.
bool claim(std::uint64_t& half, std::uint64_t mine, bool* made) {
    std::uint64_t found = load(half);
    if (found == 0 && std::atomic_ref(half).compare_exchange_strong(found, mine, std::memory_order_relaxed)) {
        *made = true;
        return true;
    }
    return found == mine;
}

}  // namespace

HashTable::HashTable(std::uint64_t limit)
    // While it grows, a table of half the size is there too.
    : most_slots_(limit == 0 ? std::uint64_t{1} << 62
                             : std::max(kSmallest, std::bit_floor(limit / (kSlotBytes + kSlotBytes / 2)))) {}

std::uint64_t HashTable::entries() const { return load(entries_); }

// Two halves are claimed one after the other: whoever comes second and finds the first half his own
// and the other one somebody else's goes on to the next slot, so that no slot is ever waited for.
std::uint64_t HashTable::insert(const ChunkHash& hash, Location at) {
    const std::uint64_t low = key(hash.low);
    const std::uint64_t high = key(hash.high);
    for (std::uint64_t slot = low & (slots_ - 1);; slot = (slot + 1) & (slots_ - 1)) {
        bool made = false;
        if (!claim(high_[slot], high, &made)) continue;
        made = false;
        if (!claim(low_[slot], low, &made)) continue;
        if (made) std::atomic_ref(entries_).fetch_add(1, std::memory_order_relaxed);
        std::atomic_ref location(at_[slot]);
        Location now = location.load(std::memory_order_relaxed);
        while (at < now && !location.compare_exchange_weak(now, at, std::memory_order_relaxed)) {
        }
        return slot;
    }
}

std::uint64_t HashTable::find(const ChunkHash& hash) const {
    if (slots_ == 0) return kFull;
    const std::uint64_t low = key(hash.low);
    const std::uint64_t high = key(hash.high);
    for (std::uint64_t slot = low & (slots_ - 1);; slot = (slot + 1) & (slots_ - 1)) {
        const std::uint64_t found = load(high_[slot]);
        if (found == 0) return kFull;
        if (found == high && load(low_[slot]) == low) return slot;
    }
}

Location HashTable::at(std::uint64_t slot) const { return load(at_[slot]); }
void HashTable::set(std::uint64_t slot, Location at) {
    std::atomic_ref(at_[slot]).store(at, std::memory_order_relaxed);
}
void HashTable::use(std::uint64_t slot, std::uint32_t ordinal) {
    if (load(used_[slot]) != ordinal) std::atomic_ref(used_[slot]).store(ordinal, std::memory_order_relaxed);
}

void HashTable::clear() {
    slots_ = 0;
    entries_ = 0;
    low_ = {};
    high_ = {};
    at_ = {};
    used_ = {};
}

// Half of the slots at most are taken: probes are short even where hashes were made to collide in
// their low bits.
bool HashTable::reserve(std::uint64_t more, Team& team) {
    if (more > most_at_once()) return false;
    if (entries_ + more <= slots_ / 2) return true;
    const std::uint64_t needed = std::max(kSmallest, std::bit_ceil(2 * (entries_ + more)));
    if (needed <= most_slots_) {
        rebuild(needed, team);
        return true;
    }
    return evict(more, team);
}

void HashTable::rebuild(std::uint64_t slots, Team& team) {
    HashTable next(0);
    next.slots_ = slots;
    next.low_.resize(slots);
    next.high_.resize(slots);
    next.at_.assign(slots, kNoLocation);
    next.used_.resize(slots);
    each_item(team, slots_, [&](std::uint64_t i) {
        if (low_[i] == 0) return;
        const std::uint64_t slot = next.insert({low_[i], high_[i]}, at_[i]);
        next.used_[slot] = used_[i];
    });
    next.most_slots_ = most_slots_;
    next.evicted_ = evicted_;
    *this = std::move(next);
}

bool HashTable::evict(std::uint64_t more, Team& team) {
    std::map<std::uint32_t, std::uint64_t> by_use;
    for (std::uint64_t i = 0; i < slots_; ++i) {
        if (low_[i] != 0) ++by_use[used_[i]];
    }
    // Those used last stay, as many whole steps of them as leave room, and half of the rest free
    // for what comes next.
    const std::uint64_t room = most_slots_ / 2 - more;
    std::uint64_t kept = 0;
    std::uint32_t since = std::numeric_limits<std::uint32_t>::max();
    for (auto step = by_use.rbegin(); step != by_use.rend() && kept + step->second <= room / 2; ++step) {
        kept += step->second;
        since = step->first;
    }
    // These alone are kept beside the table, at most a quarter of its slots: it is emptied where it
    // is.
    struct Kept {
        ChunkHash hash;
        Location at;
        std::uint32_t used;
    };
    std::vector<Kept> stay;
    stay.reserve(kept);
    for (std::uint64_t i = 0; i < slots_; ++i) {
        if (low_[i] != 0 && used_[i] >= since) stay.push_back({{low_[i], high_[i]}, at_[i], used_[i]});
    }
    evicted_ += entries_ - stay.size();
    if (slots_ != most_slots_) {
        clear();
        rebuild(most_slots_, team);
    } else {
        std::fill(low_.begin(), low_.end(), 0);
        std::fill(high_.begin(), high_.end(), 0);
        std::fill(at_.begin(), at_.end(), kNoLocation);
        entries_ = 0;
    }
    for (const Kept& entry : stay)
        used_[insert(entry.hash, entry.at)] = entry.used;
    return true;
}

}  // namespace twinrun
