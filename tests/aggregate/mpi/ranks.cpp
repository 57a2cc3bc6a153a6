// One rank of the jobs that scenarios.py starts: moves data by the public interface alone, and checks what it can itself. The core
// that is linked besides elects again.
//
// usage: aggregate_ranks SCENARIO FOLDER [ARGUMENT ...]; exit status 0 and "done" by rank 0 if all is as it should be; else what is
// not, on standard error, and MPI_Abort.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "job.hpp"
#include "scenarios.hpp"

int main(int argc, char** argv) {
    using namespace aggregate_ranks;
    // Of threads MPI knows only if a test says so.
    const bool threads = argc > 1 && std::string(argv[argc - 1]) == "multiple";
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
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
        die(folder, argument(0), argument(1), argument(2));
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
    } else if (scenario == "stripes") {
        stripes(folder);
    } else if (scenario == "settings") {
        settings(folder);
    } else if (scenario == "reports") {
        reports(folder);
    } else if (scenario == "sub_files") {
        sub_files(folder);
    } else if (scenario == "wholes") {
        wholes(folder, number(0), static_cast<int>(number(1)));
    } else if (scenario == "background") {
        background(folder, number(0), static_cast<int>(number(1)), argument(2));
    } else if (scenario == "plans") {
        plans(folder);
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
