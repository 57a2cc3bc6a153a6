#include "comparison/run.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "comparison/words.hpp"
#include "history/gather.hpp"
#include "history/others.hpp"
#include "history/part.hpp"
#include "history/record_residues.hpp"
#include "history/record_source.hpp"
#include "sketch/changed_parts.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

// Records that stay open; each has two files.
constexpr std::size_t kMostRecords = 32;
constexpr std::size_t kMostNamedSteps = 4;

// A field without elements whose name is "<field>@unit.<value>" or "<field>@kind.<value>": what
// Python stores of a field that no metadata has a place for.
struct Label {
    std::string_view field;
    std::string_view what;
    std::string_view value;
};
std::optional<Label> label_of(const FieldMetadata& field) {
    if (field.shape != std::vector<std::uint64_t>{0}) return std::nullopt;
    const std::string_view name = field.name;
    for (std::size_t at = name.rfind('@'); at != std::string_view::npos;
         at = at == 0 ? std::string_view::npos : name.rfind('@', at - 1)) {
        for (const std::string_view what : {"unit", "kind"}) {
            const std::string_view rest = name.substr(at + 1);
            if (rest.starts_with(what) && rest.substr(what.size()).starts_with('.'))
                return Label{name.substr(0, at), what, rest.substr(what.size() + 1)};
        }
    }
    return std::nullopt;
}

// The fields of a metadata file, without labels.
Result<std::vector<RunField>> fields_of(MetadataFile& metadata) {
    const std::vector<FieldMetadata>& all = metadata.directory().fields;
    std::unordered_set<std::string_view> names;
    for (const FieldMetadata& field : all) {
        if (!names.insert(field.name).second) {
            return error_at(ErrorCode::damaged, metadata.path(),
                            "has two fields of the name " + in_quotes(field.name), "restore the history");
        }
    }
    std::unordered_map<std::string_view, std::map<std::string_view, std::string_view>> told;
    std::vector<RunField> fields;
    for (std::size_t at = 0; at < all.size(); ++at) {
        const FieldMetadata& own = all[at];
        if (const auto label = label_of(own); label && names.contains(label->field)) {
            told[label->field][label->what] = label->value;
            continue;
        }
        RunField field;
        field.name = own.name;
        field.dtype = own.dtype;
        field.order = own.order;
        field.shape = own.shape;
        field.global_shape = own.global_shape;
        field.global_offset = own.global_offset;
        field.tolerance = own.settings.tolerance;
        field.side = {nullptr, &metadata, at};
        fields.push_back(std::move(field));
    }
    for (RunField& field : fields) {
        const auto labels = told.find(field.name);
        if (labels == told.end()) continue;
        for (const auto& [what, value] : labels->second)
            (what == "unit" ? field.unit : field.kind) = std::string(value);
    }
    return fields;
}

std::string incomplete_note(const std::string& path, const std::vector<std::int64_t>& steps) {
    const bool one = steps.size() == 1;
    std::string text = path + (one ? ": step " : ": steps ");
    for (std::size_t i = 0; i < std::min(steps.size(), kMostNamedSteps); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(steps[i]);
    if (steps.size() > kMostNamedSteps) text += ", …";
    return text + (one ? " is" : " are") + " not part of the history: not every rank committed " +
           (one ? "it" : "them");
}

std::string others_note(const std::string& path, const std::vector<std::string>& names) {
    return path + ": " + names.front() +
           (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "") +
           " beside its manifest.jsonl: of another history: restore the manifest from a copy if it was "
           "exchanged; or move them to their own";
}

Result<std::unique_ptr<ElementSource>> file_source(const MetadataFile& metadata, const FieldMetadata& field,
                                                   CacheUse cache) {
    std::vector<PathExtent> extents;
    for (const Extent& extent : field.extents)
        extents.push_back({metadata.data_path(extent.file), extent.offset, extent.stride, extent.count});
    TWR_TRY(std::unique_ptr<ElementSource> source,
            FileSource::create(field.dtype, field.byte_order, field.items(), std::move(extents), cache));
    return source;
}

// The elements of an array in memory, in stored order.
Result<std::unique_ptr<ElementSource>> array_source(const CapturedField& array) {
    std::unique_ptr<ElementSource> source;
    if (array.device) {
        TWR_CHECK(check_array(*array.device));
        source = std::make_unique<DeviceSource>(*array.device);
        return source;
    }
    const std::uint64_t items = checked_product(array.shape).value_or(0);
    TWR_TRY(FieldReader created, FieldReader::create(array, nullptr));
    if (const auto view = created.view(0)) {
        source = std::make_unique<MemorySource>(array.dtype, items, view->base, view->stride, view->swap);
        return source;
    }
    auto reader = std::make_shared<const FieldReader>(std::move(created));
    source = std::make_unique<DecodedSource>(
        array.dtype, items, [reader](std::uint64_t first, std::uint64_t count, std::byte* to) -> Result<> {
            reader->copy(first, count, to);
            return success();
        });
    return source;
}

// The same array, to be read row by row.
CapturedField by_row(const CapturedField& array) {
    CapturedField rows = array;
    if (array.order == ArrayOrder::row_major) return rows;
    rows.order = ArrayOrder::row_major;
    if (rows.strides.empty()) {
        std::uint64_t next = array.stride != 0 ? array.stride : item_bytes(array.dtype);
        for (const std::uint64_t n : array.shape) {
            rows.strides.push_back(static_cast<std::int64_t>(next));
            next *= n;
        }
        rows.stride = 0;
    }
    if (rows.device) {
        DeviceArray& on_device = *rows.device;
        if (on_device.strides.empty()) {
            // Dense in the order of the reversed shape.
            on_device.strides = rows.strides;
        } else {
            std::reverse(on_device.strides.begin(), on_device.strides.end());
        }
        std::reverse(on_device.shape.begin(), on_device.shape.end());
    }
    return rows;
}

}  // namespace

// ---- fields ----

std::uint64_t RunField::items() const { return checked_product(shape).value_or(0); }

bool RunField::ordered() const {
    return std::count_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n > 1; }) > 1;
}

std::vector<std::uint64_t> RunField::user_order(std::vector<std::uint64_t> values) const {
    if (order == ArrayOrder::column_major) std::reverse(values.begin(), values.end());
    return values;
}

// ---- histories ----

Result<std::unique_ptr<HistoryRun>> HistoryRun::open(const std::string& path) {
    TWR_TRY(const HistoryPart part, open_history_or_part(path));
    std::unique_ptr<HistoryRun> run(new HistoryRun(path));
    run->ranks_ = part.history.ranks;
    Entries entries;
    std::set<std::string> folders;
    for (const HistoryStep& step : part.history.steps) {
        folders.insert(step.folder);
        for (const RankFiles& files : step.ranks)
            entries[{step.step, files.rank}] = {step.folder, files};
    }
    run->take(std::move(entries));
    if (part.history.torn) {
        run->notes_.push_back(path +
                              ": its last step was being committed when the run ended; it is not part of "
                              "the history");
    }
    if (!part.history.incomplete.empty())
        run->notes_.push_back(incomplete_note(path, part.history.incomplete));
    TWR_TRY(const std::vector<std::string> others, entries_of_others(part.history, folders));
    if (!others.empty()) run->notes_.push_back(others_note(path, others));
    return run;
}

std::unique_ptr<HistoryRun> HistoryRun::of_step(const std::string& path, std::int64_t step,
                                                const RankStep& files) {
    std::unique_ptr<HistoryRun> run(new HistoryRun(path));
    run->of_session_ = true;
    run->take({{{step, files.files.rank}, files}});
    return run;
}

void HistoryRun::take(Entries entries) {
    entries_ = std::move(entries);
    places_.clear();
    for (const auto& [place, files] : entries_)
        places_[place.first].push_back(place.second);
}

void HistoryRun::select(std::int64_t step, std::uint32_t rank) {
    Entries left;
    if (const auto found = entries_.find({step, rank}); found != entries_.end()) left.insert(*found);
    take(std::move(left));
}

Result<std::shared_ptr<MetadataFile>> HistoryRun::metadata(const RankStep& files) const {
    if (files.files.metadata.empty()) {
        return error_at(ErrorCode::unsupported, label(), "holds packed files of another program",
                        "restore them with 'twinrun restore', and compare the restored folder");
    }
    const std::string path = (fs::path(label()) / files.folder / files.files.metadata).string();
    TWR_TRY(auto metadata, MetadataFile::open(path));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(metadata->file().read_at(0, header));
    if (metadata->file().size() != files.files.metadata_bytes ||
        xxh3(header) != files.files.header_checksum) {
        return error_at(ErrorCode::damaged, path, "is not the file that the manifest names",
                        "restore the history");
    }
    return metadata;
}

Result<std::shared_ptr<RecordStore>> HistoryRun::record(std::uint32_t rank) {
    const auto found =
        std::find_if(records_.begin(), records_.end(), [&](const auto& one) { return one.first == rank; });
    if (found != records_.end()) {
        std::rotate(found, found + 1, records_.end());
        return records_.back().second;
    }
    TWR_TRY(auto store, RecordStore::open(label(), rank));
    if (records_.size() >= kMostRecords) records_.erase(records_.begin());
    records_.emplace_back(rank, store);
    return store;
}

Result<> HistoryRun::add_sources(OpenPlace& place, const RankStep& files, std::int64_t step, CacheUse cache) {
    const bool recorded = files.files.difference != kNoBase;
    for (RunField& field : place.fields) {
        const FieldMetadata& own = place.metadata->directory().fields[field.side.field];
        if (own.items() != 0 && recorded) {
            TWR_TRY(auto store, record(files.files.rank));
            TWR_TRY(auto source, record_source(std::move(store), step, own.name, own.dtype, own.items()));
            place.sources.push_back(std::move(source));
        } else if (own.items() != 0 && files.files.data.empty()) {
            continue;
        } else if (own.items() != 0 && own.extents.empty()) {
            return error_at(ErrorCode::damaged, place.metadata->path(),
                            "does not say where field " + in_quotes(own.name) + " lies in the data file",
                            "restore the history");
        } else {
            TWR_TRY(auto source, file_source(*place.metadata, own, cache));
            place.sources.push_back(std::move(source));
        }
        field.side.elements = place.sources.back().get();
    }
    return success();
}

// The data has another time than its metadata says: is it still the same data? Returns notes.
Result<std::vector<std::string>> HistoryRun::changed(OpenPlace& place, const StreamOptions& stream) const {
    MetadataFile& metadata = *place.metadata;
    for (const RunField& field : place.fields) {
        if (field.side.elements == nullptr) continue;
        TWR_TRY(const auto parts, changed_parts(metadata, field.side.field, *field.side.elements, stream));
        if (parts.empty()) continue;
        const auto& extents = metadata.directory().fields[field.side.field].extents;
        const std::string data = extents.empty() ? metadata.path() : metadata.data_path(extents[0].file);
        return metadata.is_not_of(data);
    }
    const std::string since = metadata.directory().status == 0 ? "may have been" : "was";
    return std::vector<std::string>{metadata.path() + ": its data " + since +
                                    " touched, copied or renamed since it was indexed, and the same content "
                                    "was found: read to make sure"};
}

Result<OpenPlace> HistoryRun::open(Step step, std::uint32_t rank, const StreamOptions& stream,
                                   CacheUse cache) {
    const auto found = step ? entries_.find({*step, rank}) : entries_.end();
    if (found == entries_.end()) {
        return error_at(ErrorCode::not_found, label(), place_text(step, rank) + " is not there");
    }
    const RankStep& files = found->second;
    OpenPlace place;
    TWR_TRY(place.metadata, metadata(files));
    TWR_TRY(place.fields, fields_of(*place.metadata));
    // Data has the time that its metadata tells. A record is never newer than its journal, except
    // in a copy, and has the files that its journal names, unless somebody exchanged them. Else its
    // content decides.
    bool touched = false;
    if (files.files.difference != kNoBase) {
        TWR_TRY(const auto store, record(rank));
        touched = store->changed_file().has_value();
        read_residues_from(store, files.files.difference, *place.metadata);
    } else if (!files.files.data.empty()) {
        TWR_TRY(const auto file, place.metadata->touched_data_file());
        touched = file.has_value();
    }
    TWR_CHECK(add_sources(place, files, *step, cache));
    if (touched) {
        TWR_TRY(place.notes, changed(place, stream));
    }
    place.bytes_read = place.metadata->bytes_read();
    return place;
}

Problem HistoryRun::explained(Error error, Step step) {
    if (error.code == ErrorCode::mismatch || !step || of_session_) return {std::move(error)};
    const auto part = open_history_or_part(label());
    if (!part) return {std::move(error)};
    bool changed = false;
    bool any = false;
    for (auto known = entries_.lower_bound({*step, 0});
         known != entries_.end() && known->first.first == *step; ++known) {
        const auto now = std::find_if(part->history.steps.begin(), part->history.steps.end(),
                                      [&](const HistoryStep& other) { return other.step == *step; });
        const RankFiles* files = nullptr;
        if (now != part->history.steps.end()) {
            for (const RankFiles& own : now->ranks) {
                if (own.rank == known->first.second) files = &own;
            }
        }
        any = any || files != nullptr;
        changed = changed || files == nullptr || now->folder != known->second.folder ||
                  !(*files == known->second.files);
    }
    if (!changed) return {std::move(error)};
    const std::string what = "step " + std::to_string(*step);
    if (!any) {
        return {
            error_at(ErrorCode::mismatch, label(), what + " was removed from the history while it was read",
                     "a run is writing the history"),
            true};
    }
    return {error_at(ErrorCode::mismatch, label(),
                     what + " was captured again, or its data was removed, while it was read",
                     "a run is writing the history: try again")};
}

// ---- arrays ----

ArraysRun::ArraysRun(std::vector<CapturedField> arrays, std::string label)
    : ComparedRun(std::move(label)), arrays_(std::move(arrays)) {
    places_[std::nullopt] = {0};
}

Result<std::unique_ptr<ArraysRun>> ArraysRun::create(std::vector<CapturedField> arrays, std::string label) {
    std::unordered_set<std::string_view> names;
    for (const CapturedField& array : arrays) {
        const std::string where = "array " + in_quotes(array.name);
        if (!names.insert(array.name).second) {
            return error_at(ErrorCode::invalid_argument, where, "two arrays of a run have this name",
                            "give each array its own name");
        }
        if (!array.ids.empty()) {
            return error_at(ErrorCode::unsupported, where,
                            "rows of arrays in memory are not matched by their IDs",
                            "sort the rows, and leave ids out");
        }
        if (auto source = array_source(array); !source) return std::move(source).error().at(where);
    }
    return std::unique_ptr<ArraysRun>(new ArraysRun(std::move(arrays), std::move(label)));
}

Result<OpenPlace> ArraysRun::open(Step /*step*/, std::uint32_t /*rank*/, const StreamOptions& /*stream*/,
                                  CacheUse /*cache*/) {
    OpenPlace place;
    for (const CapturedField& array : arrays_) {
        RunField field;
        field.name = array.name;
        field.dtype = array.dtype;
        field.order = array.order;
        field.shape = stored_shape(array.shape, array.order);
        field.global_shape = stored_shape(array.global_shape, array.order);
        field.global_offset = stored_shape(array.global_offset, array.order);
        if (array.own_tolerance) field.tolerance = array.tolerance;
        field.array = &array;
        TWR_TRY(auto source, array_source(array));
        place.sources.push_back(std::move(source));
        field.side.elements = place.sources.back().get();
        place.fields.push_back(std::move(field));
    }
    return place;
}

Result<> read_by_row(RunField& field, OpenPlace& place) {
    if (field.order == ArrayOrder::row_major) return success();
    TWR_TRY(auto source, array_source(by_row(*field.array)));
    place.sources.push_back(std::move(source));
    field.side.elements = place.sources.back().get();
    std::reverse(field.shape.begin(), field.shape.end());
    field.order = ArrayOrder::row_major;
    return success();
}

}  // namespace twinrun
