#include "history/restore.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checksum.hpp"
#include "history/data_sums.hpp"
#include "history/gather.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"
#include "platform/team_items.hpp"
#include "restore/device_restore.hpp"
#include "sketch/build.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr const char* kNoMemory = "not enough memory to restore a step";

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

// An array in host memory, and the checksums of what it gets.
struct HostField {
    const CapturedField* array;
    DataSums sums;

    // Bytes of the field from `offset` on, whole slices: checked, then written.
    [[nodiscard]] Result<> take(const std::string& path, std::uint64_t offset,
                                std::span<const std::byte> bytes) const {
        TWR_CHECK(sums.check(path, offset, bytes));
        const std::size_t item = item_bytes(array->dtype);
        return put(*array, offset / item, bytes.size() / item, bytes.data());
    }
};

// So many threads that each has some bytes to read.
int threads_for(const std::vector<CapturedField>& fields, int threads) {
    constexpr std::uint64_t kLeast = 2 * kSliceBytes;  // to start a thread takes as long as a part of it
    std::uint64_t bytes = 0;
    for (const CapturedField& field : fields) {
        std::uint64_t size = item_bytes(field.dtype);
        for (const std::uint64_t extent : field.shape)
            size *= extent;
        bytes += size;
    }
    return static_cast<int>(std::clamp<std::uint64_t>(bytes / kLeast, 1, std::max(1, threads)));
}

// From a data file, slice by slice.
Result<> restore_slices(const InputFile& data, const std::vector<HostField>& fields, Team& team) {
    struct Slice {
        const HostField* field;
        std::uint64_t number;
    };
    std::vector<Slice> all;
    for (const HostField& field : fields) {
        for (std::uint64_t s = 0; s < field.sums.slices().slices(); ++s)
            all.push_back({&field, s});
    }
    std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(team.size()));
    return for_each_item(team, all.size(), kNoMemory, [&](int worker, std::size_t i) -> Result<> {
        const HostField& field = *all[i].field;
        const FieldSlices& slices = field.sums.slices();
        const FieldMetadata& stored = field.sums.field();
        const std::uint64_t item = item_bytes(stored.dtype);
        const std::uint64_t offset = slices.first_item(all[i].number) * item;
        auto& buffer = buffers[static_cast<std::size_t>(worker)];
        buffer.resize(std::max<std::size_t>(buffer.size(), slices.items(all[i].number) * item));
        const auto bytes = std::span(buffer).first(slices.items(all[i].number) * item);
        TWR_CHECK(data.read_at(stored.extents[0].offset + offset, bytes));
        return field.take(data.path(), offset, bytes);
    });
}

Result<> restore_plain(const StoredPart& part, const RankStep& entry, MetadataFile& metadata,
                       const std::vector<CapturedField>& fields, int threads) {
    TWR_TRY(const auto data,
            InputFile::open((fs::path(part.path) / entry.folder / entry.files.data).string()));
    std::vector<HostField> host;
    std::vector<HostField> device;
    for (const CapturedField& field : fields) {
        TWR_TRY(const std::size_t number, stored_for(metadata, field, false));
        if (metadata.directory().fields[number].items() == 0) continue;
        TWR_TRY(DataSums sums, DataSums::read(metadata, number));
        (field.device ? device : host).push_back({&field, std::move(sums)});
    }
    Team team(threads_for(fields, threads));
    TWR_CHECK(restore_slices(*data, host, team));
    Team alone(1);  // copies to a device wait for its stream
    return restore_slices(*data, device, alone);
}

// From a record.
class RecordedStep {
   public:
    RecordedStep(RecordStore& store, const StepMap& map, std::string name, MetadataFile& metadata)
        : store_(store), map_(map), name_(std::move(name)), metadata_(metadata) {
        for (std::size_t s = 0; s < map.directory.segments.size(); ++s) {
            if (map.directory.segments[s].file == 0) by_name_.emplace(map.directory.segments[s].name, s);
        }
    }

    Result<> restore(const std::vector<CapturedField>& fields) {
        for (const CapturedField& field : fields)
            TWR_CHECK(add(field));
        std::vector<std::size_t> segments;
        for (const auto& [segment, arrays] : host_)
            segments.push_back(segment);
        const auto take = [&](std::size_t segment, std::uint64_t at, auto bytes) -> Result<> {
            for (const HostField& field : host_.at(segment))
                TWR_CHECK(field.take(name_, at, bytes));
            return success();
        };
        // The sums of each field are compared: the checksum of its content says nothing more.
        TWR_CHECK(store_.each_part(map_, segments, kRecordMemory, false, take));
        for (const auto& [field, segment] : others_)
            TWR_CHECK(restore_whole(*field, segment));
        return success();
    }

   private:
    Result<> add(const CapturedField& field) {
        TWR_TRY(const std::size_t number, stored_for(metadata_, field, true));
        const FieldMetadata& stored = metadata_.directory().fields[number];
        const auto found = by_name_.find(field.name);
        if (found == by_name_.end()) {
            if (stored.items() == 0) return success();
            return Error{ErrorCode::damaged, name_ + ": damaged: it has no field '" + field.name + "'"};
        }
        if (stored.data_bytes() != map_.directory.segments[found->second].bytes) {
            return Error{ErrorCode::damaged,
                         name_ + ": damaged: field '" + field.name + "' has another size"};
        }
        if (field.device || stored.place(Section::data_sums).length == 0) {
            others_.emplace_back(&field, found->second);
            return success();
        }
        TWR_TRY(DataSums sums, DataSums::read(metadata_, number));
        host_[found->second].push_back({&field, std::move(sums)});
        return success();
    }

    Result<> restore_whole(const CapturedField& field, std::size_t segment) {
        const std::uint64_t size = map_.directory.segments[segment].bytes;
        if (!field.device) {
            std::vector<std::byte> bytes(size);
            TWR_CHECK(store_.read_segment(map_, segment, bytes));
            return put(field, 0, size / item_bytes(field.dtype), bytes.data());
        }
        // Copies each stored chunk to the device only once, though the field may have it several
        // times.
        return read_segment_to_device(store_.chain(), map_, segment, field.device->device,
                                      static_cast<std::byte*>(const_cast<void*>(field.device->data)),
                                      field.device->stream);
    }

    RecordStore& store_;
    const StepMap& map_;
    const std::string name_;
    MetadataFile& metadata_;
    std::unordered_map<std::string_view, std::size_t> by_name_;
    std::map<std::size_t, std::vector<HostField>> host_;                // by segment
    std::vector<std::pair<const CapturedField*, std::size_t>> others_;  // on devices, or without sums
};

Result<> restore_from(const StoredPart& part, std::int64_t step, const RankStep& entry,
                      const std::vector<CapturedField>& fields, int threads) {
    TWR_TRY(const auto metadata, open_step(part, entry));
    if (entry.files.data.empty()) return Error{ErrorCode::not_found, "only its metadata was kept"};
    if (entry.files.difference == kNoBase) return restore_plain(part, entry, *metadata, fields, threads);
    TWR_TRY(const auto store, RecordStore::open(part.path, entry.files.rank, threads_for(fields, threads)));
    TWR_TRY(const StepMap map, store->map(step));
    const std::string name = (fs::path(part.path) / entry.folder / entry.files.data).string();
    return RecordedStep(*store, map, name, *metadata).restore(fields);
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
                      const std::vector<CapturedField>& fields, int threads) try {
    if (fields.empty()) return Error{ErrorCode::invalid_argument, "no fields to restore"};
    return first_good(parts, step, [&](const StoredPart& part, const RankStep& entry) {
        return restore_from(part, step, entry, fields, threads);
    });
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, kNoMemory};
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
