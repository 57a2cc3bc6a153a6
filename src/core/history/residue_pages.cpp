#include "history/residue_pages.hpp"

#include <algorithm>
#include <new>

#include "base/checked.hpp"
#include "dedup/device_checksums.hpp"

namespace twinrun {

Result<std::vector<std::vector<std::uint64_t>>> residue_checksums(
    const DeviceResidues& residues, std::span<const FieldMetadata* const> fields) try {
    std::vector<std::vector<std::uint64_t>> sums(fields.size());
    // Pages of a field that are no pages of the stretch: short ones, and those of a small field
    // that begins anywhere.
    struct Odd {
        std::size_t field;
        std::size_t page;
    };
    std::vector<Odd> odd;
    std::vector<std::span<const std::byte>> bytes_of_odd;
    const auto begins_on_page = [&](std::size_t f) { return residues.places[f] % kPageBytes == 0; };
    const auto whole_pages = [&](std::size_t f) {
        return begins_on_page(f) ? fields[f]->section_bytes(Section::residues) / kPageBytes : 0;
    };
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const std::uint64_t bytes = fields[f]->section_bytes(Section::residues);
        sums[f].resize(divide_up(bytes, kPageBytes));
        for (std::size_t p = whole_pages(f); p < sums[f].size(); ++p) {
            odd.push_back({f, p});
            bytes_of_odd.emplace_back(residues.bytes + residues.places[f] + p * kPageBytes,
                                      std::min<std::uint64_t>(kPageBytes, bytes - p * kPageBytes));
        }
    }
    TWR_TRY(const DeviceChecksums made,
            device_checksums(residues.device, {residues.bytes, residues.size}, kPageBytes, bytes_of_odd));
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const auto first = made.pages.begin() + static_cast<std::ptrdiff_t>(residues.places[f] / kPageBytes);
        std::copy_n(first, whole_pages(f), sums[f].begin());
    }
    for (std::size_t i = 0; i < odd.size(); ++i)
        sums[odd[i].field][odd[i].page] = made.others[i];
    return sums;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "not enough memory for the checksums of residues"};
}

}  // namespace twinrun
