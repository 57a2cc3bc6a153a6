// Scenario: a whole file in parts. Written by some of the ranks in one cutting, and read by others in another one.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

using Random = std::mt19937_64;

// A byte of the whole file.
std::uint8_t whole_byte(std::uint64_t at, std::uint64_t salt) {
    return byte_of(3, 1, at >> 8, at & 255, salt);
}

// What one rank has of the whole, with its memory.
struct Part {
    std::vector<Variable> variables;
    Arrays arrays;

    explicit Part(std::vector<Variable> own) : variables(std::move(own)) {
        for (const Variable& variable : variables)
            arrays.emplace_back(variable.memory(), std::uint8_t{0xEE});
    }
    void each(const std::function<void(std::uint64_t, std::uint8_t&)>& body) {
        for (std::size_t k = 0; k < variables.size(); ++k) {
            const Variable& v = variables[k];
            for (std::uint64_t i = 0; i < v.v.items; ++i) {
                for (std::uint64_t b = 0; b < v.v.item_bytes; ++b)
                    body(v.v.file_offset + i * v.file_stride() + b, arrays[k][i * v.memory_stride() + b]);
            }
        }
    }
};

struct Call {
    MPI_Comm comm;
    std::string files;
    bool whole = true;
    std::uint64_t buffer_bytes = 0;

    twr_aggregate* made() const {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.files = files.c_str();
        options.offsets = whole ? "whole" : "file";
        options.buffer_bytes = buffer_bytes;
        options.block_bytes = 512;
        options.time_limit = 120;
        twr_aggregate* aggregate = nullptr;
        well(twr_aggregate_create(&aggregate, comm, &options), "create");
        return aggregate;
    }
};

void declare(twr_aggregate* aggregate, const Part& part) {
    const auto declared = plain(part.variables);
    well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())), "declare");
}

// The first `count` ranks; MPI_COMM_NULL elsewhere.
MPI_Comm first_ranks(int count) {
    MPI_Comm few = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, me < count ? 0 : MPI_UNDEFINED, me, &few);
    return few;
}

// The same bytes by one write of one file, for who wants to compare.
void write_one(MPI_Comm comm, Part& part, const std::string& path) {
    twr_aggregate* const one = Call{comm, "one"}.made();
    declare(one, part);
    const auto data = pointers(part.arrays);
    well(twr_aggregate_write(one, path.c_str(), data.data()), "write of one file");
    twr_aggregate_free(one);
}

void read_back(MPI_Comm comm, Random& random, const std::string& path,
               const std::vector<std::uint8_t>& whole) {
    int count = 0;
    int rank = 0;
    MPI_Comm_size(comm, &count);
    MPI_Comm_rank(comm, &rank);
    const char* const files[] = {"one", "node", "rank"};
    twr_aggregate* const aggregate =
        Call{comm, files[pick(random, 0, 2)], true, pick(random, 0, 1) * 4096}.made();
    for (int cutting = 0; cutting < 2; ++cutting) {
        // Of the readers' cuttings only what lies in the file.
        Declarations all = random_declarations(random, count);
        for (auto& variables : all) {
            std::erase_if(variables, [&](const Variable& v) {
                return v.v.items != 0 &&
                       v.v.file_offset + (v.v.items - 1) * v.file_stride() + v.v.item_bytes > whole.size();
            });
        }
        Part part(all[static_cast<std::size_t>(rank)]);
        declare(aggregate, part);
        for (int time = 0; time < 2; ++time) {  // the second time by the same plan
            for (auto& array : part.arrays)
                std::fill(array.begin(), array.end(), std::uint8_t{0xEE});
            const auto data = pointers(part.arrays);
            well(twr_aggregate_read(aggregate, path.c_str(), data.data()), "read");
            part.each([&](std::uint64_t at, std::uint8_t& byte) {
                if (byte != whole[at])
                    stop("byte " + std::to_string(at) + " is " + std::to_string(byte) + ", not " +
                         std::to_string(whole[at]));
                byte = 0xEE;
            });
            for (const auto& array : part.arrays)
                expect(std::all_of(array.begin(), array.end(), [](std::uint8_t b) { return b == 0xEE; }),
                       "a read wrote between items");
        }
    }
    twr_aggregate_free(aggregate);
}

void refusals(const std::string& folder) {
    doing = "wholes: what is refused";
    const std::string path = folder + "/refused";
    twr_aggregate* aggregate = nullptr;
    const auto contradict = [&](bool no_index, bool update) {
        twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
        options.files = "rank";
        options.offsets = "whole";
        options.no_index = no_index ? 1 : 0;
        options.update = update ? 1 : 0;
        fails(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), TWR_ERROR_INVALID_ARGUMENT,
              {"contradict", no_index ? "no_index" : "update"});
    };
    contradict(true, false);
    contradict(false, true);
    if (ranks == 1) return;
    const auto r = static_cast<std::uint64_t>(me);
    const auto n = static_cast<std::uint64_t>(ranks);
    // Bytes that ranks of two files claim.
    twr_aggregate* const whole = Call{MPI_COMM_WORLD, "rank"}.made();
    const twr_aggregate_variable same = {1, 100, 90 * r, 0, 0};
    expect(twr_aggregate_declare(whole, &same, 1) != TWR_OK, "two files have a byte");
    expect(std::string(twr_error_message()).find("both claim the byte at offset") != std::string::npos,
           twr_error_message());
    std::vector<std::uint8_t> bytes(100, 7);
    void* const data[] = {bytes.data()};
    fails(twr_aggregate_write(whole, path.c_str(), data), TWR_ERROR_INVALID_ARGUMENT,
          {"nothing is declared"});
    const twr_aggregate_variable own = {1, 100, 100 * r, 0, 0};
    well(twr_aggregate_declare(whole, &own, 1), "declare");
    fails_on(0, twr_aggregate_read(whole, path.c_str(), data), TWR_ERROR_NOT_FOUND, {path});
    well(twr_aggregate_write(whole, path.c_str(), data), "write");
    well(twr_aggregate_read(whole, path.c_str(), data), "read");
    const twr_aggregate_variable beyond = {1, 100, 100 * (n - 1 - r) + 1, 0, 0};
    well(twr_aggregate_declare(whole, &beyond, 1), "declare");
    const int status = twr_aggregate_read(whole, path.c_str(), data);
    expect(status == (me == 0 ? TWR_ERROR_DAMAGED : TWR_ERROR_OTHER_RANK), twr_error_message());
    twr_aggregate_free(whole);
    // Files of one's own, where there are parts of a whole.
    twr_aggregate* const parts = Call{MPI_COMM_WORLD, "rank", false}.made();
    const twr_aggregate_variable first = {1, 100, 0, 0, 0};
    well(twr_aggregate_declare(parts, &first, 1), "declare");
    fails_on(0, twr_aggregate_read(parts, path.c_str(), data), TWR_ERROR_MISMATCH,
             {"parts of a whole file", "offsets = whole"});
    twr_aggregate_free(parts);
}

}  // namespace

void wholes(const std::string& folder, std::uint64_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        doing = "wholes, seed " + std::to_string(seed) + ", round " + std::to_string(round);
        Random random(seed * 7907 + static_cast<std::uint64_t>(round));
        const std::string path = folder + "/whole-" + std::to_string(round);
        const auto writers = static_cast<int>(pick(random, 1, static_cast<std::uint64_t>(ranks)));
        const auto readers = static_cast<int>(pick(random, 1, static_cast<std::uint64_t>(ranks)));
        const std::uint64_t salt = random();
        const bool by_node = pick(random, 0, 3) == 0;
        const Declarations all = random_declarations(random, writers);
        std::vector<std::uint8_t> whole;
        for (const auto& variables : all) {
            Part(variables).each([&](std::uint64_t at, std::uint8_t&) {
                if (at >= whole.size()) whole.resize(at + 1, 0);
                whole[at] = whole_byte(at, salt);
            });
        }
        MPI_Comm few = first_ranks(writers);
        if (few != MPI_COMM_NULL) {
            Part part(all[static_cast<std::size_t>(me)]);
            part.each([&](std::uint64_t at, std::uint8_t& byte) { byte = whole_byte(at, salt); });
            twr_aggregate* const aggregate = Call{few, by_node ? "node" : "rank"}.made();
            declare(aggregate, part);
            const auto data = pointers(part.arrays);
            well(twr_aggregate_write(aggregate, path.c_str(), data.data()), "write");
            twr_aggregate_free(aggregate);
            write_one(few, part, path + ".one");
            MPI_Comm_free(&few);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (me == 0) same_bytes(contents(path + ".one"), whole, "the whole as one file");
        few = first_ranks(readers);
        if (few != MPI_COMM_NULL) {
            read_back(few, random, path, whole);
            MPI_Comm_free(&few);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    refusals(folder);
}

}  // namespace aggregate_ranks
