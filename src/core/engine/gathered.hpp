// Statistics of elements that several workers find, slice by slice.
#pragma once

#include <cstdint>
#include <vector>

#include "difference/column_order.hpp"
#include "difference/difference.hpp"

namespace twinrun {

// Statistics gathered by several workers: places, counts and maxima do not depend on the order;
// sums are kept a slice and added in order, so that the report does not change with threads.
class Gathered {
   public:
    Gathered(int workers, std::uint64_t slices)
        : workers_(static_cast<std::size_t>(workers)), sums_(slices) {}
    DifferenceStats& of(int worker) { return workers_[static_cast<std::size_t>(worker)]; }
    // Call after each slice: moves the worker's sums to the slice.
    void close(int worker, std::uint64_t slice) {
        DifferenceStats& mine = of(worker);
        sums_[slice] = {mine.sum_squares, mine.sum_squares_different};
        mine.sum_squares = mine.sum_squares_different = 0;
    }
    [[nodiscard]] DifferenceStats total(const ColumnOrder& order = {}) const {
        DifferenceStats all;
        for (const DifferenceStats& w : workers_)
            order.merge(w, all);
        for (const Sums& s : sums_) {
            all.sum_squares += s.all;
            all.sum_squares_different += s.different;
        }
        return all;
    }

   private:
    struct Sums {
        double all = 0;
        double different = 0;
    };
    std::vector<DifferenceStats> workers_;
    std::vector<Sums> sums_;
};

}  // namespace twinrun
