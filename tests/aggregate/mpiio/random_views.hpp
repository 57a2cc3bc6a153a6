// Random views of files and random memory for MPI-IO, for tests: of every constructor of datatypes, to some depth.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "random_types.hpp"

namespace random_types {

struct View {
    MPI_Offset displacement = 0;
    MPI_Datatype etype = MPI_BYTE;
    MPI_Datatype filetype = MPI_BYTE;
    int most = 40;  // etypes of this rank from the view's beginning on, so that ranks do not meet
    bool meets = false;
};

// Of all ranks: they have no bytes in common, unless `meets`. doing: what a message says of it, in addition.
inline View random_view(Draw& all, Draw& own, bool may_meet, int me, int ranks, std::string& doing) {
    View view;
    const MPI_Datatype bases[] = {MPI_BYTE, MPI_INT, MPI_DOUBLE, MPI_SHORT};
    view.etype = bases[all(0, 3)];
    view.displacement = all.one_in(2) ? 0 : all(0, 5000);
    const int item = static_cast<int>(extent_of(view.etype));
    const int depth = all(1, 3);
    const int kind = all(0, may_meet ? 5 : 4);
    doing += ", view of kind " + std::to_string(kind);
    switch (kind) {
        case 0: {  // tiles of all ranks in turns
            MPI_Datatype tile = random_type(own, view.etype, depth, true);
            std::int64_t longest = end_of(tile);
            MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
            longest = (longest + item - 1) / item * item + item * all(0, 2);
            MPI_Type_create_resized(tile, 0, static_cast<MPI_Aint>(longest * ranks), &view.filetype);
            MPI_Type_free(&tile);
            view.displacement += longest * me;
            view.most = 400;
            break;
        }
        case 1: {  // one region a rank
            view.filetype = random_type(own, view.etype, depth, true);
            MPI_Count size = 0;
            MPI_Type_size_x(view.filetype, &size);
            std::int64_t longest =
                std::max<std::int64_t>(extent_of(view.filetype), end_of(view.filetype)) * 4;
            MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
            view.displacement += longest * me;
            view.most = static_cast<int>(size / item * 3);
            break;
        }
        case 2: {  // a block of an array
            const int dimensions = all(1, 3);
            std::vector<int> grid(static_cast<std::size_t>(dimensions), 0);
            MPI_Dims_create(ranks, dimensions, grid.data());
            std::vector<int> sizes, parts, starts;
            int left = me;
            for (const int across : grid) {
                const int each = all(1, 9);
                sizes.push_back(each * across + all(0, 3));
                parts.push_back(each);
                starts.push_back(each * (left % across));
                left /= across;
            }
            MPI_Type_create_subarray(dimensions, sizes.data(), parts.data(), starts.data(),
                                     all.one_in(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, view.etype,
                                     &view.filetype);
            view.most = 600;
            break;
        }
        case 3: {  // a distributed array
            const int dimensions = all(1, 3);
            std::vector<int> grid(static_cast<std::size_t>(dimensions), 0);
            MPI_Dims_create(ranks, dimensions, grid.data());
            std::vector<int> sizes, kinds, arguments;
            for (const int across : grid) {
                sizes.push_back(across + all(0, 12));
                const bool cyclic = all.one_in(2);
                kinds.push_back(cyclic ? MPI_DISTRIBUTE_CYCLIC : MPI_DISTRIBUTE_BLOCK);
                arguments.push_back(cyclic && all.one_in(2) ? all(1, 3) : MPI_DISTRIBUTE_DFLT_DARG);
            }
            MPI_Type_create_darray(ranks, me, dimensions, sizes.data(), kinds.data(), arguments.data(),
                                   grid.data(), all.one_in(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, view.etype,
                                   &view.filetype);
            MPI_Count size = 0;
            MPI_Type_size_x(view.filetype, &size);
            if (size == 0) {  // no item for this rank: a view needs one
                MPI_Type_free(&view.filetype);
                MPI_Type_dup(view.etype, &view.filetype);
                view.most = 0;
            } else {
                view.most = static_cast<int>(size / item) * 3;
            }
            break;
        }
        case 4: {  // no holes
            MPI_Type_dup(view.etype, &view.filetype);
            const int each = all(1, 2000);
            view.displacement += static_cast<MPI_Offset>(each) * item * me;
            view.most = each;
            break;
        }
        default:  // all ranks the same
            view.filetype = random_type(all, view.etype, depth, true);
            view.most = 300;
            view.meets = true;
            break;
    }
    MPI_Type_commit(&view.filetype);
    return view;
}

// Memory of a datatype: MPI's address of it is inside of the allocated bytes.
struct Memory {
    MPI_Datatype type = MPI_BYTE;
    int count = 0;
    std::vector<unsigned char> bytes;
    std::size_t origin = 0;
    void* address() { return bytes.data() + origin; }
};

inline Memory random_memory(Draw& draw, MPI_Datatype etype, int most) {
    Memory memory;
    memory.type = random_type(draw, etype, draw.one_in(2) ? 0 : draw(1, 3), false);
    MPI_Count size = 0;
    MPI_Count item = 0;
    MPI_Type_size_x(memory.type, &size);
    MPI_Type_size_x(etype, &item);
    if (size / item > most) {
        MPI_Type_free(&memory.type);
        MPI_Type_dup(etype, &memory.type);
        size = item;
    }
    MPI_Type_commit(&memory.type);
    memory.count = most == 0 ? 0 : draw(0, most / static_cast<int>(size / item));
    MPI_Aint lower = 0;
    MPI_Aint true_extent = 0;
    MPI_Type_get_true_extent(memory.type, &lower, &true_extent);
    const MPI_Aint extent = extent_of(memory.type);
    const MPI_Aint last = extent * std::max(memory.count - 1, 0);
    const MPI_Aint low = std::min<MPI_Aint>(0, std::min(lower, lower + last));
    const MPI_Aint high = std::max(lower, lower + last) + true_extent;
    memory.origin = static_cast<std::size_t>(-low);
    memory.bytes.resize(static_cast<std::size_t>(std::max<MPI_Aint>(high - low, 1)));
    for (auto& byte : memory.bytes)
        byte = static_cast<unsigned char>(draw(0, 255));
    return memory;
}

}  // namespace random_types
