// SPDX-License-Identifier: Apache-2.0
#include "minihacc/fft.hpp"

#include <fftw3.h>

#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

namespace minihacc {

namespace {

constexpr std::size_t kAlignment = 64;

struct PlanGuard {
    fftwf_plan plan = nullptr;
    ~PlanGuard() {
        if (plan) fftwf_destroy_plan(plan);
    }
};

fftwf_complex* as_fftw(float* p) { return reinterpret_cast<fftwf_complex*>(p); }

}  // namespace

void FreeAligned::operator()(float* p) const noexcept {
    ::operator delete[](p, std::align_val_t{kAlignment});
}

AlignedFloats allocate_floats(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(float)) throw std::bad_alloc();
    auto* p = static_cast<float*>(::operator new[](count * sizeof(float), std::align_val_t{kAlignment}));
    std::memset(p, 0, count * sizeof(float));
    return AlignedFloats(p);
}

struct FourierFilter::Plans {
    PlanGuard plane_forward, plane_backward, pencil_forward, pencil_backward;
};

FourierFilter::FourierFilter(std::size_t n, ThreadTeam& team)
    : n_(n), row_(2 * ((n / 2 + 1 + kBatch - 1) / kBatch * kBatch)), team_(team), plans_(new Plans) {
    const int size = static_cast<int>(n);
    const int real_shape[2] = {size, static_cast<int>(row_)};
    const int complex_shape[2] = {size, static_cast<int>(row_ / 2)};
    const int plane_shape[2] = {size, size};
    const int batch = static_cast<int>(kBatch);
    auto plane = allocate_floats(n_ * row_);
    auto pencils = allocate_floats(2 * n_ * kBatch);
    // FFTW_ESTIMATE chooses without timing anything, so every run of the same binary gets the same
    // plan.
    plans_->plane_forward.plan =
        fftwf_plan_many_dft_r2c(2, plane_shape, 1, plane.get(), real_shape, 1, 0, as_fftw(plane.get()),
                                complex_shape, 1, 0, FFTW_ESTIMATE);
    plans_->plane_backward.plan =
        fftwf_plan_many_dft_c2r(2, plane_shape, 1, as_fftw(plane.get()), complex_shape, 1, 0, plane.get(),
                                real_shape, 1, 0, FFTW_ESTIMATE);
    const auto pencil_plan = [&](int sign) {
        return fftwf_plan_many_dft(1, &size, batch, as_fftw(pencils.get()), nullptr, batch, 1,
                                   as_fftw(pencils.get()), nullptr, batch, 1, sign, FFTW_ESTIMATE);
    };
    plans_->pencil_forward.plan = pencil_plan(FFTW_FORWARD);
    plans_->pencil_backward.plan = pencil_plan(FFTW_BACKWARD);
    if (!plans_->plane_forward.plan || !plans_->plane_backward.plan || !plans_->pencil_forward.plan ||
        !plans_->pencil_backward.plan)
        throw std::runtime_error("FFTW has no plan for a mesh of this size");
}

FourierFilter::~FourierFilter() = default;

void FourierFilter::apply(float* field, const Filter& filter) const {
    const std::size_t plane = n_ * row_;
    team_.for_pieces(n_, 1, [&](std::size_t ix, std::size_t) {
        float* p = field + ix * plane;
        fftwf_execute_dft_r2c(plans_->plane_forward.plan, p, as_fftw(p));
    });

    const std::size_t modes = n_ / 2 + 1;
    team_.for_pieces(n_, 1, [&](std::size_t iy, std::size_t) {
        const auto buffer = allocate_floats(2 * n_ * kBatch);
        auto* pencils = reinterpret_cast<std::complex<float>*>(buffer.get());
        for (std::size_t iz = 0; iz < modes; iz += kBatch) {
            float* corner = field + iy * row_ + 2 * iz;
            for (std::size_t ix = 0; ix < n_; ++ix)
                std::memcpy(buffer.get() + 2 * kBatch * ix, corner + ix * plane, 2 * kBatch * sizeof(float));
            fftwf_execute_dft(plans_->pencil_forward.plan, as_fftw(buffer.get()), as_fftw(buffer.get()));
            filter(iy, iz, std::min(kBatch, modes - iz), pencils);
            fftwf_execute_dft(plans_->pencil_backward.plan, as_fftw(buffer.get()), as_fftw(buffer.get()));
            for (std::size_t ix = 0; ix < n_; ++ix)
                std::memcpy(corner + ix * plane, buffer.get() + 2 * kBatch * ix, 2 * kBatch * sizeof(float));
        }
    });

    team_.for_pieces(n_, 1, [&](std::size_t ix, std::size_t) {
        float* p = field + ix * plane;
        fftwf_execute_dft_c2r(plans_->plane_backward.plan, as_fftw(p), p);
    });
}

}  // namespace minihacc
