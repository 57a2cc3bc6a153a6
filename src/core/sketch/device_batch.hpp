// Makes the digests of several fields on one device together: the plan of the items, the layout of
// device memory, and the work put into a stream. Private to this room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/checked.hpp"
#include "base/result.hpp"
#include "device/device.hpp"
#include "digest/digest_device.hpp"
#include "digest/sums_device.hpp"
#include "element/element_device.hpp"
#include "metadata/metadata.hpp"
#include "sketch/device_sums.hpp"
#include "source/device_array.hpp"
#include "source/tuning.hpp"
#include "tree/tree_device.hpp"

namespace twinrun::device_batch {

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// What the kernels note of a piece.
struct Stats {
    ElementCounts counts;
    std::uint64_t largest = 0;  // bits of a float64
    std::uint64_t unused = 0;
};
static_assert(sizeof(Stats) == 32);

// Consecutive chunks of one field whose results lie in one arena. Begins at a slice's beginning:
// samples and the pages of metadata are counted from there.
struct Piece {
    std::size_t field = 0;
    std::uint64_t first_chunk = 0;
    std::uint64_t chunks = 0;
    std::uint64_t first_item = 0;
    std::uint64_t items = 0;
    bool whole = false;    // all of the field: the arena has its whole tree, else leaves alone
    std::size_t tree = 0;  // where in the arena
    std::size_t tree_bytes = 0;
    std::size_t fine = 0;
    std::size_t fine_bytes = 0;
    std::size_t residues = 0;
    std::size_t residue_bytes = 0;
    SumsSlots slots;  // of the field's sums
    std::size_t sums = 0;
    std::size_t sums_bytes = 0;
};

// The device library's kernels.
struct Tables {
    const DeviceRuntime* runtime;
    const DeviceDigestKernels* digest;
    const DeviceTreeKernels* tree;
    const DeviceElementKernels* element;
    const DeviceSumsKernels* sums;
};

// Error: there is no device, or the library lacks a table.
Result<Tables> tables();

// The fields of a call.
struct Fields {
    std::span<const FieldMetadata* const> fields;
    std::span<const DeviceArray* const> arrays;
    std::vector<std::shared_ptr<const DeviceSumsPlan>> sums;  // null: none are made

    Fields(std::span<const FieldMetadata* const> all_fields, std::span<const DeviceArray* const> all_arrays)
        : fields(all_fields), arrays(all_arrays) {}
    void plan_sums() {
        sums.clear();
        for (const FieldMetadata* field : fields)
            sums.push_back(plan_device_sums(*field));
    }

    [[nodiscard]] bool dense(std::size_t f) const { return arrays[f]->dense(); }
    [[nodiscard]] std::uint64_t slice_items(std::size_t f) const {
        return kSliceBytes / item_bytes(fields[f]->dtype);
    }
    [[nodiscard]] std::uint64_t slice_chunks(std::size_t f) const {
        return kSliceBytes / fields[f]->settings.chunk_bytes;
    }
    [[nodiscard]] std::uint64_t slices(std::size_t f) const {
        return divide_up(fields[f]->items(), slice_items(f));
    }

    // Slices [first, first + count) of a field, without a place.
    [[nodiscard]] Piece piece(std::size_t f, std::uint64_t first, std::uint64_t count) const;

   private:
    [[nodiscard]] std::uint64_t residue_bytes_before(std::size_t f, std::uint64_t chunk,
                                                     const ChunkShape& shape) const {
        return std::min(fields[f]->section_bytes(Section::residues), chunk * shape.residue_bytes_per_chunk);
    }
};

// Pieces whose digests are made together, and where everything of theirs lies.
class Batch {
   public:
    explicit Batch(const Fields& fields) : fields_(&fields) {}

    void clear() {
        pieces_.clear();
        waves_.clear();
        arena_bytes_ = cleared_bytes_ = scratch_bytes_ = host_bytes_ = 0;
    }
    void add(const Piece& piece) { pieces_.push_back(piece); }
    // Of what is laid out from now on nothing is noted but digests: no Stats in the arena.
    void leave_out_stats() { stats_ = false; }
    // Of what is laid out from now on residues are not collected. They lie as in a metadata file
    // (ResidueLayout), with zeros between them.
    void leave_residues() { residues_stay_ = true; }
    [[nodiscard]] bool residues_stay() const { return residues_stay_; }
    [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
    [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
    // Where the residues that stay begin in the arena. They reach to its end.
    [[nodiscard]] std::size_t residues_at() const { return residues_at_; }
    [[nodiscard]] std::size_t collected_bytes() const { return residues_stay_ ? residues_at_ : arena_bytes_; }
    [[nodiscard]] std::size_t scratch_bytes() const { return scratch_bytes_; }
    [[nodiscard]] std::size_t host_bytes() const { return host_bytes_; }

    // Bytes that a piece takes in the arena, at most.
    static std::uint64_t arena_bytes_of(const Piece& p) {
        return sizeof(Stats) + p.sums_bytes + p.tree_bytes + 16 + p.fine_bytes + p.residue_bytes +
               2 * kResidueLine + kPageBytes;
    }

    // Gives everything its place. gather_bytes: device memory for gathered elements; at least one
    // slice is taken.
    void lay_out(const Tables& tables, std::uint64_t gather_bytes);
    // The first part of it: the arena, which is the same for any memory. Pieces know their places
    // then.
    void lay_out_arena();

    // Puts all work into the stream, behind what is in the arrays' streams now. arena, scratch,
    // host: areas of the sizes above. As often as the arrays are to be digested.
    Result<> submit(const Tables& tables, DeviceStream& stream, std::byte* arena, std::byte* scratch,
                    std::byte* host) const;
    // The same into any stream of the device, behind what is in it now.
    Result<> put(const Tables& tables, int device, StreamHandle stream, std::byte* arena, std::byte* scratch,
                 std::byte* host) const;

   private:
    // Items of a piece that are digested in one call.
    struct Part {
        std::size_t piece;
        std::uint64_t first;  // item of the piece, at a slice's beginning
        std::uint64_t items;
        std::size_t gathered;  // where in the scratch memory, if they must be gathered
    };
    struct Wave {
        std::vector<Part> parts;
        std::size_t digest_host_bytes = 0;  // scratch memory on the host
        std::size_t sums_host_bytes = 0;
    };

    // An area with the strictest alignment, for items whose number alone is given.
    static std::byte* nowhere() { return reinterpret_cast<std::byte*>(kDeviceAlignment); }

    // Where a part's items lie when they are digested.
    [[nodiscard]] const std::byte* data_of(const Part& part, const std::byte* gathered) const;
    void sums_items(const Wave& wave, std::byte* arena, const std::byte* gathered,
                    std::vector<DeviceSumsItem>& into) const;
    void digest_items(const Wave& wave, std::byte* arena, std::byte* gathered,
                      std::vector<DeviceDigestItem>& into) const;
    void tree_items(std::byte* arena, std::vector<DeviceTreeItem>& into) const;

    const Fields* fields_;
    std::vector<Piece> pieces_;
    std::vector<Wave> waves_;
    std::size_t arena_bytes_ = 0;
    std::size_t residues_at_ = 0;
    std::size_t cleared_bytes_ = 0;  // at its beginning
    std::size_t scratch_bytes_ = 0;
    std::size_t host_bytes_ = 0;
    std::size_t gather_bytes_ = 0;
    std::size_t digest_bytes_ = 0;
    std::size_t sums_bytes_ = 0;
    std::size_t tree_bytes_ = 0;
    bool stats_ = true;
    bool residues_stay_ = false;
};

// What may be taken of a device's memory, given what we hold of it already.
std::uint64_t available(const Tables& tables, int device, std::uint64_t held);

// Error: an array that does not fit its field or check_array().
Result<> check_fields(const Fields& fields);

Error no_memory();

}  // namespace twinrun::device_batch
