// Scenarios: what is refused, and what it says.
#include <mpi.h>
#include <sys/stat.h>
#include <twinrun/aggregate.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

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
    // A reason of the caller's own: the next call takes it up.
    const auto with_reason = [&](auto&& call) {
        if (me == last) well(twr_aggregate_refuse("array 0 is a fruit"), "refuse");
        fails_on(last, call(), TWR_ERROR_INVALID_ARGUMENT, {"array 0 is a fruit"});
    };
    with_reason([&] { return twr_aggregate_write(aggregate, path.c_str(), sample.data.data()); });
    with_reason([&] { return twr_aggregate_read(aggregate, path.c_str(), sample.data.data()); });
    with_reason([&] {
        twr_aggregate* made = nullptr;
        return twr_aggregate_create(&made, MPI_COMM_WORLD, nullptr);
    });
    expect(twr_aggregate_refuse(nullptr) == TWR_ERROR_INVALID_ARGUMENT, "no reason");
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

}  // namespace aggregate_ranks
