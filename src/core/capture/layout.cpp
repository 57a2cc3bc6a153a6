#include "capture/layout.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <string>

#include "base/checked.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kSmallAlignment = 64;
// Memory for the sums of a field, whatever its size: the weights of a bucket's scalars, and 4 KiB
// for small members.
constexpr std::uint64_t kSumsOverhead = kLargestSumsTable * 8 + 4096;

}  // namespace

Result<std::shared_ptr<const StepLayout>> StepLayout::make(const std::vector<CapturedField>& fields,
                                                           const HistorySettings& settings,
                                                           std::uint64_t piece_bytes, bool shared) try {
    if (fields.empty()) return Error{ErrorCode::invalid_argument, "no fields to capture"};
    auto layout = std::make_shared<StepLayout>();
    layout->keep_data = settings.keep_data;
    layout->recorded = settings.record.has_value();
    layout->shared = shared;
    std::set<std::string> names;
    std::set<std::string> keys;
    for (const CapturedField& f : fields) {
        if (!f.ids.empty()) keys.insert(f.ids);
    }
    std::uint64_t end = 0;
    for (const CapturedField& f : fields) {
        if (!names.insert(f.name).second)
            return Error{ErrorCode::invalid_argument, "two fields of the name '" + f.name + "'"};
        TWR_TRY(FieldMetadata field, plan_captured(f, settings));
        field.key = keys.contains(f.name) ? f.name : f.ids;
        const std::uint64_t item = item_bytes(f.dtype);
        const std::uint64_t items = field.items();
        // A field of a page or more begins on a page, for direct reads; smaller fields share pages.
        end = round_up(end, items * item < kPageBytes ? kSmallAlignment : kPageBytes);
        if (settings.keep_data && items != 0) field.extents.push_back({0, end, item, items});
        const auto next = checked_add(end, items * item);
        if (!next || *next > (1ULL << 62))
            return Error{ErrorCode::invalid_argument,
                         "field '" + f.name + "': more bytes than a file can hold"};
        layout->array_bytes += items * item;

        const bool on_device = f.device.has_value();
        layout->on_device.push_back(on_device);
        const FieldSlices shape(field);
        layout->digest_bytes +=
            field.chunks() * 2 * sizeof(ChunkDigest) + shape.slices() * 8 + sizeof(FieldDigests);
        // The most that sums take, and the IDs that weight them.
        if (field.partial()) layout->digest_bytes += field.data_bytes() / 4 + kSumsOverhead;
        if (!field.key.empty() && field.key == f.name) layout->digest_bytes += items * sizeof(std::uint64_t);
        for (std::uint64_t slice = 0; slice < shape.slices();) {
            const std::uint64_t at = end + shape.first_item(slice) * item;
            // Continues the last piece while it is not full.
            const bool fits = !layout->pieces.empty() && layout->pieces.back().on_device == on_device &&
                              at + std::min<std::uint64_t>(shape.items(slice) * item, kSliceBytes) -
                                      layout->pieces.back().offset <=
                                  piece_bytes;
            if (!fits) layout->pieces.push_back({at, 0, 0, on_device, {}});
            Piece& piece = layout->pieces.back();
            Segment segment;
            segment.field = layout->fields.size();
            segment.first_slice = slice;
            segment.first_item = shape.first_item(slice);
            segment.offset = at - piece.offset;
            segment.residue_offset = piece.residue_bytes;
            for (; slice < shape.slices(); ++slice) {
                const std::uint64_t bytes = segment.items * item + shape.items(slice) * item;
                if (segment.slices != 0 && segment.offset + bytes > piece_bytes) break;
                segment.items += shape.items(slice);
                segment.residue_bytes += shape.residue_bytes(slice);
                ++segment.slices;
            }
            piece.bytes = segment.offset + segment.items * item;
            piece.residue_bytes += segment.residue_bytes;
            piece.segments.push_back(segment);
        }
        end += items * item;
        layout->fields.push_back(std::move(field));
    }
    end = round_up(end, kPageBytes);
    // Each piece includes the padding up to the next one.
    for (std::size_t p = 0; p < layout->pieces.size(); ++p) {
        const std::uint64_t next = p + 1 < layout->pieces.size() ? layout->pieces[p + 1].offset : end;
        layout->pieces[p].bytes = next - layout->pieces[p].offset;
    }
    layout->file_bytes = settings.keep_data ? end : 0;
    layout->digest_bytes += writer_bytes(layout->fields, layout->residues());
    if (layout->residues() == ResiduePlace::elsewhere) layout->find_residues();
    return std::shared_ptr<const StepLayout>(std::move(layout));
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the list of fields"};
}

void StepLayout::find_residues() {
    ResidueLayout all;
    bool on_devices = true;
    bool large = false;  // then they begin on a page of the metadata file
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const std::uint64_t bytes = fields[f].section_bytes(Section::residues);
        all.add(bytes);
        residue_bytes += bytes;
        on_devices = on_devices && (bytes == 0 || on_device[f]);
        large = large || bytes >= kPageBytes;
    }
    if (on_devices && large) device_residue_bytes = all.size();
}

void clear_padding(const StepLayout& layout, const Piece& piece, std::byte* image) {
    for (std::size_t i = 0; i < piece.segments.size(); ++i) {
        const Segment& segment = piece.segments[i];
        const std::uint64_t end =
            segment.offset + segment.items * item_bytes(layout.fields[segment.field].dtype);
        const std::uint64_t next = i + 1 < piece.segments.size() ? piece.segments[i + 1].offset : piece.bytes;
        std::memset(image + end, 0, next - end);
    }
}

}  // namespace twinrun
