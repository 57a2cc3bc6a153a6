#include "aggregate/mpiio/requests.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>

#include "aggregate/mpiio/answers.hpp"
#include "base/caught.hpp"

#include "base/start_thread.hpp"

namespace twinrun::mpiio {

// One call, from the program's thread to the one that carries it out. A request of MPI has it too.
struct Operation {
    std::shared_ptr<File::Prepared> prepared;
    MPI_File handle = MPI_FILE_NULL;
    MPI_Comm comm = MPI_COMM_NULL;           // to let MPI make progress
    MPI_Request request = MPI_REQUEST_NULL;  // null: the program has none
    // Set when it is carried out.
    std::uint64_t bytes = 0;
    int code = MPI_SUCCESS;
    std::atomic<bool> handled{false};  // the file's error handler was called
    std::atomic<bool> completed{false};
};

namespace {

using Shared = std::shared_ptr<Operation>;

// ---- what MPI asks of a generalized request ----

int query(void* state, MPI_Status* status) {
    Operation& operation = **static_cast<Shared*>(state);
    fill(status, operation.bytes);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    status->MPI_ERROR = operation.code;
    // MPI itself knows no file that this request is of. A file that is closed has no handler.
    if (operation.code != MPI_SUCCESS && !operation.handled.exchange(true) && known(operation.handle))
        PMPI_File_call_errhandler(operation.handle, operation.code);
    return operation.code;
}

int release(void* state) {
    delete static_cast<Shared*>(state);
    return MPI_SUCCESS;
}

// Collective calls cannot be cancelled.
int cancel(void*, int) { return MPI_SUCCESS; }

#ifdef MPICH_VERSION
// MPI_Waitall of MPICH (3.3 to 5.0.2) takes a generalized request for an error of the program where
// another request of its array is null, unless the request has these functions, which are MPICH's
// own. A request with them is waited for by calling them, and they let MPI make progress.

// No message of a file's communicator has this tag.
constexpr int kProgressTag = 1;
bool look(const Operation& operation) {
    if (operation.completed.load()) return true;
    int flag = 0;
    PMPI_Iprobe(MPI_ANY_SOURCE, kProgressTag, operation.comm, &flag, MPI_STATUS_IGNORE);
    return operation.completed.load();
}

int poll(void* state, MPI_Status*) {
    if (!look(**static_cast<Shared*>(state))) ::sched_yield();
    return MPI_SUCCESS;
}

int wait_for(int count, void** states, double, MPI_Status*) {
    for (int i = 0; i < count; ++i) {
        const Operation& operation = **static_cast<Shared*>(states[i]);
        for (Nap nap; !look(operation); nap.take()) {
        }
    }
    return MPI_SUCCESS;
}
#endif

int begin_request(Operation& operation, Shared* state) {
#ifdef MPICH_VERSION
    return PMPIX_Grequest_start(query, release, cancel, poll, wait_for, state, &operation.request);
#else
    return PMPI_Grequest_start(query, release, cancel, state, &operation.request);
#endif
}

// ---- the thread ----

void carry_out(File& file, Operation& operation) noexcept {
    Answer answer;
    try {
        answer = file.carry_out(*operation.prepared);
    } catch (...) {
        answer = Answer{Fate::failed, 0, caught_error()};
        file.abandon(answer.error);
    }
    operation.bytes = answer.bytes;
    if (answer.fate == Fate::failed) operation.code = code_of(answer.error);
    operation.prepared.reset();
    if (operation.request != MPI_REQUEST_NULL) PMPI_Grequest_complete(operation.request);
    operation.completed.store(true);
}

// Signals of the program are for its own threads. Those of a fault of this thread stay.
class SignalsBlocked {
   public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
            sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

   private:
    sigset_t before_{};
};

}  // namespace

void Nap::take() {
    constexpr long kLongest = 1'000'000;
    const timespec time{0, nanoseconds_};
    ::nanosleep(&time, nullptr);
    nanoseconds_ = std::min(nanoseconds_ * 2, kLongest);
}

int Requests::add(const Call& call, MPI_File handle, MPI_Request* request) {
    auto operation = std::make_shared<Operation>();
    operation->handle = handle;
    operation->comm = file_.comm();
    // First what may fail on this rank alone. The other ranks wait for it all the same.
    auto prepared = file_.prepare(call);
    int code = MPI_SUCCESS;
    if (prepared) {
        auto state = std::make_unique<Shared>(operation);
        code = begin_request(*operation, state.get());
        if (code == MPI_SUCCESS) {
            static_cast<void>(state.release());
            *request = operation->request;
        } else {
            operation->request = MPI_REQUEST_NULL;
        }
    }
    operation->prepared = prepared && code == MPI_SUCCESS ? std::move(*prepared) : File::absent(call);
    put(std::move(operation));
    if (!prepared) {
        *request = MPI_REQUEST_NULL;
        return raise(handle, prepared.error());
    }
    return code;
}

void Requests::put(std::shared_ptr<Operation> operation) {
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(operation);
    }
    changed_.notify_all();
    if (thread_.joinable()) return;
    try {
        const SignalsBlocked blocked;
        thread_ = start_thread([this] { work(); });
    } catch (const std::system_error&) {
        // Without a thread this one does it, and waits for the other ranks.
        carry_out(file_, *operation);
        const std::lock_guard lock(mutex_);
        waiting_.pop_front();
    }
}

void Requests::work() {
    ::pthread_setname_np(::pthread_self(), "twinrun_mpiio");
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        const std::shared_ptr<Operation> operation = waiting_.front();
        lock.unlock();
        carry_out(file_, *operation);
        lock.lock();
        waiting_.pop_front();
        changed_.notify_all();
    }
}

void Requests::finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty(); });
}

bool Requests::idle() {
    const std::lock_guard lock(mutex_);
    return waiting_.empty();
}

Requests::~Requests() {
    finish();
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

}  // namespace twinrun::mpiio
