#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>

#include "base/checked.hpp"
#include "base/checksum.hpp"
#include "base/codec.hpp"
#include "base/once.hpp"
#include "digest/field61.hpp"
#include "metadata/metadata.hpp"

namespace twinrun {

namespace {
constexpr std::size_t kMostAnnounced = 64;  // fields: beyond, the calls cost more than they save
// A file up to this size is read with its header: one read costs no more than the several that its
// fields take.
constexpr std::uint64_t kSmallFile = 64 << 10;
// If a file has many small fields, all metadata is read at once: a page of it holds several fields'
// sections.
constexpr std::uint64_t kMostBytesAtOnce = 64 << 20;
// Fields that share a lock. Threads that compare fields at once are at fields that lie apart.
constexpr std::size_t kLocks = 16;
constexpr std::size_t kFieldsOfALock = 64;
// Of clocks of file systems, in nanoseconds: 100 ns, 1 us. Where they are coarser, files of other
// ranks and runs have the same times.
constexpr std::int64_t kTicks[] = {100, 1'000};
}  // namespace

struct MetadataFile::Sums {
    struct OfField {
        std::array<std::optional<std::vector<std::uint64_t>>, kSections> sections;
        std::atomic<std::uint64_t> bytes_read{0};
    };
    std::mutex mutex;  // of by_name
    // Made when the first name is looked for.
    std::unordered_map<std::string_view, std::size_t> by_name;
    std::array<std::mutex, kLocks> locks;  // of sections
    std::vector<OfField> of_field;
    std::uint64_t opening = 0;  // bytes of header and directory
    bool at_once = false;       // all of the file is read where something of it is
    Once once;
    std::vector<std::byte> whole;  // empty: not read at once

    std::mutex& lock_of(std::size_t field) { return locks[field / kFieldsOfALock % kLocks]; }
};

Result<std::shared_ptr<MetadataFile>> MetadataFile::open(const std::string& path,
                                                         const HeldFolder* folder) try {
    TWR_TRY(auto file, InputFile::open(path, kSmallFile, folder));
    std::shared_ptr<MetadataFile> metadata(new MetadataFile());
    metadata->file_ = file;
    metadata->sums_ = std::make_shared<Sums>();
    // One page holds header and directory of a dozen fields: one read, as a rule.
    std::vector<std::byte> own(file->in_memory() ? 0 : std::min<std::uint64_t>(file->size(), kPageBytes));
    if (!file->in_memory()) TWR_CHECK(file->read_at(0, own));
    std::span<const std::byte> head = file->in_memory() ? file->content() : std::span<const std::byte>(own);
    // find_elsewhere() tells a file whose residues are elsewhere from a truncated one.
    auto facts = decode_header(head, file->size(), ResiduePlace::elsewhere);
    if (!facts) return std::move(facts).error().at(path);
    const std::uint64_t needed = kHeaderBytes + facts->directory_bytes;
    if (needed > head.size()) {
        const std::size_t have = own.size();
        own.resize(needed);
        TWR_CHECK(file->read_at(have, std::span(own).subspan(have)));
        head = own;
    }
    metadata->sums_->opening = std::max(std::min<std::uint64_t>(file->size(), kPageBytes), needed);
    metadata->header_checksum_ = xxh3(head.first(kHeaderBytes));
    const auto body = head.subspan(kHeaderBytes, facts->directory_bytes);
    if (xxh3(body) != facts->directory_checksum) {
        return Error{ErrorCode::damaged,
                     path + ": damaged metadata: its directory's checksum is wrong: index the data again"};
    }
    auto directory = decode_directory(body, facts->bytes, facts->version);
    if (!directory) return std::move(directory).error().at(path);
    metadata->directory_ = std::move(directory).value();
    TWR_CHECK(metadata->find_elsewhere(facts->bytes));
    metadata->directory_.status = facts->status;
    const std::uint64_t fields = metadata->directory_.fields.size();
    metadata->sums_->of_field = std::vector<Sums::OfField>(fields);
    if (file->in_memory()) return metadata;
    // The walk of every field begins in its tree's first pages: let storage bring them all at once.
    if (fields <= kMostAnnounced) {
        for (const FieldMetadata& field : metadata->directory_.fields) {
            const SectionPlace& tree = field.place(Section::tree);
            file->will_need(tree.offset, std::min<std::uint64_t>(tree.length, 4 * kPageBytes));
            file->will_need(tree.sums_offset, divide_up(tree.length, kPageBytes) * 8);
        }
    }
    metadata->sums_->at_once =
        fields > kMostAnnounced && file->size() <= std::min(kMostBytesAtOnce, fields * kPageBytes);
    return metadata;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path + ": not enough memory to read its directory"};
}

Range residues_apart(const Directory& directory, std::uint64_t file_bytes) {
    Range found{file_bytes, 0};
    for (const FieldMetadata& field : directory.fields) {
        const SectionPlace& place = field.place(Section::residues);
        if (place.length == 0) continue;
        found.begin = std::min(found.begin, place.offset);
        found.end = std::max(found.end, round_up(place.offset + place.length, kPageBytes));
    }
    if (found.begin >= found.end || found.end > file_bytes) return {};
    const auto is_all = [&](const FieldMetadata& field) {
        const SectionPlace& place = field.place(Section::residues);
        return place.length == 0 || place.offset + place.length <= found.end;
    };
    if (!std::all_of(directory.fields.begin(), directory.fields.end(), is_all)) return {};
    const auto overlaps = [&](std::uint64_t offset, std::uint64_t length) {
        return length != 0 && offset < found.end && offset + length > found.begin;
    };
    for (const FieldMetadata& field : directory.fields) {
        for (std::size_t s = 0; s < kSections; ++s) {
            const SectionPlace& place = field.sections[s];
            if (overlaps(place.sums_offset, divide_up(place.length, kPageBytes) * 8) ||
                (static_cast<Section>(s) != Section::residues && overlaps(place.offset, place.length)))
                return {};
        }
    }
    return found;
}

// Files that are shorter than they say: those of captured steps without residues. Others were
// truncated.
Result<> MetadataFile::find_elsewhere(std::uint64_t whole) {
    if (whole == file_->size()) return success();
    elsewhere_ = residues_apart(directory_, whole);
    if (of_history() && whole - file_->size() == elsewhere_.size()) return success();
    elsewhere_ = {};
    return wrong_size(whole, file_->size()).at(path());
}

Result<std::span<const std::byte>> MetadataFile::fetch(std::uint64_t offset, std::size_t bytes,
                                                       std::vector<std::byte>& own) {
    if (sums_->at_once) {
        sums_->once.run([&] {
            std::vector<std::byte> whole(file_->size());
            if (file_->read_at(0, whole)) sums_->whole = std::move(whole);
        });
    }
    const Place place = place_of(offset);
    if (place.file == nullptr) {
        return Error{ErrorCode::not_found,
                     path() + ": its residues are in the record, in the step's difference"};
    }
    if (place.file == file_.get()) {
        const std::span<const std::byte> all =
            file_->in_memory() ? file_->content() : std::span<const std::byte>(sums_->whole);
        if (place.offset <= all.size() && bytes <= all.size() - place.offset)
            return all.subspan(place.offset, bytes);
    }
    own.resize(bytes);
    TWR_CHECK(place.file->read_at(place.offset, own));
    return std::span<const std::byte>(own);
}

void MetadataFile::will_need(std::uint64_t offset, std::uint64_t bytes) const {
    const Place place = place_of(offset);
    if (!sums_->at_once && place.file != nullptr) place.file->will_need(place.offset, bytes);
}

std::optional<std::size_t> MetadataFile::find(const std::string& field) const {
    const std::lock_guard lock(sums_->mutex);
    auto& by_name = sums_->by_name;
    if (by_name.empty()) {
        by_name.reserve(directory_.fields.size());
        for (std::size_t i = 0; i < directory_.fields.size(); ++i)
            by_name.emplace(directory_.fields[i].name, i);
    }
    const auto found = by_name.find(field);
    return found == by_name.end() ? std::nullopt : std::optional(found->second);
}

std::string MetadataFile::data_path(std::uint32_t file) const {
    const std::string& data = directory_.data_files[file].path;
    const std::size_t folder = path().rfind('/');
    if (data.starts_with('/') || folder == std::string::npos) return data;
    return path().substr(0, folder + 1).append(data);
}

bool MetadataFile::is_touched(const DataFile& known, const FileStamp& now) const {
    const std::int64_t then = known.stamp.mtime_ns;
    // Files of other programs have a status besides.
    if (!of_history()) return now.mtime_ns > then && now.mtime_ns > file_->stamp().mtime_ns;
    // Unknown: earlier versions gave steps of records no time.
    if (then == 0) return true;
    if (now.mtime_ns == then) return false;
    for (const std::int64_t tick : kTicks) {
        if (now.mtime_ns == then - then % tick) return false;
    }
    return true;
}

Result<std::optional<std::string>> MetadataFile::touched_data_file(const HeldFolder* folder) const {
    std::optional<std::string> touched;
    for (std::uint32_t i = 0; i < directory_.data_files.size(); ++i) {
        const DataFile& known = directory_.data_files[i];
        std::string data = data_path(i);
        TWR_TRY(const FileStamp now, stamp_of(data, folder));
        if (now.size < known.stamp.size) {
            return Error{ErrorCode::damaged,
                         data + ": truncated: " + std::to_string(known.stamp.size) +
                             " bytes when it was indexed, " + std::to_string(now.size) + " now: " +
                             (of_history() ? "restore the history from a copy"
                                           : "restore it, or index it again with 'twinrun index'")};
        }
        if (now.size != known.stamp.size) return of_history() ? is_not_of(data) : is_older_than(data);
        if (!touched && is_touched(known, now)) touched = std::move(data);
    }
    return touched;
}

Result<> MetadataFile::check_data_files(const HeldFolder* folder) const {
    TWR_TRY(const auto touched, touched_data_file(folder));
    if (touched) return is_older_than(*touched);
    return success();
}

bool MetadataFile::of_history() const {
    return !directory_.data_files.empty() && !directory_.fields.empty() &&
           directory_.fields.front().format.empty();
}

Error MetadataFile::is_not_of(const std::string& data) const {
    return {ErrorCode::damaged,
            data + ": does not hold what its metadata " + path() +
                " says: one of them was changed or damaged: restore the history from a copy"};
}

Error MetadataFile::is_older_than(const std::string& data) const {
    return {ErrorCode::stale, path() + ": older than its data file " + data +
                                  ", which was changed since: index it again with 'twinrun index'"};
}

Result<std::span<const std::uint64_t>> MetadataFile::page_sums(std::size_t field, Section section) try {
    const std::lock_guard lock(sums_->lock_of(field));
    auto& cached = sums_->of_field[field].sections[static_cast<std::size_t>(section)];
    if (!cached) {
        const SectionPlace& place = directory_.fields[field].place(section);
        std::vector<std::uint64_t> sums(divide_up(place.length, kPageBytes));
        std::vector<std::byte> own;
        TWR_TRY(const auto bytes, fetch(place.sums_offset, sums.size() * sizeof(sums[0]), own));
        sums_->of_field[field].bytes_read += bytes.size();
        if (xxh3(bytes) != place.sums_checksum) {
            return Error{ErrorCode::damaged,
                         path() + ": damaged metadata: wrong checksum of checksums: index the data again"};
        }
        if (!bytes.empty()) std::memcpy(sums.data(), bytes.data(), bytes.size());
        if constexpr (std::endian::native == std::endian::big) {
            for (auto& s : sums)
                s = __builtin_bswap64(s);
        }
        cached = std::move(sums);
    }
    return std::span<const std::uint64_t>(*cached);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path() + ": not enough memory for its checksums"};
}

Result<> MetadataFile::check_pages(std::size_t field, Section section, std::uint64_t first_page,
                                   std::span<const std::byte> bytes) {
    TWR_TRY(const auto sums, page_sums(field, section));
    for (std::size_t at = 0, page = first_page; at < bytes.size(); at += kPageBytes, ++page) {
        const auto part = bytes.subspan(at, std::min(kPageBytes, bytes.size() - at));
        if (page >= sums.size() || xxh3(part) != sums[page]) {
            return Error{ErrorCode::damaged, path() + ": damaged metadata: wrong checksum of page " +
                                                 std::to_string(page) + " of field '" +
                                                 directory_.fields[field].name + "': index the data again"};
        }
    }
    return success();
}

Result<> MetadataFile::read(std::size_t field, Section section, std::uint64_t offset,
                            std::span<std::byte> to) try {
    if (to.empty()) return success();
    const SectionPlace& place = directory_.fields[field].place(section);
    const auto end = checked_add(offset, to.size());
    if (!end || *end > place.length) {
        return Error{ErrorCode::internal, path() + ": a read past the end of a section"};
    }
    const std::uint64_t first = offset / kPageBytes;
    const std::uint64_t begin = first * kPageBytes;
    const std::uint64_t stop = std::min(round_up(*end, kPageBytes), place.length);
    std::vector<std::byte> own;
    TWR_TRY(const auto pages, fetch(place.offset + begin, stop - begin, own));
    sums_->of_field[field].bytes_read += pages.size();
    TWR_CHECK(check_pages(field, section, first, pages));
    std::memcpy(to.data(), pages.data() + (offset - begin), to.size());
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path() + ": not enough memory to read it"};
}

Result<std::vector<PartialSum>> MetadataFile::sums(std::size_t field) try {
    const FieldMetadata& f = directory_.fields[field];
    std::vector<std::byte> bytes(f.place(Section::sums).length);
    TWR_CHECK(read(field, Section::sums, 0, bytes));
    Decoder in(bytes);
    std::vector<PartialSum> sums(bytes.size() / kPartialSumBytes);
    const std::uint64_t most = kIndexLimit / f.chunking().chunk_scalars >> f.sums.height;
    for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i].bucket = in.get<std::uint64_t>();
        sums[i].coarse = in.get<std::uint64_t>();
        sums[i].fine = in.get<std::uint64_t>();
        if (sums[i].bucket >= most || (i != 0 && sums[i].bucket <= sums[i - 1].bucket) ||
            sums[i].coarse >= kPrime || sums[i].fine >= kPrime) {
            return Error{ErrorCode::damaged, path() + ": damaged metadata: impossible sums of field '" +
                                                 f.name + "': index the data again"};
        }
    }
    return sums;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path() + ": not enough memory to read its sums"};
}

Result<> MetadataFile::residues(std::size_t field, std::uint64_t first, std::span<std::uint8_t> to) try {
    if (to.empty()) return success();
    const FieldMetadata& f = directory_.fields[field];
    const unsigned bits = f.settings.rule.residue_bits;
    const ChunkShape shape = f.chunking();
    const auto end = checked_add(first, to.size());
    if (bits == 0 || !end || *end > f.scalars()) {
        return Error{ErrorCode::internal, path() + ": residues that are not there"};
    }
    // Whole blocks; the field's last one may be short.
    const std::size_t block_bytes = residue_bytes(shape.block_scalars, bits);
    const std::uint64_t begin = first / shape.block_scalars * block_bytes;
    const std::uint64_t stop =
        std::min(divide_up(*end, shape.block_scalars) * block_bytes, f.section_bytes(Section::residues));
    std::vector<std::byte> lines(stop - begin);
    TWR_CHECK(read(field, Section::residues, begin, lines));
    unpack_residues(lines, first, to.size(), bits, shape, to.data());
    return success();
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, path() + ": not enough memory to read its residues"};
}

std::uint64_t MetadataFile::bytes_read() const {
    std::uint64_t all = sums_->opening;
    for (const Sums::OfField& field : sums_->of_field)
        all += field.bytes_read.load();
    return all;
}
std::uint64_t MetadataFile::bytes_read(std::size_t field) const {
    return sums_->of_field[field].bytes_read.load();
}

std::size_t MetadataNodes::node_bytes() const {
    return node_words(file_.directory().fields[field_].settings.kind) * 8;
}

std::size_t MetadataNodes::run_of(std::span<const Range> positions, std::size_t first) const {
    const std::size_t node = node_bytes();
    std::size_t end = first + 1;
    while (end < positions.size() &&
           positions[end].begin * node <=
               round_up(positions[end - 1].end * node, kPageBytes) + 4 * kPageBytes) {
        ++end;
    }
    return end;
}

void MetadataNodes::announce(std::span<const Range> positions) {
    const SectionPlace& place = file_.directory().fields[field_].place(Section::tree);
    file_.will_need(place.sums_offset, divide_up(place.length, kPageBytes) * 8);
    const std::size_t node = node_bytes();
    for (std::size_t i = 0; i < positions.size();) {
        const std::size_t end = run_of(positions, i);
        const std::uint64_t begin = positions[i].begin * node;
        file_.will_need(place.offset + begin, positions[end - 1].end * node - begin);
        i = end;
    }
}

Result<> MetadataNodes::read(std::span<const Range> positions, std::vector<std::uint64_t>& words) {
    const std::size_t node = node_bytes();
    for (std::size_t i = 0; i < positions.size();) {
        const std::size_t end = run_of(positions, i);
        const std::uint64_t begin = positions[i].begin * node;
        std::vector<std::uint64_t> run((positions[end - 1].end * node - begin) / 8);
        TWR_CHECK(file_.read(field_, Section::tree, begin, std::as_writable_bytes(std::span(run))));
        for (; i < end; ++i) {
            const auto* from = run.data() + (positions[i].begin * node - begin) / 8;
            words.insert(words.end(), from, from + positions[i].size() * node / 8);
        }
    }
    return success();
}

}  // namespace twinrun
