#include "source/later_source.hpp"

#include <utility>

namespace twinrun {

LaterSource::LaterSource(DType dtype, std::uint64_t items, const Place& place, CacheUse cache,
                         std::shared_ptr<OpenFiles> files)
    : ElementSource(dtype, items), place_(place), cache_(cache), files_(std::move(files)) {}

Result<> LaterSource::prepare() {
    const std::lock_guard lock(mutex_);
    if (source_ == nullptr) {
        std::vector<PathExtent> extents;
        extents.reserve(place_.extents.size());
        for (const Extent& e : place_.extents) {
            if (e.file >= place_.paths.size())
                return Error{ErrorCode::damaged, "elements lie in a file that the metadata does not name"};
            extents.push_back({place_.paths[e.file], e.offset, e.stride, e.count});
        }
        TWR_TRY(source_,
                FileSource::create(dtype(), place_.byte_order, items(), std::move(extents), cache_, files_));
    }
    return source_->prepare();
}

void LaterSource::release() {
    const std::lock_guard lock(mutex_);
    source_.reset();
}

std::size_t LaterSource::buffer_bytes(std::uint64_t count) const { return source_->buffer_bytes(count); }

Result<> LaterSource::plan(std::uint64_t first, std::uint64_t count, std::byte* buffer,
                           std::vector<ReadRequest>& requests) {
    return source_->plan(first, count, buffer, requests);
}

ElementView LaterSource::view(std::uint64_t first, std::uint64_t count, std::byte* buffer) {
    return source_->view(first, count, buffer);
}

bool LaterSource::on_storage() const { return source_->on_storage(); }

bool LaterSource::only_points(std::uint64_t first, std::uint64_t count) const {
    return source_->only_points(first, count);
}

}  // namespace twinrun
