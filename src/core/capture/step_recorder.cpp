#include "capture/step_recorder.hpp"

#include <algorithm>
#include <filesystem>
#include <new>

namespace twinrun {

namespace fs = std::filesystem;

StepRecorder::StepRecorder(RecorderOptions options, Places places)
    : options_(std::move(options)), places_(std::move(places)) {}
StepRecorder::~StepRecorder() = default;

Result<std::unique_ptr<StepRecorder>> StepRecorder::create(const RecorderOptions& options, Places places) {
    TWR_CHECK(options.settings.check());
    return std::unique_ptr<StepRecorder>(new StepRecorder(options, std::move(places)));
}

// Where a difference is. One of this session is first on the tier where it was recorded, and later
// in the history.
Result<DifferencePlace> StepRecorder::locate(std::uint32_t ordinal) const {
    std::error_code ignored;
    if (const auto known = own_.find(ordinal); known != own_.end()) {
        for (const std::string& tier : {places_.local, places_.history}) {
            DifferencePlace place = known->second.in(tier);
            if (!tier.empty() && fs::exists(place.file, ignored)) return place;
        }
    }
    for (const auto& store : {local_, stored_}) {
        if (store == nullptr) continue;
        auto place = store->locate(ordinal);
        if (place && fs::exists(place->file, ignored)) return place;
    }
    if (parent_ != nullptr && ordinal < options_.settings.first_difference) return parent_->locate(ordinal);
    return Error{ErrorCode::not_found, places_.history + ": no difference " + std::to_string(ordinal)};
}

Result<> StepRecorder::begin(int device) {
    if (recorder_ != nullptr) return success();
    const RecordSettings& settings = options_.settings;
    options_.device = options_.verify || settings.bounded ? kHostMemory : device;
    if (!settings.against.empty()) {
        TWR_TRY(parent_, RecordStore::open_parent(places_.history, settings, places_.rank, options_.threads));
    }
    TWR_TRY(stored_, RecordStore::open(places_.history, places_.rank, options_.threads));
    if (!places_.local.empty()) {
        TWR_TRY(local_, RecordStore::open(places_.local, places_.rank, options_.threads));
    }
    std::uint32_t next = settings.first_difference;
    std::int64_t last_step = 0;
    std::uint32_t last = kNoBase;
    for (const auto& store : {stored_, local_}) {
        if (store == nullptr) continue;
        const Journal journal = store->journal();
        next = std::max(next, journal.next_difference);
        for (const auto& [step, files] : journal.steps) {
            if (files.files.difference == kNoBase || (last != kNoBase && step < last_step)) continue;
            last = files.files.difference;
            last_step = step;
        }
    }
    const auto create = [&] {
        return Recorder::create(
            options_, [this](std::uint32_t ordinal) { return locate(ordinal); }, next);
    };
    auto created = create();
    if (!created && options_.device != kHostMemory) {
        options_.device = kHostMemory;
        created = create();
    }
    if (!created) return std::move(created).error();
    auto recorder = std::move(created).value();
    std::vector<std::uint32_t> known = stored_->ordinals();
    if (local_ != nullptr) {
        for (const std::uint32_t ordinal : local_->ordinals())
            known.push_back(ordinal);
    }
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    const auto prepare = [&]() -> Result<> {
        TWR_CHECK(recorder->learn(known));
        return parent_ == nullptr && last != kNoBase ? recorder->rebase(last) : success();
    };
    if (auto prepared = prepare(); !prepared) {
        if (!recorder->move_to_host()) return prepared;
        TWR_CHECK(prepare());
    }
    if (local_ != nullptr) {
        const Journal stored = stored_->journal();
        const Journal local = local_->journal();
        for (const auto& [ordinal, file] : local.differences) {
            if (stored.differences.contains(ordinal)) continue;
            own_[ordinal] = file;  // will be flushed to the history
            local_only_.insert(ordinal);
        }
    }
    recorder_ = std::move(recorder);
    return success();
}

void StepRecorder::forget() {
    recorder_->forget();
    local_only_.clear();
}

Result<> StepRecorder::record(Tiers& tiers, const Tiers::Place& place, std::int64_t step,
                              const StepLayout& layout, const Image& image, RankStep& ready) {
    RecordDirectory directory;
    directory.files.push_back({rank_name(places_.rank) + ".data", layout.file_bytes});
    std::vector<ImageSegment> segments;
    std::map<int, std::uint64_t> bytes_on;
    for (std::size_t i = 0; i < layout.fields.size(); ++i) {
        const FieldMetadata& field = layout.fields[i];
        if (field.items() == 0) continue;
        const std::uint64_t offset = field.extents[0].offset;
        directory.segments.push_back({field.name, 0, offset, field.data_bytes(), 0});
        ImageSegment segment{field.name, nullptr, field.data_bytes(), std::nullopt, field.dtype};
        if (i < image.on_device.size() && image.on_device[i]) {
            segment.data = static_cast<const std::byte*>(image.on_device[i]->data);
            segment.device = image.on_device[i]->device;
        } else {
            segment.data = image.bytes + offset;
        }
        bytes_on[segment.device] += segment.bytes;
        segments.push_back(std::move(segment));
    }
    add_residues(directory, segments, places_.rank, image.residues);
    int most = kHostMemory;
    for (const auto& [device, bytes] : bytes_on) {
        if (bytes > bytes_on[most]) most = device;
    }
    TWR_CHECK(begin(most));
    TWR_CHECK(tiers.reserve_difference(recorder_->next_ordinal()));
    if (tiers.take_unreadable()) forget();
    if (!place.local && !local_only_.empty()) {
        // A step in the history must not refer to a difference that may be lost with the node.
        const Journal history = tiers.history();
        std::erase_if(local_only_,
                      [&](std::uint32_t ordinal) { return history.differences.contains(ordinal); });
        if (!local_only_.empty()) forget();
    }
    if (parent_ != nullptr) {
        const Journal parents = parent_->journal();
        const auto same = parents.steps.find(step);
        if (same != parents.steps.end() && same->second.files.difference < options_.settings.first_difference)
            TWR_CHECK(recorder_->rebase(same->second.files.difference));
    }
    FileSystem& system = place.writer->system();
    const fs::path folder = fs::path(place.writer->path()) / ready.folder;
    ready.files.data = rank_name(places_.rank) + ".twr";
    const std::string path = (folder / ready.files.data).string();
    auto done = recorder_->record(system, path, directory, segments);
    if (!done && recorder_->device_failed() && recorder_->move_to_host()) {
        TWR_CHECK(tiers.reserve_difference(recorder_->next_ordinal()));
        done = recorder_->record(system, path, std::move(directory), segments);
    }
    if (!done) return std::move(done).error();
    const Recorder::Recorded recorded = *done;
    TWR_CHECK(system.sync_folder(folder.string()));
    ready.files.data_bytes = recorded.bytes;
    ready.files.difference = recorded.ordinal;
    ready.files.difference_checksum = recorded.header_checksum;
    ready.files.full_bytes = layout.file_bytes;
    own_[recorded.ordinal] = {ready.folder + "/" + ready.files.data, recorded.header_checksum};
    if (place.local) local_only_.insert(recorded.ordinal);
    return success();
}

void StepRecorder::settled(const Tiers& tiers, const Tiers::Place& place, std::int64_t step,
                           const RankStep* ready) {
    if (recorder_ == nullptr || (ready != nullptr && tiers.has(place, step, *ready))) return;
    forget();
}

}  // namespace twinrun
