#include "aggregate/mpi/stripes.hpp"

namespace twinrun::aggregation {

Result<> DescriptorsOfStripes::use(const StripedFiles& files, std::uint64_t shift, Mode mode) {
    stripes_ = files.stripes;
    shift_ = shift;
    files_.clear();
    for (std::size_t i = 0; i < files.numbers.size(); ++i) {
        files_.push_back(std::make_unique<Descriptor>());
        OpenFile file{files.numbers[i], files.paths[i], 0};
        file.zeros = true;
        TWR_CHECK(files_.back()->adopt(file, mode));
    }
    return success();
}

Result<> DescriptorsOfStripes::transfer(std::span<const Piece> pieces) const {
    std::vector<std::vector<Piece>> of_file(files_.size());
    for (Piece piece : pieces) {
        while (piece.count != 0) {
            const StripePart part = stripe_at(stripes_, piece.offset + shift_, piece.count);
            of_file[part.file].push_back({part.offset, piece.bytes, part.bytes});
            piece.offset += part.bytes;
            piece.bytes += part.bytes;
            piece.count -= part.bytes;
        }
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
        if (!of_file[i].empty()) TWR_CHECK(files_[i]->transfer(of_file[i]));
    }
    return success();
}

Result<> DescriptorsOfStripes::sync() const {
    for (const auto& file : files_)
        TWR_CHECK(file->sync());
    return success();
}

}  // namespace twinrun::aggregation
