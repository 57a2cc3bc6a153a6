#include "history/compact.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <new>
#include <set>

#include "base/checksum.hpp"
#include "history/record_store.hpp"
#include "record/delta_writer.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;

// A set of locations, as intervals. After merge() they are disjoint and ascending.
class Intervals {
   public:
    void add(Location first, std::uint64_t count) { parts_.emplace_back(first, first + count); }
    void merge() {
        std::sort(parts_.begin(), parts_.end());
        std::vector<std::pair<Location, Location>> joined;
        for (const auto& [first, end] : parts_) {
            if (!joined.empty() && first <= joined.back().second) {
                joined.back().second = std::max(joined.back().second, end);
            } else {
                joined.emplace_back(first, end);
            }
        }
        parts_ = std::move(joined);
    }
    [[nodiscard]] const std::vector<std::pair<Location, Location>>& parts() const { return parts_; }

   private:
    std::vector<std::pair<Location, Location>> parts_;
};

PayloadSettings payload_of(const RecordSettings& settings, int threads) {
    PayloadSettings payload;
    payload.codec = settings.codec;
    payload.level = settings.level;
    payload.threads = threads;
    return payload;
}

// Gives the writer `count` payload chunks, decompressed and without XOR, from the location `first`
// on.
Result<> copy_payload(RecordChain& chain, DifferenceWriter& writer, Location first, std::uint64_t count,
                      std::uint32_t chunk, std::vector<std::byte>& buffer) {
    const std::uint64_t most = std::max<std::uint64_t>(1, kBatchBytes / chunk);
    for (std::uint64_t done = 0; done < count; done += most) {
        const std::uint64_t part = std::min(most, count - done);
        buffer.resize(part * chunk);
        TWR_CHECK(chain.read_payload(first + done, part, chunk, buffer));
        TWR_CHECK(writer.add(buffer, {}, {}));
    }
    return success();
}

// Size of all files of differences, in bytes.
std::uint64_t bytes_of(const std::string& path, const Journal& journal) {
    std::set<std::string> files;
    for (const auto& [ordinal, place] : journal.differences)
        files.insert(place.file);
    std::uint64_t bytes = 0;
    std::error_code ignored;
    for (const std::string& file : files) {
        const auto size = fs::file_size(fs::path(path) / file, ignored);
        if (!ignored) bytes += size;
    }
    return bytes;
}

// Compaction of one rank.
class RankCompaction {
   public:
    RankCompaction(HistoryWriter& writer, const RecordSettings& record, int threads)
        : writer_(writer), record_(record), threads_(threads), before_(writer.journal()) {}

    Result<> run(const std::vector<std::int64_t>& drop) {
        TWR_TRY(const auto store, RecordStore::open(writer_.path(), writer_.rank(), threads_));
        // Asks the writer's journal first: this function moves differences while it reads others.
        RecordChain chain(
            [&](std::uint32_t ordinal) -> Result<DifferencePlace> {
                const auto& own = writer_.journal().differences;
                if (const auto known = own.find(ordinal); known != own.end())
                    return known->second.in(writer_.path());
                return store->locate(ordinal);
            },
            threads_);
        const std::set<std::int64_t> dropped(drop.begin(), drop.end());
        for (const auto& [step, files] : before_.steps) {
            if (!dropped.contains(step) && files.files.difference != kNoBase)
                kept_[files.files.difference] = step;
        }
        TWR_CHECK(find_live(chain));
        for (const auto& [ordinal, map] : rewritten_)
            TWR_CHECK(rewrite(chain, ordinal, map));
        std::vector<HistoryWriter::Moved> moved;
        std::set<std::uint32_t> staying;
        if (!live_.parts().empty()) TWR_CHECK(write_leftovers(chain, moved, staying));
        TWR_CHECK(writer_.drop(drop));
        std::vector<std::uint32_t> gone;
        for (const auto& [ordinal, file] : before_.differences) {
            if (!kept_.contains(ordinal) && !staying.contains(ordinal)) gone.push_back(ordinal);
        }
        if (moved.empty() && gone.empty()) return success();
        return writer_.move_differences(moved, gone);
    }

   private:
    [[nodiscard]] bool removed(std::uint32_t ordinal) const {
        return ordinal >= record_.first_difference && !kept_.contains(ordinal);
    }
    void need(const std::vector<Run>& runs) {
        for (const Run& run : runs) {
            if (removed(ordinal_of(run.source))) live_.add(run.source, run.repeat ? 1 : run.count);
        }
    }

    // Finds the chunks of removed differences that remaining steps need (live). A step whose base
    // is removed is written again, with a complete map and without XOR (rewritten). For other
    // steps, the chunks that they were XORed with are live too.
    Result<> find_live(RecordChain& chain) {
        for (const auto& [ordinal, step] : kept_) {
            TWR_TRY(const auto file, chain.open(ordinal));
            TWR_TRY(StepMap map, chain.map(ordinal));
            need(map.runs);
            const std::uint32_t base = file->difference().base;
            if (base != kNoBase && removed(base)) {
                rewritten_.emplace(ordinal, std::move(map));
            } else {
                need(file->difference().bases);
            }
        }
        live_.merge();
        return success();
    }

    Result<> rewrite(RecordChain& chain, std::uint32_t ordinal, const StepMap& map) {
        FileSystem& system = writer_.system();
        TWR_TRY(const auto file, chain.open(ordinal));
        const RankStep& old = before_.steps.at(kept_.at(ordinal));
        const fs::path folder = fs::path(writer_.path()) / old.folder;
        RankStep now = old;
        TWR_CHECK(writer_.make_folder(old.folder));
        now.files.data = new_difference_name(folder.string(), writer_.rank());
        TWR_TRY(const auto out, DifferenceWriter::create(system, (folder / now.files.data).string(),
                                                         map.chunk_bytes, payload_of(record_, threads_)));
        TWR_CHECK(copy_payload(chain, *out, location(ordinal, 0), file->difference().payload_chunks,
                               map.chunk_bytes, buffer_));
        Difference difference;
        difference.method = RecordMethod::runs;
        difference.ordinal = ordinal;
        difference.directory = map.directory;
        difference.runs = map.runs;
        TWR_TRY(const auto written, out->finish(std::move(difference)));
        now.files.data_bytes = written.bytes;
        now.files.difference_checksum = written.header_checksum;
        TWR_CHECK(system.sync_folder(folder.string()));
        const HistoryWriter::Commit commit{kept_.at(ordinal), now};
        return writer_.commit({&commit, 1});
    }

    // Writes the live chunks to a file of their own. staying: the removed differences that they are
    // of.
    Result<> write_leftovers(RecordChain& chain, std::vector<HistoryWriter::Moved>& moved,
                             std::set<std::uint32_t>& staying) {
        FileSystem& system = writer_.system();
        const fs::path folder = fs::path(writer_.path()) / kLeftoversFolder;
        TWR_CHECK(writer_.make_folder(kLeftoversFolder));
        const std::string name = new_difference_name(folder.string(), writer_.rank());
        TWR_TRY(const auto out, DifferenceWriter::create(system, (folder / name).string(),
                                                         record_.chunk_bytes, payload_of(record_, threads_)));
        Difference difference;
        difference.method = RecordMethod::full;
        for (const auto& [first, end] : live_.parts()) {
            TWR_CHECK(copy_payload(chain, *out, first, end - first, record_.chunk_bytes, buffer_));
            difference.kept.push_back({ordinal_of(first), chunk_of(first), end - first});
            difference.ordinal = ordinal_of(first);
            staying.insert(ordinal_of(first));
        }
        TWR_TRY(const auto written, out->finish(std::move(difference)));
        TWR_CHECK(system.sync_folder(folder.string()));
        moved.push_back({{staying.begin(), staying.end()},
                         {std::string(kLeftoversFolder) + "/" + name, written.header_checksum}});
        return success();
    }

    HistoryWriter& writer_;
    const RecordSettings& record_;
    int threads_;
    const Journal before_;
    std::map<std::uint32_t, std::int64_t> kept_;  // the step of each difference that stays
    Intervals live_;
    std::map<std::uint32_t, StepMap> rewritten_;
    std::vector<std::byte> buffer_;
};

Result<> compact_rank(HistoryWriter& writer, const RecordSettings& record,
                      const std::vector<std::int64_t>& drop, int threads, CompactReport& report) {
    report.bytes_before += bytes_of(writer.path(), writer.journal());
    RankCompaction compaction(writer, record, threads);
    TWR_CHECK(compaction.run(drop));
    report.bytes_after += bytes_of(writer.path(), writer.journal());
    return success();
}

}  // namespace

Result<CompactReport> compact_record(FileSystem& system, const std::string& path,
                                     const CompactOptions& options) try {
    std::uint32_t ranks = 1;
    TWR_TRY(const HistorySettings settings, read_history_settings(path, ranks));
    if (!settings.record)
        return Error{ErrorCode::invalid_argument,
                     path + ": is not a record: its data is stored as it was captured"};
    const auto open_writer = [&](std::uint32_t rank) {
        return HistoryWriter::open(system, path, settings, rank, ranks, Existing::append);
    };
    // While rank 0's writer is open, no run can append to the record, and none can begin a record
    // against it.
    TWR_TRY(const auto first, open_writer(0));
    TWR_TRY(const History history, History::open(path));
    std::set<std::int64_t> known(history.incomplete.begin(), history.incomplete.end());
    for (const HistoryStep& step : history.steps)
        known.insert(step.step);
    std::set<std::int64_t> drop(options.drop.begin(), options.drop.end());
    for (const std::int64_t step : drop) {
        if (!known.contains(step))
            return Error{ErrorCode::not_found, path + ": has no step " + std::to_string(step)};
    }
    if (options.keep_last != 0 && history.steps.size() > options.keep_last) {
        const std::int64_t oldest = history.steps[history.steps.size() - options.keep_last].step;
        drop.insert(known.begin(), known.lower_bound(oldest));
    }
    // A record against this one may need any of its differences.
    TWR_CHECK(check_children(path, first->journal(), options.forget_missing));
    CompactReport report;
    report.dropped_steps = drop.size();
    const std::vector<std::int64_t> dropped(drop.begin(), drop.end());
    const int threads = std::max(1, options.threads);
    TWR_CHECK(compact_rank(*first, *settings.record, dropped, threads, report));
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
        TWR_TRY(const auto writer, open_writer(rank));
        TWR_CHECK(compact_rank(*writer, *settings.record, dropped, threads, report));
    }
    return report;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to compact the record"};
}

}  // namespace twinrun
