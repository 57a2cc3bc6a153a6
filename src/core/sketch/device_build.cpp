#include "sketch/device_build.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <thread>

#include "base/checked.hpp"
#include "device/device_workspace.hpp"
#include "digest/digest_device.hpp"
#include "sketch/device_sums.hpp"
#include "sketch/host_sketch.hpp"
#include "sketch/proof.hpp"
#include "source/tuning.hpp"
#include "tree/build.hpp"
#include "tree/tree_device.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
// Results go to the host through two page-locked areas of this size: large enough that the copies' latency does not show.
constexpr std::size_t kStagingBytes = 16 << 20;
constexpr std::size_t kAlign = 256;
// Left free for others, of what is free.
constexpr std::uint64_t kReserveShare = 16;
constexpr std::uint64_t kLeastReserve = 256 << 20;

constexpr std::size_t align(std::size_t bytes) { return round_up(bytes, kAlign); }

// What the kernels note of a piece.
struct Stats {
    ElementCounts counts;
    std::uint64_t largest = 0;  // bits of a float64
    std::uint64_t unused = 0;
};
static_assert(sizeof(Stats) == 32);

// Consecutive chunks of one field whose results lie in one arena. Begins at a slice's beginning: samples and the pages of
// metadata are counted from there.
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

struct Tables {
    const DeviceRuntime* runtime;
    const DeviceDigestKernels* digest;
    const DeviceTreeKernels* tree;
    const DeviceElementKernels* element;
    const DeviceSumsKernels* sums;
};

Result<Tables> tables() {
    const Tables all{device_runtime(), device_digest_kernels(), device_tree_kernels(),
                     device_element_kernels(), device_sums_kernels()};
    if (all.runtime == nullptr) return Error{ErrorCode::unsupported, probe_devices().reason};
    if (all.digest == nullptr || all.tree == nullptr || all.element == nullptr || all.sums == nullptr) {
        return Error{ErrorCode::internal, "the device library lacks a table"};
    }
    return all;
}

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
    [[nodiscard]] Piece piece(std::size_t f, std::uint64_t first, std::uint64_t count) const {
        const FieldMetadata& field = *fields[f];
        const ChunkShape shape = field.chunking();
        Piece p;
        p.field = f;
        p.first_chunk = first * slice_chunks(f);
        p.chunks = std::min(field.chunks(), (first + count) * slice_chunks(f)) - p.first_chunk;
        p.first_item = first * slice_items(f);
        p.items = std::min(field.items(), (first + count) * slice_items(f)) - p.first_item;
        p.whole = p.chunks == field.chunks();
        const std::uint64_t nodes = p.whole ? field.tree().nodes() : p.chunks;
        p.tree_bytes = nodes * node_words(field.settings.kind) * 8;
        if (field.section_bytes(Section::fine) != 0) p.fine_bytes = p.chunks * 8;
        p.residue_bytes = residue_bytes_before(f, p.first_chunk + p.chunks, shape) -
                          residue_bytes_before(f, p.first_chunk, shape);
        if (sums[f] != nullptr) {
            const std::uint64_t per_item = scalars_per_item(field.dtype);
            p.slots = sums_slots(*sums[f], p.first_item * per_item, p.items * per_item);
            p.sums_bytes = p.slots.count * kSumsWords * sizeof(std::uint64_t);
        }
        return p;
    }

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
    [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
    [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
    [[nodiscard]] std::size_t scratch_bytes() const { return scratch_bytes_; }
    [[nodiscard]] std::size_t host_bytes() const { return host_bytes_; }

    // Bytes that a piece takes in the arena, at most.
    static std::uint64_t arena_bytes_of(const Piece& p) {
        return sizeof(Stats) + p.sums_bytes + p.tree_bytes + 16 + p.fine_bytes + p.residue_bytes +
               2 * kResidueLine + kPageBytes;
    }

    // Gives everything its place. gather_bytes: device memory for gathered elements; at least one slice is taken.
    void lay_out(const Tables& tables, std::uint64_t gather_bytes) {
        std::size_t end = pieces_.size() * sizeof(Stats);
        for (Piece& p : pieces_) {
            p.sums = end;
            end += p.sums_bytes;
        }
        cleared_bytes_ = end;
        end = align(end);
        for (Piece& p : pieces_) {
            p.tree = end;
            end += round_up(p.tree_bytes, 16);
        }
        for (Piece& p : pieces_) {
            p.fine = end;
            end += p.fine_bytes;
        }
        // Residues are handed on in whole pages, so an area begins at one, or does not reach over the end of one.
        for (Piece& p : pieces_) {
            end = round_up(end, kResidueLine);
            if (end / kPageBytes != (end + p.residue_bytes) / kPageBytes) end = round_up(end, kPageBytes);
            p.residues = end;
            end += p.residue_bytes;
        }
        arena_bytes_ = align(end);

        // Waves: one call of digest() each. What is dense needs no gathering and goes into the first.
        waves_.assign(1, {});
        std::uint64_t used = 0;
        gather_bytes_ = 0;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            const Piece& p = pieces_[i];
            if (fields_->dense(p.field)) waves_[0].push_back({i, 0, p.items, 0});
        }
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            const Piece& p = pieces_[i];
            if (fields_->dense(p.field)) continue;
            const std::uint64_t item = item_bytes(fields_->fields[p.field]->dtype);
            const std::uint64_t slice = fields_->slice_items(p.field);
            for (std::uint64_t at = 0; at < p.items;) {
                std::uint64_t fits = gather_bytes > used ? (gather_bytes - used) / item : 0;
                if (fits < p.items - at) fits = fits / slice * slice;
                if (fits == 0 && used != 0) {
                    waves_.emplace_back();
                    used = 0;
                    continue;
                }
                const std::uint64_t items = std::min(std::max(fits, slice), p.items - at);
                waves_.back().push_back({i, at, items, used});
                used = align(used + items * item);
                gather_bytes_ = std::max<std::size_t>(gather_bytes_, used);
                at += items;
            }
        }

        // Scratch: that of a wave is free for the next one on the device, where work is in order, but not on the host.
        std::vector<DeviceDigestItem> items;
        std::vector<DeviceSumsItem> sums;
        digest_bytes_ = 0;
        sums_bytes_ = 0;
        host_bytes_ = 0;
        for (const Wave& wave : waves_) {
            digest_items(wave, nowhere(), nowhere(), items);
            std::size_t on_device = 0;
            std::size_t on_host = 0;
            tables.digest->scratch(items.data(), items.size(), &on_device, &on_host);
            digest_bytes_ = std::max(digest_bytes_, align(on_device));
            host_bytes_ += align(on_host);
            sums_items(wave, nowhere(), nowhere(), sums);
            tables.sums->scratch(sums.data(), sums.size(), &on_device, &on_host);
            sums_bytes_ = std::max(sums_bytes_, align(on_device));
            host_bytes_ += align(on_host);
        }
        std::vector<DeviceTreeItem> trees;
        tree_items(nowhere(), trees);
        std::size_t on_device = 0;
        std::size_t on_host = 0;
        tables.tree->build_scratch(trees.data(), trees.size(), &on_device, &on_host);
        tree_bytes_ = align(on_device);
        host_bytes_ += align(on_host);
        scratch_bytes_ = gather_bytes_ + digest_bytes_ + sums_bytes_ + tree_bytes_;
    }

    // Puts all work into the stream. arena, scratch, host: areas of the sizes above.
    Result<> submit(const Tables& tables, DeviceStream& stream, std::byte* arena, std::byte* scratch,
                    std::byte* host) {
        const int device = stream.device();
        std::vector<StreamHandle> followed;
        for (const Piece& p : pieces_) {
            const StreamHandle theirs = fields_->arrays[p.field]->stream;
            if (std::find(followed.begin(), followed.end(), theirs) != followed.end()) continue;
            followed.push_back(theirs);
            TWR_CHECK(stream.follow(theirs));
        }
        TWR_CHECK(to_result(tables.runtime->fill(device, arena, 0, cleared_bytes_, stream.get())));
        std::byte* const digest_scratch = scratch + gather_bytes_;
        std::byte* const sums_scratch = digest_scratch + digest_bytes_;
        std::byte* const tree_scratch = sums_scratch + sums_bytes_;
        std::vector<DeviceDigestItem> items;
        std::vector<DeviceSumsItem> sums;
        for (const Wave& wave : waves_) {
            for (const Part& part : wave) {
                const Piece& p = pieces_[part.piece];
                if (fields_->dense(p.field)) continue;
                TWR_CHECK(to_result(
                    tables.element->gather(device,
                                           gather_of(*fields_->arrays[p.field], p.first_item + part.first,
                                                     part.items, scratch + part.gathered),
                                           stream.get())));
            }
            digest_items(wave, arena, scratch, items);
            if (items.empty()) continue;
            TWR_CHECK(to_result(tables.digest->digest(device, items.data(), items.size(), digest_scratch,
                                                      host, stream.get())));
            std::size_t on_device = 0;
            std::size_t on_host = 0;
            tables.digest->scratch(items.data(), items.size(), &on_device, &on_host);
            host += align(on_host);
            sums_items(wave, arena, scratch, sums);
            if (sums.empty()) continue;
            TWR_CHECK(to_result(
                tables.sums->add(device, sums.data(), sums.size(), sums_scratch, host, stream.get())));
            tables.sums->scratch(sums.data(), sums.size(), &on_device, &on_host);
            host += align(on_host);
        }
        std::vector<DeviceTreeItem> trees;
        tree_items(arena, trees);
        if (trees.empty()) return success();
        return to_result(
            tables.tree->build(device, trees.data(), trees.size(), tree_scratch, host, stream.get()));
    }

   private:
    // Items of a piece that are digested in one call.
    struct Part {
        std::size_t piece;
        std::uint64_t first;  // item of the piece, at a slice's beginning
        std::uint64_t items;
        std::size_t gathered;  // where in the scratch memory, if they must be gathered
    };
    using Wave = std::vector<Part>;

    // An area as aligned as any, for items of which only the numbers are asked for.
    static std::byte* nowhere() { return reinterpret_cast<std::byte*>(kAlign); }

    // Where a part's items lie when they are digested.
    [[nodiscard]] const std::byte* data_of(const Part& part, const std::byte* gathered) const {
        const Piece& p = pieces_[part.piece];
        if (!fields_->dense(p.field)) return gathered + part.gathered;
        return static_cast<const std::byte*>(fields_->arrays[p.field]->data) +
               (p.first_item + part.first) * item_bytes(fields_->fields[p.field]->dtype);
    }
    void sums_items(const Wave& wave, std::byte* arena, const std::byte* gathered,
                    std::vector<DeviceSumsItem>& into) const {
        into.clear();
        for (const Part& part : wave) {
            const Piece& p = pieces_[part.piece];
            if (fields_->sums[p.field] == nullptr) continue;
            const DeviceSumsPlan& plan = *fields_->sums[p.field];
            const FieldMetadata& field = *fields_->fields[p.field];
            const std::uint64_t per_item = scalars_per_item(field.dtype);
            const std::uint64_t first = (p.first_item + part.first) * per_item;
            const std::uint64_t count = part.items * per_item;
            auto* const halves = reinterpret_cast<std::uint64_t*>(arena + p.sums) +
                                 (sums_slots(plan, first, count).first - p.slots.first) * kSumsWords;
            into.push_back(sums_item(plan, field, first, count, data_of(part, gathered), halves));
        }
    }
    void digest_items(const Wave& wave, std::byte* arena, std::byte* gathered,
                      std::vector<DeviceDigestItem>& into) const {
        into.clear();
        for (const Part& part : wave) {
            const Piece& p = pieces_[part.piece];
            const FieldMetadata& field = *fields_->fields[p.field];
            const ChunkShape shape = field.chunking();
            const std::size_t item = item_bytes(field.dtype);
            const std::uint64_t chunk = part.first * item / field.settings.chunk_bytes;  // of the piece
            const std::size_t words = node_words(field.settings.kind);
            DeviceDigestItem to;
            to.data = data_of(part, gathered);
            to.scalars = part.items * scalars_per_item(field.dtype);
            to.scalar = scalar_type(field.dtype);
            to.settings = field.settings;
            const std::uint64_t leaves = p.whole ? field.tree().first(0) : 0;
            to.leaves = reinterpret_cast<std::uint64_t*>(arena + p.tree) + (leaves + chunk) * words;
            if (p.fine_bytes != 0) to.fine = reinterpret_cast<std::uint64_t*>(arena + p.fine) + chunk;
            if (p.residue_bytes != 0)
                to.residues = arena + p.residues + chunk * shape.residue_bytes_per_chunk;
            auto* const stats = reinterpret_cast<Stats*>(arena) + part.piece;
            to.counts = &stats->counts;
            to.largest = &stats->largest;
            into.push_back(to);
        }
    }
    void tree_items(std::byte* arena, std::vector<DeviceTreeItem>& into) const {
        into.clear();
        for (const Piece& p : pieces_) {
            if (!p.whole) continue;
            const FieldMetadata& field = *fields_->fields[p.field];
            into.push_back({reinterpret_cast<std::uint64_t*>(arena + p.tree), field.chunks(),
                            field.settings.kind, field.chunking().blocks_per_chunk});
        }
    }

    const Fields* fields_;
    std::vector<Piece> pieces_;
    std::vector<Wave> waves_;
    std::size_t arena_bytes_ = 0;
    std::size_t cleared_bytes_ = 0;  // at its beginning
    std::size_t scratch_bytes_ = 0;
    std::size_t host_bytes_ = 0;
    std::size_t gather_bytes_ = 0;
    std::size_t digest_bytes_ = 0;
    std::size_t sums_bytes_ = 0;
    std::size_t tree_bytes_ = 0;
};

// Where the next batch begins.
struct Cursor {
    std::size_t field = 0;  // index into the fields of this device
    std::uint64_t slice = 0;
};

// Fills a batch from the cursor on, as far as `budget` bytes of device memory reach, at least with one slice. `mine`: the
// fields of this device. Returns where the next one begins.
Cursor fill_batch(const Fields& fields, std::span<const std::size_t> mine, const Tables& tables, Cursor from,
                  std::uint64_t budget, Batch& batch) {
    std::uint64_t to_gather = 0;
    std::uint64_t slice_to_gather = 0;
    for (std::size_t i = from.field; i < mine.size(); ++i) {
        const FieldMetadata& field = *fields.fields[mine[i]];
        if (fields.dense(mine[i])) continue;
        to_gather += align(field.data_bytes());
        slice_to_gather =
            std::max(slice_to_gather, std::min<std::uint64_t>(kSliceBytes, align(field.data_bytes())));
    }
    std::uint64_t room = budget;  // for the arena and the small rest
    for (;;) {
        batch.clear();
        std::uint64_t gather = to_gather;
        if (room != kNoLimit) gather = std::max(slice_to_gather, std::min(to_gather, room / 2));
        std::uint64_t left = room == kNoLimit ? kNoLimit : room > gather ? room - gather : 0;
        Cursor at = from;
        std::uint64_t slices = 0;
        while (at.field < mine.size()) {
            const std::size_t f = mine[at.field];
            const std::uint64_t all = fields.slices(f) - at.slice;
            std::uint64_t count = all;
            if (count != 0 && left != kNoLimit) {
                const std::uint64_t cost = Batch::arena_bytes_of(fields.piece(f, at.slice, count));
                if (cost > left) {
                    // A part of the field: every slice costs the same, and a little comes on top.
                    const std::uint64_t one = Batch::arena_bytes_of(fields.piece(f, at.slice, 1));
                    count = std::min(left / one, all - (all > 1 ? 1 : 0));
                    if (count == 0) {
                        if (slices != 0) break;
                        count = 1;
                    }
                }
                left -= std::min(left, Batch::arena_bytes_of(fields.piece(f, at.slice, count)));
            }
            if (count != 0) batch.add(fields.piece(f, at.slice, count));
            slices += count;
            if (count < all) {
                at.slice += count;
                break;
            }
            ++at.field;
            at.slice = 0;
        }
        batch.lay_out(tables, gather);
        const std::uint64_t need = batch.arena_bytes() + batch.scratch_bytes();
        if (budget == kNoLimit || need <= budget || slices <= 1) return at;
        const std::uint64_t over = need - budget;
        room = room > over + room / 16 ? room - over - room / 16 : 0;
    }
}

// Copies arenas to the host in parts, and what is in them to where it belongs.
class Collector {
   public:
    Collector(const Fields& fields, std::vector<BuiltField>& into, const TakeResidues& take)
        : fields_(fields), into_(into), take_(take), halves_(fields.fields.size()) {}

    Result<> collect(const Tables& tables, const Batch& batch, DeviceWorkspace& workspace,
                     const std::byte* arena, std::byte* staging, std::size_t staging_bytes) {
        areas_.clear();
        for (std::size_t i = 0; i < batch.pieces().size(); ++i) {
            const Piece& p = batch.pieces()[i];
            areas_.push_back({i * sizeof(Stats), sizeof(Stats), Kind::stats, i});
            areas_.push_back({p.sums, p.sums_bytes, Kind::sums, i});
            areas_.push_back({p.tree, p.tree_bytes, Kind::tree, i});
            areas_.push_back({p.fine, p.fine_bytes, Kind::fine, i});
            areas_.push_back({p.residues, p.residue_bytes, Kind::residues, i});
            prepare(p);
        }
        std::erase_if(areas_, [](const Area& a) { return a.bytes == 0; });
        std::sort(areas_.begin(), areas_.end(), [](const Area& x, const Area& y) { return x.at < y.at; });
        next_ = 0;
        const std::size_t end = batch.arena_bytes();
        const std::size_t half = staging_bytes / 2;
        std::size_t copied = 0;
        std::size_t taken = 0;
        const auto copy_next = [&](std::size_t number) -> Result<> {
            const std::size_t bytes = std::min(half, end - copied);
            TWR_CHECK(to_result(tables.runtime->copy(workspace.device(), staging + number % 2 * half,
                                                     arena + copied, bytes, workspace.stream().get())));
            TWR_CHECK(workspace.mark(number % 2));
            copied += bytes;
            return success();
        };
        TWR_CHECK(copy_next(0));
        for (std::size_t number = 0; taken < end; ++number) {
            if (copied < end) TWR_CHECK(copy_next(number + 1));
            TWR_CHECK(workspace.wait_mark(number % 2));
            const std::size_t bytes = std::min(half, end - taken);
            TWR_CHECK(take_part(batch, taken, {staging + number % 2 * half, bytes}));
            taken += bytes;
        }
        for (std::size_t i = 0; i < batch.pieces().size(); ++i)
            finish(batch.pieces()[i]);
        return success();
    }

   private:
    enum class Kind { stats, sums, tree, fine, residues };
    struct Area {
        std::size_t at;
        std::size_t bytes;
        Kind kind;
        std::size_t piece;
    };

    void prepare(const Piece& p) {
        const FieldMetadata& field = *fields_.fields[p.field];
        BuiltField& to = into_[p.field];
        if (p.first_chunk != 0) return;
        // Leaves of a field in parts come to where they will be in its tree.
        to.tree.resize(field.section_bytes(Section::tree) / 8);
        to.fine.resize(field.section_bytes(Section::fine) / 8);
        if (take_ == nullptr) {
            to.residues.resize(field.section_bytes(Section::residues));
        } else {
            to.residues.clear();
        }
        if (fields_.sums[p.field] != nullptr)
            halves_[p.field].assign(fields_.sums[p.field]->sums.count() * kSumsWords, 0);
    }
    // The last part of a field: its sums, and its tree if it came in parts.
    void finish(const Piece& p) {
        const FieldMetadata& field = *fields_.fields[p.field];
        if (p.first_chunk + p.chunks != field.chunks()) return;
        BuiltField& to = into_[p.field];
        if (const auto& plan = fields_.sums[p.field]; plan != nullptr) {
            to.sums = {plan->sums.height(), plan->sums.finish(halves_[p.field])};
            halves_[p.field] = {};
        }
        if (p.whole) return;
        const std::size_t words = node_words(field.settings.kind);
        to.tree = build_tree(field.settings.kind, field.chunking().blocks_per_chunk,
                             std::span<const std::uint64_t>(to.tree).subspan(field.tree().first(0) * words));
    }
    Result<> take_part(const Batch& batch, std::size_t begin, std::span<const std::byte> bytes) {
        const std::size_t end = begin + bytes.size();
        for (; next_ < areas_.size() && areas_[next_].at < end; ++next_) {
            const Area& area = areas_[next_];
            const std::size_t from = std::max(begin, area.at);
            const std::size_t stop = std::min(end, area.at + area.bytes);
            TWR_CHECK(take_area(batch.pieces()[area.piece], area, from - area.at,
                                bytes.subspan(from - begin, stop - from)));
            if (stop == end && area.at + area.bytes > end) break;  // the rest comes with the next part
        }
        return success();
    }
    Result<> take_area(const Piece& p, const Area& area, std::size_t offset,
                       std::span<const std::byte> bytes) {
        const FieldMetadata& field = *fields_.fields[p.field];
        BuiltField& to = into_[p.field];
        switch (area.kind) {
            case Kind::stats: {
                // 32 bytes at a multiple of 32: never in two parts.
                Stats stats;
                std::memcpy(&stats, bytes.data(), sizeof stats);
                double largest = 0;
                std::memcpy(&largest, &stats.largest, sizeof largest);
                to.counts.add(stats.counts);
                to.largest = std::max(to.largest, largest);
                return success();
            }
            case Kind::sums: {
                // Whole words: areas and parts begin at one. Pieces may share the bucket between them.
                std::uint64_t* at = &halves_[p.field][p.slots.first * kSumsWords + offset / 8];
                for (std::size_t i = 0; i < bytes.size(); i += 8) {
                    std::uint64_t word = 0;
                    std::memcpy(&word, bytes.data() + i, sizeof word);
                    *at++ += word;
                }
                return success();
            }
            case Kind::tree: {
                const std::size_t words = node_words(field.settings.kind);
                const std::uint64_t first = p.whole ? 0 : (field.tree().first(0) + p.first_chunk) * words;
                std::memcpy(reinterpret_cast<std::byte*>(to.tree.data() + first) + offset, bytes.data(),
                            bytes.size());
                return success();
            }
            case Kind::fine:
                std::memcpy(reinterpret_cast<std::byte*>(to.fine.data() + p.first_chunk) + offset,
                            bytes.data(), bytes.size());
                return success();
            case Kind::residues: {
                const std::uint64_t at = p.first_chunk * field.chunking().residue_bytes_per_chunk + offset;
                if (take_ != nullptr) return take_(p.field, at, bytes);
                std::memcpy(to.residues.data() + at, bytes.data(), bytes.size());
                return success();
            }
        }
        return success();
    }

    const Fields& fields_;
    std::vector<BuiltField>& into_;
    const TakeResidues& take_;
    std::vector<std::vector<std::uint64_t>> halves_;  // of the sums of each field
    std::vector<Area> areas_;
    std::size_t next_ = 0;
};

// What may be taken of a device's memory, given what we hold of it already.
std::uint64_t available(const Tables& tables, int device, std::uint64_t held) {
    std::uint64_t free = 0;
    if (tables.runtime->free_memory(device, &free).failed) return kNoLimit;  // the allocation will say
    // Where little is free, half of it: all would be left otherwise, and every batch would be of one slice.
    const std::uint64_t reserve = std::min(std::max(kLeastReserve, free / kReserveShare), free / 2);
    return held + free - reserve;
}

Result<std::uint64_t> build_fields_of(int device, std::span<const std::size_t> mine, const Fields& fields,
                                      std::vector<BuiltField>& into, const DeviceBuildOptions& options,
                                      const TakeResidues& take) {
    TWR_TRY(const Tables all, tables());
    TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device));
    Collector collector(fields, into, take);
    Batch batch(fields);
    std::uint64_t budget = options.memory_bytes == 0 ? kNoLimit : options.memory_bytes;
    std::uint64_t batches = 0;
    for (Cursor at; at.field < mine.size();) {
        Cursor next;
        for (;;) {
            next = fill_batch(fields, mine, all, at, budget, batch);
            const std::uint64_t need = batch.arena_bytes() + batch.scratch_bytes();
            if (need <= workspace->device_bytes()) break;
            if (budget == kNoLimit) {
                // Asked only where memory must grow: the answer takes the driver's lock.
                budget = available(all, device, workspace->device_bytes());
                if (need > budget) continue;
            }
            auto reserved =
                workspace->reserve_device(need, options.memory_bytes == 0 ? kNoLimit : options.memory_bytes);
            if (reserved) break;
            const bool smallest =
                batch.pieces().size() <= 1 && batch.pieces()[0].items <= fields.slice_items(mine[at.field]);
            if (reserved.error().code != ErrorCode::out_of_memory || smallest)
                return std::move(reserved).error();
            budget = std::min(budget, need) / 2;
        }
        if (!batch.pieces().empty()) {
            const std::size_t host = round_up(batch.host_bytes(), kPageBytes);
            const std::size_t staging =
                2 * std::min<std::size_t>(kStagingBytes, round_up(batch.arena_bytes(), kPageBytes));
            TWR_CHECK(workspace->reserve_host(host + staging));
            std::byte* const arena = workspace->device_memory();
            TWR_CHECK(batch.submit(all, workspace->stream(), arena, arena + batch.arena_bytes(),
                                   workspace->host_memory()));
            TWR_CHECK(
                collector.collect(all, batch, *workspace, arena, workspace->host_memory() + host, staging));
            ++batches;
        }
        at = next;
    }
    return batches;
}

Result<> check_fields(const Fields& fields) {
    if (fields.fields.size() != fields.arrays.size()) {
        return Error{ErrorCode::invalid_argument, "another number of arrays than of fields"};
    }
    for (std::size_t f = 0; f < fields.fields.size(); ++f) {
        const FieldMetadata& field = *fields.fields[f];
        const DeviceArray& array = *fields.arrays[f];
        if (array.dtype != field.dtype || array.items() != field.items()) {
            return Error{ErrorCode::mismatch,
                         "field '" + field.name + "': the array has another type or size"};
        }
        if (auto checked = check_array(array); !checked)
            return std::move(checked).error().at("field '" + field.name + "'");
    }
    return success();
}

Error no_memory() {
    return Error{ErrorCode::out_of_memory, "not enough memory for the digests of device arrays"};
}

}  // namespace

Result<DeviceBuildStats> build_on_device(std::span<const FieldMetadata* const> fields,
                                         std::span<const DeviceArray* const> arrays,
                                         std::vector<BuiltField>& into, const DeviceBuildOptions& options,
                                         const TakeResidues& take) try {
    const auto start = std::chrono::steady_clock::now();
    Fields all{fields, arrays};
    TWR_CHECK(check_fields(all));
    TWR_CHECK(tables());
    all.plan_sums();
    into.resize(fields.size());
    std::map<int, std::vector<std::size_t>> of_device;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        BuiltField& to = into[f];
        to.tree.clear();
        to.fine.clear();
        to.residues.clear();
        to.counts = {};
        to.largest = 0;
        to.sums.reset();
        if (all.sums[f] != nullptr && fields[f]->items() == 0) to.sums = {all.sums[f]->sums.height(), {}};
        if (fields[f]->items() != 0) of_device[arrays[f]->device].push_back(f);
    }
    struct Work {
        int device;
        std::span<const std::size_t> mine;
        Result<std::uint64_t> result = std::uint64_t{0};
    };
    std::vector<Work> work;
    for (const auto& [device, mine] : of_device)
        work.push_back({device, mine});
    const auto run = [&](Work& w) {
        try {
            w.result = build_fields_of(w.device, w.mine, all, into, options, take);
        } catch (const std::bad_alloc&) {
            w.result = no_memory();
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t w = 1; w < work.size(); ++w)
            others.emplace_back([&run, &one = work[w]] { run(one); });
        if (!work.empty()) run(work[0]);
    }
    DeviceBuildStats stats;
    for (Work& w : work) {
        if (!w.result) return std::move(w.result).error();
        stats.batches += *w.result;
    }
    stats.devices = work.size();
    stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return stats;
} catch (const std::bad_alloc&) {
    return no_memory();
} catch (const std::system_error& e) {
    return Error{ErrorCode::out_of_memory, std::string("no thread for another device: ") + e.what()};
}

// ---- sketches on a device ----

struct DeviceSketch::Memory {
    DeviceWorkspaces::Lease workspace;
};

int DeviceSketch::device() const { return memory_->workspace->device(); }

std::uint64_t DeviceSketch::bytes() const {
    return field_.section_bytes(Section::tree) + field_.section_bytes(Section::fine) +
           field_.section_bytes(Section::residues) +
           (plan_ == nullptr ? 0 : plan_->sums.count() * kSumsWords * sizeof(std::uint64_t));
}

Result<std::vector<DeviceSketch>> DeviceSketch::build(std::span<const FieldMetadata* const> fields,
                                                      std::span<const DeviceArray* const> arrays,
                                                      const DeviceBuildOptions& options) try {
    Fields all_fields{fields, arrays};
    TWR_CHECK(check_fields(all_fields));
    TWR_TRY(const Tables all, tables());
    all_fields.plan_sums();
    std::vector<DeviceSketch> sketches(fields.size());
    if (fields.empty()) return sketches;
    const int device = arrays[0]->device;
    Batch batch(all_fields);
    std::uint64_t to_gather = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        if (arrays[f]->device != device) {
            return Error{ErrorCode::invalid_argument,
                         "sketches of arrays of several devices: build those of each by themselves"};
        }
        if (fields[f]->items() == 0) continue;
        batch.add(all_fields.piece(f, 0, all_fields.slices(f)));
        if (!all_fields.dense(f)) to_gather += align(fields[f]->data_bytes());
    }
    const auto memory = std::make_shared<Memory>();
    TWR_TRY(memory->workspace, DeviceWorkspaces::sketches().lease(device));
    TWR_TRY(auto scratch, DeviceWorkspaces::builds().lease(device));
    batch.lay_out(all, to_gather);
    TWR_CHECK(memory->workspace->reserve_device(std::max<std::size_t>(batch.arena_bytes(), 1)));
    std::uint64_t gather = to_gather;
    if (options.memory_bytes != 0) gather = std::min(gather, options.memory_bytes);
    for (;;) {
        batch.lay_out(all, gather);
        if (batch.scratch_bytes() <= scratch->device_bytes()) break;
        if (gather == to_gather && gather > kSliceBytes) {
            gather = std::min(gather, available(all, device, scratch->device_bytes()));
            batch.lay_out(all, gather);
        }
        auto reserved = scratch->reserve_device(batch.scratch_bytes());
        if (reserved) break;
        if (reserved.error().code != ErrorCode::out_of_memory || gather <= kSliceBytes)
            return std::move(reserved).error();
        gather /= 2;
    }
    const std::size_t stats_bytes = batch.pieces().size() * sizeof(Stats);
    TWR_CHECK(scratch->reserve_host(batch.host_bytes() + stats_bytes));
    std::byte* const arena = memory->workspace->device_memory();
    // The stream of the scratch memory: the lease ends with what is in it.
    DeviceStream& stream = scratch->stream();
    std::byte* const host_stats = scratch->host_memory() + batch.host_bytes();
    if (!batch.pieces().empty()) {
        TWR_CHECK(batch.submit(all, stream, arena, scratch->device_memory(), scratch->host_memory()));
        TWR_CHECK(to_result(all.runtime->copy(device, host_stats, arena, stats_bytes, stream.get())));
        TWR_CHECK(stream.wait());
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
        sketches[f].field_ = *fields[f];
        sketches[f].field_.counts = {};
        sketches[f].field_.largest_sampled = 0;
        sketches[f].memory_ = memory;
        sketches[f].plan_ = all_fields.sums[f];
    }
    for (std::size_t i = 0; i < batch.pieces().size(); ++i) {
        const Piece& p = batch.pieces()[i];
        DeviceSketch& sketch = sketches[p.field];
        sketch.tree_ = p.tree;
        sketch.fine_ = p.fine;
        sketch.residues_ = p.residues;
        sketch.sums_ = p.sums;
        Stats stats;
        std::memcpy(&stats, host_stats + i * sizeof stats, sizeof stats);
        sketch.field_.counts = stats.counts;
        std::memcpy(&sketch.field_.largest_sampled, &stats.largest, sizeof stats.largest);
    }
    return sketches;
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
    const auto memory = std::make_shared<Memory>();
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
            end += align(parts[s].size());
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

Result<SketchComparison> DeviceSketch::compare(const DeviceSketch& b, const DifferenceRule& rule) const try {
    const FieldMetadata& field = field_;
    if (field.dtype != b.field_.dtype || field.items() != b.field_.items()) {
        return Error{ErrorCode::mismatch, "the fields have different types or sizes"};
    }
    if (device() != b.device()) {
        return Error{ErrorCode::mismatch, "the sketches lie on different devices: upload one to the other's"};
    }
    const bool published = field.settings.kind == DigestKind::published;
    if (std::string why =
            why_not_staged(field, b.field_, published ? Method::published : Method::staged, rule);
        !why.empty()) {
        return Error{ErrorCode::mismatch, std::move(why)};
    }
    TWR_TRY(const Tables all, tables());
    SketchComparison found;
    const std::uint64_t chunks = found.chunks = field.chunks();
    if (chunks == 0) return found;
    if (chunks >> 32 != 0)
        return Error{ErrorCode::unsupported, "a field of more than 2^32 chunks: use larger ones"};
    const CellRule& cells = field.settings.rule;
    const ProofReach reach = proof_reach(cells, field.settings.tolerance, rule.tolerance);
    const bool by_tree = published || reach.coarse_proves;
    const bool by_residues = field.section_bytes(Section::fine) != 0 && cells.residue_bits != 0;
    const std::uint64_t chunk_scalars = field.chunking().chunk_scalars;

    TWR_TRY(auto workspace, DeviceWorkspaces::builds().lease(device()));
    // count, counts by |c| | flagged chunks | proven | scratch of the walk
    constexpr std::size_t kHead = 9 * sizeof(std::uint64_t);
    const std::size_t flagged_at = align(kHead);
    const std::size_t proven_at = flagged_at + align(chunks * sizeof(std::uint32_t));
    const std::size_t scratch_at = proven_at + align(chunks);
    TWR_CHECK(workspace->reserve_device(scratch_at + (by_tree ? all.tree->walk_scratch(chunks) : 0)));
    TWR_CHECK(workspace->reserve_host(align(kHead)));
    std::byte* const base = workspace->device_memory();
    auto* const numbers = reinterpret_cast<std::uint64_t*>(base);
    auto* const flagged = reinterpret_cast<std::uint32_t*>(base + flagged_at);
    auto* const proven = reinterpret_cast<std::uint8_t*>(base + proven_at);
    auto* const host_numbers = reinterpret_cast<std::uint64_t*>(workspace->host_memory());
    const std::byte* const mine = memory_->workspace->device_memory();
    const std::byte* const theirs = b.memory_->workspace->device_memory();
    const StreamHandle stream = workspace->stream().get();
    TWR_CHECK(to_result(all.runtime->fill(device(), base, 0, kHead, stream)));
    std::uint64_t count = chunks;
    if (by_tree) {
        TWR_CHECK(
            to_result(all.tree->walk(device(), reinterpret_cast<const std::uint64_t*>(mine + tree_),
                                     reinterpret_cast<const std::uint64_t*>(theirs + b.tree_), chunks,
                                     field.settings.kind, flagged, numbers, base + scratch_at, stream)));
        TWR_CHECK(
            to_result(all.runtime->copy(device(), host_numbers, numbers, sizeof(std::uint64_t), stream)));
        TWR_CHECK(workspace->stream().wait());
        count = host_numbers[0];
        if (count > chunks) return Error{ErrorCode::internal, "more chunks differ than there are"};
    }
    std::uint64_t unproven = count * chunk_scalars;
    found.flagged.resize(count);
    if (by_tree) {
        TWR_CHECK(to_result(all.runtime->copy(device(), found.flagged.data(), flagged, count * 4, stream)));
        TWR_CHECK(workspace->stream().wait());
    } else {
        for (std::uint64_t c = 0; c < count; ++c)
            found.flagged[c] = static_cast<std::uint32_t>(c);
    }
    // The last chunk may be short.
    if (count != 0 && found.flagged.back() == chunks - 1)
        unproven -= chunks * chunk_scalars - field.scalars();
    found.by_tree = field.scalars() - unproven;
    if (count == 0) return found;
    if (!by_residues) {
        found.open = found.flagged;
        return found;
    }
    DeviceSketchItem item;
    item.fine_a = reinterpret_cast<const std::uint64_t*>(mine + fine_);
    item.fine_b = reinterpret_cast<const std::uint64_t*>(theirs + b.fine_);
    item.residues_a = mine + residues_;
    item.residues_b = theirs + b.residues_;
    item.scalars = field.scalars();
    item.scalar = scalar_type(field.dtype);
    item.chunk_bytes = field.settings.chunk_bytes;
    item.residue_bits = cells.residue_bits;
    item.widest = reach.widest;
    item.chunks = by_tree ? flagged : nullptr;
    item.count = count;
    item.proven = proven;
    item.counts = numbers + 1;
    TWR_CHECK(to_result(all.digest->sketch(device(), item, stream)));
    std::vector<std::uint8_t> is_proven(count);
    TWR_CHECK(to_result(all.runtime->copy(device(), host_numbers, numbers, kHead, stream)));
    TWR_CHECK(to_result(all.runtime->copy(device(), is_proven.data(), proven, count, stream)));
    TWR_CHECK(workspace->stream().wait());
    std::copy_n(host_numbers + 1, found.by_cells.size(), found.by_cells.begin());
    for (std::uint64_t i = 0; i < count; ++i) {
        if (is_proven[i] == 0) found.open.push_back(found.flagged[i]);
    }
    return found;
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace twinrun
