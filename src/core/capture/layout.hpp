// Where each field of a step lies in its data file, and the pieces in which the file is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "history/field.hpp"

namespace twinrun {

// Consecutive whole slices (sketch/build.hpp) of one field, within a piece.
struct Segment {
    std::size_t field = 0;  // number in StepLayout::fields
    std::uint64_t first_slice = 0;
    std::uint64_t slices = 0;
    std::uint64_t first_item = 0;
    std::uint64_t items = 0;
    std::uint64_t offset = 0;          // bytes from the piece's beginning
    std::uint64_t residue_offset = 0;  // bytes from the beginning of the piece's residues
    std::uint64_t residue_bytes = 0;
};

// The part [offset, offset + bytes) of the data file: whole fields, or whole slices of one, and the
// padding after them. The unit of work of the pipeline.
struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t residue_bytes = 0;  // of all segments
    bool on_device = false;           // all its fields are on devices; false: none is
    std::vector<Segment> segments;
};

// Immutable after make(), and shared by all steps whose fields have the same names, types, shapes
// and settings.
struct StepLayout {
    std::vector<FieldMetadata> fields;  // with extents, if data is kept
    std::vector<bool> on_device;        // of each field
    std::vector<Piece> pieces;          // in the order of the data file
    std::uint64_t file_bytes = 0;       // of the data file; 0: none is kept
    std::uint64_t array_bytes = 0;      // of all fields, without padding
    // Estimate of the heap memory for the digests of one step under way, and for their file.
    std::uint64_t digest_bytes = 0;
    // Device memory for residues that need not come to the host: where data is recorded, and all
    // fields that have residues are on devices. 0: they come to the host. digest_bytes has
    // `residue_bytes` for them.
    std::uint64_t device_residue_bytes = 0;
    std::uint64_t residue_bytes = 0;
    bool keep_data = true;
    bool recorded = false;  // data is stored as differences
    bool shared = false;    // data goes to a file of several ranks

    // Elsewhere: in the difference that a record has of the step.
    [[nodiscard]] ResiduePlace residues() const {
        return recorded ? ResiduePlace::elsewhere : ResiduePlace::in_file;
    }
    // Whether the field's metadata gets data sums. Not for a field that is recorded from a device:
    // its data does not come to the host, and a record has checksums of its own.
    [[nodiscard]] bool sums(std::size_t field) const { return keep_data && !(recorded && on_device[field]); }

    // piece_bytes: limit of a piece's bytes, at least kSliceBytes; a single slice may exceed it.
    // Errors: those of plan_captured(); two fields of one name; no fields; more bytes than a file
    // can hold; out_of_memory.
    static Result<std::shared_ptr<const StepLayout>> make(const std::vector<CapturedField>& fields,
                                                          const HistorySettings& settings,
                                                          std::uint64_t piece_bytes, bool shared = false);

   private:
    void find_residues();
};

// Zeros the bytes between the segments of a piece, and those after the last one. image: the
// piece's.
void clear_padding(const StepLayout& layout, const Piece& piece, std::byte* image);

}  // namespace twinrun
