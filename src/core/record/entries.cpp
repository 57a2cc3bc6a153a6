#include "record/entries.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace twinrun {

namespace {

Error damaged_entries(std::string what) { return Error{ErrorCode::damaged, "entries: " + std::move(what)}; }

// ---- fixed width ----

bool narrow(std::uint64_t largest) { return largest <= 0xFFFFFFFFU; }

void put_number(Encoder& encoder, std::uint64_t value, bool is_narrow) {
    if (is_narrow) {
        encoder.put(static_cast<std::uint32_t>(value));
    } else {
        encoder.put(value);
    }
}
std::uint64_t get_number(Decoder& decoder, bool is_narrow) {
    return is_narrow ? decoder.get<std::uint32_t>() : decoder.get<std::uint64_t>();
}

// A run that is one entry of `list` or `tree`.
struct Entry {
    std::uint64_t begin;
    std::uint64_t count;
    Location source;  // kNoLocation: payload
};

// Merged by place; payload gets its Locations in that order.
Result<std::vector<Run>> merge(std::uint32_t ordinal, std::uint64_t chunks, std::uint64_t payload_chunks,
                               const std::vector<Entry>& fresh, const std::vector<Entry>& copies) {
    std::vector<Run> runs;
    runs.reserve(fresh.size() + copies.size());
    std::uint64_t end = 0;
    std::uint64_t next = 0;
    for (std::size_t f = 0, c = 0; f < fresh.size() || c < copies.size();) {
        const bool is_fresh = c == copies.size() || (f < fresh.size() && fresh[f].begin < copies[c].begin);
        const Entry& entry = is_fresh ? fresh[f++] : copies[c++];
        if (entry.begin < end || entry.count > chunks - entry.begin || entry.begin > chunks ||
            entry.count > Run::kMostCount)
            return damaged_entries("chunk " + std::to_string(entry.begin) +
                                   " is out of order or out of the image");
        end = entry.begin + entry.count;
        if (is_fresh) {
            if (entry.count > payload_chunks - next) return damaged_entries("more payload than there is");
            runs.push_back({entry.begin, entry.count, location(ordinal, next), false});
            next += entry.count;
        } else {
            if (ordinal_of(entry.source) > ordinal ||
                (ordinal_of(entry.source) == ordinal && chunk_of(entry.source) + entry.count > next)) {
                return damaged_entries("chunk " + std::to_string(entry.begin) +
                                       " is a copy of what comes later");
            }
            runs.push_back({entry.begin, entry.count, entry.source, false});
        }
    }
    if (next != payload_chunks) return damaged_entries("less payload than there is");
    return runs;
}

// Nodes of a complete binary tree over the chunks, by levels from the root: the node of 2^height
// chunks that begins at `begin`.
struct NodeNumbers {
    explicit NodeNumbers(std::uint64_t chunks)
        : depth(static_cast<unsigned>(std::countr_zero(std::bit_ceil(std::max<std::uint64_t>(1, chunks))))) {}
    unsigned depth;  // levels below the root
    [[nodiscard]] std::uint64_t largest() const { return (std::uint64_t{2} << depth) - 2; }
    [[nodiscard]] std::uint64_t of(std::uint64_t begin, std::uint64_t count) const {
        const auto height = static_cast<unsigned>(std::countr_zero(count));
        return ((std::uint64_t{1} << (depth - height)) - 1) + (begin >> height);
    }
    // False: no node.
    [[nodiscard]] bool chunks_of(std::uint64_t node, std::uint64_t& begin, std::uint64_t& count) const {
        if (node > largest() || node + 1 == 0) return false;
        const auto level = static_cast<unsigned>(std::bit_width(node + 1)) - 1;
        count = std::uint64_t{1} << (depth - level);
        begin = (node + 1 - (std::uint64_t{1} << level)) * count;
        return true;
    }
};

// Calls use(is new, first chunk, chunks, source) for each entry of the runs.
template <class Use>
void each_entry(std::uint32_t ordinal, std::span<const Run> runs, bool chunk_by_chunk, Use use) {
    Location next = location(ordinal, 0);
    for (const Run& run : runs) {
        const bool is_fresh = run.source == next && !run.repeat;
        if (is_fresh) next += run.count;
        const std::uint64_t step = chunk_by_chunk ? 1 : run.count;
        for (std::uint64_t i = 0; i < run.count; i += step)
            use(is_fresh, run.begin + i, step, run.repeat ? run.source : run.source + i);
    }
}

constexpr std::uint8_t kGrouped = 128;  // of the byte that has the width
constexpr std::uint64_t kGroupBytes = 12;

// What a list of entries says of itself before its numbers.
struct EntryCounts {
    std::uint64_t fresh = 0;
    std::uint64_t copies = 0;
    std::uint64_t largest_source = 0;
    std::map<std::uint32_t, std::uint64_t> groups;  // copies of each ordinal of a source
    // Whether an ordinal for each group takes less than one for each copy.
    [[nodiscard]] bool grouped() const { return 4 + kGroupBytes * groups.size() < 4 * copies; }
};
EntryCounts count_entries(std::uint32_t ordinal, std::span<const Run> runs, bool chunk_by_chunk) {
    EntryCounts counts;
    each_entry(ordinal, runs, chunk_by_chunk, [&](bool is_fresh, std::uint64_t, std::uint64_t, Location at) {
        ++(is_fresh ? counts.fresh : counts.copies);
        if (is_fresh) return;
        counts.largest_source = std::max(counts.largest_source, chunk_of(at));
        ++counts.groups[ordinal_of(at)];
    });
    return counts;
}

template <class Number>
void put_entries(Encoder& encoder, std::uint32_t ordinal, std::span<const Run> runs, bool chunk_by_chunk,
                 std::uint64_t largest, Number number) {
    const EntryCounts counts = count_entries(ordinal, runs, chunk_by_chunk);
    const bool is_narrow = narrow(std::max(largest, counts.largest_source));
    const bool grouped = counts.grouped();
    encoder.put(static_cast<std::uint8_t>((is_narrow ? 4 : 8) | (grouped ? kGrouped : 0)));
    encoder.put(counts.fresh);
    encoder.put(counts.copies);
    const auto each = [&](auto&& use) { each_entry(ordinal, runs, chunk_by_chunk, use); };
    each([&](bool is_fresh, std::uint64_t begin, std::uint64_t count, Location) {
        if (is_fresh) put_number(encoder, number(begin, count), is_narrow);
    });
    if (!grouped) {
        each([&](bool is_fresh, std::uint64_t begin, std::uint64_t count, Location source) {
            if (is_fresh) return;
            put_number(encoder, number(begin, count), is_narrow);
            put_number(encoder, chunk_of(source), is_narrow);
            encoder.put(ordinal_of(source));
        });
        return;
    }
    encoder.put(static_cast<std::uint32_t>(counts.groups.size()));
    struct Copy {
        std::uint64_t number;
        std::uint64_t source;
    };
    std::map<std::uint32_t, std::vector<Copy>> groups;
    for (const auto& [from, copies] : counts.groups) {
        encoder.put(from);
        encoder.put(copies);
        groups[from].reserve(copies);
    }
    each([&](bool is_fresh, std::uint64_t begin, std::uint64_t count, Location source) {
        if (!is_fresh) groups[ordinal_of(source)].push_back({number(begin, count), chunk_of(source)});
    });
    for (const auto& [from, copies] : groups) {
        for (const Copy& copy : copies) {
            put_number(encoder, copy.number, is_narrow);
            put_number(encoder, copy.source, is_narrow);
        }
    }
}

// Reads what put_entries() wrote. chunks_of(number, begin, count): false if there is no such entry.
template <class Chunks>
class EntryReader {
   public:
    EntryReader(std::span<const std::byte> bytes, Chunks chunks_of)
        : decoder_(bytes), chunks_of_(chunks_of) {}

    Result<> read() {
        const auto first = decoder_.get<std::uint8_t>();
        const bool grouped = (first & kGrouped) != 0;
        width_ = first & (kGrouped - 1U);
        const auto fresh = decoder_.get<std::uint64_t>();
        const auto count = decoder_.get<std::uint64_t>();
        if (decoder_.failed() || (width_ != 4 && width_ != 8)) return damaged_entries("no such width");
        const std::uint64_t copy_bytes = 2 * width_ + (grouped ? 0 : 4);
        const std::uint64_t left = decoder_.remaining();
        if (fresh > left / width_ || count > left / copy_bytes ||
            fresh * width_ + count * copy_bytes > left ||
            (!grouped && fresh * width_ + count * copy_bytes != left)) {
            return damaged_entries("another size than their number says");
        }
        payload.reserve(fresh);
        for (std::uint64_t i = 0; i < fresh; ++i) {
            TWR_TRY(const Entry entry, next());
            payload.push_back(entry);
        }
        copies.reserve(count);
        return grouped ? read_groups(count) : read_copies(count, std::nullopt);
    }

    std::vector<Entry> payload;
    std::vector<Entry> copies;  // ascending by place

   private:
    Result<Entry> next() {
        Entry entry{0, 0, kNoLocation};
        if (!chunks_of_(get_number(decoder_, width_ == 4), entry.begin, entry.count))
            return damaged_entries("no such node or chunk");
        return entry;
    }
    // from: the ordinal of their sources; none: each says it.
    Result<> read_copies(std::uint64_t count, std::optional<std::uint32_t> from) {
        for (std::uint64_t i = 0; i < count; ++i) {
            TWR_TRY(Entry entry, next());
            const std::uint64_t source = get_number(decoder_, width_ == 4);
            const std::uint32_t ordinal = from ? *from : decoder_.get<std::uint32_t>();
            if (source >= kMostPayloadChunks || entry.count > kMostPayloadChunks - source ||
                ordinal > kMostOrdinals)
                return damaged_entries("no such source");
            entry.source = location(ordinal, source);
            copies.push_back(entry);
        }
        return success();
    }
    Result<> read_groups(std::uint64_t count) {
        const auto groups = decoder_.get<std::uint32_t>();
        if (decoder_.failed() || groups > decoder_.remaining() / kGroupBytes ||
            groups * kGroupBytes + count * 2 * width_ != decoder_.remaining()) {
            return damaged_entries("another size than their number says");
        }
        std::vector<std::pair<std::uint32_t, std::uint64_t>> sizes;
        std::uint64_t all = 0;
        for (std::uint32_t g = 0; g < groups; ++g) {
            const auto from = decoder_.get<std::uint32_t>();
            const auto size = decoder_.get<std::uint64_t>();
            if (size == 0 || size > count - all || (!sizes.empty() && from <= sizes.back().first))
                return damaged_entries("groups that cannot be");
            all += size;
            sizes.emplace_back(from, size);
        }
        if (all != count) return damaged_entries("groups of another number of copies");
        for (const auto& [from, size] : sizes) {
            const std::size_t begin = copies.size();
            TWR_CHECK(read_copies(size, from));
            for (std::size_t i = begin + 1; i < copies.size(); ++i) {
                if (copies[i].begin <= copies[i - 1].begin) return damaged_entries("a group out of order");
            }
        }
        std::sort(copies.begin(), copies.end(),
                  [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
        return success();
    }

    Decoder decoder_;
    Chunks chunks_of_;
    std::uint64_t width_ = 0;
};

template <class Chunks>
Result<std::vector<Run>> get_entries(std::uint32_t ordinal, std::uint64_t chunks,
                                     std::uint64_t payload_chunks, std::span<const std::byte> bytes,
                                     Chunks chunks_of) {
    EntryReader<Chunks> reader(bytes, chunks_of);
    TWR_CHECK(reader.read());
    return merge(ordinal, chunks, payload_chunks, reader.payload, reader.copies);
}

// ---- variable width ----

using Bytes = std::vector<std::byte>;

void put_varint(Bytes& to, std::uint64_t value) {
    while (value >= 0x80) {
        to.push_back(static_cast<std::byte>(value | 0x80));
        value >>= 7;
    }
    to.push_back(static_cast<std::byte>(value));
}
std::uint64_t zigzag(std::uint64_t delta) { return (delta << 1) ^ (0 - (delta >> 63)); }
std::uint64_t unzigzag(std::uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

// A column: reads past its end, and integers of more than 64 bits, fail.
class Column {
   public:
    Column() = default;
    explicit Column(std::span<const std::byte> bytes) : bytes_(bytes) {}
    std::uint64_t get() {
        if (at_ != bytes_.size()) {  // most have one byte
            const auto byte = static_cast<std::uint64_t>(bytes_[at_]);
            if (byte < 0x80) {
                ++at_;
                return byte;
            }
        }
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            if (at_ == bytes_.size()) break;
            const auto byte = static_cast<std::uint64_t>(bytes_[at_++]);
            if (shift == 63 && byte > 1) break;
            value |= (byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        failed_ = true;
        at_ = bytes_.size();
        return 0;
    }
    // How many are left, of a column that is not damaged.
    [[nodiscard]] std::size_t count() const {
        const auto left = rest();
        return static_cast<std::size_t>(std::count_if(
            left.begin(), left.end(), [](std::byte b) { return (b & std::byte{0x80}) == std::byte{}; }));
    }
    [[nodiscard]] std::span<const std::byte> rest() const { return bytes_.subspan(at_); }
    [[nodiscard]] bool done() const { return at_ == bytes_.size(); }
    [[nodiscard]] bool failed() const { return failed_; }

   private:
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    bool failed_ = false;
};

// Of each ordinal the chunk behind its last source.
class Predictions {
   public:
    std::uint64_t& operator[](std::uint32_t ordinal) {
        if (last_ == nullptr || ordinal != ordinal_) {  // sources of one ordinal follow each other
            last_ = &chunks_[ordinal];
            ordinal_ = ordinal;
        }
        return *last_;
    }

   private:
    std::unordered_map<std::uint32_t, std::uint64_t> chunks_;  // whose elements stay where they are
    std::uint64_t* last_ = nullptr;
    std::uint32_t ordinal_ = 0;
};

enum Kind : std::uint64_t { kPayload = 0, kCopy = 1, kRepeat = 2, kOnePayload = 3 };
constexpr std::size_t kColumns = 4;  // heads, counts, ordinals, sources

}  // namespace

void encode_runs(std::uint32_t ordinal, std::span<const Run> runs, bool with_payload, Encoder& encoder) {
    Bytes columns[kColumns];
    std::uint64_t end = 0;
    Location next = location(ordinal, 0);
    Predictions expected;
    for (const Run& run : runs) {
        const bool is_fresh = with_payload && run.source == next && !run.repeat;
        const Kind kind = is_fresh ? (run.count == 1 ? kOnePayload : kPayload) : run.repeat ? kRepeat : kCopy;
        put_varint(columns[0], (run.begin - end) << 2 | kind);
        if (kind != kOnePayload) put_varint(columns[1], run.count - 1);
        end = run.begin + run.count;
        if (is_fresh) {
            next += run.count;
            continue;
        }
        const std::uint32_t from = ordinal_of(run.source);
        put_varint(columns[2], ordinal - from);
        std::uint64_t& predicted = expected[from];
        put_varint(columns[3], zigzag(chunk_of(run.source) - predicted));
        predicted = chunk_of(run.source) + (run.repeat ? 1 : run.count);
    }
    Bytes sizes;
    for (const Bytes& column : columns)
        put_varint(sizes, column.size());
    encoder.put_bytes(sizes);
    for (const Bytes& column : columns)
        encoder.put_bytes(column);
}

Result<std::vector<Run>> decode_runs(std::uint32_t ordinal, std::uint64_t chunks,
                                     std::uint64_t payload_chunks, bool with_payload,
                                     std::span<const std::byte> bytes) {
    Column head_of_all(bytes);
    std::uint64_t sizes[kColumns];
    for (std::uint64_t& size : sizes)
        size = head_of_all.get();
    if (head_of_all.failed()) return damaged_entries("cut short");
    Column columns[kColumns];
    auto rest = head_of_all.rest();
    for (std::size_t c = 0; c < kColumns; ++c) {
        if (sizes[c] > rest.size()) return damaged_entries("a column is cut short");
        columns[c] = Column(rest.first(sizes[c]));
        rest = rest.subspan(sizes[c]);
    }
    if (!rest.empty()) return damaged_entries("bytes behind the last column");
    std::vector<Run> runs;
    runs.reserve(columns[0].count());
    std::uint64_t end = 0;
    std::uint64_t next = 0;
    Predictions expected;
    while (!columns[0].done()) {
        const std::uint64_t head = columns[0].get();
        const std::uint64_t kind = head & 3;
        const std::uint64_t more = kind == kOnePayload ? 0 : columns[1].get();
        const std::uint64_t gap = head >> 2;
        if (columns[0].failed() || columns[1].failed()) return damaged_entries("a column ends early");
        if (end > chunks || gap > chunks - end || more >= chunks - end - gap || more >= Run::kMostCount)
            return damaged_entries("a run passes the end of the image");
        Run run{end + gap, more + 1, 0, kind == kRepeat};
        end = run.begin + run.count;
        if ((kind == kPayload || kind == kOnePayload) && with_payload) {
            if (run.count > payload_chunks - next) return damaged_entries("more payload than there is");
            run.source = location(ordinal, next);
            next += run.count;
        } else if (kind == kCopy || kind == kRepeat) {
            const std::uint64_t back = columns[2].get();
            const std::uint64_t delta = unzigzag(columns[3].get());
            if (columns[2].failed() || columns[3].failed()) return damaged_entries("a column ends early");
            if (back > ordinal) return damaged_entries("a source that is not a difference");
            const auto from = static_cast<std::uint32_t>(ordinal - back);
            std::uint64_t& predicted = expected[from];
            const std::uint64_t source = predicted + delta;
            const std::uint64_t steps = run.repeat ? 1 : run.count;
            if (source >= kMostPayloadChunks || steps > kMostPayloadChunks - source)
                return damaged_entries("no such source");
            if (back == 0 && (!with_payload || source + steps > next))
                return damaged_entries("a copy of what comes later");
            predicted = source + steps;
            run.source = location(from, source);
        } else {
            return damaged_entries("no such kind of run");
        }
        runs.push_back(run);
    }
    for (const Column& column : columns) {
        if (!column.done()) return damaged_entries("a column goes on too long");
    }
    if (with_payload && next != payload_chunks) return damaged_entries("less payload than there is");
    return runs;
}

bool entries_grouped(RecordMethod method, std::uint32_t ordinal, std::span<const Run> runs) {
    if (method != RecordMethod::list && method != RecordMethod::tree) return false;
    return count_entries(ordinal, runs, method == RecordMethod::list).grouped();
}
bool says_grouped(RecordMethod method, std::span<const std::byte> entries) {
    return (method == RecordMethod::list || method == RecordMethod::tree) && !entries.empty() &&
           (static_cast<std::uint8_t>(entries[0]) & kGrouped) != 0;
}

void encode_entries(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                    std::span<const Run> runs, Encoder& encoder) {
    switch (method) {
        case RecordMethod::full: return;
        case RecordMethod::basic: {
            Bytes bits((chunks + 7) / 8);
            for (const Run& run : runs) {
                for (std::uint64_t chunk = run.begin; chunk < run.begin + run.count; ++chunk)
                    bits[chunk / 8] |= static_cast<std::byte>(1U << (chunk % 8));
            }
            encoder.put_bytes(bits);
            return;
        }
        case RecordMethod::list:
            put_entries(encoder, ordinal, runs, true, chunks,
                        [](std::uint64_t begin, std::uint64_t) { return begin; });
            return;
        case RecordMethod::tree: {
            // New chunks were joined; in the tree they become nodes again.
            const NodeNumbers nodes(chunks);
            put_entries(encoder, ordinal, runs, false, nodes.largest(),
                        [&](std::uint64_t begin, std::uint64_t count) { return nodes.of(begin, count); });
            return;
        }
        case RecordMethod::runs: encode_runs(ordinal, runs, true, encoder); return;
    }
}

Result<std::vector<Run>> decode_entries(RecordMethod method, std::uint32_t ordinal, std::uint64_t chunks,
                                        std::uint64_t payload_chunks, std::span<const std::byte> bytes) {
    switch (method) {
        case RecordMethod::full: {
            if (!bytes.empty()) return damaged_entries("a full step has none");
            if (payload_chunks != chunks) return damaged_entries("a full step of which chunks are missing");
            std::vector<Run> all;
            if (chunks != 0) all.push_back({0, chunks, location(ordinal, 0), false});
            return all;
        }
        case RecordMethod::basic: {
            if (bytes.size() != (chunks + 7) / 8)
                return damaged_entries("another number of bits than of chunks");
            std::vector<Run> runs;
            std::uint64_t next = 0;
            for (std::uint64_t chunk = 0; chunk < bytes.size() * 8; ++chunk) {
                const auto byte = static_cast<unsigned>(bytes[chunk / 8]);
                if (chunk % 8 == 0 && byte == 0) {
                    chunk += 7;
                    continue;
                }
                if ((byte >> (chunk % 8) & 1) == 0) continue;
                if (chunk >= chunks) return damaged_entries("bits behind the last chunk");
                if (!runs.empty() && runs.back().begin + runs.back().count == chunk) {
                    ++runs.back().count;
                } else {
                    runs.push_back({chunk, 1, location(ordinal, next), false});
                }
                ++next;
            }
            if (next != payload_chunks)
                return damaged_entries("another number of chunks than there is payload");
            return runs;
        }
        case RecordMethod::list:
            return get_entries(ordinal, chunks, payload_chunks, bytes,
                               [](std::uint64_t chunk, std::uint64_t& begin, std::uint64_t& count) {
                                   begin = chunk;
                                   count = 1;
                                   return true;
                               });
        case RecordMethod::tree: {
            const NodeNumbers nodes(chunks);
            return get_entries(ordinal, chunks, payload_chunks, bytes,
                               [&](std::uint64_t node, std::uint64_t& begin, std::uint64_t& count) {
                                   return nodes.chunks_of(node, begin, count);
                               });
        }
        case RecordMethod::runs: return decode_runs(ordinal, chunks, payload_chunks, true, bytes);
    }
    return damaged_entries("no such method");
}

}  // namespace twinrun
