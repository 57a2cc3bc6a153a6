#include "aggregate/plan/stripes.hpp"

#include <algorithm>

namespace twinrun {
inline namespace aggregate_plan {

StripePart stripe_at(const StripeCut& stripes, std::uint64_t offset, std::uint64_t bytes) {
    if (stripes.files == 1) return {0, offset, bytes};
    const std::uint64_t number = offset / stripes.bytes;
    const std::uint64_t within = offset % stripes.bytes;
    return {static_cast<std::size_t>(number % stripes.files), number / stripes.files * stripes.bytes + within,
            std::min(bytes, stripes.bytes - within)};
}

std::uint64_t length_in_file(const StripeCut& stripes, std::size_t file, std::uint64_t whole) {
    if (stripes.files == 1) return whole;
    const std::uint64_t full = whole / stripes.bytes;  // stripes
    const std::uint64_t rounds = full / stripes.files;
    const std::uint64_t more = full % stripes.files;
    const std::uint64_t tail = file == more ? whole % stripes.bytes : 0;
    return (rounds + (file < more ? 1 : 0)) * stripes.bytes + tail;
}

std::vector<std::vector<StridedSet>> stripe_places(const StripeCut& stripes, std::uint64_t whole) {
    std::vector<std::vector<StridedSet>> places(stripes.files);
    const std::uint64_t round = stripes.files * stripes.bytes;
    for (std::size_t file = 0; file < stripes.files; ++file) {
        const std::uint64_t length = length_in_file(stripes, file, whole);
        const std::uint64_t full = length / stripes.bytes;
        const std::uint64_t tail = length % stripes.bytes;
        const std::uint64_t begin = file * stripes.bytes;
        if (full != 0) places[file].push_back({begin, stripes.bytes, full, round});
        if (tail != 0) places[file].push_back({begin + full * round, tail, 1, tail});
    }
    return places;
}

std::optional<StripeCut> stripes_of(std::span<const std::vector<StridedSet>> places, std::uint64_t whole,
                                    std::uint64_t likely) {
    if (places.size() < 2 || likely == 0) return std::nullopt;
    StripeCut stripes{places.size(), (whole / likely + 1) * likely};
    if (!places[1].empty()) {
        stripes.bytes = places[1].front().offset;
    } else if (!places[0].empty() && places[0].front().stride != places[0].front().width) {
        stripes.bytes = places[0].front().width;
    }
    if (stripes.bytes == 0 || stripes.bytes > kLargestStripeOfFile) return std::nullopt;
    const auto expected = stripe_places(stripes, whole);
    const bool same = std::equal(places.begin(), places.end(), expected.begin(), expected.end());
    return same ? std::optional(stripes) : std::nullopt;
}

}  // namespace aggregate_plan
}  // namespace twinrun
