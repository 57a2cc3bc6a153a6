// twinrun, for Kokkos: twr::protect takes a Kokkos::View of any rank, layout and memory space, from
// C++17 and Kokkos 3 on.
//
//     Kokkos::View<double**> grid("grid", n, m);
//     twr::protect(run, grid);               // under the view's label
//     twr::protect(run, "u", grid, options);
//
// The run does not share the view's ownership: the view must live until it is unprotected, replaced
// or the run is closed. A capture or a restore waits for kernels that were started before it.
//
// Items are kept in their order in memory, without a transposition: LayoutLeft is column-major,
// every other layout row-major. Runs that are compared must have the same order: if one has
// LayoutLeft (a GPU) and another LayoutRight, set options.order.
#pragma once

#include <Kokkos_Core.hpp>
#include <string>
#include <type_traits>

#include "twinrun.hpp"

namespace twr {

template <>
struct DTypeOf<Kokkos::complex<float>> {
    static constexpr int value = TWR_C64;
};
template <>
struct DTypeOf<Kokkos::complex<double>> {
    static constexpr int value = TWR_C128;
};

template <class Data, class... Properties>
void protect(Run& run, const std::string& name, const Kokkos::View<Data, Properties...>& view,
             ArrayOptions options = {}) {
    using View = Kokkos::View<Data, Properties...>;
    using Memory = typename View::memory_space;
    Array array;
    array.data = view.data();
    array.dtype = detail::dtype<typename View::value_type>();
    for (std::size_t r = 0; r < static_cast<std::size_t>(View::rank); ++r) {
        array.shape.push_back(static_cast<std::uint64_t>(view.extent(r)));
        array.strides.push_back(
            static_cast<std::int64_t>(view.stride(r) * sizeof(typename View::value_type)));
    }
    if (!options.order && std::is_same_v<typename View::array_layout, Kokkos::LayoutLeft>) {
        options.order = Order::column_major;
    } else if (!options.order && std::is_same_v<typename View::array_layout, Kokkos::LayoutRight>) {
        options.order = Order::row_major;
    }
    if (options.device == TWR_DETECT) {
        if constexpr (!Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible) {
            options.device = TWR_DETECT_DEVICE;
        } else if constexpr (std::is_same_v<Memory, Kokkos::HostSpace>) {
            options.device = TWR_HOST;
        }
    }
    run.protect(name, array, options);
    // Kernels may be running in any of Kokkos' execution spaces, also on the host.
    run.before_access([] { Kokkos::fence(); });
}

template <class Data, class... Properties>
void protect(Run& run, const Kokkos::View<Data, Properties...>& view, const ArrayOptions& options = {}) {
    protect(run, view.label(), view, options);
}

}  // namespace twr
