// twr_comm over MPI. Everything here stands on the public interface alone.
#include <twinrun/mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

// After MPI_Finalize no function may be called, not even to free what is ours.
bool mpi_runs() {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised != 0 && finalised == 0;
}

constexpr int kMpiIsOver = -1;

// The context is the communicator itself, an int or a pointer: so there is no memory that one rank alone could fail to get.
static_assert(sizeof(MPI_Comm) <= sizeof(void*));

void* context_of(MPI_Comm comm) {
    void* context = nullptr;
    std::memcpy(&context, &comm, sizeof comm);
    return context;
}

MPI_Comm of(void* context) {
    MPI_Comm comm = MPI_COMM_NULL;
    std::memcpy(&comm, &context, sizeof comm);
    return comm;
}

int minimum(void* context, std::int64_t* values, int count) {
    if (!mpi_runs()) return kMpiIsOver;
    return MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MIN, of(context));
}

int broadcast(void* context, void* bytes, std::size_t byte_count) {
    if (!mpi_runs()) return kMpiIsOver;
    constexpr std::size_t kMost = std::size_t{1} << 30;  // counts of MPI are ints
    auto* at = static_cast<std::byte*>(bytes);
    while (byte_count != 0) {
        const std::size_t piece = std::min(byte_count, kMost);
        if (const int failure = MPI_Bcast(at, static_cast<int>(piece), MPI_BYTE, 0, of(context)))
            return failure;
        at += piece;
        byte_count -= piece;
    }
    return MPI_SUCCESS;
}

void release(void* context) {
    MPI_Comm comm = of(context);
    if (mpi_runs()) MPI_Comm_free(&comm);
}

int refuse(twr_run** run, const char* message) {
    if (run != nullptr) *run = nullptr;
    return twr_fail(TWR_ERROR_INVALID_ARGUMENT, message);
}

// The calling thread, if it may call MPI.
bool thread_may_call() {
    int provided = MPI_THREAD_SINGLE;
    int main_thread = 0;
    MPI_Query_thread(&provided);
    MPI_Is_thread_main(&main_thread);
    return provided >= MPI_THREAD_SERIALIZED || main_thread != 0;
}

}  // namespace

int twr_open_mpi(twr_run** run, const char* path, const twr_settings* settings, MPI_Comm comm) {
    if (!mpi_runs()) {
        return refuse(run,
                      "twr_open_mpi: MPI is not initialised, or finalised already: call it between "
                      "MPI_Init and MPI_Finalize, or twr_open for a process alone");
    }
    if (comm == MPI_COMM_NULL) return refuse(run, "twr_open_mpi: the communicator is MPI_COMM_NULL");
    if (!thread_may_call()) {
        return refuse(run,
                      "twr_open_mpi: this thread may not call MPI: call it from the thread of MPI_Init, or "
                      "ask MPI_Init_thread for MPI_THREAD_SERIALIZED");
    }
    int between_groups = 0;
    MPI_Comm_test_inter(comm, &between_groups);
    if (between_groups != 0) {
        return refuse(run,
                      "twr_open_mpi: the communicator joins two groups: merge it with MPI_Intercomm_merge");
    }
    // From here on every rank takes part, whatever its arguments: what is wrong with them is told to all by twr_open_comm.
    MPI_Comm mine = MPI_COMM_NULL;
    if (MPI_Comm_dup(comm, &mine) != MPI_SUCCESS) {
        return refuse(run, "twr_open_mpi: MPI_Comm_dup failed: the communicator cannot be duplicated");
    }
    MPI_Comm_set_errhandler(mine, MPI_ERRORS_RETURN);
    twr_comm table = {};
    table.context = context_of(mine);
    MPI_Comm_rank(mine, &table.rank);
    MPI_Comm_size(mine, &table.size);
    table.minimum = minimum;
    table.broadcast = broadcast;
    table.release = release;
    return twr_open_comm(run, path, settings, &table);
}

int twr_open_mpi_f(twr_run** run, const char* path, const twr_settings* settings, MPI_Fint comm) {
    // Before MPI_Init there is no table of communicators to look in.
    return twr_open_mpi(run, path, settings, mpi_runs() ? MPI_Comm_f2c(comm) : MPI_COMM_NULL);
}
