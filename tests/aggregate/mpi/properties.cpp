// Scenario: random declarations and options.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "elections.hpp"
#include "faults.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

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

}  // namespace aggregate_ranks
