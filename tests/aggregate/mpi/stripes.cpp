// A scenario: the stripes of new files. scenarios.py looks at what Lustre's library or command was asked for.
#include <mpi.h>
#include <twinrun/aggregate.h>

#include <filesystem>
#include <string>

#include "declarations.hpp"
#include "job.hpp"
#include "scenarios.hpp"

namespace aggregate_ranks {

namespace {

std::string folder_at(const std::string& path) {
    if (me == 0) std::filesystem::create_directories(path);
    MPI_Barrier(MPI_COMM_WORLD);
    return path;
}

}  // namespace

void stripes(const std::string& folder) {
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.striping_factor = 4;
    options.striping_unit = 1 << 20;
    const Sample sample(500);
    // No such file system, Lustre, and one whose tools refuse. Each takes the file.
    for (const char* const place : {"/plain", "/is-lustre", "/refused-lustre"}) {
        doing = place;
        const std::string path = folder_at(folder + place) + "/data";
        for (const bool update : {false, true}) {
            options.update = update ? 1 : 0;
            twr_aggregate* const aggregate = made(options);
            well(sample.declare(aggregate), "declare");
            const std::string name = path + (update ? ".updated" : "");
            for (int again = 0; again < 2; ++again)
                well(twr_aggregate_write(aggregate, name.c_str(), sample.data.data()), "write");
            if (me == 0) same_bytes(contents(name), sample.file, name);
            twr_aggregate_free(aggregate);
        }
        if (me == 0) expect_no_partial(folder + place);
    }
    // Partitions begin at stripes, before there is a file.
    options.update = 0;
    twr_aggregate* aggregate = made(options);
    well(sample.declare(aggregate), "declare");
    const std::string later = folder + "/is-lustre/later";
    well(twr_aggregate_write_begin(aggregate, later.c_str(), sample.data.data()), "write_begin");
    well(twr_aggregate_wait(aggregate), "wait");
    expect(report(aggregate)["declared"]["block_bytes"] == 1 << 20, "block_bytes on Lustre");
    twr_aggregate_free(aggregate);
    // What the folder has.
    options = TWR_AGGREGATE_OPTIONS_INIT;
    aggregate = made(options);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, (folder + "/is-lustre/unasked").c_str(), sample.data.data()),
         "write");
    twr_aggregate_free(aggregate);
    // A file system that says by statfs how long its blocks are.
    aggregate = made(options);
    well(sample.declare(aggregate), "declare");
    well(twr_aggregate_write(aggregate, (folder_at(folder + "/is-gpfs") + "/data").c_str(),
                             sample.data.data()),
         "write");
    expect(report(aggregate)["declared"]["block_bytes"] == 4 << 20, "block_bytes on GPFS");
    twr_aggregate_free(aggregate);
}

}  // namespace aggregate_ranks
