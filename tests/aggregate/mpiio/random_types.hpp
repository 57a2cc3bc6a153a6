// Random datatypes of MPI, for tests: every constructor, to some depth.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace random_types {

class Draw {
   public:
    explicit Draw(std::uint64_t seed) : random_(seed) {}
    int operator()(int low, int high) {
        return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool one_in(int n) { return (*this)(1, n) == 1; }
    std::mt19937_64& random() { return random_; }

   private:
    std::mt19937_64 random_;
};

inline MPI_Datatype freed(MPI_Datatype made, MPI_Datatype& inner) {
    int n[3];
    int combiner = 0;
    MPI_Type_get_envelope(inner, &n[0], &n[1], &n[2], &combiner);
    if (combiner != MPI_COMBINER_NAMED) MPI_Type_free(&inner);
    return made;
}

inline MPI_Aint extent_of(MPI_Datatype type) {
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    MPI_Type_get_extent(type, &lower, &extent);
    return extent;
}

// The end of its last byte.
inline MPI_Aint end_of(MPI_Datatype type) {
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    MPI_Type_get_true_extent(type, &lower, &extent);
    return lower + extent;
}

// A type of items of `base`, not committed. ascending: as a view needs it, with no byte twice; else in any order, and with
// negative places.
inline MPI_Datatype random_type(Draw& draw, MPI_Datatype base, int depth, bool ascending) {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    if (depth == 0) {
        MPI_Type_dup(base, &made);
        return made;
    }
    MPI_Datatype inner = random_type(draw, base, depth - 1, ascending);
    const MPI_Aint extent = extent_of(inner);
    const int count = draw(1, 4);
    std::vector<int> lengths;
    std::vector<int> places;
    std::vector<MPI_Aint> bytes;
    int at = draw(0, 2);
    for (int i = 0; i < count; ++i) {
        lengths.push_back(draw(draw.one_in(6) ? 0 : 1, 3));
        places.push_back(at);
        at += 3 + draw(0, 3);
    }
    if (!ascending) std::shuffle(places.begin(), places.end(), draw.random());
    for (const int place : places)
        bytes.push_back(place * extent);
    switch (draw(0, 11)) {
        case 0: MPI_Type_contiguous(count, inner, &made); break;
        case 1: MPI_Type_vector(count, 2, ascending ? draw(2, 5) : -draw(2, 5), inner, &made); break;
        case 2:
            MPI_Type_create_hvector(count, 2, (ascending || draw.one_in(2) ? 1 : -1) * extent * draw(2, 4),
                                    inner, &made);
            break;
        case 3: MPI_Type_indexed(count, lengths.data(), places.data(), inner, &made); break;
        case 4: MPI_Type_create_hindexed(count, lengths.data(), bytes.data(), inner, &made); break;
        case 5: MPI_Type_create_indexed_block(count, 3, places.data(), inner, &made); break;
        case 6: MPI_Type_create_hindexed_block(count, 2, bytes.data(), inner, &made); break;
        case 7: {
            const std::vector<MPI_Datatype> types(static_cast<std::size_t>(count), inner);
            MPI_Type_create_struct(count, lengths.data(), bytes.data(), types.data(), &made);
            break;
        }
        case 8:
        case 9: {
            const int dimensions = draw(1, 3);
            std::vector<int> sizes, parts, starts;
            for (int d = 0; d < dimensions; ++d) {
                sizes.push_back(draw(1, 5));
                parts.push_back(draw(1, sizes.back()));
                starts.push_back(draw(0, sizes.back() - parts.back()));
            }
            MPI_Type_create_subarray(dimensions, sizes.data(), parts.data(), starts.data(),
                                     draw.one_in(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, inner, &made);
            break;
        }
        case 10: MPI_Type_create_resized(inner, 0, end_of(inner) + extent * draw(0, 2), &made); break;
        default: MPI_Type_dup(inner, &made); break;
    }
    // A type without bytes is of no use below another one.
    MPI_Count size = 0;
    MPI_Type_size_x(made, &size);
    // Places of a view ascend from tile to tile only if the extent covers all of a tile.
    if (size == 0 || (ascending && (extent_of(made) < end_of(made) || extent_of(made) <= 0))) {
        MPI_Datatype other = MPI_DATATYPE_NULL;
        if (size == 0) {
            MPI_Type_free(&made);
            MPI_Type_dup(base, &other);
        } else {
            MPI_Type_create_resized(made, 0, end_of(made), &other);
            MPI_Type_free(&made);
        }
        made = other;
    }
    return freed(made, inner);
}

}  // namespace random_types
