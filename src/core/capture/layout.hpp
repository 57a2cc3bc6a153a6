// How the fields of a step lie in its data file, and the pieces in which they get there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "history/field.hpp"

namespace twinrun {

// Whole slices (build.hpp) of one field, within a piece.
struct Segment {
    std::size_t field = 0;
    std::uint64_t first_slice = 0;
    std::uint64_t slices = 0;
    std::uint64_t first_item = 0;
    std::uint64_t items = 0;
    std::uint64_t offset = 0;          // in the piece's image
    std::uint64_t residue_offset = 0;  // of this piece's residues
    std::uint64_t residue_bytes = 0;
};

// A part of the data file: [offset, offset + bytes), whole fields or whole slices of one, with the padding behind them.
struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t residue_bytes = 0;  // of all segments
    bool on_device = false;           // all its fields are, or none is
    std::vector<Segment> segments;
};

// Fixed for as long as fields keep their names, types, shapes and settings.
struct StepLayout {
    std::vector<FieldMetadata> fields;  // with their extents, if data is kept
    std::vector<bool> on_device;        // of each field
    std::vector<Piece> pieces;
    std::uint64_t file_bytes = 0;    // of the data file, if it is kept
    std::uint64_t array_bytes = 0;   // of all fields
    std::uint64_t digest_bytes = 0;  // of memory, about, that the digests of a step under way take
    bool keep_data = true;
    bool recorded = false;  // data is kept as differences
    bool shared = false;    // data goes to a file of several ranks

    // Whether the data file that would have been is made in memory first.
    [[nodiscard]] bool gathered() const { return recorded || shared; }

    // Whether a field has data sums: what is recorded from a device does not come to the host, and a record has checksums of
    // its own.
    [[nodiscard]] bool sums(std::size_t field) const { return keep_data && !(recorded && on_device[field]); }

    // piece_bytes: at least kSliceBytes; what a piece holds at most, unless it is a single slice. Errors: plan_captured's; two
    // fields of one name; none.
    static Result<std::shared_ptr<const StepLayout>> make(const std::vector<CapturedField>& fields,
                                                          const HistorySettings& settings,
                                                          std::uint64_t piece_bytes, bool shared = false);
};

}  // namespace twinrun
