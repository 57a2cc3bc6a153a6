// twr_comm and twr_shared_files over MPI. Everything here stands on the public interfaces alone.
#include <twinrun/aggregate.h>
#include <twinrun/mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <thread>

namespace {

// After MPI_Finalize no function of MPI may be called, not even to free our own objects.
bool mpi_runs() {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised != 0 && finalised == 0;
}

constexpr int kMpiIsOver = -1;

// The time limit of an aggregate too, which reports an invalid variable. nullopt: none is set.
std::optional<double> given_limit() {
    const char* const text = std::getenv("TWINRUN_AGGREGATE_TIME_LIMIT");
    const double value = text == nullptr ? 0 : std::strtod(text, nullptr);
    if (value > 0) return value;
    if (value < 0) return HUGE_VAL;
    return std::nullopt;
}

// The ranks of a run: the context of its twr_comm. `lost` may be set by a thread that writes steps.
struct Ranks {
    MPI_Comm comm = MPI_COMM_NULL;
    // Calls watch whether the other ranks come: with a time limit, or if another thread would
    // notice that they do not.
    bool watched = false;
    double patience = given_limit().value_or(HUGE_VAL);  // seconds
    // A rank did not come in time: no collective call is possible any more.
    std::atomic<bool> lost{false};
};

constexpr const char* kWhyLost =
    "a rank did not come within the time limit (TWINRUN_AGGREGATE_TIME_LIMIT): it has ended, or hangs; "
    "this run cannot be used any more: end the job";

// What twr_comm's functions return then: its error text says more.
constexpr int kLost = -TWR_ERROR_OTHER_RANK;

int lose(Ranks& ranks, const char* why) {
    ranks.lost.store(true);
    twr_fail(TWR_ERROR_OTHER_RANK, why);
    return kLost;
}

// Waits for a request of an MPI that may have lost a rank, without keeping a core busy for long.
// The request's memory must stay after kLost.
int wait_for(Ranks& ranks, MPI_Request request) {
    constexpr int kYields = 1000;
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::microseconds pause{10};
    for (int round = 0;; ++round) {
        int done = 0;
        if (const int failure = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) return failure;
        if (done != 0) return MPI_SUCCESS;
        if (round < kYields) {
            std::this_thread::yield();
            continue;
        }
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (ranks.lost.load()) return lose(ranks, kWhyLost);
        if (waited.count() > ranks.patience) {
            char text[256];
            std::snprintf(text, sizeof text,
                          "not all ranks came within %g seconds (TWINRUN_AGGREGATE_TIME_LIMIT): one has "
                          "ended, hangs, or is late; this run cannot be used any more: end the job",
                          ranks.patience);
            return lose(ranks, text);
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::microseconds{1000});
    }
}

// Memory for one call: MPI may still write to it if this rank gave up, so that it is not freed
// then.
struct Memory {
    std::byte bytes[std::size_t{1} << 16];
};

// Calls start(memory, count) for pieces of the bytes, and waits for each.
template <class Start>
int watched(Ranks& ranks, std::byte* bytes, std::size_t byte_count, Start&& start) {
    if (ranks.lost.load()) return lose(ranks, kWhyLost);
    auto* memory = new (std::nothrow) Memory;
    if (memory == nullptr) return MPI_ERR_NO_MEM;
    int outcome = MPI_SUCCESS;
    while (byte_count != 0 && outcome == MPI_SUCCESS) {
        const std::size_t piece = std::min(byte_count, sizeof memory->bytes);
        std::memcpy(memory->bytes, bytes, piece);
        MPI_Request request = MPI_REQUEST_NULL;
        outcome = start(memory->bytes, piece, &request);
        if (outcome == MPI_SUCCESS) outcome = wait_for(ranks, request);
        if (outcome == MPI_SUCCESS) std::memcpy(bytes, memory->bytes, piece);
        bytes += piece;
        byte_count -= piece;
    }
    if (outcome == MPI_SUCCESS) delete memory;
    return outcome;
}

int minimum(void* context, std::int64_t* values, int count) {
    if (!mpi_runs()) return kMpiIsOver;
    auto& ranks = *static_cast<Ranks*>(context);
    if (!ranks.watched) return MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MIN, ranks.comm);
    return watched(ranks, reinterpret_cast<std::byte*>(values),
                   static_cast<std::size_t>(count) * sizeof *values,
                   [&](std::byte* at, std::size_t bytes, MPI_Request* request) {
                       return MPI_Iallreduce(MPI_IN_PLACE, at, static_cast<int>(bytes / sizeof *values),
                                             MPI_INT64_T, MPI_MIN, ranks.comm, request);
                   });
}

int broadcast(void* context, void* bytes, std::size_t byte_count) {
    if (!mpi_runs()) return kMpiIsOver;
    auto& ranks = *static_cast<Ranks*>(context);
    auto* at = static_cast<std::byte*>(bytes);
    if (ranks.watched) {
        return watched(ranks, at, byte_count, [&](std::byte* piece, std::size_t count, MPI_Request* request) {
            return MPI_Ibcast(piece, static_cast<int>(count), MPI_BYTE, 0, ranks.comm, request);
        });
    }
    constexpr std::size_t kMost = std::size_t{1} << 30;  // MPI's counts are ints
    while (byte_count != 0) {
        const std::size_t piece = std::min(byte_count, kMost);
        if (const int failure = MPI_Bcast(at, static_cast<int>(piece), MPI_BYTE, 0, ranks.comm))
            return failure;
        at += piece;
        byte_count -= piece;
    }
    return MPI_SUCCESS;
}

void release(void* context) {
    auto* const ranks = static_cast<Ranks*>(context);
    // Otherwise freeing would wait for missing ranks, and MPI may still use the memory.
    if (ranks->lost.load()) return;
    if (mpi_runs()) MPI_Comm_free(&ranks->comm);
    delete ranks;
}

// ---- files of several ranks ----

// Files of several ranks, aggregated. They have their own communicators, because a background
// thread may use these while the application's thread uses the run's.
struct Shared {
    Ranks* run = nullptr;            // of twr_comm, which frees it later
    MPI_Comm comm = MPI_COMM_NULL;   // for agreements before a write
    MPI_Comm group = MPI_COMM_NULL;  // of the ranks of this rank's file: the aggregate's
    twr_aggregate* aggregate = nullptr;
    int rank = 0;
    bool declared = false;
    // A rank did not answer in time: no collective call is possible any more.
    bool broken = false;
    std::uint64_t bytes = 0;  // declared
    std::uint64_t offset = 0;
    std::uint64_t file_bytes = 0;
    std::string path;
    double patience = given_limit().value_or(600);  // seconds; the default is the aggregate's
};

constexpr const char* kGroup = "group.data";

int failed(int status, const std::string& what) {
    return twr_fail(status, ("shared_files: " + what).c_str());
}

int mpi_failed(Shared& shared, const char* function) {
    shared.broken = true;  // the state of the other ranks is unknown now
    shared.run->lost.store(true);
    return failed(TWR_ERROR_IO, std::string(function) + " failed");
}

// Waits for a request without keeping a core busy, because ranks may be late.
int finish(Shared& shared, MPI_Request request, const char* function) {
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::microseconds pause{10};
    for (;;) {
        int done = 0;
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return mpi_failed(shared, function);
        if (done != 0) return TWR_OK;
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (waited.count() > shared.patience) {
            shared.broken = true;
            shared.run->lost.store(true);
            char limit[32];
            std::snprintf(limit, sizeof limit, "%g", shared.patience);
            return failed(TWR_ERROR_IO,
                          "not all ranks came to write a step within " + std::string(limit) +
                              " seconds (TWINRUN_AGGREGATE_TIME_LIMIT): one has ended, hangs, or had "
                              "no memory to take the step");
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::microseconds{1000});
    }
}

int minimum_of(Shared& shared, std::int64_t* values, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MIN, shared.comm, &request) !=
        MPI_SUCCESS)
        return mpi_failed(shared, "MPI_Iallreduce");
    return finish(shared, request, "MPI_Iallreduce");
}

int prepare_shared(void* context, const char* files, int background, char* name, std::size_t name_bytes) {
    auto* const shared = static_cast<Shared*>(context);
    if (!mpi_runs()) return failed(TWR_ERROR_INVALID_ARGUMENT, "MPI is finalised already");
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    const bool threads = background == 0 || provided >= MPI_THREAD_MULTIPLE;
    std::int64_t well = threads ? 1 : 0;
    if (MPI_Allreduce(MPI_IN_PLACE, &well, 1, MPI_INT64_T, MPI_MIN, shared->run->comm) != MPI_SUCCESS)
        return mpi_failed(*shared, "MPI_Allreduce");
    if (!threads) {
        return failed(TWR_ERROR_UNSUPPORTED,
                      "steps are written in the background, by a thread of twinrun's that calls MPI: ask "
                      "MPI_Init_thread for MPI_THREAD_MULTIPLE, or set background to false");
    }
    if (well == 0) return failed(TWR_ERROR_OTHER_RANK, "another rank cannot: its own message says why");
    shared->run->watched = true;  // on all ranks; the writing thread notices who does not come
    if (MPI_Comm_dup(shared->run->comm, &shared->comm) != MPI_SUCCESS)
        return mpi_failed(*shared, "MPI_Comm_dup");
    MPI_Comm_set_errhandler(shared->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(shared->comm, &shared->rank);
    twr_aggregate_options options = TWR_AGGREGATE_OPTIONS_INIT;
    options.files = files;
    options.sync = 1;
    options.no_index = 1;  // the history's manifest names the files of a step
    if (const int status = twr_aggregate_create(&shared->aggregate, shared->comm, &options))
        return failed(status, twr_error_message());
    int file = 0;
    int count = 1;
    twr_aggregate_file(shared->aggregate, &file, &count, nullptr, nullptr, &shared->group);
    std::snprintf(name, name_bytes, count == 1 ? "%s" : "%s.%05d", kGroup, file);
    return TWR_OK;
}

// Declares these sizes, on every rank if the size of any rank has changed.
int declare(Shared& shared, std::uint64_t bytes) {
    shared.declared = false;
    std::uint64_t before = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Iexscan(&bytes, &before, 1, MPI_UINT64_T, MPI_SUM, shared.group, &request) != MPI_SUCCESS)
        return mpi_failed(shared, "MPI_Iexscan");
    if (const int status = finish(shared, request, "MPI_Iexscan")) return status;
    int group_rank = 0;
    MPI_Comm_rank(shared.group, &group_rank);
    shared.offset = group_rank == 0 ? 0 : before;
    if (MPI_Iallreduce(&bytes, &shared.file_bytes, 1, MPI_UINT64_T, MPI_SUM, shared.group, &request) !=
        MPI_SUCCESS)
        return mpi_failed(shared, "MPI_Iallreduce");
    if (const int status = finish(shared, request, "MPI_Iallreduce")) return status;
    const twr_aggregate_variable all = {1, bytes, shared.offset, 0, 0};
    if (const int status = twr_aggregate_declare(shared.aggregate, &all, 1))
        return failed(status, twr_error_message());
    shared.bytes = bytes;
    shared.declared = true;
    return TWR_OK;
}

int write_shared(void* context, twr_shared_part* part) {
    auto& shared = *static_cast<Shared*>(context);
    if (!mpi_runs()) return failed(TWR_ERROR_IO, "MPI is finalised: close the run before MPI_Finalize");
    if (shared.broken) return failed(TWR_ERROR_IO, "ranks lost each other at an earlier step");
    bool well = part->well != 0;
    if (well) {
        try {
            shared.path = std::string(part->folder) + "/" + kGroup;
        } catch (const std::bad_alloc&) {
            well = false;
        }
    }
    constexpr std::int64_t kAll = INT64_MAX;
    const auto ordinal = static_cast<std::int64_t>(part->ordinal);
    // A rank that could not take a step comes with a later one. Ranks with the earlier step then
    // lose it, and come again with their next.
    std::array<std::int64_t, 4> values{};
    do {
        const bool changed = !shared.declared || shared.bytes != part->byte_count;
        values = {ordinal, -ordinal, well ? kAll : shared.rank, changed ? 0 : 1};
        if (const int status = minimum_of(shared, values.data(), 4)) return status;
    } while (values[0] < ordinal);
    if (-values[1] != ordinal)
        return failed(TWR_ERROR_OTHER_RANK, "another rank had no memory to take this step");
    if (values[2] != kAll) {
        return failed(TWR_ERROR_OTHER_RANK,
                      "rank " + std::to_string(values[2]) +
                          " could not bring its part of the step: its own message says why");
    }
    if (values[3] == 0) {
        if (const int status = declare(shared, part->byte_count)) return status;
    }
    const void* const data[] = {part->bytes};
    if (const int status = twr_aggregate_write(shared.aggregate, shared.path.c_str(), data)) {
        failed(status, twr_error_message());
        // All ranks have an error now. Are they all there? Else nobody would wait for the run
        // again.
        std::string why;
        try {
            why = twr_error_message();
        } catch (const std::bad_alloc&) {
        }
        std::int64_t here = 1;
        static_cast<void>(minimum_of(shared, &here, 1));
        return twr_fail(status, why.c_str());
    }
    part->offset = shared.offset;
    part->file_bytes = shared.file_bytes;
    return TWR_OK;
}

void release_shared(void* context) {
    auto* const shared = static_cast<Shared*>(context);
    // Otherwise freeing MPI's objects would wait for missing ranks.
    if (!shared->broken && !shared->run->lost.load()) {
        twr_aggregate_free(shared->aggregate);
        if (mpi_runs() && shared->comm != MPI_COMM_NULL) MPI_Comm_free(&shared->comm);
    }
    delete shared;
}

// ---- open ----

int refuse(twr_run** run, const char* message) {
    if (run != nullptr) *run = nullptr;
    return twr_fail(TWR_ERROR_INVALID_ARGUMENT, message);
}

// Whether the calling thread may call MPI.
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
    // From here on every rank takes part, even with wrong arguments: twr_open_comm reports these on
    // all ranks.
    MPI_Comm mine = MPI_COMM_NULL;
    if (MPI_Comm_dup(comm, &mine) != MPI_SUCCESS) {
        return refuse(run, "twr_open_mpi: MPI_Comm_dup failed: the communicator cannot be duplicated");
    }
    MPI_Comm_set_errhandler(mine, MPI_ERRORS_RETURN);
    twr_comm table = {};
    MPI_Comm_rank(mine, &table.rank);
    MPI_Comm_size(mine, &table.size);
    table.minimum = minimum;
    table.broadcast = broadcast;
    table.release = release;
    // A failed allocation of one rank is reported to the others before they go on.
    auto* const shared = new (std::nothrow) Shared;
    auto* const ranks = new (std::nothrow) Ranks;
    // All ranks watch if one does: calls that watch are others than those that do not.
    std::array<std::int64_t, 2> least{shared != nullptr && ranks != nullptr ? 1 : 0,
                                      given_limit().has_value() ? 0 : 1};
    if (MPI_Allreduce(MPI_IN_PLACE, least.data(), 2, MPI_INT64_T, MPI_MIN, mine) != MPI_SUCCESS ||
        least[0] == 0 || shared == nullptr || ranks == nullptr) {
        const bool own = shared == nullptr || ranks == nullptr;
        delete shared;
        delete ranks;
        MPI_Comm_free(&mine);
        if (run != nullptr) *run = nullptr;
        return twr_fail(own ? TWR_ERROR_OUT_OF_MEMORY : TWR_ERROR_OTHER_RANK,
                        own ? "twr_open_mpi: out of memory" : "twr_open_mpi: another rank failed");
    }
    ranks->comm = mine;
    ranks->watched = least[1] == 0;
    table.context = ranks;
    shared->run = ranks;
    twr_shared_files files = {};
    files.size = sizeof files;
    files.context = shared;
    files.release = release_shared;
    files.prepare = prepare_shared;
    files.write = write_shared;
    return twr_open_comm_shared(run, path, settings, &table, &files);
}

int twr_open_mpi_f(twr_run** run, const char* path, const twr_settings* settings, MPI_Fint comm) {
    // Before MPI_Init no communicator can be converted.
    return twr_open_mpi(run, path, settings, mpi_runs() ? MPI_Comm_f2c(comm) : MPI_COMM_NULL);
}
