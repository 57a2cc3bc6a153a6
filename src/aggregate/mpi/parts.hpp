// Several files that are read as one: the files of PosixStorage where a whole file lies in
// sub-files.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/storage.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

class DescriptorsOfParts {
   public:
    // files must outlive this object.
    Result<> use(const SubFiles& files);

    // Any thread may call it. Pieces may reach over the end of a file into the next.
    Result<> transfer(std::span<const Piece> pieces);
    Result<> sync() { return success(); }
    Result<> close();

   private:
    Result<std::shared_ptr<const Descriptor>> part(std::size_t number);

    const SubFiles* files_ = nullptr;
    std::mutex mutex_;
    std::map<std::size_t, std::shared_ptr<const Descriptor>> open_;
    std::deque<std::size_t> order_;  // the file that was opened first comes first
};

}  // namespace twinrun::aggregation
