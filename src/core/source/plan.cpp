#include "source/plan.hpp"

#include <algorithm>

namespace twinrun {

ReadPlan plan_reads(std::span<const Range> chunks, std::uint64_t bytes_per_chunk, std::uint64_t slice_bytes,
                    std::uint64_t gap, std::uint64_t most_windows, std::uint64_t grain) {
    ReadPlan plan;
    const std::uint64_t most = std::max<std::uint64_t>(1, slice_bytes / bytes_per_chunk);
    const std::uint64_t gap_chunks = gap / bytes_per_chunk;
    for (Range range : chunks) {
        while (range.begin < range.end) {
            Window* last = plan.windows.empty() ? nullptr : &plan.windows.back();
            const std::uint64_t stop = grain == 0 ? range.end : (range.begin / grain + 1) * grain;
            const bool near = last != nullptr && range.begin - last->end <= gap_chunks &&
                              (grain == 0 || last->begin / grain == range.begin / grain);
            if (near && range.begin < last->begin + most) {
                const Range part{range.begin, std::min({range.end, stop, last->begin + most})};
                plan.parts.push_back(part);
                last->end = part.end;
                last->last_part = plan.parts.size();
                range.begin = part.end;
                continue;
            }
            const Range part{range.begin, std::min({range.end, stop, range.begin + most})};
            plan.parts.push_back(part);
            plan.windows.push_back({part.begin, part.end, plan.parts.size() - 1, plan.parts.size()});
            range.begin = part.end;
        }
    }
    std::uint64_t in_slice = 0;
    for (std::size_t w = 0; w < plan.windows.size(); ++w) {
        const std::uint64_t size = plan.windows[w].end - plan.windows[w].begin;
        plan.chunks_read += size;
        if (plan.slices.empty() || in_slice + size > most || plan.slices.back().size() >= most_windows) {
            plan.slices.push_back({w, w});
            in_slice = 0;
        }
        plan.slices.back().end = w + 1;
        in_slice += size;
        plan.largest_slice = std::max(plan.largest_slice, in_slice);
        plan.most_windows = std::max(plan.most_windows, plan.slices.back().size());
    }
    return plan;
}

}  // namespace twinrun
