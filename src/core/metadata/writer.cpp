#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

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

// Puts a section behind `end`; returns its own end. Sections of many small fields share pages;
// larger ones begin on one, for direct reads.
std::uint64_t put_behind(SectionPlace& place, std::uint64_t end, std::uint64_t alignment) {
    const bool large = place.length >= kPageBytes;
    place.offset = large ? round_up(end, kPageBytes) : end;
    return round_up(place.offset + place.length, large ? kPageBytes : alignment);
}

}  // namespace

std::uint64_t ResidueLayout::add(std::uint64_t bytes) {
    SectionPlace place;
    place.length = bytes;
    end_ = put_behind(place, end_, kResidueLine);
    return place.offset;
}
std::uint64_t ResidueLayout::size() const { return round_up(end_, kPageBytes); }

Result<std::unique_ptr<MetadataWriter>> MetadataWriter::create(FileSystem& system, const std::string& path,
                                                               Directory directory,
                                                               ResiduePlace residues) try {
    std::unique_ptr<MetadataWriter> writer(new MetadataWriter());
    writer->system_ = &system;
    writer->path_ = path;
    writer->temporary_ = temporary_name(path);
    directory.version = required_version(directory.fields);
    // The directory's length does not depend on its numbers: lay out behind a first draft of it.
    std::uint64_t end = round_up(encode_directory(directory, 0).size(), kPageBytes);
    writer->sums_.resize(directory.fields.size());
    writer->gathered_in_.assign(directory.fields.size(), {kNotGathered, kNotGathered});
    writer->residues_ = residues;
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        FieldMetadata& field = directory.fields[f];
        const std::uint64_t begin = end;
        for (std::size_t s = 0; s < kSections; ++s) {
            SectionPlace& place = field.sections[s];
            place = {};
            place.length = field.section_bytes(static_cast<Section>(s));
            writer->sums_[f][s].resize(divide_up(place.length, kPageBytes));
            if (static_cast<Section>(s) != Section::residues) end = put_behind(place, end, 8);
        }
        for (SectionPlace& place : field.sections) {
            place.sums_offset = end;
            end += divide_up(place.length, kPageBytes) * 8;
        }
        writer->gather(f, 0, begin, end);
    }
    end = writer->lay_out_residues(directory, end);
    writer->file_bytes_ = end;
    end -= writer->cut_.size();
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

// Behind all else, so that a record can have them apart from the file; at places that depend on the
// fields' sizes alone, so that it finds those of an earlier step again.
std::uint64_t MetadataWriter::lay_out_residues(Directory& directory, std::uint64_t end) {
    const bool large =
        std::any_of(directory.fields.begin(), directory.fields.end(),
                    [](const FieldMetadata& f) { return f.place(Section::residues).length >= kPageBytes; });
    const std::uint64_t begin = round_up(end, large ? kPageBytes : kResidueLine);
    ResidueLayout layout;
    for (std::size_t f = 0; f < directory.fields.size(); ++f) {
        SectionPlace& place = directory.fields[f].sections[static_cast<std::size_t>(Section::residues)];
        const std::uint64_t before = begin + layout.end();
        place.offset = begin + layout.add(place.length);
        if (residues_ == ResiduePlace::in_file) gather(f, 1, before, begin + layout.end());
    }
    end = round_up(begin + layout.end(), kPageBytes);
    if (residues_ == ResiduePlace::in_file) return end;
    cut_ = residues_apart(directory, end);
    return end;
}

// Memory for the stretch that the file lacks, made at first use: none is needed for residues that
// the caller has elsewhere. Throws if there is no memory.
std::byte* MetadataWriter::rest() {
    rest_made_.run([&] {
        std::byte* const bytes = rest_.reserve(cut_.size());
        std::uint64_t at = 0;
        for (const FieldMetadata& field : directory_.fields) {
            const SectionPlace& place = field.place(Section::residues);
            if (place.length == 0) continue;
            std::memset(bytes + at, 0, place.offset - cut_.begin - at);
            at = place.offset - cut_.begin + place.length;
        }
        std::memset(bytes + at, 0, cut_.size() - at);
    });
    return rest_.data();
}

Result<> MetadataWriter::write_residue_checksums(std::size_t field, std::uint64_t offset,
                                                 std::span<const std::uint64_t> checksums) {
    const SectionPlace& place = directory_.fields[field].place(Section::residues);
    auto& sums = sums_[field][static_cast<std::size_t>(Section::residues)];
    const bool fits = place.length == 0 || (cut_.size() != 0 && place.offset == cut_.begin + offset);
    if (!fits || checksums.size() != sums.size())
        return Error{ErrorCode::internal, path_ + ": checksums of residues that have another place in it"};
    std::copy(checksums.begin(), checksums.end(), sums.begin());
    return success();
}

std::uint64_t writer_bytes(std::span<const FieldMetadata> fields, ResiduePlace residues) {
    std::uint64_t bytes = 0;
    std::uint64_t elsewhere = 0;
    for (const FieldMetadata& field : fields) {
        std::array<std::uint64_t, 2> own{};  // without residues, and of residues
        for (std::size_t s = 0; s < kSections; ++s) {
            const auto section = static_cast<Section>(s);
            own[section == Section::residues ? 1 : 0] += round_up(field.section_bytes(section), 8);
        }
        if (residues == ResiduePlace::elsewhere) elsewhere += std::exchange(own[1], 0);
        for (const std::uint64_t part : own)
            bytes += part < kGatheredField ? part : 0;
    }
    return std::min(bytes, kGatheredInAll) + elsewhere;
}

// What part (0: all but residues, 1: residues) of the field's sections lies from begin to end.
void MetadataWriter::gather(std::size_t field, std::size_t part, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t size = end - begin;
    if (size == 0 || size >= kGatheredField || gathered_bytes_ + size > kGatheredInAll) return;
    gathered_bytes_ += size;
    const bool joins = !gathered_.empty() && gathered_.back().offset + gathered_.back().size == begin &&
                       gathered_.back().size + size <= kGatheredTogether;
    if (!joins) gathered_.push_back({begin, 0, {}});
    gathered_.back().size += size;
    gathered_in_[field][part] = static_cast<std::uint32_t>(gathered_.size() - 1);
}

MetadataWriter::~MetadataWriter() {
    if (finished_ || output_ == nullptr) return;
    output_.reset();
    static_cast<void>(system_->remove(temporary_));
}

Result<> MetadataWriter::write(std::size_t field, Section section, std::uint64_t offset,
                               std::span<const std::byte> bytes) try {
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
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path_ + ": not enough memory for its sections"};
}

Result<> MetadataWriter::put(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return success();
    if (cut_.begin <= offset && offset < cut_.end) {
        std::memcpy(rest() + (offset - cut_.begin), bytes.data(), bytes.size());
        return success();
    }
    if (offset >= cut_.end) offset -= cut_.size();
    if (!image_.empty()) {
        std::memcpy(image_.data() + offset, bytes.data(), bytes.size());
        return success();
    }
    for (const std::uint32_t in : gathered_in_[field]) {
        if (in == kNotGathered) continue;
        Gathered& part = gathered_[in];
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
    if (!image_.empty()) image_.resize(file_bytes_ - cut_.size());
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
    const auto reach = [&](std::uint64_t end) {
        if (end <= cut_.begin || end > cut_.end)
            reached = std::max(reached, end - (end > cut_.end ? cut_.size() : 0));
    };
    for (const FieldMetadata& field : directory_.fields) {
        for (const SectionPlace& place : field.sections) {
            if (place.length == 0) continue;
            reach(place.offset + place.length);
            reach(place.sums_offset + divide_up(place.length, kPageBytes) * 8);
        }
    }
    const std::uint64_t bytes = file_bytes_ - cut_.size();
    if (const std::byte zero{}; reached < bytes) {
        TWR_CHECK(output_->write_at(bytes - 1, std::span(&zero, 1)));
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
