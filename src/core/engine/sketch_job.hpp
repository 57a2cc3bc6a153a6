// The sketch stage of a comparison, on the CPU: also the base of that on devices.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.hpp"
#include "metadata/metadata.hpp"
#include "sketch/proof.hpp"
#include "source/plan.hpp"
#include "source/source.hpp"
#include "source/stream.hpp"
#include "source/tuning.hpp"

namespace twinrun {

// Fine digests and residues of the chunks that the tree left open.
class SketchJob : public SliceJob {
   public:
    SketchJob(MetadataFile& a, std::size_t field_a, MetadataFile& b, std::size_t field_b,
              std::span<const Range> chunks, const ChunkProof& proof, bool elements_at_hand, CacheUse cache,
              int workers, std::uint64_t slice_bytes = kSliceBytes / 4)
        : sides_{Side{&a, field_a}, Side{&b, field_b}},
          field_(a.directory().fields[field_a]),
          proof_(proof),
          shape_(proof.shape()) {
        for (Side& side : sides_) {
            const FieldMetadata& f = side.file->directory().fields[side.field];
            const SectionPlace& residues = f.place(Section::residues);
            const bool aligned = residues.offset % kDirectAlignment == 0 &&
                                 f.place(Section::fine).offset % kDirectAlignment == 0;
            const MetadataFile::Place place = side.file->place_of(residues.offset);
            const bool cold = cache == CacheUse::direct ||
                              (cache == CacheUse::automatic &&
                               place.file->cached_share(place.offset, residues.length) < kCachedShare);
            side.direct = aligned && cold && place.file->direct_descriptor() >= 0;
            storage_ = storage_ || side.direct;
        }
        const std::uint64_t gap = storage_ ? kGapOnStorage : kGapInCache;
        if (elements_at_hand) {
            // What is left to the elements does not depend on the size of slices.
            plan_ = plan_reads(chunks, shape_.residue_bytes_per_chunk, kSliceBytes / 4, gap, kMostWindows,
                               kRangeBytes / field_.settings.chunk_bytes);
            const std::vector<Range> kept = leave_cheap();
            plan_ = plan_reads(kept, shape_.residue_bytes_per_chunk, slice_bytes, gap, kMostWindows);
        } else {
            plan_ = plan_reads(chunks, shape_.residue_bytes_per_chunk, slice_bytes, gap, kMostWindows);
        }
        const std::uint64_t pages = plan_.most_windows * 2 * kPageBytes;
        room_ = round_up(plan_.largest_slice * shape_.residue_bytes_per_chunk + pages, kPageBytes) +
                round_up(plan_.largest_slice * 8 + pages, kPageBytes);
        open_.resize(plan_.slices.size());
        for (int w = 0; w < workers; ++w)
            drift_.emplace_back();
    }
    [[nodiscard]] std::uint64_t slices() const override { return plan_.slices.size(); }
    [[nodiscard]] std::size_t buffer_bytes() const override { return 2 * room_; }
    [[nodiscard]] std::uint64_t total_bytes() const override {
        return plan_.chunks_read * (shape_.residue_bytes_per_chunk + 8) * 2;
    }
    [[nodiscard]] bool on_storage() const override { return storage_; }

    Result<> plan(std::uint64_t slice, std::byte* buffer, std::vector<ReadRequest>& requests) override {
        for (Side& side : sides_) {
            std::byte* to = buffer;
            for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
                for (const Section section : {Section::fine, Section::residues}) {
                    const Pages pages = pages_of(section, plan_.windows[w]);
                    const MetadataFile::Place place =
                        side.file->place_of(side.file->directory().fields[side.field].place(section).offset);
                    ReadRequest request;
                    request.file = place.file;
                    request.offset = place.offset + pages.begin;
                    request.at_least = pages.end - pages.begin;
                    request.direct = side.direct;
                    request.bytes = side.direct ? round_up(request.at_least, kPageBytes) : request.at_least;
                    request.to = to;
                    requests.push_back(request);
                    to += round_up(pages.end - pages.begin, kPageBytes);
                }
            }
            buffer += room_;
        }
        return success();
    }

    Result<> process(std::uint64_t slice, std::byte* buffer, int worker) override {
        return for_each_window(slice, buffer, [&](const Window& window, const Sketches& at, std::size_t) {
            for (std::size_t p = window.first_part; p < window.last_part; ++p) {
                for (std::uint64_t c = plan_.parts[p].begin; c < plan_.parts[p].end; ++c) {
                    const std::uint64_t from = c - window.begin;
                    const SketchVerdict verdict =
                        proof_.residues_say(c, fine(at.fine[0], from), fine(at.fine[1], from),
                                            at.residues[0] + from * shape_.residue_bytes_per_chunk,
                                            at.residues[1] + from * shape_.residue_bytes_per_chunk);
                    if (verdict.proven) {
                        add_counts(worker, verdict.counts);
                    } else {
                        leave_open(slice, c);
                    }
                }
            }
            return success();
        });
    }

    // Chunks that the sketches did not prove equal, in order.
    [[nodiscard]] std::vector<Range> open() const {
        std::vector<Range> some = left_;
        for (const auto& slice : open_)
            some.insert(some.end(), slice.begin(), slice.end());
        std::sort(some.begin(), some.end(), [](const Range& x, const Range& y) { return x.begin < y.begin; });
        std::vector<Range> all;
        for (const Range& r : some) {
            if (!all.empty() && all.back().end == r.begin) {
                all.back().end = r.end;
            } else {
                all.push_back(r);
            }
        }
        return all;
    }
    // Chunks whose sketches were read.
    [[nodiscard]] std::uint64_t chunks_read() const {
        std::uint64_t n = 0;
        for (const Range& r : plan_.parts)
            n += r.size();
        return n;
    }
    [[nodiscard]] std::array<std::uint64_t, 8> counts() const {
        ProvenDrift all;
        for (const Drift& d : drift_)
            all.add(d.proven.by_cells);
        return all.by_cells;
    }

   protected:
    // The sketches of both sides, from a window's first chunk on.
    struct Sketches {
        std::array<const std::byte*, 2> fine{};
        std::array<const std::byte*, 2> residues{};
    };
    // visit(window, sketches, bytes of a side's buffer up to the window's end), for each window of
    // a slice whose reads are done; the pages' checksums were checked.
    template <class Visit>
    Result<> for_each_window(std::uint64_t slice, std::byte* buffer, Visit visit) {
        std::size_t used = 0;
        for (std::uint64_t w = plan_.slices[slice].begin; w < plan_.slices[slice].end; ++w) {
            const Window& window = plan_.windows[w];
            Sketches at;
            for (const Section section : {Section::fine, Section::residues}) {
                const Pages pages = pages_of(section, window);
                const std::size_t bytes = pages.end - pages.begin;
                for (std::size_t s = 0; s < 2; ++s) {
                    const std::byte* from = buffer + s * room_ + used;
                    TWR_CHECK(sides_[s].file->check_pages(sides_[s].field, section, pages.begin / kPageBytes,
                                                          {from, bytes}));
                    (section == Section::fine ? at.fine : at.residues)[s] =
                        from + (window.begin * unit(section) - pages.begin);
                }
                used += round_up(bytes, kPageBytes);
            }
            TWR_CHECK(visit(window, at, used));
        }
        return success();
    }
    void add_counts(int worker, const std::array<std::uint64_t, 8>& counts) {
        drift_[static_cast<std::size_t>(worker)].proven.add(counts);
    }
    void leave_open(std::uint64_t slice, std::uint64_t chunk) {
        auto& open = open_[slice];
        if (!open.empty() && open.back().end == chunk) {
            open.back().end = chunk + 1;
        } else {
            open.push_back({chunk, chunk + 1});
        }
    }
    [[nodiscard]] const ReadPlan& reads() const { return plan_; }
    [[nodiscard]] const ChunkProof& proof() const { return proof_; }
    [[nodiscard]] std::size_t room() const { return room_; }  // of a side, in the buffer

   private:
    static constexpr std::uint64_t kMostWindows = 32;
    struct Side {
        MetadataFile* file;
        std::size_t field;
        bool direct = false;
    };
    struct alignas(64) Drift {
        ProvenDrift proven;
    };
    struct Pages {
        std::uint64_t begin;
        std::uint64_t end;
    };
    // A few chunks far from others: the pages that hold their sketches are no fewer than those of
    // their elements, which say more. Keeps these in left_ and returns the other chunks.
    std::vector<Range> leave_cheap() {
        std::vector<Range> kept;
        for (const Window& window : plan_.windows) {
            std::uint64_t pages = 0;
            for (const Section section : {Section::fine, Section::residues}) {
                const Pages p = pages_of(section, window);
                pages += round_up(p.end - p.begin, kPageBytes);
            }
            auto& to = pages >= (window.end - window.begin) * field_.settings.chunk_bytes ? left_ : kept;
            to.insert(to.end(), plan_.parts.begin() + static_cast<std::ptrdiff_t>(window.first_part),
                      plan_.parts.begin() + static_cast<std::ptrdiff_t>(window.last_part));
        }
        return kept;
    }
    [[nodiscard]] std::uint64_t unit(Section section) const {
        return section == Section::fine ? 8 : shape_.residue_bytes_per_chunk;
    }
    [[nodiscard]] Pages pages_of(Section section, const Window& window) const {
        const std::uint64_t begin = window.begin * unit(section) & ~(kPageBytes - 1);
        return {begin,
                std::min(round_up(window.end * unit(section), kPageBytes), field_.section_bytes(section))};
    }
    static std::uint64_t fine(const std::byte* digests, std::uint64_t chunk) {
        std::uint64_t word = 0;
        __builtin_memcpy(&word, digests + chunk * 8, 8);
        if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
        return word;
    }
    std::array<Side, 2> sides_;
    const FieldMetadata& field_;
    const ChunkProof& proof_;
    const ChunkShape& shape_;
    bool storage_ = false;
    ReadPlan plan_;
    std::vector<Range> left_;  // to the elements, unread
    std::size_t room_ = 0;
    std::vector<std::vector<Range>> open_;  // of each slice
    std::vector<Drift> drift_;
};

}  // namespace twinrun
