// From the hash of a chunk to the Location of its bytes. Threads insert and look up at once;
// growing and evicting is one caller's, between.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "dedup/chunk_hash.hpp"
#include "platform/team.hpp"
#include "record/delta.hpp"

namespace twinrun {

class HashTable {
   public:
    static constexpr std::uint64_t kFull = ~std::uint64_t{0};
    static constexpr std::uint64_t kSmallest = 1024;  // slots
    static constexpr std::size_t kSlotBytes = 16 + 8 + 4;

    // limit: bytes, at rest and while it grows; 0: none.
    explicit HashTable(std::uint64_t limit);

    // Room for so many more entries, by growing, or where the limit forbids that by letting the
    // least recently used go; false: more than fit even so (then the table is as it was).
    bool reserve(std::uint64_t more, Team& team);
    // The most entries that reserve() can ever make room for at once.
    [[nodiscard]] std::uint64_t most_at_once() const { return most_slots_ / 2; }

    // The slot of this hash, made if there is none; lowers its Location to `at` if that is smaller.
    // Thread-safe. Room must have been reserved.
    std::uint64_t insert(const ChunkHash& hash, Location at);
    // Its slot, or kFull: not there. Thread-safe.
    [[nodiscard]] std::uint64_t find(const ChunkHash& hash) const;
    [[nodiscard]] Location at(std::uint64_t slot) const;
    void set(std::uint64_t slot, Location at);            // thread-safe for distinct slots
    void use(std::uint64_t slot, std::uint32_t ordinal);  // for eviction; thread-safe
    void clear();

    [[nodiscard]] std::uint64_t entries() const;
    [[nodiscard]] std::uint64_t bytes() const { return slots_ * kSlotBytes; }
    [[nodiscard]] std::uint64_t evicted() const { return evicted_; }

   private:
    void rebuild(std::uint64_t slots, Team& team);
    bool evict(std::uint64_t more, Team& team);

    std::uint64_t most_slots_;
    std::uint64_t slots_ = 0;
    std::uint64_t entries_ = 0;  // atomically
    std::uint64_t evicted_ = 0;
    std::vector<std::uint64_t> low_;  // 0 in both: empty
    std::vector<std::uint64_t> high_;
    std::vector<Location> at_;
    std::vector<std::uint32_t> used_;
};

}  // namespace twinrun
