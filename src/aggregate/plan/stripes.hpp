// A whole file in stripes over several sub-files: stripe i lies in file i modulo their number, and
// a file has its stripes one behind the other. No I/O.
//
// Example: 2 files and stripes of 4 bytes. File 0 has the bytes 0 to 3 and 8 to 11 of the whole,
// file 1 has 4 to 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "aggregate/plan/layout.hpp"

namespace twinrun {
inline namespace aggregate_plan {

struct StripeCut {
    std::size_t files = 1;
    std::uint64_t bytes = 1;  // of a stripe
    bool operator==(const StripeCut&) const = default;
};

// So that no product of these overflows.
inline constexpr std::uint64_t kLargestStripeOfFile = std::uint64_t{1} << 40;
inline constexpr std::size_t kMostStripedFiles = 256;

// Bytes of the whole that lie behind each other in one file, too.
struct StripePart {
    std::size_t file = 0;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
};
// The front part of the `bytes` bytes at `offset` of the whole.
[[nodiscard]] StripePart stripe_at(const StripeCut& stripes, std::uint64_t offset, std::uint64_t bytes);
// How long a file is where the whole has so many bytes.
[[nodiscard]] std::uint64_t length_in_file(const StripeCut& stripes, std::size_t file, std::uint64_t whole);
// Where the bytes of each file lie in the whole, as an index of sub-files has them.
[[nodiscard]] std::vector<std::vector<StridedSet>> stripe_places(const StripeCut& stripes,
                                                                 std::uint64_t whole);
// The stripes of these places; nullopt: the files are not cut in stripes. likely: bytes of a
// stripe, where all bytes lie in the first one and so any longer one is possible.
[[nodiscard]] std::optional<StripeCut> stripes_of(std::span<const std::vector<StridedSet>> places,
                                                  std::uint64_t whole, std::uint64_t likely);

}  // namespace aggregate_plan
}  // namespace twinrun
