// The checksums of a field's data that a step's metadata has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "metadata/metadata.hpp"
#include "sketch/build.hpp"

namespace twinrun {

// Thread-safe after read().
class DataSums {
   public:
    // metadata outlives this. Errors: those of MetadataFile::read().
    static Result<DataSums> read(MetadataFile& metadata, std::size_t field);
    // Bytes of the field from `offset` on: whole slices, which begin at multiples of kSliceBytes.
    // Error: damaged; where: the begin of its text.
    [[nodiscard]] Result<> check(const std::string& where, std::uint64_t offset,
                                 std::span<const std::byte> bytes) const;
    [[nodiscard]] const FieldMetadata& field() const { return slices_.field(); }
    [[nodiscard]] const FieldSlices& slices() const { return slices_; }

   private:
    explicit DataSums(const FieldMetadata& field) : slices_(field), sums_(slices_.slices()) {}
    FieldSlices slices_;
    std::vector<std::uint64_t> sums_;
};

}  // namespace twinrun
