#include "history/restore.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checksum.hpp"
#include "history/gather.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"
#include "restore/device_restore.hpp"
#include "sketch/build.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

Result<std::shared_ptr<MetadataFile>> open_step(const StoredPart& part, const RankStep& entry) {
    const std::string path = (fs::path(part.path) / entry.folder / entry.files.metadata).string();
    TWR_TRY(auto metadata, MetadataFile::open(path));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(metadata->file().read_at(0, header));
    if (xxh3(header) != entry.files.header_checksum)
        return Error{ErrorCode::damaged, path + ": is not the file that the journal names"};
    return metadata;
}

// Writes dense items [first, first + items) into the application's array.
Result<> put(const CapturedField& field, std::uint64_t first, std::uint64_t items, const std::byte* from) {
    if (!field.device) return scatter(field, first, items, from, const_cast<void*>(field.data));
    const DeviceArray& array = *field.device;
    const DeviceRuntime* runtime = device_runtime();
    if (runtime == nullptr) return Error{ErrorCode::unsupported, "no library for devices"};
    const std::size_t item = item_bytes(field.dtype);
    auto* to = static_cast<std::byte*>(const_cast<void*>(array.data)) + first * item;
    TWR_CHECK(to_result(runtime->copy(array.device, to, from, items * item, array.stream)));
    return to_result(runtime->wait_stream(array.device, array.stream));
}

// Reads bytes of a field, from a data file or from a record.
using ReadField =
    std::function<Result<>(const FieldMetadata& field, std::uint64_t offset, std::span<std::byte> to)>;

// Number of the stored field that fits this array. recorded: its data is in a record, which has
// checksums of its own. Errors: not_found: no such field, or its data is not stored; mismatch;
// unsupported.
Result<std::size_t> stored_for(MetadataFile& metadata, const CapturedField& field, bool recorded) {
    const auto where = [&](const std::string& what) { return "field '" + field.name + "': " + what; };
    const auto number = metadata.find(field.name);
    if (!number) return Error{ErrorCode::not_found, where("not in this step")};
    const FieldMetadata& stored = metadata.directory().fields[*number];
    if (stored.dtype != field.dtype || stored.shape != stored_shape(field.shape, field.order) ||
        stored.order != field.order) {
        return Error{ErrorCode::mismatch, where("captured with another type, shape or order")};
    }
    if (field.device && !field.device->dense())
        return Error{ErrorCode::unsupported, where("an array on a device must be dense to be restored")};
    const bool summed = recorded || stored.place(Section::data_sums).length != 0;
    if (stored.items() != 0 && (stored.extents.size() != 1 || !summed)) {
        return Error{ErrorCode::not_found, where("its data was not kept")};
    }
    return *number;
}

Result<> restore_field(MetadataFile& metadata, const std::string& path, const ReadField& read,
                       const CapturedField& field) {
    TWR_TRY(const std::size_t number, stored_for(metadata, field, false));
    const FieldMetadata& stored = metadata.directory().fields[number];
    if (stored.items() == 0) return success();
    const FieldSlices slices(stored);
    const std::size_t item = item_bytes(stored.dtype);
    std::vector<std::uint64_t> sums(slices.slices());
    TWR_CHECK(metadata.read(number, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
    std::vector<std::byte> buffer(std::min<std::uint64_t>(kSliceBytes, stored.data_bytes()));
    for (std::uint64_t s = 0; s < slices.slices(); ++s) {
        const auto part = std::span(buffer).first(slices.items(s) * item);
        TWR_CHECK(read(stored, slices.first_item(s) * item, part));
        std::uint64_t sum = sums[s];
        if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
        if (xxh3(part) != sum) {
            return Error{ErrorCode::damaged, path + ": damaged: field '" + field.name + "', items from " +
                                                 std::to_string(slices.first_item(s)) + " on"};
        }
        TWR_CHECK(put(field, slices.first_item(s), slices.items(s), part.data()));
    }
    return success();
}

Result<> restore_from(const StoredPart& part, std::int64_t step, const RankStep& entry,
                      const std::vector<CapturedField>& fields) {
    TWR_TRY(const auto metadata, open_step(part, entry));
    if (entry.files.data.empty()) return Error{ErrorCode::not_found, "only its metadata was kept"};
    if (entry.files.difference != kNoBase) {
        TWR_TRY(const auto store, RecordStore::open(part.path, entry.files.rank));
        TWR_TRY(const StepMap map, store->map(step));
        const std::string name = (fs::path(part.path) / entry.folder / entry.files.data).string();
        const std::vector<RecordSegment>& segments = map.directory.segments;
        std::unordered_map<std::string_view, const RecordSegment*> by_name;
        for (const RecordSegment& segment : segments)
            by_name.emplace(segment.name, &segment);
        const auto find = [&](const std::string& segment_name) {
            const auto found = by_name.find(segment_name);
            return found == by_name.end() ? nullptr : found->second;
        };
        const ReadField read = [&](const FieldMetadata& field, std::uint64_t offset,
                                   std::span<std::byte> to) -> Result<> {
            const RecordSegment* segment = find(field.name);
            if (segment == nullptr)
                return Error{ErrorCode::damaged, name + ": damaged: it has no field '" + field.name + "'"};
            return store->read(map, static_cast<std::size_t>(segment - segments.data()), offset, to);
        };
        for (const CapturedField& field : fields) {
            const RecordSegment* segment = find(field.name);
            TWR_TRY(const std::size_t number, stored_for(*metadata, field, true));
            const FieldMetadata& stored = metadata->directory().fields[number];
            const bool summed = stored.place(Section::data_sums).length != 0;
            if (segment == nullptr || (!field.device && summed)) {
                TWR_CHECK(restore_field(*metadata, name, read, field));
                continue;
            }
            if (stored.data_bytes() != segment->bytes)
                return Error{ErrorCode::damaged,
                             name + ": damaged: field '" + field.name + "' has another size"};
            if (!field.device) {
                std::vector<std::byte> bytes(segment->bytes);
                TWR_CHECK(store->chain().read_segment(
                    map, static_cast<std::size_t>(segment - segments.data()), bytes));
                TWR_CHECK(put(field, 0, stored.items(), bytes.data()));
                continue;
            }
            // Copies each stored chunk to the device only once, though the field may have it
            // several times.
            TWR_CHECK(read_segment_to_device(
                store->chain(), map, static_cast<std::size_t>(segment - segments.data()),
                field.device->device, static_cast<std::byte*>(const_cast<void*>(field.device->data)),
                field.device->stream));
        }
        return success();
    }
    TWR_TRY(const auto data,
            InputFile::open((fs::path(part.path) / entry.folder / entry.files.data).string()));
    const ReadField read = [&](const FieldMetadata& field, std::uint64_t offset, std::span<std::byte> to) {
        return data->read_at(field.extents[0].offset + offset, to);
    };
    for (const CapturedField& field : fields)
        TWR_CHECK(restore_field(*metadata, data->path(), read, field));
    return success();
}

// Calls use(part, entry) for each part that has the step until one call succeeds. Otherwise returns
// the first error.
template <class Use>
Result<> first_good(const std::vector<StoredPart>& parts, std::int64_t step, Use use) {
    std::optional<Error> failure;
    for (const StoredPart& part : parts) {
        const auto entry = part.journal.steps.find(step);
        if (entry == part.journal.steps.end()) continue;
        auto used = use(part, entry->second);
        if (used) return used;
        if (!failure) failure = std::move(used).error().at(part.path + ": step " + std::to_string(step));
    }
    if (failure) return std::move(*failure);
    return Error{ErrorCode::not_found, "step " + std::to_string(step) + ": this rank has not committed it"};
}

}  // namespace

bool same_places(const std::vector<StoredPart>& a, const std::vector<StoredPart>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StoredPart& x, const StoredPart& y) {
        return x.path == y.path && x.journal.steps == y.journal.steps;
    });
}

Result<> read_stored(const std::function<std::vector<StoredPart>()>& find, std::int64_t step,
                     const std::function<Result<>(const std::vector<StoredPart>&)>& use) {
    std::vector<StoredPart> parts = find();
    for (;;) {
        auto used = use(parts);
        if (used) return used;
        std::vector<StoredPart> now = find();
        if (same_places(now, parts)) return used;
        if (now.empty()) {
            return Error{ErrorCode::not_found,
                         parts.front().path + ": step " + std::to_string(step) +
                             " was removed while it was read: the run keeps only newer steps"};
        }
        parts = std::move(now);
    }
}

Result<> restore_step(const std::vector<StoredPart>& parts, std::int64_t step,
                      const std::vector<CapturedField>& fields) try {
    if (fields.empty()) return Error{ErrorCode::invalid_argument, "no fields to restore"};
    return first_good(parts, step, [&](const StoredPart& part, const RankStep& entry) {
        return restore_from(part, step, entry, fields);
    });
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to restore a step"};
}

Result<std::shared_ptr<MetadataFile>> open_stored(const std::vector<StoredPart>& parts,
                                                  std::int64_t step) try {
    std::shared_ptr<MetadataFile> metadata;
    TWR_CHECK(first_good(parts, step, [&](const StoredPart& part, const RankStep& entry) -> Result<> {
        TWR_TRY(metadata, open_step(part, entry));
        return success();
    }));
    return metadata;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory to read a step"};
}

}  // namespace twinrun
