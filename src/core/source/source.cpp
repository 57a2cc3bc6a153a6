#include "source/source.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <string_view>

#include "base/checked.hpp"
#include "source/tuning.hpp"

namespace twinrun {

namespace {

struct AlignedBuffer {
    explicit AlignedBuffer(std::size_t bytes)
        : data(static_cast<std::byte*>(::operator new (std::max<std::size_t>(bytes, 1),
                                                       std::align_val_t{kDirectAlignment}, std::nothrow))) {}
    ~AlignedBuffer() { ::operator delete (data, std::align_val_t{kDirectAlignment}); }
    AlignedBuffer(const AlignedBuffer&) = delete;
    AlignedBuffer& operator=(const AlignedBuffer&) = delete;
    std::byte* data;
};

}  // namespace

MemorySource::MemorySource(DType dtype, std::uint64_t items, const void* data, std::uint64_t stride,
                           bool swap)
    : ElementSource(dtype, items), all_(dense_view(dtype, data)) {
    all_.stride = stride;
    all_.swap = swap;
}

ElementView MemorySource::view(std::uint64_t first, std::uint64_t, std::byte*) {
    ElementView view = all_;
    view.base += first * view.stride;
    return view;
}

Result<std::unique_ptr<FileSource>> FileSource::create(DType dtype, ByteOrder order, std::uint64_t items,
                                                       std::vector<PathExtent> extents, CacheUse cache,
                                                       std::shared_ptr<OpenFiles> shared) {
    std::unique_ptr<FileSource> source(new FileSource(dtype, items));
    source->shared_ = std::move(shared);
    source->swap_ = (order == ByteOrder::big) == (std::endian::native == std::endian::little) &&
                    item_bytes(scalar_type(dtype)) > 1;
    source->cache_ = cache;
    std::uint64_t covered = 0;
    const std::size_t item = item_bytes(dtype);
    for (const PathExtent& e : extents) {
        const auto span = checked_multiply(e.count, e.stride);
        if (!span || !checked_add(e.offset, *span) || e.stride < item || e.count > items - covered) {
            return Error{ErrorCode::invalid_argument, e.path + ": an extent that does not fit its field"};
        }
        if (e.count == 0) continue;
        source->begins_.push_back(covered);
        covered += e.count;
        source->largest_stride_ = std::max(source->largest_stride_, e.stride);
        source->all_dense_ = source->all_dense_ && e.stride == item;
        source->extents_.push_back(e);
    }
    source->begins_.push_back(covered);
    if (covered != items) {
        return Error{ErrorCode::invalid_argument,
                     (extents.empty() ? std::string("field") : extents.front().path) +
                         ": its extents do not cover the field"};
    }
    return source;
}

Result<> FileSource::prepare() {
    const std::lock_guard lock(mutex_);
    if (files_.size() == extents_.size()) return success();
    std::map<std::string_view, std::shared_ptr<InputFile>> opened;
    std::vector<std::shared_ptr<InputFile>> files;
    files.reserve(extents_.size());
    double cached = 0;
    for (const PathExtent& e : extents_) {
        auto& file = opened[e.path];
        if (!file) {
            TWR_TRY(file, shared_ ? shared_->open(e.path) : InputFile::open(e.path));
        }
        // The last item may end before its stride does.
        const std::uint64_t end = e.offset + (e.count - 1) * e.stride + item_bytes(dtype());
        if (end > file->size()) {
            return Error{ErrorCode::damaged, e.path + ": truncated: its elements reach to byte " +
                                                 std::to_string(end) + " and it has " +
                                                 std::to_string(file->size()) +
                                                 ": restore it, or write it again"};
        }
        files.push_back(file);
    }
    if (!extents_.empty() && cache_ == CacheUse::automatic) {
        const PathExtent& e = extents_.front();
        cached = files.front()->cached_share(e.offset, e.count * e.stride);
    }
    direct_ = cache_ == CacheUse::direct || (cache_ == CacheUse::automatic && cached < kCachedShare);
    for (const auto& [path, file] : opened) {
        if (direct_ && file->direct_descriptor() < 0) direct_ = false;
        remote_ = remote_ || file->remote();
    }
    files_ = std::move(files);
    return success();
}

void FileSource::release() {
    const std::lock_guard lock(mutex_);
    files_.clear();
}

template <class Visit>
void FileSource::pieces(std::uint64_t first, std::uint64_t count, Visit visit) const {
    if (count == 0) return;
    auto extent =
        static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin()) -
        1;
    for (const std::uint64_t end = first + count; first < end; ++extent) {
        const PathExtent& e = extents_[extent];
        const std::uint64_t stop = std::min(end, begins_[extent + 1]);
        Piece piece{extent, first - begins_[extent], stop - first, 0, 0, 0};
        const std::uint64_t begin = e.offset + piece.first * e.stride;
        const std::uint64_t last = begin + (piece.count - 1) * e.stride + item_bytes(dtype());
        piece.window = begin & ~(kDirectAlignment - 1);
        piece.skip = begin - piece.window;
        piece.window_bytes = round_up(last, kDirectAlignment) - piece.window;
        visit(piece);
        first = stop;
    }
}

std::size_t FileSource::buffer_bytes(std::uint64_t count) const {
    // Windows are widened to the alignment at both ends; a request may touch every extent.
    const std::size_t windows = extents_.size() > 1 ? std::min<std::size_t>(extents_.size(), count) : 1;
    std::size_t bytes = count * largest_stride_ + windows * 2 * kDirectAlignment;
    if (extents_.size() > 1) bytes += count * item_bytes(dtype());  // where pieces are gathered
    return round_up(bytes, kDirectAlignment);
}

Result<> FileSource::plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                          std::vector<ReadRequest>& requests) {
    std::byte* to = buffer;
    pieces(first, count, [&](const Piece& piece) {
        InputFile* file = files_[piece.extent].get();
        ReadRequest request;
        request.file = file;
        request.offset = piece.window;
        request.bytes = piece.window_bytes;
        request.direct = direct_;
        const PathExtent& e = extents_[piece.extent];
        request.skip = piece.skip;
        request.at_least = piece.skip + (piece.count - 1) * e.stride + item_bytes(dtype());
        if (!direct_) request.bytes = std::min<std::uint64_t>(request.bytes, file->size() - request.offset);
        request.to = to;
        requests.push_back(request);
        to += piece.window_bytes;
    });
    return success();
}

ElementView FileSource::view(std::uint64_t first, std::uint64_t count, std::byte* buffer) {
    ElementView view = dense_view(dtype(), buffer);
    view.swap = swap_;
    std::size_t used = 0;
    std::size_t number = 0;
    pieces(first, count, [&](const Piece& piece) {
        if (number++ == 0) {
            view.base = buffer + piece.skip;
            view.stride = extents_[piece.extent].stride;
        }
        used += piece.window_bytes;
    });
    if (number <= 1) return view;
    // Several extents: gather them densely behind the windows.
    const std::size_t item = item_bytes(dtype());
    std::byte* gathered = buffer + used;
    std::byte* to = gathered;
    const std::byte* window = buffer;
    pieces(first, count, [&](const Piece& piece) {
        const std::uint64_t stride = extents_[piece.extent].stride;
        const std::byte* from = window + piece.skip;
        if (stride == item) {
            std::memcpy(to, from, piece.count * item);
            to += piece.count * item;
        } else {
            for (std::uint64_t i = 0; i < piece.count; ++i, to += item)
                std::memcpy(to, from + i * stride, item);
        }
        window += piece.window_bytes;
    });
    view.base = gathered;
    view.stride = item;
    return view;
}

bool FileSource::only_points(std::uint64_t first, std::uint64_t count) const {
    std::size_t number = 0;
    pieces(first, count, [&](const Piece&) { ++number; });
    return number <= 1;
}

namespace {

// The view of items that were read into `buffer`, which must have the bytes that the source asks
// for.
Result<ElementView> read_now(ElementSource& source, std::uint64_t first, std::uint64_t count,
                             const AlignedBuffer& buffer) {
    if (buffer.data == nullptr) return Error{ErrorCode::out_of_memory, "not enough memory to read elements"};
    std::vector<ReadRequest> requests;
    TWR_CHECK(source.plan(first, count, buffer.data, requests));
    for (const ReadRequest& r : requests)
        TWR_CHECK(twinrun::read_now(r));
    return source.view(first, count, buffer.data);
}

}  // namespace

Result<> read_items(ElementSource& source, std::uint64_t first, std::uint64_t count, std::byte* to) {
    if (count > source.items() || first > source.items() - count)
        return Error{ErrorCode::invalid_argument, "elements behind the end of the field were asked for"};
    if (count == 0) return success();
    TWR_CHECK(source.prepare());
    const AlignedBuffer buffer(source.buffer_bytes(count));
    TWR_TRY(const ElementView view, read_now(source, first, count, buffer));
    copy_dense(view, count * scalars_per_item(source.dtype()), to);
    return success();
}

Result<std::uint64_t> read_scalar(ElementSource& source, std::uint64_t scalar) {
    const std::uint64_t item = scalar / scalars_per_item(source.dtype());
    TWR_CHECK(source.prepare());
    const AlignedBuffer buffer(source.buffer_bytes(1));
    TWR_TRY(const ElementView view, read_now(source, item, 1, buffer));
    return raw_bits(view, scalar % scalars_per_item(source.dtype()));
}

}  // namespace twinrun
