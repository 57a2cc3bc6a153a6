// What lies where in a file, for all ranks, from a seed: declarations, arrays, and the bytes that a file must have.
#pragma once

#include <twinrun/aggregate.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "job.hpp"

namespace aggregate_ranks {

struct Variable {
    twr_aggregate_variable v;
    std::uint64_t memory_stride() const { return v.memory_stride == 0 ? v.item_bytes : v.memory_stride; }
    std::uint64_t file_stride() const { return v.file_stride == 0 ? v.item_bytes : v.file_stride; }
    std::uint64_t memory() const { return v.items == 0 ? 0 : (v.items - 1) * memory_stride() + v.item_bytes; }
};

using Declarations = std::vector<std::vector<Variable>>;  // of each rank of a file

using Arrays = std::vector<std::vector<std::uint8_t>>;

// Byte `b` of item `i`: nothing that could come about by itself.
std::uint8_t byte_of(int rank, std::size_t variable, std::uint64_t i, std::uint64_t b, std::uint64_t salt);
// A rank's arrays; what lies between items is `between`.
Arrays arrays_of(const std::vector<Variable>& variables, int rank, std::uint64_t salt,
                 std::uint8_t between = 0xEE);
std::vector<void*> pointers(Arrays& arrays);
// Nothing in common, whatever the seed: each part takes the next range of the file.
Declarations random_declarations(std::mt19937_64& random, int count);
// As one POSIX write an item would leave it.
std::vector<std::uint8_t> expected_file(const Declarations& all, std::uint64_t salt,
                                        std::vector<std::uint8_t> file);
std::vector<std::uint8_t> contents(const std::string& path);
void put_contents(const std::string& path, const std::vector<std::uint8_t>& bytes);
bool there(const std::string& path);
void same_bytes(const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& wanted,
                const std::string& what);
std::vector<twr_aggregate_variable> plain(const std::vector<Variable>& variables);
// What a write makes under a name of its own is in its place, or gone.
void expect_no_partial(const std::string& folder);
// Of all ranks, one: a new file with these bytes, and no partial one.
void has_file(const std::string& path, const std::vector<std::uint8_t>& bytes);

// One rank's variable and data for most scenarios: items of 4 bytes of all ranks in turns, so that all share each window, and a
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

}  // namespace aggregate_ranks
