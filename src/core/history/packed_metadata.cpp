#include "history/packed_metadata.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/checksum.hpp"
#include "history/gather.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kWriteBytes = std::uint64_t{8} << 20;

// Writes a file under its final name and syncs it, but not its folder.
Result<> write_file(FileSystem& system, const std::string& path, std::span<const std::byte> bytes) {
    const std::string temporary = temporary_name(path);
    TWR_TRY(auto file, system.create(temporary, bytes.size()));
    for (std::uint64_t at = 0; at < bytes.size();) {
        const auto part = bytes.subspan(at, std::min<std::uint64_t>(kWriteBytes, bytes.size() - at));
        TWR_CHECK(file->write_at(at, part));
        at += part.size();
    }
    TWR_CHECK(file->sync());
    TWR_CHECK(file->close());
    return system.rename(temporary, path);
}

Result<PackedMetadata> written(const std::string& path) {
    TWR_TRY(const auto file, InputFile::open(path));
    std::vector<std::byte> header(kHeaderBytes);
    TWR_CHECK(file->read_at(0, header));
    return PackedMetadata{file->size(), xxh3(header), {}};
}

// The step's metadata as it is, without the residues. Earlier versions wrote them between other
// sections: then they stay in the file.
Result<PackedMetadata> split_metadata(FileSystem& system, const std::string& path, const CapturedStep& step) {
    const std::span<const std::byte> whole(step.metadata_bytes);
    const Range apart = residues_apart(step.metadata->directory(), whole.size());
    if (apart.size() == 0) {
        TWR_CHECK(write_file(system, path, whole));
        return written(path);
    }
    std::vector<std::byte> rest(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(apart.begin));
    rest.insert(rest.end(), whole.begin() + static_cast<std::ptrdiff_t>(apart.end), whole.end());
    TWR_CHECK(write_file(system, path, rest));
    TWR_TRY(PackedMetadata packed, written(path));
    packed.residues.size = apart.size();
    std::memcpy(packed.residues.bytes.reserve(apart.size()), whole.data() + apart.begin, apart.size());
    return packed;
}

// The step's directory for a data file of the rank alone.
Result<Directory> own_directory(const CapturedStep& step, std::uint32_t rank) {
    Directory directory = step.metadata->directory();
    if (!step.shared) return directory;
    if (directory.data_files.size() != 1)
        return Error{ErrorCode::damaged, step.metadata->path() + ": damaged: its data is not one file"};
    directory.data_files[0].path = rank_name(rank) + ".data";
    FileStamp& stamp = directory.data_files[0].stamp;
    stamp.size = step.data.size();
    // The ranks that shared the file had one time.
    if (stamp.mtime_ns != 0) {
        stamp.mtime_ns = own_time(stamp.mtime_ns, rank_name(rank) + hex_of(step.metadata->header_checksum()));
    }
    for (FieldMetadata& field : directory.fields) {
        // Not negative: read_captured() has checked it.
        for (Extent& extent : field.extents)
            extent.offset -= step.origin;
    }
    return directory;
}

}  // namespace

Result<PackedMetadata> pack_metadata(FileSystem& system, const std::string& path, const CapturedStep& step,
                                     std::uint32_t rank) {
    if (!step.shared) return split_metadata(system, path, step);
    const std::vector<FieldMetadata>& fields = step.metadata->directory().fields;
    constexpr std::uint64_t kPart = 256 * kPageBytes;
    TWR_TRY(Directory directory, own_directory(step, rank));
    TWR_TRY(const auto writer,
            MetadataWriter::create(system, path, std::move(directory), ResiduePlace::elsewhere));
    std::vector<std::byte> bytes;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            const std::uint64_t length = fields[f].place(section).length;
            if (writer->directory().fields[f].place(section).length != length) {
                return Error{ErrorCode::damaged,
                             step.metadata->path() + ": damaged: a section's length does not fit its fields"};
            }
            for (std::uint64_t at = 0; at < length; at += bytes.size()) {
                bytes.resize(std::min(kPart, length - at));
                TWR_CHECK(step.metadata->read(f, section, at, bytes));
                TWR_CHECK(writer->write(f, section, at, bytes));
            }
        }
    }
    TWR_CHECK(writer->finish());
    TWR_TRY(PackedMetadata packed, written(path));
    packed.residues = writer->take_residues();
    return packed;
}

Result<PackedMetadata> remake_metadata(FileSystem& system, const std::string& path, const CapturedStep& step,
                                       std::uint32_t rank, const std::vector<std::byte>& data) {
    TWR_TRY(Directory directory, own_directory(step, rank));
    // FieldDigests makes new ones
    for (FieldMetadata& field : directory.fields)
        field.sums = {};
    TWR_TRY(const auto writer, MetadataWriter::create(system, path, directory));
    std::map<std::string, std::shared_ptr<const RowIds>> ids;
    for (const FieldMetadata& field : directory.fields) {
        if (field.key.empty() || field.key != field.name || field.items() == 0) continue;
        CapturedField rows;
        rows.name = field.name;
        rows.dtype = field.dtype;
        rows.shape = field.shape;
        rows.data = data.data() + field.extents[0].offset;
        TWR_TRY(ids[field.name], ordered_ids(rows, {}));
    }
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        const FieldMetadata& field = directory.fields[f];
        const auto own = ids.find(field.key);
        FieldDigests digests(field, true, false, own == ids.end() ? nullptr : own->second);
        std::vector<std::byte> residues;
        for (std::uint64_t s = 0; s < digests.slices(); ++s) {
            residues.resize(digests.residue_bytes(s));
            const std::byte* from = data.data() + (field.items() == 0 ? 0 : field.extents[0].offset) +
                                    digests.first_item(s) * item_bytes(field.dtype);
            digests.make(s, dense_view(field.dtype, from), residues.data());
            if (!residues.empty())
                TWR_CHECK(writer->write(f, Section::residues, digests.residue_offset(s), residues));
        }
        TWR_CHECK(digests.write(*writer, f));
    }
    TWR_CHECK(writer->finish());
    return written(path);
}

}  // namespace twinrun
