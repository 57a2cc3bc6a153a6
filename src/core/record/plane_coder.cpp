#include "record/plane_coder.hpp"

#include <algorithm>
#include <cstring>

namespace twinrun {

namespace {

// What saves less than a 64th is not worth the time of reading it.
constexpr std::size_t kLeast = 64;
// Of levels that ask for speed, a search for repeats must save a 64th of what is packed: it takes
// four times as long to write, and twice as long to read.
constexpr int kFastLevel = 2;

}  // namespace

void put_plane_number(std::byte* to, std::uint32_t number) {
    for (unsigned i = 0; i < 4; ++i)
        to[i] = static_cast<std::byte>(number >> (8 * i));
}

std::optional<std::size_t> pack_plane(Compressor& compressor, std::span<const std::byte> plane, int level,
                                      PlaneCoder& coder, std::span<std::byte> to, std::uint32_t& said) {
    const std::size_t room = std::min(to.size(), plane.size() - plane.size() / kLeast);
    std::size_t size = 0;
    if (coder == PlaneCoder::unknown) {
        size = compressor.pack_literals(plane, to.first(room));
        coder = size == 0 ? PlaneCoder::kept : PlaneCoder::literals;
        // Bytes of even frequencies hardly have repeats that the bytes of whole items do not have.
        // The search packs behind what is there, and must fit into less.
        const auto behind = to.subspan(size, std::min(to.size() - size, size));
        const std::size_t searched = size == 0 ? 0 : compressor.pack(plane, behind, level);
        const std::size_t better = level <= kFastLevel ? searched + searched / kLeast : searched;
        if (searched != 0 && better < size) {
            std::memmove(to.data(), behind.data(), searched);
            coder = PlaneCoder::searched;
            size = searched;
        }
    } else if (coder == PlaneCoder::literals) {
        size = compressor.pack_literals(plane, to.first(room));
    } else if (coder == PlaneCoder::searched) {
        size = compressor.pack(plane, to.first(room), level);
    }
    said = static_cast<std::uint32_t>(size);
    if (size != 0) return size;
    if (plane.size() > to.size()) return std::nullopt;
    if (!plane.empty()) std::memcpy(to.data(), plane.data(), plane.size());
    said = static_cast<std::uint32_t>(plane.size()) | kPlaneStored;
    return plane.size();
}

Result<> unpack_plane(Compressor& compressor, std::uint32_t said, std::span<const std::byte>& left,
                      std::span<std::byte> into) {
    const std::size_t size = said & ~kPlaneStored;
    if (size > left.size()) return Error{ErrorCode::damaged, "planes that are cut short"};
    if ((said & kPlaneStored) == 0) {
        TWR_CHECK(compressor.unpack(left.first(size), into));
    } else {
        if (size != into.size())
            return Error{ErrorCode::damaged, "a plane of another size than its items say"};
        if (size != 0) std::memcpy(into.data(), left.data(), size);
    }
    left = left.subspan(size);
    return success();
}

}  // namespace twinrun
