// How a new file is laid out on Lustre's storage targets. The layout is set when a file is made, by
// Lustre's library (opened at run time) or its command.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace twinrun {
inline namespace aggregate_plan {

struct Striping {
    int factor = 0;          // targets that have stripes; -1: all; 0: the folder's
    std::uint64_t unit = 0;  // bytes of a stripe, a multiple of kStripeUnit; 0: the folder's
    [[nodiscard]] bool asked() const { return factor != 0 || unit != 0; }
};
inline constexpr std::uint64_t kStripeUnit = 65536;
inline constexpr std::uint64_t kLargestStripe = std::uint64_t{4} << 30;  // less than this
inline constexpr int kMostStripes = 65535;

// Whether this is there and lies on Lustre.
[[nodiscard]] bool on_lustre(const std::string& path);

// Makes a new, empty file with these stripes, open for writing; its folder must be on Lustre. No
// file may have the name. nullopt: it cannot be made so. Then an empty file without the stripes may
// be there.
[[nodiscard]] std::optional<int> create_striped(const std::string& path, const Striping& striping);

}  // namespace aggregate_plan
}  // namespace twinrun
