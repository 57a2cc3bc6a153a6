// A whole file in stripes over several files that are open already (plan/stripes.hpp): the files of
// PosixStorage for them, and what a rank moves by itself.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/storage.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

class DescriptorsOfStripes {
   public:
    // The files stay open. Bytes behind the end are read as zeros: nobody has written them yet.
    Result<> use(const StripedFiles& files, std::uint64_t shift, Mode mode);

    // Any thread may call it.
    Result<> transfer(std::span<const Piece> pieces) const;
    Result<> sync() const;
    Result<> close() { return success(); }

   private:
    StripeCut stripes_;
    std::uint64_t shift_ = 0;
    std::vector<std::unique_ptr<Descriptor>> files_;
};

}  // namespace twinrun::aggregation
