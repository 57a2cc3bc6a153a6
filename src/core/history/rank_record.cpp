#include "history/rank_record.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/checksum.hpp"
#include "history/packed_metadata.hpp"
#include "history/record_residues.hpp"
#include "restore/chain.hpp"

namespace twinrun {

namespace fs = std::filesystem;

Result<std::unique_ptr<RankRecord>> RankRecord::open(FileSystem& system, const std::string& target,
                                                     HistorySettings settings, std::uint32_t rank,
                                                     std::uint32_t ranks, const PackOptions& options) {
    std::unique_ptr<RankRecord> record(new RankRecord);
    record->settings_ = *settings.record;
    if (!settings.record->against.empty()) {
        TWR_TRY(record->parent_, RecordStore::open_parent(target, *settings.record, rank, options.threads));
    }
    const Existing existing = options.append || rank != 0 ? Existing::append : Existing::refuse;
    TWR_TRY(record->writer_, HistoryWriter::open(system, target, settings, rank, ranks, existing));
    RecorderOptions recorder;
    recorder.settings = *settings.record;
    recorder.table_bytes = options.table_bytes;
    recorder.verify = options.verify;
    recorder.threads = options.threads;
    recorder.hash_bits = options.hash_bits;
    const auto locate = [self = record.get()](std::uint32_t ordinal) -> Result<DifferencePlace> {
        const auto& own = self->writer_->journal().differences;
        if (const auto known = own.find(ordinal); known != own.end())
            return known->second.in(self->writer_->path());
        if (self->parent_ != nullptr) return self->parent_->locate(ordinal);
        return Error{ErrorCode::not_found,
                     self->writer_->path() + ": no difference " + std::to_string(ordinal)};
    };
    const Journal& journal = record->writer_->journal();
    const std::uint32_t first = std::max(journal.next_difference, settings.record->first_difference);
    TWR_TRY(record->recorder_, Recorder::create(recorder, locate, first));
    // Existing differences, of this record and of the one that it is against.
    std::vector<std::uint32_t> known;
    if (record->parent_ != nullptr) {
        for (const std::uint32_t ordinal : record->parent_->ordinals()) {
            if (ordinal < settings.record->first_difference) known.push_back(ordinal);
        }
    }
    for (const auto& [ordinal, file] : journal.differences)
        known.push_back(ordinal);
    TWR_CHECK(record->recorder_->learn(known));
    if (record->parent_ == nullptr && !journal.steps.empty()) {
        const std::uint32_t last = journal.steps.last().second.files.difference;
        if (last != kNoBase) TWR_CHECK(record->recorder_->rebase(last));
    }
    return record;
}

Result<> RankRecord::choose_base(std::int64_t step) {
    const auto before = writer_->journal().steps.find(step);
    const bool new_version = before != writer_->journal().steps.end();
    // The base of a new version is the version that it replaces. The base of other steps is the
    // last step; the recorder has it already, unless it packed a new version before.
    if (new_version || base_is_old_) {
        const RankStep base = new_version ? before->second : writer_->journal().steps.last().second;
        if (base.files.difference != kNoBase) TWR_CHECK(recorder_->rebase(base.files.difference));
        base_is_old_ = new_version;
    }
    // In a record against another one, the base is the same step there.
    if (parent_ != nullptr && !new_version) {
        const Journal parents = parent_->journal();
        const auto same = parents.steps.find(step);
        if (same != parents.steps.end() && same->second.files.difference < settings_.first_difference)
            TWR_CHECK(recorder_->rebase(same->second.files.difference));
    }
    return success();
}

Result<PackedStep> RankRecord::add(std::int64_t step, std::uint32_t attempt, RecordDirectory directory,
                                   std::span<const ImageSegment> image, const CapturedStep* captured,
                                   double blocked_seconds) {
    RankStep done;
    done.folder = writer_->folder_for(step, attempt);
    const bool new_version = has(step);
    TWR_CHECK(choose_base(step));
    const fs::path folder = fs::path(writer_->path()) / done.folder;
    TWR_CHECK(writer_->make_folder(done.folder));
    RankFiles& files = done.files;
    files.rank = writer_->rank();
    // The folder may still have the difference of a dropped step, which other steps need.
    files.data = new_difference_name(folder.string(), files.rank);
    for (const RecordFile& file : directory.files)
        files.full_bytes += file.bytes;
    FileSystem& system = writer_->system();
    std::vector<ImageSegment> segments(image.begin(), image.end());
    PackedMetadata metadata;
    if (captured != nullptr && !settings_.bounded) {
        TWR_TRY(metadata,
                pack_metadata(system, name_metadata(folder.string(), files), *captured, files.rank));
        add_residues(directory, segments, files.rank,
                     {metadata.residues.bytes.data(), metadata.residues.size});
    }
    TWR_TRY(const auto recorded,
            recorder_->record(system, (folder / files.data).string(), std::move(directory), segments));
    if (captured != nullptr && settings_.bounded) {
        TWR_TRY(const auto restored, read_image(recorded.ordinal));
        TWR_TRY(metadata, remake_metadata(system, name_metadata(folder.string(), files), *captured,
                                          files.rank, restored));
    }
    files.metadata_bytes = metadata.bytes;
    files.header_checksum = metadata.header_checksum;
    files.data_bytes = recorded.bytes;
    files.difference = recorded.ordinal;
    files.difference_checksum = recorded.header_checksum;
    files.blocked_seconds = blocked_seconds;
    TWR_CHECK(writer_->system().sync_folder(folder.string()));
    const HistoryWriter::Commit commit{step, done};
    TWR_CHECK(writer_->commit({&commit, 1}));
    return PackedStep{step, files.rank, files.full_bytes + metadata.residues.size, new_version, recorded};
}

std::string RankRecord::name_metadata(const std::string& folder, RankFiles& files) {
    files.metadata = rank_name(files.rank) + ".twm";
    return (fs::path(folder) / files.metadata).string();
}

// The bytes that a restore gives for the first file of a difference.
Result<std::vector<std::byte>> RankRecord::read_image(std::uint32_t ordinal) {
    RecordChain& chain = recorder_->chain();
    TWR_TRY(const StepMap map, chain.map(ordinal));
    std::vector<std::byte> bytes(map.directory.files[0].bytes);
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
        const RecordSegment& segment = map.directory.segments[s];
        TWR_CHECK(chain.read_segment(map, s, std::span(bytes).subspan(segment.offset, segment.bytes)));
    }
    return bytes;
}

Error stopped(const std::string& target) {
    return Error{ErrorCode::interrupted,
                 target + ": stopped: steps packed so far stay, and --append continues"};
}

}  // namespace twinrun
