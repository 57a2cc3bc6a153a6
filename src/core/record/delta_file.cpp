#include "record/delta_file.hpp"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/checksum.hpp"
#include "record/delta_format.hpp"
#include "record/planes.hpp"

namespace twinrun {

Error another_difference(const std::string& path) {
    return {ErrorCode::damaged, path +
                                    ": is not the difference that the journal names: another file was put "
                                    "in its place: restore it from a copy"};
}

bool is_header_of(std::span<const std::byte> bytes, std::uint64_t checksum) {
    return bytes.size() >= kDifferenceHeaderBytes &&
           checksum_in(bytes.first(kDifferenceHeaderBytes)) == checksum &&
           xxh3(bytes.first(kDifferenceHeaderBytes - sizeof checksum)) == checksum;
}

Result<std::shared_ptr<DifferenceFile>> DifferenceFile::open(const DifferencePlace& place,
                                                             Compressor& compressor) try {
    const std::string& path = place.file;
    std::shared_ptr<DifferenceFile> opened(new DifferenceFile);
    TWR_TRY(opened->file_, InputFile::open(path));
    std::vector<std::byte> header(std::min<std::uint64_t>(kDifferenceHeaderBytes, opened->file_->size()));
    TWR_CHECK(opened->file_->read_at(0, header));
    auto decoded = decode_difference_header(header, opened->file_->size());
    if (!decoded) return std::move(decoded).error().at(path);
    opened->header_checksum_ = checksum_in(header);
    if (place.checksum && *place.checksum != opened->header_checksum_) return another_difference(path);
    std::vector<std::byte> tail(decoded->tail_bytes);
    TWR_CHECK(opened->file_->read_at(decoded->tail_offset, tail));
    auto difference = decode_difference_tail(*decoded, tail, compressor);
    if (!difference) return std::move(difference).error().at(path);
    opened->difference_ = std::move(*difference);
    opened->stored_chunks_ = decoded->payload_chunks;
    std::uint64_t at = 0;
    for (const Difference::Kept& kept : opened->difference_.kept) {
        opened->kept_at_.push_back(at);
        at += kept.count;
    }
    return opened;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, place.file + ": not enough memory to read it"};
}

std::optional<std::uint64_t> DifferenceFile::position(Location at) const {
    if (!difference_.partial()) {
        if (ordinal_of(at) != difference_.ordinal || chunk_of(at) >= stored_chunks_) return std::nullopt;
        return chunk_of(at);
    }
    const auto& kept = difference_.kept;
    const auto after =
        std::upper_bound(kept.begin(), kept.end(), at, [](Location sought, const Difference::Kept& part) {
            return sought < location(part.ordinal, part.first);
        });
    if (after == kept.begin()) return std::nullopt;
    const auto part = std::prev(after);
    const Location first = location(part->ordinal, part->first);
    if (at - first >= part->count) return std::nullopt;
    return kept_at_[static_cast<std::size_t>(part - kept.begin())] + (at - first);
}

std::uint64_t DifferenceFile::block_chunks(std::size_t b) const {
    return std::min<std::uint64_t>(difference_.block_chunks, stored_chunks_ - b * difference_.block_chunks);
}

// The bytes of a block in the file, checked.
Result<> DifferenceFile::read_bytes(std::size_t b, std::span<std::byte> to) const {
    const PayloadBlock& block = difference_.blocks[b];
    TWR_CHECK(file_->read_at(block.offset, to));
    if (xxh3(to) == block.checksum) return success();
    return Error{ErrorCode::damaged, path() + ": damaged: payload block " + std::to_string(b) +
                                         " (bytes from " + std::to_string(block.offset) + " on)"};
}

Result<std::span<const std::byte>> DifferenceFile::packed(std::size_t b, BlockScratch& scratch) const {
    const PayloadBlock& block = difference_.blocks[b];
    if (scratch.packed.size() < block.bytes) scratch.packed.resize(block.bytes);
    const auto read = std::span(scratch.packed).first(block.bytes);
    TWR_CHECK(read_bytes(b, read));
    return std::span<const std::byte>(read);
}

Result<> DifferenceFile::unpack(std::size_t b, Compressor& compressor, BlockScratch& scratch,
                                std::span<std::byte> to) const {
    const PayloadBlock& block = difference_.blocks[b];
    TWR_TRY(const auto read, packed(b, scratch));
    auto unpacked = success();
    if (block.width == 1) {
        unpacked = compressor.unpack(read, to);
    } else if (block.form == BlockForm::sparse) {
        unpacked = unpack_sparse(compressor, read, block.width, scratch.sparse, to);
    } else {
        const PlaneItems items{block.width, block.form == BlockForm::sign_last};
        unpacked = unpack_planes(compressor, read, items, scratch.planes, to);
    }
    if (!unpacked) return std::move(unpacked).error().at(path());
    return success();
}

Result<> DifferenceFile::read_block(std::size_t b, Compressor& compressor, BlockScratch& scratch,
                                    std::span<std::byte> to) const {
    if (difference_.blocks[b].codec == PayloadCodec::stored) return read_bytes(b, to);
    return unpack(b, compressor, scratch, to);
}

Result<> DifferenceFile::mix_block(std::size_t b, Compressor& compressor, BlockScratch& scratch,
                                   std::size_t bytes, std::span<const SparsePiece> pieces) const {
    if (!sparse(b)) return Error{ErrorCode::internal, path() + ": a block that is not sparse"};
    TWR_TRY(const auto read, packed(b, scratch));
    auto mixed = mix_sparse(compressor, read, difference_.blocks[b].width, scratch.sparse, bytes, pieces);
    if (!mixed) return std::move(mixed).error().at(path());
    return success();
}

}  // namespace twinrun
