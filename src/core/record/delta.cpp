#include "record/delta.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "base/checked.hpp"
#include "record/settings.hpp"

namespace twinrun {

namespace {
constexpr std::array<std::string_view, 5> kMethods = {"full", "basic", "list", "tree", "runs"};

// A relative path whose parts are names: it cannot lead out of the folder that it is put into.
bool stays_within(std::string_view path) {
    if (path.empty() || path.find('\0') != std::string_view::npos) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view part = path.substr(begin, end - begin);
        if (part.empty() || part == "." || part == "..") return false;
        begin = end + 1;
    }
    return true;
}

Error wrong(std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; }
}  // namespace

std::string_view method_name(RecordMethod method) { return kMethods[static_cast<std::size_t>(method)]; }

std::optional<RecordMethod> method_of(std::string_view name) {
    const auto* const found = std::find(kMethods.begin(), kMethods.end(), name);
    if (found == kMethods.end()) return std::nullopt;
    return static_cast<RecordMethod>(found - kMethods.begin());
}

bool record_chunk_ok(std::uint64_t bytes) {
    return std::has_single_bit(bytes) && bytes >= kSmallestRecordChunk && bytes <= kLargestRecordChunk;
}

Result<> RecordDirectory::check(std::uint32_t chunk_bytes) const {
    if (!record_chunk_ok(chunk_bytes)) {
        return wrong("chunks of " + std::to_string(chunk_bytes) +
                     " bytes: it must be a power of two from 32 to 65536");
    }
    std::set<std::string_view> names;
    for (const RecordFile& file : files) {
        if (file.name.size() > kLongestRecordName || !stays_within(file.name))
            return wrong("'" + file.name + "' is not a name for a file of a record");
        if (!names.insert(file.name).second) return wrong("two files of the name '" + file.name + "'");
        const bool link = file.kind == RecordFileKind::link;
        if (link ? file.to.empty() || file.to.size() > kLongestRecordName ||
                       file.to.find('\0') != std::string::npos
                 : !file.to.empty())
            return wrong("'" + file.name + "' is a link without a text, or no link and has one");
        if (file.kind != RecordFileKind::file && file.bytes != 0)
            return wrong("'" + file.name + "' is not a file, and has bytes");
    }
    names.clear();
    std::uint64_t chunks = 0;
    std::vector<const RecordSegment*> placed;
    placed.reserve(segments.size());
    for (const RecordSegment& segment : segments) {
        if (segment.name.size() > kLongestRecordName)
            return wrong("a segment's name of " + std::to_string(segment.name.size()) + " bytes");
        if (!names.insert(segment.name).second)
            return wrong("two segments of the name '" + segment.name + "'");
        if (segment.file >= files.size() || files[segment.file].kind != RecordFileKind::file)
            return wrong("segment '" + segment.name + "' is of no file");
        const auto end = checked_add(segment.offset, segment.bytes);
        if (!end || *end > files[segment.file].bytes)
            return wrong("segment '" + segment.name + "' passes the end of its file");
        const std::uint64_t own = segment.bytes / chunk_bytes + (segment.bytes % chunk_bytes != 0 ? 1 : 0);
        if (own > kMostPayloadChunks || chunks + own > kMostPayloadChunks)
            return wrong("more than 2^39 chunks: larger chunks are needed");
        chunks += own;
        if (segment.bytes != 0) placed.push_back(&segment);
    }
    std::sort(placed.begin(), placed.end(), [](const RecordSegment* a, const RecordSegment* b) {
        return a->file != b->file ? a->file < b->file : a->offset < b->offset;
    });
    for (std::size_t i = 1; i < placed.size(); ++i) {
        if (placed[i - 1]->file == placed[i]->file &&
            placed[i - 1]->offset + placed[i - 1]->bytes > placed[i]->offset) {
            return wrong("segments '" + placed[i - 1]->name + "' and '" + placed[i]->name + "' overlap");
        }
    }
    return success();
}

std::vector<std::uint64_t> RecordDirectory::first_chunks(std::uint32_t chunk_bytes) const {
    std::vector<std::uint64_t> firsts;
    firsts.reserve(segments.size() + 1);
    std::uint64_t chunks = 0;
    for (const RecordSegment& segment : segments) {
        firsts.push_back(chunks);
        chunks += segment.bytes / chunk_bytes + (segment.bytes % chunk_bytes != 0 ? 1 : 0);
    }
    firsts.push_back(chunks);
    return firsts;
}

bool RecordDirectory::only_files() const {
    return std::all_of(files.begin(), files.end(),
                       [](const RecordFile& file) { return file.kind == RecordFileKind::file; });
}

std::uint64_t Difference::chunks() const { return directory.first_chunks(chunk_bytes).back(); }

std::uint64_t Difference::image_bytes() const {
    std::uint64_t bytes = 0;
    for (const RecordSegment& segment : directory.segments)
        bytes += segment.bytes;
    return bytes;
}

Result<> RecordSettings::check() const {
    if (!record_chunk_ok(chunk_bytes)) {
        return wrong("chunks of " + std::to_string(chunk_bytes) +
                     " bytes: it must be a power of two from 32 to 65536");
    }
    if (xored && codec == PayloadCodec::stored)
        return wrong("XOR makes sense before packing only: choose a codec too");
    if (xored && method == RecordMethod::full)
        return wrong("a full record has no earlier chunks to XOR with");
    if (bounded && method == RecordMethod::full)
        return wrong("a full record keeps every chunk: no bound applies");
    if (codec == PayloadCodec::zstd && (level < -7 || level > 19))
        return wrong("zstd has the levels -7 to 19");
    return success();
}

}  // namespace twinrun
