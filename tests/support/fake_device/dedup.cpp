// De-duplication, chunk by chunk, in order.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "support/fake_device/checks.hpp"
#include "support/fake_device/tables.hpp"

namespace twinrun::fake {

namespace {

DeviceStatus report(int device, std::uint32_t* to, const std::uint32_t* from, std::uint32_t words,
                    StreamHandle stream) {
    FAKE_ENTER(kReport, device);
    return push(device, stream, [=] {
        Checker checker(device, "report");
        checker.memory(from, words * std::size_t{4}, 4, "its words");
        checker.locked(to, words * std::size_t{4}, "where they go");
        if (checker.ok()) std::memcpy(to, from, words * std::size_t{4});
    });
}

std::size_t scan_scratch(std::uint64_t items) { return items / 4 + kScratch; }
// Scratch memory is rubbish afterwards.
void scan(Checker& checker, void* scratch, std::uint64_t items) {
    checker.memory(scratch, scan_scratch(items), 8, "scratch memory");
    if (checker.ok()) std::memset(scratch, 0xEE, scan_scratch(items));
}

void check_parts(Checker& checker, const DeviceDedupPart* parts, std::uint32_t count,
                 std::uint32_t chunk_bytes) {
    checker.memory(parts, count * sizeof *parts, 8, "its parts");
    for (std::uint32_t p = 0; checker.ok() && p < count; ++p) {
        checker.memory(parts[p].data, parts[p].bytes, 1, "a part's data");
        checker.require(
            parts[p].chunks != 0 && (parts[p].bytes + chunk_bytes - 1) / chunk_bytes == parts[p].chunks,
            "a part", "has another number of chunks");
    }
}
ChunkHash hash_of(const DeviceDedupPart& part, std::uint32_t i, std::uint32_t chunk_bytes) {
    const std::uint64_t at = std::uint64_t{i} * chunk_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, part.bytes - at);
    return bytes == chunk_bytes ? chunk_hash(part.data + at, chunk_bytes)
                                : short_chunk_hash(part.data + at, bytes, chunk_bytes);
}
void copy_chunk(const DeviceDedupPart* parts, std::uint32_t count, std::uint32_t chunk,
                std::uint32_t chunk_bytes, std::byte* to) {
    const DeviceDedupPart* part = parts;
    while (part + 1 != parts + count && part[1].first <= chunk)
        ++part;
    const std::uint64_t at = std::uint64_t{chunk - part->first} * chunk_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, part->bytes - at);
    std::memcpy(to, part->data + at, bytes);
    std::memset(to + bytes, 0, chunk_bytes - bytes);
}
bool same(const ChunkHash& a, const ChunkHash& b, const ChunkHash& mask) {
    return ((a.low ^ b.low) & mask.low) == 0 && ((a.high ^ b.high) & mask.high) == 0;
}

void find_changed_now(int device, const DeviceDedupSlice& slice, bool content_alone) {
    Checker checker(device, "find_changed");
    check_parts(checker, slice.parts, slice.part_count, slice.chunk_bytes);
    if (!content_alone) {
        checker.memory(slice.hashes + slice.first, slice.chunks * sizeof(ChunkHash), 16, "its hashes");
        checker.memory(slice.words + slice.first_word(), slice.words_of() * std::size_t{4}, 4, "its marks");
        if (slice.changed != nullptr) checker.memory(slice.changed, 4, 4, "its count");
    }
    if (!checker.ok()) return;
    const std::uint32_t words_each = slice.words_each();
    if (!content_alone) std::memset(slice.words + slice.first_word(), 0, slice.words_of() * std::size_t{4});
    std::uint32_t chunks = slice.first;
    std::uint32_t groups = slice.first_group;
    for (std::uint32_t p = 0; p < slice.part_count; ++p) {
        const DeviceDedupPart& part = slice.parts[p];
        checker.memory(slice.content + part.segment, 8, 8, "its content");
        checker.require(part.first == chunks && part.group == groups, "a part",
                        "is not where the one before it ends");
        if (!checker.ok()) return;
        for (std::uint32_t i = 0; i < part.chunks; ++i) {
            const ChunkHash hash = hash_of(part, i, slice.chunk_bytes);
            std::uint64_t& content = slice.content[part.segment];
            if (content_alone) {
                content += content_term(hash, part.number + i);
                continue;
            }
            ChunkHash& known = slice.hashes[part.first + i];
            if (i < part.with_base) {
                if (same(hash, known, slice.mask)) continue;
                content -= content_term(known, part.number + i);
            }
            content += content_term(hash, part.number + i);
            known = hash;
            slice.words[part.group * words_each + i / 32] |= 1U << (i % 32);
            if (slice.changed != nullptr) ++*slice.changed;
        }
        chunks += part.chunks;
        groups += (part.chunks + words_each * 32 - 1) / (words_each * 32);
    }
    checker.require(chunks == slice.first + slice.chunks && groups == slice.first_group + slice.groups,
                    "a slice", "is not what its parts are");
}
DeviceStatus find_changed(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    FAKE_ENTER(kFindChanged, device);
    return push(device, stream, [=] { find_changed_now(device, slice, false); });
}
DeviceStatus hash_content(int device, const DeviceDedupSlice& slice, StreamHandle stream) {
    FAKE_ENTER(kHashContent, device);
    return push(device, stream, [=] { find_changed_now(device, slice, true); });
}

DeviceStatus list_changed(int device, const DeviceDedupSlice& slice, std::uint32_t* changed,
                          StreamHandle stream) {
    FAKE_ENTER(kListChanged, device);
    return push(device, stream, [=] {
        Checker checker(device, "list_changed");
        check_parts(checker, slice.parts, slice.part_count, slice.chunk_bytes);
        checker.memory(slice.words + slice.first_word(), slice.words_of() * std::size_t{4}, 4, "its marks");
        scan(checker, slice.scratch, slice.words_of());
        if (!checker.ok()) return;
        std::size_t marked = 0;
        for (std::uint32_t w = slice.first_word(); w < slice.first_word() + slice.words_of(); ++w)
            marked += static_cast<unsigned>(std::popcount(slice.words[w]));
        checker.memory(changed, marked * std::size_t{4}, 4, "what changed");
        if (!checker.ok()) return;
        const std::uint32_t words_each = slice.words_each();
        std::uint32_t* to = changed;
        for (std::uint32_t p = 0; p < slice.part_count; ++p) {
            const DeviceDedupPart& part = slice.parts[p];
            for (std::uint32_t i = 0; i < part.chunks; ++i) {
                if ((slice.words[part.group * words_each + i / 32] >> (i % 32) & 1) != 0)
                    *to++ = part.first + i;
            }
        }
    });
}

DeviceStatus hash_chunks(int device, const std::byte* chunks, std::uint64_t count, std::uint32_t chunk_bytes,
                         ChunkHash* hashes, StreamHandle stream) {
    FAKE_ENTER(kHashChunks, device);
    return push(device, stream, [=] {
        Checker checker(device, "hash_chunks");
        checker.memory(chunks, count * chunk_bytes, 16, "its chunks");
        checker.memory(hashes, count * sizeof(ChunkHash), 16, "its hashes");
        if (checker.ok()) chunk_hashes({chunks, count * chunk_bytes}, chunk_bytes, hashes);
    });
}

constexpr std::uint64_t kUnplaced = kMostPayloadChunks;

void check_table(Checker& checker, const DeviceDedupTable& table) {
    checker.memory(table.slots, table.count * sizeof(DeviceDedupSlot), 32, "its table");
    checker.memory(table.entries, 8, 8, "its count of entries");
}
DeviceDedupSlot* slot_of(const DeviceDedupTable& table, const ChunkHash& hash, const ChunkHash& mask,
                         bool make) {
    const std::uint64_t low = std::max<std::uint64_t>(1, hash.low & mask.low);
    const std::uint64_t high = std::max<std::uint64_t>(1, hash.high & mask.high);
    for (std::uint64_t s = low & (table.count - 1), probes = 0; probes < table.count;
         s = (s + 1) & (table.count - 1), ++probes) {
        DeviceDedupSlot& slot = table.slots[s];
        if (slot.high == high && slot.low == low) return &slot;
        if (slot.high != 0) continue;
        if (!make) return nullptr;
        slot.high = high;
        slot.low = low;
        ++*table.entries;
        return &slot;
    }
    std::fprintf(stderr, "fake device: a table without room\n");
    std::abort();
}
void lower(DeviceDedupSlot& slot, Location at, std::uint32_t ordinal) {
    slot.not_at = std::max(slot.not_at, ~at);
    slot.used = ordinal;
}

DeviceStatus insert(int device, const DeviceDedupTable& table, const ChunkHash* hashes, std::uint64_t count,
                    const ChunkHash& mask, Location first, std::uint32_t ordinal, StreamHandle stream) {
    FAKE_ENTER(kInsert, device);
    return push(device, stream, [=] {
        Checker checker(device, "insert");
        check_table(checker, table);
        checker.memory(hashes, count * sizeof(ChunkHash), 16, "its hashes");
        for (std::uint64_t i = 0; checker.ok() && i < count; ++i)
            lower(*slot_of(table, hashes[i], mask, true), first + i, ordinal);
    });
}
DeviceStatus count_by_use(int device, const DeviceDedupTable& table, unsigned shift, std::uint32_t above,
                          unsigned long long* counts, StreamHandle stream) {
    FAKE_ENTER(kCountByUse, device);
    return push(device, stream, [=] {
        Checker checker(device, "count_by_use");
        check_table(checker, table);
        checker.memory(counts, 256 * 8, 8, "its counts");
        for (std::uint64_t s = 0; checker.ok() && s < table.count; ++s) {
            const DeviceDedupSlot& slot = table.slots[s];
            if (slot.high != 0 && (slot.used >> shift) >> 8 == above) ++counts[slot.used >> shift & 255];
        }
    });
}
DeviceStatus take_out(int device, const DeviceDedupTable& table, std::uint32_t used_since,
                      DeviceDedupSlot* taken, unsigned long long* number, StreamHandle stream) {
    FAKE_ENTER(kTakeOut, device);
    return push(device, stream, [=] {
        Checker checker(device, "take_out");
        check_table(checker, table);
        checker.memory(number, 8, 8, "its count");
        for (std::uint64_t s = 0; checker.ok() && s < table.count; ++s) {
            const DeviceDedupSlot& slot = table.slots[s];
            if (slot.high == 0 || slot.used < used_since) continue;
            checker.memory(taken + *number, sizeof slot, 32, "what it takes");
            if (checker.ok()) taken[(*number)++] = slot;
        }
    });
}
DeviceStatus put_in(int device, const DeviceDedupTable& table, const DeviceDedupSlot* taken,
                    std::uint64_t number, StreamHandle stream) {
    FAKE_ENTER(kPutIn, device);
    return push(device, stream, [=] {
        Checker checker(device, "put_in");
        check_table(checker, table);
        checker.memory(taken, number * sizeof *taken, 32, "what it takes");
        constexpr ChunkHash kAll{~std::uint64_t{0}, ~std::uint64_t{0}};
        for (std::uint64_t i = 0; checker.ok() && i < number; ++i) {
            DeviceDedupSlot& slot = *slot_of(table, {taken[i].low, taken[i].high}, kAll, true);
            slot.not_at = taken[i].not_at;
            slot.used = taken[i].used;
        }
    });
}

void look_up_now(int device, const DeviceLookUp& what) {
    Checker checker(device, "look_up");
    check_table(checker, what.table);
    checker.memory(what.changed, what.end * std::size_t{4}, 4, "what changed");
    checker.memory(what.slots, what.end * std::size_t{4}, 4, "its slots");
    checker.memory(what.sources, what.end * std::size_t{8}, 8, "its sources");
    checker.memory(what.places, what.end * std::size_t{4}, 4, "its places");
    checker.memory(what.fresh_count, 8, 8, "its count of new chunks");
    scan(checker, what.scratch, what.end - what.begin);
    if (!checker.ok()) return;
    const auto unplaced = [&](std::uint32_t j) { return location(what.ordinal, kUnplaced + j); };
    for (std::uint32_t j = what.begin; j < what.end; ++j) {
        checker.memory(what.hashes + what.changed[j], sizeof(ChunkHash), 16, "a hash");
        if (!checker.ok()) return;
        DeviceDedupSlot* slot = slot_of(what.table, what.hashes[what.changed[j]], what.mask, true);
        lower(*slot, unplaced(j), what.ordinal);
        what.slots[j] = static_cast<std::uint32_t>(slot - what.table.slots);
    }
    std::uint32_t fresh = 0;
    for (std::uint32_t j = what.begin; j < what.end; ++j) {
        DeviceDedupSlot& slot = what.table.slots[what.slots[j]];
        what.places[j] = fresh;
        if (~slot.not_at == unplaced(j)) {
            checker.memory(what.fresh + what.placed_in_slice + fresh, 4, 4, "its new chunks");
            if (!checker.ok()) return;
            what.fresh[what.placed_in_slice + fresh] = what.changed[j];
            const Location at = location(what.ordinal, what.placed + fresh++);
            slot.not_at = ~at;
            what.sources[j] = at | kDeviceFresh;
        } else {
            what.sources[j] = ~slot.not_at;
        }
    }
    *what.fresh_count = fresh;
}
DeviceStatus look_up(int device, const DeviceLookUp& what, StreamHandle stream) {
    FAKE_ENTER(kLookUp, device);
    return push(device, stream, [=] { look_up_now(device, what); });
}
DeviceStatus place_all(int device, std::uint32_t ordinal, std::uint64_t placed, std::uint32_t number,
                       Location* sources, StreamHandle stream) {
    FAKE_ENTER(kPlaceAll, device);
    return push(device, stream, [=] {
        Checker checker(device, "place_all");
        checker.memory(sources, number * std::size_t{8}, 8, "its sources");
        for (std::uint32_t j = 0; checker.ok() && j < number; ++j)
            sources[j] = location(ordinal, placed + j) | kDeviceFresh;
    });
}

void join_now(int device, const DeviceJoin& what) {
    Checker checker(device, "join");
    checker.memory(what.changed, what.count * std::size_t{4}, 4, "what changed");
    checker.memory(what.sources, what.count * std::size_t{8}, 8, "its sources");
    checker.memory(what.entries, what.count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.state, sizeof *what.state, 8, "its state");
    checker.memory(what.next, sizeof *what.next, 8, "its next state");
    checker.require(what.state != what.next, "its state", "is overwritten");
    checker.memory(what.entry_count, 8, 8, "its count");
    checker.memory(what.continues, 8, 8, "whether it continues");
    scan(checker, what.scratch, what.count);
    if (!checker.ok()) return;
    DeviceJoinState& state = *what.next;
    state = *what.state;
    std::uint64_t entries = 0;
    *what.continues = 0;
    for (std::uint32_t j = 0; j < what.count; ++j) {
        const std::uint64_t chunk = what.first + what.changed[j];
        const bool fresh = (what.sources[j] & kDeviceFresh) != 0;
        const std::uint64_t step = what.sources[j] - state.source;
        const bool joins = state.open != 0 && chunk == state.chunk + 1 && step <= 1 &&
                           (fresh || what.copies) && !what.alone && (state.head != 0 || step == state.step);
        if (!joins || j == 0) {
            what.entries[entries++] = {what.changed[j], what.changed[j], what.sources[j] & ~kDeviceFresh};
            if (joins) *what.continues = 1;
        }
        if (joins) {
            DeviceRunEntry& entry = what.entries[entries - 1];
            entry.last = what.changed[j];
            if (step == 0) entry.source |= kDeviceFresh;
        }
        state.chunk = chunk;
        state.source = what.sources[j];
        state.open = 1;
        state.head = joins ? 0 : 1;
        state.step = joins ? static_cast<std::uint32_t>(step) : 0;
    }
    if (what.alone) state = {};
    *what.entry_count = entries;
}
DeviceStatus join(int device, const DeviceJoin& what, StreamHandle stream) {
    FAKE_ENTER(kJoin, device);
    return push(device, stream, [=] { join_now(device, what); });
}

void join_tree_now(int device, const DeviceTreeJoin& what) {
    Checker checker(device, "join_tree");
    check_table(checker, what.table);
    checker.memory(what.leaf_hashes, what.leaves * sizeof(ChunkHash), 16, "its leaves");
    checker.memory(what.changed, what.count * std::size_t{4}, 4, "what changed");
    checker.memory(what.sources, what.count * std::size_t{8}, 8, "its sources");
    checker.memory(what.labels, 2 * what.width, 16, "its labels");
    checker.memory(what.at, 2 * what.width * 8, 8, "its places");
    checker.memory(what.hashes, what.width * sizeof(ChunkHash), 16, "its hashes");
    checker.memory(what.levels, what.count, 1, "its levels");
    checker.memory(what.entries, what.count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.next, sizeof *what.next, 8, "its next state");
    checker.memory(what.entry_count, 8, 8, "its count");
    checker.memory(what.continues, 8, 8, "whether it continues");
    scan(checker, what.scratch, what.count);
    if (!checker.ok()) return;
    enum : std::uint8_t { kNone, kFirst, kCopy };
    std::memset(what.labels, kNone, 2 * what.width);
    for (std::uint32_t j = 0; j < what.count; ++j) {
        const std::uint64_t leaf = what.width + what.changed[j];
        what.labels[leaf] = (what.sources[j] & kDeviceFresh) != 0 ? kFirst : kCopy;
        what.at[leaf] = what.sources[j] & ~kDeviceFresh;
    }
    const auto hash_at = [&](std::uint64_t node) {
        return node >= what.width ? what.leaf_hashes[node - what.width] : what.hashes[node];
    };
    for (const std::uint8_t label : {kFirst, kCopy}) {
        std::uint64_t level = 0;
        for (std::uint64_t n = what.width / 2; n != 0; n /= 2) {
            ++level;
            for (std::uint64_t i = n; i < 2 * n; ++i) {
                if (what.labels[2 * i] != label || what.labels[2 * i + 1] != label) continue;
                const ChunkHash left = hash_at(2 * i);
                const ChunkHash right = hash_at(2 * i + 1);
                const std::uint64_t words[5] = {left.low, left.high, right.low, right.high, level};
                what.hashes[i] = chunk_hash(reinterpret_cast<const std::byte*>(words), sizeof words);
                DeviceDedupSlot* slot = slot_of(what.table, what.hashes[i], what.mask, label == kFirst);
                if (slot == nullptr) continue;
                what.labels[i] = label;
                if (label == kFirst) {
                    what.at[i] = what.at[2 * i];
                    lower(*slot, what.at[i], what.ordinal);
                } else {
                    what.at[i] = ~slot->not_at;
                    slot->used = what.ordinal;
                }
            }
        }
    }
    std::uint64_t entries = 0;
    for (std::uint32_t j = 0; j < what.count;) {
        std::uint64_t node = what.width + what.changed[j];
        std::uint32_t chunks = 1;
        while (node > 1 && node % 2 == 0 && what.labels[node / 2] == what.labels[node]) {
            node /= 2;
            chunks *= 2;
        }
        what.entries[entries++] = {what.changed[j], what.changed[j] + chunks - 1, what.at[node]};
        j += chunks;
    }
    *what.entry_count = entries;
    *what.continues = 0;
    *what.next = {};
}
DeviceStatus join_tree(int device, const DeviceTreeJoin& what, StreamHandle stream) {
    FAKE_ENTER(kJoinTree, device);
    return push(device, stream, [=] { join_tree_now(device, what); });
}

void consolidate_now(int device, const DeviceConsolidate& what) {
    Checker checker(device, "consolidate");
    check_parts(checker, what.parts, what.part_count, what.chunk_bytes);
    checker.memory(what.entries, what.entry_count * sizeof(DeviceRunEntry), 16, "its entries");
    checker.memory(what.to_entries, what.entry_count * sizeof(DeviceRunEntry), 16, "where entries go");
    checker.memory(what.to, what.chunk_count * what.chunk_bytes, 16, "where chunks go");
    if (what.chunks != nullptr) checker.memory(what.chunks, what.chunk_count * 4, 4, "its chunks");
    if (what.base != nullptr) {
        checker.memory(what.to_base, what.chunk_count * what.chunk_bytes, 16, "where the base goes");
        checker.memory(what.to_base_at, what.chunk_count * 8, 8, "where the base's places go");
    }
    if (!checker.ok()) return;
    if (what.entry_count != 0)
        std::memcpy(what.to_entries, what.entries, what.entry_count * sizeof(DeviceRunEntry));
    for (std::uint64_t i = 0; i < what.chunk_count; ++i) {
        const std::uint32_t chunk =
            what.chunks != nullptr ? what.chunks[i] : what.first_chunk + static_cast<std::uint32_t>(i);
        copy_chunk(what.parts, what.part_count, chunk, what.chunk_bytes, what.to + i * what.chunk_bytes);
        if (what.base == nullptr) continue;
        const DeviceDedupPart* part = what.parts;
        while (part + 1 != what.parts + what.part_count && part[1].first <= chunk)
            ++part;
        const bool had = chunk - part->first < part->with_base;
        what.to_base_at[i] = had ? what.base_at[chunk] : kNoLocation;
        std::byte* to = what.to_base + i * what.chunk_bytes;
        if (had) {
            std::memcpy(to, what.base + std::uint64_t{chunk} * what.chunk_bytes, what.chunk_bytes);
        } else {
            std::memset(to, 0, what.chunk_bytes);
        }
    }
}
DeviceStatus consolidate(int device, const DeviceConsolidate& what, StreamHandle stream) {
    FAKE_ENTER(kConsolidate, device);
    return push(device, stream, [=] { consolidate_now(device, what); });
}

DeviceStatus keep_base(int device, std::uint32_t chunk_bytes, const DeviceDedupPart* parts,
                       std::uint32_t part_count, const std::uint32_t* changed, const Location* sources,
                       std::uint32_t number, const DeviceBase& base, StreamHandle stream) {
    FAKE_ENTER(kKeepBase, device);
    return push(device, stream, [=] {
        Checker checker(device, "keep_base");
        check_parts(checker, parts, part_count, chunk_bytes);
        checker.memory(changed, number * std::size_t{4}, 4, "what changed");
        checker.memory(sources, number * std::size_t{8}, 8, "its sources");
        for (std::uint32_t j = 0; checker.ok() && j < number; ++j) {
            std::byte* to = base.image + std::uint64_t{changed[j]} * chunk_bytes;
            checker.memory(to, chunk_bytes, 16, "the base");
            checker.memory(base.where + changed[j], 8, 8, "the base's places");
            if (!checker.ok()) return;
            copy_chunk(parts, part_count, changed[j], chunk_bytes, to);
            base.where[changed[j]] = sources[j] & ~kDeviceFresh;
        }
    });
}
DeviceStatus move_base(int device, std::uint32_t chunk_bytes, const DeviceBaseMove* moves,
                       std::uint64_t number, std::uint64_t chunks, const DeviceBase& from,
                       const DeviceBase& to, std::uint64_t* content, StreamHandle stream) {
    FAKE_ENTER(kMoveBase, device);
    return push(device, stream, [=] {
        Checker checker(device, "move_base");
        checker.memory(moves, number * sizeof *moves, 8, "its moves");
        if (!checker.ok()) return;
        std::uint64_t before = 0;
        for (std::uint64_t m = 0; m < number; ++m) {
            const DeviceBaseMove& move = moves[m];
            checker.require(move.before == before, "a move", "says another number of chunks before it");
            before += move.count;
            checker.memory(from.hashes + move.from, move.count * sizeof(ChunkHash), 16, "what it moves");
            checker.memory(to.hashes + move.to, move.count * sizeof(ChunkHash), 16, "where it moves it");
            checker.memory(content + move.segment, 8, 8, "its content");
            if (from.image != nullptr) {
                checker.memory(from.image + move.from * chunk_bytes, move.count * chunk_bytes, 16,
                               "an image");
                checker.memory(to.image + move.to * chunk_bytes, move.count * chunk_bytes, 16,
                               "another image");
            }
            if (!checker.ok()) return;
            for (std::uint64_t i = 0; i < move.count; ++i) {
                to.hashes[move.to + i] = from.hashes[move.from + i];
                content[move.segment] += content_term(from.hashes[move.from + i], i);
                if (from.where != nullptr) to.where[move.to + i] = from.where[move.from + i];
            }
            if (from.image != nullptr)
                std::memcpy(to.image + move.to * chunk_bytes, from.image + move.from * chunk_bytes,
                            move.count * chunk_bytes);
        }
        checker.require(before == chunks, "its moves", "have another number of chunks");
    });
}

void scatter_now(int device, const DeviceScatter& what) {
    Checker checker(device, "scatter");
    checker.memory(what.runs, what.run_count * sizeof *what.runs, 8, "its runs");
    if (!checker.ok()) return;
    std::uint64_t before = 0;
    for (std::uint64_t r = 0; r < what.run_count; ++r) {
        const DeviceScatterRun& run = what.runs[r];
        checker.require(run.before == before && run.count != 0, "a run",
                        "says another number of chunks before it");
        before += run.count;
        for (std::uint64_t i = 0; checker.ok() && i < run.count; ++i) {
            const std::byte* from =
                what.payload + (run.source + (run.repeat != 0 ? 0 : i)) * what.chunk_bytes;
            const std::uint64_t at = (run.begin + i) * what.chunk_bytes;
            checker.require(at < what.bytes, "a run", "passes the end of the segment");
            if (!checker.ok()) return;
            const std::uint64_t bytes = std::min<std::uint64_t>(what.chunk_bytes, what.bytes - at);
            checker.memory(from, what.chunk_bytes, 16, "payload");
            checker.memory(what.to + at, bytes, 1, "where it goes");
            if (checker.ok()) std::memcpy(what.to + at, from, bytes);
        }
    }
    checker.require(before == what.chunks, "its runs", "have another number of chunks");
}
DeviceStatus scatter(int device, const DeviceScatter& what, StreamHandle stream) {
    FAKE_ENTER(kScatter, device);
    return push(device, stream, [=] { scatter_now(device, what); });
}

}  // namespace

const DeviceDedupKernels kDedup = {.report = report,
                                   .scan_scratch = scan_scratch,
                                   .find_changed = find_changed,
                                   .list_changed = list_changed,
                                   .hash_content = hash_content,
                                   .hash_chunks = hash_chunks,
                                   .insert = insert,
                                   .count_by_use = count_by_use,
                                   .take_out = take_out,
                                   .put_in = put_in,
                                   .look_up = look_up,
                                   .place_all = place_all,
                                   .join = join,
                                   .join_tree = join_tree,
                                   .consolidate = consolidate,
                                   .keep_base = keep_base,
                                   .move_base = move_base,
                                   .scatter = scatter};

}  // namespace twinrun::fake
