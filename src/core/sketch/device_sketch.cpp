#include "sketch/device_sketch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "sketch/device_memory.hpp"
#include "sketch/host_sketch.hpp"
#include "sketch/proof.hpp"
#include "sketch/sketch_stream.hpp"

namespace twinrun {

using namespace device_batch;

int DeviceSketch::device() const { return memory_->workspace->device(); }

std::uint64_t DeviceSketch::bytes() const {
    return field_.section_bytes(Section::tree) + field_.section_bytes(Section::fine) +
           field_.section_bytes(Section::residues) +
           (plan_ == nullptr ? 0 : plan_->sums.count() * kSumsWords * sizeof(std::uint64_t));
}

Result<std::vector<DeviceSketch>> DeviceSketch::build(std::span<const FieldMetadata* const> fields,
                                                      std::span<const DeviceArray* const> arrays,
                                                      const DeviceBuildOptions& options) try {
    if (fields.size() != arrays.size())
        return Error{ErrorCode::invalid_argument, "another number of arrays than of fields"};
    for (const DeviceArray* array : arrays) {
        if (array->device != arrays[0]->device) {
            return Error{ErrorCode::invalid_argument,
                         "sketches of arrays of several devices: build those of each by themselves"};
        }
    }
    std::vector<DeviceSketch> all(fields.size());
    SketchStream stream(
        [&](const std::vector<std::size_t>& numbers, const SketchGroup& sketches) {
            for (std::size_t i = 0; i < numbers.size(); ++i)
                all[numbers[i]] = sketches.at(i);
        },
        options);
    for (std::size_t f = 0; f < fields.size(); ++f)
        TWR_CHECK(stream.add(f, *fields[f], *arrays[f]));
    TWR_CHECK(stream.finish());
    return all;
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<std::vector<DeviceSketch>> DeviceSketch::upload(std::span<const FieldMetadata* const> fields,
                                                       std::span<const BuiltField* const> built,
                                                       int device) try {
    TWR_TRY(const Tables all, tables());
    if (built.size() != fields.size()) {
        return Error{ErrorCode::invalid_argument, "another number of digests than of fields"};
    }
    using Parts = std::array<std::span<const std::byte>, 3>;
    constexpr std::array<Section, 3> sections = {Section::tree, Section::fine, Section::residues};
    const auto parts_of = [](const BuiltField& b) {
        return Parts{std::as_bytes(std::span(b.tree)), std::as_bytes(std::span(b.fine)),
                     std::span<const std::byte>(b.residues)};
    };
    std::vector<DeviceSketch> sketches(fields.size());
    const auto memory = std::make_shared<SketchMemory>();
    std::size_t end = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        DeviceSketch& sketch = sketches[f];
        sketch.field_ = *fields[f];
        sketch.field_.counts = built[f]->counts;
        sketch.field_.largest_sampled = built[f]->largest;
        sketch.memory_ = memory;
        sketch.made_sums_ = built[f]->sums;
        const Parts parts = parts_of(*built[f]);
        const std::array<std::size_t*, 3> places = {&sketch.tree_, &sketch.fine_, &sketch.residues_};
        for (std::size_t s = 0; s < parts.size(); ++s) {
            if (parts[s].size() != fields[f]->section_bytes(sections[s])) {
                return Error{ErrorCode::mismatch, "field '" + fields[f]->name +
                                                      "': digests of another size than its settings imply"};
            }
            *places[s] = end;
            end += device_aligned(parts[s].size());
        }
    }
    TWR_TRY(memory->workspace, DeviceWorkspaces::sketches().lease(device));
    DeviceWorkspace& workspace = *memory->workspace;
    TWR_CHECK(workspace.reserve_device(std::max<std::size_t>(end, 1)));
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const Parts parts = parts_of(*built[f]);
        const std::array<std::size_t, 3> to = {sketches[f].tree_, sketches[f].fine_, sketches[f].residues_};
        for (std::size_t s = 0; s < parts.size(); ++s) {
            if (parts[s].empty()) continue;
            TWR_CHECK(to_result(all.runtime->copy(device, workspace.device_memory() + to[s], parts[s].data(),
                                                  parts[s].size(), workspace.stream().get())));
        }
    }
    TWR_CHECK(workspace.stream().wait());
    return sketches;
} catch (const std::bad_alloc&) {
    return no_memory();
}

Result<DeviceSketch> DeviceSketch::upload(const FieldMetadata& field, const BuiltField& built, int device) {
    const FieldMetadata* const fields[] = {&field};
    const BuiltField* const from[] = {&built};
    TWR_TRY(auto sketches, upload(fields, from, device));
    return std::move(sketches.front());
}

Result<DeviceSketch> DeviceSketch::upload(MetadataFile& file, std::size_t number, int device) {
    TWR_TRY(const HostSketch host, HostSketch::load(file, number));
    return upload(host.field(), host.built(), device);
}

Result<> DeviceSketch::download(BuiltField& into) const try {
    TWR_TRY(const Tables all, tables());
    into.tree.resize(field_.section_bytes(Section::tree) / 8);
    into.fine.resize(field_.section_bytes(Section::fine) / 8);
    into.residues.resize(field_.section_bytes(Section::residues));
    into.counts = field_.counts;
    into.largest = field_.largest_sampled;
    TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device()));
    const std::byte* const from = memory_->workspace->device_memory();
    const auto copy = [&](void* to, std::size_t at, std::size_t bytes) {
        return to_result(all.runtime->copy(device(), to, from + at, bytes, workspace->stream().get()));
    };
    TWR_CHECK(copy(into.tree.data(), tree_, into.tree.size() * 8));
    TWR_CHECK(copy(into.fine.data(), fine_, into.fine.size() * 8));
    TWR_CHECK(copy(into.residues.data(), residues_, into.residues.size()));
    into.sums = made_sums_;
    std::vector<std::uint64_t> halves(plan_ == nullptr ? 0 : plan_->sums.count() * kSumsWords);
    if (!halves.empty()) TWR_CHECK(copy(halves.data(), sums_, halves.size() * sizeof(std::uint64_t)));
    TWR_CHECK(workspace->stream().wait());
    if (plan_ != nullptr) into.sums = {plan_->sums.height(), plan_->sums.finish(halves)};
    return success();
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
