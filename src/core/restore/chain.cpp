#include "restore/chain.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <set>
#include <unordered_map>

#include "base/checked.hpp"
#include "dedup/chunk_hash.hpp"
#include "platform/team_items.hpp"

namespace twinrun {

namespace {

// Of a pass over blocks. Its files stay open beside those that are kept. A pass with so many parts
// (13 MB) takes no further difference.
constexpr std::size_t kMostFilesAtOnce = 64;
constexpr std::size_t kMostPartsAtOnce = std::size_t{1} << 18;
constexpr std::size_t kSmallRead = std::size_t{1} << 20;
constexpr const char* kNoMemory = "not enough memory to read a record";

// Chunks that are not found yet: `begin` in the requested image, `at` in that of the next
// difference.
struct Gap {
    std::uint64_t begin;
    std::uint64_t count;
    std::uint64_t at;
};

// As std::partition_point: `before` holds for the first items of [from, end), and for no others.
// The end of these is found fast where it is near.
template <typename Iterator, typename Before>
Iterator near_partition_point(Iterator from, Iterator end, Before before) {
    std::ptrdiff_t step = 1;
    while (end - from > step && before(from[step])) {
        from += step;
        step *= 2;
    }
    return std::partition_point(from, from + std::min(step, end - from), before);
}

// Moves the parts of `gaps` that the runs contain to `found`, as runs of the requested image. Both
// ascend by place.
void fill(std::vector<Gap>& gaps, const std::vector<Run>& runs, std::vector<Run>& found) {
    std::vector<Gap> left;
    auto run = runs.begin();
    const auto ends_before = [](const Run& r, std::uint64_t place) { return r.begin + r.count <= place; };
    for (const Gap& gap : gaps) {
        std::uint64_t at = gap.at;
        const std::uint64_t end = gap.at + gap.count;
        run = near_partition_point(run, runs.end(), [&](const Run& r) { return ends_before(r, at); });
        auto here = run;
        while (at < end) {
            const std::uint64_t begin = here == runs.end() ? end : std::min(end, std::max(at, here->begin));
            if (begin > at) left.push_back({gap.begin + (at - gap.at), begin - at, at});
            if (begin == end) break;
            const std::uint64_t stop = std::min(end, here->begin + here->count);
            const Location source = here->repeat ? here->source : here->source + (begin - here->begin);
            found.push_back({gap.begin + (begin - gap.at), stop - begin, source, here->repeat});
            at = stop;
            if (stop == here->begin + here->count) ++here;
        }
        run = here;
    }
    gaps = std::move(left);
}

bool by_place(const Run& a, const Run& b) { return a.begin < b.begin; }

// Sorts. A list that is a few ascending ones behind each other is merged, which is less work.
template <typename Item, typename Before>
void merge_ascending(std::vector<Item>& all, Before before) {
    std::vector<std::size_t> levels;  // where each list begins, and the end
    for (auto at = all.begin(); at != all.end(); at = std::is_sorted_until(at, all.end(), before))
        levels.push_back(static_cast<std::size_t>(at - all.begin()));
    if (levels.size() < 2) return;
    if (levels.size() > all.size() / 8) return std::sort(all.begin(), all.end(), before);
    levels.push_back(all.size());
    std::vector<Item> next(all.size());
    while (levels.size() > 2) {
        std::vector<std::size_t> fewer = {0};
        for (std::size_t l = 0; l + 1 < levels.size(); l += 2) {
            const auto at = [&](std::size_t i) {
                return all.begin() + static_cast<std::ptrdiff_t>(levels[i]);
            };
            const std::size_t end = std::min(l + 2, levels.size() - 1);
            std::merge(at(l), at(l + 1), at(l + 1), at(end),
                       next.begin() + static_cast<std::ptrdiff_t>(levels[l]), before);
            fewer.push_back(levels[end]);
        }
        std::swap(all, next);
        levels = std::move(fewer);
    }
}

// From places in an image to those of the same chunks in its base's image.
Result<> to_base(std::vector<Gap>& gaps, const RecordDirectory& directory, const RecordDirectory& base,
                 std::uint32_t chunk_bytes) {
    const auto firsts = directory.first_chunks(chunk_bytes);
    const auto base_firsts = base.first_chunks(chunk_bytes);
    bool same = directory.segments.size() == base.segments.size() && firsts == base_firsts;
    for (std::size_t s = 0; same && s < base.segments.size(); ++s)
        same = directory.segments[s].name == base.segments[s].name;
    if (same) return success();
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t s = 0; s < base.segments.size(); ++s)
        by_name.emplace(base.segments[s].name, s);
    std::vector<Gap> moved;
    for (const Gap& gap : gaps) {
        std::uint64_t at = gap.at;
        while (at < gap.at + gap.count) {
            const auto s = static_cast<std::size_t>(std::upper_bound(firsts.begin(), firsts.end(), at) -
                                                    firsts.begin()) -
                           1;
            const std::uint64_t stop = std::min(gap.at + gap.count, firsts[s + 1]);
            const auto there = by_name.find(directory.segments[s].name);
            const std::uint64_t offset = at - firsts[s];
            if (there == by_name.end() ||
                stop - firsts[s] > base_firsts[there->second + 1] - base_firsts[there->second]) {
                return Error{ErrorCode::damaged, "chunks of segment '" + directory.segments[s].name +
                                                     "' are neither in it nor in its base"};
            }
            moved.push_back({gap.begin + (at - gap.at), stop - at, base_firsts[there->second] + offset});
            at = stop;
        }
    }
    std::sort(moved.begin(), moved.end(), [](const Gap& a, const Gap& b) { return a.at < b.at; });
    gaps = std::move(moved);
    return success();
}

}  // namespace

const RecordSegment* StepMap::find(std::string_view name) const {
    for (const RecordSegment& segment : directory.segments) {
        if (segment.name == name) return &segment;
    }
    return nullptr;
}

std::uint64_t StepMap::mean_run(std::size_t segment) const {
    const auto place = [&](std::uint64_t chunk) {
        return std::lower_bound(runs.begin(), runs.end(), chunk,
                                [](const Run& run, std::uint64_t at) { return run.begin + run.count <= at; });
    };
    const auto first = place(firsts[segment]);
    auto end = first;
    while (end != runs.end() && end->begin < firsts[segment + 1])
        ++end;
    const auto count = static_cast<std::uint64_t>(end - first);
    return count == 0 ? 0 : directory.segments[segment].bytes / count;
}

// Payload that is to come to a place of the output.
struct RecordChain::Request {
    Location source = 0;
    std::uint64_t count = 0;
    std::uint64_t to = 0;  // chunk of the output
    bool repeat = false;
    bool mix = false;  // it is XORed with what is there
};

struct RecordChain::Workers {
    explicit Workers(int threads) : team(threads), scratch(static_cast<std::size_t>(threads)) {}
    Team team;
    std::vector<ReadScratch> scratch;
};

RecordChain::RecordChain(Locate locate, int threads)
    : locate_(std::move(locate)),
      threads_(std::max(1, threads)),
      most_files_(most_open_files()),
      workers_(std::make_unique<Workers>(threads_)) {}
RecordChain::~RecordChain() = default;

void RecordChain::forget() {
    const std::lock_guard guard(mutex_);
    files_.clear();
}

Result<std::shared_ptr<DifferenceFile>> RecordChain::open(std::uint32_t ordinal) {
    {
        const std::lock_guard guard(mutex_);
        if (const auto known = files_.find(ordinal); known != files_.end()) return known->second;
    }
    TWR_TRY(const DifferencePlace place, locate_(ordinal));
    // Many small ones are opened behind each other: what unpacks their indexes is made once.
    const std::unique_lock alone(opening_, std::try_to_lock);
    const auto opened = [&] {
        return alone ? DifferenceFile::open(place, index_) : DifferenceFile::open(place);
    };
    auto made = opened();
    if (!made && made.error().code == ErrorCode::io) {
        // Perhaps the process has too many open files: those that are only kept are closed.
        forget();
        made = opened();
    }
    // A journal names it, so a part of the record is lost: that is damage, and no wrong question.
    if (!made && made.error().code == ErrorCode::not_found) {
        return Error{ErrorCode::damaged,
                     place.file + ": missing, and steps of the record need it: restore it from a copy"};
    }
    TWR_TRY(auto file, std::move(made));
    const Difference& difference = file->difference();
    if (difference.partial() ? !std::any_of(difference.kept.begin(), difference.kept.end(),
                                            [&](const auto& kept) { return kept.ordinal == ordinal; })
                             : difference.ordinal != ordinal) {
        return another_difference(place.file);
    }
    const std::lock_guard guard(mutex_);
    // Closes the file of the oldest difference: it is the least likely to be needed again.
    if (files_.size() >= most_files_) files_.erase(files_.begin());
    files_.insert_or_assign(ordinal, file);
    return file;
}

Result<std::vector<Run>> RecordChain::resolve(const RecordDirectory& directory, std::uint32_t chunk_bytes,
                                              const std::vector<Run>& runs, std::uint32_t base) {
    return resolve(directory, chunk_bytes, runs, base, {0, directory.first_chunks(chunk_bytes).back()});
}

Result<std::vector<Run>> RecordChain::resolve(const RecordDirectory& directory, std::uint32_t chunk_bytes,
                                              const std::vector<Run>& runs, std::uint32_t base,
                                              Stretch wanted) {
    std::vector<Run> found;
    std::vector<Gap> gaps;
    if (wanted.count != 0) gaps.push_back({wanted.begin, wanted.count, wanted.begin});
    const auto take = [&](const std::vector<Run>& of) {
        const auto before = static_cast<std::ptrdiff_t>(found.size());
        fill(gaps, of, found);
        const auto level = found.begin() + before;
        if (!std::is_sorted(level, found.end(), by_place)) std::sort(level, found.end(), by_place);
    };
    take(runs);
    RecordDirectory from = directory;
    while (!gaps.empty()) {
        if (base == kNoBase) return Error{ErrorCode::damaged, "chunks that no difference has"};
        TWR_TRY(const auto file, open(base));
        const Difference& difference = file->difference();
        if (difference.partial()) {
            return Error{ErrorCode::damaged, file->path() + ": of difference " + std::to_string(base) +
                                                 " only chunks are left, and its image is needed"};
        }
        if (difference.chunk_bytes != chunk_bytes)
            return Error{ErrorCode::damaged,
                         file->path() + ": has chunks of another size than what is based on it"};
        if (auto moved = to_base(gaps, from, difference.directory, chunk_bytes); !moved)
            return std::move(moved).error().at(file->path());
        take(difference.runs);
        from = difference.directory;
        base = difference.base;
    }
    merge_ascending(found, by_place);
    // Neighbours that go on become one again; not those of the newest difference, whose payload
    // must stay apart from its copies.
    std::uint32_t newest = 0;
    for (const Run& run : runs)
        newest = std::max(newest, ordinal_of(run.source));
    std::vector<Run> joined;
    for (const Run& run : found) {
        if (!joined.empty() && ordinal_of(run.source) != newest) {
            Run& last = joined.back();
            const bool steps =
                !last.repeat && (!run.repeat || run.count == 1) && run.source == last.source + last.count;
            const bool stands = (last.repeat || last.count == 1) && (run.repeat || run.count == 1) &&
                                run.source == last.source;
            if (steps || stands) {
                last.count += run.count;
                last.repeat = stands;
                continue;
            }
        }
        joined.push_back(run);
    }
    return joined;
}

Result<std::vector<std::uint32_t>> RecordChain::bases(std::uint32_t ordinal) {
    std::vector<std::uint32_t> all;
    while (ordinal != kNoBase) {
        all.push_back(ordinal);
        TWR_TRY(const auto file, open(ordinal));
        ordinal = file->difference().base;  // always an earlier one: this ends
    }
    return all;
}

Result<std::shared_ptr<DifferenceFile>> RecordChain::open_step(std::uint32_t ordinal) {
    TWR_TRY(auto file, open(ordinal));
    if (!file->difference().partial()) return file;
    return Error{ErrorCode::not_found,
                 file->path() + ": of difference " + std::to_string(ordinal) + " only chunks are left"};
}

Result<StepMap> RecordChain::map(std::uint32_t ordinal) { return map_some(ordinal, nullptr); }

Result<StepMap> RecordChain::map_of(std::uint32_t ordinal, std::string_view segment) {
    return map_some(ordinal, &segment);
}

Result<RecordDirectory> RecordChain::directory(std::uint32_t ordinal) {
    TWR_TRY(const auto file, open_step(ordinal));
    return file->difference().directory;
}

Result<StepMap> RecordChain::map_some(std::uint32_t ordinal, const std::string_view* segment) try {
    TWR_TRY(const auto file, open_step(ordinal));
    const Difference& difference = file->difference();
    StepMap map;
    map.ordinal = ordinal;
    map.chunk_bytes = difference.chunk_bytes;
    map.directory = difference.directory;
    map.firsts = difference.directory.first_chunks(difference.chunk_bytes);
    Stretch wanted{0, map.firsts.back()};
    if (segment != nullptr) {
        const RecordSegment* found = map.find(*segment);
        if (found == nullptr) return map;
        const auto number = static_cast<std::size_t>(found - map.directory.segments.data());
        wanted = {map.firsts[number], map.firsts[number + 1] - map.firsts[number]};
    }
    TWR_TRY(map.runs,
            resolve(difference.directory, difference.chunk_bytes, difference.runs, difference.base, wanted));
    return map;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the map of a step"};
}

// Adds to `next` what chunks [position, position + count) of a payload were XORed with, at the same
// places; with repeat what the one chunk was XORed with, `times` times. near: number of a base
// where the search begins, for it is fast where that is near; then of the first that was found.
void RecordChain::add_bases(const Difference& difference, std::uint64_t position, std::uint64_t count,
                            std::uint64_t times, bool repeat, std::uint64_t to, std::size_t& near,
                            std::vector<Request>& next) {
    const auto& bases = difference.bases;
    const bool from_near = near < bases.size() && bases[near].begin <= position;
    auto run = near_partition_point(bases.begin() + static_cast<std::ptrdiff_t>(from_near ? near : 0),
                                    bases.end(), [&](const Run& r) { return r.begin + r.count <= position; });
    near = static_cast<std::size_t>(run - bases.begin());
    for (std::uint64_t at = position; run != bases.end() && run->begin < position + count; ++run) {
        at = std::max(at, run->begin);
        const std::uint64_t stop = std::min(position + count, run->begin + run->count);
        const Location source = run->repeat ? run->source : run->source + (at - run->begin);
        if (repeat) {
            next.push_back({source, times, to, true, true});
        } else {
            next.push_back({source, stop - at, to + (at - position), run->repeat, true});
        }
        at = stop;
    }
}

// Sorts requests of one difference by source: chunks of one block follow each other then. Those
// that go on in the payload and in the output become one. Where they differ in `mix`, the shorter
// one is mixed with zeros: a long chain of steps in which a few chunks are unchanged, each time
// others, would fall into more and more pieces.
void RecordChain::join(std::vector<Request>& requests, BlockPass& pass) {
    const auto by_source = [](const Request& a, const Request& b) { return a.source < b.source; };
    merge_ascending(requests, by_source);
    const auto go_on = [&](Request& a, Request& b) {
        if (a.repeat || b.repeat || b.source != a.source + a.count || b.to != a.to + a.count) return false;
        if (a.mix == b.mix) return true;
        Request& plain = a.mix ? b : a;
        if (plain.count > (a.mix ? a : b).count) return false;
        pass.add_zeros(plain.to, plain.count);
        plain.mix = true;
        return true;
    };
    std::size_t kept = 0;
    for (std::size_t i = 1; i < requests.size(); ++i) {
        if (go_on(requests[kept], requests[i])) {
            requests[kept].count += requests[i].count;
        } else {
            requests[++kept] = requests[i];
        }
    }
    if (!requests.empty()) requests.resize(kept + 1);
}

// Adds the parts of blocks that hold these chunks of one difference. next: grows by the chunks that
// they were XORed with, which are all of earlier differences.
Result<> RecordChain::find_blocks(std::uint32_t ordinal, const std::vector<Request>& requests,
                                  std::uint32_t chunk_bytes, BlockPass& found, std::vector<Request>& next) {
    TWR_TRY(auto opened, open(ordinal));
    const DifferenceFile& file = *opened;
    const Difference& difference = file.difference();
    if (difference.chunk_bytes != chunk_bytes) {
        return Error{ErrorCode::damaged,
                     file.path() + ": has chunks of another size than what copies from it"};
    }
    found.add_file(std::move(opened));
    const std::size_t known = next.size();
    std::size_t near = 0;
    for (const Request& request : requests) {
        const std::uint64_t steps = request.repeat ? 1 : request.count;
        for (std::uint64_t done = 0; done < steps;) {
            const auto position = file.position(request.source + done);
            if (!position) {
                return Error{ErrorCode::damaged, file.path() + ": chunk " +
                                                     std::to_string(chunk_of(request.source) + done) +
                                                     " of difference " + std::to_string(ordinal) +
                                                     " is not there, and is needed"};
            }
            const auto block = static_cast<std::size_t>(*position / difference.block_chunks);
            const std::uint64_t first = *position % difference.block_chunks;
            std::uint64_t count = std::min(steps - done, file.block_chunks(block) - first);
            // Neighbours in the file need not be neighbours in the payload.
            if (difference.partial()) {
                std::uint64_t both = 1;
                while (both < count && file.position(request.source + done + both) == *position + both)
                    ++both;
                count = both;
            }
            found.add_part(block, first, request.repeat ? request.count : count, request.to + done,
                           request.repeat, request.mix);
            if (difference.blocks[block].xored)
                add_bases(difference, *position, count, request.repeat ? request.count : 1, request.repeat,
                          request.to + done, near, next);
            done += count;
        }
    }
    for (std::size_t i = known; i < next.size(); ++i) {
        if (ordinal_of(next[i].source) >= ordinal)
            return Error{ErrorCode::damaged,
                         file.path() + ": chunks that were XORed with others that are not older"};
    }
    return success();
}

Result<> RecordChain::read_blocks(BlockPass& blocks, ReadScratch* own) {
    if (own != nullptr) return blocks.read(nullptr, {own, 1}, kNoMemory);
    const std::lock_guard guard(reading_);
    return blocks.read(&workers_->team, workers_->scratch, kNoMemory);
}

Result<> RecordChain::for_each(std::size_t count, const Work& work) {
    const std::lock_guard guard(reading_);
    return for_each_item(workers_->team, count, kNoMemory, [&](int worker, std::size_t i) {
        return work(i, workers_->scratch[static_cast<std::size_t>(worker)]);
    });
}

// Of one pass, where so many are at work.
std::size_t RecordChain::files_at_once(int passes) const {
    return std::max<std::size_t>(1,
                                 std::min(kMostFilesAtOnce, most_files_) / static_cast<std::size_t>(passes));
}

// From the newest difference to the oldest: when one is looked at, all chunks of it that are needed
// are known, those that others were XORed with too. So each block is read once.
Result<> RecordChain::fetch(std::span<const Request> requests, std::uint32_t chunk_bytes, std::byte* to,
                            ReadScratch* own) {
    std::map<std::uint32_t, std::vector<Request>> left;
    const auto add = [&](std::span<const Request> more) {
        std::vector<Request>* of = nullptr;
        std::uint32_t last = kNoBase;
        for (const Request& request : more) {
            if (of == nullptr || ordinal_of(request.source) != last) {
                last = ordinal_of(request.source);
                of = &left[last];
            }
            of->push_back(request);
        }
    };
    add(requests);
    std::vector<Request> next;
    while (!left.empty()) {
        // Many differences at once, but not more files than a process may have open: threads that
        // each read for themselves share them.
        const std::size_t most_files = files_at_once(own == nullptr ? 1 : threads_);
        BlockPass blocks(chunk_bytes, to, reads_);
        while (!left.empty() && blocks.files() < most_files && blocks.parts() < kMostPartsAtOnce) {
            const auto newest = std::prev(left.end());
            next.clear();
            join(newest->second, blocks);
            TWR_CHECK(find_blocks(newest->first, newest->second, chunk_bytes, blocks, next));
            left.erase(newest);
            add(next);
        }
        TWR_CHECK(read_blocks(blocks, own));
    }
    return success();
}

Result<> RecordChain::fetch_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                                    std::span<std::byte> to, ReadScratch* own) try {
    if (to.size() != count * chunk_bytes)
        return Error{ErrorCode::internal, "a buffer of another size than its chunks"};
    if (count == 0) return success();
    const Request all{first, count, 0, false};
    return fetch({&all, 1}, chunk_bytes, to.data(), own);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, kNoMemory};
}

Result<> RecordChain::read_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                                   std::span<std::byte> to) {
    return fetch_payload(first, count, chunk_bytes, to, nullptr);
}

Result<> RecordChain::read_payload(Location first, std::uint64_t count, std::uint32_t chunk_bytes,
                                   std::span<std::byte> to, ReadScratch& own) {
    return fetch_payload(first, count, chunk_bytes, to, &own);
}

Result<> RecordChain::read_payload(std::span<const Run> runs, std::uint32_t chunk_bytes,
                                   std::span<std::byte> to) try {
    std::vector<Request> requests;
    requests.reserve(runs.size());
    const std::uint64_t room = to.size() / chunk_bytes;
    for (const Run& run : runs) {
        if (run.begin > room || run.count > room - run.begin)
            return Error{ErrorCode::internal, "a buffer that is too small for its chunks"};
        if (run.count != 0) requests.push_back({run.source, run.count, run.begin, run.repeat});
    }
    return fetch(requests, chunk_bytes, to.data());
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, kNoMemory};
}

// Chunks [begin, stop) of a segment, to the places from 0 on.
std::vector<RecordChain::Request> RecordChain::requests_of(const StepMap& map, std::size_t segment,
                                                           std::uint64_t begin, std::uint64_t stop) {
    std::vector<Request> list;
    begin += map.firsts[segment];
    stop += map.firsts[segment];
    auto run = std::upper_bound(map.runs.begin(), map.runs.end(), begin,
                                [](std::uint64_t place, const Run& r) { return place < r.begin; });
    if (run != map.runs.begin()) --run;
    for (; run != map.runs.end() && run->begin < stop; ++run) {
        const std::uint64_t from = std::max(begin, run->begin);
        const std::uint64_t until = std::min(stop, run->begin + run->count);
        if (from >= until) continue;
        list.push_back({run->repeat ? run->source : run->source + (from - run->begin), until - from,
                        from - begin, run->repeat});
    }
    return list;
}

Result<> RecordChain::fetch_bytes(const StepMap& map, std::size_t segment, std::uint64_t offset,
                                  std::span<std::byte> to, ReadScratch* own) try {
    const std::uint64_t size = map.directory.segments[segment].bytes;
    const auto end = checked_add(offset, to.size());
    if (!end || *end > size) {
        return Error{ErrorCode::invalid_argument, "segment '" + map.directory.segments[segment].name +
                                                      "' has " + std::to_string(size) + " bytes"};
    }
    if (to.empty()) return success();
    const std::uint64_t chunk = map.chunk_bytes;
    const std::uint64_t begin = offset / chunk;
    const std::uint64_t stop = divide_up(*end, chunk);
    if (offset % chunk == 0 && *end % chunk == 0)
        return fetch(requests_of(map, segment, begin, stop), map.chunk_bytes, to.data(), own);
    // Chunks that are requested in part come through a place of their own: few bytes with all
    // others, so that no block is read twice.
    if ((stop - begin) * chunk <= kSmallRead) {
        std::vector<std::byte> whole((stop - begin) * chunk);
        TWR_CHECK(fetch(requests_of(map, segment, begin, stop), map.chunk_bytes, whole.data(), own));
        std::memcpy(to.data(), whole.data() + (offset - begin * chunk), to.size());
        return success();
    }
    const std::uint64_t whole_begin = divide_up(offset, chunk);
    const std::uint64_t whole_end = *end / chunk;
    TWR_CHECK(fetch(requests_of(map, segment, whole_begin, whole_end), map.chunk_bytes,
                    to.data() + (whole_begin * chunk - offset), own));
    std::vector<std::byte> edge(chunk);
    for (const std::uint64_t number : {begin, stop - 1}) {
        if (number >= whole_begin && number < whole_end) continue;
        TWR_CHECK(fetch(requests_of(map, segment, number, number + 1), map.chunk_bytes, edge.data(), own));
        const std::uint64_t from = std::max(offset, number * chunk);
        const std::uint64_t until = std::min(*end, (number + 1) * chunk);
        std::memcpy(to.data() + (from - offset), edge.data() + (from - number * chunk), until - from);
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, kNoMemory};
}

Result<> RecordChain::read(const StepMap& map, std::size_t segment, std::uint64_t offset,
                           std::span<std::byte> to) {
    return fetch_bytes(map, segment, offset, to, nullptr);
}

Result<> RecordChain::read(const StepMap& map, std::size_t segment, std::uint64_t offset,
                           std::span<std::byte> to, ReadScratch& own) {
    return fetch_bytes(map, segment, offset, to, &own);
}

Result<> RecordChain::read_segment(const StepMap& map, std::size_t segment, std::span<std::byte> to) {
    const RecordSegment& expected = map.directory.segments[segment];
    if (to.size() != expected.bytes)
        return Error{ErrorCode::internal, "a buffer of another size than its segment"};
    TWR_CHECK(read(map, segment, 0, to));
    if (expected.content == 0) return success();
    return check_content(map, segment, content_of(map, 0, to));
}

std::uint64_t RecordChain::content_of_part(const StepMap& map, std::uint64_t offset,
                                           std::span<const std::byte> bytes) {
    const std::uint64_t chunk = map.chunk_bytes;
    const std::uint64_t first = offset / chunk;
    const std::uint64_t chunks = divide_up(bytes.size(), chunk);
    std::uint64_t sum = 0;
    constexpr std::uint64_t kBatch = 64;
    ChunkHash hashes[kBatch];
    for (std::uint64_t batch = 0; batch < chunks; batch += kBatch) {
        const std::uint64_t stop = std::min(chunks, batch + kBatch);
        const auto here = bytes.subspan(batch * chunk, std::min(stop * chunk, bytes.size()) - batch * chunk);
        chunk_hashes(here, chunk, hashes);
        for (std::uint64_t i = batch; i < stop; ++i)
            sum += content_term(hashes[i - batch], first + i);
    }
    return sum;
}

std::uint64_t RecordChain::content_of(const StepMap& map, std::uint64_t offset,
                                      std::span<const std::byte> bytes) {
    std::atomic<std::uint64_t> content{0};
    const std::uint64_t chunks = divide_up(bytes.size(), map.chunk_bytes);
    const std::uint64_t share = divide_up(chunks, static_cast<std::uint64_t>(threads_)) * map.chunk_bytes;
    if (share == 0) return 0;
    const auto summed = for_each(divide_up(bytes.size(), share), [&](std::size_t i, ReadScratch&) {
        const std::uint64_t begin = i * share;
        content +=
            content_of_part(map, offset + begin, bytes.subspan(begin, std::min(share, bytes.size() - begin)));
        return success();
    });
    static_cast<void>(summed.ok());  // nothing in it can fail
    return content;
}

Result<> RecordChain::check_content(const StepMap& map, std::size_t segment, std::uint64_t content) {
    const RecordSegment& expected = map.directory.segments[segment];
    // 0: of a step that was taken as it was; every byte of it has been checked.
    if (expected.content == 0 || content == expected.content) return success();
    return Error{ErrorCode::damaged, "segment '" + expected.name + "' of difference " +
                                         std::to_string(map.ordinal) +
                                         ": its bytes are not those that were recorded"};
}

Result<std::vector<std::uint32_t>> RecordChain::needs(const StepMap& map) {
    std::set<std::uint32_t> all;
    std::vector<std::uint32_t> left;
    const auto add = [&](std::uint32_t ordinal) {
        if (all.insert(ordinal).second) left.push_back(ordinal);
    };
    for (const Run& run : map.runs)
        add(ordinal_of(run.source));
    while (!left.empty()) {
        const std::uint32_t ordinal = left.back();
        left.pop_back();
        TWR_TRY(const auto file, open(ordinal));
        for (const Run& run : file->difference().bases)
            add(ordinal_of(run.source));
    }
    return std::vector<std::uint32_t>(all.begin(), all.end());
}

}  // namespace twinrun
