// The stripes of a file on Lustre, from its extended attribute "lustre.lov". Its bytes come from
// outside: any bytes give a size or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace twinrun {
inline namespace aggregate_plan {

// Bytes of a stripe of a plain layout (v1, v3, with chosen targets). Of a composite layout the
// largest stripe among components on object servers. nullopt: another attribute, or a damaged one.
[[nodiscard]] std::optional<std::uint64_t> stripe_bytes_in(std::span<const std::byte> layout);

// The same for a file or folder; nullopt if its file system has no such attribute.
[[nodiscard]] std::optional<std::uint64_t> stripe_bytes_of(const std::string& path);

// The block size at which partitions are cut: the stripe, halved until it is at most `most`.
[[nodiscard]] std::uint64_t block_of_stripes(std::uint64_t stripe_bytes, std::uint64_t most);

}  // namespace aggregate_plan
}  // namespace twinrun
