// VELOC's functions. No exception leaves them.
#include <twinrun/mpi.h>
#include <twinrun/veloc/veloc.h>

#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "veloc/client.hpp"
#include "veloc/config.hpp"
#include "veloc/files.hpp"

extern char** environ;

namespace twinrun::veloc {

namespace {

std::unique_ptr<Client> client;

// The error text of a thread is shared by all libraries of twinrun.
int report(const char* function, const std::string& message, bool for_log = true) {
    twr_fail(VELOC_FAILURE, (std::string(function) + ": " + message).c_str());
    if (client && for_log) client->note(message);
    return VELOC_FAILURE;
}

void clear_text() { twr_fail(VELOC_SUCCESS, ""); }

// Turns exceptions into VELOC_FAILURE with an error text. A call that succeeds clears the text,
// which internal calls may have set.
template <class Work>
int guarded(const char* function, Work work) noexcept {
    try {
        try {
            clear_text();
            if (client) client->enter(function);
            const int result = work();
            if (result != VELOC_FAILURE) clear_text();
            return result;
        } catch (const Failure& failure) {
            return report(function, failure.message, failure.for_log);
        } catch (const std::exception& e) {
            return report(function, e.what());
        }
    } catch (...) {  // no memory for the message
        return VELOC_FAILURE;
    }
}

template <class Work>
int with_client(const char* function, Work work) noexcept {
    return guarded(function, [&] {
        if (!client) fail("call VELOC_Init or VELOC_Init_single first");
        work(*client);
        return VELOC_SUCCESS;
    });
}

Variables variables() {
    Variables result;
    for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
        const char* sign = std::strchr(*at, '=');
        if (sign != nullptr && std::strncmp(*at, "VELOC_", 6) == 0)
            result.emplace_back(std::string(*at, static_cast<std::size_t>(sign - *at)), sign + 1);
    }
    return result;
}

int initialise(const char* function, MPI_Comm comm, unsigned id, const char* file) noexcept {
    MPI_Comm mine = MPI_COMM_NULL;
    const int status = guarded(function, [&] {
        if (client) return VELOC_SUCCESS;  // as VELOC does
        if (comm != MPI_COMM_NULL) {
            if (MPI_Comm_dup(comm, &mine) != MPI_SUCCESS) fail("MPI_Comm_dup failed");
            MPI_Comm_set_errhandler(mine, MPI_ERRORS_RETURN);
        }
        Config config;
        std::optional<std::string> problem;
        try {
            problem = read_config(file == nullptr ? "" : file, variables(), config);
        } catch (const std::exception& e) {
            problem = e.what();
        }
        auto made = std::make_unique<Client>(std::move(config), mine, id);
        if (!problem) {
            try {
                made->make_folders();
            } catch (const Failure& failure) {
                problem = failure.message;
            } catch (const std::exception& e) {
                problem = e.what();
            }
        }
        made->enter(function);
        made->agree(problem);
        made->note_unknown_keys(file == nullptr ? "" : file);
        client = std::move(made);
        return VELOC_SUCCESS;
    });
    if (status != VELOC_SUCCESS && mine != MPI_COMM_NULL) MPI_Comm_free(&mine);
    return status;
}

}  // namespace

}  // namespace twinrun::veloc

using namespace twinrun::veloc;

extern "C" {

int VELOC_Init(MPI_Comm comm, const char* cfg_file) {
    return guarded(__func__, [&] {
        int begun = 0;
        int over = 0;
        MPI_Initialized(&begun);
        MPI_Finalized(&over);
        if (begun == 0 || over != 0) fail("call it between MPI_Init and MPI_Finalize");
        if (comm == MPI_COMM_NULL) fail("the communicator is MPI_COMM_NULL");
        return initialise("VELOC_Init", comm, 0, cfg_file);
    });
}

int VELOC_Init_single(unsigned int id, const char* cfg_file) {
    return initialise(__func__, MPI_COMM_NULL, id, cfg_file);
}

int VELOC_Finalize(int) {
    return guarded(__func__, [&] {
        if (!client) fail("call VELOC_Init or VELOC_Init_single first");
        int status = VELOC_SUCCESS;
        try {
            client->close();
        } catch (const Failure& failure) {
            status = report("VELOC_Finalize", failure.message, failure.for_log);
        }
        MPI_Comm comm = client->comm();
        client.reset();
        int over = 1;
        if (comm != MPI_COMM_NULL) MPI_Finalized(&over);
        if (over == 0) MPI_Comm_free(&comm);
        return status;
    });
}

int VELOC_Mem_protect(int id, void* ptr, size_t count, size_t base_size) {
    return with_client(__func__, [&](Client& c) { c.protect(id, ptr, count, base_size, kDefaultGroup); });
}

int VELOC_Region_protect(int id, void* ptr, size_t count, size_t base_size, const char* name) {
    return with_client(__func__, [&](Client& c) { c.protect(id, ptr, count, base_size, name); });
}

int VELOC_Mem_unprotect(int id) {
    return with_client(__func__, [&](Client& c) { c.unprotect(id, kDefaultGroup); });
}

int VELOC_Region_unprotect(int id, const char* name) {
    return with_client(__func__, [&](Client& c) { c.unprotect(id, name); });
}

int VELOC_Mem_clear(void) {
    return with_client(__func__, [](Client& c) { c.clear(kDefaultGroup); });
}

int VELOC_Region_clear(const char* name) {
    return with_client(__func__, [&](Client& c) { c.clear(name); });
}

int VELOC_Route_file(const char* original, char* routed) {
    if (routed != nullptr) routed[0] = '\0';
    return with_client(__func__, [&](Client& c) { c.route(original, routed); });
}

int VELOC_Cleanup(const char* name) {
    return with_client(__func__, [&](Client& c) { c.clean(name); });
}

int VELOC_Checkpoint(const char* name, int version) {
    return with_client(__func__, [&](Client& c) { c.checkpoint(name, version); });
}

int VELOC_Checkpoint_begin(const char* name, int version) {
    return with_client(__func__, [&](Client& c) { c.begin_checkpoint(name, version); });
}

int VELOC_Checkpoint_mem(void) {
    return with_client(__func__, [](Client& c) { c.copy(VELOC_CKPT_ALL, nullptr, 0); });
}

int VELOC_Checkpoint_selective(int mode, int* ids, int id_count) {
    return with_client(__func__, [&](Client& c) { c.copy(mode, ids, id_count); });
}

int VELOC_Checkpoint_end(int success) {
    return with_client(__func__, [&](Client& c) { c.end_checkpoint(success != 0); });
}

int VELOC_Checkpoint_wait(void) {
    return with_client(__func__, [](Client& c) { c.wait(); });
}

int VELOC_Checkpoint_finished(void) {
    return guarded(__func__, [] {
        if (!client) fail("call VELOC_Init or VELOC_Init_single first");
        return client->finished() ? VELOC_SUCCESS : VELOC_FAILURE;
    });
}

int VELOC_Restart_test(const char* name, int version) {
    return guarded(__func__, [&] {
        if (!client) fail("call VELOC_Init or VELOC_Init_single first");
        return client->newest(name, version);
    });
}

int VELOC_Restart(const char* name, int version) {
    return with_client(__func__, [&](Client& c) { c.restart(name, version); });
}

int VELOC_Restart_begin(const char* name, int version) {
    return with_client(__func__, [&](Client& c) { c.begin_restart(name, version); });
}

int VELOC_Recover_size(int id) {
    return guarded(__func__, [&] {
        if (!client) fail("call VELOC_Init or VELOC_Init_single first");
        return client->saved_bytes(id);
    });
}

int VELOC_Recover_mem(void) {
    return with_client(__func__, [](Client& c) { c.recover(VELOC_RECOVER_ALL, nullptr, 0); });
}

int VELOC_Recover_selective(int mode, int* ids, int id_count) {
    return with_client(__func__, [&](Client& c) { c.recover(mode, ids, id_count); });
}

int VELOC_Restart_end(int success) {
    return with_client(__func__, [&](Client& c) { c.end_restart(success != 0); });
}

const char* twr_veloc_error_message(void) { return twr_error_message(); }

}  // extern "C"
