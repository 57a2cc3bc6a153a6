#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <new>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kGatheredFile = 1 << 20;  // files up to this size are written by one call
// In larger ones, fields of less than this have their sections written together with those of their
// neighbours: a state of thousands of small arrays would need several calls for each.
constexpr std::uint64_t kGatheredField = 64 << 10;
constexpr std::uint64_t kGatheredTogether = 4 << 20;  // by one call
constexpr std::uint64_t kGatheredInAll = 32 << 20;    // bytes of memory
constexpr std::uint32_t kNotGathered = UINT32_MAX;

}  // namespace

Result<std::unique_ptr<MetadataWriter>> MetadataWriter::create(FileSystem& system, const std::string& path,
                                                               Directory directory) try {
    std::unique_ptr<MetadataWriter> writer(new MetadataWriter());
    writer->system_ = &system;
    writer->path_ = path;
    writer->temporary_ = temporary_name(path);
    directory.version = required_version(directory.fields);
    // The directory's length does not depend on its numbers: lay out behind a first draft of it.
    std::uint64_t end = round_up(encode_directory(directory, 0).size(), kPageBytes);
    writer->sums_.resize(directory.fields.size());
    writer->gathered_in_.assign(directory.fields.size(), kNotGathered);
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        FieldMetadata& field = directory.fields[f];
        const std::uint64_t begin = end;
        for (std::size_t s = 0; s < kSections; ++s) {
            SectionPlace& place = field.sections[s];
            place = {};
            place.length = field.section_bytes(static_cast<Section>(s));
            // Sections of many small fields share pages; larger ones begin on one, for direct
            // reads.
            if (place.length >= kPageBytes) end = round_up(end, kPageBytes);
            place.offset = end;
            writer->sums_[f][s].resize(divide_up(place.length, kPageBytes));
            end = round_up(end + place.length, place.length >= kPageBytes ? kPageBytes : 8);
        }
        for (SectionPlace& place : field.sections) {
            place.sums_offset = end;
            end += divide_up(place.length, kPageBytes) * 8;
        }
        writer->gather(f, begin, end);
    }
    end = round_up(end, kPageBytes);
    writer->file_bytes_ = end;
    if (end <= kGatheredFile) {
        writer->image_.resize(end);
        writer->gathered_.clear();
    }
    for (Gathered& part : writer->gathered_)
        part.bytes.resize(part.size);
    writer->directory_ = std::move(directory);
    TWR_TRY(writer->output_, system.create(writer->temporary_, end));
    return writer;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory for its sections"};
}

std::uint64_t writer_bytes(std::span<const FieldMetadata> fields) {
    std::uint64_t bytes = 0;
    for (const FieldMetadata& field : fields) {
        std::uint64_t own = 0;
        for (std::size_t s = 0; s < kSections; ++s)
            own += round_up(field.section_bytes(static_cast<Section>(s)), 8);
        if (own < kGatheredField) bytes += own;
    }
    return std::min(bytes, kGatheredInAll);
}

// The field's sections lie from begin to end.
void MetadataWriter::gather(std::size_t field, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t size = end - begin;
    if (size == 0 || size >= kGatheredField || gathered_bytes_ + size > kGatheredInAll) return;
    gathered_bytes_ += size;
    const bool joins = !gathered_.empty() && gathered_.back().offset + gathered_.back().size == begin &&
                       gathered_.back().size + size <= kGatheredTogether;
    if (!joins) gathered_.push_back({begin, 0, {}});
    gathered_.back().size += size;
    gathered_in_[field] = static_cast<std::uint32_t>(gathered_.size() - 1);
}

MetadataWriter::~MetadataWriter() {
    if (finished_ || output_ == nullptr) return;
    output_.reset();
    static_cast<void>(system_->remove(temporary_));
}

Result<> MetadataWriter::write(std::size_t field, Section section, std::uint64_t offset,
                               std::span<const std::byte> bytes) {
    const SectionPlace& place = directory_.fields[field].place(section);
    const auto end = checked_add(offset, bytes.size());
    if (offset % kPageBytes != 0 || !end || *end > place.length ||
        (*end != place.length && *end % kPageBytes != 0)) {
        return Error{ErrorCode::internal, path_ + ": a part that does not fit its section"};
    }
    auto& sums = sums_[field][static_cast<std::size_t>(section)];
    for (std::size_t at = 0; at < bytes.size(); at += kPageBytes) {
        sums[(offset + at) / kPageBytes] = xxh3(bytes.subspan(at, std::min(kPageBytes, bytes.size() - at)));
    }
    return put(field, place.offset + offset, bytes);
}

Result<> MetadataWriter::put(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return success();
    if (!image_.empty()) {
        std::memcpy(image_.data() + offset, bytes.data(), bytes.size());
        return success();
    }
    if (gathered_in_[field] != kNotGathered) {
        Gathered& part = gathered_[gathered_in_[field]];
        // Not so for what write_sums() adds at the file's end.
        if (offset >= part.offset && offset - part.offset < part.size) {
            std::memcpy(part.bytes.data() + (offset - part.offset), bytes.data(), bytes.size());
            return success();
        }
    }
    return output_->write_at(offset, bytes);
}

Result<> MetadataWriter::write_sums(std::size_t field, const SumsFacts& facts,
                                    std::span<const PartialSum> sums) try {
    FieldMetadata& to = directory_.fields[field];
    if (directory_.version < 2 || to.sums.buckets != 0 || facts.buckets != sums.size()) {
        return Error{ErrorCode::internal, path_ + ": sums that have no place in it"};
    }
    to.sums = facts;
    SectionPlace& place = to.sections[static_cast<std::size_t>(Section::sums)];
    place.length = to.section_bytes(Section::sums);
    place.offset = file_bytes_;
    place.sums_offset = round_up(place.offset + place.length, 8);
    const std::uint64_t pages = divide_up(place.length, kPageBytes);
    file_bytes_ = round_up(place.sums_offset + pages * 8, kPageBytes);
    if (!image_.empty()) image_.resize(file_bytes_);
    sums_[field][static_cast<std::size_t>(Section::sums)].resize(pages);
    Encoder bytes;
    for (const PartialSum& sum : sums) {
        bytes.put(sum.bucket);
        bytes.put(sum.coarse);
        bytes.put(sum.fine);
    }
    return write(field, Section::sums, 0, bytes.bytes());
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory for its sums"};
}

Result<> MetadataWriter::finish() {
    TWR_CHECK(write_out());
    TWR_CHECK(output_->sync());
    return commit_file();
}

Result<> MetadataWriter::finish_temporary() {
    TWR_CHECK(write_out());
    return commit_file();
}

Result<> MetadataWriter::write_out() {
    for (std::size_t f = 0; f < directory_.fields.size(); ++f) {
        for (std::size_t s = 0; s < kSections; ++s) {
            auto& sums = sums_[f][s];
            // A section may have been left out.
            sums.resize(divide_up(directory_.fields[f].sections[s].length, kPageBytes));
            if constexpr (std::endian::native == std::endian::big) {
                for (auto& sum : sums)
                    sum = __builtin_bswap64(sum);
            }
            const auto bytes = std::as_bytes(std::span(sums));
            SectionPlace& place = directory_.fields[f].sections[s];
            place.sums_checksum = xxh3(bytes);
            if (!bytes.empty()) TWR_CHECK(put(f, place.sums_offset, bytes));
        }
    }
    const std::vector<std::byte> head = encode_directory(directory_, file_bytes_);
    // Checks that the directory can be read before it is written: a defect here would cost the user
    // the history.
    TWR_TRY(const HeaderFacts facts, decode_header(head, file_bytes_));
    const auto body = std::span<const std::byte>(head).subspan(kHeaderBytes, facts.directory_bytes);
    auto decoded = decode_directory(body, file_bytes_, facts.version);
    if (!decoded) {
        return Error{ErrorCode::internal,
                     path_ + ": its directory does not decode: " + decoded.error().message};
    }
    if (!image_.empty()) {
        std::memcpy(image_.data(), head.data(), head.size());
        return output_->write_at(0, image_);
    }
    for (const Gathered& part : gathered_)
        TWR_CHECK(output_->write_at(part.offset, part.bytes));
    // The file ends on a page: its last byte is written even where nothing reaches it.
    std::uint64_t reached = head.size();
    for (const FieldMetadata& field : directory_.fields) {
        for (const SectionPlace& place : field.sections) {
            if (place.length == 0) continue;
            reached = std::max({reached, place.offset + place.length,
                                place.sums_offset + divide_up(place.length, kPageBytes) * 8});
        }
    }
    if (const std::byte zero{}; reached < file_bytes_) {
        TWR_CHECK(output_->write_at(file_bytes_ - 1, std::span(&zero, 1)));
    }
    return output_->write_at(0, head);
}

Result<> MetadataWriter::commit_file() {
    TWR_CHECK(output_->close());
    TWR_CHECK(may_replace_ && is_metadata_file(path_) ? system_->replace(temporary_, path_)
                                                      : system_->rename(temporary_, path_));
    finished_ = true;
    return success();
}

bool is_metadata_file(const std::string& path) {
    return begins_with(path, std::as_bytes(std::span(kMetadataMagic)));
}

Result<> MetadataWriter::commit() {
    TWR_CHECK(finish());
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    return system_->sync_folder(folder.empty() ? "." : folder);
}

}  // namespace twinrun
