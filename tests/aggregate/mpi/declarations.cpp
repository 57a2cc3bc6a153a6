#include "declarations.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace aggregate_ranks {

std::uint8_t byte_of(int rank, std::size_t variable, std::uint64_t i, std::uint64_t b, std::uint64_t salt) {
    std::uint64_t x = (static_cast<std::uint64_t>(rank) << 48) ^
                      (static_cast<std::uint64_t>(variable) << 40) ^ (i << 8) ^ b ^
                      (salt * 0x9E3779B97F4A7C15ULL);
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 29;
    return static_cast<std::uint8_t>(x >> 24);
}

Arrays arrays_of(const std::vector<Variable>& variables, int rank, std::uint64_t salt, std::uint8_t between) {
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

void expect_no_partial(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        expect(name.find(".twr-partial.") == std::string::npos, "a partial file is still there: " + name);
    }
}

void has_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        same_bytes(contents(path), bytes, path);
        expect_no_partial(path.substr(0, path.rfind('/')));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace aggregate_ranks
