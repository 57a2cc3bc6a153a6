#include "capture/tiers.hpp"

#include <algorithm>
#include <filesystem>
#include <new>
#include <utility>

#include "base/start_thread.hpp"
#include "capture/failure.hpp"
#include "capture/flush_child.hpp"
#include "history/flushed.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

std::uint64_t bytes_of(const RankStep& step) { return step.files.data_bytes + step.files.metadata_bytes; }

// The path by which parts on node-local tiers name their history.
std::string name_of(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

bool has_journal(const std::string& path, std::uint32_t rank, std::uint32_t ranks) {
    if (!History::exists(path)) return false;
    const auto journal = read_rank_journal(path, rank, ranks);
    // A journal with an error is there; opening it reports the error.
    return !journal || journal->whole_bytes != 0;
}

}  // namespace

Result<> Tiers::check_local(const std::string& path, std::uint32_t rank, std::uint32_t ranks,
                            const TierSettings& settings) try {
    if (settings.local.empty()) return success();
    const bool replaces = settings.existing == Existing::replace;
    const std::string local = local_path(settings.local, rank);
    const std::string history = name_of(path);
    const auto part = LocalHistory::read(local);
    if (!part || part->journal.steps.empty()) return success();
    if (replaces && part->history == history) return success();  // its steps are replaced too
    HistoryId history_id;
    if (History::exists(path)) {
        TWR_TRY(const History existing, History::open(path));
        history_id = existing.id;
    }
    TWR_CHECK(check_part(local, *part, settings.history, rank, ranks, history, history_id));
    // Its steps would be taken for steps of the history that is about to be made.
    if (part->history == history && !has_journal(path, rank, ranks)) {
        return Error{
            ErrorCode::mismatch,
            local + ": holds steps of a history that is not in " + path +
                " any more: copy them to another folder with 'twinrun flush --to', or remove the folder"};
    }
    return success();
} catch (const std::exception& e) {
    return failure_of(path, e);
}

Result<> Tiers::check_replace(FileSystem& system, const std::string& path, std::uint32_t rank,
                              std::uint32_t ranks, const TierSettings& settings) try {
    if (settings.existing != Existing::replace) return success();
    if (!settings.local.empty()) {
        if (settings.flusher == Flusher::process) TWR_CHECK(FlushChild::check(settings.flush_program));
        TWR_CHECK(HistoryWriter::check_replace_local(system, local_path(settings.local, rank),
                                                     settings.history, rank, ranks, name_of(path)));
    }
    return HistoryWriter::check_replace(system, path, settings.history, rank, ranks);
} catch (const std::exception& e) {
    return failure_of(path, e);
}

Result<std::unique_ptr<Tiers>> Tiers::open(FileSystem& system, const std::string& path, std::uint32_t rank,
                                           std::uint32_t ranks, const TierSettings& settings,
                                           Settled settled) try {
    std::unique_ptr<Tiers> tiers(new Tiers());
    tiers->system_ = &system;
    tiers->path_ = path;
    tiers->rank_ = rank;
    tiers->ranks_ = ranks;
    tiers->settings_ = settings;
    tiers->settled_ = std::move(settled);
    TWR_TRY(tiers->shared_,
            HistoryWriter::open(system, path, settings.history, rank, ranks, settings.existing));
    if (!settings.local.empty()) {
        tiers->local_folder_ = local_path(settings.local, rank);
        TWR_TRY(tiers->local_, HistoryWriter::open_local(
                                   system, tiers->local_folder_, settings.history, rank, ranks, name_of(path),
                                   settings.existing == Existing::replace, tiers->shared_->id()));
        for (const auto& [step, entry] : tiers->local_->journal().steps)
            tiers->local_used_ += bytes_of(entry);
    }
    return tiers;
} catch (const std::exception& e) {
    return failure_of(path, e);
}

Tiers::~Tiers() {
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    // An error is ignored: files that stay only take space.
    try {
        if (remove_part_ && local_ != nullptr && local_->journal().steps.empty())
            static_cast<void>(local_->remove_part());
    } catch (const std::exception&) {
    }
}

Result<> Tiers::drop_local() {
    if (local_ == nullptr) return success();
    drain();
    const std::lock_guard guard(mutex_);
    std::vector<std::int64_t> steps;
    for (const auto& [step, entry] : local_->journal().steps) {
        if (!safe_.contains(step)) {
            return Error{ErrorCode::invalid_argument, local_folder_ + ": step " + std::to_string(step) +
                                                          " is in no other folder: copy it to the history "
                                                          "with 'twinrun flush' first; nothing was removed"};
        }
        steps.push_back(step);
    }
    TWR_CHECK(local_->drop(steps, HistoryWriter::Differences::leave));
    safe_.clear();
    local_used_ = 0;
    remove_part_ = true;
    return success();
}

Result<> Tiers::begin(const Provenance& facts) {
    if (!facts.empty()) TWR_CHECK(shared_->add_provenance(facts));
    if (ranks_ == 1) {
        for (const auto& [step, entry] : committed())
            retained_.add(step);
    }
    return success();
}

Result<> Tiers::resume() {
    if (local_ == nullptr) return success();
    std::vector<std::int64_t> superseded;
    for (const auto& [step, entry] : local_->journal().steps) {
        const auto flushed = shared_->journal().steps.find(step);
        const std::uint32_t own = attempt_of(entry.folder);
        if (flushed == shared_->journal().steps.end() && was_dropped(shared_->journal(), step, entry)) {
            superseded.push_back(step);  // dropped by a run that did not use this folder
        } else if (flushed == shared_->journal().steps.end() || attempt_of(flushed->second.folder) < own) {
            unflushed_.insert(step);
        } else if (attempt_of(flushed->second.folder) > own) {
            superseded.push_back(step);  // captured again by a run that did not use this folder
        } else if (flushed->second.files.header_checksum != entry.files.header_checksum) {
            return Error{ErrorCode::mismatch,
                         local_folder_ + ": its step " + std::to_string(step) +
                             " is not the one that is in " + path_ +
                             ": both were captured. Copy it to another folder with 'twinrun flush --to', or "
                             "remove the folder"};
        } else {
            safe_.insert(step);
        }
    }
    if (!superseded.empty()) TWR_CHECK(local_->drop(superseded, HistoryWriter::Differences::stay));
    if (settings_.flusher == Flusher::none) return success();
    if (settings_.flusher == Flusher::process) {
        // Releases the lock on the history's journal: the other process writes it.
        shared_.reset();
        TWR_TRY(child_, FlushChild::start(settings_.flush_program, local_folder_, path_));
    }
    thread_ = start_thread([this] { run(); });
    if (!unflushed_.empty()) drain();
    return success();
}

Tiers::Place Tiers::place(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    if (local_ == nullptr || (local_failed_ && child_ == nullptr)) return {shared_.get(), false, 0};
    if (settings_.local_bytes == 0 || evict(bytes, lock)) {
        local_reserved_ += bytes;
        return {local_.get(), true, bytes};
    }
    return {shared_.get(), false, 0};
}

Tiers::Place Tiers::next_place(const Place& place, std::uint64_t bytes, ErrorCode why) {
    const std::lock_guard guard(mutex_);
    if (!place.local) return {};
    local_reserved_ -= place.reserved;
    changed_.notify_all();
    if (why != ErrorCode::no_space) local_failed_ = true;
    if (why == ErrorCode::no_space && !safe_.empty()) {
        const std::int64_t oldest = *safe_.begin();
        const std::uint64_t freed = local_bytes_of(oldest);
        safe_.erase(oldest);
        if (local_->drop({&oldest, 1}, HistoryWriter::Differences::leave)) {
            local_used_ -= freed;
            local_reserved_ += bytes;
            return {local_.get(), true, bytes};
        }
    }
    return {shared_.get(), false, 0};
}

Result<> Tiers::reserve_difference(std::uint32_t ordinal) {
    constexpr std::uint32_t kAtATime = 4096;
    if (local_folder_.empty() || ordinal < reserved_) return success();
    const std::uint32_t end = std::min(ordinal + kAtATime, kMostOrdinals);
    const std::lock_guard shared(shared_mutex_);
    if (child_ != nullptr) {
        TWR_CHECK(child_->ask("reserve " + std::to_string(end)));
    } else {
        TWR_CHECK(shared_->reserve_differences(end));
    }
    reserved_ = end;
    return success();
}

bool Tiers::take_unreadable() {
    const std::lock_guard guard(mutex_);
    return std::exchange(unreadable_, false);
}

bool Tiers::has(const Place& place, std::int64_t step, const RankStep& files) const {
    if (place.writer == nullptr) return false;
    const std::lock_guard guard(place.local ? mutex_ : shared_mutex_);
    return place.writer->has(step, files);
}

std::uint64_t Tiers::local_bytes_of(std::int64_t step) const {
    const auto entry = local_->journal().steps.find(step);
    return entry == local_->journal().steps.end() ? 0 : bytes_of(entry->second);
}

// Makes room for `bytes` on the local tier: removes local copies of safe steps, the lowest first,
// and waits for steps that are being flushed or written. false: there will be no room.
bool Tiers::evict(std::uint64_t bytes, std::unique_lock<std::mutex>& lock) {
    while (local_used_ + local_reserved_ + bytes > settings_.local_bytes) {
        if (bytes > settings_.local_bytes) return false;
        if (!safe_.empty()) {
            const std::int64_t oldest = *safe_.begin();
            const std::uint64_t freed = local_bytes_of(oldest);
            safe_.erase(oldest);
            if (!local_->drop({&oldest, 1}, HistoryWriter::Differences::leave)) return false;
            local_used_ -= freed;
        } else if (!to_flush_.empty() || flushing_ || local_reserved_ != 0) {
            changed_.wait(lock);
        } else {
            return false;
        }
    }
    return true;
}

void Tiers::settle(std::int64_t step, const std::string& folder, const Error* lost, bool counts) {
    try {
        if (ranks_ == 1) {
            // Steps may reach the last tier in another order than they were captured: a large step
            // is not written to the local tier.
            const std::lock_guard guard(mutex_);
            retained_.settle(step, folder, lost == nullptr && counts);
        }
    } catch (const std::exception&) {  // no memory: retention does not see the step, which stays
    }
    settled_(step, lost);
}

void Tiers::abandon(const Place& place, const std::string& folder) {
    const std::lock_guard guard(mutex_);
    if (place.local) local_reserved_ -= place.reserved;
    if (place.writer != nullptr) {
        auto* writer = place.local ? local_.get() : shared_.get();
        static_cast<void>(writer->remove_files(folder));
    }
    changed_.notify_all();
}

void Tiers::commit(std::span<const Ready> steps) {
    {
        const std::lock_guard guard(mutex_);
        for (const Ready& step : steps)
            local_reserved_ -= step.place.local ? step.place.reserved : 0;
    }
    std::size_t settled = 0;
    try {
        if (ranks_ == 1) {
            const std::lock_guard guard(mutex_);
            for (const Ready& step : steps)
                retained_.begin(step.step, step.files.folder);
        }
        commit_all(steps, settled);
    } catch (const std::exception&) {
        const Error lost{ErrorCode::out_of_memory, "out of memory"};
        for (; settled < steps.size(); ++settled)
            settle(steps[settled].step, steps[settled].files.folder, &lost);
        changed_.notify_all();
    }
}

// settled: counts the steps for which settle() was called, or which the flusher will settle.
void Tiers::commit_all(std::span<const Ready> steps, std::size_t& settled) {
    for (std::size_t first = 0; first < steps.size();) {
        std::size_t last = first;
        std::vector<HistoryWriter::Commit> lines;
        for (; last < steps.size() && steps[last].place.local == steps[first].place.local; ++last)
            lines.push_back({steps[last].step, steps[last].files});
        const bool local = steps[first].place.local;
        Result<> done = success();
        std::vector<bool> present;  // for each of these steps, whether the journal has this attempt
        {
            std::unique_lock own(local ? mutex_ : shared_mutex_);
            HistoryWriter& writer = local ? *local_ : *shared_;
            std::vector<std::uint64_t> replaced;
            for (std::size_t i = first; i < last; ++i)
                replaced.push_back(local ? local_bytes_of(steps[i].step) : 0);
            try {
                done = writer.commit(lines);
            } catch (const std::exception&) {
                done = Error{ErrorCode::out_of_memory, "out of memory"};
            }
            if (!done && local) local_failed_ = true;
            for (std::size_t i = first; i < last; ++i) {
                present.push_back(writer.journal().steps.has(steps[i].step, steps[i].files.folder));
                if (!present.back()) {
                    if (writer.journal_known()) static_cast<void>(writer.remove_files(steps[i].files.folder));
                } else if (local) {
                    local_used_ += bytes_of(steps[i].files) - replaced[i - first];
                    safe_.erase(steps[i].step);
                    if (settings_.flusher != Flusher::none) to_flush_.push_back(steps[i].step);
                    if (!done) {
                        // Reported as lost below: run() must not report it again.
                        unflushed_.insert(steps[i].step);
                    } else {
                        unflushed_.erase(steps[i].step);  // an earlier attempt was in it
                    }
                }
            }
        }
        if (!local) {
            const std::lock_guard guard(mutex_);
            for (std::size_t i = first; i < last; ++i)
                flushed_bytes_ += present[i - first] ? bytes_of(steps[i].files) : 0;
        }
        changed_.notify_all();
        bool any_settled = false;
        for (std::size_t i = first; i < last; ++i) {
            ++settled;
            // Present without an error, and to be flushed: the flusher settles it. Not present
            // without an error: a later attempt in the same call has replaced it.
            if (done && local && settings_.flusher != Flusher::none && present[i - first]) continue;
            // After an error lines that are in the journal may not be synced: the steps count as
            // lost.
            settle(steps[i].step, steps[i].files.folder, done ? nullptr : &done.error());
            any_settled = true;
        }
        if (any_settled) retain();
        first = last;
    }
}

void Tiers::agreed(std::int64_t step) {
    const std::lock_guard guard(mutex_);
    retained_.add(step);
}

void Tiers::recaptured(std::int64_t step) {
    const std::lock_guard guard(mutex_);
    retained_.forget(step);
}

void Tiers::retain() {
    if (!settings_.keep.any()) return;
    const std::lock_guard shared(shared_mutex_);
    RetainedSteps::Leaving leaving;
    std::vector<std::int64_t>& steps = leaving.steps;
    std::vector<std::int64_t>& data = leaving.data;
    {
        const std::lock_guard guard(mutex_);
        leaving = retained_.take_leaving(settings_.keep);
        // First from the local tier: a step that was removed only from the history would be flushed
        // again later. Safe steps are removed from it with their metadata. If nobody flushes, the
        // local tier is the last one, and keeps metadata.
        std::vector<std::int64_t> here;
        std::vector<std::int64_t> data_here;
        for (const auto* list : {&steps, &data}) {
            for (const std::int64_t step : *list) {
                const std::uint64_t bytes = local_ != nullptr ? local_bytes_of(step) : 0;
                if (safe_.erase(step) == 0 && (!ends_local() || bytes == 0)) continue;
                const bool only_data = list == &data && ends_local();
                (only_data ? data_here : here).push_back(step);
                local_used_ -= only_data ? local_->journal().steps.at(step).files.data_bytes : bytes;
                unflushed_.erase(step);
            }
        }
        if (!here.empty()) static_cast<void>(local_->drop(here, HistoryWriter::Differences::leave));
        if (!data_here.empty()) static_cast<void>(local_->drop_data(data_here));
    }
    // Errors are ignored: a step that stays only takes space.
    if (child_ != nullptr) {
        for (const std::int64_t step : steps)
            static_cast<void>(child_->ask("drop " + std::to_string(step)));
        for (const std::int64_t step : data)
            static_cast<void>(child_->ask("drop_data " + std::to_string(step)));
        return;
    }
    std::erase_if(steps, [&](std::int64_t s) { return !shared_->journal().steps.contains(s); });
    std::erase_if(data, [&](std::int64_t s) { return !shared_->journal().steps.contains(s); });
    static_cast<void>(shared_->drop(steps));
    static_cast<void>(shared_->drop_data(data));
}

Result<> Tiers::flush_one(std::int64_t step, const RankStep& entry) try {
    if (entry.folder.empty()) return success();  // flushed earlier, and dropped since
    if (child_ != nullptr) {
        const std::lock_guard shared(shared_mutex_);
        TWR_CHECK(child_->ask("flush " + std::to_string(step)));
    } else {
        TWR_CHECK(flush_step(local_folder_, step, entry, *shared_, &shared_mutex_));
    }
    const std::lock_guard guard(mutex_);
    flushed_bytes_ += bytes_of(entry);
    return success();
} catch (const std::exception&) {
    return Error{ErrorCode::out_of_memory, "out of memory"};
}

void Tiers::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || !to_flush_.empty(); });
        if (to_flush_.empty()) return;
        const std::int64_t step = to_flush_.front();
        to_flush_.pop_front();
        if (std::find(to_flush_.begin(), to_flush_.end(), step) != to_flush_.end()) {
            // Captured again before it was flushed: the newer attempt is queued too and replaces
            // this one. The oldest attempt that is not settled is settled without a flush. Steps
            // that were settled before it, and waited for it, count from now on.
            lock.unlock();
            settle(step, {}, nullptr, false);
            try {
                retain();
            } catch (const std::exception&) {  // no memory: steps that retention would remove stay
            }
            lock.lock();
            changed_.notify_all();
            continue;
        }
        // an earlier try failed, and settled the step as lost
        const bool reported = unflushed_.contains(step);
        flushing_ = true;
        // The attempt that was queued. Looked up only later, it could be a newer one, which has a
        // place in the queue of its own: this one would then never be settled, and retention would
        // wait for it.
        RankStep entry;
        Result<> done = success();
        try {
            const auto found = local_->journal().steps.find(step);
            if (found != local_->journal().steps.end()) entry = found->second;
        } catch (const std::exception&) {
            done = Error{ErrorCode::out_of_memory, "out of memory"};
        }
        const std::string& folder = entry.folder;
        lock.unlock();
        if (done) done = flush_one(step, entry);
        if (!done) {
            // Captured again meanwhile: the newer attempt is queued and replaces this one, whose
            // failure does not count.
            const std::lock_guard guard(mutex_);
            const RankSteps& now = local_->journal().steps;
            if (now.contains(step) && !now.has(step, folder) && !folder.empty()) done = success();
        }
        try {
            if (!done && !reported) {
                const Error lost = Error(done.error()).at("is on the node-local tier only");
                settle(step, folder, &lost);
            } else if (done && !reported) {
                settle(step, folder, nullptr);
            } else if (done && ranks_ == 1) {
                const std::lock_guard guard(mutex_);
                retained_.insert(step);
            }
            if (done || !reported) retain();
        } catch (const std::exception&) {  // no memory: steps that retention would remove stay
        }
        lock.lock();
        flushing_ = false;
        try {
            if (done) {
                unflushed_.erase(step);
                // Not safe, if retention has removed the step meanwhile, or a newer attempt has
                // replaced it.
                if (local_->journal().steps.has(step, folder)) safe_.insert(step);
            } else {
                unflushed_.insert(step);
                const ErrorCode why = done.error().code;
                unreadable_ = unreadable_ || why == ErrorCode::damaged || why == ErrorCode::not_found;
            }
        } catch (const std::exception&) {  // no memory: the step stays on the local tier
        }
        changed_.notify_all();
    }
}

void Tiers::drain() {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) return;
    changed_.wait(lock, [&] { return to_flush_.empty() && !flushing_; });
    try {
        for (const std::int64_t step : in_flush_order(local_->journal())) {
            if (unflushed_.contains(step)) to_flush_.push_back(step);
        }
    } catch (const std::exception&) {  // no memory: the next run flushes the others
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return to_flush_.empty() && !flushing_; });
}

Journal Tiers::history() const {
    const std::lock_guard guard(shared_mutex_);
    if (shared_ != nullptr) return shared_->journal();
    auto journal = read_rank_journal(path_, rank_, ranks_);
    return journal ? std::move(journal).value() : Journal{};
}

Journal Tiers::local() const {
    const std::lock_guard guard(mutex_);
    return local_ != nullptr ? local_->journal() : Journal{};
}

RankSteps Tiers::committed() const {
    const Journal flushed = history();
    RankSteps steps = flushed.steps;
    if (!ends_local()) return steps;
    const RankSteps here = local().steps;
    for (const auto& [step, entry] : here) {
        if (!is_superseded(flushed, step, entry)) steps.put(step, entry);
    }
    return steps;
}

std::vector<std::int64_t> Tiers::local_only() const {
    std::vector<std::int64_t> steps;
    const Journal flushed = history();
    const RankSteps here = local().steps;
    for (const auto& [step, entry] : here) {
        const auto other = flushed.steps.find(step);
        if (other == flushed.steps.end() && was_dropped(flushed, step, entry)) continue;
        if (other == flushed.steps.end() || attempt_of(other->second.folder) < attempt_of(entry.folder))
            steps.push_back(step);
    }
    return steps;
}

std::vector<StoredPart> Tiers::stored(std::int64_t step) const {
    std::vector<StoredPart> parts;
    std::uint32_t newest = 0;  // a tier may still have an earlier attempt at the step
    const auto add = [&](const std::string& path, const Journal& journal) {
        const auto entry = journal.steps.find(step);
        if (entry == journal.steps.end()) return;
        const std::uint32_t attempt = attempt_of(entry->second.folder);
        if (attempt < newest) return;
        if (attempt > newest) parts.clear();
        newest = attempt;
        parts.push_back({path, {}});
        parts.back().journal.steps.put(step, entry->second);
    };
    {
        const std::lock_guard guard(mutex_);
        if (local_ != nullptr) add(local_folder_, local_->journal());
    }
    const std::lock_guard guard(shared_mutex_);
    if (shared_ != nullptr) {
        add(path_, shared_->journal());
    } else if (const auto journal = read_rank_journal(path_, rank_, ranks_); journal) {
        add(path_, *journal);
    }
    return parts;
}

std::uint64_t Tiers::metadata_bytes(std::int64_t step) const {
    const std::vector<StoredPart> parts = stored(step);
    return parts.empty() ? 0 : parts.front().journal.steps.at(step).files.metadata_bytes;
}

std::uint64_t Tiers::flushed_bytes() const {
    const std::lock_guard guard(mutex_);
    return flushed_bytes_;
}

}  // namespace twinrun
