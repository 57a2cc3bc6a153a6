#include "history/unpack.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checksum.hpp"
#include "history/data_sums.hpp"
#include "history/record_residues.hpp"
#include "history/unread_step.hpp"
#include "history/writer.hpp"
#include "metadata/metadata.hpp"
#include "metadata/verify.hpp"
#include "sketch/build.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// Writes to a new file, but no parts of 64 KiB that are zero: the file system makes holes of them.
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

// Where files are restored to, and the list of those that were made.
struct Restored {
    NewFiles& files;
    std::string target;  // the folder of `files`
    std::uint64_t memory;
    std::vector<std::string>& made;

    void add(const std::string& name) { made.push_back((fs::path(target) / name).string()); }
};

// Error if something has the name of a file to restore. folder: "" or a path in `files` that ends
// with "/".
Result<> check_names(const RecordDirectory& directory, const std::string& folder, NewFiles& files) {
    for (const RecordFile& file : directory.files)
        TWR_CHECK(files.check_free(folder + file.name, file.kind == RecordFileKind::folder));
    return success();
}

Result<> restore_files(RecordStore& store, const StepMap& map, const std::string& folder, Restored& to) {
    const RecordDirectory& directory = map.directory;
    std::vector<std::vector<std::size_t>> segments(directory.files.size());  // of each file
    for (std::size_t s = 0; s < directory.segments.size(); ++s)
        segments[directory.segments[s].file].push_back(s);
    for (std::size_t f = 0; f < directory.files.size(); ++f) {
        const RecordFile& file = directory.files[f];
        if (file.kind == RecordFileKind::folder) {
            TWR_CHECK(to.files.make_folder(folder + file.name));
            to.add(folder + file.name);
        }
        if (file.kind != RecordFileKind::file) continue;
        TWR_TRY(const auto made, to.files.create(folder + file.name, file.bytes));
        TWR_CHECK(store.each_part(map, segments[f], to.memory, true,
                                  [&](std::size_t segment, std::uint64_t at, auto part) {
                                      return write_new(*made, directory.segments[segment].offset + at, part);
                                  }));
        TWR_CHECK(made->publish());
        to.add(folder + file.name);
    }
    // Links come last, so that no file's path leads through one.
    for (const RecordFile& file : directory.files) {
        if (file.kind != RecordFileKind::link) continue;
        TWR_CHECK(to.files.make_link(folder + file.name, file.to));
        to.add(folder + file.name);
    }
    return success();
}

// Writes a rank's data of a step. Checks each field's bytes against the data sums in its metadata,
// which say more than the checksum of a segment's content.
Result<> restore_data(RecordStore& store, const StepMap& map, std::optional<std::size_t> residues,
                      MetadataFile& metadata, const std::string& where, std::uint64_t memory, NewFile& made) {
    static_assert(kRecordPart % kSliceBytes == 0);
    const std::vector<RecordSegment>& segments = map.directory.segments;
    std::unordered_map<std::string_view, std::size_t> by_name;
    std::size_t fields = 0;
    for (std::size_t s = 0; s < segments.size(); ++s) {
        if (s == residues) continue;
        by_name.emplace(segments[s].name, s);
        fields += segments[s].bytes != 0 ? 1 : 0;
    }
    std::vector<std::size_t> wanted;
    std::map<std::size_t, DataSums> sums;  // by segment
    for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
        const FieldMetadata& field = metadata.directory().fields[f];
        if (field.items() == 0) continue;
        if (field.extents.size() != 1 || field.extents[0].stride != item_bytes(field.dtype) ||
            field.place(Section::data_sums).length == 0)
            return Error{ErrorCode::not_found, where + ": field '" + field.name + "': its data was not kept"};
        const auto found = by_name.find(field.name);
        if (found == by_name.end() || segments[found->second].offset != field.extents[0].offset ||
            segments[found->second].bytes != field.data_bytes()) {
            return Error{ErrorCode::damaged,
                         where + ": damaged: field '" + field.name + "' is not where its metadata says"};
        }
        --fields;
        TWR_TRY(DataSums read, DataSums::read(metadata, f));
        sums.emplace(found->second, std::move(read));
        wanted.push_back(found->second);
    }
    if (fields != 0)
        return Error{ErrorCode::damaged, where + ": damaged: it has bytes that belong to no field"};
    return store.each_part(map, wanted, memory, false,
                           [&](std::size_t segment, std::uint64_t at, auto part) -> Result<> {
                               TWR_CHECK(sums.at(segment).check(where, at, part));
                               return write_new(made, segments[segment].offset + at, part);
                           });
}

// Copies a metadata file, with residues that the record has. Checks its header, and what the record
// says of them.
// Returns the bytes of the whole.
Result<std::uint64_t> restore_metadata(RecordStore& store, const StepMap& map,
                                       std::optional<std::size_t> residues, MetadataFile& metadata,
                                       const RankFiles& files, NewFiles& to, const std::string& as,
                                       std::uint64_t memory) {
    const std::string& name = metadata.path();
    const Range& apart = metadata.elsewhere();
    if (metadata.header_checksum() != files.header_checksum)
        return Error{ErrorCode::damaged, name + ": is not the file that the journal names"};
    if ((residues ? map.directory.segments[*residues].bytes : 0) != apart.size())
        return Error{ErrorCode::damaged, name + ": damaged: the record has the residues of another step"};
    TWR_TRY(const auto made, to.create(as, metadata.whole_bytes()));
    std::vector<std::byte> bytes;
    for (const Range& part : {Range{0, apart.begin}, Range{apart.end, metadata.whole_bytes()}}) {
        for (std::uint64_t at = part.begin; at < part.end; at += bytes.size()) {
            bytes.resize(std::min(kRecordPart, part.end - at));
            TWR_CHECK(metadata.file().read_at(metadata.place_of(at).offset, bytes));
            TWR_CHECK(made->write_at(at, bytes));
        }
    }
    if (residues) {
        TWR_CHECK(store.each_part(map, {&*residues, 1}, memory, true,
                                  [&](std::size_t, std::uint64_t at, auto part) {
                                      return made->write_at(apart.begin + at, part);
                                  }));
    }
    TWR_CHECK(made->publish());
    return metadata.whole_bytes();
}

// Writes one rank's files of a captured step, and commits them as a step of a history.
Result<> restore_captured(const std::string& record, const HistoryStep& step, std::uint32_t rank,
                          const std::shared_ptr<RecordStore>& record_store, HistoryWriter& to,
                          std::uint32_t attempt, std::uint64_t memory, std::vector<std::string>& made) {
    RecordStore& store = *record_store;
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
    if (map.directory.files.empty()) return Error{ErrorCode::damaged, from + ": is not one file of data"};
    TWR_TRY(const auto residues, residue_segment(map.directory, from));
    const std::string metadata_name = (fs::path(record) / step.folder / done.files.metadata).string();
    done.files.difference = kNoBase;
    done.files.full_bytes = 0;
    done.files.data = rank_name(rank) + ".data";
    done.files.data_bytes = map.directory.files[0].bytes;
    TWR_TRY(const auto data, files->create(done.folder + "/" + done.files.data, done.files.data_bytes));
    TWR_TRY(const auto metadata, MetadataFile::open(metadata_name));
    // Every byte is checked before any is written.
    read_residues_from(record_store, step.ranks[rank].difference, *metadata);
    TWR_CHECK(verify(*metadata));
    TWR_CHECK(restore_data(store, map, residues, *metadata, from, memory, *data));
    // All of it was checked: it is what the metadata speaks of.
    if (const std::int64_t then = metadata->directory().data_files[0].stamp.mtime_ns; then != 0)
        data->set_time(then);
    TWR_CHECK(data->publish());
    TWR_TRY(done.files.metadata_bytes, restore_metadata(store, map, residues, *metadata, done.files, *files,
                                                        done.folder + "/" + done.files.metadata, memory));
    TWR_CHECK(files->sync());
    const HistoryWriter::Commit commit{step.step, done};
    TWR_CHECK(to.commit({&commit, 1}));
    made.push_back((folder / done.files.data).string());
    made.push_back((folder / done.files.metadata).string());
    return success();
}

constexpr const char* kRestored =
    "restored, or was captured again: restore it again if the record still has it";

// Restores files of other programs. flat: into `target` itself.
Result<std::vector<std::string>> unpack_files(FileSystem& system, const std::string& record,
                                              const std::vector<const HistoryStep*>& selected,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory) {
    std::vector<std::string> made;
    if (flat && selected.size() != 1)
        return Error{ErrorCode::invalid_argument, "files of several steps need a folder for each"};
    TWR_TRY(const auto store, RecordStore::open(record, 0, threads));
    const auto folder_of = [&](const HistoryStep* step) {
        return flat ? std::string() : step_folder(step->step, 0) + "/";
    };
    // Existing files with names to restore are reported before anything is written.
    if (std::error_code ignored; fs::exists(target, ignored)) {
        TWR_TRY(const auto files, system.open_new(target));
        for (const HistoryStep* step : selected) {
            TWR_TRY(const StepMap map, store->map(step->step));
            TWR_CHECK(check_names(map.directory, folder_of(step), *files));
        }
    }
    TWR_CHECK(system.make_folders(target));
    TWR_TRY(const auto files, system.open_new(target));
    Restored to{*files, target, memory, made};
    for (const HistoryStep* step : selected) {
        TWR_TRY(const StepMap map, store->map(step->step));
        auto done = restore_files(*store, map, folder_of(step), to);
        if (!done) return unread_step_error(record, *step, std::move(done).error(), kRestored);
        TWR_CHECK(files->sync());
    }
    return made;
}

// Restores captured steps as steps of a history in `target`.
Result<std::vector<std::string>> unpack_captures(FileSystem& system, const History& history,
                                                 const std::vector<const HistoryStep*>& selected,
                                                 const std::string& target, int threads,
                                                 std::uint64_t memory) {
    const std::string& record = history.path;
    std::vector<std::string> made;
    HistorySettings settings = history.settings;
    settings.record.reset();
    // All ranks use the same folder as the first one.
    std::map<std::int64_t, std::uint32_t> attempts;
    for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
        TWR_TRY(const auto store, RecordStore::open(record, rank, threads));
        TWR_TRY(const auto writer,
                HistoryWriter::open(system, target, settings, rank, history.ranks, Existing::append));
        if (writer->made()) {
            for (const RankProvenance& facts : history.provenance) {
                if (facts.rank == rank) TWR_CHECK(writer->add_provenance(facts.facts));
            }
        }
        for (const HistoryStep* step : selected) {
            if (const auto existing = writer->journal().steps.find(step->step);
                existing != writer->journal().steps.end()) {
                // The step was restored before, or it is another run's.
                if (existing->second.files.header_checksum == step->ranks[rank].header_checksum) {
                    attempts[step->step] = attempt_of(existing->second.folder);
                    continue;
                }
                return Error{
                    ErrorCode::invalid_argument,
                    target + ": has another step " + std::to_string(step->step) + ": name another folder"};
            }
            auto done =
                restore_captured(record, *step, rank, store, *writer, attempts[step->step], memory, made);
            if (!done) return unread_step_error(record, *step, std::move(done).error(), kRestored);
            attempts[step->step] = attempt_of(writer->journal().steps.at(step->step).folder);
        }
    }
    return made;
}

}  // namespace

Result<std::vector<std::string>> unpack_steps(FileSystem& system, const std::string& record,
                                              const std::vector<std::int64_t>& steps,
                                              const std::string& target, bool flat, int threads,
                                              std::uint64_t memory) try {
    TWR_TRY(const History history, History::open(record));
    if (!history.settings.record)
        return Error{ErrorCode::invalid_argument,
                     record + ": is not a record: its files need not be restored"};
    std::vector<const HistoryStep*> selected;
    for (const std::int64_t number : steps) {
        const auto found = std::find_if(history.steps.begin(), history.steps.end(),
                                        [&](const HistoryStep& step) { return step.step == number; });
        if (found == history.steps.end())
            return Error{ErrorCode::not_found, record + ": has no step " + std::to_string(number)};
        selected.push_back(&*found);
    }
    const bool captured =
        std::any_of(history.steps.begin(), history.steps.end(),
                    [](const HistoryStep& step) { return !step.ranks.front().metadata.empty(); });
    if (captured) return unpack_captures(system, history, selected, target, threads, memory);
    return unpack_files(system, record, selected, target, flat, threads, memory);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, record + ": a step of one rank does not fit into memory"};
}

Result<> write_part(FileSystem& system, RecordStore& store, std::int64_t step, const std::string& segment,
                    std::uint64_t offset, std::uint64_t bytes, const std::string& path,
                    std::uint64_t memory) try {
    TWR_TRY(const StepMap map, store.map_of(step, segment));
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
    return Error{ErrorCode::out_of_memory,
                 path + ": not enough memory to write it: set a smaller limit of memory"};
}

}  // namespace twinrun
