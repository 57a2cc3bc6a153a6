#include "aggregate/mpi/parts.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace twinrun::aggregation {

namespace {

// Files that are open at a time. Processes may have 1024 of them by default, and ranks of a program
// have others open too.
constexpr std::size_t kMostOpen = 64;

}  // namespace

Result<> DescriptorsOfParts::use(const SubFiles& files) {
    files_ = &files;
    return success();
}

Result<std::shared_ptr<const Descriptor>> DescriptorsOfParts::part(std::size_t number) {
    const std::lock_guard lock(mutex_);
    if (const auto at = open_.find(number); at != open_.end()) return at->second;
    auto file = std::make_shared<Descriptor>();
    TWR_CHECK(file->open(files_->paths[number], {Mode::read, false, true}));
    if (order_.size() == kMostOpen) {
        open_.erase(order_.front());
        order_.pop_front();
    }
    order_.push_back(number);
    open_.emplace(number, file);
    return std::shared_ptr<const Descriptor>(std::move(file));
}

Result<> DescriptorsOfParts::transfer(std::span<const Piece> pieces) {
    std::vector<Piece> own;  // of one file
    std::size_t number = 0;
    const auto move = [&]() -> Result<> {
        if (own.empty()) return success();
        TWR_TRY(const auto file, part(number));
        TWR_CHECK(file->transfer(own));
        own.clear();
        return success();
    };
    for (Piece piece : pieces) {
        while (piece.count != 0) {
            const auto after = std::upper_bound(files_->ends.begin(), files_->ends.end(), piece.offset);
            const auto next = static_cast<std::size_t>(after - files_->ends.begin());
            if (after == files_->ends.end()) return ended_early(files_->paths.back(), piece.offset);
            if (next != number) TWR_CHECK(move());
            number = next;
            const std::uint64_t begin = next == 0 ? 0 : files_->ends[next - 1];
            const std::uint64_t count = std::min(piece.count, *after - piece.offset);
            own.push_back({piece.offset - begin, piece.bytes, count});
            piece.offset += count;
            piece.bytes += count;
            piece.count -= count;
        }
    }
    return move();
}

Result<> DescriptorsOfParts::close() {
    const std::lock_guard lock(mutex_);
    open_.clear();
    order_.clear();
    return success();
}

}  // namespace twinrun::aggregation
