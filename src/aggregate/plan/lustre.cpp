#include "aggregate/plan/lustre.hpp"

#include <sys/xattr.h>

#include <algorithm>
#include <vector>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

// struct lov_user_md_v1 and _v3, lov_comp_md_v1 and lov_comp_md_entry_v1 of Lustre's lustre_user.h:
// packed, little-endian. At:
//   plain:      magic 0, pattern 4, (object's id 8), stripe size 24, stripe count 28 (2 bytes),
//               generation 30; pool's name 32 (v3)
//   composite:  magic 0, size 4, generation 8, flags 12, number of entries 14 (2 bytes),
//               mirrors 16; entries from 32 on
//   an entry:   id 0, flags 4, extent 8 and 16 (8 bytes each), offset of its plain layout 24, size
//               of that 28; 48 bytes
constexpr std::uint32_t kPlain = 0x0BD10BD0;
constexpr std::uint32_t kPlainWithPool = 0x0BD30BD0;
constexpr std::uint32_t kPlainOfChosen = 0x0BD50BD0;
constexpr std::uint32_t kComposite = 0x0BD60BD0;
constexpr std::size_t kPlainBytes = 32;
constexpr std::size_t kPoolBytes = 16;
constexpr std::size_t kCompositeBytes = 32;
constexpr std::size_t kEntryBytes = 48;
constexpr std::uint32_t kOnMetadataServer = 0x100;  // a pattern's bit: the component has no stripes
constexpr std::uint32_t kForeign = 0x400;           // the layout of another file system
constexpr std::uint64_t kUnit = 65536;              // stripes are multiples of it
constexpr std::size_t kLargestAttribute = 65536;    // of an attribute: Linux's XATTR_SIZE_MAX

template <class T>
T number(std::span<const std::byte> bytes, std::size_t at) {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
        value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(bytes[at + i]) << (8 * i)));
    return value;
}

struct Stripes {
    std::uint64_t bytes = 0;  // 0: no stripes
};

std::optional<Stripes> plain_layout(std::span<const std::byte> layout) {
    if (layout.size() < kPlainBytes) return std::nullopt;
    const auto magic = number<std::uint32_t>(layout, 0);
    if (magic != kPlain && magic != kPlainWithPool && magic != kPlainOfChosen) return std::nullopt;
    if (magic != kPlain && layout.size() < kPlainBytes + kPoolBytes) return std::nullopt;
    const auto pattern = number<std::uint32_t>(layout, 4);
    if ((pattern & (kOnMetadataServer | kForeign)) != 0) return Stripes{};
    const std::uint64_t bytes = number<std::uint32_t>(layout, 24);
    if (bytes == 0 || bytes % kUnit != 0) return std::nullopt;
    return Stripes{bytes};
}

}  // namespace

std::optional<std::uint64_t> stripe_bytes_in(std::span<const std::byte> layout) {
    std::uint64_t most = 0;
    if (layout.size() >= kCompositeBytes && number<std::uint32_t>(layout, 0) == kComposite) {
        const std::size_t count = number<std::uint16_t>(layout, 14);
        if (number<std::uint32_t>(layout, 4) > layout.size() ||
            count > (layout.size() - kCompositeBytes) / kEntryBytes)
            return std::nullopt;
        for (std::size_t i = 0; i < count; ++i) {
            const auto entry = layout.subspan(kCompositeBytes + i * kEntryBytes, kEntryBytes);
            const std::size_t offset = number<std::uint32_t>(entry, 24);
            const std::size_t size = number<std::uint32_t>(entry, 28);
            if (offset > layout.size() || size > layout.size() - offset) return std::nullopt;
            const auto part = layout.subspan(offset, size);
            // Components of kinds without stripes are skipped.
            const auto stripes = plain_layout(part);
            const auto magic = part.size() < 4 ? 0U : number<std::uint32_t>(part, 0);
            if (!stripes && (magic == kPlain || magic == kPlainWithPool || magic == kPlainOfChosen))
                return std::nullopt;
            if (stripes) most = std::max(most, stripes->bytes);
        }
    } else if (const auto stripes = plain_layout(layout)) {
        most = stripes->bytes;
    }
    if (most == 0) return std::nullopt;
    return most;
}

std::optional<std::uint64_t> stripe_bytes_of(const std::string& path) {
    std::vector<std::byte> layout(kLargestAttribute);
    const ssize_t size = ::getxattr(path.c_str(), "lustre.lov", layout.data(), layout.size());
    if (size <= 0) return std::nullopt;
    return stripe_bytes_in(std::span(layout).first(static_cast<std::size_t>(size)));
}

std::uint64_t block_of_stripes(std::uint64_t stripe_bytes, std::uint64_t most) {
    while (stripe_bytes > most && stripe_bytes % 2 == 0)
        stripe_bytes /= 2;
    return stripe_bytes;
}

}  // namespace aggregate_plan
}  // namespace twinrun
