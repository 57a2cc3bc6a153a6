#include "history/record_store.hpp"

#include <algorithm>
#include <filesystem>
#include <new>
#include <set>

#include "base/aligned.hpp"
#include "history/names.hpp"
#include "history/writer.hpp"
#include "platform/file_io.hpp"

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

// A file of the journal's differences that is newer than the journal. A file that is not there is
// missed when it is read.
std::optional<std::string> changed_since(const std::string& journal_path, const std::string& path,
                                         const Journal& journal) {
    const auto written = stamp_of(journal_path);
    if (!written) return std::nullopt;
    std::set<std::string> seen;  // after a compaction one file may have several differences
    for (const auto& [ordinal, name] : journal.differences) {
        if (!seen.insert(name).second) continue;
        std::string file = (fs::path(path) / name).string();
        const auto now = stamp_of(file);
        if (now && now->mtime_ns > written->mtime_ns) return file;
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
    if (local) {
        if (local->rank != rank_) {
            return Error{ErrorCode::invalid_argument,
                         path_ + ": is the part of rank " + std::to_string(local->rank)};
        }
        settings = local->settings;
        history = local->history;
        journal = std::move(local->journal);
    } else {
        TWR_TRY(settings, read_history_settings(path_, ranks));
        if (rank_ >= ranks)
            return Error{ErrorCode::not_found, path_ + ": has no rank " + std::to_string(rank_)};
        TWR_TRY(journal, read_rank_journal(path_, rank_, ranks));
    }
    if (!settings.record) {
        return Error{ErrorCode::invalid_argument,
                     path_ + ": is not a record: its data is stored as it was captured"};
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
    return open(path, rank, threads, 0);
}

Result<std::shared_ptr<RecordStore>> RecordStore::open(const std::string& path, std::uint32_t rank,
                                                       int threads, int level) try {
    if (level > kMostLevels)
        return Error{ErrorCode::damaged, path + ": records that are against each other, in a circle"};
    std::shared_ptr<RecordStore> store(new RecordStore);
    store->path_ = path;
    store->rank_ = rank;
    TWR_CHECK(store->load());
    if (!store->settings_.against.empty()) {
        fs::path parent = store->settings_.against;
        if (parent.is_relative()) parent = fs::path(path) / parent;
        TWR_TRY(store->parent_, open(parent.lexically_normal().string(), rank, threads, level + 1));
        // Ordinals of each level must be smaller than those of the level above.
        if (store->parent_->settings_.first_difference > store->settings_.first_difference)
            return Error{ErrorCode::damaged, path + ": is against a record that began after it"};
    }
    if (!store->history_.empty()) {
        if (auto next = open(store->history_, rank, threads, level + 1)) store->next_tier_ = std::move(*next);
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

Result<std::string> RecordStore::locate(std::uint32_t ordinal) const {
    if (ordinal < settings_.first_difference && parent_ != nullptr) return parent_->locate(ordinal);
    {
        const std::lock_guard guard(mutex_);
        if (const auto known = journal_.differences.find(ordinal); known != journal_.differences.end())
            return (fs::path(path_) / known->second).string();
    }
    if (next_tier_ != nullptr) return next_tier_->locate(ordinal);
    return Error{ErrorCode::not_found, path_ + ": rank " + std::to_string(rank_) + " has no difference " +
                                           std::to_string(ordinal) + ", and it is needed"};
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
        if (done || (done.error().code != ErrorCode::not_found && done.error().code != ErrorCode::damaged))
            return done;
        if (auto loaded = reload(); !loaded || journal_bytes() == before) return done;
        chain_->forget();
    }
}

Result<StepMap> RecordStore::map(std::int64_t step) {
    return retry([&]() -> Result<StepMap> {
        std::uint32_t ordinal = kNoBase;
        {
            const std::lock_guard guard(mutex_);
            const auto found = journal_.steps.find(step);
            if (found == journal_.steps.end()) {
                return Error{ErrorCode::not_found, path_ + ": rank " + std::to_string(rank_) +
                                                       " has no step " + std::to_string(step)};
            }
            ordinal = found->second.files.difference;
        }
        if (ordinal == kNoBase) {
            return Error{ErrorCode::not_found,
                         path_ + ": of step " + std::to_string(step) + " only the metadata was kept"};
        }
        return chain_->map(ordinal);
    });
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
    const std::uint64_t chunk = map.chunk_bytes;
    const std::uint64_t most = memory / (chunk + kBesideChunk) * chunk / kRecordPart * kRecordPart;
    const bool whole = offset == 0 && bytes == source.bytes;
    std::uint64_t part_bytes = std::min(bytes, std::max(most, kRecordPart));
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

Result<> settle_against(FileSystem& system, RecordSettings& settings, const std::string& target,
                        std::uint32_t ranks, const std::string& against, bool note) {
    if (against.empty()) return success();
    const std::string parent = absolute_path(against);
    settings.against = parent;
    std::uint32_t parent_ranks = 1;
    if (History::exists(target)) {  // an existing record keeps its first ordinal
        std::uint32_t target_ranks = 1;
        TWR_TRY(const HistorySettings existing, read_history_settings(target, target_ranks));
        if (existing.record && existing.record->against == parent) {
            settings.first_difference = existing.record->first_difference;
            return success();
        }
    }
    if (real_path(parent) == real_path(target))
        return Error{ErrorCode::invalid_argument, parent + ": cannot be recorded against itself"};
    TWR_TRY(const HistorySettings found, read_history_settings(parent, parent_ranks));
    if (!found.record) return Error{ErrorCode::invalid_argument, parent + ": is not a record: pack it first"};
    if (parent_ranks != ranks) {
        return Error{ErrorCode::mismatch, parent + ": is of " + std::to_string(parent_ranks) +
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
    if (!note) return success();
    TWR_TRY(const auto writer, HistoryWriter::open(system, parent, found, 0, parent_ranks, Existing::append));
    return writer->add_child(absolute_path(target));
}

}  // namespace twinrun
