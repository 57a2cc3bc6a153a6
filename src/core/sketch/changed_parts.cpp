#include "sketch/changed_parts.hpp"

#include <new>

#include "base/codec.hpp"
#include "sketch/build.hpp"

namespace twinrun {

Result<std::vector<std::uint64_t>> changed_parts(MetadataFile& metadata, std::size_t field,
                                                 ElementSource& source, const StreamOptions& options) try {
    const auto refused = [&](ErrorCode code, const std::string& why) {
        return Error{code, metadata.path() + ": " + why};
    };
    if (field >= metadata.directory().fields.size())
        return refused(ErrorCode::invalid_argument, "it has no field of this number");
    const FieldMetadata& f = metadata.directory().fields[field];
    if (source.items() != f.items() || item_bytes(source.dtype()) != item_bytes(f.dtype))
        return refused(ErrorCode::invalid_argument, "the data is not of the size of field '" + f.name + "'");
    std::vector<std::byte> bytes(f.place(Section::data_sums).length);
    if (bytes.empty() && f.items() != 0)
        return refused(ErrorCode::stale, "holds no checksums of its data: index it again");
    TWR_CHECK(metadata.read(field, Section::data_sums, 0, bytes));
    TWR_TRY(const std::vector<std::uint64_t> now, sum_data(f, source, options));
    std::vector<std::uint64_t> changed;
    Decoder stored(bytes);
    for (std::size_t i = 0; i < bytes.size() / 8; ++i) {
        if (const auto sum = stored.get<std::uint64_t>(); i >= now.size() || sum != now[i])
            changed.push_back(i);
    }
    return changed;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, metadata.path() + ": not enough memory to check its data"};
}

}  // namespace twinrun
