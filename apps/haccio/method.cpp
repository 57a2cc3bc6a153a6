// SPDX-License-Identifier: Apache-2.0
#include "haccio/method.hpp"

#include <algorithm>
#include <cstdio>

namespace haccio {

std::string file_path(const std::string& path, const FileGroup& group) {
    if (group.files == 1) return path;
    char number[16];
    std::snprintf(number, sizeof number, ".%05d", group.file);
    return path + number;
}

void Stopwatch::lap(const char* phase) {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    const auto found =
        std::find_if(phases_.begin(), phases_.end(), [&](const auto& known) { return known.first == phase; });
    if (found == phases_.end()) {
        phases_.emplace_back(phase, seconds);
    } else {
        found->second += seconds;
    }
}

OwnGroup::OwnGroup(const std::string& files, MPI_Comm world) {
    int rank = 0;
    MPI_Comm_rank(world, &rank);
    if (files == "one") {
        MPI_Comm_dup(world, &group_.comm);
    } else if (files == "node") {
        MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &group_.comm);
    } else {
        MPI_Comm_split(world, rank, 0, &group_.comm);
    }
    MPI_Comm_rank(group_.comm, &group_.rank);
    MPI_Comm_size(group_.comm, &group_.ranks);
    // Files are numbered by the lowest rank of each group.
    const int first = group_.rank == 0 ? 1 : 0;
    int before = 0;
    MPI_Exscan(&first, &before, 1, MPI_INT, MPI_SUM, world);
    if (rank == 0) before = 0;
    group_.file = before;
    MPI_Bcast(&group_.file, 1, MPI_INT, 0, group_.comm);
    MPI_Allreduce(&first, &group_.files, 1, MPI_INT, MPI_SUM, world);
}

OwnGroup::~OwnGroup() { MPI_Comm_free(&group_.comm); }

Share share_of(const FileGroup& group, std::uint64_t particles) {
    Share share;
    share.count = particles;
    MPI_Exscan(&particles, &share.before, 1, MPI_UINT64_T, MPI_SUM, group.comm);
    if (group.rank == 0) share.before = 0;
    MPI_Allreduce(&particles, &share.total, 1, MPI_UINT64_T, MPI_SUM, group.comm);
    return share;
}

std::unique_ptr<Method> make_method(const MethodChoice& choice, const Options& options, Particles& particles,
                                    MPI_Comm world) {
    if (choice.name == "aggregate") return make_aggregate(choice, options, particles, world);
    if (choice.name.starts_with("mpiio")) return make_mpiio(choice, options, particles, world);
    if (choice.name.starts_with("posix")) return make_posix(choice, options, particles, world);
    return make_ceiling(choice, options, particles, world);
}

}  // namespace haccio
