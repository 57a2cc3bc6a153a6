// A file's stripes on Lustre, out of its extended attribute "lustre.lov". Bytes from outside: whatever they hold, the answer is a size or
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace twinrun {

// Bytes of a stripe: of a plain layout (v1, v3, one with chosen targets), or the largest of a composite one's components that lie on
// object servers. nullopt: not such an attribute, or damaged.
[[nodiscard]] std::optional<std::uint64_t> stripe_bytes_in(std::span<const std::byte> layout);

// Of a file or folder there; nullopt where the file system has no such attribute.
[[nodiscard]] std::optional<std::uint64_t> stripe_bytes_of(const std::string& path);

// The largest part of a stripe that partitions can be cut at: stripes beyond `most` are halved until they fit.
[[nodiscard]] std::uint64_t block_of_stripes(std::uint64_t stripe_bytes, std::uint64_t most);

}  // namespace twinrun
