#include "history/step_check.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <utility>

#include "metadata/verify.hpp"
#include "sketch/build.hpp"

namespace twinrun {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = 8 << 20;

}  // namespace

Result<DataCheck> DataCheck::create(MetadataFile& metadata) {
    DataCheck check(metadata);
    for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
        const FieldMetadata& field = metadata.directory().fields[f];
        if (field.extents.empty() || field.data_bytes() == 0) continue;
        const std::uint64_t begin = field.extents[0].offset;
        const std::uint64_t end = begin + field.data_bytes();
        if (field.place(Section::data_sums).length == 0) {
            check.parts_.push_back({begin, end, std::nullopt, f});
            continue;
        }
        std::vector<std::uint64_t> sums(field.place(Section::data_sums).length / 8);
        TWR_CHECK(metadata.read(f, Section::data_sums, 0, std::as_writable_bytes(std::span(sums))));
        for (std::size_t i = 0; i < sums.size(); ++i) {
            const std::uint64_t first = begin + i * kDataSumBytes;
            std::uint64_t sum = sums[i];
            if constexpr (std::endian::native == std::endian::big) sum = __builtin_bswap64(sum);
            check.parts_.push_back({first, std::min<std::uint64_t>(first + kDataSumBytes, end), sum, f});
        }
    }
    std::sort(check.parts_.begin(), check.parts_.end(),
              [](const Part& x, const Part& y) { return x.begin < y.begin; });
    return check;
}

Result<> DataCheck::operator()(std::uint64_t offset, std::span<const std::byte> bytes) {
    const std::uint64_t end = offset + bytes.size();
    std::uint64_t seen = offset;
    while (at_ < parts_.size() && parts_[at_].begin < end) {
        const Part& part = parts_[at_];
        const std::uint64_t from = std::max(part.begin, offset);
        const std::uint64_t to = std::min(part.end, end);
        if (to < from) return Error{ErrorCode::damaged, "damaged: its metadata names the same bytes twice"};
        if (seen < from) TWR_CHECK(check_padding(seen, bytes.subspan(seen - offset, from - seen)));
        seen = std::max(seen, to);
        sum_->update(bytes.subspan(from - offset, to - from));
        if (to != part.end) break;
        if (part.sum && sum_->value() != *part.sum) {
            return Error{ErrorCode::damaged, "damaged: field '" +
                                                 metadata_->directory().fields[part.field].name +
                                                 "', bytes from " + std::to_string(part.begin) +
                                                 " on are not those that were captured"};
        }
        sum_ = std::make_unique<StreamingChecksum>();
        ++at_;
    }
    return check_padding(seen, bytes.subspan(seen - offset));
}

Result<> DataCheck::check_padding(std::uint64_t offset, std::span<const std::byte> bytes) {
    const auto other =
        std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; });
    if (other == bytes.end()) return success();
    return Error{ErrorCode::damaged, "damaged: byte " + std::to_string(offset + (other - bytes.begin())) +
                                         " belongs to no field, and is not zero as it was captured"};
}

Result<> check_blocks(const DifferenceFile& file) {
    const Difference& difference = file.difference();
    Compressor compressor;
    BlockScratch scratch;
    std::vector<std::byte> block;
    for (std::size_t b = 0; b < difference.blocks.size(); ++b) {
        block.resize(file.block_chunks(b) * difference.chunk_bytes);
        TWR_CHECK(file.read_block(b, compressor, scratch, block));
    }
    return success();
}

bool is_intact_difference(const DifferencePlace& place, std::uint32_t ordinal) {
    const auto file = DifferenceFile::open(place);
    return file && (*file)->difference().ordinal == ordinal && check_blocks(**file);
}

bool is_intact(const std::string& path, const RankStep& entry) {
    const fs::path folder = fs::path(path) / entry.folder;
    const auto metadata = MetadataFile::open((folder / entry.files.metadata).string());
    if (!metadata || (*metadata)->file().size() != entry.files.metadata_bytes) return false;
    std::vector<std::byte> bytes(kHeaderBytes);
    if (!(*metadata)->file().read_at(0, bytes) || xxh3(bytes) != entry.files.header_checksum ||
        !verify(**metadata))
        return false;
    if (entry.files.data.empty() || entry.files.difference != kNoBase) return true;
    const auto data = InputFile::open((folder / entry.files.data).string());
    auto check = DataCheck::create(**metadata);
    if (!data || !check) return false;
    const std::uint64_t begin = entry.files.shared ? entry.files.offset : 0;
    const std::uint64_t size = entry.files.shared ? entry.files.file_bytes : entry.files.data_bytes;
    if ((*data)->size() != size || begin > size || entry.files.data_bytes > size - begin) return false;
    for (std::uint64_t at = 0; at < entry.files.data_bytes; at += bytes.size()) {
        bytes.resize(std::min<std::uint64_t>(kReadBytes, entry.files.data_bytes - at));
        if (!(*data)->read_at(begin + at, bytes) || !(*check)(begin + at, bytes)) return false;
    }
    return check->complete();
}

std::set<std::uint32_t> needed_by(const Difference& difference, std::uint32_t first) {
    std::set<std::uint32_t> needed;
    if (difference.base != kNoBase) needed.insert(difference.base);
    for (const auto* runs : {&difference.runs, &difference.bases}) {
        for (const Run& run : *runs)
            needed.insert(ordinal_of(run.source));
    }
    needed.erase(difference.ordinal);
    needed.erase(needed.begin(), needed.lower_bound(first));
    return needed;
}

}  // namespace twinrun
