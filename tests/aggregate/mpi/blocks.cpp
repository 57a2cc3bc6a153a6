// Scenario: blocks of global arrays.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

// Item `index` of a global array: its bytes follow from its indices alone.
std::uint8_t item_byte(std::uint64_t index, std::uint64_t b, std::uint64_t salt) {
    return byte_of(1, 2, index, b, salt);
}

struct Cut {
    std::vector<std::uint64_t> start, shape, local_shape, local_start;
};

// A global array that all ranks cut alike: a grid of blocks, dealt out to ranks in turns from `first` on.
struct Global {
    std::vector<std::uint64_t> shape;
    std::uint64_t item_bytes = 1;
    bool fortran = false;
    std::uint64_t offset = 0;

    std::uint64_t index_of(const std::vector<std::uint64_t>& at,
                           const std::vector<std::uint64_t>& array) const {
        std::uint64_t index = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            const std::size_t d = fortran ? at.size() - 1 - i : i;
            index = index * array[d] + at[d];
        }
        return index;
    }
    // Calls body(global index, local index) for each item.
    void each(const Cut& cut, const std::function<void(std::uint64_t, std::uint64_t)>& body) const {
        std::vector<std::uint64_t> at(shape.size(), 0);
        if (std::find(cut.shape.begin(), cut.shape.end(), 0U) != cut.shape.end()) return;
        while (true) {
            std::vector<std::uint64_t> there(at), here(at);
            for (std::size_t d = 0; d < at.size(); ++d) {
                there[d] += cut.start[d];
                here[d] += cut.local_start[d];
            }
            body(index_of(there, shape), index_of(here, cut.local_shape));
            std::size_t d = 0;
            while (d < at.size() && ++at[d] == cut.shape[d])
                at[d++] = 0;
            if (d == at.size()) return;
        }
    }
    std::vector<Cut> cuts(std::mt19937_64& random, int rank, int first) const {
        const auto pick = [&](std::uint64_t low, std::uint64_t high) {
            return low + random() % (high - low + 1);
        };
        // Where each dimension is cut.
        std::vector<std::vector<std::uint64_t>> bounds;
        for (const std::uint64_t length : shape) {
            std::vector<std::uint64_t> at{0, length};
            for (std::uint64_t k = pick(0, 2); k > 0; --k)
                at.push_back(pick(0, length));
            std::sort(at.begin(), at.end());
            bounds.push_back(at);
        }
        std::vector<Cut> mine;
        std::vector<std::size_t> at(shape.size(), 0);
        for (int number = first;; ++number) {
            Cut cut;
            for (std::size_t d = 0; d < at.size(); ++d) {
                const std::uint64_t before = pick(0, 2);
                cut.start.push_back(bounds[d][at[d]]);
                cut.shape.push_back(bounds[d][at[d] + 1] - cut.start.back());
                cut.local_start.push_back(before);
                cut.local_shape.push_back(before + cut.shape.back() + pick(0, 2));
            }
            if (number % ranks == rank) mine.push_back(cut);
            std::size_t d = 0;
            while (d < at.size() && ++at[d] + 1 == bounds[d].size())
                at[d++] = 0;
            if (d == at.size()) return mine;
        }
    }
};

std::uint64_t volume(const std::vector<std::uint64_t>& shape) {
    std::uint64_t items = 1;
    for (const std::uint64_t length : shape)
        items *= length;
    return items;
}

// Declares blocks, by indices or by datatypes of MPI.
void declare_cuts(twr_aggregate* aggregate, const Global& global, const std::vector<Cut>& cuts, bool types) {
    const int order = global.fortran ? TWR_ORDER_FORTRAN : TWR_ORDER_C;
    std::vector<twr_aggregate_block> blocks;
    for (const Cut& cut : cuts) {
        blocks.push_back({global.item_bytes, static_cast<int>(global.shape.size()), order, global.offset,
                          global.shape.data(), cut.start.data(), cut.shape.data(), cut.local_shape.data(),
                          cut.local_start.data()});
    }
    const int count = static_cast<int>(blocks.size());
    if (!types) {
        well(twr_aggregate_declare_blocks(aggregate, blocks.data(), count), "declare_blocks");
        return;
    }
    MPI_Datatype item = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(global.item_bytes), MPI_BYTE, &item);
    const auto type_of = [&](const std::vector<std::uint64_t>& array, const std::vector<std::uint64_t>& start,
                             const std::vector<std::uint64_t>& shape) {
        const auto ints = [](const std::vector<std::uint64_t>& values) {
            return std::vector<int>(values.begin(), values.end());
        };
        MPI_Datatype type = MPI_DATATYPE_NULL;
        if (array.empty()) {
            MPI_Type_dup(item, &type);
        } else if (volume(shape) == 0) {
            MPI_Type_contiguous(0, item, &type);
        } else {
            MPI_Type_create_subarray(static_cast<int>(array.size()), ints(array).data(), ints(shape).data(),
                                     ints(start).data(), global.fortran ? MPI_ORDER_FORTRAN : MPI_ORDER_C,
                                     item, &type);
        }
        return type;
    };
    std::vector<twr_aggregate_typed> all;
    for (const Cut& cut : cuts) {
        all.push_back({global.offset, type_of(global.shape, cut.start, cut.shape),
                       type_of(cut.local_shape, cut.local_start, cut.shape), 1});
    }
    well(twr_aggregate_declare_types(aggregate, all.data(), count), "declare_types");
    for (twr_aggregate_typed& typed : all) {
        MPI_Type_free(&typed.file_type);
        MPI_Type_free(&typed.memory_type);
    }
    MPI_Type_free(&item);
}

}  // namespace

void blocks(const std::string& folder, std::uint64_t seed, int rounds) {
    const std::string path = folder + "/data";
    for (int round = 0; round < rounds; ++round) {
        doing = "seed " + std::to_string(seed) + ", round " + std::to_string(round);
        std::mt19937_64 random(seed * 1009 + static_cast<std::uint64_t>(round));
        const auto pick = [&](std::uint64_t low, std::uint64_t high) {
            return low + random() % (high - low + 1);
        };
        Global global;
        const std::uint64_t sizes[] = {1, 2, 4, 8, 3, 12, 38};
        global.item_bytes = sizes[pick(0, 6)];
        global.fortran = pick(0, 1) == 1;
        global.offset = pick(0, 1) * pick(0, 6000);
        for (std::uint64_t d = pick(0, 4); d > 0; --d)
            global.shape.push_back(pick(1, 11));
        const std::uint64_t salt = random();
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.buffer_bytes = pick(0, 1) * 4096;
        options.block_bytes = 512;
        options.aggregators = static_cast<int>(pick(0, 3));
        twr_aggregate* aggregate = nullptr;
        well(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), "create");
        // Written in one cutting, and read in another, by other ranks.
        for (const bool writes : {true, false}) {
            const std::vector<Cut> cuts = global.cuts(random, me, static_cast<int>(pick(0, 5)));
            Arrays arrays;
            for (const Cut& cut : cuts) {
                arrays.emplace_back(std::max<std::uint64_t>(volume(cut.local_shape) * global.item_bytes, 1),
                                    0xEE);
                if (!writes) continue;
                global.each(cut, [&](std::uint64_t there, std::uint64_t here) {
                    for (std::uint64_t b = 0; b < global.item_bytes; ++b)
                        arrays.back()[here * global.item_bytes + b] = item_byte(there, b, salt);
                });
            }
            declare_cuts(aggregate, global, cuts, pick(0, 1) == 1);
            auto data = pointers(arrays);
            if (writes) {
                well(
                    twr_aggregate_write(aggregate, path.c_str(), const_cast<const void* const*>(data.data())),
                    "write");
                if (me == 0) {
                    std::vector<std::uint8_t> wanted(global.offset, 0);
                    for (std::uint64_t i = 0; i < volume(global.shape); ++i) {
                        for (std::uint64_t b = 0; b < global.item_bytes; ++b)
                            wanted.push_back(item_byte(i, b, salt));
                    }
                    same_bytes(contents(path), wanted, "the file");
                }
                continue;
            }
            well(twr_aggregate_read(aggregate, path.c_str(), data.data()), "read");
            for (std::size_t k = 0; k < cuts.size(); ++k) {
                std::vector<std::uint8_t> wanted(arrays[k].size(), 0xEE);
                global.each(cuts[k], [&](std::uint64_t there, std::uint64_t here) {
                    for (std::uint64_t b = 0; b < global.item_bytes; ++b)
                        wanted[here * global.item_bytes + b] = item_byte(there, b, salt);
                });
                same_bytes(arrays[k], wanted, "block " + std::to_string(k) + ", or its halo");
            }
        }
        twr_aggregate_free(aggregate);
    }
    // What is refused, on all ranks.
    doing = "what is refused";
    twr_aggregate* aggregate = nullptr;
    well(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, nullptr), "create");
    const int last = ranks - 1;
    const std::uint64_t shape[] = {4, static_cast<std::uint64_t>(4 * ranks)};
    const std::uint64_t start[] = {0, static_cast<std::uint64_t>(4 * me)};
    const std::uint64_t part[] = {4, 4};
    const std::uint64_t small[] = {4, 3};
    const std::uint64_t huge[] = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
    const twr_aggregate_block good{8, 2, TWR_ORDER_C, 0, shape, start, part, nullptr, nullptr};
    const auto refused = [&](const twr_aggregate_block& bad, const std::vector<std::string>& words) {
        fails_on(last, twr_aggregate_declare_blocks(aggregate, me == last ? &bad : &good, 1),
                 TWR_ERROR_INVALID_ARGUMENT, words);
    };
    twr_aggregate_block bad = good;
    bad.item_bytes = 0;
    refused(bad, {"block 0", "item_bytes"});
    bad = good;
    bad.dimensions = 33;
    refused(bad, {"block 0", "33"});
    bad = good;
    bad.order = 7;
    refused(bad, {"order is 7"});
    bad = good;
    bad.start = shape;
    refused(bad, {"leaves the global array in dimension 0"});
    bad = good;
    bad.local_shape = small;
    refused(bad, {"leaves the local array in dimension 1"});
    bad = good;
    bad.global_shape = huge;
    refused(bad, {"2^62"});
    bad = good;
    bad.shape = nullptr;
    refused(bad, {"NULL"});
    const twr_aggregate_block twice[] = {good, good};
    fails_on(last, twr_aggregate_declare_blocks(aggregate, twice, me == last ? 2 : 1),
             TWR_ERROR_INVALID_ARGUMENT, {"both claim"});
    if (ranks > 1) {
        const std::uint64_t zero[] = {0, 0};
        bad = good;
        bad.start = zero;
        const int status = twr_aggregate_declare_blocks(aggregate, &bad, 1);
        expect(status != TWR_OK, "all ranks declare one block");
        expect(std::string(twr_error_message()).find("both claim the byte at offset 0") != std::string::npos,
               twr_error_message());
    }
    const twr_aggregate_typed none{0, MPI_DATATYPE_NULL, MPI_INT, 1};
    const twr_aggregate_typed fine{static_cast<std::uint64_t>(4 * me), MPI_INT, MPI_INT, 1};
    fails_on(last, twr_aggregate_declare_types(aggregate, me == last ? &none : &fine, 1),
             TWR_ERROR_INVALID_ARGUMENT, {"MPI_DATATYPE_NULL"});
    MPI_Datatype back = MPI_DATATYPE_NULL;
    const int lengths[] = {1, 1};
    const int places[] = {5, 0};
    MPI_Type_indexed(2, lengths, places, MPI_INT, &back);
    const twr_aggregate_typed descending{0, back, MPI_INT, 2};
    fails_on(last, twr_aggregate_declare_types(aggregate, me == last ? &descending : &fine, 1),
             TWR_ERROR_INVALID_ARGUMENT, {"do not ascend"});
    MPI_Type_free(&back);
    twr_aggregate_free(aggregate);
}

}  // namespace aggregate_ranks
