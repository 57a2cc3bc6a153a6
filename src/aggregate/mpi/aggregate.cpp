// The C interface of the aggregation: results as codes and texts, and no exception across it.
#include "aggregate/mpi/aggregate.hpp"

#include <cstdio>
#include <string>
#include <utility>

#include "aggregate/mpi/refusal.hpp"
#include "base/caught.hpp"

using namespace twinrun;
using namespace twinrun::aggregation;

static_assert(TWR_ERROR_OTHER_RANK == static_cast<int>(ErrorCode::other_rank));
static_assert(TWR_ERROR_INTERNAL == static_cast<int>(ErrorCode::internal));
static_assert(TWR_ERROR_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));

namespace {

// The error text of a thread is kept by libtwinrun (core/capi/status.cpp), which truncates long
// texts.
int failed(const char* function, const Error& error) noexcept {
    char message[5000];
    std::snprintf(message, sizeof message, "%s: %s", function, error.message.c_str());
    return twr_fail(static_cast<int>(error.code), message);
}

template <class Body>
int answer(const char* function, Body&& body) noexcept {
    const Result<> result = caught(std::forward<Body>(body));
    return result ? static_cast<int>(TWR_OK) : failed(function, result.error());
}

// The same for a collective call: an exception is also reported to the ranks that wait for this
// one.
template <class Body>
int answer_of_all(const char* function, twr_aggregate* aggregate, Body&& body) noexcept {
    struct Forget {
        ~Forget() { forget_refusal(); }
    };
    const Forget forget;
    try {
        const Result<> result = std::forward<Body>(body)();
        return result ? static_cast<int>(TWR_OK) : failed(function, result.error());
    } catch (...) {
        const Error error = caught_error();
        if (aggregate != nullptr) aggregate->team->abandon(error);
        return failed(function, error);
    }
}

}  // namespace

extern "C" {

const char* twr_aggregate_error_message(void) { return twr_error_message(); }

int twr_aggregate_refuse(const char* why) {
    return answer("twr_aggregate_refuse", [&]() -> Result<> {
        if (why == nullptr || *why == '\0') return refuse("why is NULL or empty");
        refuse_next(why);
        return success();
    });
}

int twr_aggregate_settings_create(twr_aggregate_settings** settings) {
    return answer("twr_aggregate_settings_create", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        *settings = nullptr;
        *settings = new twr_aggregate_settings;
        return success();
    });
}

int twr_aggregate_settings_set(twr_aggregate_settings* settings, const char* name, const char* value) {
    return answer("twr_aggregate_settings_set", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        if (name == nullptr) return refuse("name is NULL");
        if (value == nullptr) return refuse(std::string("the value of ") + name + " is NULL");
        return settings->values.set(name, value);
    });
}

int twr_aggregate_settings_load(twr_aggregate_settings* settings, const char* path) {
    return answer("twr_aggregate_settings_load", [&]() -> Result<> {
        if (settings == nullptr) return refuse("settings is NULL");
        if (path == nullptr) return refuse("path is NULL");
        return settings->values.load(path);
    });
}

void twr_aggregate_settings_destroy(twr_aggregate_settings* settings) { delete settings; }

int twr_aggregate_create(twr_aggregate** aggregate, MPI_Comm comm, const twr_aggregate_options* options) {
    return answer_of_all("twr_aggregate_create", nullptr,
                         [&] { return create(aggregate, comm, [&] { return settings_of(options); }); });
}

int twr_aggregate_create_with(twr_aggregate** aggregate, MPI_Comm comm,
                              const twr_aggregate_settings* settings) {
    return answer_of_all("twr_aggregate_create_with", nullptr, [&] {
        return create(aggregate, comm, [&]() -> Result<Settings> {
            return settings == nullptr ? Settings() : settings->values;
        });
    });
}

int twr_aggregate_create_f(twr_aggregate** aggregate, const MPI_Fint* comm,
                           const twr_aggregate_settings* settings) {
    // MPI_Comm_f2c is not for a program that has not initialised MPI: create() says so.
    int begun = 0;
    int ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    const bool usable = comm != nullptr && begun != 0 && ended == 0;
    return twr_aggregate_create_with(aggregate, usable ? MPI_Comm_f2c(*comm) : MPI_COMM_NULL, settings);
}

int twr_aggregate_file(const twr_aggregate* a, int* file, int* files, int* rank, int* ranks, MPI_Comm* comm) {
    return answer("twr_aggregate_file", [&]() -> Result<> {
        if (a == nullptr) return refuse("aggregate is NULL");
        if (file != nullptr) *file = a->group.file;
        if (files != nullptr) *files = a->group.files;
        if (rank != nullptr) *rank = a->group.rank;
        if (ranks != nullptr) *ranks = a->group.ranks;
        if (comm != nullptr) *comm = a->group.comm;
        return success();
    });
}

int twr_aggregate_declare(twr_aggregate* aggregate, const twr_aggregate_variable* variables, int count) {
    return answer_of_all("twr_aggregate_declare", aggregate,
                         [&] { return declare(aggregate, variables, count); });
}

int twr_aggregate_declare_records(twr_aggregate* aggregate, const uint64_t* item_bytes, int count,
                                  uint64_t items, int layout, uint64_t file_offset) {
    return answer_of_all("twr_aggregate_declare_records", aggregate, [&] {
        return declare_records(aggregate, item_bytes, count, items, layout, file_offset);
    });
}

int twr_aggregate_declare_blocks(twr_aggregate* aggregate, const twr_aggregate_block* blocks, int count) {
    return answer_of_all("twr_aggregate_declare_blocks", aggregate,
                         [&] { return declare_blocks(aggregate, blocks, count); });
}

int twr_aggregate_declare_types(twr_aggregate* aggregate, const twr_aggregate_typed* types, int count) {
    return answer_of_all("twr_aggregate_declare_types", aggregate,
                         [&] { return declare_types(aggregate, types, count); });
}

int twr_aggregate_write(twr_aggregate* aggregate, const char* path, const void* const* data) {
    return answer_of_all("twr_aggregate_write", aggregate, [&] { return write(aggregate, path, data); });
}

int twr_aggregate_write_begin(twr_aggregate* aggregate, const char* path, const void* const* data) {
    return answer_of_all("twr_aggregate_write_begin", aggregate,
                         [&] { return write_begin(aggregate, path, data); });
}

int twr_aggregate_wait(twr_aggregate* aggregate) {
    return answer("twr_aggregate_wait", [&] { return wait(aggregate); });
}

int twr_aggregate_test(twr_aggregate* aggregate, int* done) {
    return answer("twr_aggregate_test", [&] { return test(aggregate, done); });
}

int twr_aggregate_read(twr_aggregate* aggregate, const char* path, void* const* data) {
    return answer_of_all("twr_aggregate_read", aggregate, [&] { return read(aggregate, path, data); });
}

int twr_aggregate_last_write(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer) {
    return answer("twr_aggregate_last_write", [&]() -> Result<> {
        if (aggregate == nullptr) return refuse("aggregate is NULL");
        settle(*aggregate);
        return fill(aggregate->written, "written", transfer);
    });
}

int twr_aggregate_last_read(const twr_aggregate* aggregate, twr_aggregate_transfer* transfer) {
    return answer("twr_aggregate_last_read", [&]() -> Result<> {
        if (aggregate == nullptr) return refuse("aggregate is NULL");
        return fill(aggregate->read, "read", transfer);
    });
}

const char* twr_aggregate_report(twr_aggregate* aggregate) {
    if (aggregate == nullptr) return "{}";
    settle(*aggregate);
    const auto made = caught([&]() -> Result<> {
        aggregate->report = report_of(*aggregate);
        return success();
    });
    return made ? aggregate->report.c_str() : "{}";
}

void twr_aggregate_free(twr_aggregate* aggregate) { release(aggregate); }

}  // extern "C"
