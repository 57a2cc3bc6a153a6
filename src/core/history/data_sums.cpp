#include "history/data_sums.hpp"

#include <algorithm>
#include <bit>

#include "base/checksum.hpp"
#include "source/tuning.hpp"

namespace twinrun {

Result<DataSums> DataSums::read(MetadataFile& metadata, std::size_t field) {
    DataSums sums(metadata.directory().fields[field]);
    TWR_CHECK(metadata.read(field, Section::data_sums, 0, std::as_writable_bytes(std::span(sums.sums_))));
    if constexpr (std::endian::native == std::endian::big) {
        for (std::uint64_t& sum : sums.sums_)
            sum = __builtin_bswap64(sum);
    }
    return sums;
}

Result<> DataSums::check(const std::string& where, std::uint64_t offset,
                         std::span<const std::byte> bytes) const {
    const std::size_t item = item_bytes(field().dtype);
    std::uint64_t slice = offset / kSliceBytes;
    for (std::size_t done = 0; done < bytes.size(); ++slice) {
        const std::size_t size = std::min<std::size_t>(slices_.items(slice) * item, bytes.size() - done);
        if (xxh3(bytes.subspan(done, size)) != sums_[slice]) {
            return Error{ErrorCode::damaged, where + ": damaged: field '" + field().name + "', items from " +
                                                 std::to_string(slices_.first_item(slice)) + " on"};
        }
        done += size;
    }
    return success();
}

}  // namespace twinrun
