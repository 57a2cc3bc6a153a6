#include "history/pack.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/checksum.hpp"
#include "history/gather.hpp"
#include "history/record_store.hpp"
#include "history/unnamed.hpp"
#include "history/writer.hpp"
#include "metadata/metadata.hpp"
#include "sketch/build.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kLargestMetadata = std::uint64_t{1} << 40;
constexpr std::uint64_t kWriteBytes = std::uint64_t{8} << 20;

// A file under its final name, synced; the folder is not.
Result<> write_file(FileSystem& system, const std::string& path, std::span<const std::byte> bytes) {
    const std::string temporary = temporary_name(path);
    TWR_TRY(auto file, system.create(temporary, bytes.size()));
    for (std::uint64_t at = 0; at < bytes.size();) {
        const auto part = bytes.subspan(at, std::min<std::uint64_t>(kWriteBytes, bytes.size() - at));
        TWR_CHECK(file->write_at(at, part));
        at += part.size();
    }
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    return system.rename(temporary, path);
}

// ---- into a record ----

// A rank's files of a step, as they were captured, or as a record gives them back.
struct CapturedStep {
    std::shared_ptr<MetadataFile> metadata;
    std::vector<std::byte> metadata_bytes;
    std::vector<std::byte> data;
    bool shared = false;       // data is this rank's part of a file of several ranks
    std::uint64_t origin = 0;  // where that begins: the metadata's extents count from the file's begin
};

// What the metadata says where the data is a file of the rank's own.
Result<Directory> own_directory(const CapturedStep& step, std::uint32_t rank) {
    Directory directory = step.metadata->directory();
    if (!step.shared) return directory;
    if (directory.data_files.size() != 1)
        return Error{ErrorCode::damaged, step.metadata->path() + ": damaged: its data is not one file"};
    directory.data_files[0].path = rank_name(rank) + ".data";
    directory.data_files[0].stamp.size = step.data.size();
    for (FieldMetadata& field : directory.fields) {
        for (Extent& extent : field.extents)
            extent.offset -= step.origin;  // none begins before it: check_data()
    }
    return directory;
}

// That metadata as a file: the same digests and checksums, other extents.
Result<std::vector<std::byte>> own_metadata(FileSystem& system, const std::string& path,
                                            const CapturedStep& step, std::uint32_t rank) {
    constexpr std::uint64_t kPart = 256 * kPageBytes;
    TWR_TRY(Directory directory, own_directory(step, rank));
    TWR_TRY(const auto writer, MetadataWriter::create(system, path, std::move(directory)));
    std::vector<std::byte> bytes;
    for (std::size_t f = 0; f < step.metadata->directory().fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const std::uint64_t length = step.metadata->directory().fields[f].place(section).length;
            if (writer->directory().fields[f].place(section).length != length) {
                return Error{
                    ErrorCode::damaged,
                    step.metadata->path() + ": damaged: a section of another length than its fields say"};
            }
            for (std::uint64_t at = 0; at < length; at += bytes.size()) {
                bytes.resize(std::min(kPart, length - at));
                TWR_CHECK(step.metadata->read(f, section, at, bytes));
                TWR_CHECK(writer->write(f, section, at, bytes));
            }
        }
    }
    TWR_CHECK(writer->finish());
    return read_whole_file(path, kLargestMetadata);
}

// Metadata of data that is not, to the last bit, what was captured: of the same fields, with digests and checksums of what is
// there.
Result<std::vector<std::byte>> remake_metadata(FileSystem& system, const std::string& path,
                                               const CapturedStep& step, std::uint32_t rank,
                                               const std::vector<std::byte>& data) {
    TWR_TRY(Directory directory, own_directory(step, rank));
    for (FieldMetadata& field : directory.fields)
        field.sums = {};  // made anew
    TWR_TRY(const auto writer, MetadataWriter::create(system, path, directory));
    std::map<std::string, std::shared_ptr<const RowIds>> ids;
    for (const FieldMetadata& field : directory.fields) {
        if (field.key.empty() || field.key != field.name || field.items() == 0) continue;
        CapturedField rows;
        rows.name = field.name;
        rows.dtype = field.dtype;
        rows.shape = field.shape;
        rows.data = data.data() + field.extents[0].offset;
        TWR_TRY(ids[field.name], ordered_ids(rows, {}));
    }
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        const FieldMetadata& field = directory.fields[f];
        const auto own = ids.find(field.key);
        FieldDigests digests(field, true, false, own == ids.end() ? nullptr : own->second);
        std::vector<std::byte> residues;
        for (std::uint64_t s = 0; s < digests.slices(); ++s) {
            residues.resize(digests.residue_bytes(s));
            const std::byte* from = data.data() + (field.items() == 0 ? 0 : field.extents[0].offset) +
                                    digests.first_item(s) * item_bytes(field.dtype);
            digests.make(s, dense_view(field.dtype, from), residues.data());
            if (!residues.empty())
                TWR_CHECK(writer->write(f, Section::residues, digests.residue_offset(s), residues));
        }
        TWR_CHECK(digests.write(*writer, f));
    }
    TWR_CHECK(writer->finish());
    return read_whole_file(path, kLargestMetadata);
}

// One rank's hand on a record that is being written.
class RankRecord {
   public:
    static Result<std::unique_ptr<RankRecord>> open(FileSystem& system, const std::string& target,
                                                    HistorySettings settings, std::uint32_t rank,
                                                    std::uint32_t ranks, const PackOptions& options) {
        std::unique_ptr<RankRecord> record(new RankRecord);
        record->settings_ = *settings.record;
        if (!settings.record->against.empty()) {
            fs::path parent = settings.record->against;
            if (parent.is_relative()) parent = fs::path(target) / parent;
            TWR_TRY(record->parent_,
                    RecordStore::open(parent.lexically_normal().string(), rank, options.threads));
        }
        const Existing existing = options.append || rank != 0 ? Existing::append : Existing::refuse;
        TWR_TRY(record->writer_, HistoryWriter::open(system, target, settings, rank, ranks, existing));
        RecorderOptions recorder;
        recorder.settings = *settings.record;
        recorder.table_bytes = options.table_bytes;
        recorder.verify = options.verify;
        recorder.threads = options.threads;
        recorder.hash_bits = options.hash_bits;
        const auto locate = [self = record.get()](std::uint32_t ordinal) -> Result<std::string> {
            const auto& own = self->writer_->journal().differences;
            if (const auto known = own.find(ordinal); known != own.end())
                return (fs::path(self->writer_->path()) / known->second).string();
            if (self->parent_ != nullptr) return self->parent_->locate(ordinal);
            return Error{ErrorCode::not_found,
                         self->writer_->path() + ": no difference " + std::to_string(ordinal)};
        };
        const Journal& journal = record->writer_->journal();
        const std::uint32_t first = std::max(journal.next_difference, settings.record->first_difference);
        TWR_TRY(record->recorder_, Recorder::create(system, recorder, locate, first));
        // What is there already, of both.
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
            const std::uint32_t last = journal.steps.rbegin()->second.files.difference;
            if (last != kNoBase) TWR_CHECK(record->recorder_->rebase(last));
        }
        return record;
    }

    [[nodiscard]] bool has(std::int64_t step) const { return writer_->journal().steps.contains(step); }
    [[nodiscard]] HistoryWriter& writer() { return *writer_; }

    // captured: with its metadata, if the step has any. attempt: of the step; one that is there has a smaller one.
    Result<PackedStep> add(std::int64_t step, std::uint32_t attempt, RecordDirectory directory,
                           std::span<const ImageSegment> image, const CapturedStep* captured,
                           double blocked_seconds) {
        FileSystem& system = writer_->system();
        RankStep done;
        done.folder = writer_->folder_for(step, attempt);
        const auto before = writer_->journal().steps.find(step);
        const bool again = before != writer_->journal().steps.end();
        // A new version is told by what differs from the one that it replaces; a step behind it by the last one, as all are.
        if (again || strayed_) {
            const RankStep& base = again ? before->second : writer_->journal().steps.rbegin()->second;
            if (base.files.difference != kNoBase) TWR_CHECK(recorder_->rebase(base.files.difference));
            strayed_ = again;
        }
        const fs::path folder = fs::path(writer_->path()) / done.folder;
        TWR_CHECK(writer_->make_folder(done.folder));
        RankFiles& files = done.files;
        files.rank = writer_->rank();
        // Against another record: what differs from its same step.
        if (parent_ != nullptr && !again) {
            const Journal theirs = parent_->journal();
            const auto same = theirs.steps.find(step);
            if (same != theirs.steps.end() && same->second.files.difference < settings_.first_difference)
                TWR_CHECK(recorder_->rebase(same->second.files.difference));
        }
        // Of a step that left, others may need the difference, which is there still.
        files.data = new_difference_name(folder.string(), files.rank);
        for (const RecordFile& file : directory.files)
            files.full_bytes += file.bytes;
        TWR_TRY(const auto recorded,
                recorder_->record((folder / files.data).string(), std::move(directory), image));
        files.data_bytes = recorded.bytes;
        files.difference = recorded.ordinal;
        files.blocked_seconds = blocked_seconds;
        if (captured != nullptr) {
            files.metadata = rank_name(files.rank) + ".twm";
            const std::string name = (folder / files.metadata).string();
            std::vector<std::byte> metadata = captured->metadata_bytes;
            if (settings_.bounded) {
                TWR_TRY(const auto given_back, read_image(recorded.ordinal));
                TWR_TRY(metadata, remake_metadata(system, name, *captured, files.rank, given_back));
            } else if (captured->shared) {
                TWR_TRY(metadata, own_metadata(system, name, *captured, files.rank));
            } else {
                TWR_CHECK(write_file(system, name, metadata));
            }
            files.metadata_bytes = metadata.size();
            files.header_checksum = xxh3(std::span(metadata).first(kHeaderBytes));
        }
        TWR_CHECK(system.sync_folder(folder.string()));
        const HistoryWriter::Commit commit{step, done};
        TWR_CHECK(writer_->commit({&commit, 1}));
        return PackedStep{step, files.rank, files.full_bytes, again, recorded};
    }

   private:
    RankRecord() = default;
    // What restore gives for the first file of a difference.
    Result<std::vector<std::byte>> read_image(std::uint32_t ordinal) {
        RecordChain& chain = recorder_->chain();
        TWR_TRY(const StepMap map, chain.map(ordinal));
        std::vector<std::byte> bytes(map.directory.files[0].bytes);
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            const RecordSegment& segment = map.directory.segments[s];
            TWR_CHECK(chain.read_segment(map, s, std::span(bytes).subspan(segment.offset, segment.bytes)));
        }
        return bytes;
    }
    RecordSettings settings_;
    std::shared_ptr<RecordStore> parent_;
    std::unique_ptr<HistoryWriter> writer_;
    std::unique_ptr<Recorder> recorder_;
    bool strayed_ = false;  // the step before was a new version of an earlier one
};

Error stopped(const std::string& target) {
    return Error{ErrorCode::interrupted,
                 target + ": stopped: what is packed so far stays, and --append goes on"};
}

// Every field's bytes against their checksums, and that nothing lies between.
Result<> check_data(const CapturedStep& step, const std::string& where) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> covered;
    for (std::size_t f = 0; f < step.metadata->directory().fields.size(); ++f) {
        const FieldMetadata& field = step.metadata->directory().fields[f];
        if (field.items() == 0) continue;
        const std::size_t item = item_bytes(field.dtype);
        if (field.extents.size() != 1 || field.extents[0].stride != item ||
            field.place(Section::data_sums).length == 0)
            return Error{ErrorCode::not_found, where + ": field '" + field.name + "': its data was not kept"};
        if (field.extents[0].offset < step.origin)
            return Error{ErrorCode::damaged,
                         where + ": damaged: field '" + field.name + "' lies before its rank's part"};
        const std::uint64_t begin = field.extents[0].offset - step.origin;
        if (begin > step.data.size() || field.data_bytes() > step.data.size() - begin)
            return Error{ErrorCode::damaged, where + ": damaged: shorter than its fields"};
        covered.emplace_back(begin, begin + field.data_bytes());
        const FieldSlices slices(field);
        std::vector<std::uint64_t> sums(slices.slices());
        TWR_CHECK(step.metadata->read(f, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
        for (std::uint64_t s = 0; s < slices.slices(); ++s) {
            std::uint64_t sum = sums[s];
            if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
            if (xxh3(std::span(step.data).subspan(begin + slices.first_item(s) * item,
                                                  slices.items(s) * item)) != sum) {
                return Error{ErrorCode::damaged, where + ": damaged: field '" + field.name +
                                                     "', items from " + std::to_string(slices.first_item(s)) +
                                                     " on"};
            }
        }
    }
    std::sort(covered.begin(), covered.end());
    std::uint64_t at = 0;
    covered.emplace_back(step.data.size(), step.data.size());
    for (const auto& [begin, end] : covered) {
        for (; at < begin; ++at) {
            if (step.data[at] != std::byte{0}) {
                return Error{ErrorCode::damaged, where + ": damaged: byte " + std::to_string(at) +
                                                     " is of no field, and not zero"};
            }
        }
        at = std::max(at, end);
    }
    return success();
}

Result<CapturedStep> read_captured(const std::string& source, const std::string& folder,
                                   const RankFiles& files, RecordStore* store, std::int64_t number) {
    CapturedStep step;
    const std::string name = (fs::path(source) / folder / files.metadata).string();
    TWR_TRY(step.metadata, MetadataFile::open(name));
    TWR_TRY(step.metadata_bytes, read_whole_file(name, kLargestMetadata));
    if (step.metadata_bytes.size() < kHeaderBytes ||
        xxh3(std::span(step.metadata_bytes).first(kHeaderBytes)) != files.header_checksum) {
        return Error{ErrorCode::damaged, name + ": is not the file that the journal names"};
    }
    const std::string data = (fs::path(source) / folder / files.data).string();
    if (files.shared) {
        TWR_TRY(const auto file, InputFile::open(data));
        if (file->size() != files.file_bytes) {
            return Error{ErrorCode::damaged, data + ": damaged: has " + std::to_string(file->size()) +
                                                 " bytes, and the journal says " +
                                                 std::to_string(files.file_bytes)};
        }
        step.shared = true;
        step.origin = files.offset;
        step.data.resize(files.data_bytes);  // the journal's reader holds it to be within the file
        TWR_CHECK(file->read_at(files.offset, step.data));
    } else if (store == nullptr) {
        TWR_TRY(step.data, read_whole_file(data, std::uint64_t{1} << 62));
    } else {
        TWR_TRY(const StepMap map, store->map(number));
        if (map.directory.files.size() != 1)
            return Error{ErrorCode::damaged, data + ": is not one file of data"};
        step.data.resize(map.directory.files[0].bytes);
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            const RecordSegment& segment = map.directory.segments[s];
            TWR_CHECK(
                store->read_segment(map, s, std::span(step.data).subspan(segment.offset, segment.bytes)));
        }
    }
    TWR_CHECK(check_data(step, data));
    return step;
}

constexpr std::uint64_t kCompareBytes = 16 * kRecordPart;

// What of a step that a record has is not what it was when it was packed.
struct StepChange {
    std::vector<std::string> changed;
    std::vector<std::string> late;
    [[nodiscard]] bool any() const { return !changed.empty() || !late.empty(); }
};

// "changed: run.log, b.dat, … (7 in all); late: c.dat"
std::string words_of(const StepChange& change) {
    std::string text;
    const auto list = [&](const char* what, const std::vector<std::string>& names) {
        constexpr std::size_t kMost = 3;
        if (names.empty()) return;
        text += (text.empty() ? "" : "; ") + std::string(what);
        for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i)
            text += (i == 0 ? ": " : ", ") + names[i];
        if (names.size() > kMost) text += ", … (" + std::to_string(names.size()) + " in all)";
    };
    list("changed", change.changed);
    list("late", change.late);
    return text;
}

Error changed_steps(const std::string& target, const std::map<std::int64_t, StepChange>& changes) {
    const auto& [step, change] = *changes.begin();
    const std::string more =
        changes.size() == 1 ? "" : " (and " + std::to_string(changes.size() - 1) + " more steps)";
    return Error{ErrorCode::invalid_argument,
                 target + ": step " + std::to_string(step) + more +
                     " is not what it was when it was packed: " + words_of(change) +
                     ": pack with --update for a new version of the step, or into another record"};
}

// Whether the metadata is of the same fields with the same bytes. bounded: of the same fields.
Result<bool> same_fields(MetadataFile& source, MetadataFile& record, bool bounded) {
    const auto& ours = source.directory().fields;
    const auto& theirs = record.directory().fields;
    if (ours.size() != theirs.size()) return false;
    for (std::size_t f = 0; f < ours.size(); ++f) {
        if (ours[f].name != theirs[f].name || ours[f].dtype != theirs[f].dtype ||
            ours[f].shape != theirs[f].shape || ours[f].order != theirs[f].order)
            return false;
        const std::uint64_t bytes = ours[f].place(Section::data_sums).length;
        if (bytes != theirs[f].place(Section::data_sums).length) return false;
        if (bounded) continue;
        std::vector<std::byte> own(bytes);
        std::vector<std::byte> other(bytes);
        TWR_CHECK(source.read(f, Section::data_sums, 0, own));
        TWR_CHECK(record.read(f, Section::data_sums, 0, other));
        if (own != other) return false;
    }
    return true;
}

// Whether what a record gives back is still within the bound of what is there now.
Result<bool> within_bounds(const CapturedStep& now, RecordStore& store, std::int64_t step) {
    TWR_TRY(const StepMap map, store.map(step));
    std::unordered_map<std::string_view, std::size_t> by_name;
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s)
        by_name.emplace(map.directory.segments[s].name, s);
    bool within = true;
    for (const FieldMetadata& field : now.metadata->directory().fields) {
        if (field.items() == 0) continue;
        const auto found = by_name.find(field.name);
        if (found == by_name.end() || map.directory.segments[found->second].bytes != field.data_bytes())
            return false;
        const std::byte* data = now.data.data() + (field.extents[0].offset - now.origin);
        const std::size_t item = item_bytes(field.dtype);
        const DifferenceRule rule{field.settings.tolerance, true};
        const auto compare = [&](std::uint64_t at, std::span<const std::byte> part) {
            DifferenceStats stats;
            compare_elements(difference_kernels(), dense_view(field.dtype, data + at),
                             dense_view(field.dtype, part.data()), 0,
                             part.size() / item * scalars_per_item(field.dtype), 0, rule, &stats);
            within = within && stats.different == 0;
            return success();
        };
        TWR_CHECK(store.stream(map, found->second, 0, field.data_bytes(), kCompareBytes, compare));
    }
    return within;
}

// Steps of a history that a record has, and which changed; and of each step the attempt that ranks which lack it are to make.
struct KnownSteps {
    std::map<std::int64_t, StepChange> changes;
    std::map<std::int64_t, std::uint32_t> attempts;
};

Result<KnownSteps> compare_steps(const History& history, const std::string& source, const std::string& target,
                                 const PackOptions& options) {
    KnownSteps known;
    std::map<std::int64_t, std::string> folders;
    if (!options.append || !History::exists(target)) return known;
    std::uint32_t ranks = 0;
    // Where it cannot be read, or is of other ranks, its writer tells.
    if (const auto there = read_history_settings(target, ranks); !there || ranks != history.ranks)
        return known;
    for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
        const auto journal = read_rank_journal(target, rank, ranks);
        if (!journal) continue;
        std::shared_ptr<RecordStore> store;
        for (const HistoryStep& step : history.steps) {
            const auto had = journal->steps.find(step.step);
            if (had == journal->steps.end()) continue;
            const RankStep& there = had->second;
            const auto [first, is_first] = folders.emplace(step.step, there.folder);
            std::uint32_t& attempt = known.attempts[step.step];
            attempt = std::max(attempt, attempt_of(there.folder));
            StepChange& change = known.changes[step.step];
            if (!is_first && first->second != there.folder)
                change.changed.push_back(rank_name(rank) + " (another version than " + rank_name(0) + "'s)");
            const RankFiles& files = step.ranks[rank];
            if (files.data.empty() || files.metadata.empty() || there.files.metadata.empty() ||
                files.header_checksum == there.files.header_checksum)
                continue;
            TWR_TRY(const auto ours,
                    MetadataFile::open((fs::path(source) / step.folder / files.metadata).string()));
            TWR_TRY(const auto theirs,
                    MetadataFile::open((fs::path(target) / there.folder / there.files.metadata).string()));
            TWR_TRY(bool same, same_fields(*ours, *theirs, options.settings.bounded));
            if (same && options.settings.bounded) {
                if (store == nullptr) {
                    TWR_TRY(store, RecordStore::open(target, rank, options.threads));
                }
                std::shared_ptr<RecordStore> from;
                if (history.settings.record) {
                    TWR_TRY(from, RecordStore::open(source, rank, options.threads));
                }
                TWR_TRY(const CapturedStep now,
                        read_captured(source, step.folder, files, from.get(), step.step));
                TWR_TRY(same, within_bounds(now, *store, step.step));
            }
            if (!same) change.changed.push_back(rank_name(rank));
        }
    }
    std::erase_if(known.changes, [](const auto& entry) { return !entry.second.any(); });
    for (const auto& [step, change] : known.changes)
        ++known.attempts[step];
    return known;
}

// Whether a file has the bytes that the record has of it.
Result<bool> same_bytes(RecordStore& store, const StepMap& map, std::size_t segment,
                        const std::string& path) {
    const RecordSegment& had = map.directory.segments[segment];
    TWR_TRY(const auto file, InputFile::open(path));
    if (file->size() != had.bytes) return false;
    std::vector<std::byte> bytes(std::min(kCompareBytes, had.bytes));
    if (had.content == 0) {  // taken as it was: only its bytes tell
        bool same = true;
        const auto compare = [&](std::uint64_t at, std::span<const std::byte> part) -> Result<> {
            bytes.resize(part.size());
            TWR_CHECK(file->read_at(at, bytes));
            same = same && std::equal(part.begin(), part.end(), bytes.begin());
            return success();
        };
        TWR_CHECK(store.stream(map, segment, 0, had.bytes, kCompareBytes, compare));
        return same;
    }
    std::uint64_t content = 0;
    for (std::uint64_t at = 0; at < had.bytes; at += kCompareBytes) {
        const auto part = std::span(bytes).first(std::min(kCompareBytes, had.bytes - at));
        TWR_CHECK(file->read_at(at, part));
        content += store.chain().content_of(map, at, part);
    }
    return content == had.content;
}

// Of each file the segment that is all of it.
std::map<std::uint32_t, std::size_t> whole_segments(const RecordDirectory& directory) {
    std::map<std::uint32_t, std::size_t> found;
    for (std::size_t s = 0; s < directory.segments.size(); ++s) {
        const RecordSegment& segment = directory.segments[s];
        if (segment.bytes == directory.files[segment.file].bytes) found.emplace(segment.file, s);
    }
    return found;
}

// Folders on the way to these names.
template <class Files>
std::set<std::string> folders_above(const Files& files) {
    std::set<std::string> found;
    for (const auto& file : files) {
        for (std::size_t cut = file.name.rfind('/'); cut != std::string::npos && cut != 0;
             cut = file.name.rfind('/', cut - 1)) {
            if (!found.insert(file.name.substr(0, cut)).second) break;
        }
    }
    return found;
}

Result<StepChange> compare_files(RecordStore& store, const FilesOfStep& step) {
    StepChange change;
    TWR_TRY(const StepMap map, store.map(step.step));
    std::map<std::string_view, std::uint32_t> by_name;
    for (std::uint32_t f = 0; f < map.directory.files.size(); ++f)
        by_name.emplace(map.directory.files[f].name, f);
    const auto segments = whole_segments(map.directory);
    const auto above = folders_above(map.directory.files);
    for (const PackedFile& file : step.files) {
        const auto had = by_name.find(file.name);
        if (had == by_name.end()) {
            // A folder that lost its files is not new.
            if (file.kind != RecordFileKind::folder || !above.contains(file.name))
                change.late.push_back(file.name);
            continue;
        }
        const RecordFile& there = map.directory.files[had->second];
        bool same = there.kind == file.kind && there.to == file.to;
        if (same && file.kind == RecordFileKind::file) {
            const auto segment = segments.find(had->second);
            if (segment == segments.end())
                return Error{ErrorCode::damaged, store.path() + ": step " + std::to_string(step.step) +
                                                     ": '" + file.name + "' is not one piece: pack it anew"};
            TWR_TRY(same, same_bytes(store, map, segment->second, file.path));
        }
        if (!same) change.changed.push_back(file.name);
    }
    return change;
}

// A step's files as an image. Bytes stay where they are when it moves.
struct FilesImage {
    RecordDirectory directory;
    std::vector<ImageSegment> image;
    std::vector<std::vector<std::byte>> bytes;
    std::set<std::string> keys;

    void add(RecordFile file, std::string key, std::vector<std::byte> content) {
        while (!keys.insert(key).second)
            key += '#';
        file.bytes = content.size();
        if (file.kind == RecordFileKind::file) {
            directory.segments.push_back(
                {key, static_cast<std::uint32_t>(directory.files.size()), 0, file.bytes, 0});
            bytes.push_back(std::move(content));
            image.push_back({key, bytes.back().data(), file.bytes, std::nullopt, DType::u8});
        }
        directory.files.push_back(std::move(file));
    }
};

// Files of the record's version of a step that the new one does not have, and that do not stand in its way.
Result<> add_files_that_are_gone(FilesImage& image, const FilesOfStep& step, RecordStore& store) {
    TWR_TRY(const StepMap map, store.map(step.step));
    std::set<std::string> there;
    std::set<std::string> no_folders;
    for (const PackedFile& file : step.files) {
        there.insert(file.name);
        if (file.kind != RecordFileKind::folder) no_folders.insert(file.name);
    }
    const std::set<std::string> above = folders_above(step.files);
    const auto segments = whole_segments(map.directory);
    for (std::uint32_t f = 0; f < map.directory.files.size(); ++f) {
        const RecordFile& file = map.directory.files[f];
        const std::vector<RecordFile> alone = {file};
        const std::set<std::string> own = folders_above(alone);
        if (there.contains(file.name) || above.contains(file.name) ||
            std::any_of(own.begin(), own.end(), [&](const auto& name) { return no_folders.contains(name); }))
            continue;
        std::vector<std::byte> bytes(file.bytes);
        std::string key;
        if (file.kind == RecordFileKind::file) {
            const auto segment = segments.find(f);
            if (segment == segments.end())
                return Error{ErrorCode::damaged, store.path() + ": step " + std::to_string(step.step) +
                                                     ": '" + file.name + "' is not one piece: pack it anew"};
            key = map.directory.segments[segment->second].name;
            TWR_CHECK(store.read_segment(map, segment->second, bytes));
        }
        image.add(file, std::move(key), std::move(bytes));
    }
    return success();
}

}  // namespace

namespace {

// What a step that cannot be read means where the history is as it was; or that the run that writes it took the step away.
Error left_or(const std::string& source, const HistoryStep& step, Error failure, const char* meanwhile) {
    if (failure.code != ErrorCode::not_found && failure.code != ErrorCode::damaged) return failure;
    const auto now = History::open(source);
    if (!now) return failure;
    for (const HistoryStep& there : now->steps) {
        if (there.step == step.step && there.folder == step.folder && there.ranks == step.ranks)
            return failure;
    }
    return {ErrorCode::not_found,
            source + ": step " + std::to_string(step.step) + " left while it was " + meanwhile};
}

}  // namespace

Result<> pack_history(FileSystem& system, const std::string& source, const std::string& target,
                      const PackOptions& options, const PackProgress& progress) try {
    TWR_TRY(const History history, History::open(source));
    TWR_CHECK(check_named(source, history.steps.empty()));
    HistorySettings settings = history.settings;
    settings.record = options.settings;
    if (!settings.keep_data) {
        return Error{ErrorCode::invalid_argument, source + ": has metadata only: there is nothing to pack"};
    }
    if (std::any_of(history.steps.begin(), history.steps.end(),
                    [](const HistoryStep& step) { return step.ranks.front().metadata.empty(); })) {
        return Error{ErrorCode::invalid_argument,
                     source + ": has files of other programs: give them back, and pack these"};
    }
    settings.shared = false;  // each rank's part becomes differences of its own
    if (real_path(source) == real_path(target))
        return Error{ErrorCode::invalid_argument, target + ": name another folder for the record"};
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
            auto read = read_captured(source, step.folder, files, store.get(), step.step);
            if (!read) {
                return left_or(source, step, std::move(read).error(),
                               "packed, or was captured again: pack again with --append, which goes on with "
                               "the steps that are there");
            }
            const CapturedStep captured = std::move(read).value();
            RecordDirectory directory;
            directory.files.push_back({rank_name(rank) + ".data", captured.data.size()});
            std::vector<ImageSegment> image;
            for (const FieldMetadata& field : captured.metadata->directory().fields) {
                if (field.items() == 0) continue;
                RecordSegment segment;
                segment.name = field.name;
                segment.offset = field.extents[0].offset - captured.origin;
                segment.bytes = field.data_bytes();
                ImageSegment part{segment.name, captured.data.data() + segment.offset, segment.bytes,
                                  std::nullopt, field.dtype};
                if (options.settings.bounded) part.bound = DifferenceRule{field.settings.tolerance, true};
                directory.segments.push_back(std::move(segment));
                image.push_back(std::move(part));
            }
            const auto attempt = known.attempts.find(step.step);
            TWR_TRY(const PackedStep packed,
                    record->add(step.step, attempt == known.attempts.end() ? 0 : attempt->second,
                                std::move(directory), image, &captured, files.blocked_seconds));
            // Other ranks take the folder that the first one took.
            known.attempts[step.step] = attempt_of(record->writer().journal().steps.at(step.step).folder);
            if (progress && !progress(packed)) return stopped(target);
        }
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, source + ": a step of one rank does not fit into memory"};
}

Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress) try {
    if (options.settings.bounded) {
        return Error{ErrorCode::invalid_argument,
                     "a bound needs to know the fields: files of other programs are packed exactly"};
    }
    HistorySettings settings;
    settings.record = options.settings;
    TWR_CHECK(settle_against(system, *settings.record, target, 1, options.against, true));
    TWR_TRY(const auto record, RankRecord::open(system, target, settings, 0, 1, options));
    std::shared_ptr<RecordStore> there;
    std::map<std::int64_t, StepChange> changes;
    for (const FilesOfStep& step : steps) {
        if (!record->has(step.step)) continue;
        if (there == nullptr) {
            TWR_TRY(there, RecordStore::open(target, 0, options.threads));
        }
        TWR_TRY(StepChange change, compare_files(*there, step));
        if (change.any()) changes.emplace(step.step, std::move(change));
    }
    if (!changes.empty() && !options.update) return changed_steps(target, changes);
    for (const FilesOfStep& step : steps) {
        const bool changed = changes.contains(step.step);
        if (record->has(step.step) && !changed) continue;
        FilesImage image;
        for (const PackedFile& file : step.files) {
            std::vector<std::byte> bytes;
            if (file.kind == RecordFileKind::file) {
                TWR_TRY(bytes, read_whole_file(file.path, std::uint64_t{1} << 62));
            }
            image.add({file.name, 0, file.kind, file.to}, file.key, std::move(bytes));
        }
        std::uint32_t attempt = 0;
        if (changed) {
            attempt = attempt_of(record->writer().journal().steps.at(step.step).folder) + 1;
            TWR_CHECK(add_files_that_are_gone(image, step, *there));
        }
        TWR_TRY(const PackedStep packed,
                record->add(step.step, attempt, std::move(image.directory), image.image, nullptr, 0));
        if (progress && !progress(packed)) return stopped(target);
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, target + ": the files of a step do not fit into memory"};
}

// ---- out of it ----

namespace {

// Parts of zeros become holes.
Result<> write_new(NewFile& file, std::uint64_t offset, std::span<const std::byte> bytes) {
    constexpr std::size_t kHole = 64U << 10;
    const auto is_zero = [&](std::size_t at) {
        const auto part = bytes.subspan(at, std::min(kHole, bytes.size() - at));
        return part[0] == std::byte{0} && std::memcmp(part.data(), part.data() + 1, part.size() - 1) == 0;
    };
    for (std::size_t at = 0; at < bytes.size();) {
        std::size_t end = at;
        while (end < bytes.size() && !is_zero(end))
            end = std::min(bytes.size(), end + kHole);
        if (end != at) TWR_CHECK(file.write_at(offset + at, bytes.subspan(at, end - at)));
        at = std::min(bytes.size(), end + kHole);
    }
    return success();
}

struct GivenBack {
    NewFiles& files;
    std::string target;  // of `files`
    std::uint64_t memory;
    std::vector<std::string>& made;

    void add(const std::string& name) { made.push_back((fs::path(target) / name).string()); }
};

// folder: in `to.files`, with "/" behind it; or "".
Result<> check_names(const RecordDirectory& directory, const std::string& folder, NewFiles& files) {
    for (const RecordFile& file : directory.files)
        TWR_CHECK(files.check_free(folder + file.name, file.kind == RecordFileKind::folder));
    return success();
}

Result<> give_back_files(RecordStore& store, const StepMap& map, const std::string& folder, GivenBack& to) {
    const RecordDirectory& directory = map.directory;
    std::vector<std::size_t> segments(directory.segments.size());
    std::iota(segments.begin(), segments.end(), std::size_t{0});
    std::stable_sort(segments.begin(), segments.end(), [&](std::size_t a, std::size_t b) {
        return directory.segments[a].file < directory.segments[b].file;
    });
    auto next = segments.begin();
    for (std::size_t f = 0; f < directory.files.size(); ++f) {
        const RecordFile& file = directory.files[f];
        if (file.kind == RecordFileKind::folder) {
            TWR_CHECK(to.files.make_folder(folder + file.name));
            to.add(folder + file.name);
        }
        if (file.kind != RecordFileKind::file) continue;
        TWR_TRY(const auto made, to.files.create(folder + file.name, file.bytes));
        for (; next != segments.end() && directory.segments[*next].file == f; ++next) {
            const RecordSegment& segment = directory.segments[*next];
            TWR_CHECK(store.stream(map, *next, 0, segment.bytes, to.memory,
                                   [&](std::uint64_t at, std::span<const std::byte> part) {
                                       return write_new(*made, segment.offset + at, part);
                                   }));
        }
        TWR_CHECK(made->publish());
        to.add(folder + file.name);
    }
    // Last, so that nothing is looked for behind one of them.
    for (const RecordFile& file : directory.files) {
        if (file.kind != RecordFileKind::link) continue;
        TWR_CHECK(to.files.make_link(folder + file.name, file.to));
        to.add(folder + file.name);
    }
    return success();
}

// A rank's data of a step, each field's bytes against their checksums in the metadata too.
Result<> give_back_data(RecordStore& store, const StepMap& map, MetadataFile& metadata,
                        const std::string& where, std::uint64_t memory, NewFile& made) {
    static_assert(kRecordPart % kSliceBytes == 0);
    std::unordered_map<std::string_view, std::size_t> by_name;
    std::size_t fields = 0;
    for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
        by_name.emplace(map.directory.segments[s].name, s);
        fields += map.directory.segments[s].bytes != 0 ? 1 : 0;
    }
    for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
        const FieldMetadata& field = metadata.directory().fields[f];
        if (field.items() == 0) continue;
        const std::size_t item = item_bytes(field.dtype);
        if (field.extents.size() != 1 || field.extents[0].stride != item ||
            field.place(Section::data_sums).length == 0)
            return Error{ErrorCode::not_found, where + ": field '" + field.name + "': its data was not kept"};
        const auto found = by_name.find(field.name);
        if (found == by_name.end() ||
            map.directory.segments[found->second].offset != field.extents[0].offset ||
            map.directory.segments[found->second].bytes != field.data_bytes()) {
            return Error{ErrorCode::damaged,
                         where + ": damaged: field '" + field.name + "' is not where its metadata says"};
        }
        --fields;
        const FieldSlices slices(field);
        std::vector<std::uint64_t> sums(slices.slices());
        TWR_CHECK(metadata.read(f, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
        std::uint64_t slice = 0;
        const auto take = [&](std::uint64_t at, std::span<const std::byte> part) -> Result<> {
            for (std::uint64_t done = 0; done < part.size(); ++slice) {
                const auto bytes = part.subspan(done, slices.items(slice) * item);
                std::uint64_t sum = sums[slice];
                if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
                if (xxh3(bytes) != sum) {
                    return Error{ErrorCode::damaged, where + ": damaged: field '" + field.name +
                                                         "', items from " +
                                                         std::to_string(slices.first_item(slice)) + " on"};
                }
                done += bytes.size();
            }
            return write_new(made, field.extents[0].offset + at, part);
        };
        TWR_CHECK(store.stream(map, found->second, 0, field.data_bytes(), memory, take));
    }
    if (fields != 0) return Error{ErrorCode::damaged, where + ": damaged: it has bytes of no field"};
    return success();
}

// A metadata file as it is.
Result<> give_back_metadata(const std::string& name, const RankFiles& files, NewFiles& to,
                            const std::string& as) {
    TWR_TRY(const auto file, InputFile::open(name));
    TWR_TRY(const auto made, to.create(as, file->size()));
    std::vector<std::byte> bytes;
    for (std::uint64_t at = 0; at < file->size() || at == 0; at += kRecordPart) {
        bytes.resize(std::min(kRecordPart, file->size() - at));
        TWR_CHECK(file->read_at(at, bytes));
        if (at == 0 && (bytes.size() < kHeaderBytes ||
                        xxh3(std::span(bytes).first(kHeaderBytes)) != files.header_checksum))
            return Error{ErrorCode::damaged, name + ": is not the file that the journal names"};
        TWR_CHECK(made->write_at(at, bytes));
    }
    return made->publish();
}

// One rank's files of a captured step, as a step of a history.
Result<> give_back_step(const std::string& record, const HistoryStep& step, std::uint32_t rank,
                        RecordStore& store, HistoryWriter& to, std::uint32_t attempt, std::uint64_t memory,
                        std::vector<std::string>& made) {
    RankStep done;
    done.folder = to.folder_for(step.step, attempt);
    done.files = step.ranks[rank];
    if (done.files.difference == kNoBase) {
        return Error{ErrorCode::not_found,
                     record + ": of step " + std::to_string(step.step) + " only the metadata was kept"};
    }
    const fs::path folder = fs::path(to.path()) / done.folder;
    TWR_CHECK(to.make_folder(done.folder));
    TWR_TRY(const auto files, to.system().open_new(to.path()));
    const std::string from = (fs::path(record) / step.folder / done.files.data).string();
    TWR_TRY(const StepMap map, store.map(step.step));
    if (map.directory.files.size() != 1 || !map.directory.only_files())
        return Error{ErrorCode::damaged, from + ": is not one file of data"};
    const std::string metadata_name = (fs::path(record) / step.folder / done.files.metadata).string();
    done.files.difference = kNoBase;
    done.files.full_bytes = 0;
    done.files.data = rank_name(rank) + ".data";
    done.files.data_bytes = map.directory.files[0].bytes;
    TWR_TRY(const auto data, files->create(done.folder + "/" + done.files.data, done.files.data_bytes));
    {
        TWR_TRY(const auto metadata, MetadataFile::open(metadata_name));
        TWR_CHECK(give_back_data(store, map, *metadata, from, memory, *data));
    }
    TWR_CHECK(data->publish());
    TWR_CHECK(give_back_metadata(metadata_name, done.files, *files, done.folder + "/" + done.files.metadata));
    TWR_CHECK(files->sync());
    const HistoryWriter::Commit commit{step.step, done};
    TWR_CHECK(to.commit({&commit, 1}));
    made.push_back((folder / done.files.data).string());
    made.push_back((folder / done.files.metadata).string());
    return success();
}

constexpr const char* kGivenBack = "given back, or was captured again: restore it again if it is there";

}  // namespace

Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory) try {
    TWR_TRY(const History history, History::open(record));
    if (!history.settings.record)
        return Error{ErrorCode::invalid_argument, record + ": is no record: its files are there as they are"};
    std::vector<const HistoryStep*> wanted;
    for (const std::int64_t number : steps) {
        const auto found = std::find_if(history.steps.begin(), history.steps.end(),
                                        [&](const HistoryStep& step) { return step.step == number; });
        if (found == history.steps.end())
            return Error{ErrorCode::not_found, record + ": has no step " + std::to_string(number)};
        wanted.push_back(&*found);
    }
    std::vector<std::string> made;
    const bool captured =
        std::any_of(history.steps.begin(), history.steps.end(),
                    [](const HistoryStep& step) { return !step.ranks.front().metadata.empty(); });
    if (!captured) {
        if (flat && wanted.size() != 1)
            return Error{ErrorCode::invalid_argument, "files of several steps need a folder for each"};
        TWR_TRY(const auto store, RecordStore::open(record, 0, threads));
        const auto folder_of = [&](const HistoryStep* step) {
            return flat ? std::string() : step_folder(step->step, 0) + "/";
        };
        // All that is in the way is told before anything is written.
        if (std::error_code ignored; fs::exists(target, ignored)) {
            TWR_TRY(const auto files, system.open_new(target));
            for (const HistoryStep* step : wanted) {
                TWR_TRY(const StepMap map, store->map(step->step));
                TWR_CHECK(check_names(map.directory, folder_of(step), *files));
            }
        }
        TWR_CHECK(system.make_folders(target));
        TWR_TRY(const auto files, system.open_new(target));
        GivenBack to{*files, target, memory, made};
        for (const HistoryStep* step : wanted) {
            TWR_TRY(const StepMap map, store->map(step->step));
            auto given = give_back_files(*store, map, folder_of(step), to);
            if (!given) return left_or(record, *step, std::move(given).error(), kGivenBack);
            TWR_CHECK(files->sync());
        }
        return made;
    }
    HistorySettings settings = history.settings;
    settings.record.reset();
    std::map<std::int64_t, std::uint32_t> attempts;  // all ranks take the folder that the first one took
    for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
        TWR_TRY(const auto store, RecordStore::open(record, rank, threads));
        TWR_TRY(const auto writer,
                HistoryWriter::open(system, target, settings, rank, history.ranks, Existing::append));
        if (writer->made()) {
            for (const RankProvenance& facts : history.provenance) {
                if (facts.rank == rank) TWR_CHECK(writer->add_provenance(facts.facts));
            }
        }
        for (const HistoryStep* step : wanted) {
            if (const auto there = writer->journal().steps.find(step->step);
                there != writer->journal().steps.end()) {
                // Given back before, or another run's.
                if (there->second.files.header_checksum == step->ranks[rank].header_checksum) {
                    attempts[step->step] = attempt_of(there->second.folder);
                    continue;
                }
                return Error{
                    ErrorCode::invalid_argument,
                    target + ": has another step " + std::to_string(step->step) + ": name another folder"};
            }
            auto given =
                give_back_step(record, *step, rank, *store, *writer, attempts[step->step], memory, made);
            if (!given) return left_or(record, *step, std::move(given).error(), kGivenBack);
            attempts[step->step] = attempt_of(writer->journal().steps.at(step->step).folder);
        }
    }
    return made;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, record + ": a step of one rank does not fit into memory"};
}

Result<> write_part(FileSystem& system, RecordStore& store, std::int64_t step, const std::string& segment,
                    std::uint64_t offset, std::uint64_t bytes, const std::string& path,
                    std::uint64_t memory) try {
    TWR_TRY(const StepMap map, store.map(step));
    const RecordSegment* found = map.find(segment);
    if (found == nullptr) {
        return Error{ErrorCode::not_found,
                     store.path() + ": step " + std::to_string(step) + " has no segment '" + segment + "'"};
    }
    if (offset > found->bytes || bytes > found->bytes - offset) {
        return Error{ErrorCode::invalid_argument, store.path() + ": segment '" + segment + "' has " +
                                                      std::to_string(found->bytes) + " bytes"};
    }
    const fs::path parent = fs::path(path).parent_path();
    TWR_TRY(const auto files, system.open_new(parent.empty() ? "." : parent.string()));
    TWR_TRY(const auto made, files->create(fs::path(path).filename().string(), bytes));
    TWR_CHECK(store.stream(map, static_cast<std::size_t>(found - map.directory.segments.data()), offset,
                           bytes, memory, [&](std::uint64_t at, std::span<const std::byte> part) {
                               return write_new(*made, at - offset, part);
                           }));
    TWR_CHECK(made->publish());
    return files->sync();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to write it: give a smaller --memory"};
}

// ---- whether all can be given back ----

namespace {

// A file of differences that is not as it was written.
struct DamagedFile {
    std::string what;
    std::set<std::size_t> blocks;  // none: the whole of it cannot be used
    std::vector<std::int64_t> steps;
};

std::optional<DamagedFile> look_for_damage(const Result<std::shared_ptr<DifferenceFile>>& opened) {
    if (!opened) return DamagedFile{opened.error().message, {}, {}};
    const DifferenceFile& file = **opened;
    DamagedFile damage;
    Compressor compressor;
    std::vector<std::byte> scratch;
    std::vector<std::byte> block;
    for (std::size_t b = 0; b < file.difference().blocks.size(); ++b) {
        block.resize(file.block_chunks(b) * file.difference().chunk_bytes);
        auto read = file.read_block(b, compressor, scratch, block);
        if (read) continue;
        if (damage.blocks.empty()) damage.what = read.error().message;
        damage.blocks.insert(b);
    }
    if (damage.blocks.empty()) return std::nullopt;
    return damage;
}

// Paths of the damaged files that the chunks of these runs need, themselves or through what they were XORed with.
std::set<std::string> files_that_fail(RecordStore& store, std::vector<Run> runs,
                                      const std::map<std::string, DamagedFile>& damaged) {
    std::set<std::string> found;
    while (!runs.empty()) {
        std::vector<Run> behind;
        for (const Run& run : runs) {
            const auto path = store.locate(ordinal_of(run.source));
            if (!path) continue;
            const auto damage = damaged.find(*path);
            const auto file = store.chain().open(ordinal_of(run.source));
            if (!file) {
                if (damage != damaged.end()) found.insert(*path);
                continue;
            }
            const Difference& difference = (*file)->difference();
            for (std::uint64_t i = 0; i < (run.repeat ? 1 : run.count); ++i) {
                const auto at = (*file)->position(run.source + i);
                if (!at) continue;
                const auto block = static_cast<std::size_t>(*at / difference.block_chunks);
                if (damage != damaged.end() && damage->second.blocks.contains(block)) found.insert(*path);
                if (!difference.blocks[block].xored) continue;
                const auto& bases = difference.bases;
                auto base =
                    std::upper_bound(bases.begin(), bases.end(), *at,
                                     [](std::uint64_t chunk, const Run& r) { return chunk < r.begin; });
                if (base == bases.begin()) continue;
                --base;
                if (*at - base->begin >= base->count) continue;
                const Location source = base->repeat ? base->source : base->source + (*at - base->begin);
                if (!behind.empty() && behind.back().source + behind.back().count == source) {
                    ++behind.back().count;
                } else {
                    behind.push_back({0, 1, source, false});
                }
            }
        }
        runs = std::move(behind);
    }
    return found;
}

}  // namespace

Result<std::vector<RecordProblem>> check_record(const std::string& path, std::uint32_t rank, int threads,
                                                std::uint64_t memory) try {
    TWR_TRY(const auto store, RecordStore::open(path, rank, threads));
    std::map<std::string, DamagedFile> damaged;
    std::set<std::string> seen;
    for (const std::uint32_t ordinal : store->ordinals()) {
        TWR_TRY(const std::string file, store->locate(ordinal));
        if (!seen.insert(file).second) continue;  // leftovers of several
        if (auto damage = look_for_damage(store->chain().open(ordinal))) damaged[file] = std::move(*damage);
    }
    std::vector<RecordProblem> problems;
    const Journal journal = store->journal();
    for (const auto& [step, files] : journal.steps) {
        if (files.files.difference == kNoBase) continue;
        std::set<std::string> why;
        std::optional<Error> failure;
        if (auto map = store->map(step); !map) {
            failure = std::move(map).error();
            // The first on its way that cannot be opened.
            for (std::uint32_t at = files.files.difference; at != kNoBase && why.empty();) {
                const auto file = store->chain().open(at);
                if (const auto place = store->locate(at); !file && place && damaged.contains(*place))
                    why.insert(*place);
                at = file ? (*file)->difference().base : kNoBase;
            }
        } else {
            // Every byte, through all that it needs.
            for (std::size_t s = 0; s < map->directory.segments.size() && !failure; ++s) {
                auto read = store->stream(*map, s, 0, map->directory.segments[s].bytes, memory,
                                          [](auto, auto) { return success(); });
                if (!read) failure = std::move(read).error();
            }
            if (failure) why = files_that_fail(*store, map->runs, damaged);
        }
        for (const std::string& file : why)
            damaged.at(file).steps.push_back(step);
        if (failure && why.empty()) problems.push_back({{step}, failure->message});
    }
    for (auto& [file, damage] : damaged)
        problems.push_back({std::move(damage.steps), std::move(damage.what)});
    return problems;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to check the record"};
}

}  // namespace twinrun
