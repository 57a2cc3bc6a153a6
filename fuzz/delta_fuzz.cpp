// The file of a difference from any bytes: what is accepted is consistent, comes out the same when
// it is written again, and can be read without harm. Checksums are those that belong to the bytes,
// or they would be all that is tested.
//
// An input is a byte: 0 a header as it is; 1 entries alone; 2 runs of bases alone; 200 a block in
// planes: bytes of an item (0, 1, 2: 2, 4, 8; 3 to 5: the same with the sign last), items (u16), the
// block; 201 a sparse block: the same; else a whole file, as follows: method (128 is added for
// version 3, 192 for version 4), binary logarithm of the chunk's bytes, packed,
// leftovers (a byte each), ordinal, base (u32), chunks of payload (u64), chunks of a block (u32),
// bytes of the unpacked index (u32), bytes of the blocks (u16), the blocks, the index.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/checksum.hpp"
#include "folder.hpp"
#include "input.hpp"
#include "record/delta_file.hpp"
#include "record/delta_format.hpp"
#include "record/entries.hpp"
#include "record/planes.hpp"
#include "record/sparse.hpp"
#include "restore/chain.hpp"

using namespace twinrun;

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

const std::string& folder() {
    static const fuzz::Folder made("difference");
    return made.name();
}

void check_error(const Error& error) {
    fuzz::require(error.code == ErrorCode::damaged || error.code == ErrorCode::unsupported ||
                  error.code == ErrorCode::not_found);
    fuzz::require(!error.message.empty());
}

void check_runs(std::uint32_t ordinal, std::uint64_t chunks, std::uint64_t payload_chunks, bool with_payload,
                const std::vector<Run>& runs) {
    std::uint64_t end = 0;
    std::uint64_t next = 0;
    for (const Run& run : runs) {
        fuzz::require(run.begin >= end && run.count != 0 && run.begin <= chunks &&
                      run.count <= chunks - run.begin);
        end = run.begin + run.count;
        const std::uint64_t steps = run.repeat ? 1 : run.count;
        fuzz::require(chunk_of(run.source) + steps <= kMostPayloadChunks);
        if (with_payload && !run.repeat && run.source == location(ordinal, next)) {
            next += run.count;
        } else if (ordinal_of(run.source) == ordinal) {
            fuzz::require(with_payload && chunk_of(run.source) + steps <= next);
        } else {
            fuzz::require(ordinal_of(run.source) < ordinal);
        }
    }
    if (with_payload) fuzz::require(next == payload_chunks);
}

void entries_alone(fuzz::Input input) {
    const auto method = static_cast<RecordMethod>(input.take<std::uint8_t>() % 5);
    const std::uint32_t ordinal = input.take<std::uint32_t>() % (kMostOrdinals + 1);
    const std::uint64_t chunks = input.take<std::uint64_t>() % (kMostPayloadChunks + 1);
    const std::uint64_t payload = input.take<std::uint64_t>() % (kMostPayloadChunks + 1);
    const Bytes bytes = input.take_bytes(input.left());
    const auto runs = decode_entries(method, ordinal, chunks, payload, bytes);
    if (!runs.ok()) return check_error(runs.error());
    check_runs(ordinal, chunks, payload, true, *runs);
    Encoder encoder;
    encode_entries(method, ordinal, chunks, *runs, encoder);
    const auto again = decode_entries(method, ordinal, chunks, payload, encoder.bytes());
    fuzz::require(again.ok() && *again == *runs);
}

void bases_alone(fuzz::Input input) {
    const std::uint32_t ordinal = input.take<std::uint32_t>() % (kMostOrdinals + 1);
    const std::uint64_t chunks = input.take<std::uint64_t>() % (kMostPayloadChunks + 1);
    const Bytes bytes = input.take_bytes(input.left());
    const auto runs = decode_runs(ordinal, chunks, 0, false, bytes);
    if (!runs.ok()) return check_error(runs.error());
    check_runs(ordinal, chunks, 0, false, *runs);
    Encoder encoder;
    encode_runs(ordinal, *runs, false, encoder);
    const auto again = decode_runs(ordinal, chunks, 0, false, encoder.bytes());
    fuzz::require(again.ok() && *again == *runs);
}

void planes_alone(fuzz::Input input) {
    const unsigned kind = input.take<std::uint8_t>() % 6;
    const PlaneItems items{kPlaneWidths[kind % 3], kind > 2};
    Bytes to(std::size_t{input.take<std::uint16_t>()} * items.width);
    const Bytes bytes = input.take_bytes(input.left());
    Compressor compressor;
    Bytes scratch;
    const auto read = unpack_planes(compressor, bytes, items, scratch, to);
    if (!read.ok()) return check_error(read.error());
    Bytes packed(to.size() + 4 * items.width);
    PlaneCoders coders{};
    packed.resize(pack_planes(compressor, to, items, 1, coders, scratch, packed));
    Bytes again(to.size());
    fuzz::require(unpack_planes(compressor, packed, items, scratch, again).ok() && again == to);
}

void sparse_alone(fuzz::Input input) {
    const unsigned width = kPlaneWidths[input.take<std::uint8_t>() % 3];
    Bytes to(std::size_t{input.take<std::uint16_t>()} * width, std::byte{0x5A});
    const Bytes before = to;
    const Bytes bytes = input.take_bytes(input.left());
    Compressor compressor;
    SparseScratch scratch;
    const auto read = unpack_sparse(compressor, bytes, width, scratch, to);
    // Two stretches with one item between them, which is left out.
    Bytes mixed = before;
    const std::size_t cut = to.size() / width / 2 * width;
    const std::size_t behind = std::min<std::size_t>(cut + width, to.size());
    const SparsePiece pieces[] = {{0, std::span(mixed).first(cut)},
                                  {behind, std::span(mixed).subspan(behind)}};
    fuzz::require(mix_sparse(compressor, bytes, width, scratch, to.size(), pieces).ok() == read.ok());
    if (!read.ok()) return check_error(read.error());
    for (std::size_t i = 0; i < to.size(); ++i)
        fuzz::require(mixed[i] == (i >= cut && i < behind ? before[i] : to[i] ^ before[i]));
    Bytes packed(2 * to.size() + 64);
    packed.resize(pack_sparse(compressor, to, width, scratch, packed));
    if (packed.empty()) return;  // more than half of the items
    Bytes again(to.size());
    fuzz::require(unpack_sparse(compressor, packed, width, scratch, again).ok() && again == to);
}

// Through the file system: every payload chunk and the first bytes of each segment are read, or are
// an error.
void read_file(const Difference& difference, std::uint64_t payload_bytes, const Bytes& bytes) {
    const std::string path = folder() + "/d";
    {
        std::ofstream file(path, std::ios::binary | std::ios::trunc);
        file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    const auto file = DifferenceFile::open(path);
    fuzz::require(file.ok());
    fuzz::require((*file)->stored_chunks() == difference.payload_chunks);
    RecordChain chain(
        [&](std::uint32_t ordinal) -> Result<DifferencePlace> {
            if (ordinal <= difference.ordinal) return DifferencePlace{path};
            return Error{ErrorCode::not_found, "none"};
        },
        1);
    const auto check = [&](const Result<>& read) {
        if (!read.ok()) check_error(read.error());
    };
    const std::uint64_t some = std::min<std::uint64_t>(difference.payload_chunks, 8);
    const Location first = difference.partial()
                               ? location(difference.kept[0].ordinal, difference.kept[0].first)
                               : location(difference.ordinal, 0);
    Bytes to(some * difference.chunk_bytes);
    check(chain.read_payload(first, some, difference.chunk_bytes, to));
    const auto map = chain.map(difference.ordinal);
    if (!map.ok()) return check_error(map.error());
    fuzz::require(payload_bytes <= bytes.size());
    for (std::size_t s = 0; s < std::min<std::size_t>(4, map->directory.segments.size()); ++s) {
        const std::uint64_t size = map->directory.segments[s].bytes;
        to.resize(std::min<std::uint64_t>(size, 10'000));
        check(chain.read(*map, s, 0, to));
        check(chain.read(*map, s, size - to.size(), to));
        if (to.size() == size) check(chain.read_segment(*map, s, to));
    }
    const auto needs = chain.needs(*map);
    if (!needs.ok()) check_error(needs.error());
}

void whole_file(fuzz::Input input) {
    Difference said;
    const auto method = input.take<std::uint8_t>();
    said.method = static_cast<RecordMethod>(method % 64 % 5);
    if (method >= 128) {
        const auto form = method >= 192 ? BlockForm::sparse : BlockForm::planes;
        said.blocks.push_back({0, 0, PayloadCodec::zstd, 2, false, 0, form});
    }
    said.chunk_bytes = 1U << input.take<std::uint8_t>() % 20;
    const bool packed = input.take<std::uint8_t>() % 2 != 0;
    if (input.take<std::uint8_t>() % 2 != 0) said.kept.push_back({});
    said.ordinal = input.take<std::uint32_t>();
    said.base = input.take<std::uint32_t>();
    said.payload_chunks = input.take<std::uint64_t>();
    said.block_chunks = input.take<std::uint32_t>();
    const std::uint64_t unpacked = input.take<std::uint32_t>();
    const Bytes payload = input.take_bytes(input.take<std::uint16_t>());
    const Bytes tail = input.take_bytes(input.left());
    const std::uint64_t offset = kDifferenceHeaderBytes + payload.size();
    const Bytes bytes = encode_difference_header(said, tail, offset, packed ? unpacked : tail.size(), packed);
    const auto header = decode_difference_header(bytes, offset + tail.size());
    if (!header.ok()) return check_error(header.error());
    const auto decoded = decode_difference_tail(*header, tail);
    if (!decoded.ok()) return check_error(decoded.error());

    Difference difference = *decoded;
    fuzz::require(difference.directory.check(difference.chunk_bytes).ok());
    fuzz::require(difference.partial() == header->partial);
    check_runs(difference.ordinal, difference.chunks(), difference.partial() ? 0 : difference.payload_chunks,
               true, difference.runs);
    check_runs(difference.ordinal, difference.payload_chunks, 0, false, difference.bases);
    std::uint64_t end = kDifferenceHeaderBytes;
    for (PayloadBlock& block : difference.blocks) {
        fuzz::require(block.offset == end);
        end += block.bytes;
        fuzz::require(end <= offset);
        block.checksum = xxh3(std::span(payload).subspan(block.offset - kDifferenceHeaderBytes, block.bytes));
    }
    fuzz::require(end == offset);

    // Written again, with the checksums of its blocks: the same but for these, and it can be read.
    const Bytes good_tail = encode_difference_tail(difference);
    Bytes file = encode_difference_header(difference, good_tail, offset, good_tail.size(), false);
    const auto good_header = decode_difference_header(file, offset + good_tail.size());
    fuzz::require(good_header.ok());
    const auto again = decode_difference_tail(*good_header, good_tail);
    fuzz::require(again.ok());
    fuzz::require(again->directory == difference.directory && again->runs == difference.runs &&
                  again->bases == difference.bases && again->kept == difference.kept &&
                  again->blocks.size() == difference.blocks.size());
    file.insert(file.end(), payload.begin(), payload.end());
    file.insert(file.end(), good_tail.begin(), good_tail.end());
    read_file(difference, payload.size(), file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    switch (input.take<std::uint8_t>()) {
        case 0: {
            const auto file_bytes = input.take<std::uint64_t>();
            const Bytes bytes = input.take_bytes(input.left());
            const auto header = decode_difference_header(bytes, file_bytes);
            if (!header.ok()) check_error(header.error());
            break;
        }
        case 1: entries_alone(input); break;
        case 2: bases_alone(input); break;
        case 200: planes_alone(input); break;
        case 201: sparse_alone(input); break;
        default: whole_file(input);
    }
    return 0;
}
