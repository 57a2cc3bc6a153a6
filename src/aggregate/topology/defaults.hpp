// Rates that a topology assumes where its source has none. Bytes a second, and seconds.
#pragma once

namespace twinrun::topology_defaults {

// Between processes of one node: roughly a copy at the bandwidth of DDR4 in a two-socket node.
inline constexpr float kMemory = 25e9F;

// Links of 100 Gb/s, 0.1 us a switch: InfiniBand EDR's data sheets (12.5 GB/s, less than 90 ns).
inline constexpr float kLink = 12.5e9F;
inline constexpr float kSwitch = 1e-7F;

}  // namespace twinrun::topology_defaults
