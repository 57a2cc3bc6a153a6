#include "history/record_store.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <string_view>
#include <utility>

#include "base/aligned.hpp"
#include "base/checked.hpp"
#include "history/journal.hpp"
#include "history/names.hpp"
#include "history/writer.hpp"
#include "platform/file_io.hpp"
#include "record/delta_format.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {
constexpr int kMostLevels = 64;  // of records against records, and of tiers
// Most bytes that reading needs for each chunk besides its content: lists of chunks to read, by
// location and by block, when no two chunks are neighbours.
constexpr std::uint64_t kBesideChunk = 512;
// Parts of this size stay in the processor's cache between reading, checking and writing them. But
// a block of payload that two parts need is read twice, so that runs that are shorter than kLongRun
// on average are read in parts as large as may be.
constexpr std::uint64_t kCachedPart = 8 << 20;
constexpr std::uint64_t kLongRun = 1 << 20;
// A part that one thread reads: blocks at its two ends are read twice.
constexpr std::uint64_t kThreadPart = 2 * kRecordPart;

// Bytes of a part, so that it and what reading it needs stay within `memory`; kRecordPart at least.
std::uint64_t most_of(std::uint64_t chunk_bytes, std::uint64_t memory) {
    const std::uint64_t most = memory / (chunk_bytes + kBesideChunk) * chunk_bytes;
    return std::max(most / kRecordPart * kRecordPart, kRecordPart);
}

Error another_parent(const std::string& path, const std::string& by) {
    return {ErrorCode::damaged, path + ": is not the record that " + by +
                                    " was captured against: put that one back in its place"};
}

// Whether a file of differences is newer than `written`, or not the one that the journal names. Its
// time proves nothing where it is older: another run's file keeps its time when it is moved here. A
// file that is not there is missed when it is read.
bool is_changed(const DifferencePlace& place, const HeldFolder& folder, std::int64_t written) {
    if (!place.checksum) {
        const auto now = stamp_of(place.file, &folder);
        return now && now->mtime_ns > written;
    }
    const auto file = InputFile::open(place.file, 0, &folder);
    if (!file) return file.error().code != ErrorCode::not_found;
    if ((*file)->stamp().mtime_ns > written) return true;
    std::array<std::byte, kDifferenceHeaderBytes> header;
    return (*file)->size() < header.size() || !(*file)->read_at(0, header) ||
           !is_header_of(header, *place.checksum);
}

// A file of the journal's differences that is_changed().
std::optional<std::string> changed_since(const std::string& journal_path, const std::string& path,
                                         const Journal& journal) {
    const auto written = stamp_of(journal_path);
    const std::int64_t newest = written ? written->mtime_ns : std::numeric_limits<std::int64_t>::max();
    const HeldFolder folder(path);
    // After a compaction one file may have several differences.
    std::set<std::pair<std::string_view, std::optional<std::uint64_t>>> seen;
    for (const auto& [ordinal, named] : journal.differences) {
        if (!seen.emplace(named.file, named.checksum).second) continue;
        DifferencePlace place = named.in(path);
        if (is_changed(place, folder, newest)) return std::move(place.file);
    }
    return std::nullopt;
}
}  // namespace

Result<> RecordStore::load() {
    auto local = LocalHistory::read(path_);
    Journal journal;
    HistorySettings settings;
    std::uint32_t ranks = 1;
    std::string history;
    HistoryId id;
    if (local) {
        if (local->rank != rank_) {
            return Error{ErrorCode::invalid_argument,
                         path_ + ": is the part of rank " + std::to_string(local->rank)};
        }
        settings = local->settings;
        history = local->history;
        id = local->id;
        journal = std::move(local->journal);
    } else {
        History head;
        TWR_CHECK(read_manifest_head(path_, head));
        settings = std::move(head.settings);
        ranks = head.ranks;
        id = std::move(head.id);
        if (rank_ >= ranks)
            return Error{ErrorCode::not_found, path_ + ": has no rank " + std::to_string(rank_)};
        TWR_TRY(journal, read_rank_journal(path_, rank_, ranks));
    }
    if (!settings.record) {
        return Error{ErrorCode::invalid_argument,
                     path_ + ": is not a record: its data is stored as it was captured"};
    }
    if (!expected_.id.empty() && id != expected_.id) {
        return another_parent(path_, expected_.by);
    }
    const std::lock_guard guard(mutex_);
    journal_ = std::move(journal);
    changed_.reset();
    // reload(): the other members are read without the mutex, and stay
    if (chain_ != nullptr) return success();
    settings_ = *settings.record;
    history_ = std::move(history);
    journal_path_ = local ? manifest_path(path_) : journal_path(path_, rank_, ranks);
    return success();
}

Result<std::shared_ptr<RecordStore>> RecordStore::open(const std::string& path, std::uint32_t rank,
                                                       int threads) {
    return open(path, rank, threads, 0, {});
}

Result<std::shared_ptr<RecordStore>> RecordStore::open_parent(const std::string& path,
                                                              const RecordSettings& settings,
                                                              std::uint32_t rank, int threads) {
    return open_parent(path, settings, rank, threads, 0);
}

Result<std::shared_ptr<RecordStore>> RecordStore::open_parent(const std::string& path,
                                                              const RecordSettings& settings,
                                                              std::uint32_t rank, int threads, int level) {
    fs::path parent = settings.against;
    if (parent.is_relative()) parent = fs::path(path) / parent;
    const std::string at = parent.lexically_normal().string();
    auto opened = open(at, rank, threads, level + 1, {settings.against_id, path});
    if (!opened && opened.error().code == ErrorCode::not_found && !is_there(at)) {
        return Error{ErrorCode::not_found, path + ": was recorded against " + at +
                                               ", which is not there: if it was moved, move it back"};
    }
    return opened;
}

Result<std::shared_ptr<RecordStore>> RecordStore::open(const std::string& path, std::uint32_t rank,
                                                       int threads, int level, Expected expected) try {
    if (level > kMostLevels)
        return Error{ErrorCode::damaged, path + ": records that are against each other, in a circle"};
    std::shared_ptr<RecordStore> store(new RecordStore);
    store->path_ = path;
    store->rank_ = rank;
    store->expected_ = std::move(expected);
    TWR_CHECK(store->load());
    if (!store->settings_.against.empty()) {
        TWR_TRY(store->parent_, open_parent(path, store->settings_, rank, threads, level));
        // Ordinals of each level must be smaller than those of the level above.
        if (store->parent_->settings_.first_difference > store->settings_.first_difference)
            return Error{ErrorCode::damaged, path + ": is against a record that began after it"};
    }
    if (!store->history_.empty()) {
        if (auto next = open(store->history_, rank, threads, level + 1, {}))
            store->next_tier_ = std::move(*next);
    }
    store->chain_ = std::make_unique<RecordChain>(
        [self = store.get()](std::uint32_t ordinal) { return self->locate(ordinal); }, threads);
    return store;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for the record's list of differences"};
}

Journal RecordStore::journal() const {
    const std::lock_guard guard(mutex_);
    return journal_;
}

std::vector<std::uint32_t> RecordStore::ordinals() const {
    std::vector<std::uint32_t> all;
    if (parent_ != nullptr) {
        for (const std::uint32_t ordinal : parent_->ordinals()) {
            if (ordinal < settings_.first_difference) all.push_back(ordinal);
        }
    }
    if (next_tier_ != nullptr) {
        for (const std::uint32_t ordinal : next_tier_->ordinals()) {
            if (ordinal >= settings_.first_difference) all.push_back(ordinal);
        }
    }
    {
        const std::lock_guard guard(mutex_);
        for (const auto& [ordinal, file] : journal_.differences)
            all.push_back(ordinal);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

Result<DifferencePlace> RecordStore::locate(std::uint32_t ordinal) const {
    if (ordinal < settings_.first_difference && parent_ != nullptr) return parent_->locate(ordinal);
    {
        const std::lock_guard guard(mutex_);
        if (const auto known = journal_.differences.find(ordinal); known != journal_.differences.end())
            return known->second.in(path_);
    }
    if (next_tier_ != nullptr) return next_tier_->locate(ordinal);
    return Error{ErrorCode::damaged, path_ + ": rank " + std::to_string(rank_) + " has no difference " +
                                         std::to_string(ordinal) +
                                         ", and it is needed: restore the record from a copy"};
}

std::optional<std::string> RecordStore::changed_file() const {
    std::optional<std::string> found;
    {
        const std::lock_guard guard(mutex_);
        if (!changed_) changed_ = changed_since(journal_path_, path_, journal_);
        found = *changed_;
    }
    if (!found && next_tier_ != nullptr) found = next_tier_->changed_file();
    if (!found && parent_ != nullptr) found = parent_->changed_file();
    return found;
}

// Bytes of all journals that locate() uses: a change shows that a journal has new lines.
std::uint64_t RecordStore::journal_bytes() const {
    std::uint64_t bytes = next_tier_ != nullptr ? next_tier_->journal_bytes() : 0;
    if (parent_ != nullptr) bytes += parent_->journal_bytes();
    const std::lock_guard guard(mutex_);
    return bytes + journal_.whole_bytes;
}

Result<> RecordStore::reload() {
    if (next_tier_ != nullptr) TWR_CHECK(next_tier_->reload());
    if (parent_ != nullptr) TWR_CHECK(parent_->reload());
    return load();
}

// Repeats work() that finds a difference missing or damaged, as long as the journals have new
// lines.
template <class Work>
auto RecordStore::retry(Work work) -> decltype(work()) {
    for (;;) {
        const std::uint64_t before = journal_bytes();
        auto done = work();
        if (done) return done;
        // Files are closed after an error, too: whoever keeps it may keep this store.
        chain_->forget();
        if (done.error().code != ErrorCode::not_found && done.error().code != ErrorCode::damaged) return done;
        if (auto loaded = reload(); !loaded || journal_bytes() == before) return done;
        chain_->forget();  // what others opened meanwhile was found by the old journals
    }
}

Result<std::uint32_t> RecordStore::ordinal_of_step(std::int64_t step) const {
    const std::lock_guard guard(mutex_);
    const auto found = journal_.steps.find(step);
    if (found == journal_.steps.end()) {
        return Error{ErrorCode::not_found,
                     path_ + ": rank " + std::to_string(rank_) + " has no step " + std::to_string(step)};
    }
    if (found->second.files.difference == kNoBase) {
        return Error{ErrorCode::not_found,
                     path_ + ": of step " + std::to_string(step) + " only the metadata was kept"};
    }
    return found->second.files.difference;
}

Result<StepMap> RecordStore::map(std::int64_t step) {
    return retry([&]() -> Result<StepMap> {
        TWR_TRY(const std::uint32_t ordinal, ordinal_of_step(step));
        return chain_->map(ordinal);
    });
}

Result<StepMap> RecordStore::map_of(std::int64_t step, const std::string& segment) {
    return retry([&]() -> Result<StepMap> {
        TWR_TRY(const std::uint32_t ordinal, ordinal_of_step(step));
        return chain_->map_of(ordinal, segment);
    });
}

Result<RecordDirectory> RecordStore::directory(std::int64_t step) {
    return retry([&]() -> Result<RecordDirectory> {
        TWR_TRY(const std::uint32_t ordinal, ordinal_of_step(step));
        return chain_->directory(ordinal);
    });
}

Result<StepMap> RecordStore::map_of_difference(std::uint32_t ordinal, const std::string& segment) {
    return retry([&] { return chain_->map_of(ordinal, segment); });
}

Result<RecordDirectory> RecordStore::directory_of_difference(std::uint32_t ordinal) {
    return retry([&] { return chain_->directory(ordinal); });
}

Result<> RecordStore::read(const StepMap& map, std::size_t segment, std::uint64_t offset,
                           std::span<std::byte> to) {
    return retry([&] { return chain_->read(map, segment, offset, to); });
}

Result<> RecordStore::read_segment(const StepMap& map, std::size_t segment, std::span<std::byte> to) {
    return retry([&] { return chain_->read_segment(map, segment, to); });
}

Result<> RecordStore::stream(const StepMap& map, std::size_t segment, std::uint64_t offset,
                             std::uint64_t bytes, std::uint64_t memory, const Take& take) try {
    const RecordSegment& source = map.directory.segments[segment];
    const bool whole = offset == 0 && bytes == source.bytes;
    std::uint64_t part_bytes = std::min(bytes, most_of(map.chunk_bytes, memory));
    if (map.mean_run(segment) >= kLongRun) part_bytes = std::min(part_bytes, kCachedPart);
    AlignedBytes part;
    part.reserve(part_bytes);
    std::uint64_t content = 0;
    for (const std::uint64_t end = offset + bytes; offset < end;) {
        const std::uint64_t stop = std::min(end, (offset + part_bytes) / kRecordPart * kRecordPart);
        const std::span here(part.data(), (stop <= offset ? end : stop) - offset);
        TWR_CHECK(retry([&] { return chain_->read(map, segment, offset, here); }));
        if (whole && source.content != 0) content += chain_->content_of(map, offset, here);
        TWR_CHECK(take(offset, here));
        offset += here.size();
    }
    return whole ? RecordChain::check_content(map, segment, content) : success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 path_ + ": not enough memory to read a part of a step: set a smaller limit of memory"};
}

// What each_part() is asked for, and the contents that it found.
struct RecordStore::PartWork {
    const StepMap& map;
    const TakePart& take;
    std::uint64_t memory;
    bool check_content;
    std::map<std::size_t, std::atomic<std::uint64_t>> contents;  // by segment

    // Bytes that were read: summed, and handed over.
    Result<> finish(std::size_t segment, std::uint64_t offset, std::span<const std::byte> bytes) {
        if (check_content && map.directory.segments[segment].content != 0)
            contents.at(segment) += RecordChain::content_of_part(map, offset, bytes);
        return take(segment, offset, bytes);
    }
};

Result<> RecordStore::each_part(const StepMap& map, std::span<const std::size_t> segments,
                                std::uint64_t memory, bool check_content, const TakePart& take) try {
    PartWork work{map, take, memory, check_content, {}};
    return retry([&]() -> Result<> {
        for (const std::size_t segment : segments)
            work.contents[segment] = 0;
        TWR_CHECK(take_all(work));
        for (const auto& [segment, content] : work.contents) {
            if (check_content) TWR_CHECK(RecordChain::check_content(map, segment, content));
        }
        return success();
    });
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 path_ + ": not enough memory to read a part of a step: set a smaller limit of memory"};
}

// Each thread reads, checks and hands over parts of its own, which stay in its cache. Segments of
// short runs are read by all threads together, so that a block is not read once for each part.
Result<> RecordStore::take_all(PartWork& work) {
    struct Part {
        std::size_t segment;
        std::uint64_t offset;
        std::uint64_t bytes;
    };
    std::vector<Part> parts;
    const bool fits = work.memory / static_cast<std::uint64_t>(chain_->threads()) >= kThreadPart;
    for (const auto& [segment, content] : work.contents) {
        const std::uint64_t bytes = work.map.directory.segments[segment].bytes;
        if (!fits || (bytes > kThreadPart && work.map.mean_run(segment) < kLongRun)) {
            TWR_CHECK(take_together(work, segment));
            continue;
        }
        for (std::uint64_t at = 0; at < bytes; at += kThreadPart)
            parts.push_back({segment, at, std::min(kThreadPart, bytes - at)});
    }
    return chain_->for_each(parts.size(), [&](std::size_t i, ReadScratch& scratch) -> Result<> {
        const Part& part = parts[i];
        const std::span bytes(scratch.part.reserve(kThreadPart), part.bytes);
        TWR_CHECK(chain_->read(work.map, part.segment, part.offset, bytes, scratch));
        return work.finish(part.segment, part.offset, bytes);
    });
}

Result<> RecordStore::take_together(PartWork& work, std::size_t segment) {
    const std::uint64_t end = work.map.directory.segments[segment].bytes;
    const std::uint64_t most = most_of(work.map.chunk_bytes, work.memory);
    AlignedBytes memory;
    for (std::uint64_t at = 0; at < end; at += most) {
        const std::uint64_t bytes = std::min(most, end - at);
        const std::span part(memory.reserve(std::min(most, end)), bytes);
        TWR_CHECK(chain_->read(work.map, segment, at, part));
        const auto finish = [&](std::size_t i, ReadScratch&) {
            const std::uint64_t from = i * kRecordPart;
            return work.finish(segment, at + from, part.subspan(from, std::min(kRecordPart, bytes - from)));
        };
        TWR_CHECK(chain_->for_each(divide_up(bytes, kRecordPart), finish));
    }
    return success();
}

namespace {
// Whether a record at `target` that makes room where `replace` says so, and is continued otherwise,
// stays against the record at `parent`. Error: it cannot be continued against another one.
Result<bool> keeps_parent(const RecordSettings& existing, const std::string& parent,
                          const std::string& target, bool replace) {
    if (existing.against_id.empty()) return !replace;
    TWR_TRY(const HistoryId id, read_history_id(parent));
    if (id == existing.against_id) return true;
    if (replace) return false;
    return another_parent(parent, target);
}
}  // namespace

Result<> settle_against(FileSystem& system, RecordSettings& settings, const std::string& target,
                        std::uint32_t ranks, const std::string& against, bool note, bool replace) {
    if (against.empty()) return success();
    const std::string parent = absolute_path(against);
    settings.against = parent;
    if (History::exists(target)) {
        std::uint32_t target_ranks = 1;
        TWR_TRY(const HistorySettings existing, read_history_settings(target, target_ranks));
        if (existing.record && existing.record->against == parent) {
            TWR_TRY(const bool same, keeps_parent(*existing.record, parent, target, replace));
            if (same) {  // an existing record keeps its first ordinal
                settings.first_difference = existing.record->first_difference;
                settings.against_id = existing.record->against_id;
                return success();
            }
        }
    }
    if (real_path(parent) == real_path(target))
        return Error{ErrorCode::invalid_argument, parent + ": cannot be recorded against itself"};
    History head;
    TWR_CHECK(read_manifest_head(parent, head));
    const HistorySettings& found = head.settings;
    if (!found.record) return Error{ErrorCode::invalid_argument, parent + ": is not a record: pack it first"};
    if (head.ranks != ranks) {
        return Error{ErrorCode::mismatch, parent + ": is of " + std::to_string(head.ranks) +
                                              " ranks, this run of " + std::to_string(ranks)};
    }
    if (found.record->chunk_bytes != settings.chunk_bytes) {
        return Error{ErrorCode::mismatch, parent + ": has chunks of " +
                                              std::to_string(found.record->chunk_bytes) +
                                              " bytes: choose the same"};
    }
    std::uint32_t next = found.record->first_difference;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        TWR_TRY(const Journal journal, read_rank_journal(parent, rank, ranks));
        next = std::max(next, journal.next_difference);
    }
    settings.first_difference = next;
    settings.against_id = head.has_id ? head.id : HistoryId();
    if (!note) return success();
    TWR_TRY(const auto writer, HistoryWriter::open(system, parent, found, 0, head.ranks, Existing::append));
    return writer->add_child(absolute_path(target));
}

}  // namespace twinrun
