// Scenario: writes in the background.
#include <mpi.h>
#include <twinrun/aggregate.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "faults.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

// Writes steps, and overwrites the arrays as soon as each call returns.
void steps(const std::string& folder, std::mt19937_64& random, const std::string& by) {
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    const char* const backends[] = {"posix", "uring"};
    options.backend = backends[pick(random, 0, 1)];
    options.aggregators = static_cast<int>(pick(random, 0, 3));
    options.buffer_bytes = pick(random, 0, 1) * 8192;
    options.block_bytes = 1024;
    options.sync = pick(random, 0, 4) == 0 ? 1 : 0;
    options.time_limit = 120;
    twr_aggregate* aggregate = nullptr;
    if (twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options) != TWR_OK) {
        options.backend = "posix";  // no io_uring here
        aggregate = made(options);
    }
    well(twr_aggregate_wait(aggregate), "wait for nothing");
    int done = 0;
    well(twr_aggregate_test(aggregate, &done), "test");
    expect(done == 1, "nothing is under way");
    std::uint64_t written = 0;
    for (int declaration = 0; declaration < 2; ++declaration) {
        const Declarations all = random_declarations(random, ranks);
        const auto& own = all[static_cast<std::size_t>(me)];
        const auto declared = plain(own);
        // Steps of the declaration before may be under way: it waits for them.
        well(twr_aggregate_declare(aggregate, declared.data(), static_cast<int>(declared.size())), "declare");
        const auto count = pick(random, 1, 5);
        const auto path = [&](std::uint64_t step) {
            return folder + "/step-" + std::to_string(declaration) + "-" + std::to_string(step);
        };
        for (std::uint64_t step = 0; step < count; ++step) {
            Arrays arrays = arrays_of(own, me, step);
            const auto data = pointers(arrays);
            if (pick(random, 0, 4) == 0) {
                well(twr_aggregate_write(aggregate, path(step).c_str(), data.data()), "write");
            } else {
                well(twr_aggregate_write_begin(aggregate, path(step).c_str(), data.data()), "write_begin");
                ++written;
            }
            for (auto& array : arrays)
                std::fill(array.begin(), array.end(), std::uint8_t{0x11});
        }
        if (pick(random, 0, 2) == 0) {
            // A read waits too, and gives the last step's bytes.
            Arrays back = arrays_of(own, me, 77);
            const auto to = pointers(back);
            well(twr_aggregate_read(aggregate, path(count - 1).c_str(), to.data()), "read");
            const Arrays wanted = arrays_of(own, me, count - 1);
            for (std::size_t k = 0; k < back.size(); ++k)
                same_bytes(back[k], wanted[k], "variable " + std::to_string(k) + " read back");
        }
        well(twr_aggregate_wait(aggregate), "wait");
        for (std::uint64_t step = 0; step < count; ++step)
            has_file(path(step), expected_file(all, step, {}));
    }
    if (written != 0) {
        const auto said = report(aggregate).at("background");
        expect(said.at("by") == by && said.at("writes") == written, "the report: " + said.dump());
    }
    twr_aggregate_free(aggregate);
}

}  // namespace

void background(const std::string& folder, std::uint64_t seed, int rounds, const std::string& by) {
    for (int round = 0; round < rounds; ++round) {
        doing = "background, seed " + std::to_string(seed) + ", round " + std::to_string(round);
        std::mt19937_64 random(seed * 104729 + static_cast<std::uint64_t>(round));
        steps(folder, random, by);
    }
    doing = "background: errors";
    const std::string path = folder + "/data";
    twr_aggregate* const aggregate = made(TWR_AGGREGATE_OPTIONS_INIT);
    const Sample sample(500, 1);
    const auto begin = [&](const char* to) {
        return twr_aggregate_write_begin(aggregate, to, sample.data.data());
    };
    expect(begin(path.c_str()) == TWR_ERROR_INVALID_ARGUMENT, "nothing is declared");
    fails(twr_aggregate_wait(nullptr), TWR_ERROR_INVALID_ARGUMENT, {"aggregate is NULL"});
    fails(twr_aggregate_test(aggregate, nullptr), TWR_ERROR_INVALID_ARGUMENT, {"done is NULL"});
    well(sample.declare(aggregate), "declare");
    well(begin(path.c_str()), "write_begin");
    well(twr_aggregate_wait(aggregate), "wait");
    has_file(path, sample.file);
    // Storage fails on one rank; the step after it is well.
    const int last = ranks - 1;
    if (me == 0) faults::fail("open", 0, EIO);
    int status = begin(path.c_str());
    if (status == TWR_OK) status = twr_aggregate_wait(aggregate);
    faults::fail("", 0, 0);
    fails_on(0, status, TWR_ERROR_IO, {"Input/output error"});
    well(begin((path + "-2").c_str()), "write_begin");
    well(twr_aggregate_wait(aggregate), "wait");
    has_file(path + "-2", sample.file);
    // One rank's argument is wrong: it hears of it at once, the others when they wait.
    status = begin(me == last ? "" : path.c_str());
    if (me == last) fails(status, TWR_ERROR_INVALID_ARGUMENT, {"path is NULL or empty"});
    if (by == "thread") {
        if (me != last) well(status, "write_begin");
        fails_on(last, twr_aggregate_wait(aggregate), TWR_ERROR_INVALID_ARGUMENT, {"path is NULL or empty"});
    } else if (me != last) {
        fails(status, TWR_ERROR_OTHER_RANK, {"path is NULL or empty"});
    }
    // Ranks that disagree about the path.
    status = begin((path + std::to_string(me == last ? 1 : 0)).c_str());
    if (by == "thread") {
        well(status, "write_begin");
        status = twr_aggregate_wait(aggregate);
    }
    expect((status == TWR_OK) == (ranks == 1), "ranks write to two paths");
    // What is under way when the aggregate is freed is written.
    well(begin((path + "-3").c_str()), "write_begin");
    twr_aggregate_free(aggregate);
    has_file(path + "-3", sample.file);
}

}  // namespace aggregate_ranks
