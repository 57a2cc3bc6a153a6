// SPDX-License-Identifier: Apache-2.0
#include "haccio/agree.hpp"

#include <algorithm>

#include "haccio/method.hpp"

namespace haccio {

void agree(MPI_Comm world, const std::optional<std::string>& failure) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    const int mine = failure ? rank : ranks;
    int first = 0;
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, world);
    if (first == ranks) return;
    std::string text = rank == first ? *failure : "";
    auto length = static_cast<std::uint64_t>(text.size());
    MPI_Bcast(&length, 1, MPI_UINT64_T, first, world);
    text.resize(length);
    MPI_Bcast(text.data(), static_cast<int>(length), MPI_CHAR, first, world);
    throw AgreedFailure("rank " + std::to_string(first) + ": " + text);
}

void together(MPI_Comm world, const std::function<void()>& work) {
    std::optional<std::string> failure;
    try {
        work();
    } catch (const Failure& caught) {
        failure = caught.what();
    }
    agree(world, failure);
}

std::vector<std::string> gather_texts(MPI_Comm world, const std::string& text) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    const int length = static_cast<int>(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(ranks)), begins(static_cast<std::size_t>(ranks));
    MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, world);
    int total = 0;
    for (std::size_t i = 0; rank == 0 && i < lengths.size(); ++i) {
        begins[i] = total;
        total += lengths[i];
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR, 0, world);
    std::vector<std::string> result;
    for (std::size_t i = 0; rank == 0 && i < lengths.size(); ++i)
        result.push_back(
            all.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(lengths[i])));
    return result;
}

double largest(MPI_Comm world, double value) {
    double result = 0;
    MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, world);
    return result;
}

Clock::Clock(MPI_Comm world) : world_(world) {
    int rank = 0;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node_);
}

Clock::~Clock() { MPI_Comm_free(&node_); }

double Clock::span(Time start, Time end) const {
    // The clock of steady_clock on Linux, CLOCK_MONOTONIC, is one for all processes of a node. Both
    // by one reduction.
    const double times[2] = {-std::chrono::duration<double>(start.time_since_epoch()).count(),
                             std::chrono::duration<double>(end.time_since_epoch()).count()};
    double last[2] = {0, 0};
    MPI_Allreduce(times, last, 2, MPI_DOUBLE, MPI_MAX, node_);
    return largest(world_, last[0] + last[1]);
}

std::string mpi_library() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string line(text, static_cast<std::size_t>(length));
    line = line.substr(0, line.find_first_of(",\n\r"));
    line.erase(std::remove(line.begin(), line.end(), '\0'), line.end());
    std::string result;
    for (const char c : line) {
        const bool blank = c == '\t' || c == ' ';
        if (!blank) {
            result += c;
        } else if (!result.empty() && result.back() != ' ') {
            result += ' ';
        }
    }
    const std::string word = " Version: ";  // MPICH's
    if (const auto at = result.find(word); at != std::string::npos) result.erase(at + 1, word.size() - 1);
    return result.substr(0, result.find_last_not_of(' ') + 1);
}

}  // namespace haccio
