#include "capture/intake.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/aligned.hpp"
#include "base/checked.hpp"
#include "capture/device_pieces.hpp"
#include "history/residue_pages.hpp"
#include "sketch/device_build.hpp"
#include "sketch/started_sketches.hpp"

namespace twinrun {

namespace {

// Large enough that the cost of submitting a piece does not count, small enough that few cores
// share a step evenly.
constexpr std::uint64_t kPieceBytes = 4 << 20;

std::uint64_t piece_bytes(const StagingRing* ring) {
    if (ring == nullptr) return kPieceBytes;
    return std::clamp<std::uint64_t>(ring->largest_block() / 8, 1 << 20, kPieceBytes);
}

bool same_layout(const CapturedField& a, const CapturedField& b) {
    return a.dtype == b.dtype && a.order == b.order && a.own_tolerance == b.own_tolerance &&
           a.tolerance == b.tolerance && a.device.has_value() == b.device.has_value() && a.shape == b.shape &&
           a.global_shape == b.global_shape && a.global_offset == b.global_offset && a.name == b.name &&
           a.ids == b.ids;
}

}  // namespace

Intake::Intake(const HistorySettings& history, bool shared, Team& team, Team& stage_team, StagingRing* ring,
               Pipeline& pipeline)
    : history_(history),
      shared_(shared),
      team_(team),
      stage_team_(stage_team),
      ring_(ring),
      pipeline_(pipeline),
      piece_bytes_(piece_bytes(ring)) {}

std::vector<std::shared_ptr<const RowIds>> Intake::ids() const {
    std::vector<std::shared_ptr<const RowIds>> all;
    for (const Source& source : sources_)
        all.push_back(source.ids);
    return all;
}

Result<> Intake::plan(std::vector<CapturedField>& fields) {
    for (CapturedField& field : fields) {
        if (!field.device) continue;
        auto checked = check_array(*field.device);
        const auto items = checked_product(field.shape);
        if (checked && (field.device->dtype != field.dtype || !items || field.device->items() != *items))
            checked = Error{ErrorCode::mismatch, "the device array has another type or size"};
        if (!checked) return std::move(checked).error().at("field '" + field.name + "'");
    }
    TWR_CHECK(read_order(fields));
    const bool known = layout_ != nullptr && planned_.size() == fields.size() &&
                       std::equal(fields.begin(), fields.end(), planned_.begin(), same_layout);
    if (!known) {
        TWR_TRY(layout_, StepLayout::make(fields, history_, piece_bytes_, shared_));
        planned_ = fields;
        for (CapturedField& field : planned_) {
            if (field.device) field.device->owner.reset();  // only their layout is used
        }
    }
    return success();
}

// Decides how the items of host fields are read: in place, gathered, or sorted by IDs. Reads the
// IDs.
Result<> Intake::read_order(std::vector<CapturedField>& fields) {
    sources_.resize(fields.size());
    std::map<std::string, std::shared_ptr<const RowOrder>> orders;
    std::map<std::string, std::shared_ptr<const RowIds>> ids;
    for (const CapturedField& field : fields) {
        if (!field.ids.empty()) orders[field.ids] = nullptr;
    }
    const auto bring = [](CapturedField& field, Source& source) -> Result<> {
        if (!field.device) return success();
        DeviceSource array(*field.device);
        source.brought.resize(array.items() * item_bytes(field.dtype));
        TWR_CHECK(
            copy_out(*field.device, kPieceBytes, [&](std::uint64_t first, std::span<const std::byte> bytes) {
                std::memcpy(source.brought.data() + first * item_bytes(field.dtype), bytes.data(),
                            bytes.size());
                return success();
            }));
        field.device.reset();
        field.data = source.brought.data();
        field.stride = 0;
        field.strides.clear();
        return success();
    };
    for (std::size_t i = 0; !orders.empty() && i < fields.size(); ++i) {
        const auto order = orders.find(fields[i].name);
        if (order == orders.end() && fields[i].ids.empty()) continue;
        TWR_CHECK(bring(fields[i], sources_[i]));
        if (order == orders.end()) continue;
        TWR_TRY(order->second, order_by_ids(fields[i]));
        if (history_.kind == DigestKind::linear) {
            TWR_TRY(ids[fields[i].name], ordered_ids(fields[i], *order->second));
        }
    }
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const CapturedField& field = fields[i];
        Source& source = sources_[i];
        source.dense = nullptr;
        source.reader.reset();
        source.ids.reset();
        if (field.device) continue;
        const std::string& by = orders.contains(field.name) ? field.name : field.ids;
        std::shared_ptr<const RowOrder> rows;
        if (!by.empty()) {
            rows = orders[by];
            source.ids = ids[by];
            if (rows == nullptr) {
                return Error{ErrorCode::not_found, "field '" + field.name + "': its IDs '" + by +
                                                       "' are not among the captured fields"};
            }
        }
        const bool in_place = (rows == nullptr || rows->empty()) && field.strides.empty() &&
                              (field.stride == 0 || field.stride == item_bytes(field.dtype));
        if (in_place && by.empty()) {
            source.dense = static_cast<const std::byte*>(field.data);
        } else {
            TWR_TRY(source.reader, FieldReader::create(field, std::move(rows)));
        }
    }
    return success();
}

void Intake::copy_out_of(const Piece& piece, std::byte* image) const {
    for (const Segment& segment : piece.segments) {
        const Source& source = sources_[segment.field];
        const std::size_t item = item_bytes(layout_->fields[segment.field].dtype);
        if (source.dense != nullptr) {
            std::memcpy(image + segment.offset, source.dense + segment.first_item * item,
                        segment.items * item);
        } else {
            source.reader->copy(segment.first_item, segment.items, image + segment.offset);
        }
    }
    clear_padding(*layout_, piece, image);
}

// Makes digests without a copy of the data. Only a slice that no single view describes is gathered
// in `scratch`.
Result<> Intake::digest_in_place(PendingStep& step, const Piece& piece, std::byte* residues,
                                 std::vector<std::byte>& scratch) {
    for (const Segment& segment : piece.segments) {
        const Source& source = sources_[segment.field];
        const FieldDigests& digests = step.digests[segment.field];
        const DType dtype = digests.field().dtype;
        std::byte* to = residues + segment.residue_offset;
        for (std::uint64_t s = segment.first_slice; s < segment.first_slice + segment.slices; ++s) {
            const std::uint64_t first = digests.first_item(s);
            ElementView view;
            std::optional<ElementView> in_place;
            if (source.dense != nullptr) {
                view = dense_view(dtype, source.dense + first * item_bytes(dtype));
            } else if (in_place = source.reader->view(first); in_place) {
                view = *in_place;
            } else {
                scratch.resize(digests.items(s) * item_bytes(dtype));
                source.reader->copy(first, digests.items(s), scratch.data());
                view = dense_view(dtype, scratch.data());
            }
            TWR_CHECK(Pipeline::digest_slice(step, segment, s, view, to));
            to += digests.residue_bytes(s);
        }
    }
    return success();
}

Result<> Intake::take_piece(const std::shared_ptr<PendingStep>& step, const Piece& piece, bool digest_now,
                            Own& own, double& waited) {
    const bool keep_data = step->layout->keep_data;
    const std::size_t image_bytes = keep_data || !digest_now ? piece.bytes : 0;
    const std::size_t bytes = image_bytes + (digest_now ? piece.residue_bytes : 0);
    Load load;
    load.step = step;
    load.piece = &piece;
    RingBlock block(ring_);
    std::byte* memory = nullptr;
    if (ring_ != nullptr) {
        memory = ring_->allocate(bytes, waited);
        if (memory == nullptr)
            return Error{ErrorCode::internal, "a piece is larger than the staging memory allows"};
        block.block = memory;
    } else {
        memory = own.piece.reserve(bytes);
    }
    std::byte* residues = memory + image_bytes;
    Result<> done = success();
    if (image_bytes != 0) {
        copy_out_of(piece, memory);
        load.image = memory;
    }
    if (!digest_now) {
        load.make_digests = true;
    } else {
        done = image_bytes != 0 ? Pipeline::digest(*step, piece, memory, residues)
                                : digest_in_place(*step, piece, residues, own.slice);
        load.residues = residues;
    }
    TWR_CHECK(std::move(done));
    load.block = std::exchange(block.block, nullptr);
    pipeline_.submit(std::move(load));
    return success();
}

Result<> Intake::take_host(const std::shared_ptr<PendingStep>& step, bool digest_now, double& waited) {
    std::vector<const Piece*> pieces;
    std::uint64_t bytes = 0;
    for (const Piece& piece : step->layout->pieces) {
        if (piece.on_device) continue;
        pieces.push_back(&piece);
        bytes += piece.bytes;
    }
    if (pieces.size() < 2 || bytes < kTeamBytes || team_.size() == 1) {
        Own own;
        for (const Piece* piece : pieces)
            TWR_CHECK(take_piece(step, *piece, digest_now, own, waited));
        return success();
    }
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;  // protects failure and longest
    std::optional<Error> failure;
    double longest = 0;
    team_.run([&](int) {
        double own_wait = 0;
        Own own;
        for (;;) {
            const std::size_t i = next++;
            if (i >= pieces.size()) break;
            Result<> done = out_of_memory();
            try {
                done = take_piece(step, *pieces[i], digest_now, own, own_wait);
            } catch (const std::exception&) {  // done stays out_of_memory()
            }
            if (done) continue;
            next = pieces.size();
            const std::lock_guard guard(mutex);
            if (!failure) failure = std::move(done).error();
        }
        const std::lock_guard guard(mutex);
        longest = std::max(longest, own_wait);
    });
    waited += longest;
    if (failure) return std::move(*failure);
    return success();
}

Intake::OnDevices Intake::on_devices(const PendingStep& step, const std::vector<CapturedField>& fields) {
    OnDevices found;
    for (std::size_t i = 0; i < fields.size(); ++i) {
        if (!fields[i].device) continue;
        found.numbers.push_back(i);
        found.metadata.push_back(&step.layout->fields[i]);
        found.arrays.push_back(*fields[i].device);
    }
    return found;
}

// Lets the recorder read arrays on their device, if nobody changes them before it is done: the
// staged copies, or the application's arrays if capture() returns only after the step is recorded.
void Intake::leave_on_devices(PendingStep& step, const OnDevices& fields,
                              const std::shared_ptr<StagedArrays>& staged) const {
    const bool copied = staged != nullptr && !staged->copies.empty();
    if (!step.layout->recorded || (!copied && ring_ != nullptr)) return;
    const std::vector<DeviceArray>& arrays = copied ? staged->copies : fields.arrays;
    step.on_device.resize(step.layout->fields.size());
    for (std::size_t i = 0; i < fields.numbers.size(); ++i) {
        if (!arrays[i].dense()) continue;
        step.on_device[fields.numbers[i]] = arrays[i];
        step.on_device[fields.numbers[i]]->owner.reset();  // held by the stage, or by the caller
    }
    step.device_memory = staged;
}

// Digests the arrays, and leaves their residues on the device, for the recorder. false: that cannot
// be, for want of memory or whatever fails there. Residues that come to the host need less of it.
bool Intake::leave_residues(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                            std::span<const DeviceArray> arrays, std::vector<BuiltField>& built) {
    auto started = StartedSketches::start_with_residues(fields.metadata, {arrays.begin(), arrays.end()});
    if (!started) return false;
    auto residues = (*started)->bring_but_residues(built);
    if (!residues) return false;
    auto checksums = residue_checksums(*residues, fields.metadata);
    if (!checksums) return false;
    RecordedResidues left;
    left.places.resize(step->layout->fields.size());
    left.checksums.resize(step->layout->fields.size());
    for (std::size_t i = 0; i < fields.numbers.size(); ++i) {
        left.places[fields.numbers[i]] = residues->places[i];
        left.checksums[fields.numbers[i]] = std::move((*checksums)[i]);
    }
    left.on_device = std::move(*residues);
    step->left = std::move(left);
    return true;
}

// Gives the pipeline residues of a field, in parts that fit into the ring: each but the last a
// whole number of pages.
Result<> Intake::submit_residues(const std::shared_ptr<PendingStep>& step, std::size_t field,
                                 std::uint64_t offset, std::span<const std::byte> bytes, double& waited) {
    const std::size_t most = ring_ != nullptr ? kPieceBytes / 4 : bytes.size();
    for (std::size_t at = 0; at < bytes.size(); at += most) {
        const auto part = bytes.subspan(at, std::min(most, bytes.size() - at));
        Load load;
        load.step = step;
        load.field = field;
        load.residue_offset = offset + at;
        load.residue_bytes = part.size();
        load.residues = part.data();
        if (ring_ != nullptr) {
            std::byte* block = ring_->allocate(part.size(), waited);
            if (block == nullptr)
                return Error{ErrorCode::internal, "residues are larger than the staging memory allows"};
            std::memcpy(block, part.data(), part.size());
            load.block = block;
            load.residues = block;
        }
        pipeline_.submit(std::move(load));
    }
    return success();
}

Result<> Intake::take_devices(const std::shared_ptr<PendingStep>& step, const OnDevices& fields,
                              const std::shared_ptr<StagedArrays>& staged, double& waited) {
    const std::vector<std::size_t>& numbers = fields.numbers;
    if (numbers.empty()) return success();
    const bool copied = staged != nullptr && !staged->copies.empty();
    std::vector<const DeviceArray*> arrays;
    for (const DeviceArray& array : copied ? staged->copies : fields.arrays)
        arrays.push_back(&array);
    std::vector<BuiltField> built;
    std::mutex one_at_a_time;  // each device has a thread that calls `take`
    const TakeResidues take = [&](std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) {
        const std::lock_guard guard(one_at_a_time);
        return submit_residues(step, numbers[field], offset, bytes, waited);
    };
    // true: residues are compared before they are submitted
    const bool check = step->check != nullptr;
    const bool sketched = staged != nullptr && !staged->sketches.empty();
    bool left = false;
    if (step->residues_stay) {
        // Where the stage could not take the arrays, the data comes to the host, too.
        if (copied || ring_ == nullptr) {
            left = leave_residues(step, fields, copied ? staged->copies : fields.arrays, built);
        }
        if (!left) pipeline_.charge(*step, step->layout->residue_bytes);
    }
    if (!left && sketched) {
        built.resize(numbers.size());
        for (const StagedArrays::Sketched& of_one : staged->sketches) {
            const std::vector<std::size_t>& places = of_one.numbers;
            const TakeResidues take_of = [&](std::size_t field, std::uint64_t offset,
                                             std::span<const std::byte> bytes) {
                return take(places[field], offset, bytes);
            };
            std::vector<BuiltField> brought;
            TWR_CHECK(of_one.sketches->bring(brought, check ? TakeResidues() : take_of));
            for (std::size_t i = 0; i < places.size(); ++i)
                built[places[i]] = std::move(brought[i]);
        }
    } else if (!left) {
        TWR_CHECK(build_on_device(fields.metadata, arrays, built, {}, check ? TakeResidues() : take));
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (check) {
            TWR_CHECK(step->check->whole(numbers[i], built[i]));
            TWR_CHECK(submit_residues(step, numbers[i], 0, built[i].residues, waited));
        }
        step->digests[numbers[i]].set(std::move(built[i]));
    }
    if (!step->layout->keep_data) return success();
    leave_on_devices(*step, fields, staged);

    // The stage's thread may be here while the caller's is in take_host().
    DevicePieces pieces{staged != nullptr ? stage_team_ : team_, ring_, pipeline_, {}};
    pieces.arrays.resize(step->layout->fields.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const bool stays = !step->on_device.empty() && step->on_device[numbers[i]];
        if (!stays) pieces.arrays[numbers[i]] = arrays[i];
    }
    return bring_pieces(step, pieces, waited);
}

}  // namespace twinrun
