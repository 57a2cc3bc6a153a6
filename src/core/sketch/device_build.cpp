#include "sketch/device_build.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <system_error>
#include <thread>

#include "base/checked.hpp"
#include "device/device_workspace.hpp"
#include "sketch/device_batch.hpp"
#include "tree/build.hpp"

namespace twinrun {

using namespace device_batch;

namespace {

// Results go to the host through two page-locked areas of this size: large enough that the copies' latency does not show.
constexpr std::size_t kStagingBytes = 16 << 20;

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
        to_gather += device_aligned(field.data_bytes());
        slice_to_gather = std::max(slice_to_gather,
                                   std::min<std::uint64_t>(kSliceBytes, device_aligned(field.data_bytes())));
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

}  // namespace twinrun
