#include "history/pack.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "history/changed_steps.hpp"
#include "history/rank_record.hpp"
#include "history/record_store.hpp"

namespace twinrun {

namespace {

// Whether the file at `path` has the same bytes as the record's segment.
Result<bool> same_bytes(RecordStore& store, const StepMap& map, std::size_t segment,
                        const std::string& path) {
    const RecordSegment& packed = map.directory.segments[segment];
    TWR_TRY(const auto file, InputFile::open(path));
    if (file->size() != packed.bytes) return false;
    std::vector<std::byte> bytes(std::min(kCompareBytes, packed.bytes));
    if (packed.content == 0) {  // the record has no checksum: compare the bytes
        bool same = true;
        const auto compare = [&](std::uint64_t at, std::span<const std::byte> part) -> Result<> {
            bytes.resize(part.size());
            TWR_CHECK(file->read_at(at, bytes));
            same = same && std::equal(part.begin(), part.end(), bytes.begin());
            return success();
        };
        TWR_CHECK(store.stream(map, segment, 0, packed.bytes, kCompareBytes, compare));
        return same;
    }
    std::uint64_t content = 0;
    for (std::uint64_t at = 0; at < packed.bytes; at += kCompareBytes) {
        const auto part = std::span(bytes).first(std::min(kCompareBytes, packed.bytes - at));
        TWR_CHECK(file->read_at(at, part));
        content += store.chain().content_of(map, at, part);
    }
    return content == packed.content;
}

// For each file that is one segment, by its number, this segment.
std::map<std::uint32_t, std::size_t> whole_segments(const RecordDirectory& directory) {
    std::map<std::uint32_t, std::size_t> found;
    for (std::size_t s = 0; s < directory.segments.size(); ++s) {
        const RecordSegment& segment = directory.segments[s];
        if (segment.bytes == directory.files[segment.file].bytes) found.emplace(segment.file, s);
    }
    return found;
}

// All folders on the way to files of these names.
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
        const auto found = by_name.find(file.name);
        if (found == by_name.end()) {
            // An empty folder that had files when it was packed is not late.
            if (file.kind != RecordFileKind::folder || !above.contains(file.name))
                change.late.push_back(file.name);
            continue;
        }
        const RecordFile& packed = map.directory.files[found->second];
        bool same = packed.kind == file.kind && packed.to == file.to;
        if (same && file.kind == RecordFileKind::file) {
            const auto segment = segments.find(found->second);
            if (segment == segments.end())
                return Error{ErrorCode::damaged, store.path() + ": step " + std::to_string(step.step) +
                                                     ": '" + file.name + "' is not one piece: pack it anew"};
            TWR_TRY(same, same_bytes(store, map, segment->second, file.path));
        }
        if (!same) change.changed.push_back(file.name);
    }
    return change;
}

// A step's files in memory, as the recorder takes them. Moving this object does not move the bytes.
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

// Adds the files that the record has of a step and that do not exist any more, unless a new name
// excludes them: the same one, that of a folder above them, or one below them.
Result<> add_missing_files(FilesImage& image, const FilesOfStep& step, RecordStore& store) {
    TWR_TRY(const StepMap map, store.map(step.step));
    std::set<std::string> present;
    std::set<std::string> no_folders;
    for (const PackedFile& file : step.files) {
        present.insert(file.name);
        if (file.kind != RecordFileKind::folder) no_folders.insert(file.name);
    }
    const std::set<std::string> above = folders_above(step.files);
    const auto segments = whole_segments(map.directory);
    for (std::uint32_t f = 0; f < map.directory.files.size(); ++f) {
        const RecordFile& file = map.directory.files[f];
        const std::vector<RecordFile> alone = {file};
        const std::set<std::string> own = folders_above(alone);
        if (present.contains(file.name) || above.contains(file.name) ||
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

Result<> pack_files(FileSystem& system, const std::vector<FilesOfStep>& steps, const std::string& target,
                    const PackOptions& options, const PackProgress& progress) try {
    if (options.settings.bounded) {
        return Error{ErrorCode::invalid_argument,
                     "a bound needs fields with types: files of other programs can only be packed exactly"};
    }
    HistorySettings settings;
    settings.record = options.settings;
    TWR_CHECK(settle_against(system, *settings.record, target, 1, options.against, true));
    TWR_TRY(const auto record, RankRecord::open(system, target, settings, 0, 1, options));
    std::shared_ptr<RecordStore> existing;
    std::map<std::int64_t, StepChange> changes;
    for (const FilesOfStep& step : steps) {
        if (!record->has(step.step)) continue;
        if (existing == nullptr) {
            TWR_TRY(existing, RecordStore::open(target, 0, options.threads));
        }
        TWR_TRY(StepChange change, compare_files(*existing, step));
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
            TWR_CHECK(add_missing_files(image, step, *existing));
        }
        TWR_TRY(const PackedStep packed,
                record->add(step.step, attempt, std::move(image.directory), image.image, nullptr, 0));
        if (progress && !progress(packed)) return stopped(target);
    }
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, target + ": the files of a step do not fit into memory"};
}

}  // namespace twinrun
