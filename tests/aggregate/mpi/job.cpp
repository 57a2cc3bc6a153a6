#include "job.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace aggregate_ranks {

int me = 0;
int ranks = 1;
std::string doing;
std::string stopped_file;

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

void fails(int status, int wanted, const std::vector<std::string>& words) {
    const std::string message = twr_error_message();
    expect(status == wanted,
           "status " + std::to_string(status) + " instead of " + std::to_string(wanted) + ": " + message);
    for (const std::string& word : words)
        expect(message.find(word) != std::string::npos, "'" + word + "' is not in: " + message);
}

void fails_on(int rank, int status, int wanted, const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    if (me != rank) all.push_back("rank " + std::to_string(rank));
    fails(status, me == rank ? wanted : static_cast<int>(TWR_ERROR_OTHER_RANK), all);
}

nlohmann::json report(twr_aggregate* aggregate) {
    return nlohmann::json::parse(twr_aggregate_report(aggregate));
}

twr_aggregate* made(const twr_aggregate_options& options) {
    twr_aggregate* aggregate = nullptr;
    well(twr_aggregate_create(&aggregate, MPI_COMM_WORLD, &options), "create");
    return aggregate;
}

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

}  // namespace aggregate_ranks
