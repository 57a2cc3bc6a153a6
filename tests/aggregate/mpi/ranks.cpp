// One rank of the jobs that scenarios.py starts: moves data by the public interface alone, and checks what it can itself. The core
// that is linked besides elects again.
//
// usage: aggregate_ranks SCENARIO FOLDER [ARGUMENT ...]; exit status 0 and "done" by rank 0 if all is as it should be; else what is
// not, on standard error, and MPI_Abort.
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "aggregate/plan/partition.hpp"
#include "aggregate/plan/placement.hpp"
#include "aggregate/topology/hosts.hpp"
#include "aggregate/topology/hwloc.hpp"
#include "faults.hpp"
#include "pins.h"

namespace {

int me = 0;
int ranks = 1;
std::string doing;         // for messages
std::string stopped_file;  // where they go besides: what is printed just before the end may be lost

[[noreturn]] void stop(const std::string& what) {
    std::fprintf(stderr, "ranks.cpp: rank %d: %s (%s)\n", me, what.c_str(), doing.c_str());
    if (std::FILE* const file = stopped_file.empty() ? nullptr : std::fopen(stopped_file.c_str(), "w")) {
        std::fprintf(file, "%s\n", what.c_str());
        std::fclose(file);
    }
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

void expect(bool condition, const std::string& what) {
    if (!condition) stop(what);
}

void well(int status, const char* what) {
    if (status != TWR_OK)
        stop(std::string(what) + ": " + std::to_string(status) + ": " + twr_error_message());
}

// The call fails with this status, and says these words.
void fails(int status, int wanted, const std::vector<std::string>& words) {
    const std::string message = twr_error_message();
    expect(status == wanted,
           "status " + std::to_string(status) + " instead of " + std::to_string(wanted) + ": " + message);
    for (const std::string& word : words)
        expect(message.find(word) != std::string::npos, "'" + word + "' is not in: " + message);
}

// Fails on one rank with this status, on the others because of it.
void fails_on(int rank, int status, int wanted, const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    if (me != rank) all.push_back("rank " + std::to_string(rank));
    fails(status, me == rank ? wanted : static_cast<int>(TWR_ERROR_OTHER_RANK), all);
}

nlohmann::json report(twr_aggregate* aggregate) {
    return nlohmann::json::parse(twr_aggregate_report(aggregate));
}

// ---- data: what lies where, for all ranks, from a seed ----

struct Variable {
    twr_aggregate_variable v;
    std::uint64_t memory_stride() const { return v.memory_stride == 0 ? v.item_bytes : v.memory_stride; }
    std::uint64_t file_stride() const { return v.file_stride == 0 ? v.item_bytes : v.file_stride; }
    std::uint64_t memory() const { return v.items == 0 ? 0 : (v.items - 1) * memory_stride() + v.item_bytes; }
};

// Byte `b` of item `i`: nothing that could come about by itself.
std::uint8_t byte_of(int rank, std::size_t variable, std::uint64_t i, std::uint64_t b, std::uint64_t salt) {
    std::uint64_t x = (static_cast<std::uint64_t>(rank) << 48) ^
                      (static_cast<std::uint64_t>(variable) << 40) ^ (i << 8) ^ b ^
                      (salt * 0x9E3779B97F4A7C15ULL);
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 29;
    return static_cast<std::uint8_t>(x >> 24);
}

using Declarations = std::vector<std::vector<Variable>>;  // of each rank of a file

using Arrays = std::vector<std::vector<std::uint8_t>>;

// A rank's arrays; what lies between items is `between`.
Arrays arrays_of(const std::vector<Variable>& variables, int rank, std::uint64_t salt,
                 std::uint8_t between = 0xEE) {
    Arrays arrays;
    for (std::size_t k = 0; k < variables.size(); ++k) {
        const Variable& variable = variables[k];
        std::vector<std::uint8_t> array(variable.memory(), between);
        for (std::uint64_t i = 0; i < variable.v.items; ++i) {
            for (std::uint64_t b = 0; b < variable.v.item_bytes; ++b)
                array[i * variable.memory_stride() + b] = byte_of(rank, k, i, b, salt);
        }
        arrays.push_back(std::move(array));
    }
    return arrays;
}

std::vector<void*> pointers(Arrays& arrays) {
    std::vector<void*> all;
    for (auto& array : arrays)
        all.push_back(array.empty() ? nullptr : array.data());
    return all;
}

// Nothing in common, whatever the seed: each part takes the next range of the file.
Declarations random_declarations(std::mt19937_64& random, int count) {
    const auto pick = [&](std::uint64_t low, std::uint64_t high) {
        return low + random() % (high - low + 1);
    };
    Declarations all(static_cast<std::size_t>(count));
    const auto memory = [&](std::uint64_t bytes) { return pick(0, 3) == 0 ? bytes + pick(0, 9) : 0; };
    const std::uint64_t sizes[] = {1, 2, 4, 8, 3, 16, 38};
    std::uint64_t at = pick(0, 3) == 0 ? pick(0, 20000) : 0;
    const std::uint64_t parts = pick(0, 12) == 0 ? 0 : pick(1, 5);
    for (std::uint64_t part = 0; part < parts; ++part) {
        switch (pick(0, 5)) {
            case 0: {  // rank after rank, dense blocks of several variables
                for (auto& rank : all) {
                    if (pick(0, 4) == 0) continue;
                    for (std::uint64_t k = pick(1, 3); k > 0; --k) {
                        const std::uint64_t size = sizes[pick(0, 6)];
                        const std::uint64_t items = pick(0, 5) == 0 ? pick(0, 30000) : pick(0, 900);
                        rank.push_back({{size, items, at, 0, memory(size)}});
                        at += size * items;
                    }
                }
                break;
            }
            case 1: {  // rank after rank, each with records of several fields, perhaps with holes
                for (auto& rank : all) {
                    if (pick(0, 4) == 0) continue;
                    std::vector<std::uint64_t> fields;
                    std::uint64_t record = 0;
                    for (std::uint64_t k = pick(1, 5); k > 0; --k) {
                        fields.push_back(sizes[pick(0, 5)]);
                        record += fields.back();
                    }
                    const std::uint64_t items = pick(0, 2000);
                    const std::uint64_t stride = record + (pick(0, 2) == 0 ? pick(0, 30) : 0);
                    std::uint64_t place = at;
                    for (const std::uint64_t size : fields) {
                        if (pick(0, 9) != 0) rank.push_back({{size, items, place, stride, memory(size)}});
                        place += size;
                    }
                    at += stride * items;
                }
                break;
            }
            case 2: {  // item by item, rank by rank in turns
                const std::uint64_t size = sizes[pick(0, 5)];
                const std::uint64_t stride = size * static_cast<std::uint64_t>(count) + pick(0, 20);
                const std::uint64_t items = pick(0, 3000);
                for (std::size_t r = 0; r < all.size(); ++r) {
                    const std::uint64_t own = pick(0, 3) == 0 ? pick(0, items) : items;
                    all[r].push_back({{size, own, at + r * size, stride, memory(size)}});
                }
                at += stride * items;
                break;
            }
            case 3:  // one variable of all ranks, then the next
                for (std::uint64_t k = pick(1, 4); k > 0; --k) {
                    const std::uint64_t size = sizes[pick(0, 5)];
                    for (auto& rank : all) {
                        const std::uint64_t items = pick(0, 4) == 0 ? 0 : pick(1, 4000);
                        rank.push_back({{size, items, at, 0, memory(size)}});
                        at += size * items;
                    }
                }
                break;
            case 4: {  // few items, far from each other
                const std::uint64_t size = pick(1, 9000);
                const std::uint64_t stride = size + pick(1, 100000);
                const std::uint64_t items = pick(1, 4);
                auto& rank = all[pick(0, all.size() - 1)];
                rank.push_back({{size, items, at, stride, memory(size)}});
                at += stride * items;
                break;
            }
            default: at += pick(0, 1) == 0 ? pick(1, 9) : pick(1, 70000);  // nobody's
        }
    }
    for (auto& rank : all)
        std::shuffle(rank.begin(), rank.end(), random);
    return all;
}

// As one POSIX write an item would leave it.
std::vector<std::uint8_t> expected_file(const Declarations& all, std::uint64_t salt,
                                        std::vector<std::uint8_t> file) {
    for (std::size_t r = 0; r < all.size(); ++r) {
        for (std::size_t k = 0; k < all[r].size(); ++k) {
            const Variable& variable = all[r][k];
            for (std::uint64_t i = 0; i < variable.v.items; ++i) {
                const std::uint64_t at = variable.v.file_offset + i * variable.file_stride();
                if (file.size() < at + variable.v.item_bytes) file.resize(at + variable.v.item_bytes, 0);
                for (std::uint64_t b = 0; b < variable.v.item_bytes; ++b)
                    file[at + b] = byte_of(static_cast<int>(r), k, i, b, salt);
            }
        }
    }
    return file;
}

std::vector<std::uint8_t> contents(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) stop(path + " is not there");
    std::vector<std::uint8_t> bytes;
    std::uint8_t buffer[65536];
    while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, file))
        bytes.insert(bytes.end(), buffer, buffer + got);
    std::fclose(file);
    return bytes;
}

void put_contents(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size())
        stop("cannot write " + path);
    std::fclose(file);
}

bool there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void same_bytes(const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& wanted,
                const std::string& what) {
    if (got == wanted) return;
    const std::size_t least = std::min(got.size(), wanted.size());
    const auto at = static_cast<std::size_t>(
        std::mismatch(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(least), wanted.begin()).first -
        got.begin());
    stop(what + ": " + std::to_string(got.size()) + " bytes instead of " + std::to_string(wanted.size()) +
         ", the first difference at " + std::to_string(at));
}

std::vector<twr_aggregate_variable> plain(const std::vector<Variable>& variables) {
    std::vector<twr_aggregate_variable> all;
    for (const Variable& variable : variables)
        all.push_back(variable.v);
    return all;
}

// ---- blocks of global arrays ----

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

// ---- scenarios ----

// The report's partitions are the serial functions' own, and so are their aggregators.
void same_election_on(const twinrun::Topology& topology, twr_aggregate* aggregate, const Declarations& all,
                      const twr_aggregate_options& options, const std::vector<std::uint32_t>& node_of,
                      std::uint64_t nodes) {
    const nlohmann::json said = report(aggregate).at("declared");
    std::vector<twinrun::OwnedSet> sets;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::vector<twinrun::DeclaredVariable> declared;
        for (const Variable& v : all[rank])
            declared.push_back(
                {v.v.item_bytes, v.v.items, v.v.file_offset, v.v.file_stride, v.v.memory_stride});
        for (const twinrun::StridedSet& set : twinrun::shape_of(*twinrun::rank_sets(declared)))
            sets.push_back({set, static_cast<std::uint32_t>(rank)});
    }
    const twinrun::FileTable table(sets);
    std::uint64_t wanted = static_cast<std::uint64_t>(options.aggregators);
    if (wanted == 0) wanted = twinrun::default_aggregators(table.bytes(), nodes, all.size());
    std::vector<std::vector<twinrun::Contribution>> members;
    std::vector<std::uint32_t> gateways;
    const auto ranges = twinrun::make_partitions(table, wanted, said.at("block_bytes").get<std::uint64_t>());
    for (const twinrun::Range& range : ranges) {
        members.push_back(twinrun::contributions_to(table, range, node_of));
        gateways.push_back(twinrun::gateway_of_partition(topology, members.back()));
    }
    const auto elected =
        twinrun::elect(topology, *twinrun::placement_of(options.placement), members, gateways, options.seed);
    const nlohmann::json& partitions = said.at("partitions");
    expect(partitions.size() == elected.size(), "the number of partitions: " + said.dump());
    for (std::size_t p = 0; p < elected.size(); ++p) {
        expect(partitions[p].at("begin") == ranges[p].begin && partitions[p].at("end") == ranges[p].end,
               "the range of partition " + std::to_string(p) + ": " + said.dump());
        std::string costs;
        for (std::size_t i = 0; i < members[p].size(); ++i) {
            const auto cost = twinrun::placement_cost(topology, members[p], i, gateways[p]);
            costs += " " + std::to_string(members[p][i].rank) + ": " + std::to_string(1e9F * cost.total());
        }
        expect(partitions[p].at("aggregator") == elected[p].rank,
               "costs" + costs + ": rank " + std::to_string(elected[p].rank) +
                   " should aggregate for partition " + std::to_string(p) + ": " + said.dump());
        expect(partitions[p].at("cost").at("gather").get<float>() == elected[p].cost.gather &&
                   partitions[p].at("cost").at("write").get<float>() == elected[p].cost.write,
               "the cost of partition " + std::to_string(p));
    }
}

void same_election(twr_aggregate* aggregate, const Declarations& all, const twr_aggregate_options& options,
                   const std::vector<std::uint32_t>& node_of) {
    const std::uint32_t nodes = *std::max_element(node_of.begin(), node_of.end()) + 1;
    const auto topology = twinrun::topology_of_hosts(options.topology, std::vector<twinrun::Host>(nodes));
    expect(topology.ok(), "the topology");
    same_election_on(**topology, aggregate, all, options, node_of, nodes);
}

// Nodes as MPI has them, numbered by their first ranks.
std::vector<std::uint32_t> nodes() {
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &node);
    int leader = me;
    MPI_Bcast(&leader, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    std::vector<int> leaders(static_cast<std::size_t>(ranks));
    MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::vector<int> distinct = leaders;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<std::uint32_t> node_of;
    for (const int of : leaders)
        node_of.push_back(static_cast<std::uint32_t>(std::lower_bound(distinct.begin(), distinct.end(), of) -
                                                     distinct.begin()));
    return node_of;
}

// What a write makes under a name of its own is in its place, or gone.
void expect_no_partial(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        expect(name.find(".twr-partial.") == std::string::npos, "a partial file is still there: " + name);
    }
}

// Random declarations and options: the bytes are those of POSIX writes, and come back.
void properties(const std::string& folder, std::uint64_t seed, int rounds) {
    const std::vector<std::uint32_t> node_of = nodes();
    for (int round = 0; round < rounds; ++round) {
        std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(round));
        const auto pick = [&](std::uint64_t low, std::uint64_t high) {
            return low + random() % (high - low + 1);
        };
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        const char* const files[] = {"one", "one", "node", "rank"};
        const char* const placements[] = {"cost", "rank", "bridge", "random", "worst"};
        const char* const topologies[] = {"auto", "flat", "node", "torus:4x4x2"};
        const char* const backends[] = {"posix", "posix", "mpiio", "uring"};
        options.files = files[pick(0, 3)];
        options.nodes_per_file = static_cast<int>(pick(0, 2));
        options.aggregators =
            static_cast<int>(pick(0, 2) == 0 ? 0 : pick(1, 2 * static_cast<std::uint64_t>(ranks) + 1));
        options.placement = placements[pick(0, 4)];
        options.topology = topologies[pick(0, 3)];
        options.backend = backends[pick(0, 3)];
        options.buffers = static_cast<int>(pick(0, 1) == 0 ? 0 : pick(2, 5));
        options.buffer_bytes = pick(0, 2) == 0 ? 0 : pick(1, 20000);
        options.block_bytes = pick(0, 1) == 0 ? 0 : pick(1, 6000);
        options.update = pick(0, 2) == 0;
        options.sync = pick(0, 9) == 0;
        options.time_limit = 60;
        options.seed = random();
        if (pick(0, 3) == 0) faults::cut_calls(pick(1000, 9000));  // calls that do less than was asked for
        const char* const direct[] = {"never", "1", "1000", "20000"};
        ::setenv("TWINRUN_AGGREGATE_DIRECT", direct[pick(0, 3)], 1);
        doing = "seed " + std::to_string(seed) + " round " + std::to_string(round) + ": files " +
                options.files + ", aggregators " + std::to_string(options.aggregators) + ", placement " +
                options.placement + ", topology " + options.topology + ", backend " + options.backend +
                ", buffers " + std::to_string(options.buffers) + " of " +
                std::to_string(options.buffer_bytes) + ", block " + std::to_string(options.block_bytes) +
                (options.update ? ", update" : "") + ", direct " + std::getenv("TWINRUN_AGGREGATE_DIRECT");
        twr_aggregate* aggregate = nullptr;
        int status = twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options);
        if (status == TWR_ERROR_UNSUPPORTED ||
            (status == TWR_ERROR_OTHER_RANK && std::strcmp(options.backend, "uring") == 0)) {
            options.backend = "posix";  // no io_uring here
            status = twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options);
        }
        well(status, "create");
        int file = 0;
        int file_count = 0;
        int rank = 0;
        int file_ranks = 0;
        well(twr_aggregate_file(aggregate, &file, &file_count, &rank, &file_ranks, nullptr), "file");
        const std::string base = folder + "/data-" + std::to_string(round);
        char number[16];
        std::snprintf(number, sizeof number, ".%05d", file);
        const std::string path = file_count == 1 ? base : base + number;
        for (int declaration = 0; declaration < 2; ++declaration) {
            std::mt19937_64 own(seed * 7919 + static_cast<std::uint64_t>(round) * 31 +
                                static_cast<std::uint64_t>(file) * 101 +
                                static_cast<std::uint64_t>(declaration));
            const Declarations all = random_declarations(own, file_ranks);
            const auto& variables = all[static_cast<std::size_t>(rank)];
            const auto declared = plain(variables);
            well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())),
                 "declare");
            if (file_count == 1) same_election(aggregate, all, options, node_of);
            for (std::uint64_t step = 0; step < 2; ++step) {
                const std::uint64_t salt = step + 10 * static_cast<std::uint64_t>(declaration);
                Arrays arrays = arrays_of(variables, rank, salt);
                const auto data = pointers(arrays);
                std::vector<std::uint8_t> before;
                if (options.update && rank == 0) {
                    before.assign(own() % 200000, 0xAB);
                    if (there(path)) before = contents(path);
                    put_contents(path, before);
                }
                MPI_Barrier(MPI_COMM_WORLD);
                well(twr_aggregate_write(aggregate, base.c_str(), data.data()), "write");
                if (rank == 0) {
                    same_bytes(contents(path), expected_file(all, salt, before), path);
                    expect_no_partial(folder);
                }
                Arrays back = arrays;
                for (auto& array : back)
                    std::fill(array.begin(), array.end(), std::uint8_t{0xEE});
                const auto to = pointers(back);
                well(twr_aggregate_read(aggregate, base.c_str(), to.data()), "read");
                for (std::size_t k = 0; k < arrays.size(); ++k)
                    same_bytes(back[k], arrays[k], "variable " + std::to_string(k) + " read back");
            }
            const nlohmann::json said = report(aggregate);
            std::uint64_t bytes = 0;
            for (const auto& variable : variables)
                bytes += variable.v.items * variable.v.item_bytes;
            MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
            expect(said.at("write").at("bytes") == bytes && said.at("read").at("bytes") == bytes,
                   "the report's bytes: " + said.dump());
        }
        twr_aggregate_free(aggregate);
        faults::cut_calls(0);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) ::unlink(path.c_str());
    }
}

// One rank's variable and data for the scenarios below: items of 4 bytes of all ranks in turns, so that all share each window, and a
// dense block each behind them.
struct Sample {
    explicit Sample(std::uint64_t items, std::uint64_t salt = 0) {
        for (int rank = 0; rank < ranks; ++rank) {
            const auto r = static_cast<std::uint64_t>(rank);
            const auto n = static_cast<std::uint64_t>(ranks);
            all.push_back({{{4, items, 4 * r, 4 * n, 0}}, {{8, items, 4 * n * items + 8 * items * r, 0, 0}}});
        }
        arrays = arrays_of(all[static_cast<std::size_t>(me)], me, salt);
        data = pointers(arrays);
        declared = plain(all[static_cast<std::size_t>(me)]);
        file = expected_file(all, salt, {});
    }
    int declare(twr_aggregate* aggregate) const {
        return twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size()));
    }
    Declarations all;
    Arrays arrays;
    std::vector<void*> data;
    std::vector<twr_aggregate_variable> declared;
    std::vector<std::uint8_t> file;
};

twr_aggregate* made(const twr_aggregate_options& options) {
    twr_aggregate* aggregate = nullptr;
    well(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), "create");
    return aggregate;
}

// Of all ranks, one: a new file with these bytes, and no partial one.
void has_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path), bytes, path);
        expect_no_partial(path.substr(0, path.rfind('/')));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

void overlaps() {
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const auto r = static_cast<std::uint64_t>(me);
    // One rank's own: only that rank is to blame.
    {
        std::vector<twr_aggregate_variable> own = {{8, 10, 1000 * r, 0, 0}};
        if (me == ranks - 1) own.push_back({4, 3, 1000 * r + 70, 100, 0});
        const int status = twr_aggregate_declare(aggregate, own.data(), static_cast<int>(own.size()));
        fails_on(ranks - 1, status, TWR_ERROR_INVALID_ARGUMENT,
                 {"variables 0 and 1", "offset " + std::to_string(1000 * (ranks - 1) + 70)});
    }
    // Two ranks': both are, and both are named.
    if (ranks > 1) {
        const int other = ranks - 1;
        std::vector<twr_aggregate_variable> mine = {{1, 0, 0, 0, 0}, {8, 10, 1000 * r, 0, 0}};
        // Items at 3, 103, ...: the first that meets rank 0's 80 bytes is its own first.
        if (me == other) mine[1] = {2, 50, 79, 777, 0};
        const int status = twr_aggregate_declare(aggregate, mine.data(), 2);
        const bool to_blame = me == 0 || me == other;
        fails(status, to_blame ? TWR_ERROR_INVALID_ARGUMENT : TWR_ERROR_OTHER_RANK,
              {"variable 1 of rank 0 and variable 1 of rank " + std::to_string(other), "offset 79"});
        // Strides that never meet, though their bounds do.
        mine[1] = {4, 1000, 4 * r, 4 * static_cast<std::uint64_t>(ranks), 0};
        well(twr_aggregate_declare(aggregate, mine.data(), 2), "declare");
    }
    twr_aggregate_free(aggregate);
}

void invalid(const std::string& folder) {
    const std::string path = folder + "/data";
    const int last = ranks - 1;
    twr_aggregate* aggregate = nullptr;
    const auto refused = [&](const std::function<void(twr_aggregate_options&)>& change,
                             const std::string& word) {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        if (me == last) change(options);
        fails_on(last, twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), TWR_ERROR_INVALID_ARGUMENT,
                 {word});
        expect(aggregate == nullptr, "an aggregate after an error");
    };
    refused([](auto& o) { o.size = 3; }, "size");
    refused([](auto& o) { o.files = "two"; }, "'two'");
    refused([](auto& o) { o.nodes_per_file = -1; }, "nodes_per_file");
    refused([](auto& o) { o.aggregators = -1; }, "aggregators");
    refused([](auto& o) { o.placement = "best"; }, "'best'");
    refused([](auto& o) { o.backend = "hdf5"; }, "'hdf5'");
    refused([](auto& o) { o.buffers = 1; }, "buffers");
    refused([](auto& o) { o.buffer_bytes = UINT64_MAX; }, "buffer_bytes");
    for (const char* const limit : {"soon", "0", "nan", "1e999", "5 s"})
        refused([=](auto&) { ::setenv("TWINRUN_AGGREGATE_TIME_LIMIT", limit, 1); },
                "TWINRUN_AGGREGATE_TIME_LIMIT");
    ::unsetenv("TWINRUN_AGGREGATE_TIME_LIMIT");
    if (ranks > 1) {
        refused([](auto& o) { o.seed = 7; }, "settings differ");
        refused([](auto& o) { o.sync = 1; }, "settings differ");
    }
    {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.topology = "ring:7";
        const int status = twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options);
        fails(status, TWR_ERROR_INVALID_ARGUMENT, {"ring"});
    }
    fails(twr_aggregate_create(nullptr, MPI_COMM_WORLD, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"NULL"});
    fails(twr_aggregate_create(&aggregate, MPI_COMM_NULL, nullptr), TWR_ERROR_INVALID_ARGUMENT,
          {"MPI_COMM_NULL"});
    fails(twr_aggregate_declare(nullptr, nullptr, 0), TWR_ERROR_INVALID_ARGUMENT, {"NULL"});
    twr_aggregate_free(nullptr);

    // The older name has the same text, also of calls of other libraries of twinrun's.
    expect(std::strcmp(twr_aggregate_error_message(), twr_error_message()) == 0, "two texts");
    twr_fail(TWR_ERROR_IO, "of another library");
    expect(std::strcmp(twr_aggregate_error_message(), "of another library") == 0, "two texts");

    well(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, nullptr), "create");
    const Sample sample(500);
    std::vector<void*> data = sample.data;
    fails(twr_aggregate_write(aggregate, path.c_str(), data.data()), TWR_ERROR_INVALID_ARGUMENT,
          {"nothing is declared"});
    const auto declare = [&](const twr_aggregate_variable* variables, int count, const std::string& word) {
        const Sample& s = sample;
        const int status =
            me == last ? twr_aggregate_declare(aggregate, variables, count) : s.declare(aggregate);
        fails_on(last, status, TWR_ERROR_INVALID_ARGUMENT, {word});
    };
    const twr_aggregate_variable nothing = {0, 1, 0, 0, 0};
    declare(nullptr, 1, "NULL");
    declare(&nothing, -1, "negative");
    declare(&nothing, 1, "item_bytes");
    const std::uint64_t sizes[] = {4, 8};
    fails_on(last, twr_aggregate_declare_records(aggregate, sizes, 2, 10, me == last ? 3 : TWR_BLOCKS, 0),
             TWR_ERROR_INVALID_ARGUMENT, {"layout"});
    if (ranks > 1) {
        fails_on(last, twr_aggregate_declare_records(aggregate, sizes, me == last ? 1 : 2, 10, TWR_BLOCKS, 0),
                 TWR_ERROR_INVALID_ARGUMENT, {"differ"});
    }
    fails(twr_aggregate_declare_records(aggregate, sizes, 2, std::uint64_t{1} << 62, TWR_BLOCKS, 0),
          TWR_ERROR_INVALID_ARGUMENT, {"2^63"});
    fails(twr_aggregate_write(aggregate, path.c_str(), data.data()), TWR_ERROR_INVALID_ARGUMENT,
          {"nothing is declared"});

    well(sample.declare(aggregate), "declare");
    if (me == last) data[1] = nullptr;
    fails_on(last, twr_aggregate_write(aggregate, path.c_str(), data.data()), TWR_ERROR_INVALID_ARGUMENT,
             {"variable 1"});
    fails_on(last, twr_aggregate_write(aggregate, path.c_str(), me == last ? nullptr : sample.data.data()),
             TWR_ERROR_INVALID_ARGUMENT, {"data is NULL"});
    fails_on(last, twr_aggregate_write(aggregate, me == last ? nullptr : path.c_str(), sample.data.data()),
             TWR_ERROR_INVALID_ARGUMENT, {"path"});
    if (ranks > 1) {
        fails_on(last,
                 twr_aggregate_write(aggregate, (me == last ? path + "x" : path).c_str(), sample.data.data()),
                 TWR_ERROR_INVALID_ARGUMENT, {"path differ"});
    }
    fails_on(0, twr_aggregate_write(aggregate, folder.c_str(), sample.data.data()),
             TWR_ERROR_INVALID_ARGUMENT, {"regular"});
    fails_on(0, twr_aggregate_write(aggregate, (folder + "/no/data").c_str(), sample.data.data()),
             TWR_ERROR_NOT_FOUND, {"/no/data"});
    fails_on(0, twr_aggregate_read(aggregate, path.c_str(), sample.data.data()), TWR_ERROR_NOT_FOUND, {path});
    // After all that it works.
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    has_file(path, sample.file);
    if (me == 0)
        expect(::truncate(path.c_str(), static_cast<off_t>(sample.file.size() - 1)) == 0, "truncate");
    MPI_Barrier(MPI_COMM_WORLD);
    fails_on(0, twr_aggregate_read(aggregate, path.c_str(), sample.data.data()), TWR_ERROR_DAMAGED,
             {"bytes"});
    twr_aggregate_free(aggregate);
}

// Storage fails on one rank, at one call after the other: it says so, the others say who, the old file stays, and the next write is
// well again.
void storage(const std::string& folder, const std::string& function, const std::string& backend, bool sync,
             bool direct) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", direct ? "1" : "never", 1);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.backend = backend.c_str();
    options.aggregators = 2;
    options.buffer_bytes = 4096;
    options.sync = sync ? 1 : 0;
    twr_aggregate* const aggregate = made(options);
    const Sample old(2000, 1);
    const Sample sample(2000, 2);
    well(old.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
    has_file(path, old.file);
    int reached = 0;
    for (int who = 0; who < ranks; ++who) {
        for (int after = 0; after < 40; after += 1 + after / 3) {
            doing =
                "storage " + function + " of rank " + std::to_string(who) + " after " + std::to_string(after);
            if (function ==
                "limit") {  // a file size limit, which no function in front of the system's can take away
                if (me == who) {
                    const rlimit limit{static_cast<rlim_t>(4096 * after + 100), RLIM_INFINITY};
                    ::signal(SIGXFSZ, SIG_IGN);
                    expect(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
                }
            } else {
                faults::fail(me == who ? function : "", after, function == "write" ? ENOSPC : EIO);
            }
            const bool reads = function == "read";
            Sample back(2000, 2);
            const int status = reads ? twr_aggregate_read(aggregate, path.c_str(), back.data.data())
                                     : twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
            int hit = me == who && (function == "limit" ? status != TWR_OK : faults::failed()) ? 1 : 0;
            MPI_Bcast(&hit, 1, MPI_INT, who, MPI_COMM_WORLD);
            faults::fail("", 0, 0);
            if (function == "limit" && me == who) {
                const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
                expect(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
            }
            if (hit == 0) {
                well(status, "the call");
                if (!reads) {
                    has_file(path, sample.file);
                    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()),
                         "write of the old data");
                }
                break;
            }
            ++reached;
            std::vector<std::string> words;
            if (function == "write") words = {"No space left on device", "offset"};
            if (function == "fsync" || function == "open" || function == "read")
                words = {"Input/output error"};
            // The folder is synced when the file is in its place, which stays so.
            const bool folder_only =
                function == "fsync" && std::strstr(twr_error_message(), "/data") == nullptr;
            words.push_back(folder_only ? folder : "/data");
            fails_on(who, status, function == "write" ? TWR_ERROR_NO_SPACE : TWR_ERROR_IO, words);
            has_file(path, folder_only ? sample.file : old.file);
            if (folder_only)
                well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write of the old data");
        }
    }
    expect(reached > 0, "no rank ever came to " + function);
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    has_file(path, sample.file);
    twr_aggregate_free(aggregate);
}

// Somebody takes the partial file's name away while it is written: what is there then stays, and what was at the path.
void stolen(const std::string& folder, bool sync) {
    namespace fs = std::filesystem;
    const std::string path = folder + "/data";
    const std::vector<std::uint8_t> own(1000, 0x55);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 1;
    options.sync = sync ? 1 : 0;
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "never", 1);
    twr_aggregate* const aggregate = made(options);
    const Sample old(500, 1);
    const Sample sample(500, 2);
    well(old.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
    has_file(path, old.file);
    std::string name;
    const auto partial = [&] {
        for (const auto& entry : fs::directory_iterator(folder))
            if (entry.path().filename().string().find(".twr-partial.") != std::string::npos)
                return entry.path().string();
        return std::string();
    };
    // At the first write, on whichever rank it is.
    faults::act("write", [&] {
        name = partial();
        fs::rename(name, folder + "/moved");
        put_contents(name, own);
    });
    const int status = twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
    faults::act("", nullptr);
    fails_on(0, status, TWR_ERROR_IO, {"data.twr-partial.", "somebody renamed, removed or replaced it"});
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path), old.file, path);
        const std::string there = partial();
        expect(!there.empty(), "somebody's file is gone");
        same_bytes(contents(there), own, there);
        ::unlink(there.c_str());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    // A folder comes to the path: it is not exchanged away.
    faults::act("write", [&] {
        ::unlink(path.c_str());
        fs::create_directory(path);
        put_contents(path + "/notes", own);
    });
    const int again = twr_aggregate_write(aggregate, path.c_str(), sample.data.data());
    faults::act("", nullptr);
    expect(again != TWR_OK, "a folder was replaced");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path + "/notes"), own, path + "/notes");
        expect_no_partial(folder);
    }
    twr_aggregate_free(aggregate);
}

// The path is a symbolic link: a write replaces it, an update goes to the file that it names; nothing is made at a place that only a
// link tells of.
void links(const std::string& folder, const std::string& backend) {
    const std::string path = folder + "/data";
    const std::string elsewhere = folder + "/elsewhere";
    const std::vector<std::uint8_t> own(1000, 0x55);
    const auto linked = [&](bool dangling) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (me == 0) {
            ::unlink(path.c_str());
            ::unlink(elsewhere.c_str());
            if (!dangling) put_contents(elsewhere, own);
            expect(::symlink("elsewhere", path.c_str()) == 0, "symlink");
        }
        MPI_Barrier(MPI_COMM_WORLD);
    };
    const auto by_one = [](const std::function<void()>& what) {
        if (me == 0) what();
        MPI_Barrier(MPI_COMM_WORLD);
    };
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.backend = backend.c_str();
    const Sample sample(500);
    for (const bool sync : {false, true}) {
        options.update = 0;
        options.sync = sync ? 1 : 0;
        twr_aggregate* const writer = made(options);
        well(sample.declare(writer), "declare");
        for (const bool dangling : {false, true}) {
            doing = std::string("links, write") + (sync ? ", sync" : "") + (dangling ? ", dangling" : "");
            linked(dangling);
            well(twr_aggregate_write(writer, path.c_str(), sample.data.data()), "write");
            has_file(path, sample.file);
            by_one([&] {
                expect(!std::filesystem::is_symlink(path), "the link is still there");
                expect(there(elsewhere) != dangling, "what the link named came or went");
                if (!dangling) same_bytes(contents(elsewhere), own, elsewhere);
            });
        }
        twr_aggregate_free(writer);
        options.update = 1;
        twr_aggregate* const updater = made(options);
        well(sample.declare(updater), "declare");
        doing = std::string("links, update") + (sync ? ", sync" : "");
        linked(true);
        fails_on(0, twr_aggregate_write(updater, path.c_str(), sample.data.data()),
                 TWR_ERROR_INVALID_ARGUMENT, {path, "symbolic link"});
        by_one([&] { expect(!there(elsewhere), "a file was made where a link told"); });
        linked(false);
        well(twr_aggregate_write(updater, path.c_str(), sample.data.data()), "update");
        by_one([&] {
            expect(std::filesystem::is_symlink(path), "an update replaced the link");
            same_bytes(contents(elsewhere), sample.file, elsewhere);
        });
        twr_aggregate_free(updater);
    }
}

// The last rank is killed on its way, or stops for good: then the others come out of the call with an error, and end what stopped. What
// was there stays.
void die(const std::string& folder, const std::string& how, const std::string& where, bool update) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "never", 1);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = ranks;  // one of them the rank that dies
    options.buffer_bytes = 4096;
    const Sample sample(3000, 1);
    // What was there is of a job without such a limit, which on a busy machine the living exceed too.
    twr_aggregate* const before = made(options);
    well(sample.declare(before), "declare");
    well(twr_aggregate_write(before, path.c_str(), sample.data.data()), "write");
    twr_aggregate_free(before);
    // By either of the two ways to set it.
    if (where == "before") {
        ::setenv("TWINRUN_AGGREGATE_TIME_LIMIT", "1", 1);
    } else {
        options.time_limit = 1;
    }
    options.update = update ? 1 : 0;
    twr_aggregate* const aggregate = made(options);
    well(sample.declare(aggregate), "declare");
    const int who = ranks - 1;
    stopped_file = folder + "/stopped-" + std::to_string(me);
    const Sample next(3000, 2);
    std::vector<const void*> data(next.data.begin(), next.data.end());
    int process = ::getpid();
    MPI_Bcast(&process, 1, MPI_INT, who, MPI_COMM_WORLD);
    if (me == who) {
        const int last = how == "kill" ? SIGKILL : SIGSTOP;
        if (where == "before") ::kill(::getpid(), last);
        if (where == "write") faults::fail("write", 2, how == "kill" ? faults::kKill : faults::kStop);
        if (where == "gather") {  // its array ends where no memory is
            const std::uint64_t bytes = 4 * 3000;
            auto* const memory = static_cast<char*>(
                ::mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            ::mprotect(memory + 2 * 4096, 2 * 4096, PROT_NONE);
            data[0] = memory + 2 * 4096 - bytes / 2;
            ::signal(
                SIGSEGV, how == "kill" ? [](int) { ::kill(::getpid(), SIGKILL); }
                                       : [](int) { ::kill(::getpid(), SIGSTOP); });
        }
    }
    const int status = twr_aggregate_write(aggregate, path.c_str(), data.data());
    if (me == who) stop("the rank that was to die lives");
    if (status != TWR_ERROR_OTHER_RANK) stop("status " + std::to_string(status) + ": " + twr_error_message());
    const std::string message = twr_error_message();
    // Nothing collective works any more, and says so at once.
    fails(twr_aggregate_write(aggregate, path.c_str(), data.data()), TWR_ERROR_OTHER_RANK, {});
    twr_aggregate_free(aggregate);
    // By files: what is printed just before the end may be lost, and MPI may not work any more.
    const std::string name = folder + "/survivor-";
    put_contents(name + std::to_string(me) + ".tmp", {message.begin(), message.end()});
    ::rename((name + std::to_string(me) + ".tmp").c_str(), (name + std::to_string(me)).c_str());
    for (int rank = 0; rank < ranks - 1; ++rank) {
        while (!there(name + std::to_string(rank)))
            ::usleep(1000);
    }
    if (me == 0) ::kill(process, SIGKILL);
    ::_exit(0);
}

// What die() wrote first, by another job.
void again(const std::string& folder) {
    const std::string path = folder + "/data";
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const Sample sample(3000, 1);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) same_bytes(contents(path), sample.file, path);  // beside what the dead left
    twr_aggregate_free(aggregate);
}

// Sizes beyond 32 bits. Zeros of memory that takes no room are noted where they would be written, and nothing is.
void large(const std::string& folder, bool direct) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", direct ? "1" : "never", 1);
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const std::uint64_t most =
        (std::uint64_t{1} << 31) + 12345;  // rank 0 alone has so many bytes, the others few
    const std::uint64_t bytes = me == 0 ? most : 1000;
    const std::uint64_t offset =
        (std::uint64_t{5} << 30) + 77 + (me == 0 ? 0 : most + 1000 * static_cast<std::uint64_t>(me - 1));
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    expect(memory != MAP_FAILED, "mmap");
    const twr_aggregate_variable variable = {1, bytes, offset, 0, 0};
    well(twr_aggregate_declare(aggregate, &variable, 1), "declare");
    faults::note_zeros(true);
    well(twr_aggregate_write(aggregate, path.c_str(), &memory), "write");
    std::vector<std::uint64_t> own;
    for (const faults::Noted& note : faults::noted()) {
        own.push_back(note.offset);
        own.push_back(note.bytes);
    }
    faults::note_zeros(false);
    int count = static_cast<int>(own.size());
    std::vector<int> counts(static_cast<std::size_t>(ranks));
    MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::vector<int> starts(counts.size(), 0);
    for (std::size_t i = 1; i < counts.size(); ++i)
        starts[i] = starts[i - 1] + counts[i - 1];
    std::vector<std::uint64_t> all(me == 0 ? static_cast<std::size_t>(starts.back() + counts.back()) : 1);
    MPI_Gatherv(own.data(), count, MPI_UINT64_T, all.data(), counts.data(), starts.data(), MPI_UINT64_T, 0,
                MPI_COMM_WORLD);
    if (me == 0) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> notes;
        for (std::size_t i = 0; i < all.size(); i += 2)
            notes.emplace_back(all[i], all[i + 1]);
        std::sort(notes.begin(), notes.end());
        std::uint64_t at = (std::uint64_t{5} << 30) + 77;
        for (const auto& [begin, length] : notes) {
            expect(begin == at, "a hole, or bytes written twice, at " + std::to_string(at));
            at += length;
        }
        expect(at == (std::uint64_t{5} << 30) + 77 + most + 1000 * static_cast<std::uint64_t>(ranks - 1),
               "the end");
    }
    ::munmap(memory, bytes);
    // Items far behind 4 GiB, really written, to a file of holes.
    const std::uint64_t far = (std::uint64_t{3} << 32) + 5;
    const twr_aggregate_variable items = {8, 3, far + 8 * static_cast<std::uint64_t>(me),
                                          std::uint64_t{1} << 32, 0};
    std::vector<std::uint64_t> values = {1000 + static_cast<std::uint64_t>(me),
                                         2000 + static_cast<std::uint64_t>(me), 3000};
    void* data = values.data();
    well(twr_aggregate_declare(aggregate, &items, 1), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), &data), "write");
    std::vector<std::uint64_t> back(3, 0);
    data = back.data();
    well(twr_aggregate_read(aggregate, path.c_str(), &data), "read");
    expect(back == values, "other values come back");
    if (me == 0) {
        struct stat about {};
        expect(::stat(path.c_str(), &about) == 0, "stat");
        const auto n = static_cast<std::uint64_t>(ranks);
        expect(static_cast<std::uint64_t>(about.st_size) == far + (std::uint64_t{2} << 32) + 8 * n,
               "the file's size");
        expect(static_cast<std::uint64_t>(about.st_blocks) * 512 < (std::uint64_t{1} << 20),
               "the holes were written");
    }
    twr_aggregate_free(aggregate);
}

// Layouts of records, and what the report says.
void records(const std::string& folder) {
    const std::string path = folder + "/data";
    const std::vector<std::uint64_t> sizes = {4, 4, 8, 2};
    const std::uint64_t record = 18;
    for (const int layout : {TWR_RECORDS, TWR_BLOCKS, TWR_VARIABLES}) {
        doing = "records " + std::to_string(layout);
        twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
        std::vector<std::uint64_t> items;
        std::uint64_t total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            items.push_back(rank % 3 == 1 ? 0 : 700 + 13 * static_cast<std::uint64_t>(rank));
            total += items.back();
        }
        const std::uint64_t offset = 100;
        Declarations all;
        std::uint64_t before = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const std::uint64_t n = items[static_cast<std::size_t>(rank)];
            std::vector<Variable> own;
            std::uint64_t passed = 0;
            for (const std::uint64_t size : sizes) {
                if (layout == TWR_RECORDS)
                    own.push_back({{size, n, offset + record * before + passed, record, 0}});
                if (layout == TWR_BLOCKS)
                    own.push_back({{size, n, offset + record * before + passed * n, 0, 0}});
                if (layout == TWR_VARIABLES)
                    own.push_back({{size, n, offset + passed * total + size * before, 0, 0}});
                passed += size;
            }
            all.push_back(own);
            before += n;
        }
        well(twr_aggregate_declare_records(aggregate, sizes.data(), 4, items[static_cast<std::size_t>(me)],
                                           layout, offset),
             "declare_records");
        Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 3);
        const auto data = pointers(arrays);
        well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
        has_file(path, expected_file(all, 3, {}));
        const nlohmann::json said = report(aggregate);
        expect(said.at("ranks") == ranks && said.at("files") == 1, said.dump());
        expect(said.at("declared").at("bytes") == record * total, said.dump());
        expect(said.at("write").at("path") == path && said.at("write").at("seconds").at("total") > 0,
               said.dump());
        const std::string text = twr_aggregate_report(aggregate);
        std::uint64_t hash = std::hash<std::string>()(text);
        std::uint64_t least = 0;
        MPI_Allreduce(&hash, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
        expect(hash == least, "the report differs from rank to rank");
        twr_aggregate_free(aggregate);
    }
}

// How members reach their aggregators: partitions with no rank in common, of ranks that lie on one node or on several, and others.
// Nodes of MPICH's, faked, are ranks in turns or in blocks: of the two orders one has partitions of several nodes.
void members(const std::string& folder, int nodes_wanted) {
    const std::string path = folder + "/data";
    expect(ranks == 4, "4 ranks");
    const auto node_of = nodes();
    expect(*std::max_element(node_of.begin(), node_of.end()) + 1 == static_cast<std::uint32_t>(nodes_wanted),
           "the nodes");
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 2;
    options.block_bytes = 4096;
    const std::vector<std::vector<std::uint64_t>> orders = {{0, 1, 2, 3}, {0, 2, 1, 3}};
    int split = 0;
    int file = 0;
    for (const char* const direct : {"never", "1"}) {
        ::setenv("TWINRUN_AGGREGATE_DIRECT", direct, 1);
        for (const auto& order : orders) {
            for (const std::uint64_t shift : {0, 4096}) {
                twr_aggregate* const aggregate = made(options);
                Declarations all(4);
                for (std::size_t rank = 0; rank < 4; ++rank)
                    all[rank] = {{{1, 8192, 8192 * order[rank] + shift / 2, 0, 0}}};
                if (shift != 0) all[0].push_back({{1, 10, 8192 * 4 + shift, 0, 0}});  // a rank at both ends
                Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 1);
                const auto data = pointers(arrays);
                const auto declared = plain(all[static_cast<std::size_t>(me)]);
                well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())),
                     "declare");
                for (int again = 0; again < 3; ++again)
                    well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
                has_file(path, expected_file(all, 1, {}));
                const std::string said = report(aggregate).at("declared").at("members");
                split += said == "one coloured split" ? 1 : 0;
                file += said == "communicator of the file" ? 1 : 0;
                expect(nodes_wanted > 1 || said == "node memory", said);
                twr_aggregate_free(aggregate);
            }
        }
    }
    expect(nodes_wanted == 1 || (split > 0 && file > 0),
           "split " + std::to_string(split) + ", file " + std::to_string(file));
}

// One rank has no memory for one thing, at one place after the other: it says so, the others say who at once, not when the time is
// up; the aggregate works on, or all say that it does not.
void memory(const std::string& folder, const std::string& what) {
    const std::string path = folder + "/data";
    ::setenv("TWINRUN_AGGREGATE_DIRECT", "20000", 1);  // the dense blocks go directly, the rest is gathered
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.aggregators = 2;
    options.buffer_bytes = 4096;
    options.time_limit = 60;
    const Sample old(3000, 1);
    const Sample sample(3000, 2);
    const std::uint64_t sizes[] = {4, 8};
    int reached = 0;
    int broken = 0;
    for (const int who : {0, ranks - 1}) {
        for (long after = 0;; after += 1 + after / 24) {
            doing = "memory " + what + " of rank " + std::to_string(who) + " after " + std::to_string(after);
            twr_aggregate* aggregate = nullptr;
            if (what != "create") {
                aggregate = made(options);
                well(old.declare(aggregate), "declare");
                well(twr_aggregate_write(aggregate, path.c_str(), old.data.data()), "write");
            }
            Sample back(3000, 1);
            std::vector<void*> data = what == "read" ? back.data : sample.data;
            faults::fail_allocation(me == who ? after : -1);
            int status = TWR_OK;
            if (what == "create") status = twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options);
            if (what == "declare") status = sample.declare(aggregate);
            if (what == "records") {
                status = twr_aggregate_declare_records(aggregate, sizes, 2, 3000, TWR_RECORDS, 0);
            }
            if (what == "write") status = twr_aggregate_write(aggregate, path.c_str(), data.data());
            if (what == "read") status = twr_aggregate_read(aggregate, path.c_str(), data.data());
            int hit = faults::allocation_failed() ? 1 : 0;
            faults::fail_allocation(-1);
            int well_there = status == TWR_OK ? 1 : 0;
            MPI_Bcast(&hit, 1, MPI_INT, who, MPI_COMM_WORLD);
            MPI_Bcast(&well_there, 1, MPI_INT, who, MPI_COMM_WORLD);
            if (well_there != 0) {  // not hit, or it could do without
                well(status, "the call");
                if (what == "write") has_file(path, sample.file);
            } else {
                ++reached;
                fails_on(who, status, TWR_ERROR_OUT_OF_MEMORY, {"memory"});
                const std::string said = twr_error_message();
                expect(said.find("time_limit") == std::string::npos, said);
                expect((aggregate == nullptr) == (what == "create"), "an aggregate after an error");
                if (what != "create") has_file(path, old.file);
            }
            if (aggregate != nullptr) {
                // Now it works for all, or for none.
                int good = sample.declare(aggregate) == TWR_OK ? 1 : 0;
                if (good != 0)
                    good = twr_aggregate_write(aggregate, path.c_str(), sample.data.data()) == TWR_OK;
                int all_good = 0;
                int any_good = 0;
                MPI_Allreduce(&good, &all_good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
                MPI_Allreduce(&good, &any_good, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
                expect(all_good == any_good, "it works on some ranks only");
                if (good != 0) has_file(path, sample.file);
                if (good == 0) {
                    ++broken;
                    const std::string said = twr_error_message();
                    expect(said.find("memory") != std::string::npos, said);
                    expect(said.find("time_limit") == std::string::npos, said);
                }
                twr_aggregate_free(aggregate);
            }
            if (hit == 0) break;
        }
    }
    expect(reached > 4, "memory was never short");
    if (me == 0) std::printf("%d errors, %d of them broke the aggregate\n", reached, broken);
}

// A host as hwloc would see it, faked: the report's partitions and aggregators are those of the serial functions on its cores.
void places(const std::string& folder) {
    const std::string path = folder + "/data";
    const std::string machine = "hwloc:synthetic:pack:2 numa:2 core:2 pu:1,package=3e9";
    const auto host = twinrun::ask_hwloc(*twinrun::parse_hwloc(machine));
    if (!host.ok()) {
        if (me == 0) std::printf("skipped: %s\n", host.error().message.c_str());
        return;
    }
    const std::vector<std::uint32_t> node_of = nodes();
    const std::uint32_t hosts = *std::max_element(node_of.begin(), node_of.end()) + 1;
    std::vector<std::uint32_t> place_of;  // on a node, ranks are on cores in their order
    std::vector<twinrun::HostPlace> all_places;
    std::vector<std::uint32_t> on_node(hosts, 0);
    for (const std::uint32_t node : node_of) {
        place_of.push_back(static_cast<std::uint32_t>(all_places.size()));
        all_places.push_back({node, host->cores[on_node[node]++ % host->cores.size()]});
    }
    const auto parsed = *twinrun::parse_hwloc(machine);
    const auto topology =
        twinrun::make_places(*twinrun::topology_of_hosts("auto", std::vector<twinrun::Host>(hosts)),
                             all_places, parsed.inner, "expected");
    expect(topology.ok(), "the topology");
    for (int round = 0; round < 12; ++round) {
        doing = "places " + std::to_string(round);
        Declarations all;
        std::uint64_t offset = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            const std::uint64_t bytes =
                1000 * static_cast<std::uint64_t>(1 + (rank * 7 + round * 5) % 11) + (round == 0 ? 0 : 17);
            all.push_back({{{1, bytes, offset, 0, 0}}});
            offset += bytes;
        }
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.topology = machine.c_str();
        options.placement = "cost";
        options.aggregators = 1 + round % 3;
        options.block_bytes = 512;
        twr_aggregate* const aggregate = made(options);
        Arrays arrays = arrays_of(all[static_cast<std::size_t>(me)], me, 1);
        const auto data = pointers(arrays);
        const auto declared = plain(all[static_cast<std::size_t>(me)]);
        well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())), "declare");
        well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
        has_file(path, expected_file(all, 1, {}));
        same_election_on(**topology, aggregate, all, options, place_of, hosts);
        const nlohmann::json said = report(aggregate);
        expect(said.at("topology").get<std::string>().starts_with("hwloc"), said.dump());
        expect(said.at("declared").at("partitions")[0].at("place").get<std::string>().find("core") !=
                   std::string::npos,
               said.dump());
        twr_aggregate_free(aggregate);
    }
    // Where these processes are: whatever they are bound to, the bytes are right.
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.topology = "hwloc";
    twr_aggregate* const aggregate = made(options);
    const Sample sample(1000);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    has_file(path, sample.file);
    if (me == 0) std::printf("%s\n", report(aggregate).at("topology").dump().c_str());
    twr_aggregate_free(aggregate);
    options.topology = "hwloc,hosts=2";
    twr_aggregate* none = nullptr;
    fails(twr_aggregate_create(&none, MPI_COMM_WORLD, &options), TWR_ERROR_INVALID_ARGUMENT, {"hosts="});
    options.topology = "hwloc:synthetic:nothing that is";
    const int refused = twr_aggregate_create(&none, MPI_COMM_WORLD, &options);
    expect(refused == TWR_ERROR_INVALID_ARGUMENT || refused == TWR_ERROR_OTHER_RANK, "a topology of nothing");
}

// A write or read by the first `count` ranks, each its own file (one file of one rank), and what comes of it on each.
struct Few {
    std::string path;
    bool update = false;
    bool no_index = false;

    void write(int count, std::uint64_t salt, int wanted = TWR_OK,
               const std::vector<std::string>& words = {}) const {
        run(count, salt, true, wanted, words);
    }
    void read(int count, std::uint64_t salt, int wanted = TWR_OK,
              const std::vector<std::string>& words = {}) const {
        run(count, salt, false, wanted, words);
    }

   private:
    void run(int count, std::uint64_t salt, bool writes, int wanted,
             const std::vector<std::string>& words) const {
        doing = std::string(writes ? "write" : "read") + " by " + std::to_string(count) + ", salt " +
                std::to_string(salt);
        MPI_Comm few = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, me < count ? 0 : MPI_UNDEFINED, me, &few);
        if (few != MPI_COMM_NULL) {
            twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
            options.files = "rank";
            options.update = update ? 1 : 0;
            options.no_index = no_index ? 1 : 0;
            twr_aggregate* aggregate = nullptr;
            well(twr_aggregate_create(&aggregate, few, &options), "create");
            const twr_aggregate_variable all = {1, 1000, 0, 0, 0};
            well(twr_aggregate_declare(aggregate, &all, 1), "declare");
            std::vector<std::uint8_t> bytes(1000);
            for (std::uint64_t i = 0; i < bytes.size(); ++i)
                bytes[i] = byte_of(me, 0, i, 0, salt);
            std::vector<std::uint8_t> back(1000, 0xEE);
            const void* const from[] = {bytes.data()};
            void* const to[] = {back.data()};
            const int status = writes ? twr_aggregate_write(aggregate, path.c_str(), from)
                                      : twr_aggregate_read(aggregate, path.c_str(), to);
            if (wanted == TWR_OK) {
                well(status, "the call");
                if (!writes) same_bytes(back, bytes, "what was read");
            } else {
                fails_on(0, status, wanted, words);
            }
            twr_aggregate_free(aggregate);
            MPI_Comm_free(&few);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
};

// Sub-files of several writes, by more and fewer ranks: a reader gets those that belong together, or an error; what twinrun cannot know for
// its own stays as it is.
void sub_files(const std::string& folder) {
    expect(ranks >= 3, "3 ranks");
    Few files{folder + "/data"};
    const std::string index = files.path + ".twr-index";
    const auto sub = [&](int number) { return files.path + ".0000" + std::to_string(number); };
    const std::vector<std::uint8_t> own(1000, 0x55);
    const auto by_one = [](const std::function<void()>& what) {
        if (me == 0) what();
        MPI_Barrier(MPI_COMM_WORLD);
    };
    // Another number of readers or of updaters than of writers.
    files.write(3, 1);
    files.read(3, 1);
    files.read(2, 1, TWR_ERROR_MISMATCH, {"written as 3 files", "2 files would be read", index});
    files.read(1, 1, TWR_ERROR_MISMATCH, {"written as 3 files", "one file would be read"});
    files.update = true;
    files.write(2, 2, TWR_ERROR_MISMATCH, {"written as 3 files", "2 files would be updated"});
    files.write(1, 2, TWR_ERROR_MISMATCH, {"one file would be updated"});
    files.read(3, 1);
    files.write(3, 3);
    files.read(3, 3);
    files.update = false;
    // Fewer: the old last one goes, and others of such names stay.
    by_one([&] { put_contents(sub(3), own); });
    files.write(2, 4);
    by_one([&] { expect(!there(sub(2)), "the third file is still there"); });
    files.read(2, 4);
    files.read(3, 1, TWR_ERROR_MISMATCH, {"written as 2 files"});
    by_one([&] { same_bytes(contents(sub(3)), own, "a file of somebody's"); });
    // Not where it is not what was written any more: as many bytes, or a link to somebody's.
    files.write(3, 5);
    by_one([&] { put_contents(sub(2), own); });
    files.write(2, 6);
    by_one([&] { same_bytes(contents(sub(2)), own, "a file that somebody wrote to"); });
    files.write(3, 5);
    by_one([&] {
        put_contents(folder + "/precious", own);
        expect(
            ::unlink(sub(2).c_str()) == 0 && ::symlink((folder + "/precious").c_str(), sub(2).c_str()) == 0,
            "link");
    });
    files.write(2, 6);
    files.read(2, 6);
    by_one([&] {
        struct stat about {};
        expect(::lstat(sub(2).c_str(), &about) == 0 && S_ISLNK(about.st_mode),
               "a link of somebody's is gone");
        same_bytes(contents(folder + "/precious"), own, "what it leads to");
        ::unlink(sub(2).c_str());
    });
    // One file, and several again.
    files.write(3, 7);
    files.write(1, 8);
    by_one([&] {
        expect(!there(index) && !there(sub(0)) && !there(sub(1)) && !there(sub(2)), "sub-files of the past");
    });
    files.read(1, 8);
    files.read(3, 7, TWR_ERROR_NOT_FOUND, {index});
    files.write(2, 9);
    files.read(2, 9);
    files.read(1, 8, TWR_ERROR_MISMATCH, {"written as 2 files"});
    // A write that does not come to its end: the files may be of two writes, and nobody reads them.
    for (int after = 0; after < 2; ++after) {
        files.write(2, 10);
        if (me == 0) faults::fail("rename", after, EIO);
        files.write(2, 11, TWR_ERROR_IO, {"Input/output error", "/data"});
        faults::fail("", 0, 0);
        files.read(2, 11, TWR_ERROR_NOT_FOUND, {index});
    }
    files.write(2, 12);
    files.read(2, 12);
    // Something of another's in the index' place.
    const auto not_ours = [&] {
        files.write(2, 13, TWR_ERROR_INVALID_ARGUMENT, {index});
        files.read(2, 13, TWR_ERROR_INVALID_ARGUMENT, {index});
        files.write(1, 14);
        files.read(1, 14);
    };
    for (const char* const text : {"", "a note", "{}", "[1, 2]", "{\"format\": \"twinrun\"}"}) {
        const std::vector<std::uint8_t> bytes(text, text + std::strlen(text));
        by_one([&] { put_contents(index, bytes); });
        not_ours();
        by_one([&] { same_bytes(contents(index), bytes, "another's file"); });
    }
    by_one([&] {
        expect(::unlink(index.c_str()) == 0 && ::symlink((folder + "/precious").c_str(), index.c_str()) == 0,
               "link");
    });
    not_ours();
    by_one([&] {
        same_bytes(contents(folder + "/precious"), own, "what it leads to");
        expect(::unlink(index.c_str()) == 0 && ::mkdir(index.c_str(), 0777) == 0, "folder");
    });
    not_ours();
    by_one([&] { expect(::rmdir(index.c_str()) == 0, "the folder is gone"); });
    const auto refused = [&](const char* text, int wanted) {
        by_one([&] { put_contents(index, std::vector<std::uint8_t>(text, text + std::strlen(text))); });
        files.write(2, 15, wanted, {index});
        files.read(2, 15, wanted, {index});
    };
    refused("{\"format\": \"twinrun sub-files\", \"version\": 2, \"files\": []}", TWR_ERROR_UNSUPPORTED);
    refused("{\"format\": \"twinrun sub-files\", \"version\": 1, \"files\": [[1, 2]]}", TWR_ERROR_DAMAGED);
    by_one([&] { ::unlink(index.c_str()); });
    // Programs that keep account themselves.
    files.no_index = true;
    files.write(3, 16);
    by_one([&] { expect(!there(index), "an index that nobody asked for"); });
    files.read(3, 16);
}

// Settings as text: their names are those of the document, and they do what the structure does.
void settings(const std::string& folder) {
    twr_aggregate_settings* given = nullptr;
    fails(twr_aggregate_settings_create(nullptr), TWR_ERROR_INVALID_ARGUMENT, {"settings is NULL"});
    well(twr_aggregate_settings_create(&given), "settings_create");
    const auto set = [&](const char* name, const char* value) {
        return twr_aggregate_settings_set(given, name, value);
    };
    fails(twr_aggregate_settings_set(nullptr, "sync", "1"), TWR_ERROR_INVALID_ARGUMENT, {"settings is NULL"});
    fails(set(nullptr, "1"), TWR_ERROR_INVALID_ARGUMENT, {"name is NULL"});
    fails(set("sync", nullptr), TWR_ERROR_INVALID_ARGUMENT, {"sync", "NULL"});
    const std::vector<std::pair<const char*, std::vector<const char*>>> wrong = {
        {"files", {"two", ""}},
        {"nodes_per_file", {"-1", "one", "99999999999"}},
        {"aggregators", {"-1", "1.5"}},
        {"placement", {"best"}},
        {"topology", {""}},
        {"backend", {"hdf5"}},
        {"buffers", {"1", "257", "-2"}},
        {"buffer_bytes", {"-1", "1 parsec", "1e20", "18446744073709551615"}},
        {"block_bytes", {"many", "300 TiB"}},
        {"sync", {"2", "perhaps"}},
        {"update", {""}},
        {"time_limit", {"soon", "nan", "inf", "5 s"}},
        {"seed", {"-1", "0x7"}},
        {"no_index", {"index"}}};
    for (const auto& [name, values] : wrong) {
        for (const char* const value : values)
            fails(set(name, value), TWR_ERROR_INVALID_ARGUMENT,
                  {std::string(name) + " = '" + value + "'", "give "});
    }

    // The table in docs/reference/aggregate.md: | `name` | `an example` | ...
    std::ifstream document(TWINRUN_SOURCE_DIR "/docs/reference/aggregate.md");
    std::set<std::string> documented;
    bool in_table = false;
    for (std::string line; std::getline(document, line);) {
        in_table = line.rfind("| setting", 0) == 0 || (in_table && line.rfind('|', 0) == 0);
        if (!in_table || line.rfind("| `", 0) != 0) continue;
        std::istringstream cells(line);
        std::string skipped;
        std::string name;
        std::string value;
        std::getline(cells, skipped, '`');
        std::getline(cells, name, '`');
        std::getline(cells, skipped, '`');
        std::getline(cells, value, '`');
        well(set(name.c_str(), value.c_str()), name.c_str());
        documented.insert(name);
    }
    expect(set("?", "1") == TWR_ERROR_INVALID_ARGUMENT, "a setting of the name ?");
    std::string message = twr_error_message();
    message.erase(0, message.find("there are ") + 10);
    std::set<std::string> known;
    std::istringstream names(message);
    for (std::string name; std::getline(names >> std::ws, name, ',');)
        known.insert(name);
    expect(known.size() == 14 && known == documented,
           "docs/reference/aggregate.md has other settings than: " + message);
    twr_aggregate_settings_destroy(given);
    twr_aggregate_settings_destroy(nullptr);

    // A file, all of it or nothing.
    const std::string file = folder + "/settings-" + std::to_string(me);
    const auto load = [&](const std::string& text) {
        std::ofstream(file) << text;
        return twr_aggregate_settings_load(given, file.c_str());
    };
    well(twr_aggregate_settings_create(&given), "settings_create");
    fails(twr_aggregate_settings_load(given, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"path is NULL"});
    fails(twr_aggregate_settings_load(given, (folder + "/none").c_str()), TWR_ERROR_NOT_FOUND, {"/none"});
    fails(load("files = rank\nnonsense = 1\n"), TWR_ERROR_INVALID_ARGUMENT, {file + ":2", "nonsense"});
    fails(load("files\n"), TWR_ERROR_INVALID_ARGUMENT, {file + ":1", "name = value"});
    fails(load(std::string((1 << 20) + 1, '#')), TWR_ERROR_DAMAGED, {file});
    well(load("# of this test\n backend=posix\nplacement = random # which\n\nseed = 7\nbuffers = 3"), "load");

    twr_aggregate* aggregate = nullptr;
    const int last = ranks - 1;
    const auto report = [&] { return nlohmann::json::parse(twr_aggregate_report(aggregate)); };
    fails(twr_aggregate_create_with(nullptr, MPI_COMM_WORLD, given), TWR_ERROR_INVALID_ARGUMENT, {"NULL"});
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given), "create_with");
    expect(report()["files"] == 1 && report()["placement"] == "random" && report()["buffers"] == 3, "report");
    twr_aggregate_free(aggregate);
    // They are of later aggregates only, and must be the same on all ranks.
    well(set("files", "rank"), "set");
    if (ranks > 1) {
        if (me == last) well(set("sync", "true"), "set");
        fails_on(last, twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given),
                 TWR_ERROR_INVALID_ARGUMENT, {"settings differ"});
        expect(aggregate == nullptr, "an aggregate after an error");
    }
    well(set("sync", "true"), "set");
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, given), "create_with");
    twr_aggregate_settings_destroy(given);
    expect(report()["files"] == ranks && report()["sync"] == true, "report");
    twr_aggregate_free(aggregate);
    well(twr_aggregate_create_with(&aggregate, MPI_COMM_WORLD, nullptr), "create_with");
    twr_aggregate_free(aggregate);

    // The structure of another version: an older one has no `no_index`, what a newer one has besides is 0.
    struct {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        std::uint64_t later = 0;
    } newer;
    newer.options.files = "rank";
    newer.options.no_index = 0x5A5A5A5A;
    newer.options.size = offsetof(twr_aggregate_options, no_index);
    aggregate = made(newer.options);
    const Sample sample(50);
    well(sample.declare(aggregate), "declare");
    const std::string path = folder + "/data";
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    expect(std::filesystem::exists(path + ".twr-index") == (ranks > 1), "the index of an older caller");
    twr_aggregate_free(aggregate);
    newer.options.no_index = 0;
    newer.options.size = sizeof newer;
    twr_aggregate_free(made(newer.options));
    newer.later = me == last ? 1 : 0;
    fails_on(last, twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &newer.options), TWR_ERROR_UNSUPPORTED,
             {"twr_aggregate_options"});
}

// The figures of a transfer are those of the report.
void reports(const std::string& folder) {
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    twr_aggregate_transfer figures = {};
    figures.size = sizeof figures;
    fails(twr_aggregate_last_write(nullptr, &figures), TWR_ERROR_INVALID_ARGUMENT, {"aggregate is NULL"});
    fails(twr_aggregate_last_read(aggregate, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"transfer is NULL"});
    fails(twr_aggregate_last_write(aggregate, &figures), TWR_ERROR_NOT_FOUND, {"written"});
    fails(twr_aggregate_last_read(aggregate, &figures), TWR_ERROR_NOT_FOUND, {"read"});
    expect(std::strcmp(twr_aggregate_report(nullptr), "{}") == 0, "a report of nothing");
    const Sample sample(300);
    well(sample.declare(aggregate), "declare");
    const std::string path = folder + "/data";
    well(twr_aggregate_write(aggregate, path.c_str(), sample.data.data()), "write");
    well(twr_aggregate_read(aggregate, path.c_str(), sample.data.data()), "read");
    const nlohmann::json report = nlohmann::json::parse(twr_aggregate_report(aggregate));
    for (const char* const of : {"write", "read"}) {
        const bool written = std::strcmp(of, "write") == 0;
        well((written ? twr_aggregate_last_write : twr_aggregate_last_read)(aggregate, &figures), of);
        const nlohmann::json& r = report[of];
        expect(figures.bytes == sample.file.size() && r["bytes"] == figures.bytes &&
                   r["bytes_by_node_memory"] == figures.bytes_by_node_memory &&
                   r["bytes_from_other_nodes"] == figures.bytes_from_other_nodes &&
                   r["bytes_direct"] == figures.bytes_direct && r["windows"] == figures.windows,
               "the figures of a " + std::string(of));
        const nlohmann::json& seconds = r["seconds"];
        expect(figures.total_seconds > 0 && seconds["total"] == figures.total_seconds &&
                   seconds["gather"] == figures.gather_seconds &&
                   seconds["direct"] == figures.direct_seconds &&
                   seconds["storage"] == figures.storage_seconds && seconds["wait"] == figures.wait_seconds,
               "the seconds of a " + std::string(of));
        expect(!written ||
                   (seconds["sync"] == figures.sync_seconds && seconds["rename"] == figures.rename_seconds),
               "the seconds of a write");
    }
    for (const std::size_t size : {std::size_t{0}, sizeof figures - 8, std::size_t{1} << 40}) {
        figures.size = size;
        fails(twr_aggregate_last_write(aggregate, &figures), TWR_ERROR_INVALID_ARGUMENT,
              {"sizeof(twr_aggregate_transfer)"});
    }
    twr_aggregate_free(aggregate);
}

// After MPI_Finalize.
void finalised() {
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const Sample sample(100);
    well(sample.declare(aggregate), "declare");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    twr_aggregate_free(aggregate);
    twr_aggregate* other = nullptr;
    fails(twr_aggregate_create(&other, MPI_COMM_WORLD, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"MPI"});
    if (me == 0) std::printf("done\n");
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    std::vector<std::string> given(argv + 1, argv + argc);
    expect(given.size() >= 2, "usage: aggregate_ranks SCENARIO FOLDER [ARGUMENT ...]");
    const std::string scenario = given[0];
    const std::string folder = given[1];
    const auto argument = [&](std::size_t i) { return i + 2 < given.size() ? given[i + 2] : std::string(); };
    const auto number = [&](std::size_t i) { return std::strtoull(argument(i).c_str(), nullptr, 10); };
    doing = scenario;
    if (scenario == "properties") {
        properties(folder, number(0), static_cast<int>(number(1)));
    } else if (scenario == "blocks") {
        blocks(folder, number(0), static_cast<int>(number(1)));
    } else if (scenario == "overlaps") {
        overlaps();
    } else if (scenario == "invalid") {
        invalid(folder);
    } else if (scenario == "storage") {
        storage(folder, argument(0), argument(1), argument(2) == "sync", argument(3) == "direct");
    } else if (scenario == "stolen") {
        stolen(folder, argument(0) == "sync");
    } else if (scenario == "links") {
        links(folder, argument(0));
    } else if (scenario == "die") {
        die(folder, argument(0), argument(1), argument(2) == "update");
    } else if (scenario == "again") {
        again(folder);
    } else if (scenario == "large") {
        large(folder, argument(0) == "direct");
    } else if (scenario == "members") {
        members(folder, static_cast<int>(number(0)));
    } else if (scenario == "records") {
        records(folder);
    } else if (scenario == "memory") {
        memory(folder, argument(0));
    } else if (scenario == "places") {
        places(folder);
    } else if (scenario == "settings") {
        settings(folder);
    } else if (scenario == "reports") {
        reports(folder);
    } else if (scenario == "sub_files") {
        sub_files(folder);
    } else if (scenario == "finalised") {
        finalised();
        return 0;
    } else {
        stop("there is no such scenario");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) std::printf("done\n");
    std::fflush(nullptr);
    MPI_Finalize();
    return 0;
}
