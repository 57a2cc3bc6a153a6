// SPDX-License-Identifier: Apache-2.0
// Filters a periodic n x n x n field in Fourier space, with FFTW's single-precision transforms.
//
// The threads share out planes and pencils, each transformed by a single-threaded plan made with
// FFTW_ESTIMATE. So the result does not depend on the number of threads, as FFTW's own threaded
// plans would make it.
#pragma once

#include <complex>
#include <cstddef>
#include <functional>
#include <memory>

#include "minihacc/team.hpp"

namespace minihacc {

struct FreeAligned {
    void operator()(float* p) const noexcept;
};
using AlignedFloats = std::unique_ptr<float[], FreeAligned>;

// 64-byte aligned, set to zero. Throws std::bad_alloc.
AlignedFloats allocate_floats(std::size_t count);

class FourierFilter {
   public:
    // Pencils transformed together: 8 complex floats are a cache line.
    static constexpr std::size_t kBatch = 8;

    // pencils[ix * kBatch + b] is the mode (ix, iy, iz + b); only the first `count` of each kBatch
    // matter.
    using Filter =
        std::function<void(std::size_t iy, std::size_t iz, std::size_t count, std::complex<float>* pencils)>;

    FourierFilter(std::size_t n, ThreadTeam& team);
    ~FourierFilter();
    FourierFilter(const FourierFilter&) = delete;
    FourierFilter& operator=(const FourierFilter&) = delete;

    std::size_t size() const { return n_; }
    // Floats from one row of n values to the next; room for n / 2 + 1 complex values, padded to
    // whole cache lines.
    std::size_t row_stride() const { return row_; }
    std::size_t floats() const { return n_ * n_ * row_; }

    // Replaces field by the inverse transform of filter * transform of field, both unnormalised (a
    // factor n^3).
    void apply(float* field, const Filter& filter) const;

    // Signed frequency of index i: 0, 1, ..., n/2, ..., -1.
    long frequency(std::size_t i) const {
        return i <= n_ / 2 ? static_cast<long>(i) : static_cast<long>(i) - static_cast<long>(n_);
    }

   private:
    struct Plans;
    std::size_t n_;
    std::size_t row_;
    ThreadTeam& team_;
    std::unique_ptr<Plans> plans_;
};

}  // namespace minihacc
