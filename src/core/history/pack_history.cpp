#include "history/pack.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "history/captured_step.hpp"
#include "history/changed_steps.hpp"
#include "history/rank_record.hpp"
#include "history/record_store.hpp"
#include "history/unnamed.hpp"
#include "history/unread_step.hpp"

namespace twinrun {

namespace {

Result<> check_packable(const History& history, const std::string& target) {
    const std::string& source = history.path;
    if (!history.settings.keep_data) {
        return Error{ErrorCode::invalid_argument, source + ": has metadata only: there is nothing to pack"};
    }
    if (std::any_of(history.steps.begin(), history.steps.end(),
                    [](const HistoryStep& step) { return step.ranks.front().metadata.empty(); })) {
        return Error{
            ErrorCode::invalid_argument,
            source + ": has files of other programs: restore them with 'twinrun restore', and pack these"};
    }
    if (real_path(source) == real_path(target))
        return Error{ErrorCode::invalid_argument, target + ": name another folder for the record"};
    return success();
}

// One rank's data of a step, as the recorder takes it: one file, with a segment for each field.
// Refers to the bytes of the captured step.
struct DataImage {
    RecordDirectory directory;
    std::vector<ImageSegment> image;

    DataImage(const CapturedStep& captured, std::uint32_t rank, bool bounded) {
        directory.files.push_back({rank_name(rank) + ".data", captured.data.size()});
        for (const FieldMetadata& field : captured.metadata->directory().fields) {
            if (field.items() == 0) continue;
            RecordSegment segment;
            segment.name = field.name;
            segment.offset = field.extents[0].offset - captured.origin;
            segment.bytes = field.data_bytes();
            ImageSegment part{segment.name, captured.data.data() + segment.offset, segment.bytes,
                              std::nullopt, field.dtype};
            if (bounded) part.bound = DifferenceRule{field.settings.tolerance, true};
            directory.segments.push_back(std::move(segment));
            image.push_back(std::move(part));
        }
    }
};

}  // namespace

Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress) try {
    TWR_TRY(const History history, History::open(source));
    TWR_CHECK(check_named(source, history.steps.empty()));
    TWR_CHECK(check_packable(history, target));
    HistorySettings settings = history.settings;
    settings.record = options.settings;
    settings.shared = false;  // a record has differences of each rank
    TWR_TRY(KnownSteps known, compare_steps(history, source, target, options));
    if (!known.changes.empty() && !options.update) return changed_steps(target, known.changes);
    TWR_CHECK(settle_against(system, *settings.record, target, history.ranks, options.against, true));
    for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
        TWR_TRY(const auto record, RankRecord::open(system, target, settings, rank, history.ranks, options));
        if (record->writer().made()) {
            for (const RankProvenance& facts : history.provenance) {
                if (facts.rank == rank) TWR_CHECK(record->writer().add_provenance(facts.facts));
            }
        }
        std::shared_ptr<RecordStore> store;
        if (history.settings.record) {
            TWR_TRY(store, RecordStore::open(source, rank, options.threads));
        }
        for (const HistoryStep& step : history.steps) {
            const RankFiles& files = step.ranks[rank];
            if (files.data.empty() || (record->has(step.step) && !known.changes.contains(step.step)))
                continue;
            auto read = read_captured(source, step.folder, files, store, step.step);
            if (!read) {
                return unread_step_error(
                    source, step, std::move(read).error(),
                    "packed, or was captured again: pack again with --append, which continues with "
                    "the steps that are there");
            }
            const CapturedStep captured = std::move(read).value();
            DataImage data(captured, rank, options.settings.bounded);
            const auto attempt = known.attempts.find(step.step);
            TWR_TRY(const PackedStep packed,
                    record->add(step.step, attempt == known.attempts.end() ? 0 : attempt->second,
                                std::move(data.directory), data.image, &captured, files.blocked_seconds));
            // The other ranks use the same folder as the first one.
            known.attempts[step.step] = attempt_of(record->writer().journal().steps.at(step.step).folder);
            if (progress && !progress(packed)) return stopped(target);
        }
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, source + ": a step of one rank does not fit into memory"};
}

}  // namespace twinrun
